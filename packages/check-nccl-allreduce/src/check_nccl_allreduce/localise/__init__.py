"""Who is to blame: from the gang's endpoints and all results so far to the next round of probes, or the verdict.

Pure and deterministic: no clock, no I/O, no chance. Whoever runs probes calls :func:`next`, runs the round
it returns, adds the results to the state and calls again::

    state = localise.State(endpoints, seed).after_gang(zone, gbps)  # round 1 and its gate
    while isinstance(step := localise.next(state), localise.Round):
        state = state.after(step, await run(step))

Floors decide whether the gang fails. Only contrast against known-good peers blames a node.
"""

from __future__ import annotations

from . import rounds, table
from .evidence import BAD, Evidence, weigh
from .model import (
    MAX_ROUNDS,
    Endpoint,
    Fact,
    FactKind,
    Gang,
    Grade,
    Kind,
    Measured,
    Phase,
    Played,
    Probe,
    Result,
    Role,
    Round,
    State,
    Status,
    Suspect,
    Verdict,
    Zone,
)
from .words import matrix

__all__ = [
    "MAX_ROUNDS",
    "Endpoint",
    "Fact",
    "FactKind",
    "Gang",
    "Grade",
    "Kind",
    "Measured",
    "Phase",
    "Played",
    "Probe",
    "Result",
    "Role",
    "Round",
    "State",
    "Status",
    "Suspect",
    "Verdict",
    "Zone",
    "matrix",
    "next",
]


def next(state: State) -> Round | Verdict:
    """The round to run now, or the verdict. Raises ValueError for a gang without endpoints."""
    if not state.endpoints:
        raise ValueError("a gang without endpoints cannot be localised")
    if (known := table.by_facts(state)) is not None:
        return known
    if state.gang is None:
        return Round(1, Phase.GANG, (Probe(tuple(range(len(state.endpoints))), Role.GANG),))
    if (early := table.without_rounds(state)) is not None:
        return early
    evidence = weigh(state)
    return _matching(state, evidence) or _following(state, evidence) or table.verdict(state, evidence)


def _matching(state: State, evidence: Evidence) -> Round | None:
    """M1 and M2 for everyone; M3 where three make a triangle, or where too few are known good to judge the rest."""
    done = sum(1 for played in state.rounds if played.round.phase is Phase.MATCH)
    if done < 2:
        return rounds.match(state, evidence.map, done)
    if done > 2 or len(state.rounds) > done:
        return None
    few_good = bool(evidence.suspects) and len(evidence.suspects) > evidence.known_good
    if few_good or evidence.map.size == 3:
        third = rounds.rematch(state, evidence)
        return third if third.probes else None
    return None


def _following(state: State, evidence: Evidence) -> Round | None:
    """Confirmations while there is something to confirm; halves where no edge is bad and the gang is."""
    if len(state.rounds) + 1 >= MAX_ROUNDS or table.early(state, evidence):
        return None
    halved = sum(1 for played in state.rounds if played.round.phase is Phase.HALVES)
    if not halved and (confirmation := rounds.confirm(state, evidence)) is not None:
        return confirmation
    clean = not evidence.suspects and not evidence.grey and not evidence.among_good and evidence.crossing() >= BAD
    return rounds.halves(state, evidence, halved) if clean and halved < 2 else None
