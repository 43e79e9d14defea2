"""What the leader knows of one launch, or of one round of probes, and how long it waits for it: its
members' words count, each once. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ..localise import Round
from .messages import HeartbeatPace, LaunchOrder, Leaving, Opened, ProbeOrder, RankReport, RankStage

SETTLE: Final = 3.0
"""Seconds to hear the others once one member has failed: who fell over whom is in them."""
STALLED_AFTER: Final = 30.0
"""Seconds in which no rank gets further once all communicators work, and then it hangs."""
SLOWEST: Final = 1 / 3
"""Share of a first launch's time, where that is more: an iteration that takes less is measured,
and no hang. A second launch may take longer, but its iterations do not."""
PROBE_STALLED_AFTER: Final = 10.0
"""The same for a probe, which has one neighbour's speed and not that of the slowest of all."""
STALL_SHARE: Final = 0.5
"""Of the time that a launch or a probe has, where that is less."""
HEARTBEATS: Final = 3
"""Of which one at least reports an iteration that was done: a stall is not shorter."""


@dataclass(frozen=True)
class Probes:
    """Probes to run at the same time: the ranks of each one's members, the first of which holds the
    store. ``orders``: by rank, as a member gets it but for that store's place. ``step``: the round
    of localisation that they are, and ``skipped`` those just before it that cannot be run here.
    """

    round: int
    groups: tuple[tuple[int, ...], ...]
    orders: dict[int, ProbeOrder]
    step: Round
    skipped: tuple[Round, ...] = ()

    @property
    def common(self) -> ProbeOrder:
        """One of them, for what all have in common: times, size, fresh workers, hairpins or not."""
        return next(iter(self.orders.values()))

    @property
    def renews(self) -> bool:
        """Whether every member makes new workers first."""
        return self.common.fresh or self.common.hairpin > 0


Ordered = TypeVar("Ordered", LaunchOrder, Probes)


@dataclass
class _Heard(Generic[Ordered]):
    """What is heard of a round: reports and last stages by rank, who was lost and why, who left."""

    order: Ordered
    results: dict[int, RankReport] = field(default_factory=dict)
    stages: dict[int, RankStage] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    left: dict[int, Leaving] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """The round's number, from 1."""
        return self.order.round

    def is_ready(self, rank: int) -> bool:
        """Whether this member's communicator works, or it has reported."""
        stage = self.stages.get(rank, RankStage())
        return rank in self.results or stage.name in {"ready", "measuring", "done"}

    @property
    def troubled(self) -> bool:
        """Whether this cannot end well any more."""
        return bool(self.lost or self.left) or any(
            result.trouble is not None for result in self.results.values()
        )


@dataclass
class LaunchRound(_Heard[LaunchOrder]):
    """One launch of the whole gang. ``ready_after``: seconds until every member's communicator
    worked, 0 where that never was.
    """

    ready_after: float = 0.0


@dataclass
class ProbeRound(_Heard[Probes]):
    """One round of probes, as :class:`LaunchRound`. ``opened``: by rank, the stores, and who has
    new workers.

    ``at``: when it was over, on the leader's clock; ``took``: how many seconds, without the wait
    before it.
    """

    opened: dict[int, Opened] = field(default_factory=dict)
    at: float = 0.0
    took: float = 0.0


class Wait:
    """For some members of a round that has ``started``: until all of them are ready, ``within``
    these seconds, and until all have reported, ``over`` so many. A word of one of them costs the
    same however many there are.
    """

    def __init__(
        self,
        this: LaunchRound | ProbeRound,
        ranks: Iterable[int],
        started: float,
        pace: HeartbeatPace,
        *,
        within: float,
        over: float,
    ) -> None:
        self._this, self._started, self._within, self._over = this, started, within, over
        launch = isinstance(this, LaunchRound)
        stalled_after = max(STALLED_AFTER, SLOWEST * within) if launch else PROBE_STALLED_AFTER
        self._stall = min(STALL_SHARE * over, max(stalled_after, HEARTBEATS * pace.interval))
        self._settle = max(SETTLE, pace.interval)
        self.unready = set(ranks)
        self.unheard = set(self.unready)
        self._moved_at = started  # when one of them was last seen to get further
        self.troubled_at: float | None = None
        """Since when this cannot end well any more."""

    def news(self, rank: int, now: float) -> None:
        """What is known of ``rank`` has changed."""
        this = self._this
        result = this.results.get(rank)
        if result is not None:
            self.unheard.discard(rank)
        if this.is_ready(rank):
            self.unready.discard(rank)
        else:
            self.unready.add(rank)
        self._moved_at = now
        opened = this.opened.get(rank) if isinstance(this, ProbeRound) else None
        troubles = (part.trouble for part in (result, opened) if part is not None)
        if self.troubled_at is None and (
            rank in this.lost or any(trouble is not None for trouble in troubles)
        ):
            self.troubled_at = now

    @property
    def until(self) -> float:
        """When to stop waiting for reports; the start where they are all in."""
        if not self.unheard:
            return self._started
        end = self._started + self._over
        more = self._started + self._within if self.unready else self._moved_at + self._stall
        settled = end if self.troubled_at is None else self.troubled_at + self._settle
        return min(end, more, settled)
