"""Between the gang and :mod:`.localise`: members become endpoints, a round of pairs becomes probes,
reports become results. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from . import domains, equipment, floors, localise, tuning
from .control.messages import Detail, Failure, Hello, LaunchOrder, RankReport
from .control.rounds import ProbeRound, Probes
from .localise import FactKind, Status
from .ports import UNKNOWN, Local, bounded

TRIALS: Final = 3
WARMUP: Final = 1
INIT_SHARE: Final = 0.6
"""Of a round's time, for its communicators: eight GPUs load kernels for most of a minute."""
LONGER: Final = 1.5
"""Times what the longest round so far has taken, for one to come."""
AS_LAUNCHED: Final = 1.5
"""Times what the gang's own communicator took, for those of new workers, which load the same."""
LEAST_ROUND: Final = 1.0
"""Seconds; a round that has less is not begun."""

_OWN: Final = frozenset({"environment", "device", "died", "local"})
"""Kinds of trouble that say something of the member that has it, and nothing of others."""


@dataclass(frozen=True)
class EndpointMap:
    """The gang's nodes: ``endpoints``, and the ranks of the members (pods) on each. ``label``: of
    the nodes, that which says their domains.
    """

    endpoints: tuple[localise.Endpoint, ...]
    ranks: tuple[tuple[int, ...], ...]
    label: str = ""

    @classmethod
    def of(
        cls,
        hellos: Mapping[int, Hello],
        start: LaunchOrder,
        fabric: str | None = None,
        threshold: float | None = None,
    ) -> EndpointMap:
        """Members on the same node are one endpoint. ``fabric``: what all share; None where theirs
        differ or the gang has no floor.

        With NCCL two nodes must reach what a ring reaches on their wire, never what the gang must:
        trees and NVLS may exceed the wire, rings cannot. gloo has rings only, so that the gang's
        ``threshold`` holds for its pairs too.
        """
        nodes: dict[str, list[int]] = {}
        for rank, hello in sorted(hellos.items()):
            nodes.setdefault(hello.node or hello.pod, []).append(rank)
        endpoints: list[localise.Endpoint] = []
        adapters = equipment.of_gang(hellos)
        label, known, racks = domains.places(
            [hellos[ranks[0]].topology for ranks in nodes.values()],
            [hellos[ranks[0]].nvlink for ranks in nodes.values()],
        )
        for (node, ranks), domain in zip(nodes.items(), known, strict=True):
            hello, workers = hellos[ranks[0]], sum(hellos[rank].workers for rank in ranks)
            floor = threshold if start.backend == "gloo" else None
            if fabric and start.size in floors.SIZES:
                floor = floors.ring_floor(hello.model, workers, fabric)
            # A file or a variable may slow a healthy node: nodes with different ones are no more
            # comparable than different hardware.
            own = sorted({hellos[rank].variables for rank in ranks} - {""})
            if not start.without_topology_file:
                own += sorted({hellos[rank].topology_file for rank in ranks} - {""})
                own += sorted({hellos[rank].topology_content for rank in ranks} - {""})
            # What adapters can do says more than what they do: a node with a dead port, or one
            # less, stays comparable.
            kind = "/".join([hello.model, str(workers), adapters[ranks[0]].fabric, *own])
            nic = "/".join(sorted({adapters[rank].nic for rank in ranks}))
            rack = racks[len(endpoints)]
            endpoints.append(
                localise.Endpoint(
                    node,
                    kind,
                    domain,
                    pair_floor=floor,
                    nic=nic,
                    nvlink=rack,
                    local=equipment.of_node(hellos, adapters, ranks)
                    if start.backend == "nccl"
                    else UNKNOWN,
                )
            )
        return cls(tuple(endpoints), tuple(tuple(ranks) for ranks in nodes.values()), label)

    def counted(
        self, rounds: Iterable[Mapping[int, RankReport]], *, ports: bool = True
    ) -> EndpointMap:
        """The same, with what grew in these rounds, what passed in the silences before them and
        what GPUs said after them, each with its members' reports by rank. ``ports``: whether ports'
        errors count.
        """
        reports = list(rounds)
        endpoints = []
        for endpoint, ranks in zip(self.endpoints, self.ranks, strict=True):
            grew = equipment.errors(ranks, reports) if ports else UNKNOWN
            quiet = equipment.silence(ranks, reports)
            faults = bounded((*endpoint.local.faults, *equipment.devices(ranks, reports)))
            known = Local(faults, grew.errors, grew.counted, *quiet)
            endpoints.append(replace(endpoint, local=known))
        return replace(self, endpoints=tuple(endpoints))

    def summary(self) -> str:
        """What is known of the switches between the nodes, in a few words."""
        known = [endpoint.domain for endpoint in self.endpoints if endpoint.domain is not None]
        if not known:
            return "no topology label says which switch a node is behind"
        return f"{self.label} says of {len(known)} of {len(self.endpoints)} nodes which switch they are behind: {len(set(known))} in all"

    def members(self, endpoints: Sequence[int]) -> tuple[int, ...]:
        """The ranks on these nodes, ascending."""
        return tuple(sorted(rank for endpoint in endpoints for rank in self.ranks[endpoint]))

    def endpoint(self, rank: int) -> int:
        """The number of the endpoint that a rank belongs to. Raises StopIteration for none."""
        return next(i for i, ranks in enumerate(self.ranks) if rank in ranks)


def replay(
    state: localise.State,
    shape: EndpointMap,
    hellos: Mapping[int, Hello],
    start: LaunchOrder,
    rounds: Sequence[ProbeRound],
) -> localise.State:
    """The state after these rounds, in order, and after those that cannot be run here."""
    for played in rounds:
        state = _skipped(state, shape, hellos, start)
        step = localise.next(state)
        assert isinstance(step, localise.Round)
        state = state.after(step, outcomes(shape, played), played.at)
    return _skipped(state, shape, hellos, start)


def _skipped(
    state: localise.State, shape: EndpointMap, hellos: Mapping[int, Hello], start: LaunchOrder
) -> localise.State:
    """Nodes with a single GPU have no hairpin: nothing is learnt from it."""
    while (
        isinstance(step := localise.next(state), localise.Round)
        and step.phase is localise.Phase.HAIRPIN
    ):
        nodes = [probe.members[0] for probe in step.probes]
        if all(_workers(shape, hellos, start, node) for node in nodes):
            break
        last = state.rounds[-1].at if state.rounds else 0.0
        state = state.after(step, [localise.Result(Status.UNJUDGED)] * len(nodes), last)
    return state


def _workers(
    shape: EndpointMap, hellos: Mapping[int, Hello], start: LaunchOrder, node: int
) -> dict[int, int]:
    """By rank, each member's workers in its node's hairpin; empty where there can be none."""
    ranks = shape.ranks[node]
    whole = sum(hellos[rank].workers for rank in ranks)
    count = {
        rank: tuning.hairpin_workers(start.backend, hellos[rank].workers, whole) for rank in ranks
    }
    return count if all(count.values()) else {}


def last_start(shape: EndpointMap, rounds: Sequence[ProbeRound], now: float, left: float) -> float:
    """The last second at which a round may start that waits for another moment: those after it take
    as long as the longest so far.
    """
    to_come = localise.most_rounds(len(shape.endpoints)) - 1 - len(rounds)
    longest = max((played.took for played in rounds), default=0.0)
    return now + left - to_come * max(LEAST_ROUND, LONGER * longest)


def finish(state: localise.State) -> localise.Verdict:
    """The verdict on what is known; nothing is learnt from rounds that there is no time for."""
    last = state.rounds[-1].at if state.rounds else 0.0
    while isinstance(step := localise.next(state), localise.Round):
        state = state.after(step, [localise.Result(Status.UNJUDGED)] * len(step.probes), last)
    return step


def next_probes(
    step: localise.Round,
    shape: EndpointMap,
    hellos: Mapping[int, Hello],
    start: LaunchOrder,
    rounds: Sequence[ProbeRound],
    *,
    left: float,
    hung: bool,
    launched: float = 0.0,
) -> Probes | None:
    """The probes of one round; None when there is no time for it. ``left``: seconds for all rounds
    to come. ``hung``: the gang's own workers may sit in it still.

    ``launched``: seconds that the gang's communicator took to come up. New workers may take longer
    for theirs than a round's share of the time.
    """
    own = step.phase is not localise.Phase.HAIRPIN and _looped(step, shape, rounds)
    fresh = hung or own or any(_broke(played) for played in rounds)
    seconds = (left - step.wait) / (localise.most_rounds(len(shape.endpoints)) + 1 - step.number)
    if seconds < LEAST_ROUND:
        return None
    groups = tuple(shape.members(probe.members) for probe in step.probes)
    looped: dict[int, int] = {}
    if step.phase is localise.Phase.HAIRPIN:
        for probe in step.probes:
            looped |= _workers(shape, hellos, start, probe.members[0])
    bases: dict[int, int] = {}
    worlds = []
    for group in groups:
        count = 0
        for rank in group:
            bases[rank] = count
            count += looped.get(rank, hellos[rank].workers)
        worlds.append(count)
    detail = frozenset(
        i
        for i, (probe, group) in enumerate(zip(step.probes, groups, strict=True))
        if probe.detail and _halves(group, hellos)
    )
    init, timeout = INIT_SHARE * seconds, seconds
    if fresh or looped:
        init = max(init, AS_LAUNCHED * launched)
        timeout = min(left - step.wait, init + (1 - INIT_SHARE) * seconds)
    return Probes(
        round=0,
        groups=groups,
        bases=bases,
        worlds=tuple(worlds),
        backend=start.backend,
        size=start.size,
        iterations=TRIALS,
        warmup=WARMUP,
        init=min(init, timeout),
        timeout=timeout,
        fresh=fresh,
        op=start.op,
        detail=detail,
        hairpins=looped,
        wait=step.wait,
    )


def _broke(played: ProbeRound) -> bool:
    """Whether workers of this round may still sit in it."""
    asked = {rank for index in played.order.detail for rank in played.order.groups[index]}
    late = any(rank in asked and result.detail is None for rank, result in played.results.items())
    return late or played.troubled or len(played.results) < len(played.order.bases)


def _looped(step: localise.Round, shape: EndpointMap, rounds: Sequence[ProbeRound]) -> bool:
    """Whether members of this round have workers whose last round was a hairpin."""
    last = {
        rank: rank in played.order.hairpins
        for played in rounds
        for group in played.order.groups
        for rank in group
    }
    return any(
        last.get(rank, False) for probe in step.probes for rank in shape.members(probe.members)
    )


def _halves(group: Sequence[int], hellos: Mapping[int, Hello]) -> bool:
    """Whether each worker of one node has a counterpart on the other: alike members."""
    return len(group) == 2 and hellos[group[0]].workers == hellos[group[1]].workers


def outcomes(shape: EndpointMap, played: ProbeRound) -> list[localise.Result]:
    """One result for each probe of the round, in their order."""
    return [_outcome(shape, played, index) for index in range(len(played.order.groups))]


def _outcome(shape: EndpointMap, played: ProbeRound, index: int) -> localise.Result:
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
    rails, directions = (
        _detail(order.size, parts)
        if index in order.detail and len(parts) == len(group)
        else ((), None)
    )
    latency = max(result.latency for result in results) if order.backend == "nccl" else 0.0
    return localise.Result(
        Status.OK,
        _bandwidth(order, index, results),
        rails=rails,
        directions=directions,
        latency=latency,
    )


def _detail(
    size: int, parts: Sequence[Detail]
) -> tuple[tuple[float, ...], tuple[float, float] | None]:
    """GB/s of each rail and direction, as slow as the slower end saw it. Between two ranks, bus
    bandwidth is size / time.
    """
    there, back = max(part.there for part in parts), max(part.back for part in parts)
    rails = tuple(
        size / max(both) / 1e9 for both in zip(*(part.rails for part in parts), strict=True)
    )
    return rails, (size / there / 1e9, size / back / 1e9)


def _bandwidth(order: Probes, index: int, results: Sequence[RankReport]) -> float:
    return floors.bus_bandwidth(
        order.size, [result.times for result in results], order.worlds[index]
    )


def causes(rounds: Sequence[ProbeRound]) -> tuple[tuple[int, Failure], ...]:
    """The members' local troubles in these rounds, by rank, those of devices first."""
    failures = [cause for played in rounds for cause in _local(played, list(played.order.bases))]
    return tuple(sorted(failures, key=_devices_first))


def _own(shape: EndpointMap, played: ProbeRound, group: Sequence[int]) -> localise.Result | None:
    """A member's local cause, the strongest first: it says nothing of the other end."""
    for rank in group:
        if rank in played.lost:
            return localise.Result(
                Status.VOID,
                member=shape.endpoint(rank),
                cause=played.lost[rank],
                fact=FactKind.LOST,
            )
    failures = sorted(_local(played, group), key=_devices_first)
    for rank, trouble in failures:
        kind = FactKind.DEVICE if trouble.kind == "device" else FactKind.MEMBER
        return localise.Result(
            Status.VOID,
            member=shape.endpoint(rank),
            cause=f"{trouble.code}, {trouble.text}",
            fact=kind,
        )
    return None


def _devices_first(cause: tuple[int, Failure]) -> bool:
    return cause[1].kind != "device"


def _local(played: ProbeRound, ranks: Sequence[int]) -> Iterator[tuple[int, Failure]]:
    for rank in ranks:
        held, result, stage = (
            played.opened.get(rank),
            played.results.get(rank),
            played.stages.get(rank),
        )
        for trouble in (held.trouble if held else None, result.trouble if result else None):
            if trouble is not None and trouble.kind in _OWN:
                yield rank, trouble
        if result is None and stage is not None and stage.silent:
            yield rank, Failure("died", "RANK_STALLED", "a worker gave no sign of life for 5 s")
