"""The operator's configuration: its schema, and every problem of a file, with its path. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from preflight_kube.api.node_health import SICK, TypePatterns
from preflight_kube.api.workloads.model import at
from preflight_kube.files import schema
from preflight_kube.files import yaml_document as document
from preflight_kube.files.configfile import ConfigError

from preflight_appwrapper.api.rules import (
    BUILT_IN,
    PERIODS,
    Autopilot,
    BrakeRules,
    ConfigSection,
    FailureRule,
    WrapperRules,
    key_of,
    seconds,
)

Duration = Annotated[str, Meta(description="A Go duration, e.g. 90s, 10m or 1h30m.")]


class FaultTolerance(ConfigSection, frozen=True, kw_only=True):
    """Defaults of the parameters that a wrapper's annotations can change. ``failedPods``:
    ``unreplaced`` counts a failed pod until its controller has made up for it, ``any`` counts it
    always."""

    admission_grace_period: Duration = "1m"
    warmup_grace_period: Duration = "5m"
    failure_grace_period: Duration = "1m"
    retry_pause_period: Duration = "90s"
    retry_limit: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 3
    forceful_deletion_grace_period: Duration = "10m"
    success_ttl: Duration = msgspec.field(name="successTTL", default="168h")
    grace_period_maximum: Duration = "24h"
    preflight_allowance: Duration = "20m"
    failed_pods: Literal["unreplaced", "any"] = "unreplaced"


class NodeHealthConfig(ConfigSection, frozen=True, kw_only=True):
    """Conditions of which `label-nodes` makes a label: while one of ``conditions`` (``*`` for any
    characters) is True, the node has our label ``key`` with this ``value``."""

    conditions: TypePatterns = SICK
    key: Annotated[str, Meta(min_length=1, max_length=317)] = (
        "preflight.nvsentinel.nvidia.com/gpu-health"
    )
    value: Annotated[str, Meta(min_length=1, max_length=63)] = "EVICT"


class EvacuationBrake(ConfigSection, frozen=True, kw_only=True):
    """At most ``percent`` of the running workloads (the controller) and of the nodes (the labeler)
    are evacuated in ``window``, or one if that is more; what is beyond it waits. 100: no brake."""

    percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Most of the running workloads, and of the nodes, that are evacuated within the window, or one; 100: no brake.",
        ),
    ] = 10
    window: Duration = "10m"


class Config(ConfigSection, frozen=True, kw_only=True):
    """A configuration file. ``failureRules``: how the status of further kinds is read;
    one for a kind that is known replaces what is known of it. ``trustedUsers``: accounts, by their
    whole name, that are not asked about: what they wrap was judged elsewhere (MultiKueue)."""

    fault_tolerance: FaultTolerance = FaultTolerance()
    autopilot: Autopilot = Autopilot()
    default_queue_name: Annotated[str, Meta(max_length=63)] = ""
    scheduler_name: Annotated[str, Meta(max_length=253)] = ""
    failure_rules: Annotated[tuple[FailureRule, ...], Meta(max_length=64)] = ()
    node_health: NodeHealthConfig = NodeHealthConfig()
    evacuation_brake: EvacuationBrake = EvacuationBrake()
    trusted_users: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[^*]+$")], ...],
        Meta(
            max_length=16,
            description="Accounts whose own rights are not asked for, as MultiKueue's; no account of people.",
        ),
    ] = ()
    lease_duration: Duration = "15s"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


_DEPLOYED: Final = frozenset(
    {"appwrapper", "certManagement", "controllerManager", "webhooksEnabled"}
)
_ALIASES: Final = {
    "resetPause": "retryPausePeriod",
    "deletionGracePeriod": "forcefulDeletionGracePeriod",
    "successTTLCeiling": "successTTL",
    "gracePeriodCeiling": "gracePeriodMaximum",
}
"""Names of the same settings in configurations of other controllers."""
_GRACES: Final = {field: key_of(name) for field, name in PERIODS.items()}
_PERIODS: Final = {**_GRACES, "success_ttl": "successTTL", "maximum": "gracePeriodMaximum"}
"""By field of the rules: keys of the section ``faultTolerance``."""
_PATHS: Final[dict[str, tuple[str, ...]]] = {
    **{field: ("faultTolerance", key) for field, key in _PERIODS.items()},
    "lease": ("leaseDuration",),
    "window": ("evacuationBrake", "window"),
}
"""Where each period stands."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of :class:`Config`."""
    return msgspec.json.schema(Config)


def settings(text: str) -> tuple[Config, WrapperRules]:
    """All that a YAML document says. Raises :class:`ConfigError` with every problem."""
    written, problems = document.read(text), list[str]()
    raw, used = {} if written is None else written, dict[str, str]()
    if isinstance(raw, dict):
        raw, used = _renamed(_public(raw, problems), problems)
    problems += schema.problems(json_schema(), raw, "the file")
    periods = _periods(raw, problems)
    config = Config() if problems else msgspec.convert(raw, Config)
    problems += _of_failure_rules(config)
    if problems:
        raise ConfigError([_as_written(problem, used) for problem in problems])
    section = at(raw, ("faultTolerance",))
    return config, _rules(config, periods, frozenset(section or ()))


def _public(raw: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """AppWrapper 1.2's, below ``appwrapper`` and with periods in nanoseconds, as one of ours."""
    inner = raw.get("appwrapper")
    if not _DEPLOYED & raw.keys() or not isinstance(inner, dict | None):
        return raw
    ours = {key: value for key, value in raw.items() if key not in _DEPLOYED} | (inner or {})
    if ours.pop("userRBACAdmissionCheck", True) is not True:
        problems.append(
            "appwrapper.userRBACAdmissionCheck: would let everybody wrap what they may not create; remove it, and name who need not be asked about in trustedUsers."
        )
    section = ours.get("faultTolerance")
    if isinstance(section, dict):
        ours["faultTolerance"] = {
            key: f"{value}ns" if key != "retryLimit" and type(value) is int else value
            for key, value in section.items()
        }
    return ours


def _renamed(raw: dict[str, Any], problems: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """``raw`` without aliases; and by name the one that it has instead."""
    section, used = raw.get("faultTolerance"), dict[str, str]()
    if not isinstance(section, dict):
        return raw, used
    renamed = dict(section)
    for old, new in _ALIASES.items():
        if old in renamed and new in renamed:
            twice = f"means the same as {new}, which is set too; keep one of the two."
            problems.append(f"faultTolerance.{old}: {twice}")
            renamed.pop(old)
        elif old in renamed:
            renamed[new], used[new] = renamed.pop(old), old
    return {**raw, "faultTolerance": renamed}, used


def _as_written(problem: str, used: Mapping[str, str]) -> str:
    """A problem in the words of the file."""
    section, dot, rest = problem.partition(".")
    name, colon, sentence = rest.partition(":")
    return f"{section}{dot}{used[name]}{colon}{sentence}" if name in used else problem


def _periods(raw: object, problems: list[str]) -> dict[str, float]:
    """By field: the seconds of each period that is a text at all, and can be read."""
    defaults = msgspec.to_builtins(Config())
    texts: dict[str, str] = {}
    periods: dict[str, float] = {}
    for field, keys in _PATHS.items():
        path, text = ".".join(keys), at(raw, keys)
        text = texts[field] = at(defaults, keys) if text is None else text
        if not isinstance(text, str):
            continue
        try:
            period = periods[field] = seconds(text)
        except ValueError as error:
            problems.append(f"{path}: {error}.")
            continue
        if field in _GRACES and period < 0:
            problems.append(f"{path}: is {text}; set a period of 0 or more.")
        elif field == "lease" and period < 1:
            problems.append(f"{path}: {text} is less than a second; set e.g. 15s.")
        elif field not in _GRACES and period <= 0:
            problems.append(f"{path}: is {text}; set a period of more than 0.")
    for field, bound in (*((field, "maximum") for field in _GRACES), ("admission", "warmup")):
        if {field, bound} <= periods.keys() and periods[field] > periods[bound]:
            more = f"{texts[field]} is more than {_PERIODS[bound]}, {texts[bound]}"
            problems.append(f"{'.'.join(_PATHS[field])}: {more}; lower the one or raise the other.")
    return periods


def _of_failure_rules(config: Config) -> Iterator[str]:
    for i, rule in enumerate(config.failure_rules):
        for name, tests in (("failed", rule.failed), ("finished", rule.finished)):
            for j, test in enumerate(tests):
                if bool(test.condition) == bool(test.path) or bool(test.path) != bool(test.values):
                    yield f"failureRules[{i}].{name}[{j}]: must have either condition, or path and values; correct it."


def _rules(config: Config, periods: Mapping[str, float], given: frozenset[str]) -> WrapperRules:
    own = {(rule.group, rule.kind) for rule in config.failure_rules}
    keys = {**_PERIODS, "retry_limit": "retryLimit"}
    values: dict[str, Any] = {field: periods[field] for field in _PERIODS}
    return WrapperRules(
        **values,
        retry_limit=config.fault_tolerance.retry_limit,
        failed_pods=config.fault_tolerance.failed_pods,
        scheduler_name=config.scheduler_name,
        default_queue=config.default_queue_name,
        autopilot=config.autopilot,
        failure_rules=(
            *config.failure_rules,
            *(rule for rule in BUILT_IN if (rule.group, rule.kind) not in own),
        ),
        brake=BrakeRules(config.evacuation_brake.percent, periods["window"]),
        trusted_users=frozenset(config.trusted_users),
        set_=frozenset(field for field, key in keys.items() if key in given),
    )
