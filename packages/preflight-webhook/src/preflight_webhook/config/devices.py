"""Which GPUs a check sees where variables say it, and a scheduler writes them only when it binds
the pod.

A pod's containers refer to annotations that the Binding brings. What the checks inherit never
includes such variables, as a pod's author could bend a required check with them; so here an
operator says which ones the checks get, and they are always the same.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from preflight_proto import names

Key = Annotated[
    str,
    Meta(pattern=r"^([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"),
]


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
