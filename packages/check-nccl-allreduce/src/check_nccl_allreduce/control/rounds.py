"""What the leader knows of one launch, or of one round of probes. Plain data, for the decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .messages import LaunchOrder, Leaving, Opened, ProbeOrder, RankReport, RankStage


@dataclass(frozen=True)
class Probes:
    """Probes to run at the same time: the ranks of each one's members, the first of which holds the
    store. ``orders``: by rank, as a member gets it but for that store's place. ``wait``: seconds to
    let pass before the round starts.
    """

    round: int
    groups: tuple[tuple[int, ...], ...]
    orders: dict[int, ProbeOrder]
    wait: float = 0.0

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
