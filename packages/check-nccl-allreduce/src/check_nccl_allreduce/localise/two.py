"""Two endpoints: neither has another partner. Each is measured to itself; where one is slow there
and the other is not, both once more, later. Pure.

The other end is no witness: who is slow to itself may be so by its leaf's port. So only a fact of a
node's own device blames it, where the pair is slow at two moments (*path*).
"""

from __future__ import annotations

from . import rounds, score
from .model import Phase, Probe, Role, Round, Score, Status, Suspect, Zone
from .references import BAD
from .score import BUSY, FATAL, KIND, LEAST_NOISE, NAMED, NOTHING
from .witness import Court

AGAIN = (Phase.MATCH, Phase.HAIRPIN, Phase.HAIRPIN)
"""What follows the first hairpins where they differ: the pair, and each to itself twice. The gang's
own all-reduce is the pair's first time."""
MOST_ROUNDS = 2 + len(AGAIN)
"""With the gang's own all-reduce and the first hairpins."""


def suspected(court: Court) -> int | None:
    """Which of the two was bad to itself, each time, where the other was not; or, where there are
    no hairpins, has a fact of its own device against it. None where that is neither or both.
    """
    hairpins = court.hairpins
    bad = [end for end in (0, 1) if hairpins.bad.get(end) and not hairpins.good.get(end)]
    if not hairpins.bad and not hairpins.good:
        bad = court.marked
    return bad[0] if len(bad) == 1 else None


def ask(court: Court, now: float | None, until: float | None) -> Round | None:
    """The next round, or None. Only the wait depends on the time."""
    state, done = court.state, len(court.state.rounds)
    alone = Round(done + 2, Phase.HAIRPIN, tuple(Probe((end,), Role.HAIRPIN) for end in (0, 1)))
    if not done:
        return alone
    if suspected(court) is None:
        return None
    if court.zone is not Zone.BELOW:
        # Nothing would be blamed: a hairpin more tells chance from what lasts.
        return alone if done == 1 else None
    if done > (len(AGAIN) if court.hairpins.bad else 1):
        return None
    if AGAIN[done - 1] is Phase.HAIRPIN:
        return alone
    pair = Round(done + 2, Phase.MATCH, (Probe((0, 1), Role.MATCH),))
    return rounds.at(pair, state, state.rounds[0].at + score.APART, now, until)


def culprit(court: Court) -> Suspect | None:
    """The one that is suspected, and what is known of it; with a witness where it is to blame."""
    end = suspected(court)
    if end is None:
        return None
    itself, device = tuple(court.hairpins.bad.get(end, ())), court.ports.get(end, NOTHING)
    weighed = _scored(court, end)
    guilty = (
        device.factor >= NAMED
        and not any(court.busy(each) for each in (0, 1))
        and court.zone is Zone.BELOW
        and min(weighed.noise, weighed.spell, weighed.path * weighed.local) >= FATAL
    )
    settle = "test it with a third node, behind the same leaf"
    if itself and weighed.spell < FATAL:
        settle = f"measure it again, at least {score.APART:g} s after the first time"
    witness = f"its own devices say why: {device.text}" if guilty else ""
    symptom, share = itself[-1].status if itself else Status.OK, court.evidence.share(itself)
    return Suspect(end, symptom, share, itself, "", weighed, witness, settle)


def _scored(court: Court, end: int) -> Score:
    """Of the suspected one. The explanations are those of larger gangs."""
    state, own = court.state, court.hairpins.bad.get(end, [])
    slow, fine = _pairs(court)
    bad = 1 + len(slow) - 2 * fine  # with the gang's own all-reduce
    device = court.ports.get(end, NOTHING)
    a, b = state.endpoints
    by_nics = a.nvlink is None or a.nvlink != b.nvlink
    path = min(KIND, (1 / LEAST_NOISE) ** bad) if by_nics else 1.0
    local = min(KIND, (1 / LEAST_NOISE) ** len(own) * device.factor)
    chance = (1 / LEAST_NOISE) ** (bad + len(own)) * device.factor
    first = state.rounds[0].at if state.rounds else 0.0
    late = [at for at in (*slow, *(row.at for row in own)) if at >= first + score.APART]
    spell = (1 / BUSY) * (1 / LEAST_NOISE) ** len(late) * (device.factor if late else 1.0)
    kinds = tuple(kind for kind, value in (("path", path), ("local", local)) if value >= KIND)
    return Score(chance, spell, path, local, kinds, device.text, itself=len(own))


def _pairs(court: Court) -> tuple[list[float], int]:
    """When the pair, measured again, was below its floor or no faster than the gang had been, and
    how often it was better.
    """
    floors = [endpoint.pair_floor for endpoint in court.state.endpoints]
    least = court.gbps / BAD if None in floors else min(floor or 0.0 for floor in floors)
    again = [
        (played.results[0].gbps < least, played.at)
        for played in court.state.rounds
        if played.round.phase is Phase.MATCH and played.results[0].status is Status.OK
    ]
    slow = [at for below, at in again if below]
    return slow, len(again) - len(slow)
