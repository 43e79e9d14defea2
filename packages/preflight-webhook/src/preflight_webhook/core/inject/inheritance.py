"""What a check of the fabric inherits of the workload: variables, a topology file, and mounts such
as /dev/shm.

A measurement under other settings than the workload's says little about the workload. But whatever
is inherited can also bend the check, so nothing is that would load code, join another communicator,
or stand in for the check's own settings and files: see :mod:`.allow_list`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from preflight_kube.api.workloads.model import map_of

from preflight_webhook.api.review import decode_entries, decode_security, texts
from preflight_webhook.config.allow import refusal
from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.config.extra_volumes import normal
from preflight_webhook.core.decision import UnreadEnvFrom
from preflight_webhook.core.detect.resources import matches
from preflight_webhook.core.inject.allow_list import (
    MOUNTS,
    TOPOLOGY,
    VALUES,
    MovedTopology,
    WorkloadSetting,
    inheritable,
    moved,
)

_SHORT: Final = 128
"""Characters of a variable's name about which it is remembered, of a thousand of them."""


class ContainerSettings(NamedTuple):
    """What a container of the workload brings: environment, mounts and security context as they
    came.
    """

    env: bytes
    env_from: bytes
    mounts: bytes
    security: bytes


class EmptyVolume(NamedTuple):
    """An emptyDir of the pod, and whether it is memory."""

    name: str
    memory: bool


class Source(NamedTuple):
    """One container of the workload, and whether it gets GPUs."""

    where: str
    gpus: bool
    settings: ContainerSettings


class Inherited(NamedTuple):
    """Entries for a check's container, mounts by their paths."""

    env: list[dict[str, Any]]
    mounts: dict[str, dict[str, Any]]
    warnings: tuple[str, ...]
    unseen: tuple[UnreadEnvFrom, ...]


@lru_cache(maxsize=256)  # namespaces may differ
def inheriting(config: Config) -> bool:
    """Whether any check inherits at all: else nobody looks at environments and mounts."""
    return any(any(_patterns(check, config)) for check in config.checks)


def sources(
    settings: Sequence[ContainerSettings], gpus: Sequence[bool], containers: int
) -> list[Source]:
    """Those with GPUs first, and within either as they stand in the pod. ``settings`` and whether
    GPUs are given: of the containers (the first ``containers`` of them) and init containers.
    """
    everyone = []
    for i, own in enumerate(zip(gpus, settings, strict=True)):
        within = f"containers[{i}]" if i < containers else f"initContainers[{i - containers}]"
        everyone.append(Source(f"spec.{within}", *own))
    return sorted(everyone, key=lambda source: not source.gpus)


def locks_memory(settings: Iterable[ContainerSettings]) -> bool:
    """Say whether a container may lock memory, as RDMA without a raised limit needs. Raises
    :class:`BadReview` when a security context is none.
    """
    for own in filter(None, [decode_security(setting.security) for setting in settings]):
        added = {
            name.removeprefix("CAP_") for name in texts(map_of(own.get("capabilities")).get("add"))
        }
        if own.get("privileged") or {"IPC_LOCK", "ALL"} & added:
            return True
    return False


def inherit(
    check: CheckConfig, config: Config, sources: Sequence[Source], empty: Sequence[EmptyVolume]
) -> Inherited | None:
    """Settings that ``check`` inherits; None where it is one that inherits none. Of two ``sources``
    the first decides. ``empty``: the pod's emptyDirs.
    """
    patterns, raw_paths = _patterns(check, config)
    if not patterns and not raw_paths:
        return None
    paths = [normal(path) for path in raw_paths]
    memory = [volume.name for volume in empty if volume.memory]
    # Behind the workload's own init containers they may hold something.
    still = [volume.name for volume in empty] if check.placement == "first" else []
    warnings: list[str] = []
    taken: dict[str, tuple[dict[str, Any], str]] = {}
    env: list[dict[str, Any]] = []
    mounts: dict[str, dict[str, Any]] = {}
    topology: dict[str, dict[str, Any]] = {}
    for source in sources:
        where, listed = source.where, decode_entries(source.settings.mounts)
        # One that names no volume is the API server's to refuse.
        mounted = [mount for mount in listed if isinstance(mount.get("name"), str)]
        for entry in _variables(source, patterns, warnings):
            first, other = taken.setdefault(name := entry["name"], (entry, where))
            if first is not entry:
                if first != entry:
                    warnings.append(
                        f"{name} differs between {other} and {where}; {check.name} runs with that of {other}"
                    )
            elif name != TOPOLOGY:
                env.append(entry)
            elif isinstance(there := moved(entry.get("value"), mounted, still), MovedTopology):
                env += there.variables
                topology[there.mount["mountPath"]] = there.mount
            else:
                del taken[name]
                warnings.append(f"{where}: {TOPOLOGY}{there}")
        for mount in mounted:
            path = normal(str(mount.get("mountPath")))
            if not matches(path, paths):
                continue
            if why := refusal(MOUNTS, WorkloadSetting(path, paths, mount, memory, taken=mounts)):
                warnings.append(
                    f"{where}: the mount at {mount.get('mountPath')} is not passed on to the checks, as {why}"
                )
            else:  # Bidirectional takes a privileged container
                kept = {key: mount[key] for key in mount if key != "mountPropagation"}
                mounts.setdefault(path, kept)
    unseen = tuple(env for source in sources for env in _unseen(check, source, patterns))
    return Inherited(env, {**mounts, **topology}, tuple(dict.fromkeys(warnings)), unseen)


def _unseen(
    check: CheckConfig, source: Source, patterns: tuple[str, ...]
) -> Iterator[UnreadEnvFrom]:
    """What of a container's envFrom may hold variables that ``patterns`` ask for.

    Passing the whole entry on would let in whatever else it holds, code to load among it; reading
    it would take rights on everybody's Secrets and a request for each pod.
    """
    for i, entry in enumerate(decode_entries(source.settings.env_from)):
        prefix = str(entry.get("prefix") or "")
        heads = [re.split(r"[*?\[]", pattern, maxsplit=1)[0] for pattern in patterns]
        if not any(prefix.startswith(head) or head.startswith(prefix) for head in heads):
            continue
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if isinstance(of := entry.get(key), dict):
                yield UnreadEnvFrom(
                    f"{source.where}.envFrom[{i}]", kind, str(of.get("name") or ""), check.name
                )


def _patterns(check: CheckConfig, config: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(names of variables, mount paths)."""
    if check.is_required:
        return (), ()
    variables, paths = check.env_patterns, check.mount_patterns
    if check.nccl:
        variables = config.nccl_env_patterns if variables is None else variables
        paths = config.nccl_mount_patterns if paths is None else paths
    return variables or (), paths or ()


def _variables(
    source: Source, patterns: tuple[str, ...], warnings: list[str]
) -> Iterator[dict[str, Any]]:
    """The variables of one container that may be inherited, in their order; of two with one name
    the last counts.
    """
    entries = decode_entries(source.settings.env)
    last = {name: entry for entry in entries if isinstance(name := entry.get("name"), str)}
    taken: dict[str, dict[str, Any]] = {}
    for name, entry in last.items():
        known = inheritable if len(name) <= _SHORT else inheritable.__wrapped__
        if not known(name, patterns):
            continue
        if why := refusal(VALUES, WorkloadSetting(name, patterns, entry, taken=taken)):
            warnings.append(f"{source.where}: {name} is not passed on to the checks, as {why}")
            continue
        taken[name] = entry
        yield entry
