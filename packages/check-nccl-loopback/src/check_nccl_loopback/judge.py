"""What to measure next, or the verdict: a pure function of everything measured so far.

The shell runs a :class:`Step` and asks again; tests ask the very same function. Every step that
decides is run with a clean environment: the workload's variables are measured beside it and can
neither pass nor fail a node. A floor decides whether the run fails; only contrast between GPUs of
the node, or a device fault that CUDA or the driver names, accuses a GPU; everything else is about
the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from preflight_proto.check import Finding, Gpu, Outcome, Verdict
from preflight_proto.check.nccl import ErrorKind
from preflight_proto.check.settings import size_text

from . import localize, verdicts
from .floors import Floor
from .localize import Contrast, Mode, Pair
from .measurement import Measurement

SWEEP: Final = 256 << 20
"""Where ADR-026's sweep ends (`-b 8 -e 256M -f 2`), in bytes."""
SMALLER: Final = (256 << 20, 64 << 20)
"""Sizes to fall back to, in bytes, where the GPUs' memory does not suffice."""

LOCALIZABLE: Final = frozenset(
    {"NCCL_SYSTEM_ERROR", "NCCL_INTERNAL_ERROR", "NCCL_CUDA_ERROR", "NCCL_REMOTE_ERROR"}
)
"""Classes that may be some GPU's doing. Wrong usage and time-outs are nobody's."""

ALIKE: Final = (0.9, 1.1)
"""Rings alone are as fast as the whole run: then that went by rings too. NVLS makes a healthy node
faster by a quarter.
"""

COSTS: Final = 0.9
"""With the workload's variables less than this part of the clean run's bandwidth is reported to the
workload.
"""
_TOPOLOGY: Final = "NCCL_TOPO_FILE"
_SIGNALS: Final = {
    7: "; is /dev/shm large enough?",
    9: "; did it meet the container's memory limit?",
}
MOST_WISHES: Final = 4
"""So many variables are measured one by one."""


BY_TIME: Final = frozenset(
    {"BELOW_ONE_SOURCE", "NCCL_HANG", "SLOW_GPU", "SLOW_NODE", "TOPOLOGY_FILE"}
)
"""What only the time that a run took says of a node."""
THROTTLED: Final = 0.1
"""With its CPUs taken away in more than this part of a run that decides, time says nothing about
the GPUs.
"""


class StepKind(StrEnum):
    """Why a step is taken."""

    ALL = "all GPUs"
    AGAIN = "all GPUs once more, because a dip is not a fault"
    NO_TOPOLOGY = "all GPUs without the topology file"
    RINGS = "all GPUs by rings alone (NCCL_NVLS_ENABLE=0)"
    PAIR = "two GPUs alone, to find which one it is"
    WITHOUT = "all GPUs but one, to find which one it is"
    TOPOLOGY = "all GPUs with the workload's topology file, which can only be right or slow"
    VARIABLES = "all GPUs with the workload's own variables, beside the run that decides"
    VARIABLE = "all GPUs with one of the workload's variables, to find which one costs"


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the tool: on ``gpus`` (numbers in the case's order), over ``size`` bytes, with or
    without some variables.

    ``sweep``: the sizes from 8 bytes on come first. ``variables``: names of the workload's
    variables that come along.
    """

    what: StepKind
    gpus: tuple[int, ...]
    size: int
    set_: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    sweep: bool = False

    @property
    def decides(self) -> bool:
        """Tell whether its result may fail a node."""
        return self.what not in {StepKind.VARIABLES, StepKind.VARIABLE}


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step and what came of it."""

    step: Step
    result: Measurement


@dataclass(frozen=True, slots=True)
class Progress:
    """All that is known.

    ``floors`` maps a size to its floor, for this hardware only. ``comparable``: every pair is
    joined alike by design; ``kinds`` says what joins each pair otherwise. ``variables`` are names
    of the workload's variables. ``lost`` are GPUs that the driver has lost, with its words;
    ``silent`` are those for which it does not answer while a tool cannot be ended;
    ``held`` are GPUs that processes of somebody else hold, with their number; ``signs`` are
    findings of the scan around the load, a second kind of evidence. ``throttled``: in which part of
    the time of a run that decides the container had no CPU left, at most. ``exhausted``: no time
    for further steps.
    """

    gpus: tuple[Gpu, ...]
    size: int
    floors: Mapping[int, Floor] = field(default_factory=dict)
    comparable: bool = False
    threshold: float | None = None
    variables: tuple[str, ...] = ()
    topology_file: str = ""
    shm: str = ""
    kinds: Mapping[Pair, str] = field(default_factory=dict)
    results: tuple[StepResult, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    signs: tuple[Finding, ...] = ()
    links: str = ""
    throttled: float = 0.0
    exhausted: bool = False

    @property
    def unlike(self) -> Mapping[Pair, str]:
        """``kinds``, where pairs may differ."""
        return {} if self.comparable else self.kinds

    @property
    def deciding(self) -> list[StepResult]:
        """The runs that may fail a node."""
        return [taken for taken in self.results if taken.step.decides]

    @property
    def full_runs(self) -> list[StepResult]:
        """The runs over all GPUs, at the size that is judged."""
        kept = [t for t in self.results if t.step.what in {StepKind.ALL, StepKind.AGAIN}]
        return [t for t in kept if t.step.size == kept[-1].step.size]

    @property
    def pairs(self) -> dict[Pair, Measurement]:
        """What each pair of GPUs came to."""
        return {
            (t.step.gpus[0], t.step.gpus[1]): t.result
            for t in self.results
            if t.step.what is StepKind.PAIR
        }

    @property
    def without(self) -> dict[int, Measurement]:
        """What all GPUs but one came to, by the one that was left out."""
        everyone = set(range(len(self.gpus)))
        return {
            min(everyone - set(t.step.gpus)): t.result
            for t in self.results
            if t.step.what is StepKind.WITHOUT
        }

    def of(self, what: StepKind) -> Measurement | None:
        """The result of the step taken for ``what``, if any."""
        return next((t.result for t in reversed(self.results) if t.step.what is what), None)

    def limit(self, size: int) -> float | None:
        """The least bandwidth in GB/s at ``size``: the operator's threshold is for the size that
        was asked for, whatever else is known.
        """
        if self.threshold is not None and size == self.size:
            return self.threshold
        return self.floors[size].floor if size in self.floors else None

    def signed(self, uuid: str | None) -> tuple[Finding, ...]:
        """The scan's hardware findings about one GPU, or about any of them."""
        return tuple(sign for sign in self.signs if uuid is None or sign.subject.gpu_uuid == uuid)


def decide(case: Progress) -> Step | Verdict:
    """The next step, or the verdict. Ends after a bounded number of steps,
    whatever they come to.
    """
    decided = _decide(case)
    if not isinstance(decided, Verdict) or decided.code not in BY_TIME:
        return decided
    if case.throttled > THROTTLED:
        # NCCL polls: without its CPUs it is slow, or seems to hang, on the healthiest node.
        return Verdict.inconclusive(
            "CPU_THROTTLED",
            f"the container had used up its CPU limit in {case.throttled:.0%} of the time, so nobody is blamed for {decided.code}; give the pod more CPU. "
            f"What was found: {decided.reason}",
        )
    named = {finding.subject.gpu_uuid for finding in decided.findings} - {None}
    if case.held and decided.outcome is Outcome.FAILED and (not named or named & case.held.keys()):
        return Verdict.inconclusive(
            "GPU_OCCUPIED",
            f"{_occupied(case)}, so nobody is blamed for {decided.code}. What was found: {decided.reason}",
        )
    return decided


def _decide(case: Progress) -> Step | Verdict:
    if not case.results:
        return _all(case, StepKind.ALL, case.size)
    if case.lost:
        return verdicts.lost(case.gpus, case.lost)
    for taken in case.results:  # a device fault is one in whatever run it shows
        if taken.result.stuck:
            return (
                verdicts.stuck(taken.result, case.silent)
                if case.silent
                else Verdict.inconclusive(
                    "TOOL_STUCK",  # contexts are torn down slowly, and it may wait for a disk
                    f'all_reduce_perf stays in the kernel (state D) after SIGKILL, although the driver answers for each GPU ("{taken.result.last_words}"); '
                    "see the node's dmesg.",
                )
            )
        if taken.result.error is not None and taken.result.error.kind is ErrorKind.DEVICE:
            return verdicts.device(case.gpus, taken.step.gpus, taken.result.error, case.signs)
    whole = case.full_runs
    if whole[-1].result.too_big:
        smaller = [size for size in SMALLER if size < whole[-1].step.size]
        if smaller and not case.exhausted:
            # A sweep of less than its own end asks for the memory that was not there.
            return replace(_all(case, StepKind.ALL, smaller[0]), sweep=smaller[0] >= SWEEP)
        return Verdict.inconclusive(
            "GPU_MEMORY",
            f"the GPUs' memory does not suffice for {size_text(whole[-1].step.size)}; find what else holds memory on them (nvidia-smi).",
        )
    if wrong := [t for t in case.deciding if t.result.wrong]:
        return _next_pair(case, "wrong") or verdicts.wrong(
            case.gpus, wrong[0].result, _contrast(case, "wrong")
        )
    broken = next((t for t in whole if t.result.busbw is None), None)
    if broken is not None:
        return _broken(case, broken)
    if any(t.result.wrong is None for t in whole):
        last = whole[-1].result  # a bandwidth without correctness is not a pass
        return Verdict.inconclusive(
            "NOT_VERIFIED",
            f'all_reduce_perf {last.version} compared no element ("{last.last_words}"); is it a patched build?',
        )
    decided = _speed(case, whole)
    if isinstance(decided, Step) or decided.outcome is not Outcome.PASSED:
        return decided
    return _with_workload_variables(case, decided)


def _speed(case: Progress, whole: list[StepResult]) -> Step | Verdict:
    """Every element is right; is it fast enough?"""
    size = whole[-1].step.size
    best = max(t.result.busbw or 0.0 for t in whole)
    limit, floor = case.limit(size), case.floors.get(size)
    bar = verdicts.Comparison(best, size, limit, floor, size < case.size)
    if limit is None:
        return _by_siblings(case, bar)
    if best >= limit:
        return verdicts.passed(case.gpus, bar)
    if not case.exhausted:
        if len(whole) < 2:
            return _all(case, StepKind.AGAIN, size)
        if case.topology_file and case.of(StepKind.NO_TOPOLOGY) is None:
            return _all(case, StepKind.NO_TOPOLOGY, size, unset=("NCCL_TOPO_FILE",))
    without_file = case.of(StepKind.NO_TOPOLOGY)
    if without_file is not None and without_file.right and (without_file.busbw or 0.0) >= limit:
        return verdicts.topology(case.gpus, bar, without_file.busbw or 0.0, case.topology_file)
    if _TOPOLOGY in case.variables and not case.topology_file:
        with_file = case.of(StepKind.TOPOLOGY)
        if with_file is None and not case.exhausted:
            return _all(case, StepKind.TOPOLOGY, size, variables=(_TOPOLOGY,))
        if with_file is not None and with_file.right and (with_file.busbw or 0.0) >= limit:
            return verdicts.passed(
                case.gpus, replace(bar, measured=with_file.busbw or 0.0), by_file=True
            )
    if (
        floor is not None
        and floor.no_nvls is not None
        and best >= floor.no_nvls
        and case.threshold is None
    ):
        rings = case.of(StepKind.RINGS)
        if rings is None and not case.exhausted:
            return _all(case, StepKind.RINGS, size, set_={"NCCL_NVLS_ENABLE": "0"})
        if (
            rings is not None
            and rings.right
            and ALIKE[0] * best < (rings.busbw or 0.0) < ALIKE[1] * best
        ):
            return verdicts.without_nvls(case.gpus, bar)
    if step := _next_pair(case, "slow"):
        return step
    contrast = _contrast(case, "slow")
    if not contrast.accused and (step := _next_group(case)):
        return step
    alone = localize.left_out(best, case.without)
    if not contrast.accused and alone is not None:
        return verdicts.slow_without(
            case.gpus, bar, alone, case.without[alone], case.signed(case.gpus[alone].uuid)
        )
    if (
        floor is not None
        and floor.advisory
        and case.threshold is None
        and not contrast.accused
        and not case.signs
    ):
        return _some_broken(case) or verdicts.unconfirmed(case.gpus, bar)
    return verdicts.slow(case.gpus, bar, contrast, case.pairs, case.signs, sure=case.comparable)


def _by_siblings(case: Progress, bar: verdicts.Comparison) -> Step | Verdict:
    """No floor is known: the GPUs of the node are each other's."""
    if step := _next_pair(case, "slow"):
        return step
    contrast = _contrast(case, "slow")
    if contrast.accused or contrast.links:
        return verdicts.slow(case.gpus, bar, contrast, case.pairs, case.signs, sure=case.comparable)
    return _some_broken(case) or verdicts.unknown(case.gpus, bar, sorted(case.floors))


def _some_broken(case: Progress) -> Step | Verdict | None:
    """Take a pass of all GPUs back where some of them alone came to no result."""
    for some in case.results:
        alone, result = some.step.what in {StepKind.PAIR, StepKind.WITHOUT}, some.result
        if alone and result.busbw is None and not result.too_big:
            return _broken(case, some)
    return None


def _broken(case: Progress, broken: StepResult) -> Step | Verdict:
    """A run gave no result."""
    result, error = broken.result, broken.result.error
    if result.timed_out:
        if step := _next_pair(case, "hang"):
            return step
        return verdicts.hung(case.gpus, result, _contrast(case, "hang"), case.pairs)
    if result.contradiction:
        return Verdict.inconclusive(
            "CONTRADICTORY_OUTPUT",
            f"all_reduce_perf {result.version} contradicts itself ({result.contradiction}); is it a patched build?",
        )
    if error is None:
        return _unexplained(result, case.shm)
    if error.kind is ErrorKind.ENVIRONMENT:
        room = f" ({case.shm})" if error.code == "SHM_FULL" and case.shm else ""
        return Verdict.inconclusive(
            error.code, f'{error.says}{room} ("{error.line}"); {error.fix}.'
        )
    if error.code not in LOCALIZABLE:
        return Verdict.inconclusive(
            error.code, f'{error.says} ("{error.line}"); no verdict about the GPUs.'
        )
    if case.held:
        return Verdict.inconclusive(
            "GPU_OCCUPIED", f'{error.says} ("{error.line}"), and {_occupied(case)}.'
        )
    if step := _next_pair(case, "error"):
        return step
    return verdicts.failed_class(case.gpus, error, _contrast(case, "error"), case.signs)


def _occupied(case: Progress) -> str:
    who = ", ".join(f"{uuid} ({number} process(es))" for uuid, number in sorted(case.held.items()))
    return f"somebody else's processes are on {who}; wait for them to end, or find them on the node (nvidia-smi)"


def _unexplained(result: Measurement, shm: str) -> Verdict:
    """It ended without a result and without a reason."""
    if result.status < 0 or result.status > 128:
        signal = -result.status if result.status < 0 else result.status - 128
        hint = _SIGNALS.get(signal, ".")
        return Verdict.inconclusive(
            "TOOL_KILLED",
            f'all_reduce_perf was ended by signal {signal} ("{result.last_words}", {shm}){hint}',
        )
    return Verdict.inconclusive(
        "NO_RESULT",
        f'all_reduce_perf exited {result.status} and has no result for {size_text(result.size)} ("{result.last_words}"); see the lines above.',
    )


def _with_workload_variables(case: Progress, passed: Verdict) -> Step | Verdict:
    """The node is healthy; what do the workload's own variables make of it?"""
    clean, wished = case.full_runs[-1], case.of(StepKind.VARIABLES)
    if not case.variables or (wished is None and case.exhausted):
        return passed
    size = clean.step.size
    if wished is None:
        return _all(case, StepKind.VARIABLES, size, variables=case.variables)
    best = max(t.result.busbw or 0.0 for t in case.full_runs)
    costly = wished.busbw is None or wished.busbw < COSTS * best
    alone = {
        t.step.variables[0]: t.result for t in case.results if t.step.what is StepKind.VARIABLE
    }
    left = (
        [name for name in case.variables[:MOST_WISHES] if name not in alone]
        if len(case.variables) > 1
        else []
    )
    if costly and left and not case.exhausted:
        return _all(case, StepKind.VARIABLE, size, variables=(left[0],))
    guilty = [
        name
        for name, measured in alone.items()
        if measured.busbw is None or measured.busbw < COSTS * best
    ]
    cost = verdicts.cost_of_variables(tuple(guilty) or case.variables, wished, best, costly=costly)
    return replace(passed, reason=f"{passed.reason} {cost}") if cost else passed


def _contrast(case: Progress, mode: Mode) -> Contrast:
    return localize.contrast(len(case.gpus), case.pairs, mode, case.unlike)


def _next_pair(case: Progress, mode: Mode) -> Step | None:
    if case.exhausted or (mode == "slow" and not case.comparable and not case.kinds):
        return None
    pair = localize.next_pair(len(case.gpus), case.pairs, mode, case.unlike)
    return Step(StepKind.PAIR, pair, case.full_runs[-1].step.size) if pair is not None else None


def _next_group(case: Progress) -> Step | None:
    """All GPUs but the next one that has not been left out yet: for a GPU that is slow only where
    many take part.
    """
    count, without = len(case.gpus), case.without
    left = [gpu for gpu in range(count) if gpu not in without]
    if case.exhausted or not case.comparable or count < 4 or not left:
        return None
    rest = tuple(gpu for gpu in range(count) if gpu != left[0])
    return Step(StepKind.WITHOUT, rest, case.full_runs[-1].step.size)


def _all(
    case: Progress,
    what: StepKind,
    size: int,
    *,
    set_: Mapping[str, str] | None = None,
    unset: tuple[str, ...] = (),
    variables: tuple[str, ...] = (),
) -> Step:
    sweep = what is StepKind.ALL and size.bit_count() == 1
    return Step(what, tuple(range(len(case.gpus))), size, set_ or {}, unset, variables, sweep)
