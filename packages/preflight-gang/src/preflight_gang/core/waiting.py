"""Events on members that wait for long: who is missing and why, for those who do not read the
check's log; and on members whose pods cannot be annotated: their answers.

Pure: the caller gives the time (seconds of one clock).
"""

from __future__ import annotations

from typing import Any, Final

from preflight_gang.core.events import event
from preflight_gang.core.membership import GangMember, MemberStage
from preflight_gang.core.reconcile import MemberAnswer
from preflight_gang.core.snapshot import GangView

__all__ = ["PATIENCE", "WaitingEvents", "refused_event", "waiting_event"]

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
