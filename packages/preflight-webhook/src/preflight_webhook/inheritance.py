"""What a check of the fabric inherits of the workload: variables, a topology file, and mounts such as /dev/shm.

A measurement under other settings than the workload's says little about the workload. But whatever is inherited can also bend the
check, so nothing is that would load code, join another communicator, or stand in for the check's own settings and files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from posixpath import normpath
from typing import Any, Final, NamedTuple

from preflight_proto import names

from .config import CheckConfig, Config
from .decision import Unseen
from .kept import Kept
from .review import decode_entries, decode_security

__all__ = ["Inherited", "Legacy", "Settings", "held_back", "inheriting", "legacies", "loads_code"]

TOPOLOGY: Final = "NCCL_TOPO_FILE"
_NEVER: Final = (
    "NCCL_COMM_ID",  # would join somebody's communicator
    "NCCL_TESTS_*",  # nccl-tests' own: device, split, a bandwidth that changes the exit status
    "NCCL_DEBUG_FILE",
    "TORCH_NCCL_*",
    "OMPI_COMM_WORLD_*",  # a rank of the workload's own job
    "NCCL_LOOPBACK_*",  # settings of the checks themselves
    "NCCL_ALLREDUCE_*",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "PREFLIGHT_*",
)
_OUR_VARIABLES: Final = frozenset(value for key, value in vars(names).items() if key.startswith("ENV_"))
_LOADS_CODE: Final = (
    "LD_*",
    "*_PLUGIN",
    "*_PLUGINS",
    "NCCL_CONF_FILE",  # a file of further NCCL variables
    "UCX_MODULE_*",
    "UCX_MODULES",
    "OMPI_MCA_*path*",
    "OMPI_MCA_*param_files*",
    "OMPI_MCA_*agent*",
    "PYTHON*",
    "PATH",
    "BASH_ENV",
    "CUDA_INJECTION64_PATH",
)
"""Inherited only where the operator lists the very name: a pattern does not say that code of the workload may run in the check."""
_REFERENCE: Final = re.compile(r"\$\$|\$\(([^()]*)\)")
_OUR_PATHS: Final = (
    *(names.SOCKET_DIR, names.SERVICE_ACCOUNT_DIR, names.TOKEN_DIR, names.GANG_DIR, names.STATE_DIR, names.NODE_DIR),
    names.RESULT_PATH,
    *("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt/venv", "/proc", "/sys"),
)
"""What a check reads, writes and runs: nothing of the workload is mounted over or into it."""
_OUR_FILES: Final = ("/tmp", "/etc/passwd")  # noqa: S108 (a mount path)


class Settings(NamedTuple):
    """What a container of the workload brings: environment, mounts and security context as they came."""

    env: bytes
    env_from: bytes
    mounts: bytes
    security: bytes


class Source(NamedTuple):
    """One container of the workload, and whether it gets GPUs."""

    where: str
    gpus: bool
    settings: Settings


class Inherited:
    """Entries for a check's container. Made once for alike pods; compared by identity, and not to be changed."""

    __slots__ = ("env", "mounts", "paths", "unseen", "warnings")

    def __init__(
        self,
        env: list[dict[str, Any]],
        mounts: dict[str, dict[str, Any]],
        warnings: list[str],
        unseen: tuple[Unseen, ...],
    ) -> None:
        self.env, self.mounts, self.paths = env, list(mounts.values()), frozenset(mounts)
        self.warnings = tuple(dict.fromkeys(warnings))
        self.unseen = unseen


@lru_cache(maxsize=256)  # namespaces may differ
def inheriting(config: Config) -> bool:
    """Whether any check inherits at all: else nobody looks at environments and mounts."""
    return any(any(_patterns(check, config)) for check in config.checks)


class Legacy(NamedTuple):
    """What a pod leaves to its checks: to each by its name, and whether it may lock memory, as RDMA without a raised limit needs."""

    by_check: dict[str, Inherited]
    ipc_lock: bool


_legacies: Final[Kept[tuple[tuple[Settings, ...], tuple[bool, ...], int, Config], Legacy]] = Kept(1024 * 1024)


def legacies(settings: tuple[Settings, ...], gpus: tuple[bool, ...], containers: int, config: Config) -> Legacy:
    """``settings`` and whether GPUs are given, of the containers (the first ``containers`` of them) and init containers.

    Raises :class:`~.review.BadReview` when a security context is none.
    """
    key = settings, gpus, containers, config
    if (kept := _legacies.get(key)) is not None:
        return kept
    sources = [
        Source(f"spec.containers[{i}]" if i < containers else f"spec.initContainers[{i - containers}]", *one)
        for i, one in enumerate(zip(gpus, settings, strict=True))
    ]
    made = ((check.name, _inherit(check, config, sources)) for check in config.checks)
    locks = any(_locks_memory(one.security) for one in settings)
    legacy = Legacy({name: one for name, one in made if one is not None}, locks)
    raw = sum([len(part) for one in settings for part in one])
    return _legacies.put(key, legacy, 1024 + 4 * raw)  # decoded, an entry is some times as large


def _locks_memory(raw: bytes) -> bool:
    own = None if raw == b"null" else decode_security(raw)
    if own is None:
        return False
    added = (own.capabilities and own.capabilities.add) or ()
    return own.privileged is True or any(one.removeprefix("CAP_") in {"IPC_LOCK", "ALL"} for one in added)


def _inherit(check: CheckConfig, config: Config, sources: list[Source]) -> Inherited | None:
    """What ``check`` inherits; None where it is one that inherits nothing. Of two containers the first with GPUs decides."""
    variables, paths = _patterns(check, config)
    if not variables and not paths:
        return None
    ranked = sorted(sources, key=lambda source: not source.gpus)  # stable: within either, as they stand in the pod
    warnings: list[str] = []
    env: dict[str, tuple[dict[str, Any], str]] = {}
    mounts: dict[str, dict[str, Any]] = {}
    for source in ranked:
        mounted = decode_entries(source.settings.mounts)
        for entry in _variables(source, variables, warnings):
            name = entry["name"]
            if name not in env:
                if name != TOPOLOGY or _with_its_mount(entry, source, mounted, mounts, warnings):
                    env[name] = entry, source.where
            elif env[name][0] != entry:
                warnings.append(
                    f"{name} differs between {env[name][1]} and {source.where}; {check.name} runs with that of {env[name][1]}"
                )
        for mount in mounted:
            path = str(mount.get("mountPath"))
            if any(fnmatchcase(_normal(path), _normal(pattern)) for pattern in paths):
                _take(mount, path, source, mounts, warnings)
    unseen = tuple(one for source in ranked for one in _unseen(check, source, variables))
    return Inherited([entry for entry, _ in env.values()], mounts, warnings, unseen)


def _unseen(check: CheckConfig, source: Source, patterns: tuple[str, ...]) -> Iterator[Unseen]:
    """What of a container's envFrom may hold variables that ``patterns`` ask for.

    Passing the whole entry on would let in whatever else it holds, code to load among it; reading it would take rights on everybody's
    Secrets and a request for each pod.
    """
    for i, entry in enumerate(decode_entries(source.settings.env_from)):
        prefix = str(entry.get("prefix") or "")
        heads = [re.split(r"[*?\[]", pattern, maxsplit=1)[0] for pattern in patterns]
        if not any(prefix.startswith(head) or head.startswith(prefix) for head in heads):
            continue
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if isinstance(of := entry.get(key), dict):
                yield Unseen(f"{source.where}.envFrom[{i}]", kind, str(of.get("name") or ""), check.name)


def _patterns(check: CheckConfig, config: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(names of variables, mount paths)."""
    if check.stays:
        return (), ()
    variables, paths = check.env_patterns, check.mount_patterns
    if check.nccl:
        variables = config.nccl_env_patterns if variables is None else variables
        paths = config.nccl_mount_patterns if paths is None else paths
    return variables or (), paths or ()


def _variables(source: Source, patterns: tuple[str, ...], warnings: list[str]) -> Iterator[dict[str, Any]]:
    """The variables of one container that may be inherited, in their order; of two with one name the last counts."""
    entries = decode_entries(source.settings.env)
    last = {name: entry for entry in entries if isinstance(name := entry.get("name"), str)}
    taken: set[str] = set()
    for name, entry in last.items():
        if not _allowed(name, patterns):
            continue
        value = entry.get("value")
        missing = sorted(_references(value) - taken) if isinstance(value, str) else []
        if missing:
            warnings.append(
                f"{source.where}: {name} is not passed on to the checks, as it refers to {', '.join(missing)}, which is not inherited"
            )
            continue
        taken.add(name)
        yield entry


def _allowed(name: str, patterns: tuple[str, ...]) -> bool:
    if name in _OUR_VARIABLES or any(fnmatchcase(name, never) for never in _NEVER):
        return False
    if loads_code(name):
        return name in patterns
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def loads_code(name: str) -> bool:
    """Whether the variable ``name`` makes a program load code, or read further variables."""
    return any(fnmatchcase(name, one) for one in _LOADS_CODE)


def held_back(variables: list[str], config: Config) -> list[str]:
    """Those of ``variables`` that a check would inherit by pattern if they did not load code."""
    patterns = {pattern for check in config.checks for pattern in _patterns(check, config)[0]}
    return sorted(
        {
            name
            for name in variables
            if loads_code(name) and name not in patterns and any(fnmatchcase(name, pattern) for pattern in patterns)
        }
    )


def _references(value: str) -> set[str]:
    """The names in `$(NAME)`; `$$` is an escaped dollar sign."""
    return {match[1] for match in _REFERENCE.finditer(value) if match[1] is not None}


def _with_its_mount(
    entry: dict[str, Any],
    source: Source,
    mounted: list[dict[str, Any]],
    mounts: dict[str, dict[str, Any]],
    warnings: list[str],
) -> bool:
    """Whether NCCL finds its topology file in the check too: the mount that holds it comes along, read-only.

    A file that lies in the workload's image cannot come along, and NCCL stops at a file that is not there.
    """
    file = entry.get("value")
    if not isinstance(file, str):
        warnings.append(
            f"{source.where}: {TOPOLOGY} has no value of its own, so its file is not passed on to the checks"
        )
        return False
    holding = [m for m in mounted if _under(_normal(file), _normal(str(m.get("mountPath"))))]
    if not holding:
        warnings.append(
            f"{source.where}: {TOPOLOGY}={file} lies in no volume, so the checks run without it; mount the file to have it used"
        )
        return False
    innermost = max(holding, key=lambda m: len(_normal(str(m.get("mountPath")))))
    return _take({**innermost, "readOnly": True}, str(innermost.get("mountPath")), source, mounts, warnings)


def _take(
    mount: dict[str, Any], path: str, source: Source, mounts: dict[str, dict[str, Any]], warnings: list[str]
) -> bool:
    where, there = f"{source.where}: the mount at {path}", mounts.get(_normal(path))
    if there is not None:
        if there.get("name") == mount.get("name") and there.get("subPath") == mount.get("subPath"):
            return True
        warnings.append(f"{where} is not passed on to the checks, as another one is at that path")
        return False
    if masked := _masks(_normal(path)):
        warnings.append(f"{where} is not passed on to the checks, as it would cover {masked} there")
        return False
    if mount.get("subPathExpr"):
        warnings.append(f"{where} is not passed on to the checks, as its subPathExpr is the container's own")
        return False
    # Bidirectional takes a privileged container.
    mounts[_normal(path)] = {key: value for key, value in mount.items() if key != "mountPropagation"}
    return True


def _masks(path: str) -> str | None:
    """What of the check's own a mount at ``path`` would hide, or stand within."""
    if _under(path, "/run"):
        path = "/var" + path  # one is a link to the other in most images
    for ours in (*_OUR_PATHS, *_OUR_FILES):
        if _under(ours, path):
            return ours
    return next((ours for ours in _OUR_PATHS if _under(path, ours)), None)


def _under(path: str, folder: str) -> bool:
    return folder in {path, "/"} or path.startswith(folder + "/")


def _normal(path: str) -> str:
    return normpath("/" + path.lstrip("/"))
