"""Shapes of what an operator lays over a check's container, as the API server has them
(v1.Container, v1.SecurityContext). null removes a field of ours, so it is allowed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import GenericAlias
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from preflight_webhook.config.extra_volumes import OUR_VOLUMES

User = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Some = Annotated[str, Meta(min_length=1)]
EnvName = Annotated[str, Meta(pattern=r"^[ -<>-~]+$")]
"""Printable ASCII without the equals sign, as Kubernetes has it."""


Type = type[msgspec.Struct]


def _shape(required: dict[str, Any] | None = None, /, **optional: Any) -> Any:
    """An object with these fields and no others; what is not ``required`` may be null."""
    fields: list[Any] = [*(required or {}).items()]
    fields += [(name, of | None, None) for name, of in optional.items()]
    return msgspec.defstruct("Shape", fields, rename="camel", forbid_unknown_fields=True)


def _list(of: Any) -> Any:
    return GenericAlias(list, (of,))


_KEY: Final = _shape({"key": Some, "name": Some}, optional=bool)
_FROM: Final = _shape(
    field_ref=_shape({"field_path": Some}, api_version=str),
    resource_field_ref=_shape({"resource": Some}, container_name=str, divisor=str | int | float),
    config_map_key_ref=_KEY,
    secret_key_ref=_KEY,
)
_REF: Final = _shape({"name": Some}, optional=bool)
_MOUNT: Final = _shape(
    {"name": Some, "mount_path": Some},
    read_only=bool,
    recursive_read_only=Literal["Disabled", "IfPossible", "Enabled"],
    sub_path=str,
    sub_path_expr=str,
    mount_propagation=Literal["None", "HostToContainer", "Bidirectional"],
)
_CONTAINER: Final = _shape(  # without what is set elsewhere, and what no check can use
    command=list[str],
    args=list[str],
    working_dir=str,
    env=_list(_shape({"name": EnvName}, value=str, value_from=_FROM)),
    env_from=_list(_shape(prefix=str, config_map_ref=_REF, secret_ref=_REF)),
    volume_mounts=_list(_MOUNT),
    termination_message_path=Annotated[str, Meta(pattern=r"^/")],
    termination_message_policy=Literal["File", "FallbackToLogsOnError"],
    image_pull_policy=Literal["Always", "IfNotPresent", "Never"],
)
_PROFILE: Final = _shape(
    {"type": Literal["RuntimeDefault", "Unconfined", "Localhost"]}, localhost_profile=Some
)
_SECURITY: Final = _shape(
    allow_privilege_escalation=bool,
    privileged=bool,
    read_only_root_filesystem=bool,
    run_as_non_root=bool,
    run_as_user=User,
    run_as_group=User,
    capabilities=_shape(add=list[str], drop=list[str]),
    proc_mount=Literal["Default", "Unmasked"],
    app_armor_profile=_PROFILE,
    seccomp_profile=_PROFILE,
    se_linux_options=_shape(level=str, role=str, type=str, user=str),
)
SHAPES: Final[dict[str, Type]] = {"container": _CONTAINER, "securityContext": _SECURITY}
"""By the key of a check's configuration that holds it."""


def problems(key: str, over: dict[str, Any], path: str) -> list[str]:
    """What is wrong with ``over``, which stands under ``key`` (of :data:`SHAPES`) at ``path``."""
    try:
        container = msgspec.convert(over, SHAPES[key])
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        what = (what[:1].lower() + what[1:].replace("`", ""))[:200]
        at = f"{path}{where.rstrip('`')}"
        remove = "remove it, or " if "unknown field" in what else ""
        return [f"{at}: {what}; {remove}write it as Kubernetes has it for an init container."]
    return list(_sources(container, path)) if key == "container" else []


def _sources(container: Any, path: str) -> Iterator[str]:
    """What no shape says: each variable and each reference has one source."""
    for i, entry in enumerate(container.env or ()):
        if (of := entry.value_from) is None:
            continue
        sources = sum(getattr(of, name) is not None for name in of.__struct_fields__)
        if sources != 1 or entry.value:
            both = " and a value" if entry.value else ""
            yield f"{path}.env[{i}]: has {sources} sources in valueFrom{both}; keep one."
    for i, source in enumerate(container.env_from or ()):
        if (source.config_map_ref is None) == (source.secret_ref is None):
            yield f"{path}.envFrom[{i}]: must have one of configMapRef and secretRef; set one."
    for i, mount in enumerate(container.volume_mounts or ()):
        if mount.name not in OUR_VOLUMES:
            yield f'{path}.volumeMounts[{i}].name: "{mount.name[:60]}" is no volume that is injected; one of your own goes into extraVolumes and extraVolumeMounts.'
        if mount.sub_path and mount.sub_path_expr:
            yield f"{path}.volumeMounts[{i}]: has subPath and subPathExpr; keep one."
        for key, value in (("subPath", mount.sub_path), ("subPathExpr", mount.sub_path_expr)):
            if value and (value.startswith("/") or ".." in value.split("/")):
                yield f"{path}.volumeMounts[{i}].{key}: must be a path below the volume; remove / at its beginning and ..."
