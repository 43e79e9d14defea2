"""From what localisation found to the one verdict of all, and from that to each member's own
events. Pure.

Only members on a node that a witness shows to be the cause raise a fatal event, each about its own
node; all others raise one that accuses nobody, and on a node that is named says what would settle
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from preflight_proto.check import Action, Finding, Outcome, Verdict

from . import localise, syndrome
from .control.messages import Failure, VerdictMessage
from .localise import Grade, Kind, Status, Zone
from .probing import EndpointMap

_MESSAGES: Final = {
    "LOW_BANDWIDTH": "the gang's all-reduce was too slow",
    "WRONG_DATA": "the gang's all-reduce gave wrong data",
    "DATA_UNLOCALISED": "the gang's all-reduce gave wrong data",
    "ALLREDUCE_HUNG": "the gang's all-reduce did not end",
    "TRANSPORT_FALLBACK": "the gang's all-reduce went by TCP although its nodes have RDMA adapters",
    "TOPOLOGY_FILE": "a topology file makes NCCL slow in this gang",
}
_CULPRIT: Final = {
    "NODE_SLOW": "each path to this node that was measured is slow where other nodes' are not, and a witness shows that the cause is the node's own",
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
_SETTLE: Final = "run the check again: a pair of nodes that repeats it blames the node; run the loopback check on that node"
_NO_TIME: Final = "what further rounds would have shown, for which CHECK_TIMEOUT left no time"
_SLOW: Final = frozenset({Kind.SYSTEMIC, Kind.FABRIC})
"""Kinds of which each path may be as fast as others like it."""
_NOTHING_FOUND: Final = frozenset({Kind.PAIR, Kind.TRANSIENT, Kind.UNEXPLAINED})


@dataclass(frozen=True)
class Localized:
    """The end of localisation. ``causes``: local troubles of members in probes, by rank, the
    strongest first; ``in_time``: nothing was cut.
    """

    verdict: localise.Verdict
    shape: EndpointMap
    causes: tuple[tuple[int, Failure], ...] = ()
    in_time: bool = True


def by_syndrome(verdict: VerdictMessage, culprit: syndrome.Culprit) -> VerdictMessage:
    """A verdict on wrong data, with whose part of the sum was wrong: named by that, not blamed."""
    metadata = verdict.metadata | {"syndrome": culprit.sentence, "wrong_copies": culprit.holders}
    if culprit.rank < 0:
        return msgspec.structs.replace(verdict, metadata=metadata)
    metadata["corrupted_rank"] = str(culprit.rank)
    who = f"worker rank {culprit.rank}"
    if culprit.gpu:
        metadata["corrupted_gpu"] = culprit.gpu
        who += f" (GPU {culprit.gpu})"
    settle = f"the part of {who} is what was wrong in the sum, as it gave it or as the next rank took it, which alone blames nobody; to settle it: {_SETTLE}"
    return msgspec.structs.replace(
        verdict,
        reason=f"{verdict.reason.rstrip('.')}; {culprit.sentence}.",
        metadata=metadata,
        named={culprit.member: settle},
        evidence={culprit.member: f"data: {culprit.sentence}"},
    )


def verdict(base: VerdictMessage, zone: Zone, localized: Localized) -> VerdictMessage:
    """``base``, the verdict on the gang's own all-reduce, with what localisation adds to it."""
    what, shape = localized.verdict, localized.shape
    outcome, code = _outcome(base, zone, localized)
    replaced = code != base.code and (what.inconclusive or what.kind is Kind.MEMBER)
    if replaced or code == "ALLREDUCE_HUNG":
        reason = what.reason
    elif outcome == "passed" and not what.named and not what.links and not what.domains:
        reason = base.reason
    else:
        reason = f"{base.reason.rstrip('.')}; {what.reason}"
    if zone is not Zone.WRONG and (pairs := _spoilt(what)):
        node = [end.name for end in shape.endpoints]
        between = [f"{node[a]}–{'itself' if a == b else node[b]}" for a, b in pairs[:8]]
        reason = f"{reason.rstrip('.')}; data were wrong between {', '.join(between)}."
    undecided = what.undecided if localized.in_time else (*what.undecided, _NO_TIME)
    if undecided:
        reason += f" Not decided: {'; '.join(undecided)}."
    named = sorted({*what.named, *(shape.endpoint(rank) for rank in base.named)})
    extra = {
        "finding": str(what.kind),
        "rounds": str(what.rounds),
        "named": ", ".join(shape.endpoints[i].name for i in named[:8]),
        "blamed": ", ".join(shape.endpoints[i].name for i in what.blamed[:8]),
    }
    metadata = base.metadata | {key: value for key, value in extra.items() if value}
    verdict = msgspec.structs.replace(
        base, outcome=outcome, code=code, reason=reason, metadata=metadata, blamed={}, named={}
    )
    if outcome != "failed":
        return msgspec.structs.replace(verdict, evidence={})
    blamed, named_only, evidence = _answers(localized)
    only = {rank: text for rank, text in base.named.items() if rank not in blamed}
    return msgspec.structs.replace(
        verdict,
        blamed=blamed,
        named=_together(only, named_only),
        evidence=_together(base.evidence, evidence),
    )


def _together(first: Mapping[int, str], other: Mapping[int, str]) -> dict[int, str]:
    """By rank, what both say."""
    return {
        rank: "; ".join(texts[rank] for texts in (first, other) if rank in texts)
        for rank in {*first, *other}
    }


def _outcome(base: VerdictMessage, zone: Zone, localized: Localized) -> tuple[str, str]:
    kind = localized.verdict.kind
    if _spoilt(localized.verdict):
        return "failed", "WRONG_DATA"
    if zone is Zone.WRONG and kind in {Kind.LOST, Kind.MEMBER}:
        return base.outcome, base.code  # it was seen, whoever is not there any more
    if localized.verdict.inconclusive:
        return "inconclusive", "BUSY_NODE" if kind is Kind.BUSY else "MEMBER_LOST"
    if kind in {Kind.DEVICE, Kind.MEMBER}:
        named, node = localized.verdict.named, localized.shape.endpoint
        cause = next(cause for rank, cause in localized.causes if node(rank) in named)
        return ("inconclusive" if cause.kind == "environment" else "failed"), cause.code
    repeated = localized.verdict.matrix and kind not in _NOTHING_FOUND
    if not localized.verdict.fails or (zone is Zone.HANG and not repeated):
        return base.outcome, base.code
    if zone is Zone.HANG:  # where all pairs end, and some are slow, it is no hang
        rows = [row for row in localized.verdict.matrix if row.a != row.b]
        slow = kind in _SLOW or any(row.grade is Grade.BAD for row in rows)
        ended = slow and all(row.status is Status.OK for row in rows)
        return "failed", "LOW_BANDWIDTH" if ended else "ALLREDUCE_HUNG"
    if kind is Kind.DATA_UNLOCALISED:
        return "failed", "DATA_UNLOCALISED"
    return "failed", base.code if base.outcome == "failed" else "LOW_BANDWIDTH"


def _spoilt(what: localise.Verdict) -> list[tuple[int, int]]:
    """Between which nodes data were wrong when they were measured."""
    return sorted({(row.a, row.b) for row in what.matrix if row.status is Status.WRONG})


def _answers(localized: Localized) -> tuple[dict[int, str], dict[int, str], dict[int, str]]:
    """By rank: the code of what its node is blamed for; of one named and not blamed what is known
    and what would settle it; and of a blamed one the kinds of evidence, and the witness.
    """
    what, shape = localized.verdict, localized.shape
    causes = {shape.endpoint(rank): c.code for rank, c in localized.causes if c.kind == "device"}
    suspects = {suspect.member: suspect for suspect in what.suspects}
    blamed, named, evidence = {}, {}, {}
    for node in {*what.fatal_for, *what.named}:
        suspect = suspects.get(node)
        for rank in shape.ranks[node]:
            if node in what.fatal_for:
                symptom = suspect.symptom if suspect is not None else Status.OK
                blamed[rank] = causes.get(node) or _BY_SYMPTOM.get(symptom, "NODE_SLOW")
                if suspect is not None and suspect.score is not None:
                    kinds = ", ".join(suspect.score.kinds)
                    evidence[rank] = f"evidence: {kinds}; {suspect.witness}"
            elif suspect is not None:
                settle = suspect.settle or "test it with other nodes"
                named[rank] = f"it is named and not blamed, to settle it: {settle}"
    return blamed, named, evidence


def verdict_of(message: VerdictMessage, rank: int) -> Verdict:
    """A member's own verdict: the shared outcome; for a failed gang one event about this node,
    fatal for a culprit alone.
    """
    outcome = Outcome(message.outcome)
    findings = (_finding(message, rank),) if outcome is Outcome.FAILED else ()
    return Verdict(
        outcome,
        message.code,
        message.reason,
        findings,
        measured=message.measured,
        expected=message.expected,
        details={key: value for key, value in message.metadata.items() if key == "transport"},
    )


def _finding(message: VerdictMessage, rank: int) -> Finding:
    culprit = message.blamed.get(rank, "")
    metadata = {**message.metadata, "reason": message.reason}
    if rank in message.evidence:
        metadata["evidence"] = message.evidence[rank]
    if culprit:
        text = _CULPRIT.get(culprit, f"a device of this node failed with {culprit}")
        return Finding(culprit, text, fatal=True, action=Action.CONTACT_SUPPORT, metadata=metadata)
    text = _MESSAGES.get(message.code, f"the gang's all-reduce failed with {message.code}")
    part = message.named.get(rank, "this node took part")
    return Finding(
        message.code, f"{text}, {part}", fatal=False, action=Action.NONE, metadata=metadata
    )
