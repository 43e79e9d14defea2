"""What is known of one pod's GPUs, and what was measured on them: plain data that the functions
which decide share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from preflight_proto.check import Finding, Gpu

from .floors import Floor
from .localize import Pair
from .measurement import Measurement

SWEEP: Final = 256 << 20
"""Where ADR-026's sweep ends (`-b 8 -e 256M -f 2`), in bytes."""
SMALLER: Final = (256 << 20, 64 << 20)
"""Sizes to fall back to, in bytes, where the GPUs' memory does not suffice."""


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
        """Whether its result may fail a node."""
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
