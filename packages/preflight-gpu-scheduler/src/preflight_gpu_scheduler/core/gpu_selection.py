"""Which GPUs of one node: `(topology, free, want) → ids | why not`, and how good a choice is.

`contiguous` orders all sets of `count` free GPUs by: fewest islands; ids that are one run without a
gap; fewest free GPUs left over on the islands touched; the highest bandwidth of the slowest GPU;
lowest ids. The search is exact: every set within a smallest cover touches all islands of it, so
what is left over depends on these alone, and within them only runs, or the fastest, can be best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, islice
from math import comb
from typing import Any, Final

import msgspec

from preflight_gpu_scheduler.api import messages
from preflight_gpu_scheduler.api.claim import Want
from preflight_gpu_scheduler.api.gpu_node_status import Device

_MOST_COVERS: Final = 20_000
"""Sets of islands that are compared, the largest islands first: there are more on a node with more
than 16 GPUs without links."""
_MOST_KNOWN: Final = 4096
"""Topologies, and choices, that are kept."""


class Slot(msgspec.Struct, frozen=True):
    """One GPU: ``bandwidth`` in GB/s."""

    id: int
    island: str
    bandwidth: float


Topology = tuple[Slot, ...]
"""The usable GPUs of a node in ascending order of ids. A mask's bit n is the n-th of them."""


class Chosen(msgspec.Struct, frozen=True):
    """``ids`` in ascending order, empty where there is no choice, and then ``why`` says why not.
    ``score``: 0–10, as prioritize answers.
    """

    ids: tuple[int, ...] = ()
    score: int = 0
    why: str = ""


def topology(devices: Iterable[Device]) -> Topology:
    """The usable ones, each without an island by itself. Nodes of one kind share one object."""
    slots = (
        Slot(device.id, device.island or f"gpu-{device.id}", device.bandwidth_gbps)
        for device in devices
        if device.usable
    )
    return shared(tuple(sorted(slots, key=lambda slot: slot.id)))


@lru_cache(maxsize=_MOST_KNOWN)
def shared(slots: Topology) -> Topology:
    """The one object of those that are equal."""
    return slots


def mask_of(slots: Topology, ids: Iterable[int]) -> int:
    """The bits of those ``ids`` that are there."""
    wanted = set(ids)
    return sum(1 << n for n, slot in enumerate(slots) if slot.id in wanted)


# Nodes of one kind share their topologies, and pods of one claim their wants.
@lru_cache(maxsize=_MOST_KNOWN)
def choose(slots: Topology, free: int, want: Want, own: tuple[int, ...] = ()) -> Chosen:
    """``own``: GPUs whose leases the pod has already; they are among ``free`` and are taken where a
    choice with them is allowed.
    """
    there = [slot for n, slot in enumerate(slots) if free >> n & 1]
    if len(there) < want.count:
        return Chosen(why=messages.TOO_FEW if len(slots) >= want.count else messages.TOO_SMALL)
    ids = {slot.id for slot in there}
    kept = tuple(gpu for gpu in own if gpu in ids)[: want.count]
    if want.policy == "preferIds":
        kept = (*kept, *(gpu for gpu in want.prefer if gpu in ids and gpu not in kept))
    for fixed in range(min(len(kept), want.count), -1, -1):
        picked = _search(there, want, frozenset(kept[:fixed]))
        if picked is not None:
            return Chosen(tuple(slot.id for slot in picked), score(there, picked, want))
    return Chosen(why=_why(slots, there, want))


def score(there: Sequence[Slot], chosen: Sequence[Slot], want: Want) -> int:
    """10: one island, adjacent, nothing left over on it; one less for each GPU left over, at most
    4; 4: one island, not adjacent; 2: several islands. ``spread`` turns it round: 10 when every GPU
    has an island of its own, 2 when all share one. ``Ignore`` likes all alike."""
    islands = {slot.island for slot in chosen}
    if want.policy == "spread":
        most = min(len(chosen), len({slot.island for slot in there}))
        return 10 if len(islands) == len(chosen) else 4 if len(islands) == most > 1 else 2
    if want.mode == "Ignore":
        return 5
    if len(islands) > 1:
        return 2
    if not _adjacent(chosen):
        return 4
    return 10 - min(4, sum(slot.island in islands for slot in there) - len(chosen))


def _why(slots: Topology, there: Sequence[Slot], want: Want) -> str:
    def fits(group: Iterable[Slot]) -> bool:
        counts = Counter(slot.island for slot in group if slot.bandwidth >= want.least)
        return max(counts.values(), default=0) >= want.count

    if fits(there):
        return messages.NOT_ADJACENT
    return messages.NO_ISLAND if fits(slots) else messages.ISLANDS_TOO_SMALL


def _search(there: Sequence[Slot], want: Want, fixed: frozenset[int]) -> tuple[Slot, ...] | None:
    """The best set with ``fixed`` in it; None where there is none that is allowed."""
    if want.policy == "spread":
        return _spread(there, want.count, fixed)
    if want.mode == "Ignore":
        return _completed(there, want.count, fixed)
    required = want.mode == "Required"
    allowed = [slot for slot in there if slot.bandwidth >= want.least or not required]
    if not fixed <= {slot.id for slot in allowed}:
        return None
    sizes = Counter(slot.island for slot in there)

    def ranked() -> Iterator[tuple[tuple[Any, ...], tuple[Slot, ...]]]:
        for cover in _covers(allowed, want.count, fixed):
            if required and len(cover) > 1:
                return
            group = [slot for slot in allowed if slot.island in cover]
            left = sum(sizes[island] for island in cover) - want.count
            for adjacent, chosen in _within(group, want.count, fixed):
                if adjacent or not required:
                    slowest = min(slot.bandwidth for slot in chosen)
                    rank = (not adjacent, left, -slowest, tuple(slot.id for slot in chosen))
                    yield rank, chosen

    best = min(ranked(), key=lambda rank: rank[0], default=None)
    return best[1] if best is not None else None


def _covers(allowed: Sequence[Slot], count: int, fixed: frozenset[int]) -> Iterable[frozenset[str]]:
    """The smallest sets of islands that have room and contain those of ``fixed``."""
    sizes = Counter(slot.island for slot in allowed)
    must = frozenset(slot.island for slot in allowed if slot.id in fixed)
    others = sorted(sizes.keys() - must, key=lambda island: (-sizes[island], island))
    room, more = sum(sizes[island] for island in must), 0
    while room < count:
        if more == len(others):
            return
        room += sizes[others[more]]
        more += 1
    tried = combinations(others, more)
    for some in tried if comb(len(others), more) <= _MOST_COVERS else islice(tried, _MOST_COVERS):
        if sum(sizes[island] for island in (*must, *some)) >= count:
            yield must | frozenset(some)


def _within(
    group: Sequence[Slot], count: int, fixed: frozenset[int]
) -> Iterable[tuple[bool, tuple[Slot, ...]]]:
    """The candidates of one cover: all runs of adjacent ids, and the best set that is none."""
    for first in range(len(group) - count + 1):
        run = tuple(group[first : first + count])
        if _adjacent(run) and fixed <= {slot.id for slot in run}:
            yield True, run
    speeds = sorted((slot.bandwidth for slot in group if slot.id not in fixed), reverse=True)
    best = speeds[: count - len(fixed)]
    slowest = min([*best, *(slot.bandwidth for slot in group if slot.id in fixed)])
    fast = [slot for slot in group if slot.bandwidth >= slowest]
    fastest = _completed(fast, count, fixed)
    yield _adjacent(fastest), fastest


def _completed(group: Sequence[Slot], count: int, fixed: frozenset[int]) -> tuple[Slot, ...]:
    """``fixed`` and the lowest other ids."""
    more = [slot for slot in group if slot.id not in fixed][: count - len(fixed)]
    taken = fixed | {slot.id for slot in more}
    return tuple(slot for slot in group if slot.id in taken)


def _adjacent(run: Sequence[Slot]) -> bool:
    return run[-1].id - run[0].id == len(run) - 1


def _spread(there: Sequence[Slot], count: int, fixed: frozenset[int]) -> tuple[Slot, ...]:
    """Most islands; then the highest bandwidth of the slowest; then lowest ids."""
    taken = [slot for slot in there if slot.id in fixed]
    touched = {slot.island for slot in taken}
    most = min(len({slot.island for slot in there}), len(touched) + count - len(taken))
    for speed in sorted({slot.bandwidth for slot in there}, reverse=True):
        group = [slot for slot in there if slot.bandwidth >= speed or slot.id in fixed]
        if len(group) >= count and len({slot.island for slot in group}) >= most:
            break  # with the slowest at the latest: all that are free are enough
    for slot in group:  # taken while enough places stay for the islands still to come
        new = slot.island not in touched or count - len(taken) > most - len(touched)
        if new and slot.id not in fixed and len(taken) < count:
            taken.append(slot)
            touched.add(slot.island)
    return tuple(sorted(taken, key=lambda slot: slot.id))
