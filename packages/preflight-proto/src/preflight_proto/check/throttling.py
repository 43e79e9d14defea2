"""Whether the container was kept from its CPUs: by the kernel's own count, as the limit is the
pod's author's to choose.

What polls, as NCCL does, is slow without its CPUs whatever the GPUs are like, so a speed measured
then accuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

FOLDERS: Final = (
    Path("/sys/fs/cgroup"),
    Path("/sys/fs/cgroup/cpu"),
    Path("/sys/fs/cgroup/cpu,cpuacct"),
)
"""Where a container finds its own group: version 2, and the names that version 1 has."""


class Periods(NamedTuple):
    """Of the scheduler (`cpu.stat`, Documentation/admin-guide/cgroup-v2.rst): how many there have
    been, and in how many the group had used up its limit before the end. Both are 0 without a
    limit."""

    all: int = 0
    throttled: int = 0


def read(folders: Iterable[Path] = FOLDERS) -> Periods:
    """The container's count so far; zeros where there is none, or it cannot be read."""
    for folder in folders:
        try:
            text = (folder / "cpu.stat").read_text(errors="replace")
        except OSError:
            continue
        stat = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        if "nr_periods" in stat:
            return Periods(_number(stat["nr_periods"]), _number(stat.get("nr_throttled", "")))
    return Periods()


def part(before: Periods, after: Periods) -> float:
    """In which part of the periods between two looks it was throttled, 0 to 1."""
    periods = after.all - before.all
    return min(max(after.throttled - before.throttled, 0) / periods, 1.0) if periods > 0 else 0.0


def _number(text: str) -> int:
    word = text.strip()
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 20 else 0
