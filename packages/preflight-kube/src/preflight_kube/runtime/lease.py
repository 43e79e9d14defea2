"""Leader election by a Lease: whoever leads does so within a cancel scope that ends when the lease
may be lost.

Nobody's clock is compared with another's. The holder counts its time from before a renewal was
sent; everybody else counts from when that renewal was seen. So the holder's right has ended before
another may begin, whatever the clocks of the machines say.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import msgspec
from msgspec.structs import replace

from preflight_kube.client.client import Client
from preflight_kube.client.decoding import decoded
from preflight_kube.errors import Conflict, KubeError, NotFound
from preflight_kube.logs import get_logger

RELEASE_SECONDS: Final = 3.0
"""How long an orderly end may take to inform the others; after that they find out by themselves."""

log = get_logger(__name__)


class Leadership:
    """The right to write, from one acquisition to its end. Give ``valid`` to ``Client.fenced``."""

    def __init__(
        self, epoch: int, until: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.epoch = epoch
        """Rises by one with each acquisition, whoever acquires
        (``leaseTransitions`` of the Lease).
        """
        self._until, self._clock = until, clock

    def valid(self) -> bool:
        """Whether nobody else can have acquired the lease yet; ask right before each write.

        True as long as the last successful renewal was sent less than the lease's duration ago.
        Time during which this process was stopped counts. Once the leadership has ended, never True
        again.
        """
        return self._clock() < self._until

    def _end(self) -> None:
        self._until = -math.inf


async def lead(
    client: Client,
    *,
    namespace: str,
    name: str,
    identity: str,
    duration: float = 15.0,
    retry: float | None = None,
    body: Callable[[Leadership], Awaitable[None]],
) -> None:
    """Run ``body`` whenever this candidate holds the Lease ``namespace``/``name``; until cancelled.

    ``duration``: seconds after which another may take the lease from a silent holder. ``body`` is
    cancelled after two thirds of them without a successful renewal: the rest is for winding up.
    ``retry``: seconds between renewals, and between the looks of those who wait (default 2, less
    where ``duration`` is short). ``identity`` names one process at a time, such as the pod's name:
    a lease that bears it is taken over at once, with a new epoch.

    When ``body`` ends or ``lead`` is cancelled, the lease is released and another candidate takes
    it at its next look. What ``body`` raises ends ``lead``, after the release.
    """
    deadline = duration * 2 / 3
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
    # Connections of its own: a renewal must not stand in line behind a thousand writes.
    async with client.sibling(concurrency=2, timeout=deadline / 2) as own:
        candidate = _Candidate(own, path, identity, duration, retry or min(2.0, deadline / 5))
        while True:
            leadership = await candidate.acquired()
            await candidate.serve(leadership, body)
            await anyio.sleep(candidate.pause())


class _LeaseLost(Exception):
    """Another holds the lease, or it has been deleted."""


class _Spec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None
    acquire_time: str | None = None


class _Lease(msgspec.Struct):
    """``metadata`` is sent back whole, so that labels stay."""

    metadata: dict[str, Any]
    spec: _Spec | None = None


_LEASE: Final = msgspec.json.Decoder(_Lease)


class _Candidate:
    """One process that takes the lease, holds it while it can, and gives it back."""

    def __init__(
        self, client: Client, path: str, identity: str, duration: float, retry: float
    ) -> None:
        self._client, self._clock, self._path = client, client.clock, path
        self._identity, self._duration, self._retry = identity, duration, retry
        self._about = {"lease": path, "identity": identity}
        self._lease = _Lease({})
        """As last seen or written."""
        self._seen: tuple[tuple[Any, ...], float] = ((None,), -math.inf)
        """The holder's last sign of life, and when we saw it."""

    def pause(self) -> float:
        # Candidates should not look all at once.
        return self._retry * random.uniform(0.8, 1.2)  # noqa: S311

    async def acquired(self) -> Leadership:
        """Wait until the lease is free or its holder has been silent for too long, and take it.
        How long he has been silent is counted from when we first saw him so.
        """
        failed = False
        while True:
            try:
                if leadership := await self._try():
                    log.info("leading", epoch=leadership.epoch, **self._about)
                    return leadership
                failed = False
            except Conflict:  # another was quicker
                failed = False
            except KubeError as error:
                if not failed:
                    log.warning("cannot acquire the lease", error=str(error), **self._about)
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
                    log.warning("no longer leading", **self._about)
                tasks.cancel_scope.cancel()
        finally:
            await self._release(leadership)
        if failure:
            raise failure

    def _extend(self, scope: anyio.CancelScope, leadership: Leadership) -> None:
        left = leadership._until - self._clock()
        scope.deadline = anyio.current_time() + left - self._duration / 3

    async def _keep(self, leadership: Leadership, scope: anyio.CancelScope) -> None:
        """Renew until the lease turns out to be lost; then cancel ``scope``. Its deadline does the
        rest.
        """
        while True:
            await anyio.sleep(self.pause())
            if not leadership.valid():
                break
            try:
                until = await self._rewrite(self._spec(leadership.epoch))
            except _LeaseLost as lost:
                log.warning("lost the lease", error=str(lost), **self._about)
                break
            except KubeError as error:  # nobody knows; it may be renewed until its end
                log.warning("lease renewal failed", error=str(error), **self._about)
                continue
            if not leadership.valid():
                break  # too late, although nobody else came: what was begun must not go on
            leadership._until = until
            self._extend(scope, leadership)
        leadership._end()
        scope.cancel()

    async def _release(self, leadership: Leadership) -> None:
        """End the leadership, and let the next one take the lease at its next look. Where nobody is
        informed they find out by themselves.
        """
        held = leadership.valid()
        leadership._end()
        if not held:
            return
        spec = replace(self._spec(leadership.epoch), holder_identity="", lease_duration_seconds=1)
        with anyio.move_on_after(RELEASE_SECONDS, shield=True):
            try:
                await self._rewrite(spec)
                log.info("released the lease", **self._about)
            except (KubeError, _LeaseLost) as error:
                log.warning("lease not released", error=str(error), **self._about)

    async def _try(self) -> Leadership | None:
        try:
            self._lease = self._checked(await self._client.get(self._path, _Lease))
        except NotFound:
            if self._another_may_hold(self._duration):
                return None  # deleted under a holder who may not know it yet
            epoch = self._epoch()
            leases, _, name = self._path.rpartition("/")
            sent = self._clock()
            created = await self._client.create(
                leases, {"metadata": {"name": name}, "spec": self._spec(epoch)}
            )
            self._lease = self._ours(created, epoch)
            return Leadership(epoch, sent + self._duration, self._clock)
        spec = self._kept
        sign = (spec.holder_identity, spec.renew_time, spec.lease_transitions)
        if sign != self._seen[0]:
            self._seen = (sign, self._clock())
        if self._another_may_hold(spec.lease_duration_seconds or self._duration):
            return None
        epoch = self._epoch()
        return Leadership(epoch, await self._write(self._spec(epoch)), self._clock)

    def _another_may_hold(self, seconds: float) -> bool:
        (holder, *_), at = self._seen
        return holder not in {None, "", self._identity} and self._clock() - at < seconds

    @property
    def _kept(self) -> _Spec:
        return self._lease.spec or _Spec()

    def _epoch(self) -> int:
        """The one after the last that we know of."""
        return (self._kept.lease_transitions or 0) + 1

    async def _rewrite(self, spec: _Spec) -> float:
        """Write over our own lease; until when that makes us the holder. Raises _LeaseLost when it
        is no longer ours.
        """
        try:
            return await self._write(spec)
        except (NotFound, Conflict):
            # Deleted or taken; or somebody touched its labels, or the answer to a renewal of ours
            # never came.
            pass
        try:
            self._lease = self._checked(await self._client.get(self._path, _Lease))
        except NotFound:
            raise _LeaseLost("it has been deleted") from None
        holder, epoch = self._kept.holder_identity, self._kept.lease_transitions
        if (holder, epoch) != (self._identity, spec.lease_transitions):
            raise _LeaseLost(f"{holder!r} has taken it")
        return await self._write(spec)

    async def _write(self, spec: _Spec) -> float:
        """Write ``spec`` over the version last seen; until when (monotonic seconds) that makes us
        the holder.
        """
        if self._kept.lease_transitions == spec.lease_transitions:
            spec = replace(spec, acquire_time=self._kept.acquire_time)
        sent = self._clock()
        written = await self._client.replace(self._path, _Lease(self._lease.metadata, spec))
        self._lease = self._ours(written, spec.lease_transitions)
        return sent + self._duration

    def _checked(self, lease: _Lease) -> _Lease:
        """``lease``, if it is ours. Raises :class:`KubeError`: what stands between may answer with
        an object of its own.
        """
        name = lease.metadata.get("name")
        if name != self._path.rpartition("/")[2] or not lease.metadata.get("resourceVersion"):
            raise KubeError(
                f"{self._path}: the answer is the Lease {name!r}; does a proxy stand in between?"
            )
        return lease

    def _ours(self, written: bytes, epoch: int | None) -> _Lease:
        """The answer to a write that makes us the holder. Raises :class:`KubeError` where it says
        nothing of the kind.
        """
        lease = self._checked(decoded(_LEASE, written, self._path))
        kept = lease.spec or _Spec()
        mine = kept.holder_identity in {self._identity, "", None}
        if kept.lease_transitions != epoch or not mine:
            raise KubeError(
                f"{self._path}: the answer to our write names another holder; does a proxy stand in between?"
            )
        return lease

    def _spec(self, epoch: int) -> _Spec:
        # For people; nobody decides by it.
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return _Spec(self._identity, math.ceil(self._duration), epoch, now, now)
