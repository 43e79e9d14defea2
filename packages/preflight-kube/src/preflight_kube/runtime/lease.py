"""Leader election by a Lease: whoever leads does so within a cancel scope that ends when the lease
may be lost.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from preflight_kube.client.client import Client
from preflight_kube.errors import KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.lease_lock import Leadership, LeaseLock, LeaseLost

__all__ = ["Leadership", "lead"]

RELEASE_SECONDS: Final = 3.0
"""How long an orderly end may take to inform the others; after that they find out by themselves."""

log = get_logger(__name__)


async def lead(
    client: Client,
    *,
    namespace: str,
    name: str,
    identity: str,
    duration: float = 15.0,
    renew: float | None = None,
    retry: float | None = None,
    body: Callable[[Leadership], Awaitable[None]],
) -> None:
    """Run ``body`` whenever this candidate holds the Lease ``namespace``/``name``; until cancelled.

    ``duration``: seconds after which another may take the lease from a silent holder. ``renew``:
    seconds without a successful renewal after which ``body`` is cancelled (default two thirds of
    ``duration``: the rest is for winding up). ``retry``: seconds between renewals, and between the
    looks of those who wait (default 2, less where ``duration`` is short). ``identity`` names one
    process at a time, such as the pod's name: a lease that bears it is taken over at once, with a
    new epoch.

    When ``body`` ends or ``lead`` is cancelled, the lease is released and another candidate takes
    it at its next look. What ``body`` raises ends ``lead``, after the release.
    """
    deadline = renew if renew is not None else duration * 2 / 3
    look = retry if retry is not None else min(2.0, deadline / 5)
    if not 0 < look < deadline < duration:
        raise ValueError(f"retry {look} < renew {deadline} < duration {duration} does not hold")
    # Connections of its own: a renewal must not stand in line behind a thousand writes.
    async with client.sibling(concurrency=2, timeout=deadline / 2) as own:
        lock = LeaseLock(own, namespace, name, identity, duration=duration)
        candidate = _Candidate(lock, own.clock, deadline=deadline, retry=look)
        while True:
            leadership = await candidate.acquired()
            await candidate.serve(leadership, body)
            await anyio.sleep(candidate.pause())


class _Candidate:
    """One process that takes the lock, holds it while it can, and gives it back."""

    def __init__(
        self, lock: LeaseLock, clock: Callable[[], float], *, deadline: float, retry: float
    ) -> None:
        self._lock, self._clock, self._deadline, self._retry = lock, clock, deadline, retry
        self._log = log.bind(lease=lock.path, identity=lock.identity)

    def pause(self) -> float:
        # Candidates should not look all at once.
        return self._retry * random.uniform(0.8, 1.2)  # noqa: S311

    async def acquired(self) -> Leadership:
        """Wait until the lease is free or its holder has been silent for too long, and take it."""
        failed = False
        while True:
            try:
                if leadership := await self._lock.try_acquire():
                    self._log.info("leading", epoch=leadership.epoch)
                    return leadership
                failed = False
            except KubeError as error:
                if not failed:
                    self._log.warning("cannot acquire the lease", error=str(error))
                failed = True
            await anyio.sleep(self.pause())

    async def serve(
        self, leadership: Leadership, body: Callable[[Leadership], Awaitable[None]]
    ) -> None:
        """Run ``body`` while the lease is renewed; then end the leadership and
        release the lease.
        """
        failure: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                with anyio.CancelScope() as scope:
                    self._extend(scope, leadership)
                    tasks.start_soon(self._keep, leadership, scope)
                    try:
                        await body(leadership)
                    except Exception as error:  # raised again below, without a group around it
                        failure = error
                if scope.cancelled_caught:
                    self._log.warning("no longer leading")
                tasks.cancel_scope.cancel()
        finally:
            await self._release(leadership)
        if failure:
            raise failure

    def _extend(self, scope: anyio.CancelScope, leadership: Leadership) -> None:
        spare = self._lock.duration - self._deadline
        scope.deadline = anyio.current_time() + leadership._until - self._clock() - spare

    async def _keep(self, leadership: Leadership, scope: anyio.CancelScope) -> None:
        """Renew until the lease turns out to be lost; then cancel ``scope``. Its deadline does the
        rest.
        """
        while True:
            await anyio.sleep(self.pause())
            try:
                if not await self._lock.renew(leadership):
                    break
            except LeaseLost as lost:
                self._log.warning("lost the lease", error=str(lost))
                break
            except KubeError as error:
                self._log.warning("lease renewal failed", error=str(error))
                continue
            self._extend(scope, leadership)
        leadership._end()
        scope.cancel()

    async def _release(self, leadership: Leadership) -> None:
        with anyio.move_on_after(RELEASE_SECONDS, shield=True):
            try:
                if await self._lock.release(leadership):
                    self._log.info("released the lease")
            except (KubeError, LeaseLost) as error:
                self._log.warning("lease not released", error=str(error))
