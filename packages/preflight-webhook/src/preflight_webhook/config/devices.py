"""Which GPUs a check sees where variables say it, and a scheduler writes them only when it binds
the pod.

A pod's containers refer to annotations that the Binding brings. What the checks inherit never
includes such variables, as a pod's author could bend a required check with them; so here an
operator says which ones the checks get, and they are always the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from preflight_proto import names

__all__ = ["DeviceVariable", "DeviceVariables", "problems"]

Key = Annotated[
    str,
    Meta(pattern=r"^([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"),
]
_OURS: Final = frozenset(value for key, value in vars(names).items() if key.startswith("ENV_"))


class DeviceVariable(
    msgspec.Struct, frozen=True, kw_only=True, eq=False, rename="camel", forbid_unknown_fields=True
):
    """``annotation``: the pod's, to which it refers. Without one it has ``value``."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    annotation: Key | None = None
    value: str = ""

    @property
    def entry(self) -> dict[str, Any]:
        """As it stands in a container. The version is written out, as the API server would."""
        if self.annotation is None:
            return {"name": self.name, "value": self.value}
        path = f"metadata.annotations['{self.annotation}']"
        return {
            "name": self.name,
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}},
        }


class DeviceVariables(
    msgspec.Struct, frozen=True, kw_only=True, eq=False, rename="camel", forbid_unknown_fields=True
):
    """``claim_annotation``: pods that have it are GPU pods, whatever they ask for; and where they
    have no GPUs but those of ``resource_name``, their checks get ``variables``.

    The defaults are those of preflight-gpu-scheduler, whose webhook writes the same into the other
    containers.
    """

    enabled: bool = False
    claim_annotation: Key = names.GPU_CLAIM_ANNOTATION
    resource_name: Annotated[str, Meta(min_length=1)] = names.GPU_CLAIM_RESOURCE
    variables: Annotated[tuple[DeviceVariable, ...], Meta(min_length=1, max_length=16)] = (
        DeviceVariable(
            name="NVIDIA_VISIBLE_DEVICES", annotation="gpu.scheduling/nvidia-visible-devices"
        ),
        DeviceVariable(
            name="CUDA_VISIBLE_DEVICES", annotation="gpu.scheduling/cuda-visible-devices"
        ),
        DeviceVariable(name="CUDA_DEVICE_ORDER", value="PCI_BUS_ID"),
    )


_DEFAULT: Final = DeviceVariables()


def problems(raw: dict[str, Any]) -> list[str]:
    """What a schema cannot say of ``deviceVariables`` beside the rest of the configuration, a
    sentence each.
    """
    section = raw.get("deviceVariables")
    if not isinstance(section, dict) or section.get("enabled") is not True:
        return []
    found = []
    resource = section.get("resourceName", _DEFAULT.resource_name)
    detection = raw.get("gpuDetection")
    counted = detection.get("resourceNames") if isinstance(detection, dict) else None
    if not isinstance(counted, list) or resource not in counted:
        found.append(
            f'deviceVariables.resourceName: "{resource}" is not among gpuDetection.resourceNames, so no pod would be known '
            "to have such GPUs; add it there."
        )
    given = section.get("variables")
    listed = (
        given if isinstance(given, list) else [{"name": one.name} for one in _DEFAULT.variables]
    )
    seen: set[str] = set()
    for i, one in enumerate(listed):
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            found.append(
                f'deviceVariables.variables[{i}].name: "{name}" is there twice; remove one.'
            )
        if name in _OURS:
            found.append(
                f'deviceVariables.variables[{i}].name: "{name}" is a setting of the checks; use another one.'
            )
        if one.get("annotation") is not None and one.get("value"):
            found.append(
                f"deviceVariables.variables[{i}]: it has an annotation and a value; remove one of the two."
            )
        seen.add(name)
    checks = raw.get("checks")
    for i, check in enumerate(checks if isinstance(checks, list) else ()):
        found += [
            f"{path}: {name} is one of deviceVariables, which say the GPUs of the pod; remove one of the two."
            for path, name in _variables(check, f"checks[{i}]")
            if name in seen
        ]
    return found


def _variables(check: Any, path: str) -> list[tuple[str, str]]:
    """(path, name) of what the operator sets in one check."""
    found = []
    container = check.get("container") if isinstance(check, dict) else None
    for where, holder in ((path, check), (f"{path}.container", container)):
        env = holder.get("env") if isinstance(holder, dict) else None
        for i, one in enumerate(env if isinstance(env, list) else ()):
            if isinstance(one, dict) and isinstance(one.get("name"), str):
                found.append((f"{where}.env[{i}].name", one["name"]))
    return found
