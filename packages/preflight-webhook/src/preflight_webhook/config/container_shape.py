"""Shapes of what an operator lays over a check's container, as the API server has them
(v1.Container, v1.SecurityContext). null removes a field of ours, so it is allowed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

__all__ = ["SHAPES", "problems"]

Port = Annotated[int, Meta(ge=1, le=65535)]
User = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Some = Annotated[str, Meta(min_length=1)]
EnvName = Annotated[str, Meta(pattern=r"^[ -<>-~]+$")]
"""Printable ASCII without the equals sign, as Kubernetes has it."""


class _Part(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    pass


class _FieldRef(_Part):
    field_path: Some
    api_version: str | None = None


class _ResourceRef(_Part):
    resource: Some
    container_name: str | None = None
    divisor: str | int | float | None = None


class _KeyRef(_Part):
    key: Some
    name: Some
    optional: bool | None = None


class _FileRef(_Part):
    key: Some
    path: Some
    volume_name: Some
    optional: bool | None = None


class _From(_Part):
    field_ref: _FieldRef | None = None
    resource_field_ref: _ResourceRef | None = None
    config_map_key_ref: _KeyRef | None = None
    secret_key_ref: _KeyRef | None = None
    file_key_ref: _FileRef | None = None


class _Env(_Part):
    name: EnvName
    value: str | None = None
    value_from: _From | None = None


class _Ref(_Part):
    name: Some
    optional: bool | None = None


class _EnvFrom(_Part):
    prefix: str | None = None
    config_map_ref: _Ref | None = None
    secret_ref: _Ref | None = None


class _Mount(_Part):
    name: Some
    mount_path: Some
    read_only: bool | None = None
    recursive_read_only: Literal["Disabled", "IfPossible", "Enabled"] | None = None
    sub_path: str | None = None
    sub_path_expr: str | None = None
    mount_propagation: Literal["None", "HostToContainer", "Bidirectional"] | None = None


class _Device(_Part):
    name: Some
    device_path: Some


class _Port(_Part):
    container_port: Port
    name: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$")] | None = None
    protocol: Literal["TCP", "UDP", "SCTP"] | None = None
    host_port: Port | None = None
    host_ip: str | None = msgspec.field(name="hostIP", default=None)


class _Resize(_Part):
    resource_name: Literal["cpu", "memory"]
    restart_policy: Literal["NotRequired", "RestartContainer"]


class _Container(_Part):
    """Without what is set elsewhere in a check's configuration, and what an init container cannot
    have.
    """

    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str | None = None
    ports: list[_Port] | None = None
    env: list[_Env] | None = None
    env_from: list[_EnvFrom] | None = None
    volume_mounts: list[_Mount] | None = None
    volume_devices: list[_Device] | None = None
    resize_policy: list[_Resize] | None = None
    termination_message_path: Annotated[str, Meta(pattern=r"^/")] | None = None
    termination_message_policy: Literal["File", "FallbackToLogsOnError"] | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    stdin: bool | None = None
    stdin_once: bool | None = None
    tty: bool | None = None


class _Capabilities(_Part):
    add: list[str] | None = None
    drop: list[str] | None = None


class _Profile(_Part):
    type: Literal["RuntimeDefault", "Unconfined", "Localhost"]
    localhost_profile: Some | None = None


class _SeLinux(_Part):
    level: str | None = None
    role: str | None = None
    type: str | None = None
    user: str | None = None


class _Security(_Part):
    allow_privilege_escalation: bool | None = None
    privileged: bool | None = None
    read_only_root_filesystem: bool | None = None
    run_as_non_root: bool | None = None
    run_as_user: User | None = None
    run_as_group: User | None = None
    capabilities: _Capabilities | None = None
    proc_mount: Literal["Default", "Unmasked"] | None = None
    app_armor_profile: _Profile | None = None
    seccomp_profile: _Profile | None = None
    se_linux_options: _SeLinux | None = None


SHAPES: Final[dict[str, type[_Part]]] = {"container": _Container, "securityContext": _Security}
"""By the key of a check's configuration that holds it."""


def problems(key: str, over: dict[str, Any], path: str) -> list[str]:
    """What is wrong with ``over``, which stands under ``key`` (of :data:`SHAPES`) at ``path``."""
    try:
        made = msgspec.convert(over, SHAPES[key])
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        what = (what[:1].lower() + what[1:].replace("`", ""))[:200]
        at = f"{path}{where.rstrip('`')}"
        return [f"{at}: {what}; write it as Kubernetes has it for an init container."]
    return list(_sources(made, path)) if isinstance(made, _Container) else []


def _sources(made: _Container, path: str) -> Iterator[str]:
    """What no shape says: each variable and each reference has one source."""
    for i, entry in enumerate(made.env or ()):
        if (of := entry.value_from) is None:
            continue
        sources = sum(getattr(of, name) is not None for name in of.__struct_fields__)
        if sources != 1 or entry.value:
            both = " and a value" if entry.value else ""
            yield f"{path}.env[{i}]: has {sources} sources in valueFrom{both}; keep one."
    for i, one in enumerate(made.env_from or ()):
        if (one.config_map_ref is None) == (one.secret_ref is None):
            yield f"{path}.envFrom[{i}]: must have one of configMapRef and secretRef; set one."
    for i, mount in enumerate(made.volume_mounts or ()):
        if mount.sub_path and mount.sub_path_expr:
            yield f"{path}.volumeMounts[{i}]: has subPath and subPathExpr; keep one."
        for key, value in (("subPath", mount.sub_path), ("subPathExpr", mount.sub_path_expr)):
            if value and (value.startswith("/") or ".." in value.split("/")):
                yield f"{path}.volumeMounts[{i}].{key}: must be a path below the volume; remove / at its beginning and ..."
