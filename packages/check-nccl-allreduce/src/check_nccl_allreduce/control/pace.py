"""How often the parents speak to each other, and when silence means that one is lost. Pure: both
sides know it from the gang's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INTERVAL: Final = 1.0
"""Seconds between two heartbeats in a gang of up to :data:`MEMBERS_PER_SECOND`."""
MEMBERS_PER_SECOND: Final = 300
"""Members that a leader hears, and speaks to, in one second: beyond that each speaks less often,
and the leader's work stays the same.
"""
INTERVALS: Final = 5
"""Of silence, after which the other side is lost."""


@dataclass(frozen=True)
class HeartbeatPace:
    """``interval``: seconds between two heartbeats."""

    interval: float = INTERVAL

    @classmethod
    def of(cls, members: int) -> HeartbeatPace:
        """The pace for so many ``members``."""
        return cls(max(INTERVAL, members / MEMBERS_PER_SECOND))

    @property
    def lost_after(self) -> float:
        """Seconds without any frame after which the other side is lost; also what a handshake may
        take.
        """
        return INTERVALS * self.interval
