"""Variables of the workload that a check of the fabric may inherit.

By list, not by exclusion: a name is passed on because what the library does with it is known, or
because the operator wrote that very name. The lists follow the sources of NCCL 2.30, UCX 1.21,
libfabric 2.6 and Open MPI 5.0: numbers, switches, and names of devices, transports and algorithms.
What runs a command, loads code, connects elsewhere, or reads and writes files of its value's choice
is not among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase, translate
from typing import Final

from preflight_proto import names

__all__ = ["TOPOLOGY", "inheritable", "loads_code", "of_the_fabric"]

TOPOLOGY: Final = "NCCL_TOPO_FILE"
"""A file, and yet inherited: it is mounted anew at a path of ours, and the variable rewritten."""

_KNOWN: Final = (
    # NCCL, and Google's network plugins
    *(
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_NET",
        "NCCL_RINGS",
        "NCCL_TREE_THRESHOLD",
        "NCCL_SINGLE_RING_THRESHOLD",
    ),
    *(
        "NCCL_BUFFSIZE",
        "NCCL_CHUNK_SIZE",
        "NCCL_NTHREADS",
        "NCCL_THREAD_THRESHOLDS",
        "NCCL_LL_*",
        "NCCL_LL128_*",
    ),
    *(
        "NCCL_MIN_*",
        "NCCL_MAX_*",
        "NCCL_NCHANNELS_*",
        "NCCL_CGA_CLUSTER_SIZE",
        "NCCL_CTA_POLICY",
        "NCCL_CROSS_NIC",
    ),
    *(
        "NCCL_CHECK_*",
        "NCCL_CHECKS_DISABLE",
        "NCCL_COLLNET_*",
        "NCCL_COMM_BLOCKING",
        "NCCL_COMM_S*_SHARE_RESOURCES",
    ),
    *(
        "NCCL_CUMEM_*",
        "NCCL_DMABUF_ENABLE",
        "NCCL_GDRCOPY_*",
        "NCCL_GDR_*",
        "NCCL_GIN_*",
        "NCCL_RMA_*",
    ),
    *(
        "NCCL_GRAPH_MIXING_SUPPORT",
        "NCCL_GRAPH_REGISTER",
        "NCCL_GRAPH_HELPER_DISABLE",
        "NCCL_GRAPH_STREAM_ORDERING",
    ),
    *(
        "NCCL_IB_*",
        "NCCL_SOCKET_*",
        "NCCL_NSOCKS_PERTHREAD",
        "NCCL_OOB_NET_*",
        "NCCL_NETDEVS_POLICY",
    ),
    *(
        "NCCL_NET_GDR_*",
        "NCCL_NET_SHARED_*",
        "NCCL_NET_MERGE_*",
        "NCCL_NET_FORCE_*",
        "NCCL_NET_DISABLE_INTRA",
    ),
    *("NCCL_NET_OPTIONAL_RECV_COMPLETION", "NCCL_NET_OVERHEAD", "NCCL_UNPACK_DOUBLE_NCHANNELS"),
    *(
        "NCCL_IGNORE_*",
        "NCCL_LAUNCH_*",
        "NCCL_LOCAL_REGISTER",
        "NCCL_LEGACY_CUDA_REGISTER",
        "NCCL_LSA_TEAM_SIZE",
    ),
    *(
        "NCCL_MEM_SYNC_DOMAIN",
        "NCCL_L1_SHARED_MEMORY_CARVEOUT",
        "NCCL_MNNVL_*",
        "NCCL_NVB_*",
        "NCCL_NVLS_*",
    ),
    *(
        "NCCL_NVLSTREE_*",
        "NCCL_NVLINK_*",
        "NCCL_NVTX_DISABLE",
        "NCCL_P2P_*",
        "NCCL_PXN_*",
        "NCCL_PAT_ENABLE",
    ),
    *(
        "NCCL_PROGRESS_APPENDOP_FREQ",
        "NCCL_PROXY_APPEND_BATCH_SIZE",
        "NCCL_RUNTIME_CONNECT",
        "NCCL_SET_*",
    ),
    *(
        "NCCL_SHM_*",
        "NCCL_IPC_*",
        "NCCL_SYM_*",
        "NCCL_UID_STAGGER_*",
        "NCCL_WIN_*",
        "NCCL_WORK_*",
        "NCCL_DEBUG",
    ),
    *("NCCL_DEBUG_SUBSYS", "NCCL_FASTRAK_*", "NCCL_GPUDIRECTTCPX_*"),
    # UCX
    *(
        "UCX_TLS",
        "UCX_*_DEVICES",
        "UCX_PROTOS",
        "UCX_ALLOC_PRIO",
        "UCX_SOCKADDR_*",
        "UCX_MAX_*",
        "UCX_MIN_*",
    ),
    *(
        "UCX_RNDV_*",
        "UCX_ZCOPY_*",
        "UCX_BCOPY_*",
        "UCX_RMA_*",
        "UCX_TM_*",
        "UCX_MULTI_*",
        "UCX_PROTO_*",
        "UCX_NUM_*",
    ),
    *(
        "UCX_KEEPALIVE_*",
        "UCX_ADAPTIVE_PROGRESS",
        "UCX_UNIFIED_MODE",
        "UCX_SEG_SIZE",
        "UCX_ATOMIC_MODE",
    ),
    *(
        "UCX_FENCE_MODE",
        "UCX_PREFER_OFFLOAD",
        "UCX_WARN_*",
        "UCX_USE_MT_MUTEX",
        "UCX_REG_*",
        "UCX_RCACHE_*",
    ),
    *(
        "UCX_MEMTYPE_*",
        "UCX_IB_*",
        "UCX_RC_*",
        "UCX_DC_*",
        "UCX_UD_*",
        "UCX_GGA_*",
        "UCX_SRD_*",
        "UCX_TCP_*",
    ),
    *(
        "UCX_CUDA_*",
        "UCX_GDR_COPY_*",
        "UCX_MM_*",
        "UCX_SM_*",
        "UCX_CM_*",
        "UCX_SCOPY_*",
        "UCX_POSIX_*",
        "UCX_SYSV_*",
    ),
    *("UCX_XPMEM_*", "UCX_KNEM_*", "UCX_CMA_*", "UCX_SELF_*"),
    # Open MPI
    *(
        "OMPI_MCA_btl",
        "OMPI_MCA_pml",
        "OMPI_MCA_mtl",
        "OMPI_MCA_osc",
        "OMPI_MCA_coll",
        "OMPI_MCA_coll_hcoll_enable",
    ),
    *("OMPI_MCA_btl_tcp_*", "OMPI_MCA_btl_openib_*", "OMPI_MCA_btl_vader_*", "OMPI_MCA_btl_sm_*"),
    *("OMPI_MCA_btl_smcuda_*", "OMPI_MCA_oob_tcp_if_*", "OMPI_MCA_pml_ob1_*", "OMPI_MCA_pml_ucx_*"),
    *("OMPI_MCA_mtl_ofi_*", "OMPI_MCA_opal_common_ucx_*", "OMPI_MCA_opal_cuda_support"),
    # libfabric
    *(
        "FI_PROVIDER",
        "FI_UNIVERSE_SIZE",
        "FI_FORK_UNSAFE",
        "FI_HMEM",
        "FI_HMEM_*",
        "FI_MR_CACHE_*",
        "FI_MR_CUDA_*",
    ),
    *("FI_EFA_*", "FI_VERBS_*", "FI_TCP_*", "FI_CXI_*", "FI_SHM_*", "FI_OFI_RXM_*"),
)
_WORDS: Final = frozenset(
    (
        *("AGENT", "CMD", "COMMAND", "CONF", "CONFIG", "DEST", "DIR", "DIRECTORY"),
        *("DUMP", "ENV", "EXEC", "FILE", "FILENAME", "FILES", "GDB", "HOOK"),
        *("HOOKS", "LIB", "LIBRARY", "LIBS", "LOG", "MAIL", "MODULE", "MODULES"),
        *("PATH", "PATHS", "PLUGIN", "PLUGINS", "PRELOAD", "PROFILE", "PROFILER", "SCRIPT"),
        *("SOCK", "STATS", "TRACE", "TRACER", "TUNER", "URL"),
    )
)
"""Parts of a name (between underscores) that say a command, code, or a file: not even in a family
that is known.
"""
_LOADS_CODE: Final = (
    "LD_*",
    "PYTHON*",
    "PATH",
    "BASH_ENV",
    "CUDA_INJECTION64_PATH",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
)
_NEVER: Final = (
    "NCCL_COMM_ID",  # would join somebody's communicator
    "NCCL_TESTS_*",  # nccl-tests' own: device, split, a bandwidth that changes the exit status
    "NCCL_DEBUG_FILE",
    *(
        "TORCH_NCCL_*",
        "NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_BLOCKING_WAIT",
        "NCCL_DESYNC_DEBUG",
    ),  # torch's; it reads the old names too
    "OMPI_COMM_WORLD_*",  # a rank of the workload's own job
    "NCCL_LOOPBACK_*",  # settings of the checks themselves
    "NCCL_ALLREDUCE_*",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "PREFLIGHT_*",
)
_FABRIC: Final = (
    *("NCCL_*", "UCX_*", "OMPI_*", "FI_*", "RDMAV_*", "MLX5_*", "GLOO_SOCKET_IFNAME"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD"),  # where the network's plug-in is often found
)
_OUR_VARIABLES: Final = frozenset(
    value for key, value in vars(names).items() if key.startswith("ENV_")
) | {"HOME"}
_KNOWN_NAME: Final = re.compile("|".join(translate(one) for one in _KNOWN))
_NEVER_NAME: Final = re.compile("|".join(translate(one) for one in _NEVER))


def inheritable(name: str, patterns: Iterable[str]) -> bool:
    """Whether a check that inherits by ``patterns`` gets ``name``: a pattern chooses among the
    known names, a name written out is meant.
    """
    if name in _OUR_VARIABLES or _NEVER_NAME.match(name):
        return False
    if name in patterns:
        return True
    return (name == TOPOLOGY or _known(name)) and any(
        fnmatchcase(name, pattern) for pattern in patterns
    )


def _known(name: str) -> bool:
    return _KNOWN_NAME.match(name) is not None and not _mentions_code(name)


def _mentions_code(name: str) -> bool:
    return not _WORDS.isdisjoint(name.upper().split("_"))


def loads_code(name: str) -> bool:
    """Whether the variable ``name`` may make a program load code, run a command, or read and write
    files of its value's choice.
    """
    return name != TOPOLOGY and (
        any(fnmatchcase(name, one) for one in _LOADS_CODE) or _mentions_code(name)
    )


def of_the_fabric(name: str) -> bool:
    """Whether a workload sets the variable ``name`` for its communication: a check without it may
    measure something else.
    """
    return any(fnmatchcase(name, one) for one in _FABRIC)
