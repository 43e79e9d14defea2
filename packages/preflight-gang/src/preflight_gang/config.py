"""The controller's configuration: one Struct is the schema; :func:`parse` lists *every* problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from preflight_kube.api.node_health import SICK, TypePatterns
from preflight_kube.files import schema
from preflight_kube.files import yaml_document as document
from preflight_kube.files.configfile import ConfigError
from preflight_proto import gang_source, helm_values, names
from preflight_proto.devices import OTHER_RESOURCES
from preflight_proto.durations import parse_duration
from preflight_proto.gang_source import GangSource

from preflight_gang.api import expression
from preflight_gang.api.sources import BUILT_IN, SizedKind, Sources, sized_by

__all__ = ["ConfigError"]

TOPOLOGY_LABELS: Final = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "cloud.google.com/gce-topology-host",
    "network.topology.nvidia.com/accelerator",
    "network.topology.nvidia.com/block",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/datacenter",
    "nvidia.com/gpu.clique",
)
"""As Kubernetes, AWS, Google, NVIDIA's topograph (accelerator …) and GPU discovery (clique) say."""

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=50)]
Label = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
        max_length=317,
    ),
]

Namespace = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]

LEAST_AUDIT: Final = 10.0
"""Seconds; each audit reads the pods of all opted-in namespaces."""


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What `preflight-gang run --config FILE` reads.

    ``checks`` are those whose results are counted and become Events. A leader that has not renewed
    its lease for ``leaseDuration`` writes nothing more. ``writes`` is how many writes may be under
    way at once. ``instanceTypeLabel`` and ``topologyLabels`` are labels of a node that are written
    to its pods. ``nodeConditions`` (globs) make a node sick while they are True. ``sources`` are
    kinds of gangs that only the configuration knows.

    Every ``auditInterval`` the pods are counted that ask for one of ``gpuResourceNames``, or for a
    device of one of ``gpuDeviceClasses``, or with ``gpuClaims`` have preflight-gpu-scheduler's
    annotation of a claim, or for a resource of nvidia.com that is not among ``otherResourceNames``
    (globs), without being checked. Pods are counted, and their results, in namespaces that are
    labelled or among ``namespaces`` and not among ``excludeNamespaces``: the same lists as the
    injector's.
    """

    audit_interval: Annotated[
        str | Literal[0], Meta(description="A Go duration, e.g. 5m; 0: no audit.")
    ] = "5m"
    checks: tuple[Name, ...] = (names.DCGM_DIAG, names.NCCL_LOOPBACK, names.NCCL_ALLREDUCE)
    exclude_namespaces: tuple[Namespace, ...] = (
        "nvsentinel",
        "kube-system",
        "kube-public",
        "kube-node-lease",
    )
    gpu_claims: bool = False
    gpu_device_classes: Annotated[tuple[Label, ...], Meta(max_length=64)] = ("gpu.nvidia.com",)
    gpu_resource_names: Annotated[tuple[Label, ...], Meta(min_length=1)] = ("nvidia.com/gpu",)
    instance_type_label: Label = names.INSTANCE_TYPE_LABEL
    lease_duration: Annotated[str, Meta(description="A Go duration, e.g. 15s.")] = "15s"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    node_conditions: TypePatterns = SICK
    writes: Annotated[int, Meta(ge=1, le=256)] = 32
    namespaces: tuple[Namespace, ...] = ()
    other_resource_names: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=64)
    ] = OTHER_RESOURCES
    sources: Annotated[tuple[GangSource, ...], Meta(max_length=32)] = ()
    topology_labels: Annotated[tuple[Label, ...], Meta(max_length=64)] = TOPOLOGY_LABELS

    @property
    def audit_seconds(self) -> float:
        """0: no audit."""
        return parse_duration(str(self.audit_interval))

    @property
    def lease_seconds(self) -> float:
        """Seconds after which another replica may take the lease from a silent leader."""
        return parse_duration(self.lease_duration)


def sources_of(config: Config) -> Sources:
    """All sources that the controller knows, also the configured ones. Makes types: ask once."""
    types = {one.name: sized_by(expression.parse(one.size)) for one in config.sources}
    configured = {
        one.name: (SizedKind(one.group, one.resource, one.kind, types[one.name]),)
        for one in config.sources
    }
    return {**BUILT_IN, **configured}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of :class:`Config`; the chart's values.schema.json contains it."""
    return msgspec.json.schema(Config)


CHART: Final = "preflight-gang"
OWN: Final = helm_values.DEPLOYED | {"crd"}
"""Values that say how the chart itself is deployed; the others are our configuration."""


def parse(text: str) -> Config:
    """The configuration in a YAML document. Raises :class:`ConfigError` with every problem."""
    return _of(document.read(text), "")


def parse_values(text: str) -> tuple[Config, str]:
    """The configuration in a configuration file or Helm values, and what of these was taken.

    Raises as :func:`parse`.
    """
    raw = document.read(text)
    part = helm_values.part_of({} if raw is None else raw, CHART, OWN, _merged)
    return _of(part.config, part.path), part.said


def _of(raw: Any, path: str) -> Config:
    raw = {} if raw is None else raw
    problems = schema.problems(json_schema(), raw, "the file")
    if not problems:
        config = msgspec.convert(raw, Config)
        if not (problems := _meaning(config)):
            return config
    raise ConfigError(
        [problem if problem.startswith("the file") else f"{path}{problem}" for problem in problems]
    )


def _merged(config: dict[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """As the chart's templates add what all parts share."""
    made = dict(config)
    if "checks" not in made and isinstance(checks := common.get("checks"), list):
        made["checks"] = [one.get("name") if isinstance(one, dict) else one for one in checks]
    sources, own = common.get("gangSources"), made.get("sources") or []
    if isinstance(sources, list) and isinstance(own, list):
        made["sources"] = [*own, *sources]
    if isinstance(sick := common.get("sickNodeConditions"), list):
        made["nodeConditions"] = sick
    if label := common.get("instanceTypeLabel"):
        made["instanceTypeLabel"] = label
    if resource := common.get("gpuClaimResource"):
        made["gpuClaims"] = True
        listed = made.get("gpuResourceNames", ["nvidia.com/gpu"])
        if isinstance(listed, list) and resource not in listed:
            made["gpuResourceNames"] = [*listed, resource]
    return made


def _meaning(config: Config) -> list[str]:
    problems = gang_source.problems(msgspec.to_builtins(config.sources), "sources")
    for name, text, least, advice in (
        ("leaseDuration", config.lease_duration, 1.0, "set e.g. 15s"),
        ("auditInterval", config.audit_interval, LEAST_AUDIT, "set e.g. 5m, or 0 for no audit"),
    ):
        try:
            found = parse_duration(str(text))
        except ValueError as error:
            problems.append(f"{name}: {error}.")
            continue
        if found < least and (found or name == "leaseDuration"):
            problems.append(f'{name}: "{text}" is less than {least:g} s; {advice}.')
    for i, source in enumerate(config.sources):
        try:
            expression.parse(source.size)
        except expression.ExpressionError as error:
            problems.append(f"sources[{i}].size: {error}; correct it.")
    twice = sorted({name for name in config.checks if config.checks.count(name) > 1})
    if twice:
        problems.append(f"checks: {', '.join(twice)} named more than once; name each check once.")
    return problems
