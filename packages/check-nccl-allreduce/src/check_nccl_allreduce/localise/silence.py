"""Who slows whom: what changes for suspects when others keep silent. Pure.

A port that takes no more has its switch send pause frames, and those slow whoever shares the
switch, perhaps even to themselves. A culprit is distinguished from its victims only by a round in
which it takes no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

from .model import Grade, Measured, Phase, Played, Role

__all__ = [
    "ALIKE",
    "ExplainedEdges",
    "alike",
    "crowded",
    "explained",
    "halved",
]

ALIKE = 0.08
"""Shares of normal that differ by less (natural logarithm) may have one cause."""


@dataclass(frozen=True, slots=True)
class ExplainedEdges:
    """``edges``: bad ones of endpoints that were good as soon as a suspect kept silent;
    ``victims``: those endpoints.
    """

    edges: frozenset[Measured] = frozenset()
    victims: frozenset[int] = frozenset()


def alike(a: float, b: float) -> bool:
    """Whether two shares of normal are so near each other that they may have one cause."""
    return a == b or (a > 0 and b > 0 and abs(log(a / b)) < ALIKE)


def together(domain: Sequence[int], a: int, b: int) -> bool:
    """Whether these may share a switch: their labels say so, or do not say."""
    return domain[a] == domain[b] or domain[a] < 0 or domain[b] < 0


def halved(domain: Sequence[int], ones: Iterable[int], shares: dict[int, float]) -> list[int]:
    """Of those that are slow to themselves, who has the next round first: of each domain about a
    half.

    Whoever suffers from the same pause frames is as slow as the others that do. So the largest set
    of equally slow ones keeps together where there are three or more: without what slows them they
    are good. Two are measured apart.
    """
    found: list[int] = []
    places: dict[int, list[int]] = {}
    for one in sorted(ones, key=lambda one: (domain[one], shares[one])):
        places.setdefault(domain[one], []).append(one)
    for there in places.values():
        like = max(
            ([other for other in there if alike(shares[one], shares[other])] for one in there),
            key=len,
        )
        found += like if 1 < len(like) < len(there) else there[::2]
    return sorted(found)


def crowded(domain: Sequence[int], suspects: Sequence[int]) -> bool:
    """Whether one of these may be what slows another."""
    known = [domain[one] for one in suspects]
    return len(known) > 1 and (-1 in known or len(set(known)) < len(known))


def explained(
    rounds: Iterable[Played], edges: Sequence[Measured], good: Sequence[int], domain: Sequence[int]
) -> ExplainedEdges:
    """Bad edges between known-good ends that a suspect explains: it took part, and one end was good
    in the round in which it kept silent.

    They say nothing about their ends, nor about how often what is healthy is bad.
    """
    present = _present(rounds)
    found: set[Measured] = set()
    victims: set[int] = set()
    for played in rounds:
        if played.round.phase is not Phase.SILENCE:
            continue
        number = played.round.number
        asked = [e for e in edges if e.round == number and e.role in {Role.SUSPECTS, Role.ACCUSED}]
        cleared = {i for e in asked if e.grade is Grade.GOOD for i in (e.a, e.b)}
        silent = [i for i in range(len(good)) if not good[i] and i not in present[number]]
        for edge in edges:
            if edge.grade is not Grade.BAD or not (good[edge.a] and good[edge.b]):
                continue
            ends = {
                end
                for end in {edge.a, edge.b} & cleared
                if any(one in present[edge.round] and together(domain, one, end) for one in silent)
            }
            if ends:
                victims |= ends
                found.add(edge)
    return ExplainedEdges(frozenset(found), frozenset(victims))


def _present(rounds: Iterable[Played]) -> dict[int, set[int]]:
    return {
        p.round.number: {one for probe in p.round.probes for one in probe.members} for p in rounds
    }
