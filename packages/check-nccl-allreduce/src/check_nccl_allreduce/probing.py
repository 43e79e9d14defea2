"""Between the gang and :mod:`.localise`: members become endpoints, a round of pairs becomes probes, reports become results. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from . import domains, floors, localise
from .control.messages import Detail, Hello, Result, Start, Trouble
from .control.rounds import ProbeRound, Probes
from .localise import FactKind, Status

__all__ = ["Map", "causes", "finish", "next_probes", "replay", "seen"]

TRIALS: Final = 3
WARMUP: Final = 1
INIT_SHARE: Final = 0.6
"""Of a round's time, for its communicators to come up: eight GPUs load kernels for most of a minute."""
LEAST_ROUND: Final = 1.0
"""Seconds; a round that has less is not begun."""

_OWN: Final = frozenset({"environment", "device", "died", "local"})
"""Kinds of trouble that say something of the member that has it, and nothing of the others of its probe."""


@dataclass(frozen=True)
class Map:
    """The gang's nodes: ``endpoints``, and the ranks of the members (pods) on each. ``label``: of the nodes, that which says their domains."""

    endpoints: tuple[localise.Endpoint, ...]
    ranks: tuple[tuple[int, ...], ...]
    label: str = ""

    @classmethod
    def of(cls, hellos: Mapping[int, Hello], start: Start, threshold: float | None) -> Map:
        """Members on the same node are one endpoint. Two nodes must reach what the gang must, else what the table says of two."""
        nodes: dict[str, list[int]] = {}
        for rank, hello in sorted(hellos.items()):
            nodes.setdefault(hello.node or hello.pod, []).append(rank)
        made = []
        label, known = domains.choose([hellos[ranks[0]].topology for ranks in nodes.values()])
        for (node, ranks), domain in zip(nodes.items(), known, strict=True):
            hello, workers = hellos[ranks[0]], sum(hellos[rank].workers for rank in ranks)
            row = floors.find(hello.model, workers, hello.fabric, 2, start.size)
            floor = threshold if threshold is not None else row.floor if row is not None else None
            # A file may slow a healthy node: nodes with different ones are no more comparable than different hardware.
            own = [] if start.without_topology_file else sorted({hellos[rank].topology_file for rank in ranks} - {""})
            kind = "/".join([hello.model, str(workers), hello.fabric, *own])
            made.append(localise.Endpoint(node, kind, domain, pair_floor=floor))
        return cls(tuple(made), tuple(tuple(ranks) for ranks in nodes.values()), label)

    def told(self) -> str:
        """What is known of the switches between the nodes, in a few words."""
        known = [one.domain for one in self.endpoints if one.domain is not None]
        if not known:
            return "no topology label says which switch a node is behind"
        return f"{self.label} says of {len(known)} of {len(self.endpoints)} nodes which switch they are behind: {len(set(known))} in all"

    def members(self, endpoints: Sequence[int]) -> tuple[int, ...]:
        """The ranks on these nodes, ascending."""
        return tuple(sorted(rank for one in endpoints for rank in self.ranks[one]))

    def endpoint(self, rank: int) -> int:
        return next(i for i, ranks in enumerate(self.ranks) if rank in ranks)


def replay(state: localise.State, shape: Map, rounds: Sequence[ProbeRound]) -> localise.State:
    """The state after these rounds, the first one first."""
    for played in rounds:
        step = localise.next(state)
        assert isinstance(step, localise.Round)
        state = state.after(step, seen(shape, played))
    return state


def finish(state: localise.State) -> localise.Verdict:
    """The verdict on what is known, with nothing learnt from the rounds that there is no time for."""
    while isinstance(step := localise.next(state), localise.Round):
        state = state.after(step, [localise.Result(Status.UNJUDGED)] * len(step.probes))
    return step


def next_probes(
    step: localise.Round,
    shape: Map,
    hellos: Mapping[int, Hello],
    start: Start,
    rounds: Sequence[ProbeRound],
    *,
    left: float,
    hung: bool,
) -> Probes | None:
    """The probes of one round; None when there is no time for it. ``left``: seconds for all rounds to come. ``hung``: the gang's own workers may sit in it still."""
    fresh = hung or any(_broke(played) for played in rounds)
    seconds = left / (localise.MAX_ROUNDS + 1 - step.number)
    if seconds < LEAST_ROUND:
        return None
    groups = tuple(shape.members(probe.members) for probe in step.probes)
    bases: dict[int, int] = {}
    worlds = []
    for group in groups:
        count = 0
        for rank in group:
            bases[rank] = count
            count += hellos[rank].workers
        worlds.append(count)
    detail = frozenset(
        i
        for i, (probe, group) in enumerate(zip(step.probes, groups, strict=True))
        if probe.detail and _halves(group, hellos)
    )
    return Probes(
        round=0,
        groups=groups,
        bases=bases,
        worlds=tuple(worlds),
        backend=start.backend,
        size=start.size,
        iterations=TRIALS,
        warmup=WARMUP,
        init=INIT_SHARE * seconds,
        timeout=seconds,
        fresh=fresh,
        op=start.op,
        detail=detail,
    )


def _broke(played: ProbeRound) -> bool:
    """Whether workers of this round may still sit in it."""
    asked = {rank for index in played.order.detail for rank in played.order.groups[index]}
    late = any(rank in asked and result.detail is None for rank, result in played.results.items())
    return late or played.troubled or len(played.results) < len(played.order.bases)


def _halves(group: Sequence[int], hellos: Mapping[int, Hello]) -> bool:
    """Whether each worker of one node has a counterpart on the other: one member each, with equally many."""
    return len(group) == 2 and hellos[group[0]].workers == hellos[group[1]].workers


def seen(shape: Map, played: ProbeRound) -> list[localise.Result]:
    """One result for each probe of the round, in their order."""
    return [_seen(shape, played, index) for index in range(len(played.order.groups))]


def _seen(shape: Map, played: ProbeRound, index: int) -> localise.Result:
    order, group = played.order, played.order.groups[index]
    if (own := _own(shape, played, group)) is not None:
        return own
    results = [played.results[rank] for rank in group if rank in played.results]
    if any(result.wrong for result in results):
        return localise.Result(Status.WRONG)
    ready = all(played.is_ready(rank) for rank in group)
    troubles = [result.trouble for result in results if result.trouble is not None]
    if troubles:
        broken = ready and any(trouble.kind != "launch" for trouble in troubles)
        return localise.Result(Status.ERROR if broken else Status.UNJUDGED)
    if len(results) < len(group):
        return localise.Result(Status.HANG if ready else Status.UNJUDGED)
    parts = [result.detail for result in results if result.detail is not None]
    rails, directions = _detail(order.size, parts) if index in order.detail and len(parts) == len(group) else ((), None)
    return localise.Result(Status.OK, _bandwidth(order, index, results), rails=rails, directions=directions)


def _detail(size: int, parts: Sequence[Detail]) -> tuple[tuple[float, ...], tuple[float, float] | None]:
    """GB/s of each rail and direction, as slow as the slower end saw it. Between two ranks, bus bandwidth is size / time."""
    there, back = max(part.there for part in parts), max(part.back for part in parts)
    rails = tuple(size / max(both) / 1e9 for both in zip(*(part.rails for part in parts), strict=True))
    return rails, (size / there / 1e9, size / back / 1e9)


def _bandwidth(order: Probes, index: int, results: Sequence[Result]) -> float:
    return floors.bus_bandwidth(order.size, [result.times for result in results], order.worlds[index])


def causes(rounds: Sequence[ProbeRound]) -> tuple[tuple[int, Trouble], ...]:
    """The members' local troubles in these rounds, by rank, those of devices first."""
    found = [one for played in rounds for one in _local(played, list(played.order.bases))]
    return tuple(sorted(found, key=_devices_first))


def _own(shape: Map, played: ProbeRound, group: Sequence[int]) -> localise.Result | None:
    """A member's local cause, the strongest first: it says nothing of the other end."""
    for rank in group:
        if rank in played.lost:
            return localise.Result(
                Status.VOID, member=shape.endpoint(rank), cause=played.lost[rank], fact=FactKind.LOST
            )
    found = sorted(_local(played, group), key=_devices_first)
    for rank, trouble in found:
        kind = FactKind.DEVICE if trouble.kind == "device" else FactKind.MEMBER
        return localise.Result(
            Status.VOID, member=shape.endpoint(rank), cause=f"{trouble.code}, {trouble.text}", fact=kind
        )
    return None


def _devices_first(one: tuple[int, Trouble]) -> bool:
    return one[1].kind != "device"


def _local(played: ProbeRound, ranks: Sequence[int]) -> Iterator[tuple[int, Trouble]]:
    for rank in ranks:
        held, result, stage = played.opened.get(rank), played.results.get(rank), played.stages.get(rank)
        for trouble in (held.trouble if held else None, result.trouble if result else None):
            if trouble is not None and trouble.kind in _OWN:
                yield rank, trouble
        if result is None and stage is not None and stage.silent:
            yield rank, Trouble("died", "RANK_STALLED", "a worker gave no sign of life for 5 s")
