"""Two endpoints: neither has another partner. Each is measured to itself; where one is slow there
and the other is not, both once more, later. Pure.

What convicts among many is asked of two as well: the pair is slow at two moments (*path*), its
other end being good to itself, and the node is slow to itself over its own NICs where that one is
not (*local*).
"""

from __future__ import annotations

from . import score
from .evidence import BAD
from .model import Measured, Phase, Probe, Role, Round, Score, State, Status, Zone
from .own import NOTHING, owned
from .score import BUSY, FATAL, KIND, LEAST_NOISE, Hairpins

__all__ = ["MOST_ROUNDS", "ask", "contrast", "scored"]

AGAIN = (Phase.MATCH, Phase.HAIRPIN, Phase.HAIRPIN)
"""What follows the first hairpins where they differ: the pair, and each to itself twice. The gang's
own all-reduce is the pair's first time.
"""
MOST_ROUNDS = 2 + len(AGAIN)
"""With the gang's own all-reduce and the first hairpins."""


def contrast(found: Hairpins) -> int | None:
    """Which of the two was bad to itself, each time, where the other was not; None where that is
    neither or both.
    """
    bad = [one for one in (0, 1) if found.bad.get(one) and not found.good.get(one)]
    return bad[0] if len(bad) == 1 else None


def ask(state: State, found: Hairpins, now: float | None, until: float | None) -> Round | None:
    """The next round, or None. Only the wait depends on the time."""
    assert state.gang is not None
    done, number = len(state.rounds), len(state.rounds) + 2
    if not done:
        return Round(number, Phase.HAIRPIN, _alone())
    if contrast(found) is None:
        return None
    if (
        state.gang.zone is not Zone.BELOW
    ):  # nothing would be blamed: a hairpin more tells chance from what lasts
        return Round(number, Phase.HAIRPIN, _alone()) if done == 1 else None
    if done > len(AGAIN):
        return None
    if AGAIN[done - 1] is Phase.HAIRPIN:
        return Round(number, Phase.HAIRPIN, _alone())
    first = state.rounds[0].at
    moment = first if now is None else now
    wait = max(0.0, first + score.APART - moment)
    if until is not None and moment + wait > until:
        wait = 0.0
    return Round(number, Phase.MATCH, (Probe((0, 1), Role.MATCH),), wait)


def _alone() -> tuple[Probe, ...]:
    return (Probe((0,), Role.HAIRPIN), Probe((1,), Role.HAIRPIN))


def scored(state: State, found: Hairpins, one: int) -> Score:
    """Of the endpoint that is bad to itself. The explanations are those of larger gangs."""
    own = found.bad.get(one, [])
    slow, fine = _pairs(state)
    bad = 1 + len(slow)  # with the gang's own all-reduce
    path = min(KIND, (1 / LEAST_NOISE) ** (bad - 2 * len(fine))) if _not_alone(state) else 1.0
    local = min(KIND, (1 / LEAST_NOISE) ** len(own))
    chance = (1 / LEAST_NOISE) ** (bad - 2 * len(fine) + len(own))
    late = [at for at in (*slow, *_times(own)) if own and at >= own[0].at + score.APART]
    spell = (1 / BUSY) * (1 / LEAST_NOISE) ** len(late)
    kinds = tuple(kind for kind, value in (("path", path), ("local", local)) if value >= KIND)
    value = min(chance, path * local, spell)
    if not own or own[0].status is not Status.OK:
        settle = "test it with a third node"
    elif spell < FATAL:
        settle = f"measure it again, at least {score.APART:g} s after the first time"
    else:
        settle = "test it with a third node"
    ports = owned(state).get(one, NOTHING).told
    return Score(value, chance, path * local, spell, kinds, settle, ports=ports, itself=len(own))


def _times(rows: list[Measured]) -> list[float]:
    return [row.at for row in rows]


def _pairs(state: State) -> tuple[list[float], list[float]]:
    """When the pair, measured again, was below its floor or no faster than the gang had been, and
    when it was better.
    """
    assert state.gang is not None
    floors = [one.pair_floor for one in state.endpoints if one.pair_floor is not None]
    least = min(floors) if len(floors) == len(state.endpoints) else state.gang.gbps / BAD
    slow: list[float] = []
    fine: list[float] = []
    for played in state.rounds:
        if played.round.phase is Phase.MATCH and played.results[0].status is Status.OK:
            (slow if played.results[0].gbps < least else fine).append(played.at)
    return slow, fine


def _not_alone(state: State) -> bool:
    """Whether what the two share is no reason: not where labels put them behind different switches,
    nor where they meet over NVLink.
    """
    a, b = state.endpoints
    apart = a.domain is not None and b.domain is not None and a.domain != b.domain
    return not apart and (a.nvlink is None or a.nvlink != b.nvlink)
