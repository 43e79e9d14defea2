"""What pods' resource claims ask for: the only thing that admission asks the API server, and only
where device classes are configured.

A claim's spec is immutable, so it is kept: one bounded GET for one that is not known, however many
pods wait for it, and none for one that is. What does not exist is forgotten after a second, for
then somebody creates it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from functools import lru_cache, partial
from typing import Any, Final, TypeVar
from urllib.parse import quote
from weakref import WeakValueDictionary

import msgspec
from preflight_kube.admission.reviews import Unavailable
from preflight_kube.api.workloads.model import maps
from preflight_kube.client.client import Client
from preflight_kube.errors import KubeError
from preflight_proto.devices import GROUP, VERSIONS, DeviceRequest

from preflight_webhook.core.cache import SizedCache
from preflight_webhook.core.detect.devices import DeviceClaim, Ref, read_claim
from preflight_webhook.metrics import Metrics

T = TypeVar("T")

KEPT: Final = 5.0
"""Seconds: enough for the pods of one job, and short, as a claim of the same name may have been
made anew since, for other devices.
"""
ABSENT_KEPT: Final = 1.0
GROUP_KEPT: Final = 60.0
PATIENCE: Final = 2.5
"""Seconds for one answer, well within the API server's own patience with us."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""Room for claims that are kept; one can name hundreds of device classes."""
SHARE: Final = 8
"""Requests of a single namespace under way: the claims of one tenant's pods do not keep another's
waiting.
"""
MOST_WAITING: Final = 256
"""Claims of one namespace that are asked for or wait to be; a pod has 16 at most, and the pods of a
job share a template.
"""
NO_LOOKUP: Final = "the pod's resource claims cannot be looked up"
_FORBIDDEN: Final = 403


_SMALL: Final = 512
"""Bytes of an ordinary claim; ten thousand of them mostly ask for the same few things."""


@lru_cache(maxsize=1024)
def _shared(requests: tuple[DeviceRequest, ...]) -> tuple[DeviceRequest, ...]:
    return requests


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Status(msgspec.Struct, rename="camel"):
    reserved_for: list[Any] | None = None


class _Answer(msgspec.Struct):
    """The parts of a claim, template or group that are read; the rest may be of any size."""

    spec: Any = None
    metadata: _Metadata | None = None
    status: _Status | None = None
    versions: list[Any] | None = None


class Lookups:
    """Use within one event loop."""

    def __init__(
        self,
        client: Client,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._metrics, self._clock = client, metrics, clock
        self._count_known = metrics.lookups.labels("known").inc
        # By _key, with the end of its time.
        self._kept: SizedCache[str, tuple[float, DeviceClaim | None]] = SizedCache(MOST_BYTES)
        # By namespace, what is asked for or waits to be, and the namespace's share meanwhile.
        self._asking: dict[str, dict[Ref | None, asyncio.Task[Any]]] = {}
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._version: tuple[float, str | None] = (0.0, None)

    def known(self, namespace: str, refs: Iterable[Ref]) -> dict[Ref, DeviceClaim | None] | None:
        """What each asks for, where all of them are known already; nobody is asked, and nobody
        waits.
        """
        known, unknown = self._recall(namespace, refs)
        if unknown:
            return None
        self._count_known(len(known))
        return known

    async def claims(self, namespace: str, refs: Iterable[Ref]) -> dict[Ref, DeviceClaim | None]:
        """What each asks for; None for one that does not exist. Raises :class:`Unavailable`.

        Where all are known it does not wait: other requests do not get in between.
        """
        known, unknown = self._recall(namespace, refs)
        self._count_known(len(known))
        if unknown:
            if (waiting := len(self._asking.get(namespace, ()))) + len(unknown) > MOST_WAITING:
                raise self._unavailable(
                    f"{waiting} claims of namespace {namespace} are being looked up already; create fewer pods at a time"
                )
            asked = [
                self._together(namespace, ref, partial(self._fetch, namespace, ref))
                for ref in unknown
            ]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            for ref, claim in zip(unknown, answers, strict=True):
                if isinstance(claim, BaseException):
                    raise claim
                known[ref] = claim
        return known

    def _recall(
        self, namespace: str, refs: Iterable[Ref]
    ) -> tuple[dict[Ref, DeviceClaim | None], list[Ref]]:
        """(what is kept, and so was asked for just now; those of which nothing is)."""
        known: dict[Ref, DeviceClaim | None] = {}
        unknown = []
        now = self._clock()
        for ref in refs:
            kept = self._kept.get(_key(namespace, ref))
            if kept is None or kept[0] <= now:
                unknown.append(ref)
            else:
                known[ref] = kept[1]
        return known, unknown

    async def _together(
        self, namespace: str, what: Ref | None, ask: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """The one answer for all who wait for it; it goes on when one of them gives up."""
        asking = self._asking.setdefault(namespace, {})
        if (task := asking.get(what)) is None:
            # What all need, and not this review alone, is no request of this review.
            context = None if what is not None else Context()
            task = asking[what] = asyncio.create_task(ask(), context=context)

            def ended(_: object) -> None:
                del asking[what]
                if not asking:
                    del self._asking[namespace]

            task.add_done_callback(ended)
        answer: T = await asyncio.shield(task)
        return answer

    async def _fetch(self, namespace: str, ref: Ref) -> DeviceClaim | None:
        version = await self._together("", None, self._served)
        item = None
        if version is not None:
            name = quote(ref.name, safe="")
            path = f"/apis/{GROUP}/{version}/namespaces/{quote(namespace, safe='')}/{ref.plural}/{name}"
            item = await self._get(path, namespace)
        claim = None if item is None else read_claim(item)
        self._metrics.lookups.labels("absent" if claim is None else "found").inc()
        kept = self._clock() + (ABSENT_KEPT if claim is None else KEPT), claim
        key, size = _key(namespace, ref), len(msgspec.json.encode(claim))
        if claim is not None and size <= _SMALL:
            kept = kept[0], claim._replace(requests=_shared(claim.requests))
        self._kept.put(key, kept, 768 + len(key) + 4 * size)
        self._metrics.claims_kept.set(len(self._kept))
        return claim

    async def _served(self) -> str | None:
        """The version to ask in; None while the cluster has no such group, which is looked at again
        every minute.
        """
        until, version = self._version
        if until > self._clock():
            return version
        group = await self._get(f"/apis/{GROUP}") or {}
        served = [each.get("version") for each in maps(group.get("versions"))]
        version = next((each for each in VERSIONS if each in served), None)
        self._version = (self._clock() + GROUP_KEPT, version)
        return version

    async def _get(self, path: str, namespace: str = "") -> dict[str, Any] | None:
        try:
            share = self._shares.setdefault(namespace, asyncio.Semaphore(SHARE))
            async with asyncio.timeout(PATIENCE), share:
                answer = await self._client.get_or_none(path, _Answer)
                return None if answer is None else msgspec.to_builtins(answer)
        except TimeoutError:
            raise self._unavailable(f"GET {path}: no answer within {PATIENCE:g} s") from None
        except KubeError as error:
            hint = "; does the ServiceAccount have get on it?" if error.status == _FORBIDDEN else ""
            raise self._unavailable(str(error).rstrip(".") + hint) from error

    def _unavailable(self, why: str) -> Unavailable:
        self._metrics.lookups.labels("failed").inc()
        return Unavailable(f"{NO_LOOKUP}: {why}")


def _key(namespace: str, ref: Ref) -> str:
    """One text, as ten thousand tuples of texts take a megabyte more. A namespace's name, unlike a
    claim's that nobody has checked, has no line break in it."""
    return f"{namespace}\n{ref.plural}\n{ref.name}"
