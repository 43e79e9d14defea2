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
from typing import Any, Final, NamedTuple

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

__all__ = ["FairLimiter", "Sent", "Writer"]

log = get_logger(__name__)


RESERVED: Final = 4
"""To so many places there is one more, for namespaces that have none: writes of one namespace that
take long leave room for the next one's, though nothing is kept from it while it is alone."""


class FairLimiter:
    """At most ``total`` at once, and one for each of a few namespaces more. Who waits is let in
    namespace by namespace, in turn; within one, in the order of coming."""

    def __init__(self, total: int) -> None:
        self._reserved = total // RESERVED
        self._free = total + self._reserved
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[anyio.Event]] = OrderedDict()

    @asynccontextmanager
    async def of(self, namespace: str) -> AsyncGenerator[None]:
        """Within it one of the places is the namespace's."""
        if namespace in self._waiting or not self._may(namespace):
            await self._turn(namespace)
        else:
            self._take(namespace)
        try:
            yield
        finally:
            self._give(namespace)

    def _may(self, namespace: str) -> bool:
        return self._free > (self._reserved if namespace in self._held else 0)

    def _take(self, namespace: str) -> None:
        self._free -= 1
        self._held[namespace] += 1

    def _give(self, namespace: str) -> None:
        self._free += 1
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        self._let_in()

    async def _turn(self, namespace: str) -> None:
        mine = anyio.Event()
        self._waiting.setdefault(namespace, deque()).append(mine)
        try:
            await mine.wait()
        except BaseException:
            if mine.is_set():
                self._give(namespace)
            else:
                queue = self._waiting[namespace]
                queue.remove(mine)
                if not queue:
                    del self._waiting[namespace]
            raise

    def _let_in(self) -> None:
        """Whose turn it is and who may. Those who may not hold some place already, so there are
        never more of them than places.
        """
        while self._free:
            namespace = next((one for one in self._waiting if self._may(one)), None)
            if namespace is None:
                return
            queue = self._waiting[namespace]
            queue.popleft().set()
            self._take(namespace)
            if queue:
                self._waiting.move_to_end(namespace)
            else:
                del self._waiting[namespace]


class _Frozen(msgspec.Struct):
    immutable: bool | None = None


class Sent(NamedTuple):
    """What has been written, and after how many seconds to try again, if something has not."""

    written: list[RosterWrite]
    again: float | None


class Writer:
    """Writes as the leader of ``epoch``. ``client`` is fenced by that leadership. ``pods`` and
    ``events`` are what has been refused lately: writes to pods by their uid, Events by whom they
    are about.

    At most ``at_once`` writes are under way.
    """

    def __init__(self, client: Client, epoch: int, metrics: Metrics, at_once: int = 32) -> None:
        self._client, self.epoch, self._metrics = client, epoch, metrics
        self._fair = FairLimiter(at_once)
        self.pods: Refusals[str] = Refusals(random.random)
        self.events: Refusals[str] = Refusals(random.random)

    async def commit(
        self, gang: GangView, record: Record, at: ConfigMap | None
    ) -> ConfigMap | None:
        """Seal a generation: one write of the gang's ConfigMap, with the resourceVersion it was
        seen ``at``.

        None when somebody else has written first; what they wrote decides. Raises
        :class:`KubeError`, and :class:`TooLarge`.
        """
        body = config_map(gang, record, at.metadata.resource_version if at is not None else "")
        if (written := await self._record(gang, body, at)) is None:
            return None
        note = {"note": body["data"]["note"]} if "note" in body["data"] else {}
        name = f"{gang.namespace}/{gang.source}:{gang.id}"
        log.info(
            "gang sealed",
            gang=name,
            generation=record.generation,
            members=len(record.assignments),
            **note,
        )
        return written

    async def note_pass(self, gang: GangView, at: ConfigMap) -> ConfigMap | None:
        """Write down that the generation has passed; None when somebody else has written first.
        Raises :class:`KubeError`.
        """
        assert gang.record is not None
        record = msgspec.structs.replace(gang.record, passed=True)
        return await self._record(gang, config_map(gang, record, at.metadata.resource_version), at)

    async def _record(
        self, gang: GangView, body: dict[str, Any], at: ConfigMap | None
    ) -> ConfigMap | None:
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
        return msgspec.json.decode(written, type=ConfigMap)

    async def _replace(self, collection: str, body: dict[str, Any], at: ConfigMap) -> bytes:
        """Replace our record, even where it was made immutable: it is all ours, so it is deleted
        and created again.
        """
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
        """The ConfigMap of that name, ours or not; None where there is none. Raises
        :class:`KubeError`.
        """
        try:
            return await self._client.get(
                f"/api/v1/namespaces/{gang.namespace}/configmaps/{gang.config_map}", ConfigMap
            )
        except NotFound:
            return None

    async def send(self, namespace: str, writes: Iterable[RosterWrite]) -> Sent:
        """Write the rosters of one gang, many at a time. A pod that was refused lately is left out
        until its time has come.
        """
        written: list[RosterWrite] = []
        left: list[float] = []

        async def one(write: RosterWrite) -> None:
            uid = write.member.uid
            try:
                async with self._fair.of(namespace):
                    path = f"/api/v1/namespaces/{namespace}/pods/{write.member.name}"
                    await self._client.json_patch(path, write.patch())
            except Fenced:
                left.append(FIRST)  # the next leader writes it
            except NotFound:
                self._count("roster", "stale")
                self.pods.done(uid)  # the watch brings it
            except KubeError as error:
                stale = isinstance(
                    error, PreconditionFailed
                )  # another pod, or another roster: the watch brings it
                self._count("roster", "stale" if stale else "failed")
                left.append(
                    self._refused(
                        self.pods, uid, error, "" if stale else "roster not written, requeued"
                    )
                )
            else:
                self._count("roster", "written")
                self.pods.done(uid)
                written.append(write)

        async with anyio.create_task_group() as group:
            for write in writes:
                if (seconds := self.pods.left(write.member.uid, self._client.clock())) > 0:
                    left.append(seconds)
                else:
                    group.start_soon(one, write)
        return Sent(written, min(left, default=None))

    async def annotate(self, pod: Metadata, patch: list[dict[str, Any]]) -> bool | None:
        """Write annotations to a pod: True when done, False when it is another pod by now, None
        when it could not be written.

        None too, with nothing sent, while the time for another try has not come: :meth:`left`.
        """
        if self.pods.left(pod.uid, self._client.clock()) > 0:
            return None
        try:
            async with self._fair.of(pod.namespace):
                await self._client.json_patch(
                    f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", patch
                )
        except (PreconditionFailed, NotFound):
            self._count("node", "stale")
            return False
        except Fenced:
            raise
        except KubeError as error:
            self._count("node", "failed")
            self._refused(self.pods, pod.uid, error, "node facts not written, requeued")
            return None
        self._count("node", "written")
        self.pods.done(pod.uid)
        return True

    async def event(self, body: dict[str, Any]) -> bool | None:
        """Create an Event: True when it is new, False when it was there already, None when it could
        not be written.

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
        """Seconds until something about a pod that was refused may be tried again; 0 where nothing
        was.
        """
        now = self._client.clock()
        return min(
            (s for s in (self.pods.left(uid, now), self.events.left(uid, now)) if s > 0),
            default=0.0,
        )

    def forget(self, uid: str) -> None:
        """A pod that has gone is refused no more."""
        self.pods.done(uid)
        self.events.done(uid)

    def _refused(self, refusals: Refusals[str], uid: str, error: KubeError, message: str) -> float:
        """Note it, and log it once; the seconds until the next try."""
        seconds = refusals.refused(uid, error, self._client.clock())
        if message and refusals.first(uid):
            log.warning(message, uid=uid, error=str(error))
        return seconds

    async def status(self, path: str, body: dict[str, Any]) -> bool:
        """Write an object's status: False when it is another version by now, or gone. Raises
        :class:`KubeError`.
        """
        try:
            async with self._fair.of(body.get("metadata", {}).get("namespace", "")):
                await self._client.replace(f"{path}/status", body)
        except (Conflict, NotFound):
            self._count("status", "conflict")
            return False
        self._count("status", "written")
        return True

    def _count(self, kind: str, result: str) -> None:
        self._metrics.writes.labels(kind, result).inc()
