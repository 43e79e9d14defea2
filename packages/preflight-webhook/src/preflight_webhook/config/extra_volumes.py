"""Volumes and mounts that the operator adds to a check: libraries and devices of the node that a
fabric's plugin needs.

The operator's own words alone come here, never a tenant's: what is mounted may be code that the
check loads. So a volume is a folder of the node or an empty one. What a ConfigMap, a Secret or a
claim of the pod's namespace holds is its tenants' to write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from preflight_proto import names

from preflight_webhook.config.mounts import normal

__all__ = [
    "OUR_VOLUMES",
    "ExtraMount",
    "ExtraVolume",
    "host_paths",
    "mounts",
    "problems",
    "volumes",
]

OUR_VOLUMES: Final = tuple(
    sorted(value for key, value in vars(names).items() if key.endswith("_VOLUME"))
)
"""Names of the volumes that are injected."""
_EXTRA: Final = names.VOLUME_PREFIX + "extra-"
_OURS: Final = (
    names.SOCKET_DIR,
    names.TOKEN_DIR,
    names.SERVICE_ACCOUNT_DIR,
    names.GANG_DIR,
    names.STATE_DIR,
    names.NODE_DIR,
    names.USER_TOPOLOGY_DIR,
    names.TOPOLOGY_FILES_DIR,
    names.SHM_DIR,
    names.RESULT_PATH,
    "/tmp",  # noqa: S108 (a mount path)
    # The checks' own programs, and what they are run by.
    *(
        "/opt/venv/bin",
        "/usr/local/bin",
        "/usr/local/lib/python3.11",
        "/usr/bin",
        "/usr/lib",
        "/bin",
        "/lib",
        "/lib64",
    ),
    *("/etc/passwd", "/proc", "/sys"),
)
"""Paths that a mount may lie beside or below, but not at or above."""
Name = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=40,
        description="Lower-case letters, digits and '-'.",
    ),
]
Path = Annotated[str, Meta(pattern=r"^/", description="an absolute path.")]


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class HostPath(_Part, frozen=True, kw_only=True):
    """A folder or a file of the node; ``type`` as Kubernetes has it, empty: whatever is there."""

    path: Path
    type: Literal[
        "",
        "DirectoryOrCreate",
        "Directory",
        "FileOrCreate",
        "File",
        "Socket",
        "CharDevice",
        "BlockDevice",
    ] = ""


class EmptyDir(_Part, frozen=True, kw_only=True):
    medium: Literal["", "Memory", "HugePages"] = ""


class ExtraVolume(_Part, frozen=True, kw_only=True):
    """One of ``host_path`` and ``empty_dir``. In the pod its name has a prefix of ours, so it never
    meets one of the workload's.
    """

    name: Name
    host_path: HostPath | None = None
    empty_dir: EmptyDir | None = None


class ExtraMount(_Part, frozen=True, kw_only=True):
    """``name``: of one of the check's extra volumes. Read-only, unless it is said otherwise."""

    name: Name
    mount_path: Path
    sub_path: str = ""
    read_only: bool = True


def mounts(extra: Iterable[ExtraMount]) -> list[dict[str, Any]]:
    """As a container has them, written as the API server gives them back."""
    made = []
    for one in extra:
        mount: dict[str, Any] = {"name": _EXTRA + one.name, "mountPath": one.mount_path}
        if one.sub_path:
            mount["subPath"] = one.sub_path
        if one.read_only:
            mount["readOnly"] = True
        made.append(mount)
    return made


@lru_cache(maxsize=256)
def volumes(extra: tuple[ExtraVolume, ...]) -> list[dict[str, Any]]:
    """As a pod has them, each once; not to be changed."""
    made: dict[str, dict[str, Any]] = {}
    for one in extra:
        if one.host_path is not None:
            source = {"hostPath": {"path": one.host_path.path, "type": one.host_path.type}}
        else:
            medium = one.empty_dir.medium if one.empty_dir is not None else ""
            source = {"emptyDir": {"medium": medium} if medium else {}}
        made[one.name] = {"name": _EXTRA + one.name, **source}
    return list(made.values())


def host_paths(extra: Iterable[ExtraVolume]) -> list[str]:
    """The paths of the node that these volumes show, which a Pod Security level below privileged
    forbids.
    """
    return [one.host_path.path for one in extra if one.host_path is not None]


def problems(checks: Sequence[Any], socket_dir: str) -> Iterator[str]:
    """What the API server would refuse in every pod, or what would stand in for the check's own
    files, in the raw checks of a configuration.

    ``socket_dir``: the platform connector's folder on the node; a volume that leads there is
    refused by a policy of the chart.
    """
    known: dict[str, tuple[Any, str]] = {}
    for i, check in enumerate(checks):
        own = list(_volumes(check, f"checks[{i}]"))
        for path, name, volume in own:
            if len([key for key in ("hostPath", "emptyDir") if volume.get(key) is not None]) != 1:
                yield f"{path}: has not one of hostPath and emptyDir; set one of them."
            first, where = known.setdefault(name, (volume, path))
            if first != volume:
                yield f'{path}.name: "{name}" is another volume than at {where}; the checks are in one pod, so give it a name of its own.'
            elif where != path and where.startswith(f"checks[{i}]."):
                yield f'{path}.name: "{name}" is also the name at {where}; remove one of them.'
            host = volume.get("hostPath")
            if isinstance(host, dict) and ".." in str(host.get("path")).split("/"):
                yield f'{path}.hostPath.path: "{str(host.get("path"))[:60]}" has ".." in it; write the folder itself.'
            elif isinstance(host, dict) and _leads_to(normal(str(host.get("path"))), socket_dir):
                yield (
                    f'{path}.hostPath.path: "{host.get("path")}" leads to {socket_dir}, where the platform connector takes reports about the node; '
                    "give a folder that does not contain it."
                )
        yield from _about_mounts(check, f"checks[{i}]", {name for _, name, _ in own})


def _volumes(check: Any, path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for i, volume in enumerate(_list(check, "extraVolumes")):
        if isinstance(volume, dict) and isinstance(volume.get("name"), str):
            yield f"{path}.extraVolumes[{i}]", volume["name"], volume


def _about_mounts(check: Any, path: str, extra: set[str]) -> Iterator[str]:
    taken: dict[str, str] = {}
    for i, mount in enumerate(_list(check, "extraVolumeMounts")):
        at = f"{path}.extraVolumeMounts[{i}]"
        name, raw, below = (
            (mount.get(key) for key in ("name", "mountPath", "subPath"))
            if isinstance(mount, dict)
            else (None,) * 3
        )
        if isinstance(name, str) and name not in extra:
            what = ", ".join(sorted(extra)) or "none"
            yield f'{at}.name: "{name[:60]}" is none of the check\'s extraVolumes ({what}); add the volume there.'
        if isinstance(below, str) and (below.startswith("/") or ".." in below.split("/")):
            yield f'{at}.subPath: "{below[:60]}" is not a path below the volume; remove / at its beginning and "..".'
        if not isinstance(raw, str) or not raw.startswith("/"):
            continue
        where = normal(raw)
        if ".." in raw.split("/") or ":" in raw:
            yield f'{at}.mountPath: "{raw[:60]}" has ".." or ":" in it; write the path itself.'
        elif (covered := _covered(where)) is not None:
            yield f'{at}.mountPath: "{raw[:60]}" would cover {covered}, which the check needs; mount it beside or below that.'
        elif where in taken:
            yield f'{at}.mountPath: "{raw[:60]}" is also that of {taken[where]}; mount them at different paths.'
        taken.setdefault(where, at)


def _leads_to(path: str, folder: str) -> bool:
    """Whether a volume at ``path`` of the node shows ``folder`` or a part of it; /run and /var/run
    are one on most nodes.
    """
    one, other = (re.sub(r"^/var/run(?=/|$)", "/run", normal(text)) for text in (path, folder))
    return (
        path in {"/", "/var"}
        or one == other
        or other.startswith(one + "/")
        or one.startswith(other + "/")
    )


def _covered(path: str) -> str | None:
    """Which of our paths a mount at ``path`` would hide."""
    return next(
        (ours for ours in _OURS if path in {ours, "/"} or ours.startswith(path + "/")), None
    )


def _list(of: Any, key: str) -> list[Any]:
    value = of.get(key) if isinstance(of, dict) else None
    return value if isinstance(value, list) else []
