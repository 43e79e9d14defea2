"""Where endpoints stand: what their labels say, as far as it can be believed, and what latencies
show. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import pairwise
from math import inf

from .model import Endpoint, Played, Status

__all__ = ["PositionSharing", "latencies", "near", "shared", "trusted"]

LABELED = 0.8
"""Of the endpoints, the least share that must have a label: what is missing groups nobody, and what
is there compares too few.
"""
GROUPED = 0.5
"""Of the endpoints, the least share that a label must put together with another one, to be a label
of a switch.
"""
LYING = 0.1
"""Of the edges inside domains, the most that may be as slow to answer as edges between switches
are.
"""
GAP = 1.3
"""Between neighbouring latencies, the least ratio that separates two tiers of the network: a switch
hop more than doubles the time that the first one adds, while repeated measurements of one path
differ by a few percent."""
MET = 0.5
"""Of the others, the share that an endpoint must have met, none of them near, for it to stand
alone.
"""

Pair = tuple[int, int]


class PositionSharing(Enum):
    """Whether an endpoint shares its position (leaf, rack) with another one of the gang."""

    SHARED = "shared"
    ALONE = "alone"
    UNKNOWN = "unknown"


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


def near(found: dict[Pair, float]) -> frozenset[Pair] | None:
    """The pairs of the lowest tier; None where only one tier is seen, or too few pairs to say."""
    values = sorted(found.values())
    if len(values) < 3:
        return None
    limit = next((low for low, high in pairwise(values) if high > GAP * low), None)
    return (
        None
        if limit is None
        else frozenset(pair for pair, value in found.items() if value <= limit)
    )


def trusted(endpoints: Sequence[Endpoint], rounds: Iterable[Played]) -> bool:
    """Whether the labels say where endpoints stand: they group most of them, and latencies do not
    contradict.
    """
    if sum(1 for e in endpoints if e.domain is not None) < LABELED * len(endpoints):
        return False
    sizes = Counter(e.domain for e in endpoints if e.domain is not None)
    grouped = sum(count for count in sizes.values() if count > 1)
    if not sizes or grouped < GROUPED * len(endpoints):
        return False
    found = latencies(rounds)
    close = near(found)
    if close is None:
        return True
    inside = [
        (a, b)
        for a, b in found
        if endpoints[a].domain is not None and endpoints[a].domain == endpoints[b].domain
    ]
    far = sum(1 for pair in inside if pair not in close)
    return far <= max(1, LYING * len(inside))


def shared(
    one: int, found: dict[Pair, float], close: frozenset[Pair] | None, good: Sequence[int]
) -> PositionSharing:
    """Whether a known-good endpoint answers this one as fast as only neighbours do."""
    if close is None:
        return PositionSharing.UNKNOWN
    mine = [pair for pair in found if one in pair]
    if any(good[a if b == one else b] for a, b in mine if (a, b) in close):
        return PositionSharing.SHARED
    return (
        PositionSharing.ALONE
        if mine and len(mine) >= MET * (len(good) - 1)
        else PositionSharing.UNKNOWN
    )
