"""One call for a claim at a time, and what a call does to the one before it.

A second Prepare joins the first. An Unprepare ends a Prepare that waits, and waits for one that
writes; whatever comes after an Unprepare waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CallEnded(Exception):
    """The call was ended by an Unprepare of its claim."""


class Late(Exception):
    """The call has not ended in its time, and cannot be ended: it writes."""


class Flight(Generic[T]):
    """One call under way."""

    def __init__(self, prepares: bool) -> None:
        self.prepares, self.writing, self.ending, self.waiting = prepares, False, False, 0
        self.task: asyncio.Task[T] | None = None
        self._limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def limited(self, end: float) -> AsyncGenerator[None]:
        """Raises TimeoutError at ``end``, by the loop's clock, unless it writes then."""
        async with asyncio.timeout_at(end) as self._limit:
            yield

    @contextmanager
    def writes(self) -> Generator[None]:
        """Within it the call is not ended: what has begun is finished, and undone afterwards."""
        self.writing = True
        if self._limit is not None:
            self._limit.reschedule(None)
        try:
            yield
        finally:
            self.writing = False

    def end(self) -> None:
        """Ask it to end, unless it writes."""
        if not self.writing and self.task is not None:
            self.ending = True
            self.task.cancel()


class Flights(Generic[T]):
    """The calls under way by their claims' uids; a caller has ``patience`` seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._under_way: dict[str, Flight[T]] = {}

    async def run(
        self, uid: str, work: Callable[[Flight[T]], Coroutine[Any, Any, T]], *, prepares: bool
    ) -> T:
        """The result of ``work``, or of the like call under way, which ends with its last caller.

        Raises :class:`CallEnded` and :class:`Late`.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience
        while (flight := self._under_way.get(uid)) is not None and (
            flight.prepares != prepares or flight.ending
        ):
            if flight.prepares:
                flight.end()
            await self._wait(flight, end)
        if flight is None:
            flight = self._under_way[uid] = Flight(prepares)
            flight.task = asyncio.create_task(work(flight))
            flight.task.add_done_callback(partial(self._landed, uid, flight))
        flight.waiting += 1
        try:
            task = await self._wait(flight, end)
            if task.cancelled():
                raise CallEnded
            return task.result()
        finally:
            flight.waiting -= 1
            if not flight.waiting and flight.prepares:
                flight.end()

    def _landed(self, uid: str, flight: Flight[T], _: asyncio.Task[T]) -> None:
        if self._under_way.get(uid) is flight:
            del self._under_way[uid]

    @staticmethod
    async def _wait(flight: Flight[T], end: float) -> asyncio.Task[T]:
        assert flight.task is not None
        left = end - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait({flight.task}, timeout=max(left, 0))
        if not done:
            raise Late
        return flight.task

    async def drain(self, seconds: float) -> None:
        """End what waits, and give what writes ``seconds`` to finish."""
        flights = list(self._under_way.values())
        for flight in flights:
            flight.end()
        tasks = [flight.task for flight in flights if flight.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
