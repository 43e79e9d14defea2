"""When the members of an incomplete gang get the answer who is missing: each is a write.

Pure: the caller gives the time (seconds of a monotonic clock).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from preflight_gang.core.membership import GangMember, MemberStage
from preflight_gang.core.reconcile import MemberAnswer

__all__ = ["AnswerPace"]

FIRST: Final = 1.0
"""Seconds, at least, that a new gang is given to complete before its members get the answer to
wait: most do, and need one write.
"""
NEXT: Final = 5.0
"""Seconds, at least, between two rounds of answers who is still missing."""
_FIRST_MEMBERS, _NEXT_MEMBERS = 200, 20
"""Members a second for which a round is put off further: a large gang takes longer to come, and to
write to.
"""
SLICE: Final = 64
"""Members written to before it is seen again whether the gang is complete: nobody's rank waits
behind a thousand waits.
"""


class AnswerPace:
    """Of one gang, from its first address at ``since`` until it is sealed."""

    def __init__(self, since: float) -> None:
        self.since = since
        self._begun: float | None = None
        self._left: list[str] = []

    def due(
        self, members: Iterable[GangMember], answers: Mapping[str, MemberAnswer], now: float
    ) -> tuple[dict[str, MemberAnswer], float | None]:
        """The answers but for the waits whose turn it is not; and after how many seconds to ask
        again.

        A member without a roster whose gang check does not run yet gets no answer to wait: most
        gangs are complete before their first member asks.
        """
        waiting: dict[str, bool] = {}
        left_out: set[str] = set()
        for one in members:
            answer = answers.get(one.uid)
            if answer is None or answer.answer != "wait":
                continue
            if one.published is None and one.stage is not MemberStage.WAITING:
                left_out.add(one.uid)
            else:
                published = one.published
                waiting[one.uid] = published is None or (
                    published.answer,
                    published.generation,
                ) != (
                    "wait",
                    answer.generation,
                )
        again: float | None = None
        if waiting:
            turn, again = self.turn(waiting, now)
            left_out |= waiting.keys() - set(turn)
        return {uid: answer for uid, answer in answers.items() if uid not in left_out}, again

    def turn(self, waiting: Mapping[str, bool], now: float) -> tuple[list[str], float | None]:
        """Who gets an answer now, and after how many seconds to ask again (None: when something has
        changed).

        ``waiting``: uids of those who wait, and whether each has still to hear it for the first
        time.
        """
        due: float | None = self._due(len(waiting))
        if not self._left and due is not None and now >= due:
            self._begun, self._left = now, [uid for uid, new in waiting.items() if not new]
            due = None
        if self._begun is None:
            return [], due and due - now
        new = [uid for uid, first in waiting.items() if first]
        old = [uid for uid in self._left if not waiting.get(uid, True)]
        turn, self._left = [*new, *old][:SLICE], old[max(0, SLICE - len(new)) :]
        if self._left or len(new) > SLICE:
            return turn, 0.0
        return turn, due and max(0.0, due - now)

    def _due(self, members: int) -> float:
        if self._begun is None:
            return self.since + max(FIRST, members / _FIRST_MEMBERS)
        return self._begun + max(NEXT, members / _NEXT_MEMBERS)
