"""Where endpoints stand: what their labels say, as far as it can be believed. Pure.

Latencies only add doubt. What is measured is a small all-reduce of 14 to 70 µs, of which a further
switch is 0.3 to 1 µs: many pairs together may show that labels lie, and no single one shows
anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from statistics import fmean, pvariance
from typing import NamedTuple

from .model import Endpoint, Played, Status

__all__ = ["Labels", "latencies", "read"]

LABELED = 0.8
"""Of the endpoints, the least share that must have a label: what is missing groups nobody, and what
is there compares too few.
"""
GROUPED = 0.5
"""Of the endpoints, the least share that a label must put together with another one, to be a label
of a switch.
"""
PORTS = 32
"""Nodes behind one leaf at most: a label that puts more together is no leaf's."""
HOP = 0.3e-6
"""Seconds that the way over another switch adds, at least."""
DOUBT, BORNE_OUT = 2.0, 3.0
"""Standard errors: labels lie where paths between them are not slower by a hop and so many of them,
and are borne out where those are slower by so many."""
LEAST = 4
"""Pairs on either side, fewer of which show nothing."""

Pair = tuple[int, int]


class Labels(NamedTuple):
    """Whether labels are ``believed`` to say where endpoints stand; and whether latencies bear that
    out, so that two labels are two places (``apart``).
    """

    believed: bool
    apart: bool = False


def latencies(rounds: Iterable[Played]) -> dict[Pair, float]:
    """Seconds of each pair's fastest small message."""
    found: dict[Pair, float] = {}
    for played in rounds:
        for probe, result in zip(played.round.probes, played.results, strict=True):
            seconds, members = result.latency, probe.members
            if seconds > 0 and len(members) == 2 and result.status is Status.OK:
                pair = (members[0], members[1])
                if seconds < found.get(pair, inf):
                    found[pair] = seconds
    return found


def read(endpoints: Sequence[Endpoint], rounds: Iterable[Played]) -> Labels:
    """What can be said of the endpoints' labels: they group most of them as leaves would, and
    latencies do not contradict.
    """
    sizes = Counter(e.domain for e in endpoints if e.domain is not None)
    grouped = sum(count for count in sizes.values() if count > 1)
    if (
        sum(sizes.values()) < LABELED * len(endpoints)
        or grouped < GROUPED * len(endpoints)
        or max(sizes.values(), default=0) > PORTS
    ):
        return Labels(False)
    inside: list[float] = []
    between: list[float] = []
    for (a, b), seconds in latencies(rounds).items():
        here, there = endpoints[a].domain, endpoints[b].domain
        if here is not None and there is not None:
            (inside if here == there else between).append(seconds)
    if min(len(inside), len(between)) < LEAST:
        return Labels(True)
    inside, between = _trimmed(inside), _trimmed(between)
    more = fmean(between) - fmean(inside)
    error = (pvariance(inside) / len(inside) + pvariance(between) / len(between)) ** 0.5
    return Labels(more + DOUBT * error >= HOP, more > BORNE_OUT * error)


def _trimmed(values: list[float]) -> list[float]:
    """Without the slowest and the fastest eighth: one pair that stands out shows nothing."""
    cut = len(values) // 8
    return sorted(values)[cut : len(values) - cut]
