"""What `all_reduce_perf` printed, in every era of nccl-tests, and what it wrote as JSON, as plain
data.

Columns are found by the header line, which names each of them; a column that this module does not
know is passed over. Output without a header is read by the number of words, timestamps put aside:
12 until mid 2022 (`error`, a float, where later eras count wrong elements), 13 since (`root` and
`#wrong`), more where each half has further columns.

NCCL writes to the same stream, between lines and into them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

_LAUNCHER: Final = re.compile(
    r"^\s*(?:\[(?:\d+|[\w.@-]{1,200}),\d+\]<std(?:out|err)>:|\d{1,5}:(?= ))"
)  # mpirun's (4, 5), or srun -l's
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # a wrapper's colours
_NCCL: Final = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] )?[\w.-]+:\d+:\d+ \[-?\d+\].*$|NCCL version \S+\s*$"
)
_DATE: Final = re.compile(r"^\d{4}-\d\d-\d\d$")
_VERSION: Final = re.compile(r"^# nccl-tests version (\S+)(?:.*nccl-library=(\d{4,6}))?")
_LIBRARY: Final = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)\+")
_BOUNDS: Final = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_REDUCED: Final = re.compile(r"^#\s*Reducing maxBytes to (\d+) due to memory limitation")
_BEGINNING: Final = ["size", "count", "type", "redop"]
_TIMES: Final = {"time", "cputime"}
_TRAILING: Final = 4
"""Words behind the last known column that a newer era may add."""
BYTES: Final = {
    "float": 4,
    "int32": 4,
    "uint32": 4,
    "half": 2,
    "bfloat16": 2,
    "double": 8,
    "int64": 8,
    "uint64": 8,
}


@dataclass(frozen=True, slots=True)
class Half:
    """Out-of-place or in-place: ``time`` in microseconds, bandwidths in GB/s. ``wrong`` counts
    elements and is None where nothing was compared or the era has a deviation instead."""

    time: float
    algbw: float
    busbw: float
    wrong: float | None


@dataclass(frozen=True, slots=True)
class PerfRow:
    """One size, in bytes. ``counts_wrong``: whether this era counts wrong elements a row."""

    size: int
    halves: tuple[Half, ...]
    counts_wrong: bool = True
    count: int = 0
    kind: str = "float"

    def contradiction(self, gpus: int | None) -> str:
        """Where the row contradicts itself; empty when size, time and both bandwidths agree within
        2 %.

        The algorithm's bandwidth is size / time, and a ring over n GPUs moves 2(n-1)/n of it
        (nccl-tests' PERFORMANCE page).
        """
        if self.kind in BYTES and self.count * BYTES[self.kind] != self.size:
            return f"{self.count} elements of {self.kind} are not {self.size} bytes"
        for half in self.halves:
            if half.time <= 0:
                return f"a time of {half.time:g} us"
            algbw = self.size / half.time / 1e3
            if not _agree(half.algbw, algbw):
                return f"{self.size} bytes in {half.time:g} us are {algbw:.2f} GB/s, and algbw is {half.algbw:g}"
            if gpus is not None and not _agree(half.busbw, half.algbw * 2 * (gpus - 1) / gpus):
                return (
                    f"algbw {half.algbw:g} over {gpus} GPUs does not make a busbw of {half.busbw:g}"
                )
        return ""


def _agree(value: float, other: float) -> bool:
    return abs(value - other) <= max(
        0.02 * max(value, other), 0.011
    )  # small values are printed with two digits


@dataclass(frozen=True, slots=True)
class Report:
    """The whole output. ``out_of_bounds`` is the tail's count, None when the run did not get that
    far; ``library`` is NCCL's version.
    """

    version: str = ""
    rows: tuple[PerfRow, ...] = ()
    out_of_bounds: int | None = None
    reduced_to: int | None = None
    library: str = ""


def parse(output: str) -> Report:
    """Read ``output``; what cannot be read is passed over. Never raises."""
    version, bounds, reduced, library = "", None, None, ""
    rows: list[PerfRow] = []
    header: list[str] = []
    if match := _LIBRARY.search(output):
        library = match[1]
    for line, new in _lines(output):
        header = new
        if row := _row(line.split(), header):
            rows.append(row)
        elif match := _VERSION.match(line):
            version, library = match[1], _library(match[2]) or library
        elif match := _BOUNDS.match(line):
            # "3 FAILED"; a build that prints FAILED beside 0 has still failed
            bounds = max(bounds or 0, _int(match[1]) or (0 if match[2] == "OK" else 1))
        elif match := _REDUCED.match(line):
            reduced = _int(match[1])
    return Report(version, tuple(rows), bounds, reduced, library)


def parse_json(text: str) -> Report | None:
    """What ``-J`` wrote (nccl-tests 2.17.6 and newer); None where it cannot be used.
    Never raises.
    """
    try:
        document = json.loads(text)
        results = document["results"]
        rows = tuple(row for result in results if (row := _from_json(result)) is not None)
        count = document.get("out_of_bounds", {}).get("count")
        library = _library(str(document.get("nccl_version", "")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if len(rows) != len(results):
        return None
    bounds = (
        count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
    )
    return Report("", rows, bounds, None, library)


def _from_json(result: dict[str, Any]) -> PerfRow | None:
    halves = []
    for place in ("out_of_place", "in_place"):
        if (half := result.get(place)) is None:
            continue
        values = [half.get("time", half.get("cpu_time")), half["alg_bw"], half["bus_bw"]]
        time, algbw, busbw = (_number(str(value)) for value in values)
        wrong = half.get("nwrong")
        if (
            time is None
            or algbw is None
            or busbw is None
            or not isinstance(wrong, int | float | None)
        ):
            return None
        halves.append(Half(time, algbw, busbw, float(wrong) if wrong is not None else None))
    size, count = result["size"], result["count"]
    if not halves or type(size) is not int or type(count) is not int:
        return None
    return PerfRow(size, tuple(halves), True, count, str(result.get("type", "float")))


def _library(digits: str | None) -> str:
    """NCCL's version from its number: 22807 is 2.28.7, and 2708 was 2.7.8."""
    if not digits or not digits.isdecimal() or len(digits) > 6:
        return ""
    number = int(digits)
    if number < 10000:
        return f"{number // 1000}.{number // 100 % 10}.{number % 100}"
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _lines(output: str) -> Iterator[tuple[str, list[str]]]:
    """The tool's own lines, each with the header above it: launchers' prefixes and NCCL's words
    taken out, rows cut in two joined again.
    """
    begun, header = "", list[str]()
    for raw in output.splitlines():
        line = _NCCL.sub("", _LAUNCHER.sub("", _ESCAPES.sub("", raw))).strip()
        if not line:
            continue
        words = line.split()
        if words[0] == "#" and words[1:5] == _BEGINNING:
            header = [word for word in words[1:] if word != "timestamp"]
        if begun and not line.startswith("#"):
            words = [*begun.split(), *words]
            line = " ".join(words)
        begun = ""
        if words[0].isdecimal() and len(words) < 12 and _row(words, header) is None:
            begun = line
            continue
        yield line, header


def _row(words: list[str], header: Sequence[str]) -> PerfRow | None:
    dates = [i for i, word in enumerate(words) if _DATE.match(word)]
    words = [word for i, word in enumerate(words) if i not in dates and i - 1 not in dates]
    size, count = _int(words[0]) if words else None, _int(words[1]) if len(words) > 1 else None
    if not 12 <= len(words) <= 40 or size is None or count is None or not words[2].isidentifier():
        return None
    read = []
    for starts, width, counts in _layouts(len(words), header):
        halves = [
            _half(words[start : start + 3], words[start + width], counts=counts) for start in starts
        ]
        known = tuple(half for half in halves if half is not None)
        if len(known) == len(halves):
            read.append(PerfRow(size, known, counts, count, words[2]))
    # A further column behind the halves and one within each of them look alike: the numbers
    # themselves tell which it is.
    return next((row for row in read if not row.contradiction(None)), read[0] if read else None)


def _layouts(words: int, header: Sequence[str]) -> Iterator[tuple[list[int], int, bool]]:
    """Where each half may begin (time, algbw, busbw), how far behind that its wrong elements are,
    and whether they are counted.
    """
    counts = words != 12
    if header:
        starts = [
            i
            for i, n in enumerate(header)
            if n in _TIMES and list(header[i + 1 : i + 3]) == ["algbw", "busbw"]
        ]
        marks = [i for i, name in enumerate(header) if name in {"#wrong", "error"}]
        counts = "#wrong" in header
        if len(header) > words or len(starts) != 2 or len(marks) != 2:
            return
        if marks[0] - starts[0] == marks[1] - starts[1] and words <= len(header) + _TRAILING:
            yield starts, marks[0] - starts[0], counts
        if words == len(header):
            return
    head = 5 if counts else 4
    each = (words - head) // 2  # an odd word is a column behind the halves
    if each >= 4:
        yield [head, head + each], 3, counts


def _half(words: Sequence[str], mark: str, *, counts: bool) -> Half | None:
    time, algbw, busbw = (_number(word) for word in words)
    wrong = _number(mark)
    if time is None or algbw is None or busbw is None or (wrong is None and mark != "N/A"):
        return None
    return Half(time, algbw, busbw, wrong if counts else None)


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
