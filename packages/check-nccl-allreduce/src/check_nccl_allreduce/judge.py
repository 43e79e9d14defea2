"""From what the members reported to the next launch, the next probes, or the one verdict of all.
Pure: no clock, no I/O.

What the gang's own all-reduce says blames nobody: a verdict on the gang's bandwidth is not one on a
node, and where a sentence names a pod, it says where to look. That is what :mod:`.localise` is
asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgspec

from . import (
    blame,
    equipment,
    gate,
    localise,
    probing,
    syndrome,
)
from .control.messages import (
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

CONTRAST: Final = 1.1
"""Times the members' median, from which one member's own time stands out: all wait for each other,
so that healthy ones hardly differ.
"""
SUSPECTS: Final = 8
"""Names in a line of the log."""

_SKIPPED: Final = frozenset({"MIG", "GPU_SHARED"})
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
    launches = [played for played in rounds if isinstance(played, LaunchRound)]
    if not launches:
        return first(plan, hellos)
    probed = [played for played in rounds if isinstance(played, ProbeRound)]
    what = _next(plan, hellos, launches, probed)
    if not isinstance(what, VerdictMessage):
        return what
    return _with_adapters(hellos, gate.with_networks(launches[-1], what))


def _with_adapters(hellos: Mapping[int, Hello], verdict: VerdictMessage) -> VerdictMessage:
    """The failed gang's verdict with what members know of their own network adapters. It makes
    nothing fatal and blames nobody.
    """
    if verdict.outcome != "failed" or not (known := _ports(hellos)):
        return verdict
    named, adapters = dict(verdict.named), []
    for rank, texts in known.items():
        adapters.append(f"{hellos[rank].who}: {'; '.join(texts)}")
        known_already = verdict.named.get(rank, "")
        if new := "; ".join(text for text in texts if text not in known_already):
            already = f"{known_already}; " if known_already else ""
            named[rank] = f"{already}its network adapters: {new}"
    metadata = verdict.metadata | {"adapters": "; ".join(adapters)}
    return msgspec.structs.replace(verdict, named=named, metadata=metadata)


def _ports(hellos: Mapping[int, Hello]) -> dict[int, list[str]]:
    """By rank, what is wrong with a node's ports, as it says itself and beside the others."""
    lost = equipment.of_gang(hellos)
    adapters = {
        rank: [*hello.adapters, *(fault.sentence for fault in lost[rank].lost)]
        for rank, hello in sorted(hellos.items())
    }
    return {rank: texts for rank, texts in adapters.items() if texts}


def _next(
    plan: JudgePlan,
    hellos: Mapping[int, Hello],
    launches: Sequence[LaunchRound],
    probed: Sequence[ProbeRound],
) -> LaunchOrder | Probes | VerdictMessage:
    last = launches[-1]
    verdict, worth_another = judge(plan.settings, hellos, last)
    code = verdict.code
    number = len(launches) + len(probed) + 1
    if not probed and worth_another and plan.may_retry and number <= min(ROUNDS, len(plan.ports)):
        plan.say(f"round {number}, because: {verdict.reason}")
        return _start(plan, hellos, number)
    if (fallen := gate.fallen_back(hellos, last, verdict)) is not None:
        return fallen
    if gate.may_be_its_file(hellos, last, verdict):
        if not probed and plan.spare > 0:
            plan.say(f"round {number} without NCCL's topology file, because: {verdict.reason}")
            again = _start(plan, hellos, number)
            return msgspec.structs.replace(again, timeout=plan.spare, without_topology_file=True)
        verdict = gate.untried(hellos, verdict)
    if probed and probed[-1].left:
        return _left(probed[-1].left)
    if last.order.without_topology_file:
        verdict, final = gate.compared(
            hellos, gate.verdict(plan.settings, hellos, launches[-2]), last, verdict
        )
        if final:
            return verdict
    if (zoned := zone_of(plan, hellos, last, code)) is None:
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
        hellos,
        last.order,
        gate.ring_fabric(hellos, last.order),
        plan.settings.threshold,
        probing.size_of(last),
    )
    # gloo moves its data over whatever the pod's address is on.
    reports = [last.results, *(played.results for played in probed)]
    shape = shape.counted(reports, ports=last.order.backend == "nccl")
    state = localise.State(shape.endpoints, plan.seed, layout=localise.Layout(plan.settings.layout))
    culprit = syndrome.gang(last.order.world, hellos, last.results) if zone is Zone.WRONG else None
    whose = shape.endpoint(culprit.member) if culprit is not None and culprit.rank >= 0 else -1
    state = state.after_gang(zone, gbps, whose)
    done = probing.replay(state, shape, probed)
    state = probing.skip(done, shape, hellos, last.order)
    skipped = [played.round for played in state.rounds[len(done.rounds) :]]
    until = probing.last_start(shape, probed, plan.now, plan.timeout)
    step, in_time = localise.next(state, plan.now, until), True
    if isinstance(step, localise.Round):
        hung = zone in {Zone.HANG, Zone.ERROR}
        probes = probing.next_probes(
            step, shape, hellos, last, probed, left=plan.timeout, hung=hung, skipped=skipped
        )
        if probes is not None:
            if not probed:
                if culprit is not None:
                    plan.say(f"the sum: {culprit.sentence}")
                    plan.say(f"likelihoods: {json.dumps({'sum': culprit.odds})}")
                plan.say(f"looking for the cause: {base.reason}")
                plan.say(shape.summary())
            waits = f", in {step.wait:.0f} s" if step.wait >= 1 else ""
            ends = localise.suspected(state)[:SUSPECTS]
            suspects = ", ".join(shape.endpoints[end].name for end in ends)
            plan.say(
                f"round {step.number} of localisation: {len(probes.groups)} probe(s), {step.phase}, at most {probes.common.timeout:.1f} s"
                f"{waits}{f'; suspected so far: {suspects}' if suspects else ''}"
            )
            return probes
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


def zone_of(
    plan: JudgePlan, hellos: Mapping[int, Hello], last: LaunchRound, code: str
) -> tuple[Zone, float] | None:
    """Where the gang's own all-reduce stands, of which the verdict's ``code`` is this, and its
    GB/s; None where nothing is to be localised.

    That is: it passed, somebody could not take part, or what it says is known already. A gang that
    moves its data by gloo and has no floor is not compared among itself: the machines under it are
    shared, and it says nothing about hardware. Without a floor, nothing says that the gang is slow:
    its nodes are compared where its own ranks' times differ.
    """
    if last.left or last.lost:
        return None
    if code == "WRONG_DATA":
        return Zone.WRONG, 0.0
    if troubles := [each.trouble for each in last.results.values() if each.trouble is not None]:
        of_links = all(
            trouble.kind in {"peer", "class"} and trouble.code != "WORKER_ERROR"
            for trouble in troubles
        )
        return (Zone.ERROR, 0.0) if of_links else None
    if len(last.results) < len(hellos):
        return (Zone.HANG, 0.0) if code == "ALLREDUCE_STALLED" else None
    held = gate.compare_with_floor(plan.settings, hellos, last)
    if held.zone is Zone.PASSED:
        return None
    if held.floor is None:  # a member stands out
        middles = sorted(median(result.times) for result in last.results.values())
        apart = middles[-1] > CONTRAST * middles[len(middles) // 2]
        if last.order.backend != "nccl" or not apart:
            return None
    return held.zone, held.busbw


def first(plan: JudgePlan, hellos: Mapping[int, Hello]) -> LaunchOrder | VerdictMessage:
    """The first round, unless somebody cannot take part or the members do not fit together. That a
    member is skipped does not let another one through, whose trouble is not known to be harmless.
    """
    troubles = {rank: hello.trouble for rank, hello in hellos.items() if hello.trouble is not None}
    if troubles:
        skipped, rank = min((each.code in _SKIPPED, rank) for rank, each in troubles.items())
        outcome, trouble = "skipped" if skipped else "inconclusive", troubles[rank]
        return VerdictMessage(outcome, trouble.code, f"{hellos[rank].who}: {trouble.text}")
    if len({hello.backend for hello in hellos.values()}) > 1:
        each = ", ".join(f"{hello.who} {hello.backend}" for _, hello in sorted(hellos.items()))
        why = f"the members would use different backends: {each}; set NCCL_ALLREDUCE_BACKEND."
        return VerdictMessage("inconclusive", "MEMBERS_DIFFER", why)
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
    )


def warnings(settings: Settings, hellos: Mapping[int, Hello], start: LaunchOrder) -> list[str]:
    """What the log should say about the members' adapters and the floor before the measurement."""
    lines = [
        f"warning: {hellos[rank].who}: network adapter {text}"
        for rank, texts in _ports(hellos).items()
        for text in texts
    ]
    row, threshold = gate.table_row(hellos, start), settings.threshold
    if threshold is not None and row is not None and threshold < row.floor / 2:
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
    if wrong := {rank: result for rank, result in last.results.items() if result.wrong}:
        return _wrong_data(hellos, last, wrong), False
    if last.lost:
        each = "; ".join(f"{hellos[rank].who}: {why}" for rank, why in sorted(last.lost.items()))
        why = f"the check of {each}; look at that pod first."
        return VerdictMessage("inconclusive", "MEMBER_LOST", why), False
    troubles = {
        rank: result.trouble for rank, result in last.results.items() if result.trouble is not None
    }
    if troubles:
        return _troubled(hellos, troubles)
    if len(last.results) < len(hellos):
        return _unfinished(hellos, last)
    return gate.verdict(settings, hellos, last), False


def _left(left: Mapping[int, Leaving]) -> VerdictMessage:
    leaving = left[min(left)]
    return VerdictMessage("inconclusive", leaving.code, leaving.reason)


def _wrong_data(
    hellos: Mapping[int, Hello], last: LaunchRound, wrong: Mapping[int, RankReport]
) -> VerdictMessage:
    elements, where = sum(result.wrong for result in wrong.values()), wrong[min(wrong)].where
    those = ", ".join(hellos[rank].who for rank in sorted(wrong))
    whole = "every member" if len(wrong) == len(hellos) else those
    reason = (
        f"{elements} element(s) of the all-reduce were wrong, seen by {whole}, first by {where}"
    )
    metadata = {"wrong_elements": str(elements), "first": where, "seen_by": whole}
    verdict = VerdictMessage("failed", "WRONG_DATA", f"{reason}.", metadata=metadata)
    culprit = syndrome.gang(last.order.world, hellos, last.results)
    return verdict if culprit is None else blame.by_syndrome(verdict, culprit)


_ORDER = ("device", "environment", "link", "died", "refused", "launch", "class", "unknown", "peer")
_SPECIAL = {"GPU_NVLINK": "link", "BOOTSTRAP": "refused", "WORKER_ERROR": "unknown"}


def _explains(trouble: Failure) -> str:
    """Its kind; but that nobody answers at a peer's address is what the survivors of a rank that
    ended say too, and an NVLink may fail for another node's fabric that is not ready.
    """
    return _SPECIAL.get(trouble.code, trouble.kind)


def _troubled(
    hellos: Mapping[int, Hello], troubles: Mapping[int, Failure]
) -> tuple[VerdictMessage, bool]:
    """Errors, in the order in which they explain each other: a survivor's complaint says nothing
    about the survivor.
    """
    rank, trouble = min(
        troubles.items(), key=lambda item: (_ORDER.index(_explains(item[1])), item[0])
    )
    text = f"{hellos[rank].who}: {trouble.text}"
    if trouble.kind == "launch":
        text = f"torchrun could not bring the ranks together; {text}"
    if trouble.kind in {"environment", "launch"} or trouble.code == "WORKER_ERROR":
        verdict = VerdictMessage("inconclusive", trouble.code, f"{text}.")
        return verdict, trouble.kind == "launch"
    metadata = {"kind": trouble.kind, "pod": hellos[rank].pod, "detail": trouble.text}
    verdict = VerdictMessage("failed", trouble.code, f"{text}.", metadata=metadata)
    if trouble.kind == "device":
        verdict = _of_devices(hellos, troubles, verdict)
    return verdict, trouble.kind in {"died", "peer"}


def _of_devices(
    hellos: Mapping[int, Hello], troubles: Mapping[int, Failure], verdict: VerdictMessage
) -> VerdictMessage:
    """Each node's own word on its own device, unless many say it at once, or of an NVLink where
    another member's fabric may be what fails it.
    """
    what = {_explains(trouble) for trouble in troubles.values()}
    counts = {"device"} if "environment" in what else {"device", "link"}
    codes = {
        hellos[rank].node: trouble.code
        for rank, trouble in sorted(troubles.items(), reverse=True)
        if _explains(trouble) in counts
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
    if silent := [hellos[rank] for rank, stage in stages.items() if stage.silent]:
        each = ", ".join(hello.who for hello in silent)
        why = f"a worker of {each} gave no sign of life; was it stopped? See its node."
        metadata = {"pod": silent[0].pod}
        return VerdictMessage("failed", "RANK_STALLED", why, metadata=metadata), False
    behind = min(stages.values(), key=lambda stage: stage.how_far)
    names = ", ".join(hellos[rank].who for rank, stage in stages.items() if stage == behind)
    if behind.how_far < RankStage("ready").how_far:
        where = {"waiting": "did not launch", "launched": "did not reach the rendezvous"}
        what = where.get(behind.name, "did not open the communicator")
        why = f"{names} {what} in time; may the pods reach each other on every port?"
        return VerdictMessage("inconclusive", "RENDEZVOUS_FAILED", why), True
    done = behind.iteration
    place = f"after iteration {done}" if done else "before the first iteration"
    who = f"{names} stopped {place}, the others further on"
    if len(set(stages.values())) == 1:
        who = f"every rank stopped {place}"
    why = f"the all-reduce did not end in time: {who}; raise CHECK_TIMEOUT if this hardware is just slow."
    return VerdictMessage("inconclusive", "ALLREDUCE_STALLED", why), False
