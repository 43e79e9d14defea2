"""What NCCL's words mean, for every check that runs it: which kind of trouble an error is, and which variables bend a measurement.

NCCL's error classes alone accuse nobody: a full /dev/shm prints as an *internal error*, and what the healthy survivors of a
dead rank see is a *remote error*. :func:`classify` therefore reads the whole output, in this order: environment, device, bootstrap,
peer, and only then the class.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from .verdict import Action

__all__ = [
    "Kind",
    "NcclError",
    "Topology",
    "choose_topology",
    "classify",
    "environment",
    "unusual_variables",
]


class Kind(StrEnum):
    """Whom an error is about. Only DEVICE is a verdict on hardware; the others are evidence, or none."""

    ENVIRONMENT = "environment"
    DEVICE = "device"
    PEER = "peer"
    CLASS = "class"


@dataclass(frozen=True, slots=True)
class NcclError:
    """The error that an output tells of.

    ``says`` and ``fix`` are constant per ``code``; ``line`` is the output's own. ``device`` is the CUDA index that NCCL printed
    in brackets, None where it printed none. ``fatal`` is ADR-026's column, for a check that has confirmed whom it concerns.
    """

    kind: Kind
    code: str
    says: str
    fix: str
    action: Action
    fatal: bool
    line: str
    device: int | None = None


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: Kind
    code: str
    pattern: re.Pattern[str]
    says: str
    fix: str = ""
    action: Action = Action.NONE
    fatal: bool = False


def _rule(
    kind: Kind,
    code: str,
    pattern: str,
    says: str,
    fix: str = "",
    *,
    action: Action = Action.NONE,
    fatal: bool = False,
) -> _Rule:
    return _Rule(kind, code, re.compile(pattern, re.IGNORECASE), says, fix, action, fatal)


_E, _D, _P, _C = Kind.ENVIRONMENT, Kind.DEVICE, Kind.PEER, Kind.CLASS

# The first rule that matches any line decides.
_RULES: Final = (
    # --- environment: what the container or the node's software lacks. nccl-tests#166: ENOSPC ends as "internal error".
    _rule(
        _E,
        "SHM_FULL",
        r"/dev/shm\S* .*No space left|failed to extend /dev/shm|posix_fallocate failed.*No space left"  # noqa: S108 (NCCL's)
        r"|creating shared memory segment \S+ \(size \d+\)(?!.*(?:Permission|invalid))",
        "NCCL could not get shared memory",
        "give the check's container a memory-backed volume at /dev/shm (the default is 64 MiB)",
    ),
    _rule(
        _E,
        "MEMLOCK",
        r"ibv_(?:exp_)?reg_mr\w* failed|ibv_create_(?:cq|qp)\w* failed.*Cannot allocate memory|RLIMIT_MEMLOCK|memlock",
        "memory could not be locked for the network card",
        "raise the container's memlock limit, or give it IPC_LOCK",
    ),
    _rule(
        _E,
        "DUPLICATE_GPU",
        r"Duplicate GPU detected|Multiple Ranks are using the same GPU",  # the latter since NCCL 2.30
        "one GPU was handed out twice",
        "switch off time-slicing for pods that ask for several GPUs",
    ),
    _rule(
        _E,
        "GPU_COUNT",
        r"Invalid number of GPUs: \d+ requested|invalid device ordinal|no CUDA-capable device is detected",
        "CUDA sees fewer GPUs than the driver lists",
        "look at the driver's log on the node (dmesg, Xid)",
    ),
    _rule(
        _E,
        "FABRIC_NOT_READY",
        r"system not yet initialized|fabric manager.*not (?:running|ready)|IMEX.*not (?:running|ready|initialized)",
        "the NVSwitch fabric is not initialised",
        "start nvidia-fabricmanager on the node (and nvidia-imex where there is one)",
    ),
    _rule(
        _E,
        "DRIVER_MISMATCH",
        r"driver version is insufficient|no kernel image is available|unsupported display driver|forward compatib"
        r"|named symbol not found|PTX was compiled with an unsupported toolchain",
        "the driver and the image's CUDA do not fit",
        "use an image that was built for this driver and these GPUs",
    ),
    _rule(
        _E,
        "GPU_MEMORY",
        r"out of memory",
        "a GPU's memory did not suffice",
        "find what else holds memory on it (nvidia-smi), or set a smaller size",
    ),
    _rule(
        _E,
        "GPU_OCCUPIED",
        r"all CUDA-capable devices are busy or unavailable",
        "a GPU is held by another process",
        "find what else uses it (compute mode, nvidia-smi)",
    ),
    # --- device: what only a fault of the GPU itself makes CUDA say
    _rule(
        _D,
        "GPU_ECC",
        r"uncorrectable ECC error|cudaErrorECCUncorrectable",
        "CUDA met an uncorrectable memory error (214)",
        action=Action.CONTACT_SUPPORT,
        fatal=True,
    ),
    _rule(
        _D,
        "GPU_NVLINK",
        r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable|NVLink.*uncorrectable",
        "CUDA met an uncorrectable NVLink error (220)",
        action=Action.CONTACT_SUPPORT,
        fatal=True,
    ),
    _rule(
        _D,
        "GPU_LOST",
        r"GPU is lost|fallen off the bus|\bXid\b[^\n]*: (?:79|62|119|120)\b|hardware stack error",
        "the driver has lost the GPU",
        action=Action.CONTACT_SUPPORT,
        fatal=True,
    ),
    # --- environment again. After device faults: NCCL warns of the first two and goes on, and a peer that died of a fault refuses
    # connections too.
    _rule(
        _E,
        "TOPOLOGY_FILE_UNREADABLE",
        r"Could not open XML topology file|XML (?:Parse|Mismatch|parse) error|topology file.*(?:No such file|not found)",
        "NCCL could not read its topology file",
        "mend or remove NCCL_TOPO_FILE",
    ),
    _rule(
        _E,
        "NO_SUCH_HCA",
        r"NET/IB : No device found|NCCL_IB_HCA.*(?:not found|no match)",
        "NCCL_IB_HCA names a card that is not there",
        "mend NCCL_IB_HCA",
    ),
    _rule(
        _E,
        "BOOTSTRAP",
        r"socketStartConnect: Connect to \S+ failed.*(?:refused|No route|timed out)|Bootstrap : no socket interface found"
        r"|No route to host|bootstrap.*(?:Connection refused|no route)",
        "NCCL could not open its bootstrap connection",
        "check NCCL_SOCKET_IFNAME and the network policies between the pods",
    ),
    # --- peer: what survivors say of somebody else
    _rule(
        _P,
        "NCCL_REMOTE_ERROR",
        r"ncclRemoteError|remote process exited or there was a network error|Connection closed by remote peer"
        r"|socketProgress: Connection closed",
        "a peer ended, or the network between failed",
        action=Action.CONTACT_SUPPORT,
        fatal=True,
    ),
    # --- ADR-026's table
    _rule(
        _C,
        "NCCL_TIMEOUT",
        r"ncclTimeout|Watchdog caught collective operation timeout|Test timeout \(\d+s\)|^.*Timed ?out after \d+ ?(?:ms|seconds)",
        "the collective did not end in time",
    ),
    _rule(
        _C,
        "NCCL_SYSTEM_ERROR",
        r"ncclSystemError|unhandled system error",
        "a system call failed in NCCL",
        action=Action.CONTACT_SUPPORT,
        fatal=True,
    ),
    _rule(
        _C,
        "NCCL_INTERNAL_ERROR",
        r"ncclInternalError|internal error - please report|'internal error",
        "NCCL met an internal error",
        action=Action.RUN_DCGMEUD,
        fatal=True,
    ),
    _rule(_C, "NCCL_INVALID_USAGE", r"ncclInvalidUsage|invalid usage", "NCCL was used in a way it refuses"),
    _rule(_C, "NCCL_INVALID_ARGUMENT", r"ncclInvalidArgument|'invalid argument", "NCCL refused an argument"),
    _rule(
        _C,
        "NCCL_CUDA_ERROR",
        r"ncclUnhandledCudaError|unhandled cuda error|Test CUDA failure|NCCL WARN Cuda failure",
        "CUDA failed under NCCL",
        action=Action.RUN_DCGMEUD,
        fatal=True,
    ),
)

_DEVICE: Final = re.compile(r"\[(\d{1,3})\](?= )")


def classify(output: str) -> NcclError | None:
    """The error that ``output`` (stdout and stderr of an NCCL program) tells of; None when it names none. Never raises."""
    # INFO lines narrate; an "out of memory" or "timeout" in one of them is no error.
    lines = [line.strip() for line in output.splitlines() if " NCCL INFO " not in line and len(line) < 4000]
    for rule in _RULES:
        for line in lines:
            if rule.pattern.search(line):
                number = _DEVICE.search(line)
                device = int(number[1]) if number and "NCCL WARN" in line else None
                said = line if len(line) <= 200 else line[:199] + "…"
                return NcclError(rule.kind, rule.code, rule.says, rule.fix, rule.action, rule.fatal, said, device)
    return None


# --- variables of the workload

_NEVER: Final = (
    "NCCL_COMM_ID",  # would join somebody's communicator
    "NCCL_TESTS_*",  # nccl-tests' own: device, split, a bandwidth that changes the exit status
    "NCCL_DEBUG*",  # level, subsystems and file: our own level, on our own stdout
    "NCCL_LOOPBACK_*",
    "NCCL_ALLREDUCE_*",
    "TORCH_NCCL_*",
    "OMPI_COMM_WORLD_*",  # a program built with MPI would take itself for a rank of the workload's job
    "PMI_*",
    "PMIX_*",
    "CUDA_LAUNCH_BLOCKING",
)
_HARMLESS: Final = (
    *("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL"),
    *("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM"),
    *("NCCL_TOPO_FILE", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_PATH"),
)
"""Where a fabric is and how it is spoken to. Anything else may slow a healthy node down."""


def environment(environ: Mapping[str, str], **ours: str) -> dict[str, str]:
    """``environ`` for an NCCL program: without what must never be inherited, with warnings on, and with ``ours``."""
    kept = {name: value for name, value in environ.items() if not _matches(name, _NEVER)}
    return {**kept, "NCCL_DEBUG": "WARN", **ours}


def unusual_variables(environ: Iterable[str]) -> list[str]:
    """The NCCL variables in ``environ`` that may bend a measurement: with one of them a floor fails nobody."""
    names = (name for name in environ if name.startswith("NCCL_"))
    return sorted(name for name in names if not _matches(name, _NEVER) and name not in _HARMLESS)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# --- topology file


@dataclass(frozen=True, slots=True)
class Topology:
    """Which topology file NCCL gets: ``path`` None lets NCCL find out for itself. ``why`` is for people."""

    path: str | None
    why: str


def choose_topology(  # noqa: PLR0917
    user_file: str,
    instance_type: str,
    mapping: Mapping[str, str],
    available: Collection[str],
    folder: str,
    absent: Mapping[str, str],
) -> Topology:
    """ADR-026's order: the workload's own file, else the built-in one for the instance type, else NCCL's own eyes.

    ``mapping``: instance type → file name; ``available``: the file names in ``folder``; ``absent``: why others are not there.
    """
    if user_file:
        return Topology(user_file, f"{user_file}, the workload's NCCL_TOPO_FILE")
    own = "NCCL's own detection"
    if not mapping:
        return Topology(None, f"{own}, as no instance type is mapped to a file")
    if not instance_type:
        return Topology(None, f"{own}, as the node's instance type is not known")
    if (name := mapping.get(instance_type)) is None:
        return Topology(None, f"{own}, as the instance type {instance_type} is not mapped to a file")
    if name not in available:
        why = absent.get(name, f"there is none in {folder}")
        return Topology(None, f"{own} instead of {name} for the instance type {instance_type}: {why}")
    return Topology(f"{folder}/{name}", f"{folder}/{name} for the instance type {instance_type}")
