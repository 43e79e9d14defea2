"""Parameters of fault tolerance: by a wrapper's annotations, else the operator, else us. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec
from preflight_proto.durations import format_duration
from preflight_proto.printable import printable

from preflight_appwrapper.api.names import PREFIX
from preflight_appwrapper.api.rules import PERIODS, RetryLoop, WrapperRules, key_of, seconds

Source = Literal["default", "operator", "annotation", "clipped", "malformed", "ignored"]

_LONGEST: Final = 256
_MOST_CODES: Final = 256
_LIMIT: Final = "RetryLimit"
_TTL: Final = "SuccessTTL"
_ON_FAILURE: Final = "DeletionOnFailureGracePeriod"


class Parameter(msgspec.Struct, frozen=True):
    """One parameter as it holds for one wrapper, for people: a count, or a duration. ``written``:
    its annotation."""

    name: str
    value: str
    source: Source
    written: str = ""


class ExitCodes(msgspec.Struct, frozen=True, kw_only=True):
    """``terminal``: these end the retries. ``retryable``: where it names any, all others do."""

    terminal: frozenset[int] = frozenset()
    retryable: frozenset[int] = frozenset()

    def ends_retries(self, code: int) -> bool:
        """Say whether a failure with this code is final; ``code`` is not 0."""
        return code in self.terminal or (bool(self.retryable) and code not in self.retryable)


class Parameters(RetryLoop, frozen=True, kw_only=True):
    """All parameters of one wrapper. ``problems``: by annotation and value, one sentence each."""

    listed: tuple[Parameter, ...]
    exit_codes: ExitCodes
    problems: tuple[tuple[str, str], ...]
    deletion_on_failure: float


_TERMINAL: Final = "terminalExitCodes"
_RETRYABLE: Final = "retryableExitCodes"


def parameters(annotations: Mapping[str, str], rules: WrapperRules) -> Parameters:
    """Return what holds for a wrapper with these annotations. Never raises."""
    listed, problems = list[Parameter](), list[tuple[str, str]]()
    values: dict[str, Any] = {}
    for field, (name, key, read) in _READERS.items():
        value = float(getattr(rules, field, 0.0))
        if read is _period:
            value = min(max(value, 0.0), rules.maximum)
        source: Source = "operator" if field in rules.set_ else "default"
        text = annotations.get(key)
        written = "" if text is None else printable(text, 60)
        try:
            if text is not None:
                value, source = read(text, value, rules.maximum)
        except ValueError as error:
            source = "malformed"
            problem = f'annotation {key}: "{written}" {error}; {_shown(name, value)} holds instead.'
            problems.append((f"{key}={written}", problem))
        values[field] = value
        listed.append(Parameter(name, _shown(name, value), source, written))
    terminal, retryable = (_codes(annotations, key, problems) for key in (_TERMINAL, _RETRYABLE))
    values["retry_limit"] = int(values["retry_limit"])
    return Parameters(
        listed=tuple(listed),
        exit_codes=ExitCodes(terminal=terminal, retryable=retryable),
        problems=tuple(problems),
        maximum=rules.maximum,
        **values,
    )


@lru_cache(maxsize=1024)
def _shown(name: str, value: float) -> str:
    return str(int(value)) if name == _LIMIT else format_duration(value)


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
    number = int(text)
    return number if -(2**31) <= number < 2**31 else None


def _codes(
    annotations: Mapping[str, str], key: str, problems: list[tuple[str, str]]
) -> frozenset[int]:
    """Comma-separated whole numbers; what is none is skipped, and named in ``problems``."""
    text = annotations.get(PREFIX + key)
    if text is None:
        return frozenset()
    parts = [part.strip() for part in text[: 16 * _MOST_CODES].split(",")][:_MOST_CODES]
    codes = {part: _int32(part) for part in parts}
    bad = [printable(part, 20) or '""' for part, code in codes.items() if code is None]
    if bad:
        named = ", ".join(bad[:8]) + (" …" if len(bad) > 8 else "")
        what = "is not a whole number and is" if len(bad) == 1 else "are not whole numbers and are"
        problem = f"annotation {PREFIX + key}: {named} {what} skipped; write e.g. 3, 10."
        problems.append((f"{PREFIX + key}={printable(text, 60)}", problem))
    return frozenset(code for code in codes.values() if code is not None)


_Reader = Callable[[str, float, float], tuple[float, Source]]
"""Of an annotation's text, the value that holds without it, and the maximum."""
_READERS: Final[dict[str, tuple[str, str, _Reader]]] = {
    **{field: (name, _annotation(name), _period) for field, name in PERIODS.items()},
    "deletion_on_failure": (_ON_FAILURE, _annotation(_ON_FAILURE), _period),
    "success_ttl": (_TTL, _annotation(_TTL), _success_ttl),
    "retry_limit": (_LIMIT, _annotation(_LIMIT), _retry_limit),
}
"""By field: the parameter's name, its annotation, and how that is read."""
FAULT_TOLERANCE: Final = frozenset(
    (PREFIX + _TERMINAL, PREFIX + _RETRYABLE, *(key for _, key, _ in _READERS.values()))
)
"""The annotations that are read here; they belong on the wrapper's own metadata."""
