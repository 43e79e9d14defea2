"""From what localisation found to the one verdict of all, and from that to each member's own events. Pure.

Only members on a node that is at fault beyond doubt raise a fatal event, each about its own node; all others raise one that
accuses nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from preflight_proto.check import Action, Finding, Outcome, Verdict

from . import localise
from .control.messages import Trouble, VerdictMessage
from .localise import Kind, Status, Zone
from .probing import Map

__all__ = ["Found", "verdict", "verdict_of"]

_MESSAGES: Final = {
    "LOW_BANDWIDTH": "the gang's all-reduce was too slow",
    "WRONG_DATA": "the gang's all-reduce gave wrong data",
    "DATA_UNLOCALISED": "the gang's all-reduce gave wrong data",
    "ALLREDUCE_HUNG": "the gang's all-reduce did not end",
    "TOPOLOGY_FILE": "a topology file makes NCCL slow in this gang",
}
_CULPRIT: Final = {
    "NODE_SLOW": "every path to this node is slow, and the other nodes are fast among themselves",
    "NODE_WRONG_DATA": "an all-reduce with this node gives wrong data, and the other nodes are right among themselves",
    "NODE_HUNG": "an all-reduce with this node does not end, and those of the other nodes do",
    "NODE_BROKEN": "an all-reduce with this node fails, and those of the other nodes do not",
}
_BY_SYMPTOM: Final = {
    Status.OK: "NODE_SLOW",
    Status.WRONG: "NODE_WRONG_DATA",
    Status.HANG: "NODE_HUNG",
    Status.ERROR: "NODE_BROKEN",
}
_NOTHING_FOUND: Final = frozenset({Kind.PAIR, Kind.TRANSIENT, Kind.UNEXPLAINED})


@dataclass(frozen=True)
class Found:
    """The end of localisation. ``causes``: local troubles of members in probes, by rank, the strongest first; ``in_time``: nothing was cut."""

    verdict: localise.Verdict
    shape: Map
    causes: tuple[tuple[int, Trouble], ...] = ()
    in_time: bool = True


def verdict(base: VerdictMessage, zone: Zone, found: Found) -> VerdictMessage:
    """``base``, the verdict on the gang's own all-reduce, with what localisation adds to it."""
    what = found.verdict
    outcome, code = _outcome(base, zone, found)
    if what.inconclusive or what.kind is Kind.MEMBER or code == "ALLREDUCE_HUNG":
        reason = what.reason
    elif outcome == "passed" and not what.named and not what.links and not what.domains:
        reason = base.reason
    else:
        reason = f"{base.reason.rstrip('.')}; {what.reason}"
    if undecided := _undecided(found):
        reason += f" Not decided: {'; '.join(undecided)}."
    names = found.shape.endpoints
    extra = {
        "finding": str(what.kind),
        "rounds": str(what.rounds),
        "named": ", ".join(names[i].name for i in what.named[:8]),
        "blamed": ", ".join(names[i].name for i in what.blamed[:8]),
    }
    return msgspec.structs.replace(
        base,
        outcome=outcome,
        code=code,
        reason=reason,
        metadata=base.metadata | {key: value for key, value in extra.items() if value},
        blamed=_blamed(found) if outcome == "failed" else {},
    )


def _outcome(base: VerdictMessage, zone: Zone, found: Found) -> tuple[str, str]:
    kind = found.verdict.kind
    if found.verdict.inconclusive:
        return "inconclusive", "MEMBER_LOST"
    if kind in {Kind.DEVICE, Kind.MEMBER} and found.causes:
        _, cause = found.causes[0]
        return ("inconclusive" if cause.kind == "environment" else "failed"), cause.code
    if not found.verdict.fails or (zone is Zone.HANG and kind in _NOTHING_FOUND):
        return base.outcome, base.code
    if zone is Zone.HANG:
        return "failed", "ALLREDUCE_HUNG"
    if kind is Kind.DATA_UNLOCALISED:
        return "failed", "DATA_UNLOCALISED"
    return "failed", base.code if base.outcome == "failed" else "LOW_BANDWIDTH"


def _undecided(found: Found) -> Sequence[str]:
    late = () if found.in_time else ("what further rounds would have shown, for which CHECK_TIMEOUT left no time",)
    return (*found.verdict.undecided, *late)


def _blamed(found: Found) -> dict[int, str]:
    """By rank, the code of what its node is blamed for."""
    symptoms = {one.member: one.symptom for one in found.verdict.suspects}
    devices = {found.shape.endpoint(rank): one.code for rank, one in found.causes if one.kind == "device"}
    return {
        rank: devices.get(node) or _BY_SYMPTOM.get(symptoms.get(node, Status.OK), "NODE_SLOW")
        for node in found.verdict.fatal_for
        for rank in found.shape.ranks[node]
    }


def verdict_of(message: VerdictMessage, rank: int) -> Verdict:
    """A member's own verdict: the shared outcome; for a failed gang one event about this node, fatal for a culprit alone."""
    outcome = Outcome(message.outcome)
    findings: tuple[Finding, ...] = ()
    if outcome is Outcome.FAILED:
        findings = (_finding(message, message.blamed.get(rank, "")),)
    return Verdict(
        outcome, message.code, message.reason, findings, measured=message.measured, expected=message.expected
    )


def _finding(message: VerdictMessage, culprit: str) -> Finding:
    metadata = {**message.metadata, "reason": message.reason}
    if culprit:
        text = _CULPRIT.get(culprit, f"a device of this node failed with {culprit}")
        return Finding(culprit, text, fatal=True, action=Action.CONTACT_SUPPORT, metadata=metadata)
    text = _MESSAGES.get(message.code, f"the gang's all-reduce failed with {message.code}")
    return Finding(message.code, f"{text}; this node took part", fatal=False, action=Action.NONE, metadata=metadata)
