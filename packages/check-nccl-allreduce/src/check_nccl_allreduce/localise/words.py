"""A verdict in words a person acts on, and the edges measured as a small matrix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .evidence import Evidence, voided
from .model import (
    Fact,
    FactKind,
    Grade,
    Kind,
    Measured,
    State,
    Status,
    Suspect,
    Verdict,
    Zone,
)
from .score import Own

NO_PEER = "with one endpoint there is no peer to compare with"
TWO_ENDPOINTS = "with two endpoints, which side of the path is slow"
GRID = 12
"""Up to so many endpoints the matrix is drawn as one."""
MOST = 8
"""Names in a sentence; the rest is counted."""

_SYMPTOM = {
    Status.WRONG: "delivered wrong data",
    Status.HANG: "never finished",
    Status.ERROR: "failed",
}
LESSER = "its paths are as slow as most of this gang's, where the fastest reach more: look at what the slow nodes share, and test it with the fast ones"
_UNREACHED = "no path to it came up, and its partners reach each other: look at what may keep its pod apart (network policies, NCCL_SOCKET_IFNAME), and at its NIC, cable and switch port"
_ZONE = {
    Zone.BELOW: "is below its floor",
    Zone.BETWEEN: "is between its floor and what is expected",
    Zone.UNKNOWN: "has no floor to be held against",
    Zone.WRONG: "delivered wrong data",
    Zone.HANG: "did not finish",
    Zone.ERROR: "failed",
    Zone.PASSED: "is as expected",
}


SENTENCES = {
    "passed": "the gang's all-reduce reached its expected bandwidth with correct data.",
    "lost": "the gang could not be tested to the end because members were lost: {lost}; see their nodes and logs.",
    "at once": "{nodes} nodes report a device fault at the same moment: {causes}; so many at once share one cause, so none is blamed: look at what they have in common (driver, image, power).",
    "device": "local evidence of a device fault: {causes}; take the node out of service.",
    "member": "a member could not take part for a reason of its own: {causes}; see its log.",
    "alone": "{gang}, and {who} is the only one; run the loopback check on it.",
    "intra": "{gang}, and already inside {who} the bandwidth is below its floor while {other} reaches its own; take {who} out of service.",
    "inside": "{gang}, and the cause is known: {itself}the pair stayed slow, and of {culprit} {witness}; take {culprit} out of service.",
    "bad to itself": "{gang}, and {culprit} is bad to itself as well, over its own NICs, where {peer} is not. What would settle it: {settle}.",
    "marked": "{gang}: {both} or the path between them, and of the two {who} has a device that is not as it should be; look at that first, and test {who} with a third node.",
    "pair": "{gang}: {both} or the path between them; test each with a third node.",
    "busy": "{gang}, and while nothing of it ran, somebody else kept busy {busy}: such nodes are not judged; try again when that has ended, or look for who shares these nodes.",
    "none good": "{gang} and no pair of them works as it should: look for what all share (image, NCCL settings, fabric).",
    "all slow": "{gang} and all pairs are alike and slow: look for what all share (NCCL settings, NIC rate, fabric).",
    "intermittent": "{gang}; every path that was bad has {who} at its end, but not each time: it may come and go. Test it for longer, and look at its cable and error counters.",
    "fabric": "{gang}; {count} paths between good nodes stay bad ({paths}): check the fabric.",
    "boundary": "{gang}; {across} of {boundary}: check the fabric.",
    "rail": "rail {rail} is slow on every node measured, on known-good ones too: check that rail's switches.",
    "domain": "{gang}, and in {domains} no node is known good: check that switch or domain, not its nodes.",
    "too many": "{gang}; {count} nodes look bad ({who}), more than one run may blame: look for what they share.",
    "alike": "{gang}; {count} nodes look bad ({who}), about equally slow, so that one cause is likely: look for what they share.",
    "node": "{gang}, and the cause is known: {culprits}; take {them} out of service.{dark}",
    "suspect": "{gang}, and {hinted} could not be cleared, nor proven bad. What would settle it: {hints}.",
    "link": "{gang}; both ends are good but the path {paths} stays bad: check its cables and ports.",
    "crossing": "{gang}; its nodes are good, but every path between domains reaches only {share} of those inside them: check uplinks and oversubscription.",
    "lacking": "{gang}; no node is slow with known-good ones by as much as would be a suspicion, and ports of {who} are not as they should be: look at those ports, their cables and the switch ports at their other ends.",
    "transient": "{gang}; {paths} was bad once and good again, and nothing else is bad; try again.",
    "data": "{gang}, and every pair delivered correct data: not localised; run it again before trusting results.",
    "halves": "{gang}; every pair and each half by itself is good, halves that mix both are not: check the fabric between them.",
    "only whole": "{gang}, but every pair and half measured is good: only the whole gang is slow; the cause was not found.",
    "unexplained": "{gang}, but no pair measured is bad; the cause was not found.",
}
"""By the name of the rule. In braces is which of :data:`_WRITERS` writes what the rule tells."""
_BRACES = re.compile(r"{(\w+)}")


def sentence(state: State, name: str, facts: Any) -> str:
    """The sentence of a rule that tells so much."""
    text = SENTENCES[name]
    return text.format(**{key: _WRITERS[key](state, facts) for key in _BRACES.findall(text)})


def _gang(state: State, _: object) -> str:
    zone = state.gang.zone if state.gang else Zone.UNKNOWN
    size = len(state.endpoints)
    return f"the all-reduce of {size} node{'' if size == 1 else 's'} {_ZONE[zone]}"


def _some(texts: Sequence[str], between: str = ", ") -> str:
    """The first ones, and how many more there are."""
    more = f" and {len(texts) - MOST} more" if len(texts) > MOST else ""
    return between.join(texts[:MOST]) + more


def names(state: State, members: Sequence[int]) -> str:
    """The first endpoints' names, and how many there are besides."""
    return _some([state.endpoints[i].name for i in members])


def _paths(state: State, edges: Sequence[tuple[int, int]]) -> str:
    return _some([f"{state.endpoints[a].name}–{state.endpoints[b].name}" for a, b in edges])


def _causes(state: State, facts: Sequence[Fact]) -> str:
    return _some([f"{state.endpoints[f.member].name}: {f.cause}" for f in facts], "; ")


def _lost(state: State, facts: tuple[Sequence[Fact], Sequence[Fact]]) -> str:
    """Facts of lost members and of devices."""
    lost, device = facts
    before = f" (seen before: {sentence(state, 'device', device)})" if device else ""
    return _causes(state, lost) + before


def _busy(state: State, members: Sequence[int]) -> str:
    texts = []
    for node in (state.endpoints[end] for end in members):
        load = f", {node.local.load:.0%} of its processors" if node.local.load else ""
        texts.append(f"{node.name} ({node.local.foreign:.3g} GB/s through its adapters{load})")
    return _some(texts)


def _culprits(state: State, facts: tuple[Sequence[Suspect], Sequence[str]]) -> str:
    each = []
    for s in facts[0]:
        itself = ", and to itself as well" if s.score and s.score.itself else ""
        each.append(f"{state.endpoints[s.member].name} {_finding(s)}{itself}; {s.witness}")
    return _some(each, "; ")


def _hints(state: State, facts: Sequence[tuple[Suspect, bool]]) -> str:
    """Suspects with what was measured of each, where anything was judged, and what would decide;
    and whether no path to one came up.
    """
    hints = []
    for s, unreached in facts[:MOST]:
        judged = any(e.status is not Status.OK or e.reference > 0 for e in s.evidence)
        finding = f", which {_finding(s)}" if judged and s.score is not None else ""
        settle = _UNREACHED if unreached else s.settle or "test it with other nodes"
        hints.append(f"{state.endpoints[s.member].name}{finding}: {settle}")
    return "; ".join(hints)


def _itself(state: State, s: Suspect) -> str:
    if not s.evidence:
        return ""
    return (
        f"{names(state, [s.member])} to itself, over its own NICs, reached {s.share:.0%} "
        f"of what {names(state, [1 - s.member])} did in {len(s.evidence)} rounds, "
    )


def _dark(_: State, facts: tuple[Sequence[Suspect], Sequence[str]]) -> str:
    domains = ", ".join(facts[1][:MOST])
    return f" In {domains} no node is known good: check that switch as well." if domains else ""


_WRITERS: dict[str, Callable[[State, Any], str]] = {
    "gang": _gang,
    "who": names,
    "other": lambda state, ones: names(state, [1 - ones[0]]),
    "both": lambda state, _: names(state, (0, 1)),
    "count": lambda _, ones: str(len(ones)),
    "nodes": lambda _, facts: str(len({fact.member for fact in facts})),
    "paths": _paths,
    "across": lambda state, facts: (
        f"{len(facts[0])} paths between good nodes stay bad ({_paths(state, facts[0])}), all across the boundary"
    ),
    "boundary": lambda _, facts: str(facts[1]),
    "causes": _causes,
    "lost": _lost,
    "busy": _busy,
    "culprit": lambda state, s: names(state, [s.member]),
    "peer": lambda state, s: names(state, [1 - s.member]),
    "witness": lambda _, s: str(s.witness),
    "settle": lambda _, s: str(s.settle),
    "itself": _itself,
    "culprits": _culprits,
    "them": lambda _, facts: "it" if len(facts[0]) == 1 else "them",
    "dark": _dark,
    "hinted": lambda state, facts: names(state, [s.member for s, _ in facts]),
    "hints": _hints,
    "domains": lambda _, domains: ", ".join(domains[:MOST]),
    "rail": lambda _, rails: str(rails[0]),
    "share": lambda _, shares: f"{shares[0]:.0%}",
}


def ports(state: State, owns: Mapping[int, Own]) -> str:
    """What named nodes' own ports say, as further sentences."""
    some = [(end, own.text) for end, own in list(owns.items())[:MOST] if own.text]
    return "".join(f" {state.endpoints[end].name}: {text}." for end, text in some)


def _finding(s: Suspect) -> str:
    peers = len({e.other(s.member) for e in s.evidence})
    rounds = len({e.round for e in s.evidence})
    note = f" ({s.note})" if s.note else ""
    seen = f"with {peers} known-good nodes in {rounds} rounds{note}"
    if s.symptom is not Status.OK:
        return f"{_SYMPTOM.get(s.symptom, 'failed')} {seen}"
    measured = sorted(
        (e.gbps / e.reference, e.gbps, e.reference) for e in s.evidence if e.reference > 0
    )
    _, value, reference = measured[len(measured) // 2]
    return f"reached {s.share:.0%} of normal, {value:.4g} of {reference:.4g} GB/s, {seen}"


def detail(rails: Sequence[int], sending: tuple[float, float] | None, bad: float) -> str:
    """Rail and direction of one endpoint in words; ``sending``: GB/s from and towards it."""
    texts = []
    if rails:
        texts.append(f"rail {', '.join(map(str, rails))}")
    if sending and min(sending) < bad * max(sending):
        texts.append("sending" if sending[0] < sending[1] else "receiving")
    return "; ".join(texts)


def undecided(state: State, evidence: Evidence, kind: Kind, dark: Sequence[int]) -> Iterator[str]:
    """What this run could not decide, one clause each."""
    shape = evidence.map
    sizes = Counter(shape.domain)
    single = [s for s in evidence.suspects if shape.domain[s] >= 0 and sizes[shape.domain[s]] == 1]
    if single:
        yield f"for {names(state, single)}, whether the node or the switch that only it is behind is slow"
    unlike = [s for s in evidence.suspects if not evidence.against[s] and s not in single]
    if unlike and kind is not Kind.SYSTEMIC:
        yield f"for {names(state, unlike)}, whether the node is bad, since no comparable path was measured good"
    for name in (shape.domain_names[d] for d in dark if sizes[d] == 2):
        yield f"in {name}, whether both nodes or what they share is bad"
    if not shape.believed and any(e.domain is not None for e in state.endpoints):
        yield "what shares a switch, as the topology labels group hardly any nodes, or latencies contradict them"
    unseen = [node for node, edges in enumerate(evidence.graded) if not edges]
    if unseen and evidence.edges and kind is not Kind.SYSTEMIC:
        yield f"anything about {names(state, unseen)}, for lack of a comparable measurement"
    for number in sorted(evidence.void_rounds):
        yield f"anything from round {number}, in which known-good nodes were slow too"
    for void in voided(state):
        if void.kind is FactKind.MEMBER:
            yield f"a probe of {state.endpoints[void.member].name} in which it could not take part ({void.cause})"
    if kind is Kind.TRANSIENT and any(True for _, again, _ in evidence.isolated if not again):
        yield "whether the bad paths of the last round are bad still"


def matrix(state: State, verdict: Verdict) -> list[str]:
    """The edges measured, for the log: a grid for a small gang, else those worth reading."""
    if not verdict.matrix:
        return []
    small = len(state.endpoints) <= GRID
    return list(_grid(state, verdict.matrix) if small else _rows(state, verdict))


def _grid(state: State, edges: Sequence[Measured]) -> Iterator[str]:
    """The lower triangle; every measurement of a pair, oldest first: percent of normal, or how it
    broke.

    Filled up with dots: a log that squeezes spaces leaves the columns as they are.
    """
    cells: dict[tuple[int, int], str] = {}
    for e in edges:
        before = cells.get((e.b, e.a))
        cells[e.b, e.a] = f"{before}/{_cell(e)}" if before else _cell(e)
    own = {a: cells.pop((a, a)) for a, b in sorted(cells) if a == b}
    size, width = len(state.endpoints), max([3, *map(len, cells.values())])
    label = max(len(e.name) for e in state.endpoints) + len(str(size)) + 1
    yield "percent of normal between each two nodes, oldest measurement first:"
    yield " ".join(["·" * label, *(str(j).rjust(width, "·") for j in range(size - 1))])
    for i in range(size):
        row = (cells.get((i, j), "·").rjust(width, "·") for j in range(i))
        yield " ".join([f"{i} {state.endpoints[i].name}".ljust(label, "·"), *row])
    for i, text in own.items():
        yield f"{state.endpoints[i].name} to itself: {text}"


def _cell(e: Measured) -> str:
    if e.dropped:
        return "void"
    if e.status is not Status.OK:
        return str(e.status)
    return f"{round(100 * e.gbps / e.reference)}" if e.reference > 0 else f"{e.gbps:.3g}GB/s"


def _rows(state: State, verdict: Verdict) -> Iterator[str]:
    named, good = set(verdict.named), 0
    for e in verdict.matrix:
        if not {e.a, e.b} & named and e.grade not in {Grade.BAD, Grade.GRAY}:
            good += e.grade is Grade.GOOD
            continue
        ends = [state.endpoints[e.a].name, state.endpoints[e.b].name if e.a != e.b else "itself"]
        value = f"{e.gbps:.4g} GB/s of {e.reference:.4g}" if e.status is Status.OK else e.status
        grade = "dropped" if e.dropped else e.grade.name.lower() if e.grade else "unjudged"
        yield f"round {e.round} {e.role}: {'–'.join(ends)}: {value} {grade}"
    yield f"and {good} other edges, all good"
