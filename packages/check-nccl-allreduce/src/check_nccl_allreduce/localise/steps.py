"""Which step is next: a round of probes, while one is worth its time, else the verdict. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from . import rounds, score, table, two
from .evidence import Evidence
from .model import (
    HAIRPINS,
    MAX_ROUNDS,
    PAIR_ROUNDS,
    Grade,
    Phase,
    Probe,
    Role,
    Round,
    State,
    Status,
    Verdict,
)
from .references import BAD, EdgeMap
from .silence import crowded, halved
from .table import Findings

HEATED = 60.0
"""Seconds from the first round, after which pairs that were all good are measured once more: what
throttles has become warm by then."""
MATCHINGS = 4
"""Of a slow gang all of whose edges are good: so many see a node that is bad half of the time with
a probability of 15 in 16."""


def next(state: State, now: float | None = None, until: float | None = None) -> Round | Verdict:
    """The round to run now, or the verdict.

    ``now``: seconds on the clock of :attr:`Played.at` (default: when the last round was over).
    ``until``: the last second at which a round may start; where the last confirmation would have to
    wait beyond it, it does not wait, and says less for it. Raises ValueError for a gang without
    endpoints.
    """
    if not state.endpoints:
        raise ValueError("a gang without endpoints cannot be localised")
    findings = Findings(state)
    if (known := table.known(findings)) is not None:
        return known
    if state.gang is None:
        return Round(1, Phase.GANG, (Probe(tuple(range(len(state.endpoints))), Role.GANG),))
    if len(state.endpoints) == 2:
        step = two.ask(findings, now, until)
    else:
        step = _matching(findings) or _following(findings, now, until) or _hairpin(findings)
    return step or table.verdict(findings)


def most_rounds(endpoints: int) -> int:
    """How many rounds so many endpoints may take, the gang's own all-reduce included."""
    return two.MOST_ROUNDS if endpoints == 2 else MAX_ROUNDS


def suspected(state: State) -> tuple[int, ...]:
    """Whom a known-good endpoint found bad and nobody found good so far; of two endpoints, which is
    bad to itself alone. For the log.
    """
    if state.gang is None or not state.rounds:
        return ()
    findings = Findings(state)
    if len(state.endpoints) == 2:
        end = two.suspected(findings)
        return () if end is None else (end,)
    evidence = findings.evidence
    return tuple(end for end in evidence.suspects if evidence.rounds_against(end))


def _matching(findings: Findings) -> Round | None:
    """M1 and M2 for everyone, twice where there are NVLink domains; M3 where three make a triangle,
    or where too few are known good to judge the rest."""
    state = findings.state
    done = findings.phases.count(Phase.MATCH)
    # Two matchings that follow each other are of one ring, even where the first one shows that
    # labels lie: else pairs would meet twice.
    before = EdgeMap(replace(state, rounds=()))
    if done < 2:
        return rounds.match(state, before, done)
    if len(state.rounds) > done:
        return None
    evidence = findings.evidence
    suspects, seen = evidence.suspects, evidence.map.seen
    few_good = len(suspects) > evidence.known_good
    if few_good and evidence.known_good >= rounds.HAIRPIN_CONTROLS:
        # A look at themselves shows who slows the others.
        few_good = any(seen[end] < 0 for end in suspects) or not crowded(seen, suspects)
    if done == 2 and (few_good or evidence.map.size == 3):
        third = rounds.rematch(state, evidence)
        return third if third.probes else None
    return rounds.within(state, before, done - 2) if done < 4 and not suspects else None


def _following(findings: Findings, now: float | None, until: float | None) -> Round | None:
    """Confirmations while there is something to confirm; where no edge is bad and the gang is,
    pairs that have not met, then halves.

    Before them, suspects that may slow each other have a look at themselves.
    """
    state, evidence, hairpins = findings.state, findings.evidence, findings.hairpins
    phases, suspects = findings.phases, evidence.suspects
    hairpin = phases.index(Phase.HAIRPIN) if Phase.HAIRPIN in phases else None
    looked = hairpin is not None and Phase.CONFIRM not in phases[:hairpin]
    limit = PAIR_ROUNDS if suspects else MAX_ROUNDS
    if suspects and evidence.suspect_set <= set(evidence.turned):
        limit += 1  # they were found late: one look at themselves must do
    slow = [end for end in suspects if end in hairpins.bad]
    apart = Phase.SILENCE not in phases and crowded(evidence.map.seen, slow)
    if looked and suspects and not apart:  # else they are measured in halves, a round more
        limit += 1
    late = len(phases) + 1 >= limit or (hairpin is not None and not looked)
    if late or findings.early or phases.count(Phase.HAIRPIN) > 1:
        return None
    begun = Phase.CONFIRM in phases
    if hairpin is None and not begun and crowded(evidence.map.seen, suspects):
        first = rounds.hairpin(state, evidence, suspects)
        if first is not None:
            return first
    heated = state.rounds[0].at + HEATED
    halved = phases.count(Phase.HALVES)
    step = None if halved else rounds.confirm(state, evidence, hairpins.bad if looked else None)
    if step is not None:
        if not suspects and begun:
            return rounds.at(step, state, heated, now, until)
        at_once = step.phase is Phase.SILENCE or not (looked or begun)
        return step if at_once else _later(state, evidence, step, now, until)
    dirty = suspects or evidence.gray or evidence.among_good or evidence.mild()
    if dirty or evidence.unreached or evidence.references.crossing() < BAD:
        return None
    matchings = phases.count(Phase.MATCH)
    if not halved and (evidence.map.size <= rounds.FEW or matchings < MATCHINGS):
        third = matchings == 2
        others = rounds.rematch(state, evidence, detail=rounds.CONTROLS if third else 0)
        if not others.probes and state.rounds[-1].at < heated:
            others, third = rounds.rematch(state, evidence, again=True), True
        if others.probes:
            return rounds.at(others, state, heated, now, until) if third else others
    return rounds.halves(state, evidence, halved) if halved < 2 else None


def _later(
    state: State, evidence: Evidence, step: Round, now: float | None, until: float | None
) -> Round:
    """The round, at another moment than the first bad edge of each suspect."""
    # Whoever is a suspect's partner may be known good later, and its edge evidence then.
    slow = [
        [e.at for e in evidence.graded[end] if e.grade is Grade.BAD and e.status is Status.OK]
        for end in evidence.suspects
    ]
    first = [min(times) for times in slow if times]
    return rounds.at(step, state, max(first) + score.APART, now, until) if first else step


def _hairpin(findings: Findings) -> Round | None:
    """Suspects to themselves, and once more unless the first time has cleared them all: one half
    after the other where there is time for it, for one of them may be what slows the others."""
    state, evidence, hairpins = findings.state, findings.evidence, findings.hairpins
    done = Phase.HAIRPIN in findings.phases
    times = Counter(row.a for row in hairpins.rows)
    asked = [end for end in evidence.suspects if times[end] < HAIRPINS]
    if done:
        asked = [end for end in asked if not times[end] or end in hairpins.bad]
    late = len(state.rounds) + 1 >= MAX_ROUNDS
    if not asked or late or (done and not hairpins.bad) or findings.early:
        return None
    again = [end for end in asked if times[end]]
    if len(state.rounds) + 2 < MAX_ROUNDS and crowded(evidence.map.seen, again):
        shares = {end: evidence.share(evidence.against[end]) for end in asked}
        asked = halved(evidence.map.seen, asked, shares)
    return rounds.hairpin(state, evidence, sorted(asked))
