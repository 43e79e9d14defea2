"""From what the members reported to the next launch, the next probes, or the one verdict of all.
Pure: no clock, no I/O.

What the gang's own all-reduce says blames nobody: a verdict on the gang's bandwidth is not one on a
node, and where a sentence names a pod, it says where to look. That is what :mod:`.localise` is
asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, TypeVar

import msgspec

from . import (
    blame,
    equipment,
    fallback,
    floors,
    gate,
    localise,
    probing,
    syndrome,
    topology,
)
from .control.messages import (
    STAGES,
    Failure,
    Hello,
    LaunchOrder,
    Leaving,
    RankReport,
    RankStage,
    VerdictMessage,
)
from .control.rounds import LaunchRound, ProbeRound, Probes
from .localise import Zone
from .settings import DEFAULT_SIZE, Settings

T = TypeVar("T")
CONTRAST: Final = 1.1
"""Times the members' median, from which one member's own time stands out: all wait for each other,
so that healthy ones hardly differ.
"""
SUSPECTS: Final = 8
"""Names in a line of the log."""

ROUNDS: Final = 2
"""Launches at most: what may be an accident of starting (a port that was taken, a rank that was
killed) is tried once more.

One without topology files comes on top of them."""


@dataclass(frozen=True)
class JudgePlan:
    """What rank 0 brings to the decisions: its settings, ports, the seconds left, whether they
    allow another launch, a seed.

    ``now``: seconds on the clock of the rounds. ``spare``: seconds that a launch without topology
    files may take, 0 where it does not fit. ``say`` hears what the log should have besides the
    verdict.
    """

    settings: Settings
    ports: tuple[int, ...]
    timeout: float
    may_retry: bool = True
    spare: float = 0.0
    seed: int = 0
    now: float = 0.0
    say: Callable[[str], None] = lambda _: None


def next_step(
    plan: JudgePlan, hellos: Mapping[int, Hello], rounds: Sequence[LaunchRound | ProbeRound]
) -> LaunchOrder | Probes | VerdictMessage:
    """Another launch, a round of probes, or the end."""
    what = _next(plan, hellos, rounds)
    if not isinstance(what, VerdictMessage):
        return what
    launches = [played for played in rounds if isinstance(played, LaunchRound)]
    return _with_adapters(hellos, fallback.noted(launches[-1], what) if launches else what)


def _with_adapters(hellos: Mapping[int, Hello], verdict: VerdictMessage) -> VerdictMessage:
    """The failed gang's verdict with what members know of their own network adapters. It makes
    nothing fatal and blames nobody.
    """
    if verdict.outcome != "failed" or not (known := _ports(hellos)):
        return verdict
    adapters = "; ".join(
        f"{_who(hellos, rank)}: {'; '.join(texts)}" for rank, texts in known.items()
    )
    reported = {rank: verdict.named.get(rank, "") for rank in known}
    new = {
        rank: [text for text in texts if text not in reported[rank]]
        for rank, texts in known.items()
    }
    named = {
        rank: f"its network adapters: {'; '.join(texts)}" for rank, texts in new.items() if texts
    }
    named = blame.together(verdict.named, named)
    return msgspec.structs.replace(
        verdict, named=named, metadata=verdict.metadata | {"adapters": adapters}
    )


def _ports(hellos: Mapping[int, Hello]) -> dict[int, list[str]]:
    """By rank, what is wrong with a node's ports, as it says itself and beside the others."""
    lost = equipment.of_gang(hellos)
    adapters = {
        rank: [*hello.adapters, *(fault.sentence for fault in lost[rank].lost)]
        for rank, hello in sorted(hellos.items())
    }
    return {rank: texts for rank, texts in adapters.items() if texts}


def _next(
    plan: JudgePlan, hellos: Mapping[int, Hello], rounds: Sequence[LaunchRound | ProbeRound]
) -> LaunchOrder | Probes | VerdictMessage:
    launches = [played for played in rounds if isinstance(played, LaunchRound)]
    probed = [played for played in rounds if isinstance(played, ProbeRound)]
    if not launches:
        return first(plan, hellos)
    last = launches[-1]
    verdict, worth_another = judge(plan.settings, hellos, last)
    if not probed and (line := spread(last)):
        plan.say(line)
    number = len(rounds) + 1
    if not probed and worth_another and plan.may_retry and number <= min(ROUNDS, len(plan.ports)):
        plan.say(f"round {number}, because: {verdict.reason}")
        return _start(plan, hellos, number)
    if (fallen := fallback.verdict(hellos, last, verdict)) is not None:
        return fallen
    if topology.suspected(hellos, last, verdict):
        if not probed and plan.spare > 0:
            plan.say(f"round {number} without NCCL's topology file, because: {verdict.reason}")
            again = _start(plan, hellos, number)
            return msgspec.structs.replace(again, timeout=plan.spare, without_topology_file=True)
        verdict = topology.untried(hellos, verdict)
    if probed and probed[-1].left:
        return _left(probed[-1].left)
    if last.order.without_topology_file:
        verdict, final = topology.compared(
            hellos, gate.verdict(plan.settings, hellos, launches[-2]), last, verdict
        )
        if final:
            return verdict
    if (zoned := zone_of(plan.settings, hellos, last, plan.seed)) is None:
        return verdict
    return _localized(plan, hellos, last, probed, base=verdict, zoned=zoned)


def _localized(
    plan: JudgePlan,
    hellos: Mapping[int, Hello],
    last: LaunchRound,
    probed: Sequence[ProbeRound],
    *,
    base: VerdictMessage,
    zoned: tuple[Zone, float],
) -> Probes | VerdictMessage:
    zone, gbps = zoned
    shape = probing.EndpointMap.of(
        hellos, last.order, gate.ring_fabric(hellos, last.order), plan.settings.threshold
    )
    # gloo moves its data over whatever the pod's address is on.
    reports = [last.results, *(played.results for played in probed)]
    shape = shape.counted(reports, ports=last.order.backend == "nccl")
    state = localise.State(
        shape.endpoints, plan.seed, layout=localise.Layout(plan.settings.layout)
    ).after_gang(zone, gbps, _corrupted(shape, hellos, last, zone))
    state = probing.replay(state, shape, hellos, last.order, probed)
    until = probing.last_start(shape, probed, plan.now, plan.timeout)
    step, in_time = localise.next(state, plan.now, until), True
    if isinstance(step, localise.Round):
        hung = zone in {Zone.HANG, Zone.ERROR}
        probes = probing.next_probes(
            step,
            shape,
            hellos,
            last.order,
            probed,
            left=plan.timeout,
            hung=hung,
            launched=last.ready_after,
        )
        if probes is not None:
            number = last.number + len(probed) + 1
            if not probed:
                if (
                    zone is Zone.WRONG
                    and (culprit := syndrome.gang(last.order.world, hellos, last.results))
                    is not None
                ):
                    plan.say(f"the sum: {culprit.sentence}")
                    plan.say(f"likelihoods: {json.dumps({'sum': culprit.odds})}")
                plan.say(f"looking for the cause: {base.reason}")
                plan.say(shape.summary())
            waits = f", in {step.wait:.0f} s" if step.wait >= 1 else ""
            suspects = ", ".join(
                shape.endpoints[member].name for member in localise.suspected(state)[:SUSPECTS]
            )
            plan.say(
                f"round {step.number} of localisation: {len(probes.groups)} probe(s), {step.phase}, at most {probes.timeout:.1f} s"
                f"{waits}{f'; suspected so far: {suspects}' if suspects else ''}"
            )
            return replace(probes, round=number)
        step, in_time = probing.finish(state), False
    for line in localise.matrix(state, step):
        plan.say(f"edges| {line}")
    scores = {
        shape.endpoints[suspect.member].name: suspect.score.figures()
        for suspect in step.suspects
        if suspect.score is not None
    }
    if scores:
        plan.say(f"likelihoods: {json.dumps(scores)}")
    return blame.verdict(base, zone, blame.Localized(step, shape, probing.causes(probed), in_time))


def _corrupted(
    shape: probing.EndpointMap, hellos: Mapping[int, Hello], last: LaunchRound, zone: Zone
) -> int:
    """The node whose part of the gang's own sum was wrong, -1 where that is not known."""
    culprit = syndrome.gang(last.order.world, hellos, last.results) if zone is Zone.WRONG else None
    return shape.endpoint(culprit.member) if culprit is not None and culprit.rank >= 0 else -1


def zone_of(
    settings: Settings, hellos: Mapping[int, Hello], last: LaunchRound, seed: int
) -> tuple[Zone, float] | None:
    """Where the gang's own all-reduce stands, and its GB/s; None where nothing is to be localised.

    That is: it passed, somebody could not take part, or what it says is known already. A gang that
    moves its data by gloo and has no floor is not compared among itself: the machines under it are
    shared, and it says nothing about hardware. Without a floor, nothing says that the gang is slow:
    its nodes are compared where its own ranks' times differ, and in a share of starts that ``seed``
    chooses.
    """
    if last.left or last.lost:
        return None
    if any(result.wrong for result in last.results.values()):
        return Zone.WRONG, 0.0
    if troubles := [
        result.trouble for result in last.results.values() if result.trouble is not None
    ]:
        of_links = all(
            trouble.kind in {"peer", "class"} and trouble.code != "WORKER_ERROR"
            for trouble in troubles
        )
        return (Zone.ERROR, 0.0) if of_links else None
    if len(last.results) < len(hellos):
        silent = any(last.stages[rank].silent for rank in last.stages if rank not in last.results)
        hung = all(last.is_ready(rank) for rank in hellos) and not silent
        return (Zone.HANG, 0.0) if hung else None
    held = gate.compare_with_floor(settings, hellos, last)
    if held.zone is Zone.PASSED:
        return None
    if held.floor is None and (
        last.order.backend != "nccl" or not _curious(settings, hellos, last, seed)
    ):
        return None
    return held.zone, held.busbw


def _curious(settings: Settings, hellos: Mapping[int, Hello], last: LaunchRound, seed: int) -> bool:
    """Whether a gang without a floor is compared: a member stands out, or it is its turn."""
    middles = sorted(median(result.times) for result in last.results.values())
    if middles[-1] > CONTRAST * middles[len(middles) // 2]:
        return True
    return localise.chance(seed) < settings.localize_share / 100


def first(plan: JudgePlan, hellos: Mapping[int, Hello]) -> LaunchOrder | VerdictMessage:
    """The first round, unless somebody cannot take part or the members do not fit together."""
    for rank, hello in sorted(hellos.items()):
        if (trouble := hello.trouble) is not None:
            outcome = "skipped" if trouble.code in {"MIG", "GPU_SHARED"} else "inconclusive"
            return VerdictMessage(outcome, trouble.code, f"{_who(hellos, rank)}: {trouble.text}")
    backends = {hello.backend for hello in hellos.values()}
    if len(backends) > 1:
        each = ", ".join(
            f"{_who(hellos, rank)} {hello.backend}" for rank, hello in sorted(hellos.items())
        )
        return VerdictMessage(
            "inconclusive",
            "MEMBERS_DIFFER",
            f"the members would use different backends: {each}; set NCCL_ALLREDUCE_BACKEND.",
        )
    return _start(plan, hellos, 1)


def _start(plan: JudgePlan, hellos: Mapping[int, Hello], number: int) -> LaunchOrder:
    settings, backend = plan.settings, hellos[0].backend
    return LaunchOrder(
        round=number,
        master_port=plan.ports[min(number, len(plan.ports)) - 1],
        backend=backend,
        size=settings.size or DEFAULT_SIZE[backend],
        iterations=settings.iterations,
        warmup=settings.warmup,
        world=sum(hello.workers for hello in hellos.values()),
        timeout=plan.timeout,
        op=settings.op,
    )


def remarks(settings: Settings, hellos: Mapping[int, Hello], start: LaunchOrder) -> list[str]:
    """What the log should say about the members' adapters and the floor before the measurement."""
    adapters = [
        f"warning: {_who(hellos, rank)}: network adapter {text}"
        for rank, texts in _ports(hellos).items()
        for text in texts
    ]
    return adapters + _of_floor(settings, hellos, start)


def _of_floor(settings: Settings, hellos: Mapping[int, Hello], start: LaunchOrder) -> list[str]:
    row = gate.table_row(hellos, start)
    if settings.threshold is None:
        if row is None:
            then = (
                "only a contrast between its nodes fails"
                if start.backend == "nccl"
                else "its measurement fails nobody in"
            )
            return [f"no floor: {gate.no_row(hellos, start)}; the gang {then}"]
        alone = "" if row.corroborated else ", one source alone: it fails nobody by itself"
        return [
            f"floor {row.floor:g} GB/s, {row.expected:g} expected, from the table ({row.source}){alone}"
        ]
    lines = [f"floor {settings.threshold:g} GB/s from NCCL_ALLREDUCE_THRESHOLD_GBPS"]
    if row is not None and settings.threshold < row.floor / 2:
        lines.append(
            f"warning: NCCL_ALLREDUCE_THRESHOLD_GBPS is less than half of this hardware's floor of {row.floor:g} GB/s; a gang at a fraction of its speed passes"
        )
    return lines


def judge(
    settings: Settings, hellos: Mapping[int, Hello], last: LaunchRound
) -> tuple[VerdictMessage, bool]:
    """(the verdict on one round, whether another round might end better)."""
    if last.left:
        return _left(last.left), False
    wrong = {rank: result for rank, result in last.results.items() if result.wrong}
    if wrong:
        return _wrong_data(hellos, last, wrong), False
    if last.lost:
        each = "; ".join(f"{_who(hellos, rank)}: {why}" for rank, why in sorted(last.lost.items()))
        return VerdictMessage(
            "inconclusive", "MEMBER_LOST", f"the check of {each}; look at that pod first."
        ), False
    troubles = {
        rank: result.trouble for rank, result in last.results.items() if result.trouble is not None
    }
    if troubles:
        return _troubled(hellos, troubles)
    if len(last.results) < len(hellos):
        return _unfinished(hellos, last)
    return gate.verdict(settings, hellos, last), False


def _left(left: Mapping[int, Leaving]) -> VerdictMessage:
    _, leaving = _first(left)
    return VerdictMessage("inconclusive", leaving.code, leaving.reason)


def _wrong_data(
    hellos: Mapping[int, Hello], last: LaunchRound, wrong: Mapping[int, RankReport]
) -> VerdictMessage:
    elements = sum(result.wrong for result in wrong.values())
    _, result = _first(wrong)
    whole = (
        "every member"
        if len(wrong) == len(hellos)
        else ", ".join(_who(hellos, rank) for rank in sorted(wrong))
    )
    seen = f"{elements} element(s) of the all-reduce were wrong, seen by {whole}, first by {result.where}"
    verdict = VerdictMessage(
        "failed",
        "WRONG_DATA",
        f"{seen}.",
        metadata={"wrong_elements": str(elements), "first": result.where, "seen_by": whole},
    )
    culprit = syndrome.gang(last.order.world, hellos, last.results)
    return (
        verdict
        if culprit is None
        else blame.by_syndrome(msgspec.structs.replace(verdict, reason=seen), culprit)
    )


_ORDER = ("environment", "device", "died", "refused", "launch", "class", "peer")


def _explains(trouble: Failure) -> str:
    """Its kind; but that nobody answers at a peer's address is what the survivors of a rank that
    ended say too.
    """
    return "refused" if trouble.code == "BOOTSTRAP" else trouble.kind


def _troubled(
    hellos: Mapping[int, Hello], troubles: Mapping[int, Failure]
) -> tuple[VerdictMessage, bool]:
    """Errors, in the order in which they explain each other: a survivor's complaint says nothing
    about the survivor.
    """
    rank, trouble = min(
        troubles.items(), key=lambda item: (_ORDER.index(_explains(item[1])), item[0])
    )
    text = f"{_who(hellos, rank)}: {trouble.text}"
    if trouble.kind == "environment":
        return VerdictMessage("inconclusive", trouble.code, f"{text}."), False
    if trouble.kind == "launch":
        return VerdictMessage(
            "inconclusive", trouble.code, f"torchrun could not bring the ranks together; {text}."
        ), True
    if trouble.code == "WORKER_ERROR":
        return VerdictMessage("inconclusive", trouble.code, f"{text}."), False
    metadata = {"kind": trouble.kind, "pod": hellos[rank].pod, "detail": trouble.text}
    verdict = VerdictMessage("failed", trouble.code, f"{text}.", metadata=metadata)
    if trouble.kind == "device":
        verdict = _of_devices(hellos, troubles, verdict)
    return verdict, trouble.kind in {"died", "peer"}


def _of_devices(
    hellos: Mapping[int, Hello], troubles: Mapping[int, Failure], verdict: VerdictMessage
) -> VerdictMessage:
    """Each node's own word on its own device, unless many say it at once."""
    codes = {
        hellos[rank].node: trouble.code
        for rank, trouble in sorted(troubles.items(), reverse=True)
        if trouble.kind == "device"
    }
    same = {
        rank: codes[hello.node] for rank, hello in sorted(hellos.items()) if hello.node in codes
    }
    if len(codes) <= localise.many(len({hello.node for hello in hellos.values()})):
        return msgspec.structs.replace(verdict, blamed=same)
    reason = f"{verdict.reason[:-1]}; {len(codes)} nodes report a device fault at the same moment, so that one cause is likely, and none is blamed."
    return msgspec.structs.replace(verdict, reason=reason)


def _unfinished(hellos: Mapping[int, Hello], last: LaunchRound) -> tuple[VerdictMessage, bool]:
    stages = {
        rank: RankStage("done") if rank in last.results else last.stages.get(rank, RankStage())
        for rank in sorted(hellos)
    }
    silent = [rank for rank, stage in stages.items() if stage.silent]
    if silent:
        each = ", ".join(_who(hellos, rank) for rank in silent)
        return VerdictMessage(
            "failed",
            "RANK_STALLED",
            f"a worker of {each} gave no sign of life; was it stopped? See its node.",
            metadata={"pod": hellos[silent[0]].pod},
        ), False
    behind = min(stages.values(), key=_how_far)
    names = ", ".join(_who(hellos, rank) for rank, stage in stages.items() if stage == behind)
    if _how_far(behind) < _how_far(RankStage("ready")):
        where = {"waiting": "did not launch", "launched": "did not reach the rendezvous"}
        what = where.get(behind.name, "did not open the communicator")
        return VerdictMessage(
            "inconclusive",
            "RENDEZVOUS_FAILED",
            f"{names} {what} in time; may the pods reach each other on every port?",
        ), True
    place = (
        f"after iteration {behind.iteration}" if behind.iteration else "before the first iteration"
    )
    all_alike = len(set(stages.values())) == 1
    who = (
        f"every rank stopped {place}"
        if all_alike
        else f"{names} stopped {place}, the others further on"
    )
    return VerdictMessage(
        "inconclusive",
        "ALLREDUCE_STALLED",
        f"the all-reduce did not end in time: {who}; raise CHECK_TIMEOUT if this hardware is just slow.",
    ), False


def spread(last: LaunchRound) -> str:
    """How long the gang's iterations took, for the log: each as long as on its slowest rank. Empty
    where some did not end.
    """
    times = [result.times for result in last.results.values()]
    if not times or not all(times):
        return ""
    each = sorted(floors.slowest(times))
    middle = median(each)
    return (
        f"round {last.number}: {len(each)} iterations, each by its slowest rank: median {middle * 1e3:.3f} ms, "
        f"{each[0] * 1e3:.3f} to {each[-1] * 1e3:.3f} ms, a spread of {(each[-1] - each[0]) / middle:.0%}"
    )


def _who(hellos: Mapping[int, Hello], rank: int) -> str:
    hello = hellos.get(rank)
    return hello.who if hello is not None else f"rank {rank}"


def _how_far(stage: RankStage) -> tuple[int, int]:
    return (STAGES.index(stage.name) if stage.name in STAGES else 0), stage.iteration


def _first(by_rank: Mapping[int, T]) -> tuple[int, T]:
    rank = min(by_rank)
    return rank, by_rank[rank]
