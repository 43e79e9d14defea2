"""Which GPU? Two at a time, by contrast alone.

A GPU is accused when it is bad with two partners that are good with somebody else. A good pair
clears both of its ends; slow is relative to the fastest pairs of the same kind of link on this very
node, so a node whose pairs are all alike accuses nobody. Kinds of links need not be told apart
where all pairs are joined alike by design (:func:`.floors.uniform`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from preflight_proto.check.nccl import ErrorKind

from .measurement import Measurement

GOOD: Final = 0.88
BAD: Final = 0.80
"""Fractions of the reference pair; what lies between neither clears nor accuses."""
WITNESSES: Final = 2
"""Known-good partners with which a GPU must be bad."""
RESTORED: Final = 1.25
"""Without the slow GPU the others are at least this much faster than with it."""

Pair = tuple[int, int]
Mode = Literal["slow", "wrong", "error", "hang"]
Kinds = Mapping[Pair, str]
"""What joins a pair, where that differs from pair to pair."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """``accused`` and ``good`` are GPU numbers; ``links`` are bad pairs of GPUs that are good
    otherwise.
    """

    accused: tuple[int, ...] = ()
    good: frozenset[int] = frozenset()
    links: tuple[Pair, ...] = ()
    reference: float = 0.0


@dataclass(frozen=True, slots=True)
class _Pairs:
    """``good`` GPUs, ``bad`` pairs, and what the fastest kind of pair reaches."""

    good: set[int]
    bad: set[Pair]
    reference: float

    @property
    def suspects(self) -> list[int]:
        return sorted({gpu for pair in self.bad for gpu in pair} - self.good)

    def witnesses(self, suspect: int) -> set[int]:
        """The good GPUs with which ``suspect`` is bad."""
        return {_other(pair, suspect) for pair in self.bad if suspect in pair} & self.good


def next_pair(
    count: int, seen: Mapping[Pair, Measurement], mode: Mode, kinds: Kinds
) -> Pair | None:
    """The next pair to measure among ``count`` GPUs, None when nothing more can be learned.

    First the ring of neighbours, so that each GPU is seen with two partners; then each suspect with
    known-good GPUs that it has not met.
    """
    if count < 3:
        return None  # a single pair has nothing to be compared with
    ring = [_pair(i, (i + 1) % count) for i in [*range(0, count, 2), *range(1, count, 2)]]
    for pair in ring:
        if pair not in seen:
            return pair
    pairs = _sort(seen, mode, kinds)
    if len(pairs.suspects) > count // 2:
        return None
    for suspect in pairs.suspects:
        met = {_other(pair, suspect) for pair in seen if suspect in pair}
        if len(pairs.witnesses(suspect)) < WITNESSES and len(met) < WITNESSES + 2:
            for witness in sorted(pairs.good - met):
                return _pair(suspect, witness)
    return None


def contrast(count: int, seen: Mapping[Pair, Measurement], mode: Mode, kinds: Kinds) -> Contrast:
    """Whom the pairs seen so far accuse. More accused than a quarter of the GPUs are a matter of
    the node.
    """
    pairs = _sort(seen, mode, kinds)
    links = tuple(sorted(pair for pair in pairs.bad if set(pair) <= pairs.good))
    accused = tuple(s for s in pairs.suspects if len(pairs.witnesses(s)) >= WITNESSES)
    if len(accused) > max(1, count // 4):
        accused = ()
    return Contrast(accused, frozenset(pairs.good), links, pairs.reference)


def left_out(whole: float, without: Mapping[int, Measurement]) -> int | None:
    """The one GPU without which the others are fast again, where no other's
    absence helps as much.
    """
    speeds = {gpu: m.busbw for gpu, m in without.items() if m.right and m.busbw is not None}
    restored = [gpu for gpu, speed in speeds.items() if speed >= RESTORED * whole]
    return restored[0] if len(restored) == 1 and len(speeds) == len(without) else None


def _sort(seen: Mapping[Pair, Measurement], mode: Mode, kinds: Kinds) -> _Pairs:
    references = _references(seen, kinds)
    pairs = _Pairs(set(), set(), max(references.values(), default=0.0))
    for pair, m in seen.items():
        reference = references.get(kinds.get(pair, ""), 0.0)
        if _is_good(m, mode, reference):
            pairs.good.update(pair)
        elif _is_bad(m, mode, reference):
            pairs.bad.add(pair)
    return pairs


def _references(seen: Mapping[Pair, Measurement], kinds: Kinds) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for pair, m in seen.items():
        if m.busbw is not None and m.wrong == 0:
            values.setdefault(kinds.get(pair, ""), []).append(m.busbw)
    # An upper quantile: faults only slow things, and with three pairs one bad GPU spoils two.
    return {
        kind: sorted(of, reverse=True)[math.ceil(len(of) / 4) - 1] for kind, of in values.items()
    }


def _is_good(m: Measurement, mode: Mode, reference: float) -> bool:
    return m.right and (mode != "slow" or (m.busbw or 0) >= GOOD * reference)


def _is_bad(m: Measurement, mode: Mode, reference: float) -> bool:
    if mode == "hang":
        return m.timed_out
    if m.timed_out or m.too_big:
        return False  # says nothing about either end
    if mode == "slow":
        return m.right and (m.busbw or 0) < BAD * reference
    if mode == "wrong":
        return bool(m.wrong)
    return m.busbw is None and m.error is not None and m.error.kind is not ErrorKind.ENVIRONMENT


def _pair(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)


def _other(pair: Pair, gpu: int) -> int:
    return pair[1] if pair[0] == gpu else pair[0]
