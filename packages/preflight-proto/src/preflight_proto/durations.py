"""Go durations (``300s``, ``1h30m``, ``500ms``), as Helm values and Kubernetes users write them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_RUN: Final = 300.0
_LARGE: Final = 512
_EACH: Final = 0.1

_UNITS: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),  # U+00B5, the micro sign
    "μs": Fraction(1, 10**6),  # U+03BC, the Greek letter: Go reads both
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_TERM: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def gang_run(ranks: int) -> float:
    """Seconds that an all-reduce over so many GPUs may take, localisation included, where
    ``CHECK_TIMEOUT`` is not set.

    The check allows itself as much, and the webhook says it in advance. A communicator of
    thousands of ranks takes minutes to come up.
    """
    return _RUN + _EACH * max(0, ranks - _LARGE)


def parse_duration(text: str) -> float:
    """Seconds in ``text``; a sign is allowed, as in Go's ``time.ParseDuration``.

    Raises :class:`ValueError` with one sentence that says what is wrong and what would be right.
    """
    sign, body = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if body == "0":
        return 0.0
    total, position = Fraction(0), 0
    while match := _TERM.match(body, position):
        total += Fraction(match[1].rstrip(".") or "0") * _UNITS[match[2]]
        position = match.end()
    if position != len(body) or not body:
        hint = "has no unit" if re.fullmatch(r"[0-9.]+", body) else "is not a duration"
        raise ValueError(f'"{text}" {hint}; write e.g. 300s, 10m or 1h30m')
    return float(sign * total)


def format_duration(seconds: float) -> str:
    """The shortest Go duration for ``seconds``, to the nanosecond: 90 → ``1m30s``,
    0.5 → ``500ms``.
    """
    nanos = round(
        abs(Fraction(str(seconds))) * 10**9
    )  # as it is written, not as it is stored: 0.1 is 100ms
    if nanos == 0:
        return "0s"
    sign = "-" if seconds < 0 else ""
    if nanos < 10**9:
        for unit, size in (("ms", 10**6), ("us", 10**3), ("ns", 1)):
            if nanos >= size:
                return f"{sign}{_decimal(nanos, size)}{unit}"
    hours, rest = divmod(nanos, 3600 * 10**9)
    minutes, rest = divmod(rest, 60 * 10**9)
    parts = [
        f"{hours}h" if hours else "",
        f"{minutes}m" if minutes else "",
        f"{_decimal(rest, 10**9)}s" if rest else "",
    ]
    return sign + "".join(parts)


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else str(whole)
