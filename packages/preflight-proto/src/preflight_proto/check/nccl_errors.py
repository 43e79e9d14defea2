"""What NCCL's words mean: which kind of trouble an output shows, in the words of NCCL 2.14 to
2.30, nccl-tests, CUDA and torch.

NCCL's error classes alone accuse nobody: a full /dev/shm prints as an *internal error*, and what
the healthy survivors of a dead rank see is a *remote error*. :func:`classify` therefore reads the
whole output, in this order: environment, device, bootstrap, peer, and only then the class.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from .verdict import Action


class ErrorKind(StrEnum):
    """Whom an error is about. Only DEVICE is a verdict on hardware; the others are evidence, or
    none.
    """

    ENVIRONMENT = "environment"
    DEVICE = "device"
    PEER = "peer"
    CLASS = "class"


@dataclass(frozen=True, slots=True)
class NcclError:
    """The error that an output shows.

    ``says`` and ``fix`` are constant per ``code``; ``line`` is the output's own. ``device`` is the
    CUDA index that NCCL printed in brackets, None where it printed none. ``fatal`` is ADR-026's
    column, for a check that has confirmed whom it concerns. ``pattern`` finds its lines.
    """

    kind: ErrorKind
    code: str
    pattern: str
    says: str
    fix: str = ""
    action: Action = Action.NONE
    fatal: bool = False
    line: str = ""
    device: int | None = None


_NO_HCA: Final = "NET/IB : No device found"
_HCA_NAMED: Final = "NCCL_IB_HCA set"
_GOES_ON: Final = "NCCL INFO Using network "
_PINNED: Final = "memory could not be registered with the network card"
_PIN: Final = "raise the container's memlock limit or give it IPC_LOCK, and where NCCL says Bad address load nvidia-peermem on the node"
_UNFIT: Final = "the driver and the image's CUDA do not fit"
_FIT: Final = "use an image that was built for this driver and these GPUs, and restart a node whose driver was upgraded while it ran"
_FABRIC: Final = "the NVSwitch fabric is not ready"
_START_FABRIC: Final = "start nvidia-fabricmanager on the node (and nvidia-imex where there is one), or restart the node if it runs"


def _environment(code: str, pattern: str, says: str, fix: str) -> NcclError:
    return NcclError(ErrorKind.ENVIRONMENT, code, pattern, says, fix)


def _device(code: str, pattern: str, says: str) -> NcclError:
    support = Action.CONTACT_SUPPORT
    return NcclError(ErrorKind.DEVICE, code, pattern, says, action=support, fatal=True)


def _peer(pattern: str) -> NcclError:
    code, says = "NCCL_REMOTE_ERROR", "a peer ended, or the network between failed"
    support = Action.CONTACT_SUPPORT
    return NcclError(ErrorKind.PEER, code, pattern, says, action=support, fatal=True)


# The first rule that matches any line decides.
_RULES: Final = (
    # --- environment: what the container or the node's software lacks. nccl-tests#166: ENOSPC ends
    # as "internal error".
    _environment(
        "SHM_FULL",
        # The path is NCCL's.
        r"/dev/shm\S* .*No space left|failed to extend /dev/shm|posix_fallocate failed.*No space left"  # noqa: S108
        r"|creating shared memory segment \S+ \(size \d+\)(?!.*(?:Permission|invalid))",
        "NCCL could not get shared memory",
        "give the check's container a memory-backed volume at /dev/shm (the default is 64 MiB)",
    ),
    _environment(
        "MEMLOCK",
        r"ibv_(?:exp_)?reg_mr\w* failed|NET/OFI (?:Could not|Unable to) register memory|ibv_create_(?:cq|qp)\w* failed.*Cannot allocate memory",
        _PINNED,
        _PIN,
    ),
    _environment(
        "DUPLICATE_GPU",
        # The latter since NCCL 2.30.
        r"Duplicate GPU detected|Multiple Ranks are using the same GPU",
        "one GPU was handed out twice",
        "switch off time-slicing for pods that ask for several GPUs",
    ),
    _environment(
        "GPU_COUNT",
        r"Invalid number of GPUs: \d+ requested|invalid device ordinal|no CUDA-capable device is detected"
        r"|No CUDA GPUs are available|Found no NVIDIA driver",  # torch's
        "CUDA sees fewer GPUs than the driver lists",
        "look at the driver's log on the node (dmesg, Xid)",
    ),
    _environment(
        "FABRIC_NOT_READY",
        r"system not yet initialized|fabric manager.*not (?:running|ready)|IMEX.*not (?:running|ready|initialized)"
        r"|MNNVL \(cliqueSize \d+\) is available but not (?:working|supported)"
        r"|Failed to bind NVLink SHARP(?!.*uncorrectable)",
        _FABRIC,
        _START_FABRIC,
    ),
    _environment(
        "DRIVER_MISMATCH",
        r"driver version is insufficient|no kernel image is available|device kernel image is invalid|unsupported display driver|forward compatib"
        r"|named symbol not found|PTX was compiled with an unsupported toolchain|NVIDIA driver on your system is too old"
        r"|Driver/library version mismatch|CUDA driver is a stub library|not supported in the installed CUDA driver"
        r"|CUDA Driver version found is \d+\. Minimum|invalid device function",
        _UNFIT,
        _FIT,
    ),
    _environment(
        "GPU_MEMORY",
        r"out of memory",
        "a GPU's memory did not suffice",
        "find what else holds memory on it (nvidia-smi), or set a smaller size",
    ),
    _environment(
        "GPU_OCCUPIED",
        r"CUDA-capable device(?:s|\(s\))? (?:is|are|is/are) busy or unavailable|cudaErrorDevicesUnavailable|\bMPS (?:client|server)\b",
        "a GPU is held by another process",
        "find what else uses it (compute mode, MPS, a process of an earlier pod that is still ending; nvidia-smi)",
    ),
    _environment(
        "GPU_NOT_VISIBLE",
        r"nvmlDeviceGetHandleBy\w+\(\d*\) failed: ?Not Found|nvmlInit\w*\(\) failed|libnvidia-ml\.so\S*: cannot open"
        r"|Failed to open libnvidia-ml",
        "NVML does not show NCCL a GPU that CUDA shows it",
        "give the container the driver's utility capability and all devices of its GPUs",
    ),
    _environment(
        "LIBRARY_MISSING",
        r"error while loading shared libraries: \S+|symbol lookup error: \S+|version `\S+' not found \(required by",
        "a shared library of the tool is not in the image, or not in the version that it needs",
        "build the image as its Dockerfile says, or let LD_LIBRARY_PATH name the library's folder",
    ),
    # --- device: what only a fault of the GPU itself makes CUDA say
    _device(
        "GPU_ECC",
        r"uncorrectable ECC error|cudaErrorECCUncorrectable",
        "CUDA met an uncorrectable memory error (214)",
    ),
    _device(
        "GPU_NVLINK",
        r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable|NVLink.*uncorrectable",
        "CUDA met an uncorrectable NVLink error (220)",
    ),
    _device(
        "GPU_LOST",
        r"GPU is lost|fallen off the bus|\bXid\b[^\n]*: (?:79|62|119|120)\b",
        "the driver has lost the GPU",
    ),
    # --- environment again. After device faults: NCCL warns of some and goes on, and of a peer that
    # died of a fault neither the shared memory nor the listening sockets are left.
    _environment(
        "TOPOLOGY_FILE_UNREADABLE",
        # Of a file that it cannot open it warns, and goes on without.
        r"XML (?:Parse(?: error)?|Mismatch) :|XML parse error|too many XML|XML parser is limited"
        r"|XML Topology has wrong version|Error : (?:name|value) \S+ too long",
        "NCCL could not read its topology file",
        "correct or remove NCCL_TOPO_FILE",
    ),
    _environment(
        "NO_SUCH_HCA",
        rf"{_NO_HCA}|NCCL_IB_HCA.*(?:not found|no match)",
        "NCCL_IB_HCA names a card that is not there",
        "correct NCCL_IB_HCA",
    ),
    _environment(
        "SHM_FULL",
        r"attaching to shared memory segment",
        "NCCL could not get shared memory",
        "give the check's container a memory-backed volume at /dev/shm (the default is 64 MiB)",
    ),
    _environment(
        "HOST_LIMIT",
        r"Too many open files|(?:pthread_create|Thread creation) failed|Failed to malloc \d+ bytes|alloc\([^)]*\) returned null"
        r"|(?:shared memory|Call to \w+ failed).*(?:Permission denied|Operation not permitted|Read-only file system)"
        r"|(?:CUDA|Cuda) (?:failure|error)\b.*\boperation not permitted"
        # C++'s last words of a thread or memory that it did not get
        r"|what\(\): +(?:Resource temporarily unavailable|std::bad_alloc)",
        "the operating system refused NCCL files, threads, memory or access",
        "raise the container's limits (open files, processes, memory), and see that it may write to /dev/shm and open its devices",
    ),
    _environment(
        "NO_NETWORK",
        r"Error: network .*not found|Failed to initialize any NET plugin",
        "NCCL has no network of the name that it was given",
        "see that the plugin of NCCL_NET and NCCL_NET_PLUGIN is in the image and finds its devices, or unset them",
    ),
    _environment(
        "NCCL_VERSIONS",
        r"Mismatched NCCL version detected|message truncated : receiv|collective mismatch error",
        "the ranks have different versions or settings of NCCL",
        "give all members the same image and the same variables",
    ),
    # --- peer, by what only an open connection can say: once a peer has died, others are refused
    # when they connect to it
    _peer(
        r"Connection closed by remote peer|socketProgress: Connection closed|NET/IB(?:/GIN)? ?: Got completion from peer"
        r"|Call to (?:recv from|send to) \S+ failed"
        r"|NET/OFI Request .*completed with error",  # aws-ofi-nccl: libfabric's completion queue
    ),
    _environment(
        "BOOTSTRAP",
        # "Net : Connect" up to NCCL 2.17, "returned" from 2.21; "exceeded retries" up to 2.23
        r"Net : connect to \S+ failed|socket(?:Start|Poll)Connect\b.* (?:failed|returned)\b"
        r"|socket\w+: exceeded|socketTryAccept: Accept failed"
        # NCCL goes on where its RAS thread gets no port
        r"|^(?!.*\bras/).*Call to (?:bind|listen|accept|socket|getsockname|getifaddrs|[gs]etsockopt(?: [A-Z_ ]+)?) failed"
        r"|no (?:socket |IP |usable listening )?interface found"
        r"|Bootstrap Root : (?:mismatch|rank \d+ of \d+ ranks has already)"
        r"|no device found .*verify NCCL_OOB_NET_IFNAME|^(?!.*ibv_).*No route to host|bootstrap.*(?:Connection refused|no route)",
        "NCCL could not open its bootstrap connection",
        "check NCCL_SOCKET_IFNAME and the network policies between the pods",
    ),
    # --- environment for the last time: what NCCL may survive
    _environment(
        "FABRIC_NOT_READY",
        # What NCCL up to 2.26 says of a fabric manager that was restarted under running processes
        # (nccl#976, #1338); 2.29 explains it.
        r"transport/nvls\.cc:\d+(?: \(\w+\))? NCCL WARN Cuda failure (?:\d+ )?'(?:invalid argument|operation not supported)",
        _FABRIC,
        _START_FABRIC,
    ),
    # libibverbs warns of a low limit whatever becomes of it, and NCCL of functions that it mostly
    # does without.
    _environment("MEMLOCK", r"memlock", _PINNED, _PIN),
    _environment(
        "DRIVER_MISMATCH",
        r"CUDA some PFN functions not found|Failed to load CUDA missing symbol",
        _UNFIT,
        _FIT,
    ),
    _environment(
        "PEER_ACCESS",
        r"peer access is not supported between these two devices|cudaErrorPeerAccessUnsupported",
        "CUDA refuses the GPUs access to each other's memory, which NCCL took for granted",
        "see how the GPUs are passed to this virtual machine, or set NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 where it has none",
    ),
    _environment(
        "RDMA_ADDRESS",
        # Between nodes that reach each other; a way that does not answer ends in a time-out
        # instead, and is the peer's.
        r"Call to ibv_modify_qp failed\b.*(?:Invalid argument|No data available|No such device)"
        r"|(?:only one link type|with one type of link) using NCCL_IB_HCA|net devices with different link_layer",
        "a network card has no address that NCCL could connect with (its GID), or is of another link type",
        "see that the card has its IP address (show_gids), and correct NCCL_IB_GID_INDEX and NCCL_IB_HCA, which must not mix link types",
    ),
    # --- peer: what survivors say of somebody else
    _peer(
        r"ncclRemoteError|remote process exited or there was a network error"
        r"|Call to ibv_modify_qp failed\b.*(?:timed out|unreachable|No route)",
    ),
    # --- ADR-026's table
    NcclError(
        ErrorKind.CLASS,
        "NCCL_TIMEOUT",
        r"ncclTimeout|Watchdog caught collective operation timeout|Test timeout \(\d+s\)|Test NCCL failure .*'timeout\b|^.*Timed ?out after \d+ ?(?:ms|seconds)",
        "the collective did not end in time",
    ),
    NcclError(
        ErrorKind.CLASS,
        "NCCL_SYSTEM_ERROR",
        r"ncclSystemError|unhandled system error",
        "a system call failed in NCCL",
        action=Action.CONTACT_SUPPORT,
        fatal=True,
    ),
    NcclError(
        ErrorKind.CLASS,
        "NCCL_INTERNAL_ERROR",
        r"ncclInternalError|internal error - please report|'internal error",
        "NCCL met an internal error",
        action=Action.RUN_DCGMEUD,
        fatal=True,
    ),
    NcclError(
        ErrorKind.CLASS,
        "NCCL_INVALID_USAGE",
        r"ncclInvalidUsage|invalid usage",
        "NCCL was used in a way it refuses",
    ),
    NcclError(
        ErrorKind.CLASS,
        "NCCL_INVALID_ARGUMENT",
        r"ncclInvalidArgument|NCCL (?:failure|error)[^\n]*\binvalid argument",
        "NCCL refused an argument",
    ),
    NcclError(
        ErrorKind.CLASS,
        "NCCL_CUDA_ERROR",
        r"ncclUnhandledCudaError|unhandled cuda error|Test CUDA failure|NCCL WARN Cuda failure|(?:RuntimeError|AcceleratorError): CUDA error: ",
        "CUDA failed under NCCL",
        action=Action.RUN_DCGMEUD,
        fatal=True,
    ),
)

_DEVICE: Final = re.compile(r"\[(\d{1,3})\](?= )")


def classify(output: str) -> NcclError | None:
    """The error that ``output`` (stdout and stderr of an NCCL program) shows; None when it names
    none. Never raises.
    """
    # INFO lines narrate; an "out of memory" or "timeout" in one of them is not an error. But NCCL
    # says at that level alone that it found no card, which is an error where somebody has named one
    # and NCCL has not gone on with another network.
    named = _HCA_NAMED in output and _GOES_ON not in output
    lines = [
        line.strip()
        for line in output.splitlines()
        if len(line) < 4000 and (" NCCL INFO " not in line or (named and _NO_HCA in line))
    ]
    for rule in _RULES:
        pattern = re.compile(rule.pattern, re.IGNORECASE)  # here: most runs show no error
        for line in lines:
            if pattern.search(line):
                number = _DEVICE.search(line)
                device = int(number[1]) if number and "NCCL WARN" in line else None
                text = line if len(line) <= 200 else line[:199] + "…"
                return replace(rule, line=text, device=device)
    return None
