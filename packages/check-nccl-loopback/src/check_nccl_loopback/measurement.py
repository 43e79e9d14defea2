"""One run of `all_reduce_perf`, read: how fast, how right, or what went wrong."""

from __future__ import annotations

from dataclasses import dataclass

from preflight_proto.check.nccl import NcclError, classify

from . import parse

__all__ = ["Measurement", "read"]

WRONG_STATUSES = frozenset({1, 7})
"""How a run with wrong data exits: 1 until nccl-tests 2.17.0, 7 from 2.17.6."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """``busbw`` in GB/s is the better half of the row of exactly ``size`` bytes, since faults only slow things down.

    ``wrong`` counts wrong elements, None where nothing was verified. Without ``busbw`` the run gave no result: ``error`` says why
    where its output does, ``too_big`` that the GPUs' memory does not suffice for ``size``, ``status`` is the exit status
    (negative for a signal), ``said`` the last words; ``stuck`` that not even SIGKILL ended it.
    """

    size: int
    busbw: float | None = None
    wrong: float | None = None
    error: NcclError | None = None
    too_big: bool = False
    timed_out: bool = False
    stuck: bool = False
    status: int = 0
    said: str = ""
    version: str = ""

    @property
    def right(self) -> bool:
        """It ran to its end and every element was verified."""
        return self.busbw is not None and self.wrong == 0


def read(
    stdout: str, stderr: str, status: int, size: int, *, timed_out: bool = False, stuck: bool = False
) -> Measurement:
    """What a run that was asked for ``size`` bytes has shown. Never raises."""
    report = parse.parse(stdout)
    row = report.row(size)
    said = _last_words(stdout, stderr)
    if timed_out:
        return Measurement(size, timed_out=True, stuck=stuck, status=status, said=said, version=report.version)
    wrong = _wrong(report, row)
    if row is not None and (status == 0 or (status in WRONG_STATUSES and wrong)):
        best = max(half.busbw for half in row.halves)
        return Measurement(size, best, wrong, status=status, said=said, version=report.version)
    error = classify(f"{stdout}\n{stderr}")
    reduced = row is None and report.reduced_to is not None and report.reduced_to < size
    out_of_memory = error is not None and error.code == "GPU_MEMORY"
    too_big = out_of_memory or (reduced and (error is None or status == 0))
    return Measurement(size, None, None, error, too_big, status=status, said=said, version=report.version)


def _wrong(report: parse.Report, row: parse.Row | None) -> float | None:
    """Wrong elements: the row's own count and the tail's, whichever is more."""
    if row is None:
        return None
    if not row.counts_wrong:
        return report.out_of_bounds  # the oldest era's column is a deviation; only the tail counts
    counts = [half.wrong for half in row.halves]
    if any(count is None for count in counts):
        return None
    return max(sum(count for count in counts if count is not None), report.out_of_bounds or 0)


def _last_words(stdout: str, stderr: str) -> str:
    lines = [line.strip() for line in f"{stdout}\n{stderr}".splitlines() if line.strip(" #\t")]
    return lines[-1][:200] if lines else ""
