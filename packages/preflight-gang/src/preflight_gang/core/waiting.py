"""When the members of an incomplete gang get the answer who is missing, and which of them an Event;
and the Events of members whose pods cannot be annotated.

Pure: the caller gives the time (seconds of one clock).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from preflight_gang.core.events import event
from preflight_gang.core.membership import GangMember, MemberStage
from preflight_gang.core.reconcile import MemberAnswer
from preflight_gang.core.snapshot import GangView

__all__ = ["ANSWERS", "PATIENCE", "AnswerPace", "WaitingEvents", "refused_event", "waiting_event"]

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
ANSWERS: Final = 64
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
        turn, self._left = [*new, *old][:ANSWERS], old[max(0, ANSWERS - len(new)) :]
        if self._left or len(new) > ANSWERS:
            return turn, 0.0
        return turn, due and max(0.0, due - now)

    def _due(self, members: int) -> float:
        if self._begun is None:
            return self.since + max(FIRST, members / _FIRST_MEMBERS)
        return self._begun + max(NEXT, members / _NEXT_MEMBERS)


PATIENCE: Final = 30.0
"""Seconds that a member has waited before it gets an Event: most gangs are complete long before."""
SLICE: Final = 16
"""Events at once: nobody's rank waits behind a thousand of them."""


class WaitingEvents:
    """Of one gang: since when which member waits, and which of them has its Event. One a member and
    generation.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}
        self._emitted: set[tuple[str, int]] = set()

    def due(self, gang: GangView, now: float) -> tuple[list[GangMember], float | None]:
        """Who is to have an Event now, and after how many seconds to ask again (None: when
        something has changed).
        """
        here = {
            _wait(m): m
            for m in gang.members
            if m.stage is MemberStage.WAITING and m.published and m.published.answer == "wait"
        }
        self._since = {wait: self._since.get(wait, now) for wait in here}
        self._emitted &= here.keys()
        left = {
            wait: since + PATIENCE - now
            for wait, since in self._since.items()
            if wait not in self._emitted
        }
        due = [wait for wait, seconds in left.items() if seconds <= 0]
        if len(due) > SLICE:
            return [here[wait] for wait in due[:SLICE]], 0.0
        return [here[wait] for wait in due], min((s for s in left.values() if s > 0), default=None)

    def emitted(self, one: GangMember) -> None:
        """``one`` has its Event: it is not due again in this generation."""
        self._emitted.add(_wait(one))


def _wait(one: GangMember) -> tuple[str, int]:
    return one.uid, one.published.generation if one.published else 0


def waiting_event(gang: GangView, one: GangMember, now: str) -> dict[str, Any]:
    """The Event that says for whom ``one`` waits, to be created at ``now`` (RFC 3339)."""
    assert one.published is not None
    return event(
        pod=one.name,
        namespace=gang.namespace,
        uid=one.uid,
        node=one.node,
        container=one.check,
        about=f"waiting\0{one.published.generation}",
        good=True,
        reason="PreflightWaiting",
        message=f"gang {gang.id} waits for {'; '.join(one.published.missing)}",
        now=now,
    )


def refused_event(
    gang: GangView, one: GangMember, answer: MemberAnswer, now: str
) -> dict[str, Any]:
    """The Event that says why ``one`` has no answer in its annotation, and what the answer is, to
    be created at ``now`` (RFC 3339).
    """
    words = {
        "wait": "; ".join(answer.missing),
        "sealed": f"rank {answer.rank} of generation {answer.generation}",
    }
    return event(
        pod=one.name,
        namespace=gang.namespace,
        uid=one.uid,
        node=one.node,
        container=one.check,
        about="refused",
        good=False,
        reason="PreflightAnswerRefused",
        message=(
            f"gang {gang.id}: {gang.refused[one.uid]}; it cannot take part until the pod can be annotated, or is created anew. "
            f"Its answer would be {answer.answer}: {words.get(answer.answer, answer.reason)}"
        ),
        now=now,
    )
