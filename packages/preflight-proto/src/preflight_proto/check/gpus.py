"""Which GPUs this container was given: NVML, else nvidia-smi.

Identity is the UUID: an index is the container's own and means nothing to the node's hostengine.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio

from .child import Completed, ToolMissing

__all__ = ["Gpu", "GpusUnavailable", "find", "lost", "parse_smi"]

QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,pci.bus_id", "--format=csv,noheader")
PATIENCE = 60.0
"""Seconds: a driver without persistence mode initialises each GPU first, some seconds apiece."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the container sees it. ``name`` is the driver's product name; ``pci_bus_id`` is domain:bus:device.function."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str

    @property
    def mig(self) -> bool:
        """Whether it is a slice of a GPU (multi-instance GPU)."""
        return self.uuid.startswith("MIG-")


class GpusUnavailable(Exception):
    """The GPUs cannot be listed, which says nothing about their health. ``reason`` is one sentence."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


async def find(
    command: Callable[[Sequence[str], float], Awaitable[Completed]], expected: int | None
) -> tuple[tuple[Gpu, ...], str]:
    """The container's GPUs by index, and who listed them (``NVML`` or ``nvidia-smi``).

    Raises :class:`GpusUnavailable`: ``NO_GPU`` when neither way finds one, ``GPU_COUNT`` when there are not ``expected``.
    """
    source = "NVML"
    by_nvml = await anyio.to_thread.run_sync(_ask_nvml, abandon_on_cancel=True)
    if isinstance(by_nvml, str):
        source = "nvidia-smi"
        gpus, trouble = await _ask_smi(command)
        if not gpus:
            raise GpusUnavailable("NO_GPU", f"no GPU can be seen: NVML says {by_nvml}; nvidia-smi says {trouble}")
    else:
        gpus = by_nvml
    if not gpus:
        raise GpusUnavailable("NO_GPU", "the driver lists no GPU in this container; does the container request any?")
    if expected is not None and len(gpus) != expected:
        raise GpusUnavailable(
            "GPU_COUNT",
            f"the pod was given {expected} GPU(s) but the driver lists {len(gpus)}: {', '.join(g.uuid for g in gpus)}",
        )
    return gpus, source


def _ask_nvml() -> tuple[Gpu, ...] | str:
    """The GPUs, or why NVML cannot say."""
    try:
        import pynvml
    except ImportError as error:
        return f"its binding is not installed ({error})"
    try:
        pynvml.nvmlInit()
        try:
            return tuple(_one(index) for index in range(pynvml.nvmlDeviceGetCount()))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f'"{error}"'


def _one(index: int) -> Gpu:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        index,
        _str(pynvml.nvmlDeviceGetUUID(handle)),
        _str(pynvml.nvmlDeviceGetName(handle)),
        _str(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower(),
    )


async def lost(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Those of ``gpus`` that the driver has lost since they were listed: UUID → NVML's words. Empty when NVML cannot say."""
    return await anyio.to_thread.run_sync(_ask_lost, gpus, abandon_on_cancel=True)


def _ask_lost(gpus: Sequence[Gpu]) -> dict[str, str]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return {}  # no binding, no library or no driver: a matter of the environment, not of one GPU
    gone: dict[str, str] = {}
    try:
        for gpu in gpus:
            try:
                # By address: a search by UUID walks over all GPUs, and one that is lost makes it fail for the healthy ones too.
                handle = pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_bus_id.encode())
                pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)  # must ask the GPU itself
            except pynvml.NVMLError_GpuIsLost as error:
                gone[gpu.uuid] = str(error)
            except pynvml.NVMLError:
                continue
    finally:
        pynvml.nvmlShutdown()
    return gone


def _str(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


async def _ask_smi(command: Callable[[Sequence[str], float], Awaitable[Completed]]) -> tuple[tuple[Gpu, ...], str]:
    try:
        done = await command(QUERY, PATIENCE)
    except ToolMissing:
        return (), "nothing: it is not on PATH"
    if done.timed_out:
        return (), f"nothing within {PATIENCE:g} s"
    gpus = parse_smi(done.stdout) if done.returncode == 0 else ()
    said = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[0][:200]
    return gpus, f'"{said}" (exit {done.returncode})'


def parse_smi(stdout: str) -> tuple[Gpu, ...]:
    """The rows of ``--query-gpu=index,uuid,name,pci.bus_id --format=csv,noheader``; other lines are passed over."""
    rows = csv.reader(io.StringIO(stdout), skipinitialspace=True)
    return tuple(
        Gpu(int(row[0]), row[1], row[2], row[3].lower())
        for row in rows
        if len(row) == 4 and row[0].isdecimal() and row[1].startswith(("GPU-", "MIG-"))
    )
