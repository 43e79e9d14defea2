"""Members of gangs whose bind waits for the others, and who of them is woken by what.

Of a gang of hundreds each waits here for all: who arrives wakes the first one when the gang is
whole, the first one's Binding wakes the others, and a member's own change that member. To wake all
at each change would cost the square of their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from preflight_gpu_scheduler.api.allocation import Reserved
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.core.gang_reserve import may_bind

__all__ = ["GangBarrier", "Waiting"]

Key = tuple[str, str]


class Waiting:
    """One member: the version of its pod that is known, and a bell."""

    def __init__(self, pod: Pod, plan: str) -> None:
        self.pod, self.plan = pod, plan
        self.bell = anyio.Event()

    async def change(self, seconds: float) -> None:
        """Until it is woken, ``seconds`` at most."""
        with anyio.move_on_after(seconds):
            await self.bell.wait()
        self.bell = anyio.Event()


class GangBarrier:
    """Everything in it is of one event loop; nothing but :meth:`Waiting.change` waits."""

    def __init__(self) -> None:
        self._plans: dict[str, dict[str, Waiting]] = {}  # by plan, then by the pod's uid
        self._keys: dict[Key, Waiting] = {}
        self._begun: set[str] = set()  # plans whose first member was bound here

    @contextmanager
    def joined(self, pod: Pod, reserved: Reserved) -> Iterator[Waiting]:
        """``pod``, which its plan gave ``reserved``, waits as long as this is entered."""
        uid, plan = pod.metadata.uid, reserved.plan
        mine = Waiting(pod, plan)
        here = self._plans.setdefault(plan, {})
        here[uid] = self._keys[pod.key] = mine
        if len(here) >= reserved.members and (first := here.get(reserved.first_uid)) is not None:
            first.bell.set()
        try:
            yield mine
        finally:
            # Two schedulers may have asked about one pod: the later one's place stays.
            if here.get(uid) is mine:
                del here[uid]
            if self._keys.get(pod.key) is mine:
                del self._keys[pod.key]
            if not here and self._plans.get(plan) is here:
                del self._plans[plan]
                self._begun.discard(plan)

    def may_bind(self, mine: Waiting, first: Pod | None) -> bool:
        """Whether ``mine`` may be bound now. ``first``: the plan's first member as
        a mirror has it.
        """
        reserved = mine.pod.reserved
        begun = mine.plan in self._begun or (
            reserved is not None
            and first is not None
            and first.bound
            and first.metadata.uid == reserved.first_uid
        )
        return may_bind(mine.pod, len(self._plans.get(mine.plan, ())), begun)

    def bound(self, mine: Waiting) -> None:
        """``mine`` is bound: if it is its plan's first, the others' turn has come."""
        reserved = mine.pod.reserved
        if reserved is not None and reserved.first_uid == mine.pod.metadata.uid:
            self._begun.add(mine.plan)
            self._wake(mine.plan)

    def changed(self, key: Key, pod: Pod | None) -> None:
        """A pod is another one now, or None: gone."""
        if (mine := self._keys.get(key)) is not None:
            mine.bell.set()
        reserved = pod.reserved if pod is not None and pod.bound else None
        if reserved is not None and pod is not None and reserved.first_uid == pod.metadata.uid:
            self._wake(reserved.plan)

    def _wake(self, plan: str) -> None:
        for one in self._plans.get(plan, {}).values():
            one.bell.set()
