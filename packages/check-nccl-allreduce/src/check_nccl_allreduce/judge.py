"""From what the members reported to the next round, or to the one verdict of all. Pure: no clock, no I/O.

Nobody is blamed here: a verdict on the gang's bandwidth is not one on a node. Where a sentence names a pod, it says where
to look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from preflight_proto.check import Action, Finding, Outcome, Verdict

from . import floors
from .control.messages import STAGES, Hello, Result, Stage, Start, Trouble, VerdictMessage
from .control.rounds import Round
from .settings import DEFAULT_SIZE, Settings, show_size

T = TypeVar("T")

__all__ = ["ROUNDS", "Plan", "first", "judge", "next_step", "remarks", "verdict_of"]

ROUNDS: Final = 2
"""Launches at most: what may be an accident of starting (a port that was taken, a rank that was killed) is tried once more."""

_MESSAGES: Final = {
    "LOW_BANDWIDTH": "the gang's all-reduce was slower than its floor",
    "WRONG_DATA": "the gang's all-reduce gave wrong data",
}


@dataclass(frozen=True)
class Plan:
    """What rank 0 brings to the decisions: its settings, the ports, and whether there is time for another round."""

    settings: Settings
    ports: tuple[int, ...]
    timeout: float
    may_retry: bool = True


def next_step(plan: Plan, hellos: Mapping[int, Hello], rounds: list[Round]) -> Start | VerdictMessage:
    """Another round, or the end."""
    if not rounds:
        return first(plan, hellos)
    last = rounds[-1]
    verdict, worth_another = judge(plan.settings, hellos, last)
    number = last.start.round + 1
    if worth_another and plan.may_retry and number <= min(ROUNDS, len(plan.ports)):
        return _start(plan, hellos, number)
    return verdict


def first(plan: Plan, hellos: Mapping[int, Hello]) -> Start | VerdictMessage:
    """The first round, unless somebody cannot take part or the members do not fit together."""
    for rank, hello in sorted(hellos.items()):
        if (trouble := hello.trouble) is not None:
            outcome = "skipped" if trouble.code == "MIG" else "inconclusive"
            return VerdictMessage(outcome, trouble.code, f"{_who(hellos, rank)}: {trouble.text}")
    backends = {hello.backend for hello in hellos.values()}
    if len(backends) > 1:
        each = ", ".join(f"{_who(hellos, rank)} {hello.backend}" for rank, hello in sorted(hellos.items()))
        return VerdictMessage(
            "inconclusive",
            "MEMBERS_DIFFER",
            f"the members would use different backends: {each}; set NCCL_ALLREDUCE_BACKEND.",
        )
    return _start(plan, hellos, 1)


def _start(plan: Plan, hellos: Mapping[int, Hello], number: int) -> Start:
    settings, backend = plan.settings, hellos[0].backend
    return Start(
        round=number,
        master_port=plan.ports[number - 1],
        backend=backend,
        size=settings.size or DEFAULT_SIZE[backend],
        iterations=settings.iterations,
        warmup=settings.warmup,
        world=sum(hello.workers for hello in hellos.values()),
        timeout=plan.timeout,
    )


def remarks(settings: Settings, hellos: Mapping[int, Hello], start: Start) -> list[str]:
    """What the log should say about the floor before the measurement."""
    row = _row(hellos, start)
    if settings.threshold is None:
        if row is None:
            return [f"no floor: {_no_row(hellos, start)}; the gang passes with its measurement"]
        return [
            f"floor {row.floor:g} GB/s, {row.expected:g} expected, from the table ({row.source}); what is slow is not looked for"
        ]
    lines = [f"floor {settings.threshold:g} GB/s from NCCL_ALLREDUCE_THRESHOLD_GBPS"]
    if row is not None and settings.threshold < row.floor / 2:
        lines.append(
            f"warning: NCCL_ALLREDUCE_THRESHOLD_GBPS is less than half of this hardware's floor of {row.floor:g} GB/s; a gang at a fraction of its speed passes"
        )
    return lines


def judge(settings: Settings, hellos: Mapping[int, Hello], last: Round) -> tuple[VerdictMessage, bool]:
    """(the verdict on one round, whether another round might end better)."""
    if last.left:
        _, leaving = _first(last.left)
        return VerdictMessage("inconclusive", leaving.code, leaving.reason), False
    wrong = {rank: result for rank, result in last.results.items() if result.wrong}
    if wrong:
        return _wrong_data(hellos, last, wrong), False
    if last.lost:
        each = "; ".join(f"{_who(hellos, rank)}: {why}" for rank, why in sorted(last.lost.items()))
        return VerdictMessage("inconclusive", "MEMBER_LOST", f"the check of {each}; look at that pod first."), False
    troubles = {rank: result.trouble for rank, result in last.results.items() if result.trouble is not None}
    if troubles:
        return _troubled(hellos, troubles)
    if len(last.results) < len(hellos):
        return _unfinished(hellos, last)
    return _measured(settings, hellos, last), False


def _wrong_data(hellos: Mapping[int, Hello], last: Round, wrong: Mapping[int, Result]) -> VerdictMessage:
    elements = sum(result.wrong for result in wrong.values())
    _, result = _first(wrong)
    whole = "every member" if len(wrong) == len(hellos) else ", ".join(_who(hellos, rank) for rank in sorted(wrong))
    return VerdictMessage(
        "failed",
        "WRONG_DATA",
        f"{elements} element(s) of the all-reduce were wrong, seen by {whole}, first by {result.where}; nobody is blamed: the fault may lie with any rank or link of the {last.start.world} ranks.",
        metadata={"wrong_elements": str(elements), "first": result.where, "seen_by": whole},
    )


def _troubled(hellos: Mapping[int, Hello], troubles: Mapping[int, Trouble]) -> tuple[VerdictMessage, bool]:
    """Errors, in the order in which they explain each other: a survivor's complaint says nothing about the survivor."""
    order = ("environment", "device", "died", "launch", "class", "peer")
    rank, trouble = min(troubles.items(), key=lambda item: (order.index(item[1].kind), item[0]))
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
    return VerdictMessage("failed", trouble.code, f"{text}.", metadata=metadata), trouble.kind in {"died", "peer"}


def _unfinished(hellos: Mapping[int, Hello], last: Round) -> tuple[VerdictMessage, bool]:
    stages = {
        rank: Stage("done") if rank in last.results else last.stages.get(rank, Stage()) for rank in sorted(hellos)
    }
    behind = min(stages.values(), key=_how_far)
    names = ", ".join(_who(hellos, rank) for rank, stage in stages.items() if stage == behind)
    if _how_far(behind) < _how_far(Stage("ready")):
        where = {"waiting": "did not launch", "launched": "did not reach the rendezvous"}
        what = where.get(behind.name, "did not open the communicator")
        return VerdictMessage(
            "inconclusive", "RENDEZVOUS_FAILED", f"{names} {what} in time; may the pods reach each other on every port?"
        ), True
    place = f"after iteration {behind.iteration}" if behind.iteration else "before the first iteration"
    all_alike = len(set(stages.values())) == 1
    who = f"every rank stands {place}" if all_alike else f"{names} stand(s) {place}, the others further on"
    return VerdictMessage(
        "inconclusive",
        "ALLREDUCE_STALLED",
        f"the all-reduce did not end in time: {who}; raise CHECK_TIMEOUT if this hardware is just slow.",
    ), False


def _measured(settings: Settings, hellos: Mapping[int, Hello], last: Round) -> VerdictMessage:
    start = last.start
    busbw = floors.bus_bandwidth(start.size, [result.times for result in last.results.values()], start.world)
    shape = f"{start.world} ranks on {len(hellos)} members, {show_size(start.size)} per rank, {start.backend}"
    measured = float(_gbps(busbw))
    metadata = {"measured_gbps": _gbps(busbw), "ranks": str(start.world), "size": show_size(start.size)}
    if settings.threshold is not None:
        floor, expected, source = settings.threshold, settings.threshold, "NCCL_ALLREDUCE_THRESHOLD_GBPS"
    else:
        row = _row(hellos, start)
        if row is None:
            why = _no_row(hellos, start)
            return VerdictMessage(
                "passed",
                "OK",
                f"{_gbps(busbw)} GB/s bus bandwidth, every element right, {shape}; no floor: {why}.",
                measured,
                None,
                metadata,
            )
        floor, expected, source = row.floor, row.expected, f"the table ({row.source})"
    metadata |= {"floor_gbps": f"{floor:g}", "expected_gbps": f"{expected:g}", "source": source}
    if busbw < floor:
        less = (1 - busbw / floor) * 100
        return VerdictMessage(
            "failed",
            "LOW_BANDWIDTH",
            f"{_gbps(busbw)} GB/s bus bandwidth is {less:.0f} % below the floor of {floor:g} GB/s from {source}, {expected:g} expected, {shape}; nobody is blamed yet.",
            measured,
            expected,
            metadata,
        )
    grey = busbw < 0.9 * expected
    note = (
        f"less than 90 % of the {expected:g} expected, but above the floor of {floor:g}"
        if grey
        else f"{expected:g} expected"
    )
    return VerdictMessage(
        "passed",
        "OK",
        f"{_gbps(busbw)} GB/s bus bandwidth ({note}, from {source}), every element right, {shape}.",
        measured,
        expected,
        metadata,
    )


def _row(hellos: Mapping[int, Hello], start: Start) -> floors.Row | None:
    kinds = {(hello.model, hello.workers, hello.fabric) for hello in hellos.values()}
    if len(kinds) > 1 or start.backend != "nccl" or any(hello.unusual for hello in hellos.values()):
        return None
    [(model, gpus, fabric)] = kinds
    return floors.find(model, gpus, fabric, len({hello.node for hello in hellos.values()}), start.size)


def _no_row(hellos: Mapping[int, Hello], start: Start) -> str:
    if start.backend != "nccl":
        return f"{start.backend} has none"
    if unusual := sorted({name for hello in hellos.values() for name in hello.unusual}):
        return f"the workload sets {', '.join(unusual)}"
    if len({(hello.model, hello.workers, hello.fabric) for hello in hellos.values()}) > 1:
        return "the members' hardware differs"
    hello = hellos[0]
    fabric = f"the fabric {hello.fabric}" if hello.fabric else "an unknown fabric (NCCL_ALLREDUCE_FABRIC)"
    return f"none is known for {hello.workers} x {hello.model} on {fabric}"


# --- the shared verdict, as each member reports it


def verdict_of(message: VerdictMessage) -> Verdict:
    """A member's own verdict: the shared outcome; for a failed gang one event about this node, which accuses nobody."""
    outcome = Outcome(message.outcome)
    findings: tuple[Finding, ...] = ()
    if outcome is Outcome.FAILED:
        text = _MESSAGES.get(message.code, f"the gang's all-reduce failed with {message.code}")
        findings = (
            Finding(
                message.code,
                f"{text}; this node took part",
                fatal=False,
                action=Action.NONE,
                metadata={**message.metadata, "reason": message.reason},
            ),
        )
    return Verdict(
        outcome, message.code, message.reason, findings, measured=message.measured, expected=message.expected
    )


def _gbps(value: float) -> str:
    """Two decimals, and three digits where that would be too few."""
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _who(hellos: Mapping[int, Hello], rank: int) -> str:
    hello = hellos.get(rank)
    return f"rank {rank} ({hello.pod} on {hello.node})" if hello is not None else f"rank {rank}"


def _how_far(stage: Stage) -> tuple[int, int]:
    return (STAGES.index(stage.name) if stage.name in STAGES else 0), stage.iteration


def _first(found: Mapping[int, T]) -> tuple[int, T]:
    rank = min(found)
    return rank, found[rank]
