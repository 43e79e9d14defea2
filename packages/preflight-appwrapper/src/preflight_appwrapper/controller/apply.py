"""The one place that asks and writes for a wrapper. Its client is fenced by the leadership: each
write asks for the right as it is sent.

Nothing is repeated here. A write whose answer does not come is not believed to have failed: what
there is is read before anything else is decided.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import anyio
import msgspec
from preflight_kube.api import jsonpatch
from preflight_kube.api.kinds import Kind, kind_of
from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime import writes
from preflight_kube.runtime.discovery import RESTMapper, group_versions
from preflight_kube.runtime.retry import cause_of
from preflight_proto.devices import GROUP, VERSIONS, requests_of

from preflight_appwrapper.api.names import API_VERSION, FINALIZER, KIND, wrapper_path
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, AppWrapperStatus, ClaimRef, written
from preflight_appwrapper.controller.labeled_lists import LabeledLists
from preflight_appwrapper.core import decode
from preflight_appwrapper.core.components import ComponentError, build, claims_of, possible_name
from preflight_appwrapper.core.decode import ComponentObject, PartialObject
from preflight_appwrapper.core.plan import CreateComponent, DeleteObject
from preflight_appwrapper.core.snapshot import LeaderState
from preflight_appwrapper.metrics import Metrics

_INVALID: Final = 422
_FATAL: Final = frozenset({400, 404, 405, 413, _INVALID})
"""Statuses that an API server answers again to the same create: malformed, too large, invalid."""

_FORBIDDEN: Final = 403
_SURE: Final = 4
"""Refusals in a row after which a right is missing: an API server that has only just started may
not know yet who may create it."""
_LATER: Final = 429
_MOST_BODIES: Final = 32
"""Components that are held at once to be created: each may have a megabyte."""
_MOST_CLAIMS: Final = 16
"""Claims and claim templates that are read before a component is created."""
_WORTH_A_LIST: Final = 4
"""Wrappers whose components are read by one list, which goes through all of the namespace."""
_FOLLOWED: Final = ("ray.io", "RayJob")
"""A kind with pods that carry no label of ours: it stays until all that it owns is gone."""

_FRESH: Final = 5.0
"""Seconds for which it is known in which versions a kind is served."""

log = get_logger(__name__)


class WrapperApplier:
    """Writes as whoever ``client`` is fenced for."""

    def __init__(
        self, client: Client, kinds: RESTMapper, rules: WrapperRules, metrics: Metrics
    ) -> None:
        self._client, self._kinds, self._rules, self._metrics = client, kinds, rules, metrics
        self._lists = LabeledLists(client)
        self._bodies = anyio.Semaphore(_MOST_BODIES)
        self._versions: dict[str, tuple[float, tuple[str, ...]]] = {}  # of a group, until when

    # --- the wrapper

    async def read(self, namespace: str, name: str) -> PartialObject | None:
        """The wrapper as it is now. Raises :class:`KubeError`."""
        return await self._client.get_or_none(wrapper_path(namespace, name), PartialObject)

    async def write(self, wrapper: AppWrapper, status: AppWrapperStatus) -> writes.Answer:
        """Write the whole status, onto exactly this version of the wrapper."""
        metadata = wrapper.metadata
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": metadata.name,
                "namespace": metadata.namespace,
                "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            },
            "status": written(status),
        }
        path = wrapper_path(metadata.namespace, metadata.name)
        return await self._apply("status", writes.ReplaceStatus(path, body))

    async def finalizer(self, wrapper: AppWrapper, *, wanted: bool) -> writes.Answer:
        """Set or remove our finalizer, and nothing else, on exactly this version of the wrapper."""
        metadata = wrapper.metadata
        others = [finalizer for finalizer in metadata.finalizers if finalizer != FINALIZER]
        patch = [
            jsonpatch.test("/metadata/uid", metadata.uid),
            jsonpatch.test("/metadata/resourceVersion", metadata.resource_version),
            jsonpatch.add("/metadata/finalizers", [*others, FINALIZER] if wanted else others),
        ]
        path = wrapper_path(metadata.namespace, metadata.name)
        return await self._apply("finalizer", writes.Patch(path, patch))

    # --- components

    async def create(
        self, wrapper: AppWrapper, action: CreateComponent, state: LeaderState
    ) -> None:
        """Create a component, and remember what came of it. Raises :class:`KubeError`."""
        claims = await self._claims(wrapper, action.index)
        async with self._bodies:
            try:
                manifest = build(wrapper, action.index, action.name, self._rules, claims)
            except ComponentError as problem:
                state.tried(action.index, str(problem), _now(), fatal=True)
                return
            api_version, named = manifest["apiVersion"], manifest["kind"]
            kind = kind_of(api_version, named)
            name = (kind, action.name)
            # As bytes: of many that wait for an answer at once, none is kept as objects.
            body = msgspec.Raw(msgspec.json.encode(manifest))
            del manifest
            path = await self._kinds.collection(kind, wrapper.metadata.namespace)
            if path is None:
                what = f"the API server does not serve {api_version} {named}"
                state.tried(action.index, what, _now(), fatal=True)
                return
            state.read.pop(name, None)
            state.attempts[action] = _now()
            match await self._apply("component", writes.Create(path, body)):
                case writes.Stored() as stored:
                    created = stored.object(PartialObject)
                    state.creates.pop(action.index, None)
                    state.saw(name, decode.thing(created, kind, self._rules.failure_rules))
                case writes.Exists():
                    await self.look(wrapper.metadata.namespace, name, state)
                case writes.Refused(error=error) | writes.Lost(error=error) as answer:
                    before = state.creates.get(action.index)
                    known = before.forbidden if before is not None else 0
                    state.tried(
                        action.index,
                        cause_of(error),
                        _now(),
                        fatal=is_final(error, known),
                        unclear=isinstance(answer, writes.Lost),
                        forbidden=known + 1 if _lacks_right(error) else 0,
                    )

    async def _claims(self, wrapper: AppWrapper, index: int) -> dict[ClaimRef, set[str]]:
        """The device classes of the pods' claims, as far as these exist and may be read."""
        known: dict[ClaimRef, set[str]] = {}
        if all("/" in key for key in self._rules.autopilot.taints):
            return known
        for kind, name in claims_of(wrapper, index)[:_MOST_CLAIMS]:
            path = await self._kinds.newest(GROUP, VERSIONS, kind, wrapper.metadata.namespace)
            if path is None or not possible_name(name):
                continue
            try:
                claim = await self._client.get(f"{path}/{quote(name, safe='')}", dict[str, Any])
            except KubeError as error:
                if error.status not in {_FORBIDDEN, 404}:
                    raise
                log.warning("claim not read", path=f"{path}/{name}", error=cause_of(error))
                continue
            asked = (request.classes for request in requests_of(claim) if not request.admin)
            known[kind, name] = {device_class for classes in asked for device_class in classes}
        return known

    async def look(
        self, namespace: str, name: tuple[Kind, str], state: LeaderState, *uids: str
    ) -> ComponentObject | None:
        """Read what is there under a component's name. Raises :class:`KubeError`."""
        raw, kind = None, name[0]
        if possible_name(name[1]):
            raw = await self._get(await self._kinds.collection(kind, namespace), name[1])
            raw = raw or await self._get(await self._in_another_version(kind, namespace), name[1])
        known = decode.thing(raw, name[0], self._rules.failure_rules) if raw is not None else None
        state.saw(name, known, uids)
        return known

    async def _get(self, path: str | None, name: str) -> PartialObject | None:
        if path is None:
            return None
        return await self._client.get_or_none(f"{path}/{quote(name, safe='')}", PartialObject)

    async def _in_another_version(self, kind: Kind, namespace: str) -> str | None:
        """The path of a kind in another version than its own, in which its objects are there, too,
        and still are when its definition has dropped its own. Raises :class:`KubeError`.
        """
        if "." not in kind[0]:
            return None
        group, now = kind[0], self._client.clock()
        if now >= self._versions.get(group, (now,))[0]:
            self._versions[group] = now + _FRESH, await group_versions(self._client, group)
        others = [version for version in self._versions[group][1] if version != kind[1]]
        return await self._kinds.newest(group, others, kind[2], namespace)

    async def delete(self, namespace: str, action: DeleteObject, state: LeaderState) -> None:
        """Delete the very object that is meant. Raises :class:`KubeError` without an answer."""
        kind = kind_of(action.api_version, action.kind)
        path = await self._kinds.collection(kind, namespace)
        answer = await self._deleted(path, action) if path is not None else writes.Missing()
        if isinstance(answer, writes.Missing):
            path = await self._in_another_version(kind, namespace)
            if path is not None:
                answer = await self._deleted(path, action)
                # No watch says what becomes of it.
                await self.look(namespace, (kind, action.name), state, action.uid)
        state.refused.pop(action.uid, None)
        match answer:
            case writes.Missing():  # gone, not served, or another one has its name
                state.gone.add(action.uid)
            case writes.Lost(error=error) if not error.status:
                raise error
            case writes.Refused(error=error) | writes.Lost(error=error):
                log.warning(
                    "object not deleted", path=f"{path}/{action.name}", error=cause_of(error)
                )
                if error.status != _LATER:
                    state.refused[action.uid] = cause_of(error)
        state.attempts[action] = _now()

    async def _deleted(self, path: str, action: DeleteObject) -> writes.Answer:
        kind = kind_of(action.api_version, action.kind)
        delete = writes.Delete(
            path=f"{path}/{quote(action.name, safe='')}",
            uid=action.uid,
            grace=0 if action.force else None,
            propagation="Foreground" if kind[::2] == _FOLLOWED else "Background",
        )
        return await self._apply("delete", delete)

    # --- everything at once

    async def read_components(self, wrapper: AppWrapper, state: LeaderState) -> bool:
        """Read all components as they are now; whether any is there. By a list where many ask at
        once; what that lacks, which may have lost its label, is read by itself. Raises KubeError.
        """
        namespace = wrapper.metadata.namespace
        named = [
            (kind_of(known.api_version, known.kind), known.name, known.uid)
            for known in wrapper.status.component_status
            if known.name
        ]
        kinds = {kind for kind, *_ in named}
        listed = dict(await writes.gather(self._listed(kind, wrapper) for kind in kinds))

        async def look(kind: Kind, name: str, uid: str) -> ComponentObject | None:
            known = listed[kind].get(name)
            if known is None:
                return await self.look(namespace, (kind, name), state, uid)
            state.saw((kind, name), known, (uid,))
            return known

        there = await writes.gather(look(*about) for about in named)
        return any(known is not None and known.belongs_to(wrapper) for known in there)

    async def _listed(
        self, kind: Kind, wrapper: AppWrapper
    ) -> tuple[Kind, dict[str, ComponentObject]]:
        """The wrapper's objects of a kind by name; none where no list is worth it, or allowed."""
        metadata = wrapper.metadata
        path = await self._kinds.collection(kind, metadata.namespace)
        read = partial(decode.thing, kind=kind, rules=self._rules.failure_rules)
        try:
            of = self._lists.of
            listed = path and await of(path, metadata.name, read, least=_WORTH_A_LIST)
        except KubeError as error:
            if error.status not in {_FORBIDDEN, 404}:  # 404: no longer served
                raise
            listed = None
        return kind, {known.name: known for known in listed.objects} if listed else {}

    async def _apply(self, kind: str, write: writes.Write) -> writes.Answer:
        answer = await writes.apply(self._client, write)
        match answer:
            case writes.Stored():
                result = "written"
            case writes.Exists() | writes.Missing() | writes.Refused(stale=True):
                result = "conflict"
            case _:
                result = "failed"
        self._metrics.writes.labels(kind, result).inc()
        return answer


def is_final(error: KubeError, forbidden: int) -> bool:
    """Say whether the API server itself refuses a create, for want of a right the last
    ``forbidden`` times before, and would again. A webhook's denial has the status 400 where it
    names none, and may be another one next time.
    """
    if error.status == _FORBIDDEN:
        return forbidden >= _SURE and _lacks_right(error)
    denied = error.status != _INVALID and " denied the request" in str(error)
    return error.status in _FATAL and not denied


def _lacks_right(error: KubeError) -> bool:
    """Tell whether RBAC forbids it, which alone has these words: no quota and no webhook."""
    return error.status == _FORBIDDEN and " cannot create resource " in str(error)


def _now() -> datetime:
    return datetime.now(UTC)
