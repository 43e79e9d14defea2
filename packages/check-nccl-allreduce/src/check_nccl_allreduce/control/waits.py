"""How long a leader waits for a launch, or for each probe of a round: what its members say counts,
each word once. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .pace import HeartbeatPace
from .rounds import LaunchRound, ProbeRound

SETTLE: Final = 3.0
"""Seconds to hear the others once one member has failed: who fell over whom is in them."""
STALLED_AFTER: Final = 30.0
"""Seconds in which no rank gets further once all communicators work, and then it hangs."""
PROBE_STALLED_AFTER: Final = 10.0
"""The same for a probe, which has one neighbour's speed and not that of the slowest of all."""
STALL_SHARE: Final = 0.5
"""Of the time that a launch or a probe has, where that is less."""
HEARTBEATS: Final = 3
"""Of which one at least reports an iteration that was done: a stall is not shorter."""


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
        stalled_after = STALLED_AFTER if isinstance(this, LaunchRound) else PROBE_STALLED_AFTER
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
