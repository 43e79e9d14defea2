"""How sure it is that what was measured of a suspect has a lasting cause at that node or its link.

Whether the cause is the node's own, :mod:`.witness` says. Factors are multiplied as if measurements
of different rounds were independent but for what the two named explanations share; no figure says
how often a fabric breaks that. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from .evidence import Evidence
from .model import Grade, Measured, Phase, Played, Role, Score, State, Status
from .own import NOTHING, Own

__all__ = ["FATAL", "NAMED", "Hairpins", "hairpins", "scored"]

FATAL = 1e6
"""From here on neither chance nor a busy spell explains what was measured."""
NAMED = 1e2
"""From here on what a node's own devices say is a fact of its own, and names it whatever else is
known."""
KIND = 1e3
"""The most that one kind of evidence counts: what all its measurements have in common may still be
another cause.
"""
APART = 45.0
"""Seconds from the first bad measurement, after which another one sees another moment: somebody
else's traffic explains both no more.
"""
LEAST_NOISE = 0.02
"""How often a healthy measurement is bad, at least: a few hundred healthy ones do not show that it
is rarer.
"""
USUAL, WEIGHT = 0.8, 60
"""What is believed of it beforehand: so many bad ones of so many."""
BUSY = 1e-2
"""How often a healthy node is busy for somebody else."""

EXPLAINED = 2 / 3
"""A node's fault slows it to itself as much as it slows its paths: a hairpin that lacks less than
this part of what they lack, on a log scale, has not shown what slows them."""
AS_SLOW = 0.5
"""How many of the healthy hairpins that are bad by chance are as bad as the paths are, at most."""

GOOD = 0.88
"""A good hairpin's share of what the controls of the same round reach, as that of an edge; what is
bad, the gang's noise says.
"""
ABOVE, SIGMAS, RESTLESS = 0.846, 3.0, 0.10
"""The largest of three normal values lies so many standard deviations above their middle one on
average; a bad hairpin so many below it. That matters from this share on."""


@dataclass(frozen=True, slots=True)
class Hairpins:
    """What the hairpins said. ``bad`` and ``good``: by endpoint, its measurements; ``rows``: all,
    for the matrix.
    """

    bad: dict[int, list[Measured]] = field(default_factory=dict)
    good: dict[int, list[Measured]] = field(default_factory=dict)
    rows: tuple[Measured, ...] = ()


def hairpins(state: State, evidence: Evidence) -> Hairpins:
    """Each hairpin against those of known-good endpoints of its kind in the same round; of two
    endpoints, against the other.
    """
    found = Hairpins()
    rows: list[Measured] = []
    for played in state.rounds:
        if played.round.phase is Phase.HAIRPIN:
            rows += _graded(state, evidence, played)
    for row in rows:
        if row.grade is Grade.BAD:
            found.bad.setdefault(row.a, []).append(row)
        elif row.grade is Grade.GOOD:
            found.good.setdefault(row.a, []).append(row)
    return Hairpins(found.bad, found.good, tuple(rows))


def _graded(state: State, evidence: Evidence, played: Played) -> list[Measured]:
    shape = evidence.map
    measured = [
        (probe.members[0], result)
        for probe, result in zip(played.round.probes, played.results, strict=True)
    ]
    two = len(state.endpoints) == 2
    quiet = evidence.references.bad()
    rows = []
    for one, result in measured:
        peers = [
            (other.gbps if other.status is Status.OK else 0.0)
            for peer, other in measured
            if peer != one
            and shape.kind[peer] == shape.kind[one]
            and (two or evidence.good[peer])
            and other.status not in {Status.UNJUDGED, Status.VOID}
        ]
        # The lower of the middle ones: a control that is too fast accuses nobody.
        peers.sort()
        reference = peers[(len(peers) - 1) // 2] if peers else 0.0
        grade = Grade.NONE
        if reference > 0:
            # Few gangs have edges enough to show their noise: how far the best control lies above
            # the middle one shows it too.
            above = (peers[-1] - reference) / reference
            limit = (
                min(quiet, 1 - SIGMAS * above / ABOVE)
                if len(peers) > 2 and above > RESTLESS
                else quiet
            )
            if result.status is Status.OK:
                share = result.gbps / reference
                grade = Grade.GOOD if share >= GOOD else Grade.BAD if share < limit else Grade.GRAY
            elif result.status in {Status.WRONG, Status.HANG, Status.ERROR}:
                grade = Grade.BAD
        rows.append(
            Measured(
                played.round.number,
                one,
                one,
                Role.HAIRPIN,
                result.status,
                result.gbps,
                reference,
                grade,
                at=played.at,
            )
        )
    return rows


def scored(
    state: State, evidence: Evidence, found: Hairpins, ports: Mapping[int, Own]
) -> dict[int, Score]:
    """Of each suspect, and of each endpoint whose own devices say something."""
    noise = (_noise(evidence, found, broken=False), _noise(evidence, found, broken=True))
    corrupted = state.gang.corrupted if state.gang is not None else -1
    asked = {
        row.a for row in found.rows if row.grade is not Grade.NONE and not evidence.good[row.a]
    }
    explained = {
        one: _explained(one, evidence, found) for one in {*evidence.suspects, *ports, *asked}
    }
    often = {one: len(rows) - 2 * len(found.good.get(one, [])) for one, rows in explained.items()}
    ranked = sorted(often[one] for one in asked)
    return {
        one: _score(
            one,
            evidence,
            found,
            noise,
            explained=explained[one],
            asked=len(asked) / (len(asked) - bisect_left(ranked, often[one]))
            if one in asked
            else 1.0,
            corrupted=one == corrupted,
            ports=ports.get(one, NOTHING),
        )
        for one in {**dict.fromkeys(evidence.suspects), **dict.fromkeys(ports)}
    }


def _noise(evidence: Evidence, found: Hairpins, *, broken: bool) -> float:
    """How often a measurement among known-good ends, or of a known-good end to itself, was bad in
    this very gang: slow, or worse.
    """
    seen = [
        e
        for e in evidence.edges
        if e.grade is not Grade.NONE and evidence.good[e.a] and evidence.good[e.b]
    ]
    seen += [e for e in found.rows if e.grade is not Grade.NONE and evidence.good[e.a]]
    bad = sum(1 for e in seen if e.grade is Grade.BAD and (e.status is not Status.OK or not broken))
    return max(LEAST_NOISE, (bad + USUAL) / (len(seen) + WEIGHT))


def _score(
    one: int,
    evidence: Evidence,
    found: Hairpins,
    noises: tuple[float, float],
    *,
    explained: list[Measured],
    asked: float,
    corrupted: bool,
    ports: Own,
) -> Score:
    """``explained``: its bad hairpins that are bad enough for its paths. ``asked``: how many
    suspects' hairpins were judged for each that is as bad to itself. ``corrupted``: its part of the
    gang's own sum was what was wrong there, which no path or switch explains. ``ports``: what its
    devices say themselves."""
    against = evidence.against.get(one, [])
    rounds = {e.round for e in against}
    own = found.bad.get(one, [])
    fine = len(found.good.get(one, []))
    everything = [*against, *own]
    broken = bool(everything) and all(e.status is not Status.OK for e in everything)
    noise = noises[broken]
    path = min(KIND, (1 / noise) ** len(rounds))
    local = _local(explained, fine, noise, asked) if explained else 0.1 if fine else 1.0
    sum_told = KIND if corrupted else 1.0
    # A node that is as fast to itself as others are, or nearly, has a port that does not matter;
    # and no port makes wrong data.
    nearly = (
        sum(1 for row in found.rows if row.a == one and row.grade is Grade.GRAY)
        if ports.told
        else 0
    )
    wrong = any(e.status is Status.WRONG for e in everything)
    device = 1.0 if wrong else max(1.0, ports.factor * noise ** (2 * fine + nearly))
    local = min(KIND, local * sum_told * device)
    first = min((e.at for e in everything), default=0.0)
    late = {e.round for e in everything if e.at >= first + APART}
    # Of what somebody else's traffic does not explain, chance would have to explain the rest.
    # Traffic neither hangs nor corrupts.
    spell = (
        float("inf")
        if broken
        else (1 / BUSY) * (1 / noise) ** len(late) * (device if late else 1.0)
    )
    chance = (1 / noise) ** max(0, len(rounds) + len(own) - 2 * fine) * sum_told * device
    kinds = ["path"] if path >= KIND else []
    if local >= KIND:
        kinds.append(
            "data" if corrupted or (own and all(e.status is Status.WRONG for e in own)) else "local"
        )
    told = ports.told if device >= NAMED else ""
    return Score(chance, spell, path, local, tuple(kinds), told, len(own), fine)


def _explained(one: int, evidence: Evidence, found: Hairpins) -> list[Measured]:
    """Of an endpoint's bad hairpins those that are bad enough for what its paths lack. What hangs,
    breaks or is wrong is always.
    """
    own, against = found.bad.get(one, []), evidence.against.get(one, [])
    if not own or not against:
        return own
    enough = max(evidence.share(against), 1e-6) ** EXPLAINED
    return [row for row in own if row.status is not Status.OK or row.gbps / row.reference <= enough]


def _local(explained: list[Measured], fine: int, noise: float, asked: float) -> float:
    """Where many are asked, chance has as many opportunities; but it does not make most of them bad
    to themselves (Benjamini and Hochberg, 1995).
    """
    often = len(explained) - 2 * fine
    return min(KIND, (1 / noise) ** often, (1 / (noise * AS_SLOW)) ** often / asked)
