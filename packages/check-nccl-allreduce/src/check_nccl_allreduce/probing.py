"""Between the gang and :mod:`.localise`: members become endpoints, a round of pairs becomes probes,
reports become results. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from . import domains, equipment, floors, localise
from .control.messages import Failure, Hello, LaunchOrder, ProbeOrder, RankReport
from .control.rounds import LaunchRound, ProbeRound, Probes
from .localise import FactKind, Status
from .ports import UNKNOWN

TRIALS: Final = 3
WARMUP: Final = 1
INIT_SHARE: Final = 0.6
"""Of a round's time, for its communicators: eight GPUs load kernels for most of a minute."""
LONGER: Final = 1.5
"""Times what the longest round so far has taken, for one to come."""
AS_LAUNCHED: Final = 1.5
"""Times what the gang's own communicator took, for those of new workers, which load the same."""
BRIEF: Final = 1.0
"""Seconds for which a probe is as large as the gang's all-reduce: of a slower one it is a part, but
:data:`LEAST_SIZE` bytes, so that it ends in its round's time and is no hang."""
LEAST_SIZE: Final = 256 * 1024**2
FEWER: Final = 1 / 3
"""Of what a ring must reach by the table, what one of fewer bytes than the table's must: bandwidth
rises with the size, and of a gang that is so slow a slow pair is far below that too."""
LEAST_WORKERS: Final = 2
"""A hairpin has two ends."""
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
        size: int | None = None,
    ) -> EndpointMap:
        """Members on the same node are one endpoint. ``fabric``: what all share; None where theirs
        differ or the gang has no floor. ``size``: bytes of a probe, None for the gang's.

        With NCCL two nodes must reach what a ring reaches on their wire, never what the gang must:
        trees and NVLS may exceed the wire, rings cannot. gloo has rings only, so that the gang's
        ``threshold`` holds for its pairs too.
        """
        nodes: dict[str, list[Hello]] = {}
        for _, hello in sorted(hellos.items()):
            nodes.setdefault(hello.node or hello.pod, []).append(hello)
        endpoints: list[localise.Endpoint] = []
        adapters = equipment.of_gang(hellos)
        label, known, racks = domains.places(
            [pods[0].topology for pods in nodes.values()],
            [pods[0].nvlink for pods in nodes.values()],
        )
        for (node, pods), domain, rack in zip(nodes.items(), known, racks, strict=True):
            model, workers = pods[0].model, sum(pod.workers for pod in pods)
            floor = threshold if start.backend == "gloo" else None
            if fabric and start.size in floors.SIZES:
                floor = floors.ring_floor(model, workers, fabric)
                fewer = size is not None and size not in floors.SIZES
                floor = floor * FEWER if floor is not None and fewer else floor
            # A file or a variable may slow a healthy node: nodes with different ones are no more
            # comparable than different hardware.
            own = sorted({pod.variables for pod in pods} - {""})
            if not start.without_topology_file:
                own += sorted({pod.topology_file for pod in pods} - {""})
                own += sorted({pod.topology_content for pod in pods} - {""})
            # What adapters can do says more than what they do: a node with a dead port, or one
            # less, stays comparable.
            kind = "/".join([model, str(workers), adapters[pods[0].rank].fabric, *own])
            nic = "/".join(sorted({adapters[pod.rank].nic for pod in pods}))
            local = equipment.of_node(pods, adapters) if start.backend == "nccl" else UNKNOWN
            endpoint = localise.Endpoint(node, kind, domain, pair_floor=floor, nic=nic)
            endpoints.append(replace(endpoint, nvlink=rack, local=local))
        ranks = tuple(tuple(pod.rank for pod in pods) for pods in nodes.values())
        return cls(tuple(endpoints), ranks, label)

    def counted(
        self, rounds: Iterable[Mapping[int, RankReport]], *, ports: bool = True
    ) -> EndpointMap:
        """This map, with what nodes have come to know of themselves in these rounds, each with its
        members' reports by rank. ``ports``: whether ports' errors count.
        """
        reports = list(rounds)
        endpoints = tuple(
            replace(end, local=equipment.local(ranks, reports, end.local.faults, ports=ports))
            for end, ranks in zip(self.endpoints, self.ranks, strict=True)
        )
        return replace(self, endpoints=endpoints)

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
    state: localise.State, shape: EndpointMap, rounds: Sequence[ProbeRound]
) -> localise.State:
    """The state after these rounds, in order, and those before each of which nothing was learnt."""
    for played in rounds:
        for step in played.order.skipped:
            state = _unplayed(state, step)
        state = state.after(played.order.step, outcomes(shape, played), played.at)
    return state


def skip(
    state: localise.State, shape: EndpointMap, hellos: Mapping[int, Hello], start: LaunchOrder
) -> localise.State:
    """The state after those rounds, too, that cannot be run here: where all have a single GPU there
    is no hairpin, and nothing is learnt from it.
    """
    while isinstance(step := localise.next(state), localise.Round):
        nodes = [probe.members[0] for probe in step.probes]
        own = step.phase is localise.Phase.HAIRPIN
        if not own or any(_workers(shape, hellos, start, node) for node in nodes):
            break
        state = _unplayed(state, step)
    return state


def _unplayed(state: localise.State, step: localise.Round) -> localise.State:
    """The state after a round of which nothing is learnt."""
    last = state.rounds[-1].at if state.rounds else 0.0
    return state.after(step, [localise.Result(Status.UNJUDGED)] * len(step.probes), last)


def _workers(
    shape: EndpointMap, hellos: Mapping[int, Hello], start: LaunchOrder, node: int
) -> dict[int, int]:
    """By rank, each member's workers in its node's hairpin; empty where there can be none.

    gloo's are processes, as many as wanted; NCCL's have a GPU each, and one GPU makes no hairpin.
    """
    count = {rank: hellos[rank].workers for rank in shape.ranks[node]}
    if sum(count.values()) >= LEAST_WORKERS:
        return count if all(count.values()) else {}
    return dict.fromkeys(count, LEAST_WORKERS) if start.backend == "gloo" else {}


def last_start(shape: EndpointMap, rounds: Sequence[ProbeRound], now: float, left: float) -> float:
    """The last second at which a round may start that waits for another moment: those after it take
    as long as the longest so far.
    """
    to_come = localise.most_rounds(len(shape.endpoints)) - 1 - len(rounds)
    longest = max((played.took for played in rounds), default=0.0)
    return now + left - to_come * max(LEAST_ROUND, LONGER * longest)


def finish(state: localise.State) -> localise.Verdict:
    """The verdict on what is known; nothing is learnt from rounds that there is no time for."""
    while isinstance(step := localise.next(state), localise.Round):
        state = _unplayed(state, step)
    return step


def size_of(last: LaunchRound) -> int:
    """Bytes of the probes that follow this launch: the fewest where nobody has reported, for what
    does not end in the gang's time may be merely slow.
    """
    times = [median(each.times) for each in last.results.values() if each.times]
    share = BRIEF / max([BRIEF, *times]) if last.results else 0.0
    part = int(share * last.order.size) // 4 * 4
    return min(last.order.size, max(LEAST_SIZE, part))


def next_probes(
    step: localise.Round,
    shape: EndpointMap,
    hellos: Mapping[int, Hello],
    last: LaunchRound,
    rounds: Sequence[ProbeRound],
    *,
    left: float,
    hung: bool,
    skipped: Sequence[localise.Round] = (),
) -> Probes | None:
    """The probes of one round, but for hairpins of nodes that have none; None when there is no time
    for it. ``last``: the gang's launch;
    ``left``: seconds for all rounds to come. ``hung``: the gang's own workers may sit in it still.
    ``skipped``: the rounds just before it of which nothing was learnt.

    New workers may take longer for their communicator than a round's share of the time: as long as
    the gang's took.
    """
    start, hairpin = last.order, step.phase is localise.Phase.HAIRPIN
    seconds = (left - step.wait) / (localise.most_rounds(len(shape.endpoints)) + 1 - step.number)
    if seconds < LEAST_ROUND:
        return None
    nodes = [probe.members[0] for probe in step.probes]
    loops = {node: _workers(shape, hellos, start, node) for node in nodes} if hairpin else {}
    probes = [probe for probe in step.probes if not hairpin or loops[probe.members[0]]]
    groups = tuple(shape.members(probe.members) for probe in probes)
    own = not hairpin and _looped(groups, rounds)
    fresh = hung or own or any(_broke(played) for played in rounds)
    init, timeout = INIT_SHARE * seconds, seconds
    if fresh or hairpin:
        init = max(init, AS_LAUNCHED * last.ready_after)
        timeout = min(left - step.wait, init + (1 - INIT_SHARE) * seconds)
    number, size = last.number + len(rounds) + 1, size_of(last)
    orders: dict[int, ProbeOrder] = {}
    for index, (probe, group) in enumerate(zip(probes, groups, strict=True)):
        looped = loops.get(probe.members[0], {})
        workers = {rank: hellos[rank].workers for rank in group} | looped
        base = 0
        for rank, count in workers.items():
            orders[rank] = ProbeOrder(
                round=number,
                index=index,
                base=base,
                world=sum(workers.values()),
                host="",
                port=0,
                backend=start.backend,
                size=size,
                iterations=TRIALS,
                warmup=WARMUP,
                init=min(init, timeout),
                timeout=timeout,
                fresh=fresh,
                detail=probe.detail and _halves(group, hellos),
                hairpin=looped.get(rank, 0),
            )
            base += count
    return Probes(number, groups, orders, step, tuple(skipped))


def _broke(played: ProbeRound) -> bool:
    """Whether workers of this round may still sit in it."""
    orders, results = played.order.orders, played.results
    detailed = (results[rank] for rank, order in orders.items() if order.detail and rank in results)
    late = any(result.detail is None for result in detailed)
    return late or played.troubled or len(results) < len(orders)


def _looped(groups: Sequence[Sequence[int]], rounds: Sequence[ProbeRound]) -> bool:
    """Say whether workers of these probes had a hairpin as their last round."""
    last: dict[int, bool] = {}
    for played in rounds:
        last |= {rank: order.hairpin > 0 for rank, order in played.order.orders.items()}
    return any(last.get(rank) for group in groups for rank in group)


def _halves(group: Sequence[int], hellos: Mapping[int, Hello]) -> bool:
    """Whether each worker of one node has a counterpart on the other: alike members."""
    return len(group) == 2 and hellos[group[0]].workers == hellos[group[1]].workers


def outcomes(shape: EndpointMap, played: ProbeRound) -> list[localise.Result]:
    """One result for each probe of the round, in their order."""
    return [_outcome(shape, played, probe) for probe in played.order.step.probes]


def _outcome(shape: EndpointMap, played: ProbeRound, probe: localise.Probe) -> localise.Result:
    group = shape.members(probe.members)
    if (order := played.order.orders.get(group[0])) is None:  # a node that has no hairpin
        return localise.Result(Status.UNJUDGED)
    if (own := _own(shape, played, group)) is not None:
        return own
    results = [played.results[rank] for rank in group if rank in played.results]
    if any(result.wrong for result in results):
        return localise.Result(Status.WRONG)
    ready = all(played.is_ready(rank) for rank in group)
    troubles = [result.trouble for result in results if result.trouble is not None]
    if troubles:
        broken = ready and not any(_apart(trouble) for trouble in troubles)
        return localise.Result(Status.ERROR if broken else Status.UNJUDGED)
    if len(results) < len(group):
        return localise.Result(Status.HANG if ready else Status.UNJUDGED)
    times = [result.times for result in results]
    gbps = floors.bus_bandwidth(order.size, times, order.world)
    latency = max(result.latency for result in results) if order.backend == "nccl" else 0.0
    measured = localise.Result(Status.OK, gbps, latency=latency)
    parts = [result.detail for result in results if result.detail is not None]
    if not order.detail or len(parts) < len(group):
        return measured
    # As slow as the slower end saw it; between two ranks, bus bandwidth is size / time.
    size = order.size / 1e9
    there, back = max(part.there for part in parts), max(part.back for part in parts)
    rails = tuple(size / max(both) for both in zip(*(part.rails for part in parts), strict=True))
    return measured._replace(rails=rails, directions=(size / there, size / back))


def causes(rounds: Sequence[ProbeRound]) -> tuple[tuple[int, Failure], ...]:
    """The members' local troubles in these rounds, by rank, the strongest first."""
    failures = [cause for played in rounds for cause in _local(played, list(played.order.orders))]
    return tuple(sorted(failures, key=_strongest))


def _own(shape: EndpointMap, played: ProbeRound, group: Sequence[int]) -> localise.Result | None:
    """A member's local cause, the strongest first: it says nothing of the other end."""
    void = localise.Result(Status.VOID)
    for rank in group:
        if (why := played.lost.get(rank)) is not None:
            return void._replace(member=shape.endpoint(rank), cause=why, fact=FactKind.LOST)
    for rank, trouble in sorted(_local(played, group), key=_strongest):
        kind = FactKind.DEVICE if trouble.kind == "device" else FactKind.MEMBER
        cause = f"{trouble.code}, {trouble.text}"
        return void._replace(member=shape.endpoint(rank), cause=cause, fact=kind)
    return None


def _strongest(cause: tuple[int, Failure]) -> bool:
    """Devices first."""
    return cause[1].kind != "device"


def _apart(trouble: Failure) -> bool:
    """Tell whether the ends did not come together: that is the way between them, or who should have
    answered, and nothing that the one who says it has by itself.
    """
    return trouble.kind == "launch" or trouble.code == "BOOTSTRAP"


def _local(played: ProbeRound, ranks: Sequence[int]) -> Iterator[tuple[int, Failure]]:
    for rank in ranks:
        answers = (played.opened.get(rank), played.results.get(rank))
        for trouble in (answer.trouble for answer in answers if answer is not None):
            if trouble is not None and trouble.kind in _OWN and not _apart(trouble):
                yield rank, trouble
        stage = played.stages.get(rank)
        if rank not in played.results and stage is not None and stage.silent:
            yield rank, Failure("died", "RANK_STALLED", "a worker gave no sign of life for 5 s")
