"""Extenders and controllers over the world: each runs steps of the protocol, one request at a time,
and any of them may go wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.claim import Want
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core.bind import BindJob, bind
from preflight_gpu_scheduler.core.gangs import Assignment, acquire, may_bind, tell
from preflight_gpu_scheduler.core.gpu_selection import Chosen, Slot, choose
from preflight_gpu_scheduler.core.protocol import Answer, Look, Lost, Request, Steps, collect
from world import Key, World

GPUS = 2
SLOTS = tuple(Slot(n, "one", 450.0) for n in range(GPUS))


class Fate(Enum):
    """What happens to one request."""

    DONE = "done"
    ANSWER_LOST = "answer lost"
    LOST = "lost"
    LATE = "late"
    """No answer; the server gets it later, or never."""


@dataclass
class Actor:
    """``late`` is the wire's: requests that may still arrive."""

    steps: Steps[Any]
    late: list[Request]
    what: str = ""
    pending: tuple[Request, ...] = ()
    answers: dict[int, Answer] = field(default_factory=dict)
    finished: bool = False
    result: Any = None
    told: Callable[[Request, Answer], None] = lambda *_: None

    def __post_init__(self) -> None:
        self._go(None)

    def _go(self, answers: tuple[Answer, ...] | None) -> None:
        try:
            self.pending = next(self.steps) if answers is None else self.steps.send(answers)
            self.answers = {}
        except StopIteration as end:
            self.finished, self.result, self.pending = True, end.value, ()

    @property
    def open(self) -> list[int]:
        return [n for n in range(len(self.pending)) if n not in self.answers]

    def step(self, world: World, which: int, fate: Fate) -> None:
        """Let one of the requests under way meet its fate."""
        n = self.open[which % len(self.open)]
        request = self.pending[n]
        answer: Answer = Lost()
        if fate in {Fate.DONE, Fate.ANSWER_LOST}:
            found = world.perform(request)
            answer = found if fate is Fate.DONE else answer
        elif fate is Fate.LATE:
            self.late.append(request)
        self.answers[n] = answer
        self.told(request, answer)
        if not self.open:
            self._go(tuple(self.answers[n] for n in range(len(self.pending))))

    def finish(self, world: World) -> Any:
        while not self.finished:
            self.step(world, 0, Fate.DONE)
        return self.result


def chooser(want: int, busy: frozenset[int]) -> Callable[[frozenset[int], tuple[int, ...]], Chosen]:
    def pick(more: frozenset[int], own: tuple[int, ...]) -> Chosen:
        free = sum(1 << n for n in range(GPUS) if n not in busy | more or n in own)
        return choose(SLOTS, free, Want(count=want), own)

    return pick


def uuids(node: str) -> dict[int, str]:
    return {gpu: f"GPU-{node}-{gpu}" for gpu in range(GPUS)}


def own_leases(leases: Mapping[str, Lease], pod: Pod, node: str) -> dict[int, Lease]:
    mine = [lease for lease in leases.values() if lease.holder == pod.metadata.uid]
    return {gpu[1]: lease for lease in mine if (gpu := lease.gpu) is not None and gpu[0] == node}


def binder(
    world: World,
    late: list[Request],
    pod: Pod,
    node: str,
    want: int,
    *,
    back: int = 0,
    shown: bool = True,
    busy: frozenset[int] = frozenset(),
) -> Actor:
    """``shown``: whether the extender's mirror of leases shows the pod's own."""
    job = BindJob(
        pod=pod,
        node=node,
        own=own_leases(world.leases, pod, node) if shown else {},
        uuids=uuids(node),
    )
    return Actor(
        bind(job, chooser(want, busy), world.mirror(back)),
        late,
        f"bind {pod.metadata.uid} to {node}",
    )


def member(world: World, late: list[Request], pod: Pod, back: int) -> Actor | None:
    """The extender's way with a gang's member, by a mirror that may be behind, if all others were
    waiting with it.
    """
    mirror = world.mirror(back)
    shown = [holder.pod for key in world.past if (holder := mirror(key)).pod is not None]
    reserved = pod.reserved
    if reserved is None or not arrived(pod, shown):
        return None
    job = BindJob(
        pod=pod,
        node=reserved.node,
        own=own_leases(world.leases, pod, reserved.node),
        uuids=uuids(reserved.node),
        gang=True,
    )
    return Actor(
        bind(job, chooser(1, frozenset()), mirror), late, f"bind member {pod.metadata.uid}"
    )


def arrived(pod: Pod, shown: Iterable[Pod]) -> bool:
    """What :func:`may_bind` says where everybody of ``shown`` who may waits in its bind."""
    plans = [(one, one.reserved.plan) for one in shown if one.reserved is not None]
    plan, first = (pod.reserved.plan, pod.reserved.first_uid) if pod.reserved else ("", "")
    present = sum(plan == its and not (one.bound or one.ended) for one, its in plans)
    begun = any(one.metadata.uid == first and one.bound for one in shown)
    return may_bind(pod, present, begun)


def collector(
    world: World, late: list[Request], lease: Lease, *, back: int = 0, over: bool
) -> Actor:
    steps = collect(lease, world.mirror(back), over=over)
    return Actor(steps, late, f"collect {lease.metadata.name}")


def reserve(plan: Sequence[Assignment], look: Look) -> Steps[str]:
    """The extender locks, and then the controller tells who has what."""
    if why := (yield from acquire(plan, look)):
        return why
    return (yield from tell(plan))


def planner(
    world: World,
    late: list[Request],
    wanted: Mapping[Key, tuple[str, tuple[int, ...]]],
    *,
    back: int = 0,
) -> Actor | None:
    """``wanted``: node and ids for each member, as some plan has it."""
    mirror = world.mirror(back)
    pods = {key: mirror(key).pod for key in wanted}
    if any(
        pod is None or pod.bound or pod.ended or pod.deleting or pod.reserved
        for pod in pods.values()
    ):
        return None
    plan = [
        Assignment(pod=pod, node=wanted[key][0], ids=wanted[key][1])
        for key, pod in pods.items()
        if pod is not None
    ]
    return Actor(reserve(plan, mirror), late, f"reserve {sorted(wanted)}")


def sweep(world: World, *, over: bool) -> None:
    """The controller's sweep over all leases, in a world that is quiet, until nothing changes."""
    for _ in range(20):
        before = (dict(world.leases), dict(world.pods))
        for name in sorted(world.leases):
            if lease := world.leases.get(name):
                collector(world, [], lease, over=over).finish(world)
        if (world.leases, world.pods) == before:
            return
    raise AssertionError("collection does not come to an end")


def explained(world: World) -> list[str]:
    """Leases that no living pod explains."""
    living = {pod.metadata.uid: pod for pod in world.pods.values() if not pod.ended}
    return [lease.metadata.name for lease in world.leases.values() if lease.holder not in living]


def free_gpus(world: World, nodes: tuple[str, ...]) -> int:
    return sum(
        names.lease_name(node, gpu) not in world.leases for node in nodes for gpu in range(GPUS)
    )
