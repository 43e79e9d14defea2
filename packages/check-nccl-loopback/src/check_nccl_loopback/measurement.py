"""One run of `all_reduce_perf`, read: how fast, how right, or what went wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

from preflight_proto.check.nccl import NcclError, classify

from . import parse

WRONG_STATUSES = frozenset({1, 7})
"""How a run with wrong data exits: 1 until nccl-tests 2.17.0, 7 from 2.17.6."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """``busbw`` in GB/s is the better half of a row of exactly ``size`` bytes, since faults only
    slow things down; of several such rows the worst.

    ``wrong`` counts wrong elements over all sizes that ran, None where one was not verified; those
    that a run printed before it broke off count too.
    ``wrong_size`` is the smallest size with any. Without ``busbw`` the run gave no result:
    ``error`` says why where its output does, ``too_big`` that the GPUs' memory does not suffice for
    ``size``, ``contradiction`` that size, time and bandwidths of its rows do not agree, ``status``
    is the exit status (negative for a signal); ``stuck`` that not even SIGKILL ended it. ``curve``
    holds what each size reached.
    """

    size: int
    busbw: float | None = None
    wrong: float | None = None
    error: NcclError | None = None
    too_big: bool = False
    timed_out: bool = False
    stuck: bool = False
    status: int = 0
    last_words: str = ""
    version: str = ""
    contradiction: str = ""
    wrong_size: int | None = None
    library: str = ""
    curve: tuple[tuple[int, float], ...] = ()

    @property
    def right(self) -> bool:
        """It ran to its end and every element was verified."""
        return self.busbw is not None and self.wrong == 0


def read(
    stdout: str,
    stderr: str,
    status: int,
    size: int,
    *,
    timed_out: bool = False,
    stuck: bool = False,
    gpus: int | None = None,
    document: str = "",
) -> Measurement:
    """What a run over ``gpus`` GPUs that was asked for ``size`` bytes has shown; ``document`` is
    its JSON, if any. Never raises.
    """
    report = parse.parse(stdout)
    written = (parse.parse_json(document) if document else None) or parse.Report()
    rows = (*report.rows, *written.rows)
    # How a run ends takes nothing back of what it has compared; a garbled row compares nothing.
    before, before_size = _wrong(tuple(row for row in rows if not row.contradiction(gpus)), None)
    ended = Measurement(
        size,
        wrong=before or None,
        wrong_size=before_size,
        timed_out=timed_out,
        stuck=stuck,
        status=status,
        last_words=_last_words(stdout, stderr),
        version=report.version,
        library=report.library or written.library,
    )
    if timed_out:
        return ended
    asked = [row for row in rows if row.size == size]
    tails = [count for r in (report, written) if (count := r.out_of_bounds) is not None]
    wrong, wrong_size = _wrong(rows, max(tails, default=None))
    if asked and (status == 0 or (status in WRONG_STATUSES and wrong)):
        contradiction = next((why for row in asked if (why := row.contradiction(gpus))), "")
        if contradiction and not wrong:
            return replace(ended, wrong=None, wrong_size=None, contradiction=contradiction)
        curve = {row.size: max(half.busbw for half in row.halves) for row in rows}
        return replace(
            ended,
            busbw=min(max(half.busbw for half in row.halves) for row in asked),
            wrong=wrong,
            wrong_size=wrong_size,
            curve=tuple(sorted(curve.items())),
        )
    error = classify(f"{stdout}\n{stderr}")
    reduced = not asked and report.reduced_to is not None and report.reduced_to < size
    out_of_memory = error is not None and error.code == "GPU_MEMORY"
    too_big = out_of_memory or (reduced and (error is None or status == 0))
    return replace(ended, error=error, too_big=too_big and not before)


def _wrong(
    rows: tuple[parse.PerfRow, ...], out_of_bounds: int | None
) -> tuple[float | None, int | None]:
    """Wrong elements, and the smallest size with any: the rows' own counts and the tail's,
    whichever is more.
    """
    if any(not row.counts_wrong for row in rows):
        return out_of_bounds, None  # the oldest era's column is a deviation; only the tail counts
    by_row = {row.size: sum(half.wrong or 0 for half in row.halves) for row in rows}
    counted = max(sum(by_row.values()), out_of_bounds or 0)
    if not rows or (not counted and any(half.wrong is None for row in rows for half in row.halves)):
        return None, None
    return counted, min((size for size, count in by_row.items() if count), default=None)


def _last_words(stdout: str, stderr: str) -> str:
    lines = [line.strip() for line in f"{stdout}\n{stderr}".splitlines() if line.strip(" #\t")]
    return lines[-1][:200] if lines else ""
