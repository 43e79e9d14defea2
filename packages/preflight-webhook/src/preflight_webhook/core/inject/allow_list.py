"""What of the workload a check of the fabric may inherit: variables, mounts, a topology file, a row
each.

By list, not by exclusion: a name is passed on because what the library does with it is known, or
because the operator wrote that very name. The names follow the sources of NCCL 2.30, UCX 1.21,
libfabric 2.6 and Open MPI 5.0: numbers, switches, and names of devices, transports and algorithms.
What runs a command, loads code, connects elsewhere, or reads and writes files of its value's choice
is not among them.

What is mounted must never stand in for the check's own code, settings or files, so a mount comes to
one of three places: /dev/shm from memory alone, a topology file at a path of ours, and folders that
the operator names and that no image has anything in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from posixpath import basename, relpath
from typing import Any, Final, NamedTuple

from preflight_kube.api.workloads.model import map_of
from preflight_proto import names

from preflight_webhook.config.allow import AllowRow, refusal
from preflight_webhook.config.extra_volumes import normal
from preflight_webhook.core.detect.resources import matches

TOPOLOGY: Final = "NCCL_TOPO_FILE"
"""A file, and yet inherited: it is mounted anew at a path of ours, and the variable rewritten."""


class WorkloadSetting(NamedTuple):
    """A variable by its name, or a mount by its path, as the ``entry`` of its list in the pod, and
    the ``patterns`` by which a check inherits. ``taken``: names of variables that the check has, or
    mounts by their paths; ``memory``: names of the pod's volumes that are memory; ``empty``: of
    those that hold nothing when the check runs; ``setting``: what of the configuration has the
    patterns.
    """

    name: str
    patterns: Collection[str]
    entry: Mapping[str, Any] = {}
    memory: Collection[str] = ()
    empty: Collection[str] = ()
    setting: str = ""
    taken: Mapping[str, Mapping[str, Any]] = {}

    @property
    def listed(self) -> bool:
        """Whether the operator wrote that very name."""
        return self.name in self.patterns

    @property
    def chosen(self) -> bool:
        """Whether a pattern is for it."""
        return self.listed or matches(self.name, self.patterns)

    @property
    def named(self) -> bool:
        """Whether a pattern that is for it writes its first folder out."""
        return any(_LITERAL.match(glob) and fnmatchcase(self.name, glob) for glob in self.patterns)

    @property
    def family(self) -> str:
        """The first part of the variable's name."""
        return self.name.partition("_")[0]

    @property
    def missing(self) -> str:
        """The variables that the value refers to and the check does not have: names in `$(NAME)`;
        `$$` is an escaped dollar sign.
        """
        value = self.entry.get("value")
        references = _REFERENCE.finditer(value) if isinstance(value, str) else ()
        named = {match[1] for match in references if match[1]}
        return ", ".join(sorted(named - self.taken.keys()))

    @property
    def other(self) -> bool:
        """Say whether the check has another mount at the path."""
        there = self.taken.get(self.name, self.entry)
        return any(there.get(key) != self.entry.get(key) for key in ("name", "subPath"))

    @property
    def top(self) -> str:
        """The folder of the image that the mount is in."""
        return self.name.split("/")[1]


def _words(text: str) -> list[str]:
    """The words of ``text``; the rest of a line behind a # is a comment."""
    return [word for line in text.splitlines() for word in line.partition("#")[0].split()]


def _listed(text: str) -> Callable[[str], object]:
    """Whether a name is one of the globs in ``text``."""
    return re.compile("|".join(map(translate, _words(text)))).match


_known: Final = _listed(
    """
    # NCCL, and Google's network plugins
    NCCL_ALGO NCCL_PROTO NCCL_NET NCCL_RINGS NCCL_TREE_THRESHOLD NCCL_SINGLE_RING_THRESHOLD
    NCCL_BUFFSIZE NCCL_CHUNK_SIZE NCCL_NTHREADS NCCL_THREAD_THRESHOLDS NCCL_LL_* NCCL_LL128_*
    NCCL_MIN_* NCCL_MAX_* NCCL_NCHANNELS_* NCCL_CGA_CLUSTER_SIZE NCCL_CTA_POLICY NCCL_CROSS_NIC
    NCCL_CHECK_* NCCL_CHECKS_DISABLE NCCL_COLLNET_* NCCL_COMM_BLOCKING NCCL_COMM_S*_SHARE_RESOURCES
    NCCL_CUMEM_* NCCL_DMABUF_ENABLE NCCL_GDRCOPY_* NCCL_GDR_* NCCL_GIN_* NCCL_RMA_*
    NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER NCCL_GRAPH_HELPER_DISABLE
    NCCL_GRAPH_STREAM_ORDERING NCCL_IB_* NCCL_SOCKET_* NCCL_NSOCKS_PERTHREAD NCCL_OOB_NET_*
    NCCL_NETDEVS_POLICY NCCL_NET_GDR_* NCCL_NET_SHARED_* NCCL_NET_MERGE_* NCCL_NET_FORCE_*
    NCCL_NET_DISABLE_INTRA NCCL_NET_OPTIONAL_RECV_COMPLETION NCCL_NET_OVERHEAD
    NCCL_UNPACK_DOUBLE_NCHANNELS NCCL_IGNORE_* NCCL_LAUNCH_* NCCL_LOCAL_REGISTER
    NCCL_LEGACY_CUDA_REGISTER NCCL_LSA_TEAM_SIZE NCCL_MEM_SYNC_DOMAIN NCCL_L1_SHARED_MEMORY_CARVEOUT
    NCCL_MNNVL_* NCCL_NVB_* NCCL_NVLS_* NCCL_NVLSTREE_* NCCL_NVLINK_* NCCL_NVTX_DISABLE NCCL_P2P_*
    NCCL_PXN_* NCCL_PAT_ENABLE NCCL_PROGRESS_APPENDOP_FREQ NCCL_PROXY_APPEND_BATCH_SIZE
    NCCL_RUNTIME_CONNECT NCCL_SET_* NCCL_SHM_* NCCL_IPC_* NCCL_SYM_* NCCL_UID_STAGGER_* NCCL_WIN_*
    NCCL_WORK_* NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_FASTRAK_* NCCL_GPUDIRECTTCPX_*
    # UCX
    UCX_TLS UCX_*_DEVICES UCX_PROTOS UCX_ALLOC_PRIO UCX_SOCKADDR_* UCX_MAX_* UCX_MIN_* UCX_RNDV_*
    UCX_ZCOPY_* UCX_BCOPY_* UCX_RMA_* UCX_TM_* UCX_MULTI_* UCX_PROTO_* UCX_NUM_* UCX_KEEPALIVE_*
    UCX_ADAPTIVE_PROGRESS UCX_UNIFIED_MODE UCX_SEG_SIZE UCX_ATOMIC_MODE UCX_FENCE_MODE
    UCX_PREFER_OFFLOAD UCX_WARN_* UCX_USE_MT_MUTEX UCX_REG_* UCX_RCACHE_* UCX_MEMTYPE_* UCX_IB_*
    UCX_RC_* UCX_DC_* UCX_UD_* UCX_GGA_* UCX_SRD_* UCX_TCP_* UCX_CUDA_* UCX_GDR_COPY_* UCX_MM_*
    UCX_SM_* UCX_CM_* UCX_SCOPY_* UCX_POSIX_* UCX_SYSV_* UCX_XPMEM_* UCX_KNEM_* UCX_CMA_* UCX_SELF_*
    # Open MPI
    OMPI_MCA_btl OMPI_MCA_pml OMPI_MCA_mtl OMPI_MCA_osc OMPI_MCA_coll OMPI_MCA_coll_hcoll_enable
    OMPI_MCA_btl_tcp_* OMPI_MCA_btl_openib_* OMPI_MCA_btl_vader_* OMPI_MCA_btl_sm_*
    OMPI_MCA_btl_smcuda_* OMPI_MCA_oob_tcp_if_* OMPI_MCA_pml_ob1_* OMPI_MCA_pml_ucx_*
    OMPI_MCA_mtl_ofi_* OMPI_MCA_opal_common_ucx_* OMPI_MCA_opal_cuda_support
    # libfabric
    FI_PROVIDER FI_UNIVERSE_SIZE FI_FORK_UNSAFE FI_HMEM FI_HMEM_* FI_MR_CACHE_* FI_MR_CUDA_*
    FI_EFA_* FI_VERBS_* FI_TCP_* FI_CXI_* FI_SHM_* FI_OFI_RXM_*
    """
)
_never: Final = _listed(
    """
    NCCL_COMM_ID  # would join somebody's communicator
    NCCL_TESTS_*  # nccl-tests' own: device, split, a bandwidth that changes the exit status
    NCCL_DEBUG_FILE
    # torch's; it reads the old names too
    TORCH_NCCL_* NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_DESYNC_DEBUG
    OMPI_COMM_WORLD_*  # a rank of the workload's own job
    # settings of the checks themselves
    NCCL_LOOPBACK_* NCCL_ALLREDUCE_* CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES PREFLIGHT_* HOME
    """
    + " ".join(value for key, value in vars(names).items() if key.startswith("ENV_"))
)
_code: Final = _listed("LD_* PYTHON* PATH BASH_ENV CUDA_INJECTION64_PATH GLIBC_TUNABLES GCONV_PATH")
_CODE_WORDS: Final = frozenset(
    _words(
        """
        AGENT CMD COMMAND CONF CONFIG DEST DIR DIRECTORY DUMP ENV EXEC FILE FILENAME FILES GDB HOOK
        HOOKS LIB LIBRARY LIBS LOG MAIL MODULE MODULES PATH PATHS PLUGIN PLUGINS PRELOAD PROFILE
        PROFILER SCRIPT SOCK STATS TRACE TRACER TUNER URL
        """
    )
)
"""Parts of a name (between underscores) that say a command, code, or a file: not even in a family
that is known.
"""
of_the_fabric: Final = _listed(
    """
    NCCL_* UCX_* OMPI_* FI_* RDMAV_* MLX5_* GLOO_SOCKET_IFNAME
    LD_LIBRARY_PATH LD_PRELOAD  # where the network's plug-in is often found
    """
)
"""Whether a workload sets a variable for its communication: a check without it may measure
something else.
"""
_SYSTEM: Final = frozenset(
    _words(
        """
        app bin boot conda dev etc home init lib lib32 lib64 libx32 nix opt proc root run sbin snap
        sys tmp usr var venv workspace
        """
    )
)
"""Folders of an image that hold programs, libraries, settings, state or whatever it is started in.
"""
_REFERENCE: Final = re.compile(r"\$\$|\$\(([^()]*)\)")
_LITERAL: Final = re.compile(r"^/+([^/*?\[]+)(?:/|$|\*$)")
"""The first folder of a pattern, where it is written out; `/data*` names it well enough."""


def loads_code(name: str) -> bool:
    """Whether the variable ``name`` may make a program load code, run a command, or read and write
    files of its value's choice.
    """
    words = name.upper().split("_")
    return name != TOPOLOGY and bool(_code(name) or not _CODE_WORDS.isdisjoint(words))


NEVER: Final = "it would bend the check"
VARIABLES: Final = (
    AllowRow(lambda item: _never(item.name), NEVER),
    AllowRow(
        lambda item: loads_code(item.name),
        "it may load code or name a file; list the very name",
        unless=lambda item: item.listed,
    ),
    AllowRow(
        lambda item: item.name == TOPOLOGY or _known(item.name),
        "no pattern of {0.setting} names it; list it, or a pattern such as {0.family}_*,",
        unless=lambda item: item.chosen,
    ),
    AllowRow(
        lambda _: True,
        "what it does is not known here; list the very name",
        unless=lambda item: item.listed,
    ),
)
VALUES: Final = (
    AllowRow(
        lambda item: map_of(item.entry.get("valueFrom")).get("fileKeyRef") is not None,
        "it comes from a file (fileKeyRef) that a container of the pod writes first",
    ),
    AllowRow(lambda item: item.missing, "it refers to {1}, which is not inherited"),
)
MOUNTS: Final = (
    AllowRow(lambda item: item.other, "another one is at that path"),
    AllowRow(lambda item: item.entry.get("subPathExpr"), "its subPathExpr is the container's own"),
    AllowRow(
        lambda item: item.name == names.SHM_DIR,
        "its volume is not an emptyDir of medium Memory",
        unless=lambda item: item.entry.get("name") in item.memory,
    ),
    AllowRow(lambda item: item.name == "/", "it would cover the whole image"),
    AllowRow(
        lambda item: item.top in _SYSTEM,
        "programs and settings are looked for in /{0.top}, and the pod's author says what is mounted; "
        "have the operator mount it (checks[].extraVolumeMounts)",
    ),
    AllowRow(
        lambda _: True,
        "no pattern of mountPatterns names the folder /{0.top}",
        unless=lambda item: item.named,
    ),
)
_TOPOLOGY_FILES: Final = (
    AllowRow(lambda item: "$(" in item.name, "={0.name} refers to other variables"),
    AllowRow(
        lambda item: not item.entry,
        "={0.name} lies in no volume, so the checks run without it; mount the file to have it used",
    ),
    AllowRow(
        lambda item: item.entry.get("subPathExpr"),
        "={0.name} lies in a mount whose subPathExpr is the container's own",
    ),
    AllowRow(
        lambda item: item.entry.get("name") in item.empty,
        "={0.name} lies in an emptyDir, where nothing is before the pod's own containers run, so the checks run without it; "
        "mount a file that is there from the start",
    ),
)


@lru_cache(maxsize=1024)
def inheritable(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a check that inherits by ``patterns`` gets the variable ``name``: a pattern chooses
    among the known names, a name written out is meant.
    """
    return not refusal(VARIABLES, WorkloadSetting(name, patterns))


class MovedTopology(NamedTuple):
    """The variables and the mount by which NCCL finds the workload's topology file in a check."""

    variables: list[dict[str, Any]]
    mount: dict[str, Any]


def moved(
    file: object, mounted: Iterable[dict[str, Any]], empty: Collection[str] = ()
) -> MovedTopology | str:
    """The topology file that the workload has at ``file`` at a path of ours, as at its own it could
    stand in for any file of the check's image; or why it cannot be brought there.

    ``mounted``: the mounts of the container; ``empty``: volumes that hold nothing yet. NCCL stops
    at a file that is not there, so one of the workload's image cannot be named.
    """
    if not isinstance(file, str):
        return " has no value of its own, so its file is not passed on to the checks"
    path = normal(file)
    holding = ((normal(str(mount.get("mountPath"))), mount) for mount in mounted)
    above = [pair for pair in holding if pair[0] in {path, "/"} or path.startswith(pair[0] + "/")]
    folder, mount = max(above, key=lambda pair: len(pair[0]), default=("", {}))
    if why := refusal(_TOPOLOGY_FILES, WorkloadSetting(file, (), mount, empty=empty)):
        return why
    there = at = f"{names.USER_TOPOLOGY_DIR}/{basename(path)}"  # where the file itself is mounted
    if folder != path:
        there, at = f"{names.USER_TOPOLOGY_DIR}/{relpath(path, folder)}", names.USER_TOPOLOGY_DIR
    part = {"subPath": mount["subPath"]} if mount.get("subPath") else {}
    return MovedTopology(
        [{"name": TOPOLOGY, "value": there}, {"name": names.ENV_USER_TOPOLOGY, "value": file}],
        {"name": mount.get("name"), "mountPath": at, "readOnly": True, **part},
    )
