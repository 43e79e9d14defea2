"""The one place that writes: the record that commits a generation, the members' rosters, and Events.

Every write asks the leadership right before it is sent (the client is fenced), and carries its own precondition. What fails is not
repeated here: the gang is looked at again, and what is still right is written again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

import anyio
import msgspec

from .delivery import config_map, owned_by, record_of, roster_patch, seal
from .kube.client import Client, Conflict, KubeError, NotFound, PreconditionFailed
from .membership import Member
from .metrics import Metrics
from .nodes import set_annotation
from .objects import ConfigMap, Metadata
from .sealing import Answer, Gang, Record

__all__ = ["Writer", "obstacle", "record_in"]

log = logging.getLogger(__name__)


class Writer:
    """Writes as the leader of ``epoch``. ``client`` is fenced by that leadership."""

    def __init__(self, client: Client, epoch: int, metrics: Metrics) -> None:
        self._client, self._epoch, self._metrics = client, epoch, metrics

    async def commit(
        self, gang: Gang, chosen: tuple[Member, ...], at: ConfigMap | None, taken: Collection[int] = ()
    ) -> ConfigMap | None:
        """Seal ``chosen``: one write of the gang's ConfigMap, with the resourceVersion it was seen ``at``.

        ``taken`` are ports of other gangs on its nodes.

        None when somebody else has written first; what they wrote decides. Raises :class:`KubeError`, and :class:`TooLarge`.
        """
        record = seal(gang, chosen, secrets.token_hex(32), taken)
        body = config_map(gang, record, at.metadata.resource_version if at is not None else "")
        if (written := await self._record(gang, body, at)) is None:
            return None
        about = {"gang": f"{gang.namespace}/{gang.id}", "generation": record.generation, "members": len(chosen)}
        note = body["data"].get("note")
        log.info("sealed", extra={"about": about | ({"note": note} if note else {})})
        return written

    async def note_pass(self, gang: Gang, at: ConfigMap) -> ConfigMap | None:
        """Write down that the generation has passed; None when somebody else has written first. Raises :class:`KubeError`."""
        assert gang.record is not None
        record = msgspec.structs.replace(gang.record, passed=True)
        return await self._record(gang, config_map(gang, record, at.metadata.resource_version), at)

    async def _record(self, gang: Gang, body: dict[str, Any], at: ConfigMap | None) -> ConfigMap | None:
        collection = f"/api/v1/namespaces/{gang.namespace}/configmaps"
        try:
            if at is None:
                written = await self._client.create(collection, body)
            else:
                written = await self._client.replace(f"{collection}/{gang.config_map}", body)
        except (Conflict, NotFound):
            self._count("configmap", "conflict")
            return None
        self._count("configmap", "written")
        return msgspec.json.decode(written, type=ConfigMap)

    async def read(self, gang: Gang) -> ConfigMap | None:
        """The ConfigMap of that name, ours or not; None where there is none. Raises :class:`KubeError`."""
        try:
            return await self._client.get(
                f"/api/v1/namespaces/{gang.namespace}/configmaps/{gang.config_map}", ConfigMap
            )
        except NotFound:
            return None

    async def tell(
        self,
        gang: Gang,
        answers: Mapping[str, Answer],
        heard: Callable[[Member, str], None],
        beside: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> bool:
        """Write what each member has not been told yet, many at a time; False when some could not be reached.

        ``heard`` is called with each member that has been told, and with what. ``beside``: uid → annotations to set with it.
        """
        reached = True

        async def one(member: Member, patch: list[dict[str, Any]]) -> None:
            nonlocal reached
            try:
                await self._client.json_patch(f"/api/v1/namespaces/{gang.namespace}/pods/{member.name}", patch)
                self._count("roster", "written")
                heard(member, patch[-1]["value"])
            except (PreconditionFailed, NotFound):
                # Another pod by now, or told something else meanwhile: the watch brings it.
                self._count("roster", "stale")
            except KubeError as error:
                reached = False
                self._count("roster", "failed")
                log.warning("a member could not be told", extra={"about": {"uid": member.uid, "error": str(error)}})

        async with anyio.create_task_group() as group:
            for member in gang.members:
                answer = answers.get(member.uid)
                patch = roster_patch(member, answer, gang.record, self._epoch) if answer is not None else None
                if patch is not None:
                    patch[-1:-1] = [set_annotation(key, value) for key, value in beside(member.uid).items()]
                    group.start_soon(one, member, patch)
        return reached

    async def annotate(self, pod: Metadata, patch: list[dict[str, Any]]) -> bool | None:
        """Write annotations to a pod: True when done, False when it is another pod by now, None when it could not be written."""
        try:
            await self._client.json_patch(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", patch)
        except (PreconditionFailed, NotFound):
            self._count("node", "stale")
            return False
        except KubeError as error:
            self._count("node", "failed")
            log.warning(
                "a pod could not be told about its node", extra={"about": {"uid": pod.uid, "error": str(error)}}
            )
            return None
        self._count("node", "written")
        return True

    async def event(self, body: dict[str, Any]) -> bool | None:
        """Create an Event: True when it is new, False when it was there already, None when it could not be written."""
        try:
            await self._client.create(f"/api/v1/namespaces/{body['metadata']['namespace']}/events", body)
        except NotFound:  # the namespace has gone, and the pod with it
            return False
        except KubeError as error:
            if isinstance(error, Conflict) and error.reason == "AlreadyExists":
                return False
            self._count("event", "failed")
            log.warning("an Event could not be written", extra={"about": {"error": str(error)}})
            return None
        self._count("event", "written")
        return True

    async def status(self, path: str, body: dict[str, Any]) -> bool:
        """Write an object's status: False when it is another version by now, or gone. Raises :class:`KubeError`."""
        try:
            await self._client.replace(f"{path}/status", body)
        except (Conflict, NotFound):
            self._count("status", "conflict")
            return False
        self._count("status", "written")
        return True

    def _count(self, kind: str, result: str) -> None:
        self._metrics.writes.labels(kind, result).inc()


def obstacle(found: ConfigMap | None) -> str:
    """Why a ConfigMap cannot be the gang's, or nothing."""
    if found is None or owned_by(found):
        return ""
    return (
        f"the ConfigMap {found.metadata.name} exists and is not managed by preflight-gang; "
        "rename or delete it, its name is the gang's"
    )


def record_in(found: ConfigMap | None) -> Record | None:
    return record_of(found) if found is not None and owned_by(found) else None
