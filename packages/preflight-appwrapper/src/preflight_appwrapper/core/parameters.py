"""The parameters of fault tolerance: defaults, what the operator sets, what a wrapper's annotations
say, and where each value is from.

Pure. Annotations are read at every decision, so one that is changed holds at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace
from preflight_proto.durations import format_duration
from preflight_proto.printable import printable

from preflight_appwrapper.api.names import PREFIX
from preflight_appwrapper.api.rules import PERIODS, WrapperRules, key_of, seconds

Source = Literal["default", "operator", "annotation", "clipped", "malformed", "ignored"]

_LONGEST: Final = 256
_INT32: Final = (-(2**31), 2**31 - 1)
_MOST_CODES: Final = 256
_LIMIT: Final = "RetryLimit"


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
        return str(int(self.value)) if self.name == _LIMIT else format_duration(self.value)


class ExitCodes(msgspec.Struct, frozen=True, kw_only=True):
    """``terminal``: these end the retries. ``retryable``: where it names any, all others do."""

    terminal: frozenset[int] = frozenset()
    retryable: frozenset[int] = frozenset()

    def ends_retries(self, code: int) -> bool:
        """Say whether a failure with this code is final; ``code`` is not 0."""
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


_TERMINAL: Final = "terminalExitCodes"
_RETRYABLE: Final = "retryableExitCodes"


def parameters(annotations: Mapping[str, str], rules: WrapperRules) -> Parameters:
    """Return what holds for a wrapper with these annotations. Never raises."""
    listed = {field: _parameter(annotations, rules, field) for field in _READERS}
    terminal, bad_terminal = _codes(annotations, _TERMINAL)
    retryable, bad_retryable = _codes(annotations, _RETRYABLE)
    bad = [(f"{it.annotation}={it.written}", it.problem) for it in listed.values() if it.problem]
    values: dict[str, Any] = {field: it.value for field, it in listed.items()}
    values["retry_limit"] = int(values["retry_limit"])
    return Parameters(
        listed=tuple(listed.values()),
        exit_codes=ExitCodes(terminal=terminal, retryable=retryable),
        problems=(*bad, *bad_terminal, *bad_retryable),
        maximum=rules.maximum,
        **values,
    )


def _parameter(annotations: Mapping[str, str], rules: WrapperRules, field: str) -> Parameter:
    name, read = _READERS[field]
    value = float(getattr(rules, field, 0.0))
    if read is _period:
        value = min(max(value, 0.0), rules.maximum)
    found = Parameter(
        name=name,
        annotation=_annotation(name),
        value=value,
        source="operator" if field in rules.set_ else "default",
    )
    text = annotations.get(found.annotation)
    if text is None:
        return found
    shown = printable(text, 60)
    try:
        value, source = read(text, value, rules.maximum)
    except ValueError as error:
        problem = f'annotation {found.annotation}: "{shown}" {error}; {found.shown} holds instead.'
        return replace(found, source="malformed", written=shown, problem=problem)
    return replace(found, value=value, source=source, written=shown)


def _annotation(name: str) -> str:
    return PREFIX + key_of(name) + ("" if name == _LIMIT else "Duration")


def _period(text: str, _: float, maximum: float) -> tuple[float, Source]:
    asked = _duration(text)
    bounded = min(max(asked, 0.0), maximum)
    return bounded, "annotation" if bounded == asked else "clipped"


def _success_ttl(text: str, value: float, _: float) -> tuple[float, Source]:
    asked = _duration(text)
    return (asked, "annotation") if 0 < asked < value else (value, "ignored")


def _duration(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise ValueError(f"is not a duration ({printable(str(error))})") from None


def _retry_limit(text: str, *_: float) -> tuple[float, Source]:
    asked = _int32(text)
    if asked is None:
        raise ValueError("is not a whole number of 32 bits; write e.g. 3")
    return float(asked), "annotation"


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


_Reader = Callable[[str, float, float], tuple[float, Source]]
"""Of an annotation's text, the value that holds without it, and the maximum."""
_READERS: Final[dict[str, tuple[str, _Reader]]] = {
    **{field: (name, _period) for field, name in PERIODS.items()},
    "deletion_on_failure": ("DeletionOnFailureGracePeriod", _period),
    "success_ttl": ("SuccessTTL", _success_ttl),
    "retry_limit": (_LIMIT, _retry_limit),
}
"""By field: the parameter's name, and how its annotation is read."""
FAULT_TOLERANCE: Final = frozenset(
    (PREFIX + _TERMINAL, PREFIX + _RETRYABLE, *(_annotation(it[0]) for it in _READERS.values()))
)
"""The annotations that are read here; they belong on the wrapper's own metadata."""
