"""Gangs with every report made up: the leader's way over launches and rounds of probes to one
verdict, with no network and no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from check_nccl_allreduce import judge
from check_nccl_allreduce.control.messages import (
    Failure,
    Hello,
    LaunchOrder,
    Opened,
    RankReport,
    RankStage,
    Residuals,
    VerdictMessage,
)
from check_nccl_allreduce.control.rounds import LaunchRound, ProbeRound, Probes
from check_nccl_allreduce.settings import Settings
from leaf_gangs import DOWN

MIB = 1024**2
HEALTHY = 0.2
"""Seconds of one all-reduce between two good nodes."""
ROUND = 2.0
"""Seconds of one round of probes."""

Answer = Callable[[tuple[int, ...]], dict[int, RankReport | RankStage]]
"""What each member of a probe reports, or how far it got."""


def took(seconds: float, wrong: int = 0, residuals: tuple[Residuals, ...] = ()) -> RankReport:
    return RankReport(0, (seconds,) * 3, 4, wrong, residuals=residuals)


def slow(*bad: int, factor: float = 3.0) -> Answer:
    """These members' links are slow."""
    return lambda group: dict.fromkeys(
        group, took(HEALTHY * (factor if set(bad) & set(group) else 1))
    )


def hangs(bad: int) -> Answer:
    return lambda group: (
        dict.fromkeys(group, RankStage("measuring", 1))
        if bad in group
        else dict.fromkeys(group, took(HEALTHY))
    )


def spoils(bad: int) -> Answer:
    return lambda group: {rank: took(HEALTHY, wrong=int(bad in group)) for rank in group}


def troubled(bad: int, trouble: Failure) -> Answer:
    def answer(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        if bad not in group:
            return dict.fromkeys(group, took(HEALTHY))
        return {
            rank: RankReport(0, trouble=trouble) if rank == bad else RankStage("ready")
            for rank in group
        }

    return answer


@dataclass
class World:
    """A gang whose members answer as told. ``pods``: members on each node, of ``workers`` each;
    ``gang``: the gang's own answer.

    ``down``: nodes one of whose ports is.

    ``clock``: seconds of probing so far. ``files``: topology files, by rank; ``bare``: the gang's
    answer without them, for which there are ``spare`` seconds.
    """

    nodes: int
    answer: Answer
    gang: dict[int, RankReport | RankStage] | None = None
    pods: int = 1
    workers: int = 1
    backend: str = "gloo"
    threshold: float | None = 0.015
    left: float = 100.0
    files: Mapping[int, str] = field(default_factory=dict)
    contents: Mapping[int, str] = field(default_factory=dict)
    variables: Mapping[int, str] = field(default_factory=dict)
    bare: dict[int, RankReport | RankStage] | None = None
    spare: float = 0.0
    said: list[str] = field(default_factory=list)
    rounds: list[LaunchRound | ProbeRound] = field(default_factory=list)
    clock: float = 0.0
    down: tuple[int, ...] = ()
    single: tuple[int, ...] = ()
    """Nodes whose members have one worker each."""
    leaf: bool = False
    """Whether all nodes are behind one leaf, and the operator says so."""

    @property
    def size(self) -> int:
        return self.nodes * self.pods

    def hellos(self) -> dict[int, Hello]:
        return {
            rank: Hello(
                rank=rank,
                pod=f"pod-{rank}",
                node=f"node-{rank // self.pods}",
                backend=self.backend,
                workers=1 if rank // self.pods in self.single else self.workers,
                topology_file=self.files.get(rank, ""),
                topology_content=self.contents.get(rank, ""),
                variables=self.variables.get(rank, ""),
                topology={"network.topology.nvidia.com/leaf": "a"} if self.leaf else {},
                ports=(DOWN,) if rank // self.pods in self.down else (),
            )
            for rank in range(self.size)
        }

    def run(self) -> VerdictMessage:
        """The leader's way, with no network and no time."""
        gang: dict[int, RankReport | RankStage] = dict.fromkeys(range(self.size), took(5 * HEALTHY))
        gang = self.gang if self.gang is not None else gang
        while True:
            what = self.step()
            if isinstance(what, VerdictMessage):
                return what
            if isinstance(what, LaunchOrder):
                bare = self.bare if what.without_topology_file else None
                self.rounds.append(LaunchRound(what, *split(gang if bare is None else bare)))
            else:
                self.rounds.append(self.played(what))

    def step(self) -> LaunchOrder | Probes | VerdictMessage:
        """What the leader does next."""
        settings = Settings(
            threshold=self.threshold,
            size=4 * MIB,
            backend=self.backend,
            layout="leaf" if self.leaf else "",
        )
        plan = judge.JudgePlan(
            settings,
            (1, 2),
            self.left - self.clock,
            spare=self.spare,
            seed=7,
            now=self.clock,
            say=self.said.append,
        )
        return judge.next_step(plan, self.hellos(), self.rounds)

    def played(self, order: Probes) -> ProbeRound:
        answers = {rank: one for group in order.groups for rank, one in self.answer(group).items()}
        opened = {group[0]: Opened(order.round, 1, "here") for group in order.groups}
        self.clock += order.step.wait + ROUND
        return ProbeRound(order, *split(answers), opened=opened, at=self.clock, took=ROUND)

    def launches(self) -> list[LaunchOrder]:
        return [one.order for one in self.rounds if isinstance(one, LaunchRound)]

    def probes(self) -> list[ProbeRound]:
        return [one for one in self.rounds if isinstance(one, ProbeRound)]


def split(
    answers: dict[int, RankReport | RankStage],
) -> tuple[dict[int, RankReport], dict[int, RankStage]]:
    results = {rank: one for rank, one in answers.items() if isinstance(one, RankReport)}
    return results, {rank: one for rank, one in answers.items() if isinstance(one, RankStage)}


def sick(
    nodes: int,
    one: int = 1,
    answer: Answer | None = None,
    *,
    gang: dict[int, RankReport | RankStage] | None = None,
    pods: int = 1,
    workers: int = 2,
    threshold: float | None = 0.015,
    left: float = 100.0,
) -> World:
    """A gang one of whose nodes is slow, or answers otherwise, and whose port is down."""
    return World(
        nodes,
        answer or slow(*range(one * pods, (one + 1) * pods)),
        gang=gang,
        pods=pods,
        workers=workers,
        backend="nccl",
        threshold=threshold,
        left=left,
        down=(one,),
    )
