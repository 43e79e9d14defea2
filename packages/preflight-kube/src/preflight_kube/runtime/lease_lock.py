"""A lock that several processes share, as a Lease: take it, renew it, give it back.

Nobody's clock is compared with another's. The holder counts its time from before a renewal was
sent; everybody else counts from when that renewal was seen. So the holder's right has ended before
another may begin, whatever the clocks of the machines say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from preflight_kube.client.client import Client
from preflight_kube.errors import Conflict, KubeError, NotFound

__all__ = ["Leadership", "LeaseLock", "LeaseLost"]


class LeaseLost(Exception):
    """Another holds the lease, or it has been deleted."""


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None
    acquire_time: str | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str


class _Lease(msgspec.Struct):
    """What is asked of an answer before it is believed; all of it is kept."""

    metadata: _Metadata
    spec: _Spec | None = None


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

    def _renewed(self, until: float) -> None:
        self._until = until

    def _end(self) -> None:
        self._until = -math.inf


class LeaseLock:
    """The Lease ``namespace``/``name`` as ``identity`` sees it. Any number of them share one
    client; each is for one task at a time.

    ``duration``: seconds after which another may take the lease from a silent holder. ``identity``
    names one process at a time, such as the pod's name: a lease that bears it is taken over at
    once, with a new epoch.
    """

    def __init__(
        self, client: Client, namespace: str, name: str, identity: str, *, duration: float = 15.0
    ) -> None:
        self.path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        self.identity, self.duration = identity, duration
        self._client, self._clock = client, client.clock
        self._lease: dict[
            str, Any
        ] = {}  # as last seen or written; sent back whole, so that labels stay
        self._seen: tuple[tuple[Any, ...], float] = (
            (None,),
            -math.inf,
        )  # holder's last sign of life, when we saw it

    async def try_acquire(self) -> Leadership | None:
        """Take the lease if it is free, or if its holder has been silent for too long; None while
        it is another's.

        How long a holder has been silent is counted from when this lock first saw it so: ask again
        now and then. Raises :class:`~.errors.KubeError`.
        """
        try:
            return await self._try()
        except Conflict:
            return None  # another was quicker

    async def renew(self, leadership: Leadership) -> bool:
        """Hold the lease for another ``duration``. False: the right had ended before, and does not
        come back.

        Raises:
            LeaseLost: another has taken it, or it was deleted; the leadership has ended.
            KubeError: nobody knows; the leadership goes on to its end, and may be renewed until
            then.
        """
        if not leadership.valid():
            return False
        try:
            until = await self._rewrite(self._spec(leadership.epoch))
        except LeaseLost:
            leadership._end()
            raise
        if (
            not leadership.valid()
        ):  # too late, although nobody else came: what was begun must not go on
            return False
        leadership._renewed(until)
        return True

    async def release(self, leadership: Leadership) -> bool:
        """End the leadership, and let the next one take the lease at its next look; False where the
        right had ended before.

        Raises:
            LeaseLost: another has it already.
            KubeError: nobody was informed; they find out by themselves. The leadership has ended in
            any case.
        """
        held = leadership.valid()
        leadership._end()
        if held:
            free = {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._rewrite({**self._spec(leadership.epoch), **free})
        return held

    async def _try(self) -> Leadership | None:
        try:
            self._lease = self._checked(await self._client.get(self.path, dict))
        except NotFound:
            if self._another_may_hold(self.duration):
                return None  # deleted under a holder who may not know it yet
            epoch = self._epoch()
            leases, _, name = self.path.rpartition("/")
            sent = self._clock()
            made = await self._client.create(
                leases, {"metadata": {"name": name}, "spec": self._spec(epoch)}
            )
            self._lease = self._ours(made, epoch)
            return Leadership(epoch, sent + self.duration, self._clock)
        spec = self._lease.get("spec") or {}
        sign = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if sign != self._seen[0]:
            self._seen = (sign, self._clock())
        if self._another_may_hold(spec.get("leaseDurationSeconds") or self.duration):
            return None
        epoch = self._epoch()
        return Leadership(epoch, await self._write(self._spec(epoch)), self._clock)

    def _another_may_hold(self, seconds: float) -> bool:
        (holder, *_), at = self._seen
        return holder not in {None, "", self.identity} and self._clock() - at < seconds

    def _epoch(self) -> int:
        """The one after the last that we know of."""
        return int((self._lease.get("spec") or {}).get("leaseTransitions") or 0) + 1

    async def _rewrite(self, spec: dict[str, Any]) -> float:
        """Write over our own lease; until when that makes us the holder. Raises LeaseLost when it
        is no longer ours.
        """
        try:
            return await self._write(spec)
        except (NotFound, Conflict):
            # Deleted or taken; or somebody touched its labels, or the answer to a renewal of ours
            # never came.
            pass
        try:
            self._lease = self._checked(await self._client.get(self.path, dict))
        except NotFound:
            raise LeaseLost("it has been deleted") from None
        kept = self._lease.get("spec") or {}
        if (kept.get("holderIdentity"), kept.get("leaseTransitions")) != (
            self.identity,
            spec["leaseTransitions"],
        ):
            raise LeaseLost(f"{kept.get('holderIdentity')!r} has taken it")
        return await self._write(spec)

    async def _write(self, spec: dict[str, Any]) -> float:
        """Write ``spec`` over the version last seen; until when (monotonic seconds) that makes us
        the holder.
        """
        kept = self._lease.get("spec") or {}
        if kept.get("leaseTransitions") == spec["leaseTransitions"]:
            spec = {**spec, "acquireTime": kept.get("acquireTime")}
        sent = self._clock()
        written = await self._client.replace(self.path, {**self._lease, "spec": spec})
        self._lease = self._ours(written, spec["leaseTransitions"])
        return sent + self.duration

    def _checked(self, lease: dict[str, Any]) -> dict[str, Any]:
        """``lease``, if it is one. Raises :class:`KubeError`: what stands between may answer with
        an object of its own.
        """
        try:
            found = msgspec.convert(lease, _Lease)
        except (msgspec.ValidationError, RecursionError) as error:
            raise KubeError(
                f"{self.path}: the answer is not a Lease ({error}); does a proxy stand in between?"
            ) from None
        if found.metadata.name != self.path.rpartition("/")[2]:
            raise KubeError(
                f"{self.path}: the answer is the Lease {found.metadata.name!r}; does a proxy stand in between?"
            )
        return lease

    def _ours(self, written: bytes, epoch: int) -> dict[str, Any]:
        """The answer to a write that makes us the holder. Raises :class:`KubeError` where it says
        nothing of the kind.
        """
        lease = self._checked(msgspec.json.decode(written))
        kept = lease.get("spec") or {}
        if kept.get("leaseTransitions") != epoch or kept.get("holderIdentity") not in {
            self.identity,
            "",
            None,
        }:
            raise KubeError(
                f"{self.path}: the answer to our write names another holder; does a proxy stand in between?"
            )
        return lease

    def _spec(self, epoch: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime(
            "%Y-%m-%dT%H:%M:%S.%fZ"
        )  # for people; nobody decides by it
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self.duration),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": epoch,
        }
