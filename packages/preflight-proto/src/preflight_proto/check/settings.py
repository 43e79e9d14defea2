"""A check's settings: a frozen dataclass whose fields say which variable they come from.

    @dataclass(frozen=True)
    class Settings:
        level: int = setting("DCGM_DIAG_LEVEL", whole_number(1, 4), default=1, help="1 is quick, 2
        tests memory")

:func:`read` returns an instance or raises :class:`SettingsError` with *every* problem, one sentence
each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from .. import settings as contract
from ..durations import format_duration, parse_duration
from ..names import container_name
from ..printable import printable
from ..settings import MAX_GBPS

S = TypeVar("S")
T = TypeVar("T")

MAX_NUMBER: Final = 2**53
"""The largest whole number that is taken where a setting names no bound of its own: JSON and floats
hold it exactly.
"""
MAX_DURATION: Final = 366 * 86_400.0
"""Seconds of the longest duration that is taken: a year, far beyond what a pod lives."""
COMMON_VARIABLES: Final = (
    "^(PATH|HOME|TMPDIR|TZ|LANG|PREFLIGHT_LOG|NODE_IP|PREFLIGHT_USER_TOPOLOGY)$",
    "^(LC|LD|SSL|NVIDIA|CUDA|OMP|MKL|MALLOC)_",
    "^PYTHON[A-Z]+$",
    "^(https?|no|all|HTTPS?|NO|ALL)_(proxy|PROXY)$",
)
"""What any image's interpreter, C library and driver may read, and what the webhook gives to checks
besides their settings.
"""
_META: Final = "preflight.setting"
_REQUIRED: Final = object()


class SettingsError(Exception):
    """The environment cannot be used; ``problems`` has one sentence per problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


@dataclasses.dataclass(frozen=True, slots=True)
class Parser(Generic[T]):
    """``parse`` turns a variable's text into a value or raises ValueError; ``is_not`` and ``set_``
    make the sentence: `NAME: "fast" is not {is_not}; set {set_}.`

    ``schema``: the same in the words of :mod:`preflight_proto.settings`, for those who judge a
    value before there is a pod; without it they take any.
    """

    parse: Callable[[str], T]
    is_not: str
    set_: str
    show: Callable[[T], str] = str
    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class _Setting:
    env: str
    parser: Parser[Any]
    default: Any
    help: str


def setting(env: str, parser: Parser[T], *, default: Any = _REQUIRED, help: str = "") -> Any:
    """A dataclass field that is read from the variable ``env``; without a default the variable must
    be set.

    An empty variable counts as not set: Helm and the downward API write empty strings for what they
    do not know.
    """
    meta = {_META: _Setting(env, parser, default, help)}
    if default is _REQUIRED:
        return dataclasses.field(metadata=meta, kw_only=True)
    return dataclasses.field(default=default, metadata=meta, kw_only=True)


def read(cls: type[S], environ: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> S:
    """An instance of ``cls`` from ``environ``.

    Raises :class:`SettingsError` with every problem: each variable that is missing or malformed
    and, when all of them can be read, what the class's own ``problems()`` says about their
    combination. ``defaults``: see :func:`described`.
    """
    values, problems = {}, []
    own = defaults or {}
    for name, spec in _settings(cls):
        raw = environ.get(spec.env, "").strip()
        if not raw:
            if spec.default is _REQUIRED:
                problems.append(f"{spec.env}: not set; set {spec.parser.set_}.")
            continue
        try:
            values[name] = spec.parser.parse(raw)
        except ValueError:
            otherwise = (
                ""
                if spec.default is _REQUIRED
                else f", or remove it to use {own.get(spec.env) or _default(spec)}"
            )
            problems.append(
                f'{spec.env}: "{_short(raw)}" is not {spec.parser.is_not}; set {spec.parser.set_}{otherwise}.'
            )
    if problems:
        raise SettingsError(problems)
    instance = cls(**values)
    further = getattr(instance, "problems", None)
    if callable(further) and (errors := list(further())):
        raise SettingsError(errors)
    return instance


def described(
    cls: type[Any], defaults: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Variable → its schema, in the order of the class; see :mod:`preflight_proto.settings`.

    ``defaults``: variable → what holds where the class leaves it to the check.
    """
    own = defaults or {}
    return {
        spec.env: {
            "type": "string",
            "description": spec.help or "see the README",
            **(
                {}
                if spec.default is _REQUIRED
                else {"default": own.get(spec.env) or ("" if _unset(spec) else _default(spec))}
            ),
            **spec.parser.schema,
            "x-is-not": spec.parser.is_not,
            "x-set": spec.parser.set_,
        }
        for _, spec in _settings(cls)
    }


def schema(
    check: str,
    about: str,
    classes: Sequence[type[Any]],
    defaults: Mapping[str, str],
    tool_variables: Sequence[str],
) -> dict[str, Any]:
    """JSON Schema 2020-12 of the variables of ``classes``.

    A later class may ask more strictly for a variable of an earlier one: its word counts.
    ``tool_variables``: regular expressions of what the check's tools and libraries read themselves.
    ``defaults``: see :func:`described`.
    """
    variables = {
        env: variable for cls in classes for env, variable in described(cls, defaults).items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": check,
        "description": about,
        "x-image": container_name(check),
        "type": "object",
        "properties": variables,
        "patternProperties": {
            name: {"type": "string"} for name in [*COMMON_VARIABLES, *tool_variables]
        },
        "additionalProperties": False,
        "required": sorted(env for env, variable in variables.items() if "default" not in variable),
    }


def _parser(
    convert: Callable[[str], T],
    schema: Mapping[str, Any],
    is_not: str,
    set_: str,
    show: Callable[[T], str] = str,
) -> Parser[T]:
    """A parser that takes what ``schema`` takes, and so what those take who judge by that."""

    def parse(raw: str) -> T:
        if not contract.takes(schema, raw):
            raise ValueError(raw)
        return convert(raw)

    return Parser(parse, is_not, set_, show, schema)


def text(what: str = "a text", example: str = "a value") -> Parser[str]:
    """A text without control characters: what others would read in logs and events."""
    return _parser(str, {"format": "printable"}, f"{what} of printable characters", example)


def endpoints(what: str = "host:port", example: str = "host:port") -> Parser[tuple[str, ...]]:
    """Addresses as host:port, separated by commas. What is wrong with each is for the class's
    ``problems()`` to say, by :func:`preflight_proto.settings.endpoint_problems`: one sentence could
    not."""
    return Parser(contract.endpoints, what, example, ",".join, {"format": "endpoints"})


def _items(raw: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in raw.split(","))


def text_list(
    what: str = "a list", example: str = "names separated by commas"
) -> Parser[tuple[str, ...]]:
    """Names separated by commas; empty ones are refused."""
    return _parser(_items, {"format": "list"}, what, example, ",".join)


def whole_number(least: int, most: int | None = None) -> Parser[int]:
    """Parser of a whole number from ``least`` to ``most``, both included."""
    if most is not None and most - least < 6:
        numbers = [str(n) for n in range(least, most + 1)]
        hint = ", ".join(numbers[:-1]) + f" or {numbers[-1]}" if len(numbers) > 1 else numbers[0]
    else:
        hint = f"a whole number from {least}" + (f" to {most}" if most is not None else "")
    bound = MAX_NUMBER if most is None else most
    return _parser(
        int,
        {"format": "whole-number", "x-minimum": least, "x-maximum": bound},
        "a whole number" if most is None else f"a whole number from {least} to {most}",
        hint,
    )


def duration(least: float = 0.0) -> Parser[float]:
    """A Go duration, read as seconds."""
    at_least = f" of at least {format_duration(least)}" if least else ""
    return _parser(
        parse_duration,
        {"format": "go-duration", "x-minimum": max(0.0, least), "x-maximum": MAX_DURATION},
        f"a duration{at_least}",
        "e.g. 300s, 10m or 1h30m",
        format_duration,
    )


def gbps(example: str = "150") -> Parser[float]:
    """A bandwidth in GB/s (10^9 bytes per second)."""
    return _parser(
        float,
        {"format": "number", "x-more-than": 0, "x-maximum": MAX_GBPS},
        "a number of GB/s",
        f"e.g. {example}",
        lambda value: f"{value:g}",
    )


def size(least: int, most: int, multiple: int = 1) -> Parser[int]:
    """Bytes from ``least`` to ``most``, e.g. ``4G``, ``4Gi`` or ``4GiB``: units are powers of 1024,
    as nccl-tests reads them.
    """
    return _parser(
        contract.size_bytes,
        {"format": "size", "x-minimum": least, "x-maximum": most, "x-multiple-of": multiple},
        f"a size from {size_text(least)} to {size_text(most)}",
        "e.g. 1G or 256M",
        size_text,
    )


def size_text(size: int) -> str:
    """As nccl-tests reads it: 1G, 256M, or the plain number of bytes."""
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def one_of(*choices: str) -> Parser[str]:
    """One of these words, exactly."""
    listed = ", ".join(choices[:-1]) + f" or {choices[-1]}"
    return _parser(str, {"enum": list(choices)}, listed, listed)


def _settings(cls: type[Any]) -> list[tuple[str, _Setting]]:
    return [(f.name, f.metadata[_META]) for f in dataclasses.fields(cls) if _META in f.metadata]


def _default(spec: _Setting) -> str:
    return "the built-in behaviour" if _unset(spec) else str(spec.parser.show(spec.default))


def _unset(spec: _Setting) -> bool:
    return spec.default is None or spec.default in ("", ())


def _short(raw: str, most: int = 80) -> str:
    return printable(raw, most)
