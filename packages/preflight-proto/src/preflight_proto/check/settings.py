"""A check's settings: a frozen dataclass whose fields say which variable they come from.

    @dataclass(frozen=True)
    class Settings:
        level: int = setting("DCGM_DIAG_LEVEL", whole_number(1, 4), default=1, help="1 is quick, 2 tests memory")

:func:`read` returns an instance or raises :class:`SettingsError` with *every* problem, one sentence each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from ..durations import format_duration, parse_duration

__all__ = [
    "Parser",
    "SettingsError",
    "duration",
    "gbps",
    "manual",
    "one_of",
    "read",
    "setting",
    "text",
    "text_list",
    "whole_number",
]

S = TypeVar("S")
T = TypeVar("T")

_META: Final = "preflight.setting"
_REQUIRED: Final = object()


class SettingsError(Exception):
    """The environment cannot be used; ``problems`` has one sentence per problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


@dataclasses.dataclass(frozen=True, slots=True)
class Parser(Generic[T]):
    """``parse`` turns a variable's text into a value or raises ValueError; ``is_not`` and ``set_`` make the sentence:
    `NAME: "fast" is not {is_not}; set {set_}.`"""

    parse: Callable[[str], T]
    is_not: str
    set_: str
    show: Callable[[T], str] = str


@dataclasses.dataclass(frozen=True, slots=True)
class _Setting:
    env: str
    parser: Parser[Any]
    default: Any
    help: str


def setting(env: str, parser: Parser[T], *, default: Any = _REQUIRED, help: str = "") -> Any:
    """A dataclass field that is read from the variable ``env``; without a default the variable must be set.

    An empty variable counts as not set: Helm and the downward API write empty strings for what they do not know.
    """
    meta = {_META: _Setting(env, parser, default, help)}
    if default is _REQUIRED:
        return dataclasses.field(metadata=meta, kw_only=True)
    return dataclasses.field(default=default, metadata=meta, kw_only=True)


def read(cls: type[S], environ: Mapping[str, str]) -> S:
    """An instance of ``cls`` from ``environ``.

    Raises :class:`SettingsError` with every problem: each variable that is missing or malformed and, when all of them
    can be read, what the class's own ``problems()`` says about their combination.
    """
    values, problems = {}, []
    for name, spec in _settings(cls):
        raw = environ.get(spec.env, "").strip()
        if not raw:
            if spec.default is _REQUIRED:
                problems.append(f"{spec.env}: not set; set {spec.parser.set_}.")
            continue
        try:
            values[name] = spec.parser.parse(raw)
        except ValueError:
            otherwise = "" if spec.default is _REQUIRED else f", or remove it to use {_default(spec)}"
            problems.append(
                f'{spec.env}: "{_short(raw)}" is not {spec.parser.is_not}; set {spec.parser.set_}{otherwise}.'
            )
    if problems:
        raise SettingsError(problems)
    instance = cls(**values)
    further = getattr(instance, "problems", None)
    if callable(further) and (found := list(further())):
        raise SettingsError(found)
    return instance


def manual(cls: type[Any]) -> list[tuple[str, str, str]]:
    """(variable, what it means and takes, default) for each setting, in the order of the class."""
    return [
        (
            spec.env,
            f"{spec.help or 'see the README'} ({spec.parser.set_})",
            "required" if spec.default is _REQUIRED else "none" if _unset(spec) else _default(spec),
        )
        for _, spec in _settings(cls)
    ]


def text(what: str = "a text", example: str = "a value") -> Parser[str]:
    return Parser(str, what, example)


def text_list(what: str = "a list", example: str = "names separated by commas") -> Parser[tuple[str, ...]]:
    """Names separated by commas; empty ones are refused."""

    def parse(raw: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in raw.split(","))
        if not all(items):
            raise ValueError
        return items

    return Parser(parse, what, example, ",".join)


def whole_number(least: int, most: int | None = None) -> Parser[int]:
    if most is not None and most - least < 6:
        numbers = [str(n) for n in range(least, most + 1)]
        hint = ", ".join(numbers[:-1]) + f" or {numbers[-1]}" if len(numbers) > 1 else numbers[0]
    else:
        hint = f"a whole number from {least}" + (f" to {most}" if most is not None else "")

    def parse(raw: str) -> int:
        if not (raw.isascii() and raw.lstrip("-").isdigit()):
            raise ValueError
        value = int(raw)
        if value < least or (most is not None and value > most):
            raise ValueError
        return value

    return Parser(parse, "a whole number" if most is None else f"a whole number from {least} to {most}", hint)


def duration(least: float = 0.0) -> Parser[float]:
    """A Go duration, read as seconds."""

    def parse(raw: str) -> float:
        seconds = parse_duration(raw)
        if seconds < least or seconds < 0:
            raise ValueError
        return seconds

    at_least = f" of at least {format_duration(least)}" if least else ""
    return Parser(parse, f"a duration{at_least}", "e.g. 300s, 10m or 1h30m", format_duration)


def gbps(example: str = "150") -> Parser[float]:
    """A bandwidth in GB/s (10^9 bytes per second)."""

    def parse(raw: str) -> float:
        value = float(raw)
        if not math.isfinite(value) or value <= 0:
            raise ValueError
        return value

    return Parser(parse, "a number of GB/s", f"e.g. {example}", lambda value: f"{value:g}")


def one_of(*choices: str) -> Parser[str]:
    """One of these words, exactly."""

    def parse(raw: str) -> str:
        if raw not in choices:
            raise ValueError
        return raw

    listed = ", ".join(choices[:-1]) + f" or {choices[-1]}"
    return Parser(parse, listed, listed)


def _settings(cls: type[Any]) -> list[tuple[str, _Setting]]:
    return [(f.name, f.metadata[_META]) for f in dataclasses.fields(cls) if _META in f.metadata]


def _default(spec: _Setting) -> str:
    return "the built-in behaviour" if _unset(spec) else str(spec.parser.show(spec.default))


def _unset(spec: _Setting) -> bool:
    return spec.default is None or spec.default in ("", ())


def _short(raw: str, most: int = 80) -> str:
    return raw if len(raw) <= most else raw[: most - 1] + "…"
