"""A verdict in words a person acts on, and the edges measured as a small matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from .evidence import Evidence
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
from .own import Own

__all__ = ["matrix"]

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
_ZONE = {
    Zone.BELOW: "is below its floor",
    Zone.BETWEEN: "is between its floor and what is expected",
    Zone.UNKNOWN: "has no floor to be held against",
    Zone.WRONG: "delivered wrong data",
    Zone.HANG: "did not finish",
    Zone.ERROR: "failed",
    Zone.PASSED: "is as expected",
}


def names(state: State, members: Sequence[int]) -> str:
    told = ", ".join(state.endpoints[i].name for i in members[:MOST])
    return told if len(members) <= MOST else f"{told} and {len(members) - MOST} more"


def pairs(state: State, edges: Sequence[tuple[int, int]]) -> str:
    told = ", ".join(
        f"{state.endpoints[a].name}–{state.endpoints[b].name}" for a, b in edges[:MOST]
    )
    return told if len(edges) <= MOST else f"{told} and {len(edges) - MOST} more"


def gang(state: State) -> str:
    zone = state.gang.zone if state.gang else Zone.UNKNOWN
    size = len(state.endpoints)
    return f"the all-reduce of {size} node{'' if size == 1 else 's'} {_ZONE[zone]}"


def local(state: State, kind: Kind, facts: Sequence[Fact], also: Sequence[Fact]) -> str:
    told = "; ".join(f"{state.endpoints[f.member].name}: {f.cause}" for f in facts[:MOST])
    more = f" and {len(facts) - MOST} more" if len(facts) > MOST else ""
    if kind is Kind.LOST:
        seen = f" (seen before: {local(state, Kind.DEVICE, also, ())})" if also else ""
        return f"the gang could not be tested because members were lost: {told}{more}{seen}; see their nodes and logs."
    if kind is Kind.DEVICE:
        return f"local evidence of a device fault: {told}{more}; take the node out of service."
    return f"a member could not take part for a reason of its own: {told}{more}; see its log."


def at_once(state: State, facts: Sequence[Fact]) -> str:
    told = "; ".join(f"{state.endpoints[f.member].name}: {f.cause}" for f in facts[:MOST])
    more = f" and {len(facts) - MOST} more" if len(facts) > MOST else ""
    return (
        f"{len({f.member for f in facts})} nodes report a device fault at the same moment: {told}{more}; "
        "so many at once share one cause, so none is blamed: look at what they have in common (driver, image, power)."
    )


def alone(state: State) -> str:
    return f"{gang(state)}, and {state.endpoints[0].name} is the only one; run the loopback check on it."


def intra(state: State, culprit: int) -> str:
    other = state.endpoints[1 - culprit].name
    return (
        f"{gang(state)}, and already inside {state.endpoints[culprit].name} the bandwidth is below its floor while "
        f"{other} reaches its own; take {state.endpoints[culprit].name} out of service."
    )


def inside(state: State, culprit: Suspect) -> str:
    one, other = state.endpoints[culprit.member].name, state.endpoints[1 - culprit.member].name
    itself = (
        f"{one} to itself, over its own NICs, reached {culprit.share:.0%} of what {other} did in {len(culprit.evidence)} rounds, "
        if culprit.evidence
        else ""
    )
    return f"{gang(state)}, and the cause is known: {itself}the pair stayed slow, and of {one} {culprit.witness}; take {one} out of service."


def pair(state: State, bad: Suspect | None, lacking: Sequence[int] = ()) -> str:
    if bad is not None and bad.evidence:
        one, other = state.endpoints[bad.member].name, state.endpoints[1 - bad.member].name
        return (
            f"{gang(state)}, and {one} is bad to itself as well, over its own NICs, where {other} is not. "
            f"What would settle it: {bad.settle}."
        )
    lacking = [bad.member] if bad is not None else lacking
    if len(lacking) == 1:
        one = state.endpoints[lacking[0]].name
        return (
            f"{gang(state)}: {names(state, (0, 1))} or the path between them, and of the two {one} has a device that is not as it should be; "
            f"look at that first, and test {one} with a third node."
        )
    return f"{gang(state)}: {names(state, (0, 1))} or the path between them; test each with a third node."


def busy(state: State, members: Sequence[int]) -> str:
    each = "; ".join(
        f"{state.endpoints[one].name} {state.endpoints[one].local.foreign:.3g} GB/s"
        for one in members[:MOST]
    )
    more = f" and {len(members) - MOST} more" if len(members) > MOST else ""
    return (
        f"{gang(state)}, and while nothing of it ran, somebody else's traffic passed the adapters of {each}{more}: "
        "busy nodes are not judged; try again when that has ended, or look for who shares these nodes."
    )


def lacking(state: State, members: Sequence[int]) -> str:
    return (
        f"{gang(state)}; no node is slow with known-good ones by as much as would be a suspicion, and ports of {names(state, members)} are not "
        "as they should be: look at those ports, their cables and the switch ports at their other ends."
    )


def ports(state: State, told: Mapping[int, Own]) -> str:
    """What named nodes' own ports say, as further sentences: port, what was found, what was
    expected.
    """
    return "".join(
        f" {state.endpoints[one].name}: {said.told}."
        for one, said in list(told.items())[:MOST]
        if said.told
    )


def systemic(state: State, evidence: Evidence) -> str:
    if not evidence.known_good:
        return f"{gang(state)} and no pair of them works as it should: look for what all share (image, NCCL settings, fabric)."
    return f"{gang(state)} and all pairs are alike and slow: look for what all share (NCCL settings, NIC rate, fabric)."


def fabric(state: State, edges: Sequence[tuple[int, int]], boundary: str | None) -> str:
    where = f", all across the boundary of {boundary}" if boundary is not None else ""
    return f"{gang(state)}; {len(edges)} paths between good nodes stay bad ({pairs(state, edges)}){where}: check the fabric."


def crossing(state: State, share: float) -> str:
    return (
        f"{gang(state)}; its nodes are good, but every path between domains reaches only {share:.0%} of those inside "
        "them: check uplinks and oversubscription."
    )


def rail(number: int) -> str:
    return f"rail {number} is slow on every node measured, on known-good ones too: check that rail's switches."


def domain(state: State, domains: Sequence[str]) -> str:
    return f"{gang(state)}, and in {', '.join(domains[:MOST])} no node is known good: check that switch or domain, not its nodes."


def correlated(state: State, members: Sequence[int], *, too_many: bool) -> str:
    why = (
        "more than one run may blame"
        if too_many
        else "about equally slow, so that one cause is likely"
    )
    return f"{gang(state)}; {len(members)} nodes look bad ({names(state, members)}), {why}: look for what they share."


def node(state: State, suspects: Sequence[Suspect], domains: Sequence[str]) -> str:
    told = "; ".join(
        f"{state.endpoints[s.member].name} {_finding(s)}{', and to itself as well' if s.score and s.score.itself else ''}; {s.witness}"
        for s in suspects[:MOST]
    )
    more = f" and {len(suspects) - MOST} more" if len(suspects) > MOST else ""
    them = "it" if len(suspects) == 1 else "them"
    dark = (
        f" In {', '.join(domains[:MOST])} no node is known good: check that switch as well."
        if domains
        else ""
    )
    return f"{gang(state)}, and the cause is known: {told}{more}; take {them} out of service.{dark}"


def _found(s: Suspect) -> str:
    """What was measured of one that is only named; empty where nothing was judged."""
    judged = [e for e in s.evidence if e.status is not Status.OK or e.reference > 0]
    return f", which {_finding(s)}" if judged and s.score is not None else ""


def _finding(s: Suspect) -> str:
    peers = len({e.a if e.b == s.member else e.b for e in s.evidence})
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


def suspect(state: State, suspects: Sequence[Suspect], unreached: Sequence[int]) -> str:
    told = names(state, [s.member for s in suspects])
    hints = [
        f"{state.endpoints[s.member].name}{_found(s)}: {settle(s, s.member in unreached)}"
        for s in suspects[:MOST]
    ]
    return f"{gang(state)}, and {told} could not be cleared, nor proven bad. What would settle it: {'; '.join(hints)}."


def settle(s: Suspect, unreached: bool = False) -> str:
    """What would decide about a node that is only named."""
    if unreached:
        return "no path to it came up, and its partners reach each other: look at its NIC, cable and switch port"
    return s.settle or "test it with other nodes"


def intermittent(state: State, members: Sequence[int]) -> str:
    return (
        f"{gang(state)}; every path that was bad has {names(state, members)} at its end, but not each time: it may come and go. "
        "Test it for longer, and look at its cable and error counters."
    )


def link(state: State, edges: Sequence[tuple[int, int]]) -> str:
    return f"{gang(state)}; both ends are good but the path {pairs(state, edges)} stays bad: check its cables and ports."


def transient(state: State, edges: Sequence[tuple[int, int]]) -> str:
    return f"{gang(state)}; {pairs(state, edges)} was bad once and good again, and nothing else is bad; try again."


def data_unlocalised(state: State) -> str:
    return f"{gang(state)}, and every pair delivered correct data: not localised; run it again before trusting results."


def halves(state: State) -> str:
    return f"{gang(state)}; every pair and each half by itself is good, halves that mix both are not: check the fabric between them."


def unexplained(state: State, *, only_whole: bool) -> str:
    how = (
        "every pair and half measured is good: only the whole gang is slow"
        if only_whole
        else "no pair measured is bad"
    )
    return f"{gang(state)}, but {how}; the cause was not found."


def detail(rails: Sequence[int], sending: tuple[float, float] | None, bad: float) -> str:
    """Rail and direction of one endpoint, in a few words; ``sending`` is (from it, towards it) in
    GB/s.
    """
    told = []
    if rails:
        told.append(f"rail {', '.join(map(str, rails))}")
    if sending and min(sending) < bad * max(sending):
        told.append("sending" if sending[0] < sending[1] else "receiving")
    return "; ".join(told)


def undecided(
    state: State,
    evidence: Evidence,
    kind: Kind,
    dark: Sequence[int],
) -> Iterator[str]:
    """What this run could not decide, one clause each."""
    shape = evidence.map
    sizes: dict[int, int] = {}
    for d in shape.domain:
        sizes[d] = sizes.get(d, 0) + 1
    single = [s for s in evidence.suspects if shape.domain[s] >= 0 and sizes[shape.domain[s]] == 1]
    if single:
        yield f"for {names(state, single)}, whether the node or the switch that only it is behind is slow"
    unlike = [s for s in evidence.suspects if not evidence.against[s] and s not in single]
    if unlike and kind is not Kind.SYSTEMIC:
        yield f"for {names(state, unlike)}, whether the node is bad, since no comparable path was measured good"
    for d in dark:
        if sizes[d] == 2:
            yield f"in {shape.domain_names[d]}, whether both nodes or what they share is bad"
    seen = {i for e in evidence.edges if e.grade is not Grade.NONE for i in (e.a, e.b)}
    if not shape.believed and any(e.domain is not None for e in state.endpoints):
        yield "what shares a switch, as the topology labels group hardly any nodes, or latencies contradict them"
    unseen = [i for i in range(shape.size) if i not in seen]
    if unseen and evidence.edges and kind is not Kind.SYSTEMIC:
        yield f"anything about {names(state, unseen)}, for lack of a comparable measurement"
    for number in sorted(evidence.void_rounds):
        yield f"anything from round {number}, in which known-good nodes were slow too"
    for void in evidence.voids:
        if void.fact is FactKind.MEMBER:
            yield f"a probe of {state.endpoints[void.member].name} in which it could not take part ({void.cause})"
    if kind is Kind.TRANSIENT and any(True for _, again, _ in evidence.isolated if not again):
        yield "whether the bad paths of the last round are bad still"


def matrix(state: State, verdict: Verdict) -> list[str]:
    """The edges measured, for the log: a grid of shares of normal for a small gang, else the edges
    worth reading.
    """
    if not verdict.matrix:
        return []
    if len(state.endpoints) <= GRID:
        return list(_grid(state, verdict.matrix))
    return list(_rows(state, verdict))


def _grid(state: State, edges: Sequence[Measured]) -> Iterator[str]:
    """The lower triangle; every measurement of a pair, oldest first: percent of normal, or how it
    broke.

    Filled up with dots: a log that squeezes spaces leaves the columns as they are.
    """
    cells: dict[tuple[int, int], list[str]] = {}
    own: dict[int, list[str]] = {}
    for e in edges:
        if e.a == e.b:
            own.setdefault(e.a, []).append(_cell(e))
        else:
            cells.setdefault((e.b, e.a), []).append(_cell(e))
    width = max([3, *(len("/".join(c)) for c in cells.values())])
    label = max(len(e.name) for e in state.endpoints) + len(str(len(state.endpoints))) + 1
    size = len(state.endpoints)
    yield "percent of normal between each two nodes, oldest measurement first:"
    yield " ".join(["·" * label, *(str(j).rjust(width, "·") for j in range(size - 1))])
    for i in range(size):
        row = ("/".join(cells.get((i, j), ["·"])).rjust(width, "·") for j in range(i))
        yield " ".join([f"{i} {state.endpoints[i].name}".ljust(label, "·"), *row])
    for i, found in sorted(own.items()):
        yield f"{state.endpoints[i].name} to itself: {'/'.join(found)}"


def _cell(e: Measured) -> str:
    if e.dropped:
        return "void"
    if e.status is not Status.OK:
        return str(e.status)
    return f"{round(100 * e.gbps / e.reference)}" if e.reference > 0 else f"{e.gbps:.3g}GB/s"


def _rows(state: State, verdict: Verdict) -> Iterator[str]:
    named = set(verdict.named)
    told = [
        e
        for e in verdict.matrix
        if e.a in named or e.b in named or e.grade in {Grade.BAD, Grade.GRAY}
    ]
    for e in told:
        ends = (
            f"{state.endpoints[e.a].name}–{state.endpoints[e.b].name if e.a != e.b else 'itself'}"
        )
        value = (
            f"{e.gbps:.4g} GB/s of {e.reference:.4g}" if e.status is Status.OK else str(e.status)
        )
        yield f"round {e.round} {e.role}: {ends}: {value} {_grade(e)}"
    yield f"and {_count(verdict.matrix, told)} other edges, all good"


def _grade(e: Measured) -> str:
    return "dropped" if e.dropped else "unjudged" if e.grade is Grade.NONE else e.grade.name.lower()


def _count(edges: Sequence[Measured], told: Iterable[Measured]) -> int:
    seen = set(told)
    return sum(1 for e in edges if e not in seen and e.grade is Grade.GOOD)
