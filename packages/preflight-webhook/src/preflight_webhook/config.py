"""The webhook's configuration: ADR-026's Helm values under their names.

One Struct is the schema. :func:`parse` lists *every* problem of a file with its path in it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import jsonschema
import msgspec
import yaml
from msgspec import Meta
from preflight_proto import gang_source, names
from preflight_proto.durations import parse_duration
from preflight_proto.gang_source import GangSource
from preflight_proto.policy import Enforcement, Method, OptIn

from .quantities import parse_quantity

__all__ = ["CheckConfig", "Config", "ConfigError", "GangDiscovery", "json_schema", "parse"]

Name = Annotated[
    str,
    Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=50, description="Lower-case letters, digits and '-'."),
]
Image = Annotated[str, Meta(pattern=r"^[^\s]+$", description="Image of the check's init container.")]
_NCCL: Final = frozenset({names.NCCL_LOOPBACK, names.NCCL_ALLREDUCE})
Names = tuple[Annotated[str, Meta(min_length=1)], ...]


class _Section(msgspec.Struct, frozen=True, kw_only=True, eq=False, rename="camel", forbid_unknown_fields=True):
    """Compared and hashed by identity, so that what depends on the configuration alone can be made once."""


class EnvVar(_Section, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[^=\s]+$")]
    value: str = ""


class MostCompute(_Section, frozen=True, kw_only=True):
    """The most CPU and memory that a check takes; never more than the pod has reserved anyway."""

    cpu: str | int | float | None = None
    memory: str | int | None = None


class CheckResources(_Section, frozen=True, kw_only=True):
    requests: MostCompute = MostCompute()
    limits: MostCompute = MostCompute()


class CheckConfig(_Section, frozen=True, kw_only=True):
    """One check. ``required`` checks stay whatever a pod asks for; ``observe`` measures and never holds a pod back;
    a ``gang`` check tests the fabric between the members of a gang (nccl-allreduce does, whatever stands here).

    ``placement``: before or behind the workload's own init containers. ``env_patterns`` and ``mount_patterns``: what it inherits of
    the workload (globs on names and on mount paths; unset: those of the NCCL checks for them, nothing for others).
    ``supports``: devices beyond whole GPUs of the pod's own that it can test. ``container``: merged over what is injected.
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
    security_context: dict[str, Any] = {}
    container: dict[str, Any] = {}

    @property
    def gang_wide(self) -> bool:
        return self.gang or self.name == names.NCCL_ALLREDUCE

    @property
    def nccl(self) -> bool:
        return self.name in _NCCL

    @property
    def stays(self) -> bool:
        """Whether it is required: dcgm-diag always is, unless the operator leaves it out."""
        return self.required or self.name == names.DCGM_DIAG


class Dcgm(_Section, frozen=True, kw_only=True):
    hostengine_addr: Annotated[str, Meta(min_length=1)] = "dcgm-hostengine.nvsentinel.svc:5555"
    diag_level: Annotated[int, Meta(ge=1, le=4)] = 1


class Nccl(_Section, frozen=True, kw_only=True):
    """GB/s; unset means the floors table of the check."""

    loopback_threshold_g_bps: Annotated[float, Meta(gt=0)] | None = msgspec.field(
        name="loopbackThresholdGBps", default=None
    )
    allreduce_threshold_g_bps: Annotated[float, Meta(gt=0)] | None = msgspec.field(
        name="allreduceThresholdGBps", default=None
    )


class GangLabels(_Section, frozen=True, kw_only=True):
    gang_id_label: str = "app.kubernetes.io/gang-id"
    gang_size_label: str = "app.kubernetes.io/gang-size"


class GangDiscovery(_Section, frozen=True, kw_only=True):
    """How a pod's gang is recognised; see :mod:`.sources` for what each word reads.

    ``method``: one source, or ``auto`` for all that imply co-scheduling. ``opt_in``: further ones that do not.
    ``owner_schedulers``: pods of these schedulers form a gang with what else their owner made.
    ``parallel_stateful_sets``: StatefulSets here start their pods side by side. ``sources``: kinds of gangs that only the
    configuration knows; they are asked first.
    """

    method: Method = "auto"
    labels: GangLabels = GangLabels()
    opt_in: tuple[OptIn, ...] = ()
    owner_schedulers: Names = ("kai-scheduler",)
    parallel_stateful_sets: bool = False
    sources: Annotated[tuple[GangSource, ...], Meta(max_length=32)] = ()


class GpuDetection(_Section, frozen=True, kw_only=True):
    """``mig_resource_names`` and ``shared_resource_names`` (globs): slices of a GPU, and GPUs that several pods get at a time.
    ``shared_claims``: what the checks make of a claim that other pods may use too."""

    resource_names: Names = ("nvidia.com/gpu",)
    device_classes: Names = ()
    shared_claims: Literal["skip", "inject"] = "skip"
    mig_resource_names: Names = ("nvidia.com/mig-*",)
    shared_resource_names: Names = ("nvidia.com/*.shared",)


class NetworkDetection(_Section, frozen=True, kw_only=True):
    resource_names: Names = ("nvidia.com/mlnxnics",)
    device_classes: Names = ()


class NcclTopology(_Section, frozen=True, kw_only=True):
    """``instance_type_label`` is the node's; the gang controller brings it into the pod."""

    instance_type_label: str = "node.kubernetes.io/instance-type"
    instance_type_mapping: dict[str, str] = {}
    enable_fallback: bool = True


class ConnectorAuth(_Section, frozen=True, kw_only=True):
    enabled: bool = False
    audience: Annotated[str, Meta(min_length=1)] = names.TOKEN_AUDIENCE
    expiration_seconds: Annotated[int, Meta(ge=600, description="The API server refuses less than ten minutes.")] = 3600


class PlatformConnector(_Section, frozen=True, kw_only=True):
    socket_dir: Annotated[str, Meta(pattern=r"^/.+")] = names.SOCKET_DIR
    auth: ConnectorAuth = ConnectorAuth()


class PodSelection(_Section, frozen=True, kw_only=True):
    enabled: bool = False


class PreflightConfigs(_Section, frozen=True, kw_only=True):
    """``enabled``: what namespaces set for themselves, and the gang controller has accepted, is followed."""

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
    nccl_env_patterns: Names = ("NCCL_*", "UCX_*", "OMPI_*")
    nccl_mount_patterns: Names = (names.SHM_DIR,)
    nccl_topology: NcclTopology = NcclTopology()
    platform_connector: PlatformConnector = PlatformConnector()
    processing_strategy: Literal["EXECUTE_REMEDIATION", "STORE_ONLY", "STORE_AND_ANALYSE"] = "EXECUTE_REMEDIATION"
    pod_selection: PodSelection = PodSelection()
    preflight_configs: PreflightConfigs = PreflightConfigs()
    unresolved_claims: Literal["deny", "allow", "inject"] = "deny"
    on_pod_security_conflict: Literal["deny", "report-off"] = "deny"
    provider_init: Names = ()
    check_image_pull_secrets: Names = ()
    gpu_count: Literal["effective", "max"] = "effective"
    skip_nccl_without_network: bool = True


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` has one sentence per problem, each beginning with its path."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of :class:`Config`; the chart's values.schema.json contains it."""
    return msgspec.json.schema(Config)


def parse(text: str) -> Config:
    """The configuration in the YAML document ``text``, without the checks that are not enabled. Raises :class:`ConfigError` with every problem."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        raise ConfigError([f"{where}: not YAML ({getattr(error, 'problem', None) or error}); mend it there."]) from None
    if raw is None:
        raw = {}
    problems = [_sentence(error) for error in sorted(_VALIDATOR.iter_errors(raw), key=lambda e: _path(e.absolute_path))]
    if not isinstance(raw, dict):
        raise ConfigError(problems)
    problems += _meaning(raw)
    if problems:
        raise ConfigError(problems)
    config = msgspec.convert(raw, Config)
    return msgspec.structs.replace(config, checks=tuple(check for check in config.checks if check.enabled))


_VALIDATOR: Final = jsonschema.Draft202012Validator(json_schema())


def _sentence(error: jsonschema.ValidationError) -> str:
    path = _path(error.absolute_path)
    where = path or "the file"
    schema: dict[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    rule_value: Any = error.validator_value
    instance: Any = error.instance
    shown = str(error.instance) if len(str(error.instance)) <= 60 else str(error.instance)[:57] + "…"
    if error.validator == "additionalProperties":
        known = sorted(schema.get("properties", {}))
        unknown = sorted(set(instance) - set(known))
        return " ".join(
            f"{path + '.' if path else ''}{key}: unknown key; known here are {', '.join(known)}." for key in unknown
        )
    if error.validator == "required":
        missing = [key for key in rule_value if key not in instance]
        return " ".join(f"{path + '.' if path else ''}{key}: missing; set it." for key in missing)
    if error.validator == "enum":
        return f'{where}: "{shown}" is not one of {", ".join(map(str, rule_value))}; set one of them.'
    if error.validator in {"type", "anyOf"}:
        wanted = rule_value if error.validator == "type" else "a value of the documented kind"
        return f'{where}: "{shown}" ({type(error.instance).__name__}) is not {wanted}; set {wanted}.'
    rule = {
        "minimum": "at least",
        "maximum": "at most",
        "exclusiveMinimum": "more than",
        "minLength": "of a length of at least",
        "maxLength": "of a length of at most",
    }
    if error.validator in rule:
        return f'{where}: "{shown}" is not {rule[error.validator]} {rule_value}; change it.'
    hint = schema.get("description", f"a text matching {rule_value}.")
    return f'{where}: "{shown}" is not allowed; set {hint}'


def _path(parts: Any) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _meaning(raw: dict[str, Any]) -> list[str]:
    """What a schema cannot say: durations, and names that are used twice."""
    problems = []
    checks = raw.get("checks")
    listed = [c for c in checks if isinstance(c, dict)] if isinstance(checks, list) else []
    durations = [("checkTimeout", raw.get("checkTimeout")), ("gangTimeout", raw.get("gangTimeout"))]
    durations += [(f"checks[{i}].timeout", c.get("timeout")) for i, c in enumerate(listed)]
    for path, value in durations:
        if isinstance(value, str) and value:
            try:
                if parse_duration(value) <= 0:
                    problems.append(f'{path}: "{value}" is not longer than nothing; set e.g. 300s.')
            except ValueError as error:
                problems.append(f"{path}: {error}.")
    for i, check in enumerate(listed):
        problems += _about_check(f"checks[{i}]", check)
    discovery = raw.get("gangDiscovery")
    if isinstance(discovery, dict):
        problems += gang_source.problems(discovery.get("sources", []), "gangDiscovery.sources")
    seen: dict[Any, int] = {}
    for i, check in enumerate(listed):
        name = check.get("name")
        if isinstance(name, str) and name in seen:
            problems.append(
                f'checks[{i}].name: "{name}" is also the name of checks[{seen[name]}]; give each check a name of its own.'
            )
        seen.setdefault(name, i)
    return problems


_OURS: Final = {
    "name": "it follows from the check's name",
    "image": "set the check's image",
    "resources": "set the check's resources",
    "securityContext": "set the check's securityContext",
    "restartPolicy": "a check ends before the next one begins",
}
"""Fields of a container that a check's ``container`` may not hold, and why."""


def _about_check(path: str, check: dict[str, Any]) -> list[str]:
    container = check.get("container")
    taken = sorted(_OURS.keys() & container.keys()) if isinstance(container, dict) else []
    problems = [f"{path}.container.{key}: not allowed here ({_OURS[key]}); remove it." for key in taken]
    if check.get("required") is True or check.get("name") == names.DCGM_DIAG:
        problems += [
            f"{path}.{key}: a required check inherits nothing of the workload, which could bend it; remove one of the two."
            for key in ("envPatterns", "mountPatterns")
            if check.get(key)
        ]
    resources = check.get("resources")
    for side, amounts in resources.items() if isinstance(resources, dict) else ():
        for name, value in amounts.items() if isinstance(amounts, dict) else ():
            try:
                if parse_quantity(str(value)) <= 0:
                    problems.append(f'{path}.resources.{side}.{name}: "{value}" is nothing; set more, or leave it out.')
            except ValueError as error:
                problems.append(f"{path}.resources.{side}.{name}: {error}.")
    return problems
