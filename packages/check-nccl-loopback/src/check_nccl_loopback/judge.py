"""What to measure next, or the verdict: a pure function of everything measured so far.

The shell runs a :class:`Step` and asks again; tests ask the very same function. A floor decides whether the run fails; only
contrast between pairs, or a device fault that CUDA or the driver names, accuses a GPU; everything else is about the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from preflight_proto.check import Gpu, Verdict
from preflight_proto.check.nccl import Kind

from . import localise, verdicts
from .floors import Floor
from .localise import Mode, Pair
from .measurement import Measurement

__all__ = ["SMALLER", "Case", "Step", "Taken", "What", "decide"]

SMALLER: Final = (256 << 20, 64 << 20)
"""Sizes to fall back to, in bytes, where the GPUs' memory does not suffice."""

LOCALISABLE: Final = frozenset({"NCCL_SYSTEM_ERROR", "NCCL_INTERNAL_ERROR", "NCCL_CUDA_ERROR", "NCCL_REMOTE_ERROR"})
"""Classes that may be some GPU's doing. Wrong usage and time-outs are nobody's."""

ALIKE: Final = (0.9, 1.1)
"""Rings alone are as fast as the whole run: then that went by rings too. NVLS makes a healthy node faster by a quarter."""


class What(StrEnum):
    """Why a step is taken."""

    ALL = "all GPUs"
    AGAIN = "all GPUs once more, because a dip is not a fault"
    NO_TOPOLOGY = "all GPUs without the topology file"
    RINGS = "all GPUs by rings alone (NCCL_NVLS_ENABLE=0)"
    PAIR = "two GPUs alone, to find which one it is"


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the tool: on ``gpus`` (numbers in the case's order), over ``size`` bytes, with or without some variables."""

    what: What
    gpus: tuple[int, ...]
    size: int
    set_: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """A step and what came of it."""

    step: Step
    result: Measurement


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known. ``floors`` maps a size to its floor, for this hardware only. ``lost`` are GPUs that the driver has lost, with its
    words. ``exhausted``: no time for further steps."""

    gpus: tuple[Gpu, ...]
    size: int
    floors: Mapping[int, Floor] = field(default_factory=dict)
    comparable: bool = False
    threshold: float | None = None
    unusual: tuple[str, ...] = ()
    topology_file: str = ""
    shm: str = ""
    taken: tuple[Taken, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    exhausted: bool = False

    @property
    def whole(self) -> list[Taken]:
        """The runs over all GPUs as the workload would run them, at the size that is judged."""
        kept = [t for t in self.taken if t.step.what in {What.ALL, What.AGAIN}]
        return [t for t in kept if t.step.size == kept[-1].step.size]

    @property
    def pairs(self) -> dict[Pair, Measurement]:
        """What each pair of GPUs came to."""
        return {(t.step.gpus[0], t.step.gpus[1]): t.result for t in self.taken if t.step.what is What.PAIR}

    def of(self, what: What) -> Measurement | None:
        """The result of the step taken for ``what``, if any."""
        return next((t.result for t in reversed(self.taken) if t.step.what is what), None)

    def limit(self, size: int) -> float | None:
        """The least bandwidth in GB/s at ``size``: the operator's threshold holds for the size that was asked for."""
        if self.threshold is not None and size == self.size:
            return self.threshold
        return self.floors[size].floor if size in self.floors else None


def decide(case: Case) -> Step | Verdict:
    """The next step, or the verdict. Ends after a bounded number of steps, whatever they come to."""
    if not case.taken:
        return _all(case, What.ALL, case.size)
    if case.lost:
        return verdicts.lost(case.gpus, case.lost)
    for taken in case.taken:  # a device fault is one in whatever run it shows
        if taken.result.stuck:
            return verdicts.stuck(taken.result)
        if taken.result.error is not None and taken.result.error.kind is Kind.DEVICE:
            return verdicts.device(case.gpus, taken.step.gpus, taken.result.error)
    whole = case.whole
    if whole[-1].result.too_big:
        smaller = [size for size in SMALLER if size < whole[-1].step.size]
        if smaller and not case.exhausted:
            return _all(case, What.ALL, smaller[0])
        return verdicts.memory(whole[-1].result)
    broken = next((t for t in whole if t.result.busbw is None), None)
    if broken is not None:
        return _broken(case, broken)
    wrong = next((t for t in case.taken if t.result.wrong and t.step.what is not What.PAIR), None)
    if wrong is not None:
        return _next_pair(case, "wrong") or verdicts.wrong(
            case.gpus, wrong.result, localise.contrast(len(case.gpus), case.pairs, "wrong")
        )
    if any(t.result.wrong is None for t in whole):
        return verdicts.not_verified(whole[-1].result)
    return _speed(case, whole)


def _speed(case: Case, whole: list[Taken]) -> Step | Verdict:
    """Every element is right; is it fast enough?"""
    size = whole[-1].step.size
    best = max(t.result.busbw or 0.0 for t in whole)
    limit, floor = case.limit(size), case.floors.get(size)
    bar = verdicts.Bar(best, size, limit, floor, size < case.size)
    if limit is None:
        return verdicts.unknown(case.gpus, bar, sorted(case.floors))
    if best >= limit:
        return verdicts.passed(case.gpus, bar)
    if case.unusual:
        return verdicts.custom(case.gpus, bar, case.unusual)
    if not case.exhausted:
        if len(whole) < 2:
            return _all(case, What.AGAIN, size)
        if case.topology_file and case.of(What.NO_TOPOLOGY) is None:
            return _all(case, What.NO_TOPOLOGY, size, unset=("NCCL_TOPO_FILE",))
    without_file = case.of(What.NO_TOPOLOGY)
    if without_file is not None and without_file.right and (without_file.busbw or 0.0) >= limit:
        return verdicts.topology(case.gpus, bar, without_file.busbw or 0.0, case.topology_file)
    if floor is not None and floor.no_nvls is not None and best >= floor.no_nvls and case.threshold is None:
        rings = case.of(What.RINGS)
        if rings is None and not case.exhausted:
            return _all(case, What.RINGS, size, set_={"NCCL_NVLS_ENABLE": "0"})
        if rings is not None and rings.right and ALIKE[0] * best < (rings.busbw or 0.0) < ALIKE[1] * best:
            return verdicts.without_nvls(case.gpus, bar)
    if case.comparable and (step := _next_pair(case, "slow")):
        return step
    found = localise.contrast(len(case.gpus), case.pairs, "slow") if case.comparable else localise.Contrast()
    return verdicts.slow(case.gpus, bar, found, case.pairs)


def _broken(case: Case, broken: Taken) -> Step | Verdict:
    """A run over all GPUs gave no result."""
    result, error = broken.result, broken.result.error
    if result.timed_out:
        return verdicts.hung(result)
    if error is None:
        return verdicts.unexplained(result, case.shm)
    if error.kind is Kind.ENVIRONMENT:
        return verdicts.environment(error, case.shm)
    if error.code not in LOCALISABLE:
        return verdicts.refused(error)
    return _next_pair(case, "error") or verdicts.failed_class(
        case.gpus, error, localise.contrast(len(case.gpus), case.pairs, "error")
    )


def _next_pair(case: Case, mode: Mode) -> Step | None:
    pair = None if case.exhausted else localise.next_pair(len(case.gpus), case.pairs, mode)
    return Step(What.PAIR, pair, case.whole[-1].step.size) if pair is not None else None


def _all(
    case: Case, what: What, size: int, *, set_: Mapping[str, str] | None = None, unset: tuple[str, ...] = ()
) -> Step:
    return Step(what, tuple(range(len(case.gpus))), size, set_ or {}, unset)
