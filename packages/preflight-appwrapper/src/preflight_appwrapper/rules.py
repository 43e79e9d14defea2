"""The parameters of fault tolerance: defaults, what the operator sets, what a wrapper's annotations
say, and where each value is from.

Pure. Annotations are read at every decision, so one that is changed holds at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from preflight_proto.durations import format_duration, parse_duration
from preflight_proto.printable import printable

from .brake import BrakeRules
from .objects import PREFIX
from .verdicts import BUILT_IN, FailureRule

__all__ = [
    "DEFAULT_TAINTS",
    "FAULT_TOLERANCE",
    "Autopilot",
    "ExitCodes",
    "LabelTaint",
    "Parameter",
    "Parameters",
    "WrapperRules",
    "parameters",
    "seconds",
]

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
Source = Literal["default", "operator", "annotation", "clipped", "malformed", "ignored"]

_MOST_NANOSECONDS: Final = 2**63
"""A Go duration is an int64 of nanoseconds."""
_LONGEST: Final = 256
_INT32: Final = (-(2**31), 2**31 - 1)
_MOST_CODES: Final = 256


class LabelTaint(msgspec.Struct, frozen=True):
    """A node label that says something about a resource of that node."""

    key: str
    value: str
    effect: Effect


DEFAULT_TAINTS: Final[Mapping[str, tuple[LabelTaint, ...]]] = {
    "nvidia.com/gpu": (
        LabelTaint("autopilot.ibm.com/gpuhealth", "ERR", "NoSchedule"),
        LabelTaint("autopilot.ibm.com/gpuhealth", "EVICT", "NoExecute"),
    )
}


class Autopilot(msgspec.Struct, frozen=True, kw_only=True):
    """``taints``: by resource name, in configured order. ``weight``: of the preferred terms, 1 to
    100.
    """

    inject: bool = True
    monitor: bool = True
    weight: int = 50
    taints: Mapping[str, tuple[LabelTaint, ...]] = msgspec.field(
        default_factory=lambda: DEFAULT_TAINTS
    )


class WrapperRules(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all wrappers, from the operator's configuration. Periods are in seconds.

    ``set_`` names the parameters that the configuration sets. ``failed_pods`` says when a failed
    pod counts: ``unreplaced`` until its controller has made up for it, ``any`` always.
    ``trusted_users``: who may wrap what the controller may create, without being asked about.
    ``wrapped``: the resources that the controller may create, each before its group; empty: any.
    ``excluded``: namespaces of which nothing is created. ``mark_key``: see :mod:`.marks`; empty:
    nobody marks, and no mark is asked for.
    """

    admission: float = 60
    warmup: float = 300
    failure: float = 60
    retry_pause: float = 90
    retry_limit: int = 3
    forceful_deletion: float = 600
    success_ttl: float = 7 * 86_400
    maximum: float = 86_400
    preflight_allowance: float = 1200
    failed_pods: Literal["unreplaced", "any"] = "unreplaced"
    scheduler_name: str = ""
    default_queue: str = ""
    autopilot: Autopilot = Autopilot()
    failure_rules: tuple[FailureRule, ...] = BUILT_IN
    brake: BrakeRules = BrakeRules()
    trusted_users: frozenset[str] = frozenset()
    wrapped: frozenset[str] = frozenset()
    set_: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    mark_key: bytes = b""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter as it holds for one wrapper. ``value``: seconds, or a count; ``problem``: why
    the annotation does not hold as it is written, one sentence."""

    name: str
    annotation: str
    value: float
    source: Source
    written: str = ""
    problem: str = ""

    @property
    def shown(self) -> str:
        """For people: a count, or a duration."""
        return str(int(self.value)) if self.name == "RetryLimit" else format_duration(self.value)


class ExitCodes(msgspec.Struct, frozen=True, kw_only=True):
    """``terminal``: these end the retries. ``retryable``: where it names any, all others do."""

    terminal: frozenset[int] = frozenset()
    retryable: frozenset[int] = frozenset()

    def ends_retries(self, code: int) -> bool:
        """Whether a failure with this code is final; ``code`` is not 0."""
        return code in self.terminal or (bool(self.retryable) and code not in self.retryable)


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """All parameters of one wrapper. ``problems``: by annotation and value, one sentence each."""

    listed: tuple[Parameter, ...]
    exit_codes: ExitCodes
    problems: tuple[tuple[str, str], ...]
    admission: float
    warmup: float
    failure: float
    retry_pause: float
    retry_limit: int
    deletion_on_failure: float
    forceful_deletion: float
    success_ttl: float
    preflight_allowance: float
    maximum: float


_PERIODS: Final = (
    ("admission", "AdmissionGracePeriod", "admissionGracePeriodDuration"),
    ("warmup", "WarmupGracePeriod", "warmupGracePeriodDuration"),
    ("failure", "FailureGracePeriod", "failureGracePeriodDuration"),
    ("retry_pause", "RetryPausePeriod", "retryPausePeriodDuration"),
    ("deletion_on_failure", "DeletionOnFailureGracePeriod", "deletionOnFailureGracePeriodDuration"),
    ("forceful_deletion", "ForcefulDeletionGracePeriod", "forcefulDeletionGracePeriodDuration"),
    ("preflight_allowance", "PreflightAllowance", "preflightAllowanceDuration"),
)
_TTL: Final = "successTTLDuration"
_LIMIT: Final = "retryLimit"
_TERMINAL: Final = "terminalExitCodes"
_RETRYABLE: Final = "retryableExitCodes"
FAULT_TOLERANCE: Final = frozenset(
    PREFIX + key for key in (*(it[2] for it in _PERIODS), _TTL, _LIMIT, _TERMINAL, _RETRYABLE)
)
"""The annotations that are read here; they belong on the wrapper's own metadata."""


def seconds(text: str) -> float:
    """A Go duration. Raises :class:`ValueError` with one sentence, also for what no int64 of
    nanoseconds holds.
    """
    if not text:
        raise ValueError("it is empty; write e.g. 90s, 10m or 1h30m")
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters; write e.g. 90s, 10m or 1h30m")
    found = parse_duration(text)
    if abs(found) * 1e9 >= _MOST_NANOSECONDS:
        raise ValueError(
            f'"{printable(text, 60)}" is longer than a duration can be (about 292 years)'
        )
    return found


def parameters(annotations: Mapping[str, str], rules: WrapperRules) -> Parameters:
    """What holds for a wrapper with these annotations. Never raises."""
    listed = [_period(annotations, rules, *one) for one in _PERIODS]
    ttl, limit = _success_ttl(annotations, rules), _retry_limit(annotations, rules)
    terminal, said = _codes(annotations, _TERMINAL)
    retryable, said_too = _codes(annotations, _RETRYABLE)
    listed += [ttl, limit]
    bad = [(f"{one.annotation}={one.written}", one.problem) for one in listed if one.problem]
    values = {field: one.value for (field, _, _), one in zip(_PERIODS, listed, strict=False)}
    return Parameters(
        listed=tuple(listed),
        exit_codes=ExitCodes(terminal=terminal, retryable=retryable),
        problems=(*bad, *said, *said_too),
        success_ttl=ttl.value,
        retry_limit=int(limit.value),
        maximum=rules.maximum,
        **values,
    )


def _base(rules: WrapperRules, field: str) -> tuple[float, Source]:
    value = 0.0 if field == "deletion_on_failure" else float(getattr(rules, field))
    return value, "operator" if field in rules.set_ else "default"


def _period(
    annotations: Mapping[str, str], rules: WrapperRules, field: str, name: str, key: str
) -> Parameter:
    annotation = PREFIX + key
    value, source = _base(rules, field)
    value = min(max(value, 0.0), rules.maximum)
    text = annotations.get(annotation)
    if text is None:
        return Parameter(name=name, annotation=annotation, value=value, source=source)
    shown = printable(text, 60)
    try:
        asked = seconds(text)
    except ValueError as error:
        problem = f'annotation {annotation}: "{shown}" is not a duration ({printable(str(error))}); {format_duration(value)} holds instead.'
        return Parameter(
            name=name,
            annotation=annotation,
            value=value,
            source="malformed",
            written=shown,
            problem=problem,
        )
    bounded = min(max(asked, 0.0), rules.maximum)
    return Parameter(
        name=name,
        annotation=annotation,
        value=bounded,
        source="annotation" if bounded == asked else "clipped",
        written=shown,
    )


def _success_ttl(annotations: Mapping[str, str], rules: WrapperRules) -> Parameter:
    annotation, name = PREFIX + _TTL, "SuccessTTL"
    value, source = _base(rules, "success_ttl")
    text = annotations.get(annotation)
    if text is None:
        return Parameter(name=name, annotation=annotation, value=value, source=source)
    shown = printable(text, 60)
    try:
        asked = seconds(text)
    except ValueError as error:
        problem = f'annotation {annotation}: "{shown}" is not a duration ({printable(str(error))}); {format_duration(value)} holds instead.'
        return Parameter(
            name=name,
            annotation=annotation,
            value=value,
            source="malformed",
            written=shown,
            problem=problem,
        )
    held = 0 < asked < value
    return Parameter(
        name=name,
        annotation=annotation,
        value=asked if held else value,
        source="annotation" if held else "ignored",
        written=shown,
    )


def _retry_limit(annotations: Mapping[str, str], rules: WrapperRules) -> Parameter:
    annotation, name = PREFIX + _LIMIT, "RetryLimit"
    value, source = _base(rules, "retry_limit")
    text = annotations.get(annotation)
    if text is None:
        return Parameter(name=name, annotation=annotation, value=value, source=source)
    shown = printable(text, 60)
    asked = _int32(text)
    if asked is None:
        problem = f'annotation {annotation}: "{shown}" is not a whole number of 32 bits; write e.g. 3; {int(value)} holds instead.'
        return Parameter(
            name=name,
            annotation=annotation,
            value=value,
            source="malformed",
            written=shown,
            problem=problem,
        )
    return Parameter(
        name=name, annotation=annotation, value=float(asked), source="annotation", written=shown
    )


def _int32(text: str) -> int | None:
    if len(text) > _LONGEST or not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        return None
    found = int(text)
    return found if _INT32[0] <= found <= _INT32[1] else None


def _codes(
    annotations: Mapping[str, str], key: str
) -> tuple[frozenset[int], tuple[tuple[str, str], ...]]:
    """Comma-separated whole numbers; what is none is skipped, and named."""
    annotation = PREFIX + key
    text = annotations.get(annotation)
    if text is None:
        return frozenset(), ()
    parts = [part.strip() for part in text[: 16 * _MOST_CODES].split(",")][:_MOST_CODES]
    found = {part: _int32(part) for part in parts}
    bad = [printable(part, 20) or '""' for part, code in found.items() if code is None]
    problem = (
        f"annotation {annotation}: {', '.join(bad[:8])}{' …' if len(bad) > 8 else ''} "
        f"{'is not a whole number and is' if len(bad) == 1 else 'are not whole numbers and are'} skipped; write e.g. 3, 10."
    )
    codes = frozenset(code for code in found.values() if code is not None)
    return codes, ((f"{annotation}={printable(text, 60)}", problem),) if bad else ()
