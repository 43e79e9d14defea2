"""Reading what :mod:`.scan` judges: NVML, one optional call after the other.

An error of NVML, a function that the library lacks and a GPU without the part all mean that the
fact is not known. Nothing is written.
"""

from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from .. import nvml
from . import scan
from .gpus import Gpu
from .scan import CounterSample, DeviceFacts, FactSeverity, Sign
from .verdict import Verdict

T = TypeVar("T")

PATIENCE: Final = 30.0
"""Seconds that one snapshot may take; a driver that hangs is not a finding of the scan."""
_BESIDES: Final = 5.0
"""Seconds more, for the process that asks to be ended."""
EVERY: Final = 0.2
"""Seconds between two samples."""
FIRST: Final = 0.05
"""Seconds until the first one: short runs have one too."""
LATE: Final = 1.0
"""Seconds that the answer to a run's only question may come after the run."""
MOST: Final = 3000
"""Samples that are kept of each GPU: ten minutes."""

_LINK_FIELDS: Final = {
    "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": "recovery failed",
    "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS": "recovery",
    "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS": "effective errors",
    "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS": "receive errors",
    "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS": "integrity",
}
"""Of newer GPUs, which do not offer the counters below."""
_LINK_COUNTERS: Final = {
    "NVML_NVLINK_ERROR_DL_REPLAY": "replay",
    "NVML_NVLINK_ERROR_DL_RECOVERY": "recovery",
    "NVML_NVLINK_ERROR_DL_CRC_FLIT": "CRC flit",
    "NVML_NVLINK_ERROR_DL_CRC_DATA": "CRC data",
}


async def snapshot(gpus: Sequence[Gpu]) -> tuple[DeviceFacts, ...]:
    """What each of ``gpus`` has now, some milliseconds apiece; empty where NVML cannot be asked or
    does not answer in time.
    """
    return await _asked(_snapshot, gpus) or ()


class DriverWatch:
    """What the driver says of ``gpus`` before, under and after a load."""

    def __init__(self, gpus: Sequence[Gpu], before: tuple[DeviceFacts, ...]) -> None:
        self.gpus, self.before = gpus, before
        self.after: tuple[DeviceFacts, ...] | None = None
        self.samples: list[CounterSample] = []

    @property
    def broken(self) -> bool:
        """Tell whether the driver calls a GPU broken before any load."""
        return any(sign.severity is FactSeverity.FATAL for sign in scan.scan(self.before))

    @property
    def held(self) -> dict[str, int]:
        """GPUs that had processes on them before ours came, with their number."""
        return {device.uuid: device.processes for device in self.before if device.processes}

    @property
    def signs(self) -> list[Sign]:
        """Each thing once, the worst first."""
        signs = scan.scan(self.before)
        if self.after:
            signs += scan.load(self.before, self.after, self.samples)
        each = {(sign.code, sign.uuid): sign for sign in signs}.values()
        return sorted(each, key=lambda sign: (-sign.severity, sign.code, sign.uuid))

    async def poll(self) -> None:
        """Ask once more, after the load; what it does not answer then is as it was."""
        self.after = self.after or ()  # also where the answer is not waited for
        self.after = await snapshot(self.gpus) or self.after

    def beside(self, verdict: Verdict, *, computed: bool = True) -> Verdict:
        """``verdict`` beside the signs; see :func:`.scan.with_signs`."""
        whole = scan.complete(self.before, self.before if self.after is None else self.after)
        return scan.with_signs(verdict, self.signs, whole, computed=computed)


async def nvlink_domain(gpus: Sequence[Gpu]) -> str:
    """The NVLink domain that these GPUs share with those of other nodes, as
    ``CLUSTER-UUID.CLIQUE``; empty where they are in none, or in several.

    GPUs of one cluster and one clique reach each other by NVLink; a cluster of zeros is a node by
    itself (nvml.h: nvmlGpuFabricInfo_t).
    """
    domains = await _asked(_domains, gpus) or []
    return domains[0] if len(domains) == len(gpus) and len(set(domains)) == 1 else ""


async def sample(gpus: Sequence[Gpu], within: float) -> tuple[CounterSample, ...]:
    """One sample of each of ``gpus``; empty where NVML does not give it ``within`` so many seconds,
    after which it is free for other questions.
    """
    return await _asked(_sample, gpus, within) or ()


@asynccontextmanager
async def sampled(gpus: Sequence[Gpu]) -> AsyncIterator[list[CounterSample]]:
    """Sample ``gpus`` five times a second while the block runs; the list is complete when it has
    ended.
    """
    samples: list[CounterSample] = []
    asked: list[anyio.Event] = []

    async def watch() -> None:
        for _ in range(MOST):
            await anyio.sleep(EVERY if samples else FIRST)
            asked.append(anyio.Event())
            seen = await _asked(_sample, gpus)
            samples.extend(seen or ())
            asked[-1].set()
            if not seen:
                return

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        yield samples
        if asked and not samples:  # of a short run, in which the question came and not the answer
            with anyio.move_on_after(LATE):
                await asked[-1].wait()
        group.cancel_scope.cancel()


async def _asked(
    question: Callable[[tuple[Gpu, ...]], T], gpus: Sequence[Gpu], within: float | None = None
) -> T | None:
    """None where there is no answer in time."""
    patience = PATIENCE if within is None else within
    ask: Callable[[], T | None] = partial(
        nvml.ask, question, tuple(gpus), patience=patience, otherwise=lambda _: None
    )
    with anyio.move_on_after(patience + _BESIDES):
        return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
    return None


def _snapshot(gpus: tuple[Gpu, ...]) -> tuple[DeviceFacts, ...]:
    return tuple(_with_handles(gpus, _facts))


def _domains(gpus: tuple[Gpu, ...]) -> list[str]:
    return _with_handles(gpus, lambda handle, _: _domain(handle))


def _domain(handle: Any) -> str:
    info = _ask(nvml.fabric_info, handle)
    if info is None or int(info.state) != scan.FABRIC_COMPLETED or not any(info.clusterUuid):
        return ""
    from uuid import UUID  # for a rack's GPUs alone

    return f"{UUID(bytes=bytes(info.clusterUuid))}.{int(info.cliqueId)}"


def _sample(gpus: tuple[Gpu, ...]) -> tuple[CounterSample, ...]:
    return tuple(_with_handles(gpus, _one_sample))


def _with_handles(gpus: Sequence[Gpu], read: Callable[[Any, str], T]) -> list[T]:
    with nvml.started() as there:
        if not there:
            return []
        import pynvml

        by_pci = pynvml.nvmlDeviceGetHandleByPciBusId
        handles = [(_ask(by_pci, gpu.pci_bus_id.encode()), gpu.uuid) for gpu in gpus]
        return [read(handle, uuid) for handle, uuid in handles if handle is not None]


def _ask(call: Any, *arguments: Any) -> Any:
    """What NVML answers, None where it does not."""
    import pynvml

    try:
        return call(*arguments)
    except (pynvml.NVMLError, AttributeError, TypeError, ValueError):
        return None


def _facts(handle: Any, uuid: str) -> DeviceFacts:
    import pynvml

    remapped = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    fabric = _fabric(handle)
    links = {
        link: bool(state)
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        if (state := _ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)) is not None
    }
    ecc, volatile = pynvml.nvmlDeviceGetTotalEccErrors, pynvml.NVML_VOLATILE_ECC
    # By version: the binding's function without one raises an error of its own where it is missing.
    running = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if running is None:  # as drivers before R510 call it
        running = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v2, handle)
    return DeviceFacts(
        uuid,
        remap_pending=_flag(remapped and remapped[2]),
        remap_failed=_flag(remapped and remapped[3]),
        ecc_uncorrectable=_ask(ecc, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile),
        ecc_corrected=_ask(ecc, handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile),
        sram_threshold=_sram(handle),
        recovery=_recovery(handle),
        fabric_state=fabric[0],
        fabric_status=fabric[1],
        fabric_health=fabric[2],
        pcie_generation=_ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_generation_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width=_ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        pcie_width_max=_ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        pcie_replays=_ask(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
        links=links,
        link_errors=_link_errors(handle, [link for link, up in links.items() if up]),
        power_limit=_watts(_ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle)),
        power_default=_watts(_ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
        persistence=_flag(_ask(pynvml.nvmlDeviceGetPersistenceMode, handle)),
        processes=len(running) if running is not None else None,
        bridged=not all(links.values())
        and _bridged(handle, [link for link in links if links[link]]),
        complete=not nvml.without(),
    )


def _bridged(handle: Any, up: Sequence[int]) -> bool:
    import pynvml

    to_gpu = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    ends = set()
    for link in up:
        if _ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) != to_gpu:
            return False
        ends.add(
            getattr(_ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link), "busId", None)
        )
    return len(ends) == 1 and None not in ends


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _watts(milliwatts: Any) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _sram(handle: Any) -> bool | None:
    import pynvml

    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()  # knows its own version
    # By its address, as in nvml.fabric_info.
    answer = _ask(pynvml.nvmlDeviceGetSramEccErrorStatus, handle, ctypes.byref(status))
    return None if answer is None else bool(status.bThresholdExceeded)


def _recovery(handle: Any) -> int | None:
    """nvml.h's nvmlDeviceGpuRecoveryAction_t; 1, a reset, also where an older driver says so only
    by refusing to measure anything.
    """
    import pynvml

    if action := nvml.field(handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"):
        return action
    try:
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    except pynvml.NVMLError_ResetRequired:
        return 1
    except pynvml.NVMLError:
        pass
    return action


def _fabric(handle: Any) -> tuple[int | None, int | None, int | None]:
    """(state, status, health mask) of the NVLink fabric."""
    info = _ask(nvml.fabric_info, handle)
    if info is None:
        return None, None, None
    return int(info.state), int(info.status), getattr(info, "healthMask", None)


def _link_errors(handle: Any, links: Sequence[int]) -> dict[tuple[int, str], int]:
    import pynvml

    errors: dict[tuple[int, str], int] = {}
    for link in links:
        for name, kind in _LINK_COUNTERS.items():
            counter = getattr(pynvml, name)
            count = _ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, counter)
            if count is not None:
                errors[link, kind] = int(count)
        if any(key[0] == link for key in errors):
            continue
        for name, kind in _LINK_FIELDS.items():
            if (count := nvml.field(handle, name, link)) is not None:
                errors[link, kind] = count
    return errors


def _one_sample(handle: Any, uuid: str) -> CounterSample:
    import pynvml

    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:  # as drivers before R535 call it
        reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return CounterSample(
        uuid,
        reasons=reasons,
        clock=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        temperature=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        pcie_generation=_ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_replays=_ask(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
    )
