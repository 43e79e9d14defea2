"""Volumes and mounts that the operator adds to a check: libraries and devices of the node that a
fabric's plugin needs.

The operator's own words alone come here, never a tenant's: what is mounted may be code that the
check loads. So a volume is a folder of the node or an empty one. What a ConfigMap, a Secret or a
claim of the pod's namespace holds is its tenants' to write.
"""

from __future__ import annotations

from collections.abc import Iterable
from posixpath import normpath
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from preflight_proto import names

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
    """A folder of the pod's own."""

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
    written = ({**msgspec.to_builtins(mount), "name": _EXTRA + mount.name} for mount in extra)
    return [{key: value for key, value in mount.items() if value} for mount in written]


def volumes(extra: Iterable[ExtraVolume]) -> list[dict[str, Any]]:
    """As a pod has them, each once."""
    volumes: dict[str, dict[str, Any]] = {}
    for volume in extra:
        source = {"hostPath": msgspec.to_builtins(volume.host_path)}
        if volume.host_path is None:
            medium = volume.empty_dir.medium if volume.empty_dir is not None else ""
            source = {"emptyDir": {"medium": medium} if medium else {}}
        volumes[volume.name] = {"name": _EXTRA + volume.name, **source}
    return list(volumes.values())


def host_paths(extra: Iterable[ExtraVolume]) -> list[str]:
    """The paths of the node that these volumes show, which a Pod Security level below privileged
    forbids.
    """
    return [volume.host_path.path for volume in extra if volume.host_path is not None]


def covered(path: str) -> str | None:
    """Which of our paths a mount at ``path`` would hide."""
    return next(
        (ours for ours in _OURS if path in {ours, "/"} or ours.startswith(path + "/")), None
    )


def normal(path: str) -> str:
    """An absolute path without `.`, `..` and doubled slashes."""
    return normpath("/" + path.lstrip("/"))
