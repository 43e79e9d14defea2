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
    """For some members of a round. A word of one of them costs the same however many there are."""

    def __init__(self, this: LaunchRound | ProbeRound, ranks: Iterable[int], now: float) -> None:
        self._this = this
        self.unready = set(ranks)
        self.unheard = set(self.unready)
        self.moved_at = now
        """When one of them was last seen to get further."""
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
        self.moved_at = now
        opened = this.opened.get(rank) if isinstance(this, ProbeRound) else None
        troubles = (part.trouble for part in (result, opened) if part is not None)
        if self.troubled_at is None and (
            rank in this.lost or any(trouble is not None for trouble in troubles)
        ):
            self.troubled_at = now

    def _until(self, end: float, pace: HeartbeatPace) -> float:
        return (
            end
            if self.troubled_at is None
            else min(end, self.troubled_at + max(SETTLE, pace.interval))
        )


def _stall(most: float, whole: float, pace: HeartbeatPace) -> float:
    return min(STALL_SHARE * whole, max(most, HEARTBEATS * pace.interval))


def of_launch(
    wait: Wait, started: float, ready_within: float, over_within: float, pace: HeartbeatPace
) -> float:
    """Until when to wait for the reports of a launch."""
    if wait.unready:
        end = started + min(ready_within, over_within)
    else:
        end = min(started + over_within, wait.moved_at + _stall(STALLED_AFTER, over_within, pace))
    return wait._until(end, pace)


def of_probe(wait: Wait, started: float, init: float, timeout: float, pace: HeartbeatPace) -> float:
    """Until when to wait for the reports of one probe; ``started`` where they are all in."""
    if not wait.unheard:
        return started
    if wait.unready:
        end = started + init
    else:
        end = min(started + timeout, wait.moved_at + _stall(PROBE_STALLED_AFTER, timeout, pace))
    return wait._until(end, pace)
