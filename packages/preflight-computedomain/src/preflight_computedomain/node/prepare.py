"""The way of a claim: claim → request → decide → checkpoint → CDI → answer.

Every claim of every call gets an answer, 40 s later at most (the kubelet gives up after 45): its
devices, or one sentence. What does not go away by waiting is answered at once, and nothing is
written for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.text import one_line

from preflight_computedomain.api.checkpoint import STARTED, Corrupt, Entry
from preflight_computedomain.api.names import CLAIMS, DOMAINS, DRIVER, namespaced
from preflight_computedomain.api.types import Identified, ResourceClaim
from preflight_computedomain.core import claims
from preflight_computedomain.core.claims import KubeletClaim, Refusal
from preflight_computedomain.core.facts import Unfit
from preflight_computedomain.metrics import PREPARE, UNPREPARE, PluginMetrics
from preflight_computedomain.node.host import CliqueOwner
from preflight_computedomain.node.lock import Lock, LockHeld
from preflight_computedomain.node.singleflight import CallEnded, Flight, Flights, Late
from preflight_computedomain.node.state_dir import ClaimStore

_log = get_logger(__name__)


class ClusterReader:
    """Questions to the API server about a claim: two consistent reads. Both raise KubeError."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """The ResourceClaim as it is now; None where there is none."""
        return await self._client.get_or_none(namespaced(CLAIMS, namespace, name), ResourceClaim)

    async def domains(self, namespace: str) -> Mapping[str, frozenset[str]]:
        """The NVLink cliques of the ComputeDomains of ``namespace`` now, by uid."""
        pages = self._client.pages(namespaced(DOMAINS, namespace), Identified)
        domains = [domain.metadata async for page, _ in pages for domain in page]
        return {domain.uid: domain.cliques for domain in domains}


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """To the kubelet, for one claim: channel 0, for ``requests`` of ``pool``. ``error`` empty:
    prepared, or nothing left of it.
    """

    requests: tuple[str, ...] = ()
    pool: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: of one call; until a caller is answered without the disk; between attempts."""

    call: float = 40.0
    answer: float = 43.0
    first: float = 0.1
    longest: float = 2.0


T = TypeVar("T")
Result = ClaimAnswer | Refusal
Attempt = Callable[[KubeletClaim, Flight[Result], Refusal], Awaitable[Result]]
"""One way of a claim; the last argument is why the attempt before it failed."""
_UNANSWERED: Final = Refusal(
    "api-server", "the API server has not answered in time; is it reachable from this node?", False
)
_UNDONE: Final = Refusal(
    "undone", "another plugin of this node has just unprepared the claim; wait for it", False
)
_SLOW: Final = Refusal(
    "disk",
    "the node's disk has not answered in time; look at its health, and at the node's load",
    False,
)
_LATE: Final = Refusal(
    "disk", "the node's disk has not finished writing; look at its health", False
)
_ENDED: Final = Refusal("ended", "the kubelet has unprepared the claim in the meantime", False)
_INTERNAL: Final = Refusal(
    "internal", "an error of the driver's own, which its log describes", False
)


class ClaimPreparer:
    """Use within one event loop. ``exclusive``: the ComputeDomain must have the node's clique."""

    def __init__(
        self,
        node: str,
        cluster: ClusterReader,
        store: ClaimStore,
        *,
        lock: Lock,
        clique: CliqueOwner,
        metrics: PluginMetrics,
        times: Times = Times(),
        exclusive: bool = False,
    ) -> None:
        self._exclusive = exclusive
        self._node, self._cluster, self._store, self._lock = node, cluster, store, lock
        self._clique, self._metrics, self._times = clique, metrics, times
        self._flights: Flights[Result] = Flights(times.answer)
        self._major = 0
        """The channels' major when the clique was read."""

    async def start(self) -> None:
        """Take over what the last process left. Raises LockHeld, OSError and Unfit."""
        self._major = await asyncio.to_thread(self._store.major)
        await self._locked(self._store.start)

    async def stop(self, seconds: float) -> None:
        """End what waits; what writes has ``seconds``."""
        await self._flights.drain(seconds)

    async def prepare(self, refs: Iterable[KubeletClaim]) -> dict[str, ClaimAnswer]:
        """An answer for each uid of ``refs``. Never raises but when it is cancelled."""
        return await self._each(refs, self._prepare_one)

    async def unprepare(self, refs: Iterable[KubeletClaim]) -> dict[str, ClaimAnswer]:
        """As ``prepare``; without an error nothing of the claim is left on the node."""
        return await self._each(refs, self._unprepare_one)

    async def sweep(self) -> tuple[KubeletClaim, ...]:
        """Undo begun preparations of claims that are gone; the prepared ones that are, too.

        Raises KubeError, LockHeld and OSError.
        """
        stale = []
        for uid, entry in (await self._entries()).items():
            ref = KubeletClaim(entry.namespace, entry.name, uid)
            if claims.unusable(ref):
                continue  # version 1 of the checkpoint kept no names
            claim = await self._cluster.claim(ref.namespace, ref.name)
            if claim is not None and claim.metadata.uid == uid:
                continue
            if entry.state == STARTED:
                await self._unprepare_one(ref)
            else:
                stale.append(ref)
        self._metrics.stale_claims.set(len(stale))
        return tuple(stale)

    async def mend(self) -> tuple[str, ...]:
        """Make the CDI files of prepared claims again that are missing or differ; their uids.

        A container that starts anew needs its file, and the kubelet does not ask again while it
        runs. Raises LockHeld, OSError, and Unfit where the driver is not loaded.
        """
        await asyncio.to_thread(self._store.major)  # whose change it logs
        prepared = [uid for uid, entry in (await self._entries()).items() if entry.channel(uid)]
        lost = [uid for uid in prepared if not await asyncio.to_thread(self._store.whole, uid)]
        restore = self._store.restore
        return tuple([uid for uid in lost if await self._locked(partial(restore, uid))])

    # --- one claim

    async def _prepare_one(self, ref: KubeletClaim) -> ClaimAnswer:
        if (bad := claims.unusable(ref)) is not None:
            return self._told(ref, bad, True, asyncio.get_running_loop().time())
        return await self._fly(ref, self._attempt, _UNANSWERED, True)

    async def _unprepare_one(self, ref: KubeletClaim) -> ClaimAnswer:
        if claims.unusable(ref) is not None:
            return ClaimAnswer()  # such a claim has never been prepared
        return await self._fly(ref, self._undo, _SLOW, False)

    async def _attempt(self, ref: KubeletClaim, flight: Flight[Result], last: Refusal) -> Result:
        """One way through all checks, and on. ``last``: why the attempt before it failed."""
        if (
            last.reason == claims.IN_USE
            and (still := claims.in_use(await self._entries(), ref.uid)) is not None
        ):
            return still  # nothing is asked of the API server until the channel is free
        done = claims.known(await self._entries(), ref)
        if isinstance(done, Refusal):
            return done
        if done is None:
            claim = await self._cluster.claim(ref.namespace, ref.name)
            request = claims.read(ref, claim, self._node)
            if isinstance(request, Refusal):
                return request
            domains = await self._cluster.domains(ref.namespace)
            major = await asyncio.to_thread(self._store.major)
            clique, unknown = self._clique.current, self._clique.unknown
            if not clique or major != self._major:
                clique = await self._clique.refreshed()
                unknown = self._clique.unknown  # of this answer: a later one may know
                self._major = self._major if unknown else major
            # Looked at without the lock first: whoever waits for the channel must not keep out the
            # Unprepare that frees it.
            done = claims.decide(request, domains, clique, await self._entries(), self._store.now())
            if isinstance(done, Refusal) and done.reason == claims.NO_CLIQUE and unknown:
                return Refusal("driver", unknown, False)
            if done is None and self._exclusive:
                done = claims.alone(request, domains[request.domain], clique)
            if done is None:
                done = await self._locked(
                    lambda: self._store.prepare(request, domains, clique), flight
                )
            if isinstance(done, Refusal):
                return done
        elif not await asyncio.to_thread(self._store.current, ref.uid) and not await self._locked(
            lambda: self._store.restore(ref.uid), flight
        ):
            return _UNDONE
        return ClaimAnswer(*done)

    async def _undo(self, ref: KubeletClaim, flight: Flight[Result], last: Refusal) -> Result:
        await self._locked(lambda: self._store.unprepare(ref.uid), flight)
        return ClaimAnswer()

    async def _locked(self, change: Callable[[], T], flight: Flight[Result] | None = None) -> T:
        async with self._lock.held():
            with flight.writes() if flight is not None else nullcontext():
                result = await _whole(change)
        self._metrics.prepared.set(self._store.prepared())
        self._metrics.corrupt_checkpoints.set(self._store.corrupt)
        return result

    async def _retried(
        self, flight: Flight[Result], attempt: Callable[[Refusal], Awaitable[Result]], last: Refusal
    ) -> Result:
        """Try again what may go away by waiting, in growing pauses; then the last cause.

        ``last``: the cause where not even the first attempt has ended.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._times.call
        pause = self._times.first
        while True:
            try:
                async with flight.limited(end):
                    result = await self._caught(attempt, last)
            except TimeoutError:
                return last
            if not isinstance(result, Refusal) or result.permanent:
                return result
            last = result
            if loop.time() + pause >= end:
                return last
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._times.longest)

    @staticmethod
    async def _caught(attempt: Callable[[Refusal], Awaitable[Result]], last: Refusal) -> Result:
        try:
            return await attempt(last)
        except KubeError as error:
            why = one_line(str(error), 300)
            sentence = f"the claim or its ComputeDomain cannot be read ({why})"
            return Refusal("api-server", sentence, False)
        except LockHeld as error:
            return Refusal("lock", f"the plugin's folder is in use ({error})", False)
        except Unfit as error:
            return Refusal("driver", str(error).rstrip("."), False)
        except OSError as error:
            what = one_line(f"{error.strerror or error}: {error.filename or 'no file'}", 300)
            sentence = f"the node's disk refuses ({what}); make room, or repair it"
            return Refusal("disk", sentence, False)

    async def _fly(
        self, ref: KubeletClaim, attempt: Attempt, last: Refusal, prepares: bool
    ) -> ClaimAnswer:
        began = asyncio.get_running_loop().time()

        async def work(flight: Flight[Result]) -> Result:
            try:
                return await self._retried(flight, partial(attempt, ref, flight), last)
            except Exception:
                _log.exception("an error of this program's own at a claim", **_named(ref))
                return _INTERNAL

        try:
            result = await self._flights.run(ref.uid, work, prepares=prepares)
        except CallEnded:
            result = _ENDED
        except Late:
            result = _LATE
        return self._told(ref, result, prepares, began)

    # --- small ones

    async def _entries(self) -> Mapping[str, Entry]:
        try:
            return await asyncio.to_thread(self._store.entries)
        except Corrupt:
            return await self._locked(self._store.repaired)

    def _told(self, ref: KubeletClaim, result: Result, prepares: bool, began: float) -> ClaimAnswer:
        """The answer, counted where it is a refusal, and one line in the log."""
        if isinstance(result, ClaimAnswer):
            answer, cause = result, ""
        else:
            answer, cause = ClaimAnswer(error=result.told(ref, self._node)), result.reason
            errors = self._metrics.prepare_errors if prepares else self._metrics.unprepare_errors
            errors.labels(DRIVER, cause).inc()
            if result.permanent:
                self._metrics.permanent_errors.labels(cause).inc()
        (_log.warning if cause else _log.info)(
            f"{PREPARE if prepares else UNPREPARE}: {answer.error or 'done'}",
            **_named(ref),
            milliseconds=round((asyncio.get_running_loop().time() - began) * 1000, 1),
            cause=cause,
        )
        return answer

    @staticmethod
    async def _each(
        refs: Iterable[KubeletClaim], answer: Callable[[KubeletClaim], Awaitable[ClaimAnswer]]
    ) -> dict[str, ClaimAnswer]:
        asked = {ref.uid: ref for ref in refs}
        answers = await asyncio.gather(*map(answer, asked.values()))
        return dict(zip(asked, answers, strict=True))


def _named(ref: KubeletClaim) -> dict[str, str]:
    return {
        "namespace": one_line(ref.namespace, 63),
        "name": one_line(ref.name, 253),
        "uid": one_line(ref.uid, 80),
    }


async def _whole(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread, to its end; who is cancelled meanwhile learns of it afterwards."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # seen, so that it is not reported later
        raise cancelled
    return task.result()
