"""What this gang has seen of each of its endpoints, for the gangs to come. Pure.

A spell is noted where partners that are good with others found an endpoint bad, whatever the
verdict said of it: whether that was the node, its path or chance is for the next gang to find, with
other partners.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from preflight_proto.history import MOST_PARTNERS, Sighting, digest

from .evidence import weigh
from .model import Grade, State, Status
from .score import FATAL, hairpins, scored

__all__ = ["sightings"]


def sightings(state: State) -> tuple[Sighting, ...]:
    """One for each endpoint, in their order, after the gang's rounds; ``kind`` and ``nodes`` are
    left to whoever knows them.

    Good pairs are those that cleared both ends; an endpoint is ``sick`` where the score says
    *local* or *data*, and that no busy moment explains it.
    """
    evidence = weigh(state)
    own = hairpins(state, evidence)
    scores = scored(state, evidence, own)
    good: dict[int, list[float]] = defaultdict(list)
    accusers: dict[int, dict[int, None]] = defaultdict(dict)
    for edge in evidence.edges:
        if edge.grade is Grade.GOOD:
            good[edge.a].append(edge.gbps)
            good[edge.b].append(edge.gbps)
        elif edge.grade is Grade.BAD:
            for one, other in ((edge.a, edge.b), (edge.b, edge.a)):
                if evidence.good[other]:
                    accusers[one][other] = None
    itself: dict[int, list[float]] = defaultdict(list)
    for row in own.rows:
        if row.status is Status.OK and row.grade is not Grade.BAD:
            itself[row.a].append(row.gbps)
    found = []
    for one in range(len(state.endpoints)):
        score = scores.get(one)
        sick = (
            score is not None
            and bool({"local", "data"} & set(score.kinds))
            and score.spell >= FATAL
        )
        if sick and score is not None and score.ports and score.itself < 2:
            sick = False  # a cable may make a port slow, and goes with the node from gang to gang
        found.append(
            Sighting(
                pair=median(good[one]) if good[one] else 0.0,
                edges=len(good[one]),
                own=median(itself[one]) if itself[one] else 0.0,
                bad=tuple(
                    digest(state.endpoints[i].name) for i in list(accusers[one])[:MOST_PARTNERS]
                ),
                sick=sick,
            )
        )
    return tuple(found)
