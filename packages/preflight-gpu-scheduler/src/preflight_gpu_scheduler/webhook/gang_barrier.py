"""Binds of a gang's members, which wait for each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Set
from contextlib import contextmanager

import anyio

from preflight_gpu_scheduler.api.allocation import Reserved
from preflight_gpu_scheduler.api.types import Pod

Rung = Callable[[float], Awaitable[bool]]
"""Waits until one is woken, for so many seconds at most; whether one was."""


class GangBarrier:
    """Members whose binds wait for the others: by the start of their gang, and then by its plan.

    Who arrives wakes the first one of a plan when it is whole, and the first one's Binding wakes
    the others: to wake all at each change would cost the square of their number.
    """

    def __init__(self) -> None:
        self._bells: dict[str, dict[str, anyio.Event]] = {}

    def uids(self, room: str) -> Set[str]:
        """The uids of the pods that wait for a start, or a plan."""
        return self._bells.get(room, {}).keys()

    @contextmanager
    def joined(self, room: str, uid: str, plan: Reserved | None = None) -> Iterator[Rung]:
        """A pod waits as long as this is entered; of two waits of one pod the later one's stays."""
        here = self._bells.setdefault(room, {})
        bell = here[uid] = anyio.Event()

        async def rung(seconds: float) -> bool:
            nonlocal bell
            with anyio.move_on_after(seconds):
                await bell.wait()
            woken = bell.is_set()
            if woken and here.get(uid) is bell:
                bell = here[uid] = anyio.Event()
            return woken

        if plan is not None and len(here) >= plan.members:
            self.ring(room, plan.first_uid)
        try:
            yield rung
        finally:
            if here.get(uid) is bell:
                del here[uid]
            if not here and self._bells.get(room) is here:
                del self._bells[room]

    def ring(self, room: str, *uids: str) -> None:
        """Wake those of ``uids`` that wait there; without any, all."""
        here = self._bells.get(room, {})
        for uid in here.keys() & uids if uids else here:
            here[uid].set()

    def changed(self, pod: Pod) -> None:
        """Take note of a pod: the others' turn has come where it is their first one, and bound."""
        reserved = pod.reserved if pod.bound else None
        if reserved is not None and reserved.first_uid == pod.uid:
            self.ring(reserved.plan)
