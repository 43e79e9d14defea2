"""Two endpoints: neither has another partner. Each is measured to itself; where one is slow there
and the other is not, both once more, later. Pure.

The other end is no witness: who is slow to itself may be so by its leaf's port. So only a fact of a
node's own device blames it, where the pair is slow at two moments (*path*).
"""

from __future__ import annotations

from . import score
from .evidence import BAD
from .model import Measured, Phase, Probe, Role, Round, Score, State, Status, Zone
from .own import NOTHING, owned
from .score import BUSY, FATAL, KIND, LEAST_NOISE, NAMED, Hairpins

__all__ = ["MOST_ROUNDS", "ask", "culprit", "scored", "settle"]

AGAIN = (Phase.MATCH, Phase.HAIRPIN, Phase.HAIRPIN)
"""What follows the first hairpins where they differ: the pair, and each to itself twice. The gang's
own all-reduce is the pair's first time.
"""
MOST_ROUNDS = 2 + len(AGAIN)
"""With the gang's own all-reduce and the first hairpins."""


def culprit(state: State, found: Hairpins) -> int | None:
    """Which of the two was bad to itself, each time, where the other was not; or, where there are
    no hairpins, has a fact of its own device against it. None where that is neither or both.
    """
    bad = [one for one in (0, 1) if found.bad.get(one) and not found.good.get(one)]
    if not found.bad and not found.good:
        bad = [one for one, said in owned(state).items() if said.factor >= NAMED]
    return bad[0] if len(bad) == 1 else None


def ask(state: State, found: Hairpins, now: float | None, until: float | None) -> Round | None:
    """The next round, or None. Only the wait depends on the time."""
    assert state.gang is not None
    done, number = len(state.rounds), len(state.rounds) + 2
    if not done:
        return Round(number, Phase.HAIRPIN, _alone())
    if culprit(state, found) is None:
        return None
    if (
        state.gang.zone is not Zone.BELOW
    ):  # nothing would be blamed: a hairpin more tells chance from what lasts
        return Round(number, Phase.HAIRPIN, _alone()) if done == 1 else None
    if done > (len(AGAIN) if found.bad else 1):
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
    """Of the culprit. The explanations are those of larger gangs."""
    own = found.bad.get(one, [])
    slow, fine = _pairs(state)
    bad = 1 + len(slow)  # with the gang's own all-reduce
    device = owned(state).get(one, NOTHING)
    path = min(KIND, (1 / LEAST_NOISE) ** (bad - 2 * len(fine))) if not _by_nvlink(state) else 1.0
    local = min(KIND, (1 / LEAST_NOISE) ** len(own) * device.factor)
    chance = (1 / LEAST_NOISE) ** (bad - 2 * len(fine) + len(own)) * device.factor
    first = state.rounds[0].at if state.rounds else 0.0
    late = [at for at in (*slow, *_times(own)) if at >= first + score.APART]
    spell = (1 / BUSY) * (1 / LEAST_NOISE) ** len(late) * (device.factor if late else 1.0)
    kinds = tuple(kind for kind, value in (("path", path), ("local", local)) if value >= KIND)
    return Score(chance, spell, path, local, kinds, device.told, itself=len(own))


def settle(score_: Score) -> str:
    """What would decide about the one that is only named."""
    if score_.itself and score_.spell < FATAL:
        return f"measure it again, at least {score.APART:g} s after the first time"
    return "test it with a third node, behind the same leaf"


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


def _by_nvlink(state: State) -> bool:
    """Whether what the two share passes no NIC."""
    a, b = state.endpoints
    return a.nvlink is not None and a.nvlink == b.nvlink
