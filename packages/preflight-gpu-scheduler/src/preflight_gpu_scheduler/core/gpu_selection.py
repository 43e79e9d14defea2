"""Which GPUs of one node: `(topology, free, want) → ids | why not`, and how good a choice is.

`contiguous` orders all sets of `count` free GPUs by: fewest islands; ids that are one run without a
gap; fewest free GPUs left over on the islands touched; the highest bandwidth of the slowest GPU;
lowest ids. The search is exact: a set in the fewest islands touches all of them, so what is left
over depends on how many GPUs these have. Among more than :data:`_MOST_EXACT` free GPUs only runs
are compared.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from preflight_gpu_scheduler.api import messages
from preflight_gpu_scheduler.api.claim import Want
from preflight_gpu_scheduler.api.gpu_node_status import Device

_MOST_EXACT: Final = 64
"""Free GPUs of a node up to which sets that are no run are compared; of more, which no machine of
today has, the lowest ids are taken where no run fits."""
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
    count, required = want.count, want.mode == "Required"
    if want.policy == "spread":
        return _spread(there, count, fixed)
    more = [slot for slot in there if slot.id not in fixed][: count - len(fixed)]
    lowest = tuple(slot for slot in there if slot.id in fixed or slot in more)
    if want.mode == "Ignore":
        return lowest
    islands: dict[str, list[Slot]] = {}
    for slot in there:
        islands.setdefault(slot.island, []).append(slot)
    covers = {} if required else _covers(islands.values(), count, fixed)
    few, total = min((key for key in covers if key[1] >= count), default=(1, 0))

    def rank(run: Sequence[Slot]) -> tuple[int, float, int]:
        touched = sum(len(islands[island]) for island in {slot.island for slot in run})
        return touched, -min(slot.bandwidth for slot in run), run[0].id

    allowed = [slot for slot in there if slot.bandwidth >= want.least or not required]
    runs = (tuple(allowed[n : n + count]) for n in range(len(allowed) - count + 1))
    adjacent = (
        run
        for run in runs
        if _adjacent(run)
        and fixed <= {slot.id for slot in run}
        and len({slot.island for slot in run}) == few
    )
    best = min(adjacent, key=rank, default=None)
    if best is not None or required:
        return best
    if len(there) > _MOST_EXACT:
        return lowest

    def fits(chosen: frozenset[int], speed: float) -> bool:
        return _covers(islands.values(), count, chosen, speed).get((few, total), 0) >= count

    slowest = min((slot.bandwidth for slot in there if slot.id in fixed), default=math.inf)
    speeds = sorted({min(slot.bandwidth, slowest) for slot in there}, reverse=True)
    speed = speeds[bisect_left(speeds, True, key=lambda speed: fits(fixed, speed))]
    chosen = fixed
    for slot in there:
        longer = chosen | {slot.id}
        if slot.bandwidth >= speed and len(longer) <= count and fits(longer, speed):
            chosen = longer
    return tuple(slot for slot in there if slot.id in chosen)


def _covers(
    islands: Iterable[Sequence[Slot]], count: int, chosen: frozenset[int], speed: float = 0.0
) -> dict[tuple[int, int], int]:
    """Count, by their number and that of their GPUs, how many of at least ``speed`` are at most in
    islands with room for ``count`` GPUs, the islands of ``chosen`` among them.
    """
    covers = {(0, 0): 0}
    for island in islands:
        taken = any(slot.id in chosen for slot in island)
        fast, size = sum(slot.bandwidth >= speed for slot in island), len(island)
        more = {
            (number + 1, room + size): most + fast
            for (number, room), most in covers.items()
            if room < count or taken
        }
        if not taken:
            more = {key: max(covers.get(key, 0), more.get(key, 0)) for key in covers | more}
        covers = more
    return covers


def _adjacent(run: Sequence[Slot]) -> bool:
    return run[-1].id - run[0].id == len(run) - 1


def _spread(there: Sequence[Slot], count: int, fixed: frozenset[int]) -> tuple[Slot, ...]:
    """Most islands; then lowest ids."""
    taken = [slot for slot in there if slot.id in fixed]
    touched = {slot.island for slot in taken}
    most = min(len({slot.island for slot in there}), len(touched) + count - len(taken))
    for slot in there:  # taken while enough places stay for the islands still to come
        new = slot.island not in touched or count - len(taken) > most - len(touched)
        if new and slot.id not in fixed and len(taken) < count:
            taken.append(slot)
            touched.add(slot.island)
    return tuple(sorted(taken, key=lambda slot: slot.id))
