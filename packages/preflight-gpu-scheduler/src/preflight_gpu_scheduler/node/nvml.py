"""NVML by NVIDIA's own binding: what :mod:`.status` needs to know of each GPU. A function that a
driver does not have leaves out what it would say; what it has and does not say is not known.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from preflight_proto import nvml as reader

from preflight_gpu_scheduler.node.status import Facts, Link, bus_id

PATIENCE: Final = 60.0
"""Seconds: a driver without persistence mode initialises each GPU first, some seconds apiece."""
_LINKS: Final = 18
"""As many NVLinks as a GPU has at most today; where NVML says how many there are, that counts."""
_TO_GPU, _TO_SWITCH = 0, 2  # nvml.h: nvmlIntNvLinkDeviceType_t
_P2P_NVLINK, _P2P_OK = 2, 0  # nvml.h: NVML_P2P_CAPS_INDEX_NVLINK
_PCIE_GBPS: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of one lane in one direction, by PCIe generation."""
_NUMA: Final = Path("/sys/bus/pci/devices")


class NvmlFailed(Exception):
    """Nothing can be read just now, as while the driver is reloaded; one sentence."""


class Nvml:
    """The library of this process, which it initialises once. It keeps no XIDs itself."""

    def __init__(self) -> None:
        self._events: Any = None
        self._uuids: dict[int | None, str] | None = None

    def xids(self) -> dict[str, set[int]]:
        """Those that were seen since the last call, by UUID. Raises :class:`NvmlFailed`."""
        nvml = self._started()
        xids: dict[str, set[int]] = {}
        while self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:
                break  # nothing more has happened
            # A lost GPU no longer says its name.
            uuid = (self._uuids or {}).get(_address(event.device), "")
            xids.setdefault(uuid, set()).add(int(event.eventData))
        return xids

    def facts(self) -> list[Facts]:
        """Every GPU that NVML lists. Blocks, as NVML does. Raises :class:`NvmlFailed`."""
        nvml = self._started()
        try:
            handles = []
            for n in range(nvml.nvmlDeviceGetCount()):
                # A lost one has no name any more; what is remembered of it says which it was.
                with suppress(*_nameless(nvml)):
                    handles.append(nvml.nvmlDeviceGetHandleByIndex(n))
            every = [self._gpu(nvml, handle, handles) for handle in handles]
            return [gpu for gpu in every if gpu is not None]
        except nvml.NVMLError as error:
            raise NvmlFailed(
                f"NVML cannot be read ({_text(str(error))}); is the driver being reloaded?"
            ) from None

    def _started(self) -> Any:
        try:
            import pynvml
        except ImportError:
            raise NvmlFailed(
                "the NVML binding is not installed; install preflight-gpu-scheduler[agent]."
            ) from None
        if self._uuids is None:
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                raise NvmlFailed(
                    f"NVML cannot be loaded ({_text(str(error))}); is the NVIDIA driver there?"
                ) from None
            self._uuids = {}
            with suppress(pynvml.NVMLError):
                self._register(pynvml)
        return pynvml

    def _register(self, nvml: Any) -> None:
        """Subscribe to critical XIDs. Where that is impossible the other signs show health."""
        uuids: dict[int | None, str] = {}
        self._events, self._uuids = nvml.nvmlEventSetCreate(), uuids
        for n in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(n)
                uuids[_address(handle)] = _text(nvml.nvmlDeviceGetUUID(handle))
                nvml.nvmlDeviceRegisterEvents(
                    handle, nvml.nvmlEventTypeXidCriticalError, self._events
                )

    def _gpu(self, nvml: Any, handle: Any, all_handles: Sequence[Any]) -> Facts | None:
        lacks = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound)
        silent: list[str] = []

        def ask(name: str, otherwise: Any, *more: Any) -> Any:
            try:
                return getattr(nvml, name)(handle, *more)
            except nvml.NVMLError_GpuIsLost:
                raise
            except nvml.NVMLError as error:
                if not isinstance(error, lacks) or name in reader.without():
                    silent.append(name)
                return otherwise

        try:
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        except _nameless(nvml):
            return None  # it has no name any more, as one without a handle
        try:
            bus = getattr(ask("nvmlDeviceGetPciInfo", None), "busId", "")
            remapped = ask("nvmlDeviceGetRemappedRows", (0, 0, 0, 0))
            mig = ask("nvmlDeviceGetMigMode", (0, 0))[0]
            # By version: without one the binding raises an error of its own before R510.
            running = ask("nvmlDeviceGetComputeRunningProcesses_v3", None)
            if running is None:  # as drivers before R510 call it
                running = ask("nvmlDeviceGetComputeRunningProcesses_v2", None)
            decisive = ", ".join(silent)  # what follows does not decide whether it is given
            generation = ask("nvmlDeviceGetMaxPcieLinkGeneration", 0)
            width = ask("nvmlDeviceGetMaxPcieLinkWidth", 0)
            return Facts(
                uuid=uuid,
                pci_bus_id=_text(bus),
                links=_links(nvml, handle, all_handles, ask),
                pcie=round(_PCIE_GBPS.get(generation, 0.0) * width, 1),
                numa=_numa_node(_text(bus)),
                name=_text(ask("nvmlDeviceGetName", "")),
                ecc_pending=bool(remapped[2]),
                remap_failed=bool(remapped[3]),
                recovery=reader.field(handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
                mig=mig == nvml.NVML_DEVICE_MIG_ENABLE,
                processes=None if running is None else len(running),
                placed=bool(bus) and not reader.without(),
                unknown=f"NVML does not answer {decisive}" if decisive else "",
            )
        except nvml.NVMLError_GpuIsLost:
            return Facts(uuid=uuid, answers=False)


def _links(
    nvml: Any, handle: Any, all_handles: Sequence[Any], ask: Callable[..., Any]
) -> tuple[Link, ...]:
    speed = (reader.field(handle, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON") or 0) / 1000.0
    links, known = [], False
    for n in range(reader.field(handle, "NVML_FI_DEV_NVLINK_LINK_COUNT") or _LINKS):
        if not ask("nvmlDeviceGetNvLinkState", 0, n):
            continue
        kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", None, n)
        known = known or kind is not None
        if kind == _TO_SWITCH:
            links.append(Link(ends="switch", bandwidth=speed))
        elif kind == _TO_GPU:
            at = getattr(ask("nvmlDeviceGetNvLinkRemotePciInfo", None, n), "busId", "")
            links.append(Link(ends="gpu", remote=_text(at), bandwidth=speed))
    # A driver that does not say where links end may say which GPUs reach each other over them.
    # Whatever goes wrong here may be the other's: then there is no link to it, and no more.
    for other in () if known else all_handles:
        with suppress(nvml.NVMLError):
            if other is handle or not (at := nvml.nvmlDeviceGetPciInfo(other).busId):
                continue
            if nvml.nvmlDeviceGetP2PStatus(handle, other, _P2P_NVLINK) == _P2P_OK:
                links.append(Link(ends="gpu", remote=_text(at)))
    return tuple(links)


def _numa_node(bus: str) -> int | None:
    try:
        node = int((_NUMA / bus_id(bus) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _nameless(nvml: Any) -> tuple[type[Exception], ...]:
    """Errors that are one GPU's; any other says that NVML itself does not answer."""
    lost = nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired, nvml.NVMLError_Unknown
    sick = nvml.NVMLError_NoPermission, nvml.NVMLError_InsufficientPower, nvml.NVMLError_IrqIssue
    return lost + sick


_OWN: Final = Nvml()
"""Of the process that asks, from one question to the next."""


class NvmlProcess:
    """The driver's library in a process of its own (:mod:`preflight_proto.nvml`)."""

    def __init__(self) -> None:
        self._xids: dict[str, set[int]] = {}
        self._listed: set[str] = set()

    def facts(self) -> list[Facts]:
        """As :meth:`Nvml.facts`, with XIDs since :meth:`kept`; a silence is a NvmlFailed, too."""
        # First and by themselves, as the library says them once.
        seen = reader.ask(_xids, patience=PATIENCE, otherwise=lambda _: {})
        for uuid, xids in seen.items():
            self._xids.setdefault(uuid, set()).update(xids)
        facts = reader.ask(
            _facts, patience=PATIENCE, otherwise=lambda why: f"NVML does not answer: {why}."
        )
        if isinstance(facts, str):
            raise NvmlFailed(facts)
        self._listed = {gpu.uuid for gpu in facts}
        return [
            msgspec.structs.replace(gpu, xids=tuple(sorted(self._xids.get(gpu.uuid, ()))))
            for gpu in facts
        ]

    def kept(self) -> None:
        """The XIDs of the GPUs that were listed last are written down, and are not said again."""
        self._xids = {uuid: xids for uuid, xids in self._xids.items() if uuid not in self._listed}


def _xids() -> dict[str, set[int]]:
    with suppress(NvmlFailed):
        return _OWN.xids()
    return {}


def _facts() -> list[Facts] | str:
    try:
        return _OWN.facts()
    except NvmlFailed as error:
        reader.renew()  # the driver may be another when it is asked again, and its library too
        return str(error)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
