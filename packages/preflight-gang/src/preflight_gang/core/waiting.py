"""When members of an incomplete gang are answered who is missing, and which of them get an Event;
and the Events of members whose pods cannot be annotated.

Pure: the caller gives the time (seconds of one clock).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from preflight_kube.runtime.events import Regarding, event
from preflight_proto import names

from preflight_gang.core.membership import GangMember, MemberStage
from preflight_gang.core.reconcile import MemberAnswer
from preflight_gang.core.snapshot import GangView

FIRST: Final = 1.0
"""Seconds, at least, until a new gang's members are answered to wait: most need but one write."""
NEXT: Final = 5.0
"""Seconds, at least, between two rounds of answers who is still missing."""
_FIRST_MEMBERS, _NEXT_MEMBERS = 200, 20
"""Members a second for which a round is put off: a large gang takes longer to come and to write."""
ANSWERS: Final = 64
"""Members written to at once: nobody's rank in a complete gang waits behind a thousand waits."""


class AnswerPace:
    """Of one gang, from its first address at ``since`` until it is sealed."""

    def __init__(self, since: float) -> None:
        self.since = since
        self._begun: float | None = None
        self._left: list[str] = []

    def due(
        self, members: Iterable[GangMember], answers: Mapping[str, MemberAnswer], now: float
    ) -> tuple[dict[str, MemberAnswer], float | None]:
        """The answers but for waits whose turn it is not; the seconds until there may be more.

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
                waiting[one.uid] = not one.answered("wait", answer.generation)
        again: float | None = None
        if waiting:
            turn, again = self.turn(waiting, now)
            left_out |= waiting.keys() - set(turn)
        return {uid: answer for uid, answer in answers.items() if uid not in left_out}, again

    def turn(self, waiting: Mapping[str, bool], now: float) -> tuple[list[str], float | None]:
        """Who gets an answer now; after how many seconds to ask again (None: after a change).

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
    """Of one gang: since when who waits, and who has an Event. One a member and generation."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}
        self._emitted: set[tuple[str, int]] = set()

    def due(self, gang: GangView, now: float) -> tuple[list[GangMember], float | None]:
        """Who is to have an Event now; when to ask again, in seconds (None: after a change)."""
        here = {
            _wait(m): m
            for m in gang.members
            if m.stage is MemberStage.WAITING and m.published and m.published.answer == "wait"
        }
        self._since = {wait: self._since.get(wait, now) for wait in here}
        self._emitted &= here.keys()
        silent = self._since.keys() - self._emitted
        left = {
            wait: since + PATIENCE - now for wait, since in self._since.items() if wait in silent
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
    return _event(
        gang,
        one,
        about=f"waiting\0{one.published.generation}",
        good=True,
        reason="PreflightWaiting",
        message=f"gang {gang.id} waits: {'; '.join(one.published.missing)}",
        now=now,
    )


def refused_event(
    gang: GangView, one: GangMember, answer: MemberAnswer, now: str
) -> dict[str, Any]:
    """The Event that says why ``one`` has no answer, and which, to be created at ``now``."""
    words = {
        "wait": "; ".join(answer.missing),
        "sealed": f"rank {answer.rank} of generation {answer.generation}",
    }
    message = (
        f"gang {gang.id}: {gang.refused[one.uid]}; it cannot take part until the pod can be annotated, or is created anew. "
        f"Its answer would be {answer.answer}: {words.get(answer.answer, answer.reason)}"
    )
    reason = "PreflightAnswerRefused"
    return _event(gang, one, about="refused", good=False, reason=reason, message=message, now=now)


def _event(gang: GangView, one: GangMember, **more: Any) -> dict[str, Any]:
    field = f"spec.initContainers{{{one.check}}}"
    regarding = Regarding("v1", "Pod", one.name, one.uid, gang.namespace, field)
    return event(names.MANAGED_BY, regarding, host=one.node, **more)
