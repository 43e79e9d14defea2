"""The webhook's configuration: ADR-026's Helm values under their names.

One Struct is the schema. :func:`parse` lists *every* problem of a file with its path in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta
from msgspec.structs import asdict, replace
from preflight_kube.files import schema
from preflight_kube.files import yaml_document as document
from preflight_kube.files.configfile import ConfigError
from preflight_kube.files.yaml_document import DocumentError
from preflight_proto import names
from preflight_proto.devices import OTHER_RESOURCES
from preflight_proto.gang_source import GangSource
from preflight_proto.policy import (
    LABEL_KEY,
    Enforcement,
    Method,
    OptIn,
    PreflightConfig,
    PreflightConfigSpec,
    refusal,
)
from preflight_proto.settings import MAX_GBPS

from preflight_webhook.config import extra_volumes, rules
from preflight_webhook.config.devices import DeviceVariables
from preflight_webhook.config.extra_volumes import ExtraMount, ExtraVolume

__all__ = ["ConfigError"]

Name = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=50,
        description="Lower-case letters, digits and '-'.",
    ),
]
Image = Annotated[
    str, Meta(pattern=r"^[^\s]+$", description="Image of the check's init container.")
]
_NCCL: Final = frozenset({names.NCCL_LOOPBACK, names.NCCL_ALLREDUCE})
Threshold = Annotated[float, Meta(gt=0, le=MAX_GBPS)]
InstanceType = Annotated[str, Meta(pattern=r"^[^=,]*[^=,\s][^=,]*$")]
TopologyFile = Annotated[
    str, Meta(pattern=r"^[^,/]*$", description="a file's name, without its folder.")
]
Names = tuple[Annotated[str, Meta(min_length=1)], ...]
ExactNames = tuple[
    Annotated[str, Meta(pattern=r"^[^*?\[\s]+$", description="a name; a glob is none here.")], ...
]
GangLabelKey = Annotated[
    str, Meta(pattern=f"^$|{LABEL_KEY}", max_length=317, description="empty for no label.")
]
Address = Annotated[str, Meta(min_length=1, max_length=1024)]
_MOUNTS_OF_OURS: Final = {
    "volumeMounts": {
        "description": "Mounts of volumes that are injected.",
        "items": {
            "properties": {
                "name": {
                    "pattern": f"^({'|'.join(extra_volumes.OUR_VOLUMES)})$",
                    "description": "a volume that is injected; one of your own goes into extraVolumes and extraVolumeMounts.",
                }
            }
        },
    }
}
"""For the charts' schema, by which an install refuses it."""


class _Section(
    msgspec.Struct, frozen=True, kw_only=True, eq=False, rename="camel", forbid_unknown_fields=True
):
    """Compared and hashed by identity, so that what depends on the configuration alone can be made
    once.
    """


class EnvVar(_Section, frozen=True, kw_only=True):
    name: Annotated[
        str, Meta(pattern=r"^[!-<>-~]+$", description="printable ASCII without spaces and '='.")
    ]
    value: str = ""


class MostCompute(_Section, frozen=True, kw_only=True):
    """The most CPU and memory that a check takes; never more than the pod has reserved anyway."""

    cpu: str | int | float | None = None
    memory: str | int | None = None


class CheckResources(_Section, frozen=True, kw_only=True):
    requests: MostCompute = MostCompute()
    limits: MostCompute = MostCompute()


class CheckConfig(_Section, frozen=True, kw_only=True):
    """One check. ``required`` checks stay whatever a pod asks for; ``observe`` measures and never
    holds a pod back; a ``gang`` check tests the fabric between the members of a gang
    (nccl-allreduce does, whatever stands here).

    ``placement``: before or behind the workload's own init containers. ``env_patterns`` and
    ``mount_patterns``: what it inherits of the workload (globs on names and on mount paths; unset:
    those of the NCCL checks for them, nothing for others). ``supports``: devices beyond whole GPUs
    of the pod's own that it can test. ``extra_volumes`` and ``extra_volume_mounts``: folders of the
    node that it needs. ``container``: merged over what is injected.
    """

    name: Name
    image: Image
    enabled: bool = True
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    required: bool = False
    enforcement: Enforcement = "enforce"
    on_inconclusive: Literal["block", "allow"] | None = None
    timeout: str = ""
    gang: bool = False
    placement: Literal["first", "last"] = "first"
    supports: tuple[Literal["mig", "shared"], ...] = ()
    env: tuple[EnvVar, ...] = ()
    env_patterns: Names | None = None
    mount_patterns: Names | None = None
    resources: CheckResources = CheckResources()
    extra_volumes: tuple[ExtraVolume, ...] = ()
    extra_volume_mounts: tuple[ExtraMount, ...] = ()
    security_context: dict[str, Any] = {}
    container: Annotated[
        dict[str, Any], Meta(extra_json_schema={"properties": _MOUNTS_OF_OURS})
    ] = {}

    @property
    def gang_wide(self) -> bool:
        """Whether it tests the fabric between the members of a gang."""
        return self.gang or self.name == names.NCCL_ALLREDUCE

    @property
    def nccl(self) -> bool:
        """Whether it is one of the built-in NCCL checks."""
        return self.name in _NCCL

    @property
    def is_required(self) -> bool:
        """Whether it is required: dcgm-diag always is, unless the operator leaves it out."""
        return self.required or self.name == names.DCGM_DIAG


class Dcgm(_Section, frozen=True, kw_only=True):
    """``hostengine_addr``: host:port, one or several, tried in order. Best by address, as
    ``$(NODE_IP)`` is: a pod's author decides what a name means in his pod, so one that he could
    lead elsewhere is left out there, and without another the pod is denied."""

    hostengine_addr: Address | Annotated[tuple[Address, ...], Meta(min_length=1, max_length=8)] = (
        "$(NODE_IP):5555",
        "nvidia-dcgm.gpu-operator.svc:5555",
    )
    diag_level: Annotated[int, Meta(ge=1, le=4)] = 2

    @property
    def engines(self) -> tuple[str, ...]:
        """Each by itself, in order."""
        given = (
            (self.hostengine_addr,)
            if isinstance(self.hostengine_addr, str)
            else self.hostengine_addr
        )
        return tuple(name.strip() for some in given for name in some.split(",") if name.strip())


class Nccl(_Section, frozen=True, kw_only=True):
    """GB/s; unset means the floors table of the check."""

    loopback_threshold_g_bps: Threshold | None = msgspec.field(
        name="loopbackThresholdGBps", default=None
    )
    allreduce_threshold_g_bps: Threshold | None = msgspec.field(
        name="allreduceThresholdGBps", default=None
    )


class GangLabels(_Section, frozen=True, kw_only=True):
    gang_id_label: GangLabelKey = "app.kubernetes.io/gang-id"
    gang_size_label: GangLabelKey = "app.kubernetes.io/gang-size"


class GangDiscovery(_Section, frozen=True, kw_only=True):
    """How a pod's gang is recognised; see :mod:`..core.gang` for what each word reads.

    ``method``: one source, or ``auto`` for all that imply co-scheduling. ``opt_in``: further ones
    that do not. ``owner_schedulers``: pods of these schedulers form a gang with what else their
    owner made. ``parallel_stateful_sets``: StatefulSets here start their pods side by side.
    ``sources``: kinds of gangs that only the configuration knows; they are asked first.
    """

    method: Method = "auto"
    labels: GangLabels = GangLabels()
    opt_in: tuple[OptIn, ...] = ()
    owner_schedulers: Names = ("kai-scheduler",)
    parallel_stateful_sets: bool = False
    sources: Annotated[tuple[GangSource, ...], Meta(max_length=32)] = ()


class GpuDetection(_Section, frozen=True, kw_only=True):
    """``mig_resource_names`` and ``shared_resource_names`` (globs): slices of a GPU, and GPUs that
    several pods get at a time. ``shared_claims``: what the checks make of a claim by name, which
    other pods may use too. auto: test its GPUs, unless another pod has it just then, in which case
    a pod with a required check is denied. ``other_resource_names`` (globs): resources of
    nvidia.com that are no GPUs, beside those of :class:`NetworkDetection`; pods that ask for any
    that is not known are told of, and counted."""

    resource_names: ExactNames = ("nvidia.com/gpu",)
    device_classes: ExactNames = ()
    shared_claims: Literal["auto", "skip", "inject"] = "auto"
    mig_resource_names: Names = ("nvidia.com/mig-*",)
    shared_resource_names: Names = ("nvidia.com/*.shared",)
    other_resource_names: Names = OTHER_RESOURCES


class NetworkDetection(_Section, frozen=True, kw_only=True):
    """Globs. The names of resources are those of the device plugins of Mellanox and NVIDIA NICs, of
    EFA, of GKE's networks and of RDMA.
    """

    resource_names: Names = (
        "nvidia.com/mlnxnics",
        "nvidia.com/hostdev",
        "nvidia.com/*sriov*",
        "rdma/*",
        "vpc.amazonaws.com/efa",
        "networking.gke.io.networks/*",
    )
    device_classes: Names = ()


class NcclTopology(_Section, frozen=True, kw_only=True):
    """``instance_type_label`` is the node's; the gang controller brings it into the pod."""

    instance_type_label: str = "node.kubernetes.io/instance-type"
    instance_type_mapping: dict[InstanceType, TopologyFile] = {}
    enable_fallback: bool = True


class ConnectorAuth(_Section, frozen=True, kw_only=True):
    enabled: bool = False
    audience: Annotated[str, Meta(min_length=1)] = names.TOKEN_AUDIENCE
    expiration_seconds: Annotated[
        int, Meta(ge=600, le=2**32, description="Within what the API server takes.")
    ] = 3600


class PlatformConnector(_Section, frozen=True, kw_only=True):
    """``enabled``: false where there is none; checks decide about the pod and report nothing."""

    enabled: bool = True
    socket_dir: Annotated[str, Meta(pattern=r"^/.+")] = names.SOCKET_DIR
    auth: ConnectorAuth = ConnectorAuth()


class PodSelection(_Section, frozen=True, kw_only=True):
    enabled: bool = False


class PreflightConfigs(_Section, frozen=True, kw_only=True):
    """``enabled``: what namespaces set for themselves, and the gang controller has accepted, is
    followed.
    """

    enabled: bool = True


class Config(_Section, frozen=True, kw_only=True):
    """What `preflight-webhook serve --config FILE` reads."""

    checks: tuple[CheckConfig, ...] = ()
    dcgm: Dcgm = Dcgm()
    nccl: Nccl = Nccl()
    check_timeout: str = ""
    gang_timeout: str = "600s"
    gang_discovery: GangDiscovery = GangDiscovery()
    gpu_detection: GpuDetection = GpuDetection()
    network_detection: NetworkDetection = NetworkDetection()
    device_variables: DeviceVariables = DeviceVariables()
    mirror_claims: Names = (names.CHANNEL_CLASS,)
    nccl_env_patterns: Names = ("NCCL_*", "UCX_*", "OMPI_*", "FI_*")
    nccl_mount_patterns: Names = (names.SHM_DIR,)
    nccl_topology: NcclTopology = NcclTopology()
    platform_connector: PlatformConnector = PlatformConnector()
    processing_strategy: Literal["EXECUTE_REMEDIATION", "STORE_ONLY", "STORE_AND_ANALYSE"] = (
        "EXECUTE_REMEDIATION"
    )
    pod_selection: PodSelection = PodSelection()
    preflight_configs: PreflightConfigs = PreflightConfigs()
    unresolved_claims: Literal["deny", "allow", "inject"] = "deny"
    on_pod_security_conflict: Literal["deny", "report-off"] = "deny"
    provider_init: Names = ()
    check_image_pull_secrets: Names = ()
    gpu_count: Literal["effective", "max"] = "effective"
    skip_nccl_without_network: bool = True


@lru_cache(maxsize=256)
def effective(config: Config, spec: PreflightConfigSpec) -> Config:
    """The configuration for a namespace that has set ``spec``.

    The same object for the same two, as decisions are remembered by it.
    """
    if spec.gang_discovery is not UNSET:
        config = replace(config, gang_discovery=_laid(config.gang_discovery, spec.gang_discovery))
    if spec.enforcement is not UNSET:
        checks = tuple(replace(check, enforcement=spec.enforcement) for check in config.checks)
        config = replace(config, checks=checks)
    return config


def _laid(under: Any, over: msgspec.Struct) -> Any:
    """Field by field; the two have the same names."""
    given = {name: value for name, value in asdict(over).items() if value is not UNSET}
    return replace(
        under,
        **{
            n: _laid(getattr(under, n), v) if isinstance(v, msgspec.Struct) else v
            for n, v in given.items()
        },
    )


def in_force(items: Iterable[PreflightConfig]) -> PreflightConfig | None:
    """Of those of one namespace, the one that the gang controller has put in force.

    None as well where two say so: then one status is out of date, and it is the controller's to say
    which.
    """
    readable = [item for item in items if not refusal(item)]
    return readable[0] if len(readable) == 1 else None


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of :class:`Config`; the chart's values.schema.json contains it."""
    return msgspec.json.schema(Config)


def parse(text: str) -> Config:
    """The configuration in the YAML document ``text``, without the checks that are not enabled.
    Raises :class:`ConfigError` with every problem.
    """
    return of(raw_of(text))


def raw_of(text: str) -> Any:
    """What the YAML document ``text`` holds. Raises :class:`ConfigError`."""
    try:
        raw = document.read(text)
    except DocumentError as error:
        raise ConfigError(error.problems) from None
    return {} if raw is None else raw


def of(raw: Any) -> Config:
    """The configuration that ``raw`` says; as :func:`parse`."""
    problems: list[str] = []
    config = Config()
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        # It stops at the first; the schema lists all, and says a little less.
        problems = schema.problems(json_schema(), raw, "the file") or [
            f"{where.rstrip('`') or 'the file'}: {what[:1].lower()}{what[1:200]}; change it."
        ]
    if isinstance(raw, dict):
        named = {problem.partition(": ")[0] for problem in problems}
        more = rules.problems(raw)
        problems += [problem for problem in more if problem.partition(": ")[0] not in named]
    if problems:
        raise ConfigError(problems)
    return replace(config, checks=tuple(check for check in config.checks if check.enabled))
