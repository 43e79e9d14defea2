"""Which rules stand between a suspect and blame: the only ones that do, so that what each costs can
be counted. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from .evidence import Evidence
from .model import Score, State
from .rounds import CONFIRMATIONS
from .score import FATAL, Hairpins
from .silence import shadowed

__all__ = ["ObstacleRule", "obstacles"]


class ObstacleRule(StrEnum):
    """What must hold of a suspect before it is blamed, by what is said where it does not."""

    CONTRAST = "no known-good node in its domain"
    CONFIRMED = "fewer than two confirmations"
    ROUNDS = "evidence in too few rounds"
    CHANCE = "chance explains it"
    PATH = "no evidence of paths, or alone in its place"
    LOCAL = "not bad to itself"
    SPELL = "a busy spell explains it"
    SHADOW = "perhaps another suspect's doing"


def obstacles(
    state: State,
    evidence: Evidence,
    hairpins: Hairpins,
    scores: dict[int, Score],
    dark: Collection[int],
) -> dict[int, tuple[ObstacleRule, ...]]:
    """By suspect the rules that keep it from being blamed, none where it is guilty. ``dark``:
    domains in which nobody is known good.
    """
    domain, victims, where = evidence.map.domain, evidence.shaded, evidence.map.seen
    shares = {one: evidence.share(edges) for one, edges in evidence.against.items()}
    hidden = shadowed(
        state.rounds, hairpins.rows, where, evidence.suspects, victims=victims, shares=shares
    )
    return {
        one: tuple(_of(one, evidence, scores[one], dark=domain[one] in dark, hidden=one in hidden))
        for one in evidence.suspects
    }


def _of(
    one: int, evidence: Evidence, score: Score, *, dark: bool, hidden: bool
) -> list[ObstacleRule]:
    place = score.place < FATAL
    stands = {
        ObstacleRule.CONTRAST: dark,
        ObstacleRule.CONFIRMED: evidence.confirmed[one] < CONFIRMATIONS,
        ObstacleRule.ROUNDS: evidence.rounds_against(one) < evidence.enough,
        ObstacleRule.CHANCE: score.noise < FATAL,
        ObstacleRule.PATH: place and "path" not in score.kinds,
        ObstacleRule.LOCAL: place and not {"local", "data", "time"} & set(score.kinds),
        ObstacleRule.SPELL: score.spell < FATAL,
        ObstacleRule.SHADOW: hidden,
    }
    found = [rule for rule, is_so in stands.items() if is_so]
    # Each of these alone would let it pass, and together they do not: the weaker one is what lacks.
    if place and ObstacleRule.PATH not in found and ObstacleRule.LOCAL not in found:
        found.append(ObstacleRule.LOCAL)
    return found
