"""NCCL, for every check that runs it: what its words mean (:mod:`.nccl_errors`), and which
variables bend a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from ..printable import printable
from .nccl_errors import ErrorKind, NcclError, classify

__all__ = ["ErrorKind", "NcclError", "classify"]


# --- variables of the workload


def _patterns(text: str) -> tuple[str, ...]:
    """Names, or patterns of them, without what is said of them behind a ``#``."""
    return tuple(word for line in text.splitlines() for word in line.partition("#")[0].split())


_NEVER: Final = _patterns("""
    NCCL_COMM_ID  # would join somebody's communicator
    NCCL_TESTS_*  # nccl-tests' own: device, split, a bandwidth that changes the exit status
    NCCL_DEBUG*  # level, subsystems and file: our own level, on our own stdout
    NCCL_LOOPBACK_* NCCL_ALLREDUCE_*
    # torch's; it still reads the old names
    TORCH_NCCL_* NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_DESYNC_DEBUG
    # A program built with MPI would take itself for a rank of the workload's job.
    OMPI_COMM_WORLD_* PMI_* PMIX_*
    CUDA_LAUNCH_BLOCKING
    # What the kubelet adds for a Service whose name begins with nccl-: no setting, so nothing that
    # could excuse a low bandwidth.
    NCCL_*_SERVICE_HOST NCCL_*_SERVICE_PORT* NCCL_*_PORT NCCL_*_PORT_*_TCP* NCCL_*_PORT_*_UDP*
""")
_KEPT: Final = _patterns("""
    PATH LANG LC_ALL TZ TMPDIR
    LD_LIBRARY_PATH  # where some platforms keep the driver
    NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES
""")
"""All that an NCCL program needs of the container; anything else is somebody's wish, or somebody's
secret.
"""
_TORCH: Final = {"TORCH_NCCL_USE_COMM_NONBLOCKING": "0"}
"""torch 2.6.0 to 2.7.0 make communicators that do not block once they are given the device, and
hang at random with them.
"""
# The folder is an empty volume of the check's own.
_NO_SETTINGS: Final = {"HOME": "/tmp", "NCCL_CONF_FILE": "/dev/null"}  # noqa: S108
_NETWORK: Final = _patterns("""
    NCCL_IB_* NCCL_SOCKET_* NCCL_NET* NCCL_CROSS_NIC NCCL_FASTRAK_* NCCL_OOB_* NCCL_COLLNET_*
    NCCL_GDR* NCCL_DMABUF_ENABLE NCCL_PXN_* NCCL_RAS_* NCCL_UID_* NCCL_HOSTID NCCL_NVTX_*
    NCCL_PROFILER_* NCCL_VERSION NCCL_HOME NCCL_TELEMETRY_*
""")
"""What a run inside one node never meets."""
_HARMLESS: Final = _patterns("""
    NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_TC NCCL_IB_SL
    NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_ROCE_VERSION_NUM
    NCCL_TOPO_FILE NCCL_NET NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN NCCL_TUNER_CONFIG_PATH
""")
"""Where a fabric is and how it is spoken to. Anything else may slow a healthy node down."""
_VERBS: Final = _patterns("""
    NCCL_IB_QPS_PER_CONNECTION NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_ADAPTIVE_ROUTING
    NCCL_IB_AR_THRESHOLD NCCL_IB_TIMEOUT NCCL_IB_RETRY_CNT NCCL_IB_PKEY
    NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_ECE_ENABLE NCCL_IB_FIFO_TC NCCL_IB_MERGE_NICS
    NCCL_NET_GDR_LEVEL NCCL_CROSS_NIC
""")
_ON_FABRIC: Final[Mapping[str, tuple[str, ...]]] = {
    "ib": _VERBS,
    "roce": _VERBS,
    # what AWS's guides for EFA set
    "efa": _patterns("NCCL_NET_GDR_LEVEL NCCL_CROSS_NIC NCCL_BUFFSIZE NCCL_P2P_NET_CHUNKSIZE"),
    # Google's profile for GPUDirect-TCPXO: without these the fabric does not work as it was
    # measured
    "tcpxo": _patterns("""
        NCCL_FASTRAK_* NCCL_CROSS_NIC NCCL_ALGO NCCL_PROTO NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS
        NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE NCCL_P2P_PXN_LEVEL
        NCCL_BUFFSIZE NCCL_DYNAMIC_CHUNK_SIZE NCCL_NET_GDR_LEVEL NCCL_NVLS_ENABLE NCCL_USE_SNAP
        NCCL_TUNER_* NCCL_SHIMNET_* NCCL_GPUVIZ_* NCCL_LIB_DIR
    """),
}
"""By class of fabric, what its vendor recommends everybody to set there, and its published figures
were measured with.
"""
_TRANSPORT: Final = ("NCCL_*", "OFI_NCCL_*", "FI_*", "UCX_*")
_MOST_SHOWN: Final = 100


def environment(environ: Mapping[str, str], **ours: str) -> dict[str, str]:
    """``environ`` for an NCCL program: without what must never be inherited, with warnings on, and
    with ``ours``.

    NCCL reads further variables in ``~/.nccl.conf`` unless it is given another file, and UCX in
    ``~/ucx.conf``: they get an empty file and the check's own scratch folder, so that whatever a
    home folder holds cannot bend a measurement.
    """
    kept = {name: value for name, value in environ.items() if not _matches(name, _NEVER)}
    return {
        **_NO_SETTINGS,
        **kept,
        "HOME": _NO_SETTINGS["HOME"],
        "NCCL_DEBUG": "WARN",
        **_TORCH,
        **ours,
    }


def clean_environment(environ: Mapping[str, str], **ours: str) -> dict[str, str]:
    """For an NCCL program whose figure decides: nothing of the workload's but where the driver and
    the GPUs are, and ``ours``.
    """
    return {
        **{name: environ[name] for name in _KEPT if name in environ},
        **_NO_SETTINGS,
        "NCCL_DEBUG": "WARN",
        **ours,
    }


def workload_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the workload that an NCCL program would heed, those that bend a run inside
    one node first.
    """
    heeded = ("NCCL_", "UCX_", "OMPI_")
    kept = {
        name: value
        for name, value in environ.items()
        if name.startswith(heeded) and not _matches(name, _NEVER)
    }
    return {name: kept[name] for name in sorted(kept, key=lambda name: (not bends(name), name))}


def bends(name: str) -> bool:
    """Whether the variable ``name`` may change how NCCL goes between the GPUs of one node: any of
    NCCL's that is not about the network.
    """
    return name.startswith("NCCL_") and not _matches(name, _NEVER) and not _matches(name, _NETWORK)


def unusual_variables(environ: Iterable[str], fabric: str = "") -> list[str]:
    """The NCCL variables in ``environ`` that may bend a measurement: with one of them a floor fails
    nobody.

    ``fabric``: the class of the network between the nodes (ib, roce, efa, tcpxo), whose own
    settings are none of them.
    """
    usual = (*_HARMLESS, *_ON_FABRIC.get(fabric, ()))
    names = (name for name in environ if name.startswith("NCCL_"))
    return sorted(
        name for name in names if not _matches(name, _NEVER) and not _matches(name, usual)
    )


def transport_variables(environ: Mapping[str, str]) -> list[str]:
    """``NAME=value`` of what steers NCCL's way to other nodes, for the log; long values are cut."""
    chosen = sorted(
        name for name in environ if _matches(name, _TRANSPORT) and not _matches(name, _NEVER)
    )
    return [
        f"{name}={printable(environ[name], _MOST_SHOWN)}"
        for name in chosen
        if name not in _NO_SETTINGS
    ]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
