"""What the leader knows of one launch. Plain data, for the decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import Leaving, Result, Stage, Start

__all__ = ["Round"]


@dataclass
class Round:
    """Reports and last stages by rank, who was lost and why, who left."""

    start: Start
    results: dict[int, Result] = field(default_factory=dict)
    stages: dict[int, Stage] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    left: dict[int, Leaving] = field(default_factory=dict)

    @property
    def troubled(self) -> bool:
        """Whether this launch cannot end well any more."""
        return bool(self.lost or self.left) or any(result.trouble is not None for result in self.results.values())
