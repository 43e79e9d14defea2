"""What `all_reduce_perf` printed, in every era of nccl-tests, as plain data.

Rows are read by words and never by columns, whose widths changed more than once. By the number of words, timestamps put aside:

- 12: until mid 2022, `error` (a float) where later eras count wrong elements
- 13: since 2.13, with `root` and `#wrong`
- 15, 21, 23: bitwise repeats, per-iteration times, or both; each half grows by as many words

NCCL writes to the same stream, between lines and into them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Half", "Report", "Row", "parse"]

_LAUNCHER: Final = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:|\d{1,5}:(?= ))")  # mpirun's, or srun -l's
_NCCL: Final = re.compile(r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] )?[\w.-]+:\d+:\d+ \[-?\d+\].*$|NCCL version \S+\s*$")
_DATE: Final = re.compile(r"^\d{4}-\d\d-\d\d$")
_VERSION: Final = re.compile(r"^# nccl-tests version (\S+)")
_BOUNDS: Final = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_REDUCED: Final = re.compile(r"^#\s*Reducing maxBytes to (\d+) due to memory limitation")
_HEAD: Final = 4
"""Words before the halves in the oldest era; later ones have a fifth, the root."""


@dataclass(frozen=True, slots=True)
class Half:
    """Out-of-place or in-place. ``busbw`` is in GB/s; ``wrong`` counts elements and is None where nothing was compared or the era
    tells a deviation instead."""

    busbw: float
    wrong: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One size, in bytes. ``counts_wrong``: whether this era counts wrong elements a row."""

    size: int
    halves: tuple[Half, Half]
    counts_wrong: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The whole output. ``out_of_bounds`` is the tail's count, None when the run did not get that far."""

    version: str = ""
    rows: tuple[Row, ...] = ()
    out_of_bounds: int | None = None
    reduced_to: int | None = None

    def row(self, size: int) -> Row | None:
        """The row of exactly ``size`` bytes: the average mixes sizes, and a reduced size has no floor."""
        return next((row for row in self.rows if row.size == size), None)


def parse(output: str) -> Report:
    """Read ``output``; what cannot be read is passed over. Never raises."""
    version, bounds, reduced = "", None, None
    rows: list[Row] = []
    for line in _lines(output):
        if row := _row(line.split()):
            rows.append(row)
        elif found := _VERSION.match(line):
            version = found[1]
        elif found := _BOUNDS.match(line):
            # "3 FAILED"; a build that prints FAILED beside 0 has still failed
            bounds = _int(found[1]) or (0 if found[2] == "OK" else 1)
        elif found := _REDUCED.match(line):
            reduced = _int(found[1])
    return Report(version, tuple(rows), bounds, reduced)


def _lines(output: str) -> Iterator[str]:
    """The tool's own lines: launchers' prefixes and NCCL's words taken out, rows that NCCL cut in two joined again."""
    begun = ""
    for raw in output.splitlines():
        line = _NCCL.sub("", _LAUNCHER.sub("", raw)).strip()
        if not line:
            continue
        words = line.split()
        if begun and not line.startswith("#"):
            words = [*begun.split(), *words]
            line = " ".join(words)
        begun = ""
        if words[0].isdecimal() and _row(words) is None and len(words) < 12:
            begun = line
            continue
        yield line


def _row(words: list[str]) -> Row | None:
    dates = [i for i, word in enumerate(words) if _DATE.match(word)]
    for i in reversed(dates):
        del words[i : i + 2]
    if len(words) < 2 * 4 + _HEAD or len(words) > 40:
        return None
    oldest = len(words) == 12
    head = _HEAD if oldest else _HEAD + 1
    each, odd = divmod(len(words) - head, 2)
    size, count = _int(words[0]), _int(words[1])
    if odd or each < 4 or size is None or count is None or not words[2].isidentifier():
        return None
    halves = [_half(words[start : start + 4], counts=not oldest) for start in (head, head + each)]
    first, second = halves
    if first is None or second is None:
        return None
    return Row(size, (first, second), counts_wrong=not oldest)


def _half(words: list[str], *, counts: bool) -> Half | None:
    time, algbw, busbw = (_number(word) for word in words[:3])
    if time is None or algbw is None or busbw is None:
        return None
    wrong = _number(words[3])
    if wrong is None and words[3] != "N/A":
        return None
    return Half(busbw, wrong if counts else None)


def _int(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 19 else None


def _number(word: str) -> float | None:
    if len(word) > 24 or not word.isascii() or "_" in word:
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
