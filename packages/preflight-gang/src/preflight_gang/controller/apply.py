"""The one place that writes: the record that commits a generation, the members' rosters, and
Events.

Every write asks the leadership right before it is sent (the client is fenced), and carries its own
precondition. What fails is not repeated here: the gang is looked at again, and what is still right
is written again, ever later (:class:`~preflight_kube.runtime.retry.Refusals`). Namespaces share
the writes that may be under way.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import msgspec
from preflight_kube.client.client import (
    Client,
    Conflict,
    Fenced,
    Invalid,
    KubeError,
    NotFound,
    PreconditionFailed,
)
from preflight_kube.logs import get_logger
from preflight_kube.runtime.retry import FIRST, Refusals

from preflight_gang.api.types import ConfigMap, Metadata
from preflight_gang.core.plan import RosterWrite, config_map
from preflight_gang.core.snapshot import GangView, Record
from preflight_gang.metrics import Metrics

log = get_logger(__name__)


RESERVED: Final = 4
"""To so many places there is one more, for namespaces that have none: nothing is kept from one that
is alone, and writes of it that take long leave room for the next one's."""


class FairLimiter:
    """At most ``total`` at once, and one for each of a few namespaces more.

    Who waits is let in namespace by namespace, in turn; within one, in the order of coming.
    """

    def __init__(self, total: int) -> None:
        self._reserved = total // RESERVED
        self._free = total + self._reserved
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[anyio.Event]] = OrderedDict()

    @asynccontextmanager
    async def of(self, namespace: str) -> AsyncGenerator[None]:
        """Within it one of the places is the namespace's."""
        mine = anyio.Event()
        self._waiting.setdefault(namespace, deque()).append(mine)
        self._let_in()
        try:
            await mine.wait()
            yield
        finally:
            if mine.is_set():
                self._free += 1
                self._held[namespace] -= 1
                if not self._held[namespace]:
                    del self._held[namespace]
            else:
                self._left(namespace).remove(mine)
            self._let_in()

    def _let_in(self) -> None:
        """Let in who may, in turn; who may not has a place already, so of those there are few."""
        while self._free:
            namespace = next((one for one in self._waiting if self._may(one)), None)
            if namespace is None:
                return
            self._waiting.move_to_end(namespace)
            self._left(namespace).popleft().set()
            self._free -= 1
            self._held[namespace] += 1

    def _may(self, namespace: str) -> bool:
        return self._free > (self._reserved if namespace in self._held else 0)

    def _left(self, namespace: str) -> deque[anyio.Event]:
        """Who of a namespace waits, of whom one goes now."""
        waiting = self._waiting[namespace]
        if len(waiting) == 1:
            del self._waiting[namespace]
        return waiting


class _Frozen(msgspec.Struct):
    immutable: bool | None = None


class Writer:
    """Writes as the leader of ``epoch``, by whose leadership ``client`` is fenced.

    ``pods`` and ``events`` are what has been refused lately: writes to pods by their uid, Events by
    whom they are about. At most ``at_once`` writes are under way.
    """

    def __init__(self, client: Client, epoch: int, metrics: Metrics, at_once: int = 32) -> None:
        self._client, self.epoch, self._metrics = client, epoch, metrics
        self._fair = FairLimiter(at_once)
        self.pods: Refusals[str] = Refusals(random.random)
        self.events: Refusals[str] = Refusals(random.random)

    async def commit(
        self, gang: GangView, record: Record, at: ConfigMap | None
    ) -> ConfigMap | None:
        """Seal a generation, or write down that it has passed, in the ConfigMap as it was ``at``.

        None when somebody else has written first; what they wrote decides. Raises
        :class:`KubeError`, and :class:`TooLarge`.
        """
        body = config_map(gang, record, at.metadata.resource_version if at is not None else "")
        collection = f"/api/v1/namespaces/{gang.namespace}/configmaps"
        try:
            async with self._fair.of(gang.namespace):
                if at is None:
                    written = await self._client.create(collection, body)
                else:
                    written = await self._replace(collection, body, at)
        except (Conflict, NotFound):
            self._count("configmap", "conflict")
            return None
        except Fenced:
            raise
        except KubeError:
            self._count("configmap", "failed")
            raise
        self._count("configmap", "written")
        if not record.passed:
            note = {"note": body["data"]["note"]} if "note" in body["data"] else {}
            about = {"generation": record.generation, "members": len(record.assignments)}
            name = f"{gang.namespace}/{gang.source}:{gang.id}"
            log.info("gang sealed", gang=name, **about, **note)
        return msgspec.json.decode(written, type=ConfigMap)

    async def _replace(self, collection: str, body: dict[str, Any], at: ConfigMap) -> bytes:
        """Replace our record; one that was made immutable is all ours, so it is created again."""
        path = f"{collection}/{at.metadata.name}"
        try:
            return await self._client.replace(path, body)
        except Invalid:
            if not (await self._client.get(path, _Frozen)).immutable:
                raise
        log.warning("immutable gang record recreated", path=path)
        await self._client.delete(
            path, uid=at.metadata.uid, resource_version=at.metadata.resource_version
        )
        about = {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}
        return await self._client.create(collection, {**body, "metadata": about})

    async def read(self, gang: GangView) -> ConfigMap | None:
        """The ConfigMap of that name, ours or not, if there is one. Raises :class:`KubeError`."""
        path = f"/api/v1/namespaces/{gang.namespace}/configmaps/{gang.config_map}"
        return await self._client.get_or_none(path, ConfigMap)

    async def send(
        self, namespace: str, writes: Iterable[RosterWrite]
    ) -> tuple[list[RosterWrite], float | None]:
        """Write the rosters of one gang, many at a time, but to pods that were refused just now:
        those written, and after how many seconds to try again, if one was not.
        """
        written: list[RosterWrite] = []
        left: list[float] = []

        async def one(write: RosterWrite) -> None:
            uid = write.member.uid
            try:
                await self._patch("roster", namespace, write.member.name, write.patch())
            except Fenced:
                left.append(FIRST)  # the next leader writes it
            except NotFound:
                self.pods.done(uid)  # the watch brings it
            except PreconditionFailed as error:  # another pod, or another roster: as well
                left.append(self._refused(self.pods, uid, error))
            except KubeError as error:
                left.append(self._refused(self.pods, uid, error, "roster not written, requeued"))
            else:
                self.pods.done(uid)
                written.append(write)

        async with anyio.create_task_group() as group:
            for write in writes:
                if (seconds := self.pods.left(write.member.uid, self._client.clock())) > 0:
                    left.append(seconds)
                else:
                    group.start_soon(one, write)
        return written, min(left, default=None)

    async def annotate(self, pod: Metadata, patch: list[dict[str, Any]]) -> bool:
        """Write annotations to a pod, but to one that was refused just now; whether it was done."""
        if self.pods.left(pod.uid, self._client.clock()) > 0:
            return False
        try:
            await self._patch("node", pod.namespace, pod.name, patch)
        except Fenced:
            raise
        except (PreconditionFailed, NotFound):  # another pod by now
            return False
        except KubeError as error:
            self._refused(self.pods, pod.uid, error, "node facts not written, requeued")
            return False
        self.pods.done(pod.uid)
        return True

    async def _patch(
        self, kind: str, namespace: str, pod: str, patch: list[dict[str, Any]]
    ) -> None:
        try:
            async with self._fair.of(namespace):
                await self._client.json_patch(f"/api/v1/namespaces/{namespace}/pods/{pod}", patch)
        except Fenced:
            raise
        except KubeError as error:
            stale = isinstance(error, PreconditionFailed | NotFound)
            self._count(kind, "stale" if stale else "failed")
            raise
        self._count(kind, "written")

    async def event(self, body: dict[str, Any]) -> bool | None:
        """Create an Event: True when it is new, False when it was there, None when it failed.

        None too, with nothing sent, while one about the same object was refused lately:
        :meth:`left`.
        """
        about, uid = body["metadata"], body["involvedObject"]["uid"]
        if self.events.left(uid, self._client.clock()) > 0:
            return None
        try:
            async with self._fair.of(about["namespace"]):
                await self._client.create(f"/api/v1/namespaces/{about['namespace']}/events", body)
        except NotFound:  # the namespace has gone, and the pod with it
            return False
        except Fenced:
            raise
        except KubeError as error:
            if isinstance(error, Conflict) and error.reason == "AlreadyExists":
                self.events.done(uid)
                return False
            self._count("event", "failed")
            self._refused(self.events, uid, error, "Event not written, requeued")
            return None
        self._count("event", "written")
        self.events.done(uid)
        return True

    def left(self, uid: str) -> float:
        """Seconds until something about a pod that was refused may be tried again; 0: now."""
        now = self._client.clock()
        return min(
            filter(None, (self.pods.left(uid, now), self.events.left(uid, now))), default=0.0
        )

    def forget(self, uid: str) -> None:
        """A pod that has gone is refused no more."""
        self.pods.done(uid)
        self.events.done(uid)

    def _refused(
        self, refusals: Refusals[str], uid: str, error: KubeError, message: str = ""
    ) -> float:
        """Note it, and log it once; the seconds until the next try."""
        seconds = refusals.refused(uid, error, self._client.clock())
        if message and refusals.first(uid):
            log.warning(message, uid=uid, error=str(error))
        return seconds

    def _count(self, kind: str, result: str) -> None:
        self._metrics.writes.labels(kind, result).inc()
