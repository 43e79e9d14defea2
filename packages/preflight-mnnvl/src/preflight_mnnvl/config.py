"""The configuration of a release: one Struct is its schema. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from preflight_kube.files import schema
from preflight_kube.files import yaml_document as document
from preflight_kube.files.configfile import ConfigError

Glob = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=253,
        pattern=r"^[-A-Za-z0-9_./*?]+$",
        description="A name, or a glob such as nvidia.com/mig-*.",
    ),
]
Label = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="The value of a label.",
    ),
]


class Config(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """``mode``: `driver` is what works with NVIDIA's DRA driver; `literal` makes one claim a domain
    and class and selector from the annotation.

    ``feature``: `auto` follows what the cluster serves. ``onUnsupported``: a PodClique that asks
    where nothing can be had is refused, or admitted without. ``requireFabricNodes``: no labelled
    node is a reason to refuse too. ``placement``: `fabric` keeps enrolled pods off nodes whose
    label `nvidia.com/gpu.clique` is not there, or empty. A container counts as one with GPUs by
    ``gpuResources``, or by a claim of one of ``gpuDeviceClasses``. ``instance`` is written on every
    object, and objects of another instance are never touched. A controller that has not renewed its
    lease for ``leaseSeconds`` writes nothing more; ``writes`` is how many writes may be under way
    at once.
    """

    mode: Literal["driver", "literal"] = "driver"
    feature: Literal["auto", "off"] = "auto"
    on_unsupported: Literal["deny", "ignore"] = "deny"
    require_fabric_nodes: bool = False
    placement: Literal["any", "fabric"] = "any"
    gpu_resources: Annotated[tuple[Glob, ...], Meta(min_length=1, max_length=64)] = (
        "nvidia.com/gpu",
    )
    gpu_device_classes: Annotated[tuple[Glob, ...], Meta(max_length=64)] = ("gpu.nvidia.com",)
    instance: Label = "preflight-mnnvl"
    lease_seconds: Annotated[int, Meta(ge=2, le=300)] = 15
    writes: Annotated[int, Meta(ge=1, le=256)] = 32
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of :class:`Config`."""
    return msgspec.json.schema(Config)


def parse(text: str) -> Config:
    """The configuration in the YAML ``text``. Raises :class:`ConfigError` with every problem."""
    raw = document.read(text)
    values = {} if raw is None else raw
    if problems := schema.problems(json_schema(), values, "the file"):
        raise ConfigError(problems)
    config = msgspec.convert(values, Config)
    if config.mode == "literal" and config.placement == "fabric":
        problem = 'placement: "fabric" has no part in mode "literal"; set it to "any", or mode to "driver".'
        raise ConfigError([problem])
    return config
