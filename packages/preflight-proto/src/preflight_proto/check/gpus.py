"""Which GPUs this container was given: NVML, else nvidia-smi; and which of them are missing, shared
or lost.

Identity is the UUID: an index is the container's own and means nothing to the node's hostengine.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from .. import nvml
from . import presence
from .child import Completed, ToolMissing
from .presence import MissingDevice, PresenceEvidence
from .verdict import Failed, Inconclusive, Skipped

QUERY: Final = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,pci.bus_id,serial,mig.mode.current",
    "--format=csv,noheader",
)
OLD_QUERY: Final = ("nvidia-smi", "--query-gpu=index,uuid,name,pci.bus_id", "--format=csv,noheader")
"""For an nvidia-smi that does not know the fields of the longer one."""
_SERIAL: Final = re.compile(r"(?!0$)[0-9A-Za-z][0-9A-Za-z-]*")
"""Anything else stands for none: ``[N/A]``, ``[Unknown Error]``, ``ERR!``, and 0 where the board
has none.
"""
PATIENCE: Final = 60.0
"""Seconds: a driver without persistence mode initialises each GPU first, some seconds apiece."""

Command = Callable[[Sequence[str], float], Awaitable[Completed]]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the container sees it. ``name`` is the driver's product name; ``pci_bus_id`` is
    domain:bus:device.function.

    ``mig``: a slice of a GPU (multi-instance GPU), or a GPU that is cut into slices. ``serial`` is
    the board's, empty where unknown.
    """

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    mig: bool = False
    serial: str = ""

    def __post_init__(self) -> None:
        if self.uuid.startswith("MIG-"):
            object.__setattr__(self, "mig", True)


class GpusMissing(Failed):
    """Allotted GPUs are not there: ``missing`` says which and who calls them lost, ``seen`` are
    those that are there.
    """

    def __init__(
        self, missing: tuple[MissingDevice, ...], seen: tuple[Gpu, ...], expected: int
    ) -> None:
        super().__init__(presence.verdict(missing, expected, [gpu.uuid for gpu in seen]))
        self.missing, self.seen = missing, seen


@dataclass(frozen=True, slots=True)
class _Listing:
    """``gpus`` that answered, errors of those that did not (address, or ``index N``, → words), and
    how many the container has no right to talk to.
    """

    gpus: tuple[Gpu, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    conclusive: frozenset[str] = frozenset()
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Places:
    """Where the kernel and the container runtime list GPUs; tests have their own."""

    driver: Path = Path("/proc/driver/nvidia/gpus")
    devices: Path = Path("/sys/bus/pci/devices")
    mounted: Path = Path("/var/run/nvidia-container-devices")


async def find(
    command: Command,
    expected: int | None,
    environ: Mapping[str, str] | None = None,
    places: Places = Places(),
) -> tuple[tuple[Gpu, ...], str]:
    """The container's GPUs by index, and who listed them (``NVML`` or ``nvidia-smi``).

    Where the runtime names as many GPUs as are ``expected`` (``NVIDIA_VISIBLE_DEVICES`` of
    ``environ``), those alone are returned. A GPU that does not answer costs no other one its place.
    Slices (``mig``) are not counted. Raises

    - :class:`GpusMissing` when fewer are there than the runtime names, or than ``expected``: a
      verdict, ``GPU_MISSING``;
    - :class:`Skipped` when the names are all there and fewer than ``expected``: ``GPU_SHARED``;
    - :class:`Inconclusive`: ``NO_GPU`` when neither way can list any, or the container has no
      right to talk to some, ``GPU_COUNT`` when there are more than ``expected``.
    """
    given = os.environ if environ is None else environ
    named, twice = presence.allotted(
        given.get("NVIDIA_VISIBLE_DEVICES", ""), _names(places.mounted)
    )
    source, by_smi, known = "NVML", "", expected
    by_nvml = await anyio.to_thread.run_sync(_listed, abandon_on_cancel=True)
    if isinstance(by_nvml, str):
        source = "nvidia-smi"
        seen, by_smi = await _ask_smi(command)
        gpus, errors = seen.gpus, _Listing(refused=seen.refused)
        if not gpus and not seen.errors and not seen.refused:
            raise Inconclusive(
                "NO_GPU",
                f"no GPU can be seen: NVML says {by_nvml}; nvidia-smi says {by_smi}. {_advice(by_nvml + by_smi)}",
            )
        smi = dict(seen.errors)
        if not gpus and 0 < len(smi) < max(expected or 0, len(named)):
            named, known = (), len(smi)  # it may have stopped there: of the others nothing is known
    else:
        gpus, errors, smi = by_nvml.gpus, by_nvml, {}
    if any(uuid.startswith("MIG-") for uuid in named) and not any(gpu.mig for gpu in gpus):
        gpus = tuple(
            replace(gpu, mig=True) for gpu in gpus
        )  # who listed them does not know of slices
    mig = any(gpu.mig for gpu in gpus)
    ours = tuple(gpu for gpu in gpus if gpu.uuid in named)
    if ours and not mig and len(ours) == len(named) == expected:
        gpus = ours  # a container that sees more than its own, as a privileged one does
    short = len(gpus) < (expected or 0) or any(
        uuid not in {gpu.uuid for gpu in gpus} for uuid in named
    )
    if short and not mig:
        if source == "NVML" and errors.errors:
            smi = dict((await _ask_smi(command))[0].errors)
        evidence = await anyio.to_thread.run_sync(_evidence, named, errors, smi, places)
        if gone := presence.missing({gpu.uuid: gpu.pci_bus_id for gpu in gpus}, known, evidence):
            if not gpus and expected is None and not errors.errors and not smi:
                raise Inconclusive("NO_GPU", _FORBIDDEN if errors.refused else _NONE)
            forbidden = presence.forbidden(gone, evidence)
            if gone == forbidden:
                raise Inconclusive("NO_GPU", _FORBIDDEN)
            gone = tuple(device for device in gone if device not in forbidden)
            raise GpusMissing(gone, gpus, expected or len(gpus) + len(gone))
        what = (
            "one GPU is handed out more than once"
            if twice
            else "it was given fewer devices than it asked for"
        )
        raise Skipped(
            "GPU_SHARED",
            f"the pod asks for {expected} GPU(s) and has {', '.join(gpu.uuid for gpu in gpus)}: {what}, as time-slicing does.",
        )
    if not gpus:
        raise Inconclusive("NO_GPU", _FORBIDDEN if errors.refused else _NONE)
    if expected is not None and len(gpus) > expected and not mig:
        raise Inconclusive(
            "GPU_COUNT",
            f"the pod was given {expected} GPU(s) but the driver lists {len(gpus)}: {', '.join(g.uuid for g in gpus)}",
        )
    return gpus, source


_TOOLKIT: Final = (
    "The driver's libraries come from NVIDIA's container toolkit: make it the node's default runtime or set the pod's runtimeClassName "
    "(often nvidia), and let the GPUs be handed out by the device plugin or a DRA driver."
)
_ADVICE: Final = (
    (
        r"gave no answer|hangs in the driver",
        "The driver hangs: see its log on the node (dmesg, Xid) and restart the node.",
    ),
    (
        r"version mismatch",
        "The node's driver was upgraded under a kernel module that is still the old one: drain the node and restart it.",
    ),
    (
        r"Driver Not Loaded|couldn't communicate with the NVIDIA driver",
        "No NVIDIA driver is loaded on the node: see its driver's pod, or the node's dmesg for why the module did not load.",
    ),
    (
        r"Unknown Error",
        "The container may not open the GPUs' devices, as after a systemd reload on the node: start the pod again, and see NVIDIA's container "
        "toolkit on cgroups; where it stays so, see the driver's log (dmesg, Xid).",
    ),
)
"""What a driver says that answers for no GPU (regular expression) → what to do about it."""


def _advice(text: str) -> str:
    return next(
        (advice for pattern, advice in _ADVICE if re.search(pattern, text, re.IGNORECASE)), _TOOLKIT
    )


_NONE: Final = (
    "the driver lists no GPU in this container; see that the container asks for GPUs, and that the device plugin or the DRA driver hands "
    "them out on this node."
)


_FORBIDDEN: Final = (
    "NVML has no permission to talk to GPUs, which may be those that the pod was given and cannot see; see whom the node's /dev/nvidia* belong "
    "to and their mode (NVreg_DeviceFileUID, -GID, -Mode) against the pod's runAsUser and runAsGroup, and start the pod again, as its device "
    "rules may be gone after a systemd reload."
)


def _evidence(
    named: tuple[str, ...], errors: _Listing, smi: Mapping[str, str], places: Places
) -> PresenceEvidence:
    """What else shows GPUs that are not listed."""
    driver = {}
    for file in sorted(places.driver.glob("*/information")):
        with suppress(OSError):
            pci, uuid = presence.parse_information(file.read_text(errors="replace"))
            driver[pci or presence.address(file.parent.name)] = uuid
    suspects = {pci for pci in [*errors.errors, *smi, *driver] if not pci.startswith("index ")}
    dead = [pci for pci in sorted(suspects) if _dead(places.devices / pci / "config")]
    lost: dict[str, dict[str, str]] = {}
    for who, by_place in (
        ("NVML", errors.errors),
        ("nvidia-smi", smi),
        ("PCI", dict.fromkeys(dead, "its configuration space reads as ones only")),
    ):
        for place, words in by_place.items():
            lost.setdefault(place, {})[who] = words
    return PresenceEvidence(named, driver, lost, errors.conclusive, errors.refused)


def _dead(config: Path) -> bool:
    """Whether the device at the other end answers no reads of its configuration: then the bus
    returns ones.
    """
    try:
        with config.open("rb") as file:
            return file.read(4) == b"\xff\xff\xff\xff"
    except OSError:
        return False


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _listed() -> _Listing | str:
    return nvml.ask(_ask_nvml, patience=PATIENCE, otherwise=str)


def _ask_nvml() -> _Listing | str:
    """What NVML can reach, or why it cannot say."""
    try:
        import pynvml
    except ImportError as error:
        return f"its binding is not installed ({error})"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f'"{error}"'
    gpus: list[Gpu] = []
    errors: dict[str, str] = {}
    conclusive = set()
    refused = 0
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            where = f"index {index}"
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                where = presence.address(_str(pynvml.nvmlDeviceGetPciInfo(handle).busId))
                gpus += _one(index, handle)
            except pynvml.NVMLError_NoPermission:
                refused += 1  # somebody else's, or one of ours whose device may not be opened
            except pynvml.NVMLError_InvalidArgument:
                continue  # a GPU that is not this container's
            except (
                pynvml.NVMLError_FunctionNotFound,
                pynvml.NVMLError_NotSupported,
                pynvml.NVMLError_InsufficientSize,
                pynvml.NVMLError_ArgumentVersionMismatch,
                pynvml.NVMLError_LibRmVersionMismatch,
            ) as error:
                return f'"{error}"'  # that is the library, not a GPU
            except pynvml.NVMLError as error:
                errors[where] = str(error)
                if isinstance(error, pynvml.NVMLError_GpuIsLost):
                    conclusive.add(where)
    except pynvml.NVMLError as error:
        return f'"{error}"'
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return _Listing(tuple(gpus), errors, frozenset(conclusive), refused)


def _one(index: int, handle: Any) -> list[Gpu]:
    """The GPU behind ``handle``, or the slices of it that this container was given."""
    import pynvml

    name = _str(pynvml.nvmlDeviceGetName(handle))
    pci = _str(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()
    whole = _str(pynvml.nvmlDeviceGetUUID(handle))
    serial = _serial(_optional(lambda: _str(pynvml.nvmlDeviceGetSerial(handle)), ""))
    mode = _optional(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0], 0)
    if mode != pynvml.NVML_DEVICE_MIG_ENABLE:
        return [Gpu(index, whole, name, pci, serial=serial)]
    most = _optional(lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)), 0)
    slices = [
        uuid for number in range(most) if (uuid := _optional(partial(_slice, handle, number), ""))
    ]
    return [Gpu(index, uuid, name, pci, mig=True, serial=serial) for uuid in slices or [whole]]


def _slice(handle: Any, number: int) -> str:
    import pynvml

    return _str(
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
    )


def _optional(ask: Callable[[], Any], otherwise: Any) -> Any:
    """What an older library, driver or GPU may not offer."""
    import pynvml

    try:
        return ask()
    except (pynvml.NVMLError, AttributeError):
        return otherwise


async def lost(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Those of ``gpus`` that the driver has lost since they were listed: UUID → NVML's words. Empty
    when NVML cannot say.

    Drivers say "Unknown Error" of a GPU that has fallen off the bus as often as "GPU is lost"; the
    former counts where another GPU answers or the GPU's PCI configuration reads as ones only.
    """
    ask: Callable[[], dict[str, str]] = partial(
        nvml.ask, _ask_lost, tuple(gpus), patience=PATIENCE, otherwise=lambda _: {}
    )
    return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)


def _ask_lost(gpus: Sequence[Gpu], places: Places = Places()) -> dict[str, str]:
    with nvml.started() as there:
        errors = {gpu: silence(gpu) for gpu in gpus} if there else {}
    if not errors:
        return {}
    import pynvml

    answered = any(error is None for error in errors.values())  # NVMLError compares with no other
    return {
        gpu.uuid: str(error)
        for gpu, error in errors.items()
        if isinstance(error, pynvml.NVMLError_GpuIsLost)
        or (
            isinstance(error, pynvml.NVMLError_Unknown)
            and (answered or _dead(places.devices / presence.address(gpu.pci_bus_id) / "config"))
        )
    }


def silence(gpu: Gpu) -> Exception | None:
    """NVML's error where the GPU itself gives no answer, None where it does. NVML is started.

    By address: a search by UUID walks over all GPUs, and one that is lost makes it fail for the
    healthy ones too.
    """
    import pynvml

    try:
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_bus_id.encode())
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)  # of the GPU itself
    except pynvml.NVMLError_NotSupported:
        return None
    except pynvml.NVMLError as error:
        return error  # type: ignore[no-any-return]
    return None


def _str(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


async def _ask_smi(command: Command) -> tuple[_Listing, str]:
    """The GPUs that nvidia-smi lists, those that it cannot reach, and what it said. It exits
    non-zero after listing the good ones.
    """
    try:
        done = await command(QUERY, PATIENCE)
        if "is not a valid field" in done.stdout + done.stderr:
            done = await command(OLD_QUERY, PATIENCE)
    except ToolMissing as error:
        return _Listing(), f"nothing: {error}"
    if done.timed_out:
        return _Listing(), f"nothing within {PATIENCE:g} s"
    output = f"{done.stdout}\n{done.stderr}"
    line = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[0][:200]
    listing = _Listing(
        parse_smi(done.stdout), presence.parse_unreachable(output), refused=presence.refused(output)
    )
    return listing, f'"{line}" (exit {done.returncode})'


def _serial(text: str) -> str:
    return text if _SERIAL.fullmatch(text) else ""


def parse_smi(stdout: str) -> tuple[Gpu, ...]:
    """The rows of ``--query-gpu=index,uuid,name,pci.bus_id[,serial,mig.mode.current]``; other lines
    are passed over.
    """
    rows = csv.reader(io.StringIO(stdout), skipinitialspace=True)
    return tuple(
        Gpu(
            int(row[0]),
            row[1],
            row[2],
            row[3].lower(),
            mig=row[5:6] == ["Enabled"],
            serial=_serial("".join(row[4:5])),
        )
        for row in rows
        if len(row) in {4, 6} and row[0].isdecimal() and row[1].startswith(("GPU-", "MIG-"))
    )
