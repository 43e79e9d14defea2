"""What is counted of the gangs of one world, and how sure a share of so many gangs is."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from check_nccl_allreduce.localise import Verdict


@dataclass(slots=True)
class Tally:
    """Figures of one world. Nodes are counted unless the name says gangs.

    ``recall_named`` is a share of all bad nodes, ``recall_blamed`` of those that are not alone
    behind their switch (``judged``).
    """

    gangs: int = 0
    bad: int = 0
    judged: int = 0
    healthy: int = 0
    healthy_blamed: int = 0
    gangs_healthy_blamed: int = 0
    healthy_named: int = 0
    bad_blamed: int = 0
    bad_named: int = 0
    inconclusive: int = 0
    rounds: int = 0
    max_rounds: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        verdict: Verdict,
        bad: set[int],
        judged: frozenset[int],
        size: int,
        blamable: set[int],
    ) -> None:
        """Count one gang: its verdict against the nodes that are truly ``bad``; ``judged`` are
        those that recall of blame counts, ``blamable`` those whom to blame is right.
        """
        blamed, named = set(verdict.blamed), set(verdict.named)
        wrongly = blamed - blamable
        self.gangs += 1
        self.bad += len(bad)
        self.judged += len(judged)
        self.healthy += size - len(bad)
        self.healthy_blamed += len(wrongly)
        self.gangs_healthy_blamed += bool(wrongly)
        self.healthy_named += len(named - bad)
        self.bad_blamed += len(blamed & judged)
        self.bad_named += len(named & bad)
        self.inconclusive += verdict.inconclusive
        self.rounds += verdict.rounds
        self.max_rounds = max(self.max_rounds, verdict.rounds)
        self.kinds[verdict.kind] += 1

    def merge(self, other: Tally) -> None:
        """Add the counts of another process."""
        for name in self.__slots__:
            if name != "max_rounds":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_rounds = max(self.max_rounds, other.max_rounds)

    def figures(self) -> dict[str, Any]:
        """The counts and shares, as the bench's file has them."""
        return {
            "gangs": self.gangs,
            "bad": self.bad,
            "judged": self.judged,
            "bound_percent": round(bound(self.gangs_healthy_blamed, self.gangs), 4),
            "healthy_blamed": self.healthy_blamed,
            "gangs_healthy_blamed": self.gangs_healthy_blamed,
            "healthy_named": self.healthy_named,
            "recall_blamed": round(self.bad_blamed / self.judged, 6) if self.judged else None,
            "recall_named": round(self.bad_named / self.bad, 6) if self.bad else None,
            "inconclusive": self.inconclusive,
            "max_rounds": self.max_rounds,
            "mean_rounds": round(self.rounds / self.gangs, 3) if self.gangs else None,
            "kinds": dict(self.kinds.most_common()),
        }


def bound(blamed: int, gangs: int) -> float:
    """Percent: with 95 % confidence the true share is at most that (Wilson's score bound, and for
    none found the rule of three).
    """
    if not gangs:
        return 100.0
    if not blamed:
        return min(100.0, 300.0 / gangs)
    z, share = 1.645, blamed / gangs
    centre, wide = (
        share + z * z / (2 * gangs),
        z * math.sqrt(share * (1 - share) / gangs + (z / (2 * gangs)) ** 2),
    )
    return 100 * (centre + wide) / (1 + z * z / gangs)
