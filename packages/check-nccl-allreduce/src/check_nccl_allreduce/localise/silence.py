"""Who slows whom: what changes for suspects when others keep silent. Pure.

A port that takes no more has its switch send pause frames, and those slow whoever shares the
switch, perhaps even to themselves. A culprit is distinguished from its victims only by a round in
which it takes no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log

from .model import Grade, Measured, Phase, Played, Role

ALIKE = 0.08
"""Shares of normal that differ by less (natural logarithm) may have one cause."""


def alike(a: float, b: float, limit: float = ALIKE) -> bool:
    """Whether two shares of normal are so near each other that they may have one cause."""
    return a == b or (a > 0 and b > 0 and abs(log(a / b)) < limit)


def halved(domain: Sequence[int], ones: Iterable[int], shares: dict[int, float]) -> list[int]:
    """Of those that are slow to themselves, who has the next round first: of each domain about a
    half.

    Whoever suffers from the same pause frames is as slow as the others that do. So the largest set
    of equally slow ones keeps together where there are three or more: without what slows them they
    are good. Two are measured apart.
    """
    first: list[int] = []
    places: dict[int, list[int]] = {}
    for end in sorted(ones, key=lambda end: (domain[end], shares[end])):
        places.setdefault(domain[end], []).append(end)
    for there in places.values():
        sets = [[other for other in there if alike(shares[end], shares[other])] for end in there]
        like = max(sets, key=len)
        first += like if 1 < len(like) < len(there) else there[::2]
    return sorted(first)


def crowded(domain: Sequence[int], suspects: Sequence[int]) -> bool:
    """Whether one of these may be what slows another: they share a switch, or labels do not say."""
    known = [domain[end] for end in suspects]
    return len(known) > 1 and (-1 in known or len(set(known)) < len(known))


def explained(
    rounds: Sequence[Played], edges: Sequence[Measured], good: Sequence[int], domain: Sequence[int]
) -> tuple[set[Measured], set[int]]:
    """Bad edges between known-good ends that a suspect explains, and its victims: it took part, and
    one end was good in the round in which it kept silent.

    They say nothing about their ends, nor about how often what is healthy is bad.
    """
    present = {p.round.number: {i for each in p.round.probes for i in each.members} for p in rounds}
    covered: set[Measured] = set()
    victims: set[int] = set()
    for number in [p.round.number for p in rounds if p.round.phase is Phase.SILENCE]:
        cleared = {
            end
            for e in edges
            if e.round == number
            and e.role in {Role.SUSPECTS, Role.ACCUSED}
            and e.grade is Grade.GOOD
            for end in (e.a, e.b)
        }
        silent = [i for i in range(len(good)) if not good[i] and i not in present[number]]
        for edge in edges:
            if edge.grade is Grade.BAD and good[edge.a] and good[edge.b]:
                there = [end for end in silent if end in present[edge.round]]
                ends = {
                    i
                    for i in {edge.a, edge.b} & cleared
                    if any(crowded(domain, (i, end)) for end in there)
                }
                if ends:
                    victims |= ends
                    covered.add(edge)
    return covered, victims
