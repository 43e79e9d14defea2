"""Which probes the next round makes: matchings of all, confirmations of suspects, halves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import combinations

from .evidence import RESTLESS, Evidence
from .model import MAX_ROUNDS, PAIR_ROUNDS, Grade, Phase, Probe, Role, Round, State
from .references import EdgeMap

CONFIRMATIONS = 2
"""How many measurements of a suspect must be chosen because of the suspicion."""
HAIRPIN_CONTROLS = 3
"""Known-good endpoints to themselves beside the suspects, at least, where there are so many."""
CONTROLS = 4
"""Pairs of unused known-good endpoints that show whether a round was disturbed."""
RETESTS = 2
"""A bad edge between good ends is measured again until it was good once, or this often."""
WITNESSES = 64
"""So many known-good endpoints at most are looked through for a pair of a class."""
FEW = 6
"""Up to so many endpoints, rounds are enough for every pair; of four, the two matchings leave out
two of six."""

_MASK = (1 << 64) - 1


def ring(shape: EdgeMap, seed: int) -> list[int]:
    """All endpoints by kind, domain and a shuffle that depends on seed and position alone."""
    return sorted(range(shape.size), key=lambda i: (shape.kind[i], shape.domain[i], _mix(seed, i)))


def chance(seed: int) -> float:
    """From 0 to below 1, even over seeds and the same on every machine."""
    return _mix(seed, 0) / (_MASK + 1)


def _mix(seed: int, position: int) -> int:
    """SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): even bits, the same on every machine."""
    z = (seed * 0xD1342543DE82EF95 + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def match(state: State, shape: EdgeMap, done: int) -> Round:
    """The even (``done`` = 0) or odd (1) edges of the ring; of an odd number, one sits out."""
    order, rack = ring(shape, state.seed), shape.rack
    if max(rack) >= 0:  # neighbors of different NVLink domains: only so do they meet over NICs
        turn = {end: place for members in _racks(shape, order) for place, end in enumerate(members)}
        order = sorted(order, key=lambda end: (shape.kind[end], turn[end]))
    return _round(state, Phase.MATCH, _neighbors(order, done))


def within(state: State, shape: EdgeMap, done: int) -> Round | None:
    """A matching inside the NVLink domains; None where there are none."""
    racks = _racks(shape, [i for i in ring(shape, state.seed) if shape.rack[i] >= 0])
    probes = [probe for members in racks for probe in _neighbors(members, done)]
    return _round(state, Phase.MATCH, probes) if probes else None


def _racks(shape: EdgeMap, order: list[int]) -> list[list[int]]:
    """The members of each NVLink domain, and those of none, in this order."""
    racks: dict[int, list[int]] = {}
    for end in order:
        racks.setdefault(shape.rack[end], []).append(end)
    return list(racks.values())


def _neighbors(order: list[int], done: int) -> list[Probe]:
    """The even or the odd edges of this ring."""
    pairs = list(zip(order[done::2], order[done + 1 :: 2], strict=False))
    if done and len(order) % 2 == 0 and len(order) > 2:
        pairs.append((order[-1], order[0]))
    return [_pair(a, b, Role.MATCH) for a, b in pairs]


def hairpin(state: State, evidence: Evidence, suspects: Sequence[int]) -> Round | None:
    """Each suspect to itself, and known-good endpoints of its kind beside it: those behind its
    switch first. None without a control.
    """
    shape = evidence.map
    ends = set(suspects)
    for kind in {shape.kind[end] for end in suspects}:
        of_kind = [end for end in suspects if shape.kind[end] == kind]
        where = {shape.domain[end] for end in of_kind}
        good = [i for i in ring(shape, state.seed) if shape.kind[i] == kind and evidence.good[i]]
        good = [i for i in good if i not in ends and i not in evidence.shaded]
        good.sort(key=lambda i: shape.domain[i] not in where)
        if not good:
            ends -= set(of_kind)
        ends |= set(good[: max(HAIRPIN_CONTROLS, len(of_kind))])
    if not ends:
        return None
    return _round(state, Phase.HAIRPIN, [Probe((end,), Role.HAIRPIN) for end in sorted(ends)])


def rematch(state: State, evidence: Evidence, detail: int = 0, *, again: bool = False) -> Round:
    """A matching of partners that have not met (or with ``again`` have), suspects first and with
    known-good ones where there are any.

    The first ``detail`` pairs measure rails and directions as well.
    """
    order = ring(evidence.map, state.seed)
    good = [i for i in order if evidence.good[i]]
    rest = [i for i in order if not evidence.good[i]]
    pools = [_Pools(evidence.map, those) for those in (good, order)]
    pairs = _Desk(evidence, order).pair_up(rest + good, pools, Role.MATCH, again=again)
    probes = [probe._replace(detail=i < detail) for i, probe in enumerate(pairs)]
    return _round(state, Phase.MATCH, probes)


def confirm(state: State, evidence: Evidence, slow: Container[int] | None = None) -> Round | None:
    """Each unsettled suspect with a known-good partner or, once, with another suspect. None when
    nothing is left to ask.

    ``slow``: the suspects that are slow to themselves, once that is known. While the others meet,
    these keep silent.
    """
    suspects = [
        s
        for s in evidence.suspects
        if evidence.confirmed[s] < CONFIRMATIONS or evidence.rounds_against(s) < evidence.enough
    ]
    edges = [pair for pair, again, better in evidence.isolated if not better and again < RETESTS]
    doubtful = {*evidence.gray, *evidence.mild(least=2), *evidence.silent} - evidence.suspect_set
    gray = {end for end in doubtful if evidence.confirmed[end] < CONFIRMATIONS}
    gray |= {*evidence.restless, *(evidence.late if len(evidence.late) <= RESTLESS else ())}
    if not suspects and not edges and not gray:
        return None
    number = len(state.rounds) + 2
    last = PAIR_ROUNDS if slow is None else MAX_ROUNDS - 1
    order = ring(evidence.map, state.seed)
    desk = _Desk(evidence, order)
    others = [end for end in suspects if slow is None or end not in slow]
    silent = (
        slow is not None
        and 1 < len(others) < len(suspects)
        and all(played.round.phase is not Phase.SILENCE for played in state.rounds)
        and number + CONFIRMATIONS < MAX_ROUNDS
        and _unaccounted(evidence, others, slow)
    )
    if silent:
        suspects = others
        probes = list(desk.pair_up(others, [_Pools(evidence.map, others)], Role.SUSPECTS))
    else:
        probes = list(_with_each_other(desk, evidence, others, left=last - number + 1))
    # Endpoints that another suspect cleared come first: whoever shares their boundary is cleared by
    # them as well.
    good = [i for i in order if evidence.good[i] and i not in evidence.shaded]
    pools = [_Pools(evidence.map, good)]
    if (vouched := evidence.cleared_by_suspects) and min(evidence.map.domain, default=-1) < 0:
        pools.insert(0, _Pools(evidence.map, [i for i in good if i in vouched]))
    accused = [i for i in order if i in suspects] + [i for i in order if i in gray]
    nearly = [s for s in evidence.suspects if evidence.confirmed[s] == CONFIRMATIONS - 1]
    detail = accused if number == last else nearly
    probes += desk.pair_up(accused, pools, Role.ACCUSED, again=True, detail=set(detail))
    for a, b in edges:
        if not desk.used[a] and not desk.used[b]:
            probes.append(desk.seat(a, b, Role.EDGE))
    if not probes:
        return None
    if suspects:
        probes += _witnesses(desk, evidence, good)
    # Without a suspect, everybody is measured again beside it: what comes and goes is seen only by
    # looking often.
    most, detailed = CONTROLS if suspects else len(order), any(probe.detail for probe in probes)
    probes += _controls(desk, evidence, good, detailed, most)
    return _round(state, Phase.SILENCE if silent else Phase.CONFIRM, probes)


def at(step: Round, state: State, to: float, now: float | None, until: float | None) -> Round:
    """The round, not before that second where there is time for it."""
    moment = state.rounds[-1].at if now is None else now
    wait = max(0.0, to - moment)
    return step if until is not None and moment + wait > until else step._replace(wait=wait)


def halves(state: State, evidence: Evidence, done: int) -> Round | None:
    """Two groups at once: by domain (``done`` = 0), then interleaved. None of less than four."""
    order = ring(evidence.map, state.seed)
    if len(order) < 4:
        return None
    # By domain: at the border nearest to the middle of the ring, if there is one.
    middle, domain = len(order) // 2, [evidence.map.domain[end] for end in order]
    borders = [i for i in range(2, len(order) - 1) if domain[i] != domain[i - 1]]
    cut = min(borders, key=lambda i: abs(i - middle), default=middle)
    groups = (order[::2], order[1::2]) if done else (order[:cut], order[cut:])
    return _round(state, Phase.HALVES, [Probe(tuple(sorted(group)), Role.HALF) for group in groups])


def _unaccounted(evidence: Evidence, others: list[int], slow: Container[int]) -> bool:
    """Whether one of the others was bad on a path with no end that is slow to itself."""
    edges = [edge for end in others for edge in evidence.graded[end]]
    return any(e.grade is Grade.BAD and not (e.a in slow or e.b in slow) for e in edges)


def _with_each_other(
    desk: _Desk, evidence: Evidence, suspects: list[int], left: int
) -> Iterator[Probe]:
    """Suspects found bad, paired once among themselves if time for confirmations remains."""
    ready = [
        s
        for s in suspects
        if s not in evidence.met_suspects
        and (times := evidence.rounds_against(s)) >= 1
        and left > max(CONFIRMATIONS - evidence.confirmed[s], evidence.enough - times)
    ]
    ready.sort(key=desk.order.index)
    return desk.pair_up(ready, [_Pools(evidence.map, ready)], Role.SUSPECTS)


def _witnesses(desk: _Desk, evidence: Evidence, good: list[int]) -> Iterator[Probe]:
    """A pair of unused known-good endpoints for each class of paths that would accuse a suspect if
    one of them were known to be good.
    """
    shape = evidence.map
    for key in evidence.unwitnessed:
        free = [end for end in good if not desk.used[end] and shape.kind[end] in key[:2]]
        for a, b in combinations(free[:WITNESSES], 2):
            if shape.edge_class(a, b) == key:
                yield desk.seat(a, b, Role.EDGE)
                break


def _controls(
    desk: _Desk, evidence: Evidence, good: list[int], detail: bool, most: int
) -> list[Probe]:
    """Pairs of unused known-good endpoints of one kind and domain, else of one kind."""
    shape = evidence.map
    for alike in ((shape.kind, shape.domain), (shape.kind,)):
        pairs: list[tuple[int, int]] = []
        waiting: dict[tuple[int, ...], int] = {}
        for end in good:
            if desk.used[end] or len(pairs) == most:
                continue
            key = tuple(of[end] for of in alike)
            if key in waiting:
                pairs.append((waiting.pop(key), end))
            else:
                waiting[key] = end
        if pairs:
            return [desk.seat(a, b, Role.CONTROL, detail=detail) for a, b in pairs]
    return []


class _Desk:
    """Seats endpoints into the probes of one round: each at most once."""

    def __init__(self, evidence: Evidence, order: list[int]) -> None:
        self.order = order
        self.used = bytearray(len(order))
        self._evidence = evidence

    def seat(self, a: int, b: int, role: Role, *, detail: bool = False) -> Probe:
        self.used[a] = self.used[b] = 1
        return _pair(a, b, role, detail=detail)

    def pair_up(
        self,
        ones: Iterable[int],
        pools: list[_Pools],
        role: Role,
        *,
        again: bool = False,
        detail: Container[int] = (),
    ) -> Iterator[Probe]:
        """A probe for each one that is free and finds a partner."""
        for end in ones:
            if not self.used[end] and (other := self.partner(end, pools, again=again)) is not None:
                yield self.seat(end, other, role, detail=end in detail)

    def partner(self, end: int, pools: list[_Pools], *, again: bool) -> int | None:
        """The nearest free one that ``one`` has not met, on a comparable path first; with
        ``again``, at worst a met one.

        A path is comparable where one of its class was good: only there does a bad one accuse its
        end. A partner of a lesser kind comes last: what limits the pair is its own rate.
        """
        ranked: list[tuple[tuple[bool, bool, int], int]] = []
        for pool in pools:
            for other in pool.near(end, self.used):
                met = self._evidence.met[min(end, other), max(end, other)]
                if other == end or (met and not again):
                    continue
                key = self._evidence.map.edge_class(end, other)
                unknown = key not in self._evidence.witnessed
                rank = (unknown, not self._evidence.clears(end, key), met)
                if rank == (False, False, 0):
                    return other
                ranked.append((rank, other))
        return min(ranked, key=lambda each: each[0])[1] if ranked else None


class _Pools:
    """Candidates, nearest first: of the same kind and domain, of the same kind, any."""

    def __init__(self, shape: EdgeMap, members: list[int]) -> None:
        self._shape = shape
        self._lists: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self._heads: dict[tuple[int, ...], int] = defaultdict(int)
        for end in members:
            for key in self._keys(end):
                self._lists[key].append(end)

    def _keys(self, end: int) -> tuple[tuple[int, ...], ...]:
        kind = self._shape.kind[end]
        return (kind, self._shape.domain[end]), (kind,), ()

    def near(self, end: int, used: Sequence[int]) -> Iterator[int]:
        """Unused ones. A list's used head is forgotten: going through it for all stays linear."""
        for key in self._keys(end):
            members = self._lists[key]
            while self._heads[key] < len(members) and used[members[self._heads[key]]]:
                self._heads[key] += 1
            for i in range(self._heads[key], len(members)):
                if not used[members[i]]:
                    yield members[i]


def _pair(a: int, b: int, role: Role, *, detail: bool = False) -> Probe:
    return Probe((a, b) if a < b else (b, a), role, detail)


def _round(state: State, phase: Phase, probes: list[Probe]) -> Round:
    return Round(len(state.rounds) + 2, phase, tuple(probes))
