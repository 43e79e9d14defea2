"""Caches of wrappers, labeled pods, labeled objects of each kind that is wrapped, and nodes.

That of a kind is opened when a wrapper first holds one. What a wrapper's own writer has been
answered goes in here, too: it is newer than what a watch has brought so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace
from preflight_kube.api.kinds import Kind, kind_of, version_of
from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.cache import Cache
from preflight_kube.runtime.discovery import RESTMapper
from preflight_kube.runtime.indexes import Index, namespaced_name
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_kube.runtime.workqueue import Key

from preflight_appwrapper.api.names import API_VERSION, LABEL, WRAPPERS
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, Pod
from preflight_appwrapper.controller.labeled_lists import LabeledLists
from preflight_appwrapper.core import decode
from preflight_appwrapper.core.decode import (
    POD,
    ComponentObject,
    Node,
    PartialObject,
    PartialWrapper,
)
from preflight_appwrapper.core.pods import sick_resources
from preflight_appwrapper.core.snapshot import Mirrored

_LABELED: Final = {"labelSelector": LABEL}
_LOOK: Final = 1.0
"""Seconds between two looks at whether a cache may be kept."""
_REFUSALS: Final = 10
"""In a row, one a look, of a kind that could be read: an API server that has only just started may
not know yet who may read it."""
_FORBIDDEN: Final = 403

log = get_logger(__name__)


class _Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod. ``label``: the wrapper that it names. ``component``: itself as one, if it is one."""

    pod: Pod
    version: int
    label: Key
    component: ComponentObject | None = None


class WrapperCache:
    """``changed`` is called with each wrapper that something has changed about. ``wrappers``: all,
    with what the API server has answered of them."""

    def __init__(
        self, client: Client, kinds: RESTMapper, rules: WrapperRules, changed: Callable[[Key], None]
    ) -> None:
        self._client, self._kinds, self._rules, self._changed = client, kinds, rules, changed
        every = rules.autopilot.taints.values()
        self._marks = tuple({taint.key for taints in every for taint in taints})
        self._lists = LabeledLists(client)
        self._lacking: dict[str, int] = {}  # pods that a list at this version did not have
        self._departed: dict[str, ComponentObject] = {}  # by uid, as they were last
        self._departed_of: Index[ComponentObject] = Index(_owner)
        self._group: TaskGroup | None = None
        self.wrappers: Cache[AppWrapper] = Cache(
            client,
            WRAPPERS,
            PartialWrapper,
            decode=lambda raw: decode.wrapper(raw, self.wrappers.store.get(raw.metadata.uid)),
            on_change=self._wrapper_changed,
            indexes={"name": namespaced_name, "phase": lambda wrapper: (wrapper.status.phase,)},
        )
        self._pods = self._labeled("/api/v1/pods", self._pod, self._pod_changed)
        self._nodes = Reflector(
            client,
            "/api/v1/nodes",
            Node,
            on_change=self._node_changed,
            kept=lambda node: node.only(self._marks),
            indexes={
                "name": namespaced_name,
                "sick": lambda node: namespaced_name(node) if self._sick(node) else (),
            },
        )
        self._first: list[Reflector[Any]] = [self.wrappers, self._pods]
        self._first += [self._nodes] if rules.autopilot.monitor else []
        self._open: dict[Kind, Cache[Any]] = {POD: self._pods}
        self._barred: set[Kind] = set()  # may not be listed, and so cannot be followed

    def _labeled(
        self,
        path: str,
        read: Callable[[PartialObject], Any],
        changed: Callable[[Change[Any]], None],
    ) -> Cache[Any]:
        return Cache(
            self._client,
            path,
            PartialObject,
            decode=read,
            resource_version=lambda item: int(item.version),
            on_change=changed,
            indexes={"owner": _owner, "label": _label, "name": _name},
            params=_LABELED,
        )

    async def run(self) -> None:
        """Keep all of it current until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            for cache in self._first:
                group.start_soon(cache.run)

    async def synced(self) -> None:
        """Wait until wrappers, pods and nodes have been read."""
        for cache in self._first:
            await cache.synced.wait()

    # --- wrappers

    def wrapper(self, key: Key) -> AppWrapper | None:
        """The newest that is known; None where it is gone."""
        return self.wrappers.newest("name", "/".join(key))

    def _wrapper_changed(self, change: Change[AppWrapper]) -> None:
        metadata = change.object.metadata
        if change.kind == "deleted":
            self.forget_departed(metadata.uid)
        self._changed(metadata.key)

    def forget_departed(self, uid: str) -> None:
        """Forget the components that a wrapper once had: it is gone, or its new life begins."""
        for component in self._departed_of.keys(uid):
            self._departed_of.remove(component)
            del self._departed[component]

    # --- pods and components

    def view(self, key: Key, wrapper: AppWrapper) -> Mirrored:
        """Return what there is of one wrapper."""
        uid = wrapper.metadata.uid
        kinds = [kind for kind in _kinds_of(wrapper) if kind in self._open]
        forbidden = tuple(kind for kind in kinds if kind in self._barred)
        readable = (self._open[kind] for kind in kinds if kind not in forbidden)
        complete = all(cache.synced.is_set() for cache in (*self._first, *readable))
        components = {(it.kind, it.name): it for it in self._owned(uid)}
        for known in wrapper.status.component_status:
            kind = kind_of(known.api_version, known.kind)
            if kind in self._open:
                named = _components(self._open[kind], "name", f"{key[0]}/{known.name}")
                components.update(((kind, component.name), component) for component in named)
        departed = [self._departed[component] for component in self._departed_of.keys(uid)]
        pods = self.pods_of(key, uid)
        sick = self._nodes.values("sick")
        on = {pod.node for pod in pods.values()} if sick else set[str]()
        return Mirrored(
            complete=complete,
            forbidden=forbidden,
            things=components,
            departed={(last.kind, last.name): last for last in departed},
            pods=pods,
            nodes={it: self._sick(self._nodes.newest("name", it)) for it in on.intersection(sick)},
            version=self._version,
        )

    def pods_of(self, key: Key, uid: str) -> dict[str, Pod]:
        """The pods of a wrapper by uid: by their owners, else by their label."""
        owners = {uid, *self._departed_of.keys(uid), *(owned.uid for owned in self._owned(uid))}
        pods = {it.pod.uid: it for owner in owners for it in self._pods.by_index("owner", owner)}
        for it in self._pods.by_index("label", "/".join(key)):
            if it.pod.uid not in pods and self._of(it) == key:
                pods[it.pod.uid] = it
        lacking, passed = self._lacking, self._version(POD)
        return {uid: it.pod for uid, it in pods.items() if lacking.get(uid, 0) <= passed}

    def _owned(self, uid: str) -> list[ComponentObject]:
        """The components whose controller has this uid."""
        caches = self._open.values()
        return [owned for cache in caches for owned in _components(cache, "owner", uid)]

    async def read_pods(self, key: Key) -> bool:
        """Read the pods with a wrapper's label; whether any is its own. Raises KubeError."""

        def read(raw: PartialObject) -> str:
            self._pods.wrote(raw)
            return raw.metadata.uid

        listed = await self._lists.of(f"/api/v1/namespaces/{key[0]}/pods", key[1], read)
        assert listed is not None
        there, passed = frozenset(listed.objects), self._version(POD)
        self._lacking = {uid: at for uid, at in self._lacking.items() if at > passed}
        for pod in self._pods.by_index("label", "/".join(key)):
            if pod.pod.uid not in there and pod.version <= listed.version:
                self._lacking[pod.pod.uid] = listed.version
        known = map(self._pods.get, listed.objects)
        return any(pod is None or self._of(pod) == key for pod in known)

    def _of(self, pod: _Pod) -> Key:
        """The wrapper that a pod's owner is, or belongs to; else the one that its label names."""
        owner = pod.pod.metadata.controller
        if owner is not None and owner.api_version == API_VERSION:
            return pod.label[0], owner.name
        owners = (_component(cache.get(pod.pod.owner)) for cache in self._open.values())
        component = next(filter(None, owners), None) or self._departed.get(pod.pod.owner)
        return (component and _wrapper_of(component)) or pod.label

    def _sick(self, node: Node | None) -> frozenset[str]:
        rules = self._rules.autopilot
        return sick_resources(node.metadata.labels, rules) if node else frozenset()

    def _version(self, kind: Kind) -> int:
        return version_of(self._open[kind].version) if kind in self._open else 0

    async def follow(self, wrapper: AppWrapper) -> None:
        """Open the mirrors that this wrapper needs. Raises :class:`KubeError`."""
        for kind in _kinds_of(wrapper):
            if kind in self._open:
                continue
            path = await self._kinds.collection(kind)
            if path is None or kind in self._open or self._group is None:
                continue  # not served: then nothing of it exists
            self._group.start_soon(self._keep_open, kind, self.open(kind, path))

    def open(self, kind: Kind, path: str) -> Cache[Any]:
        """Have a cache for the objects of a kind."""
        read = partial(decode.thing, kind=kind, rules=self._rules.failure_rules)
        cache = self._open[kind] = self._labeled(path, read, self._component_changed)
        return cache

    async def _keep_open(self, kind: Kind, cache: Cache[Any]) -> None:
        before, refusals = (False, False), 0
        async with anyio.create_task_group() as group:
            group.start_soon(cache.run)
            while True:
                synced = cache.synced.is_set()
                refusals = refusals + 1 if _forbidden(cache) else 0
                barred = refusals > (_REFUSALS if synced else 0)
                if before != (synced, barred):
                    if barred:
                        shown = "/".join(filter(None, kind))
                        log.warning("kind may not be listed; add it to wrappedKinds", kind=shown)
                        self._barred.add(kind)
                    else:
                        self._barred.discard(kind)
                    every = self.wrappers.store.values()
                    self._wake(of.metadata.key for of in every if kind in _kinds_of(of))
                before = synced, barred
                with anyio.move_on_after(_LOOK):
                    await (anyio.sleep_forever() if synced else cache.synced.wait())

    def _pod(self, raw: PartialObject) -> _Pod:
        metadata = raw.metadata
        controller = metadata.controller
        owned = controller is not None and controller.api_version == API_VERSION
        return _Pod(
            pod=decode.pod(raw, self._rules.autopilot.taints),
            version=version_of(metadata.resource_version),
            label=_once(metadata.namespace, metadata.labels.get(LABEL, "")),
            component=decode.thing(raw, POD, self._rules.failure_rules) if owned else None,
        )

    def _pod_changed(self, change: Change[_Pod]) -> None:
        pod, before = change.object, change.before
        if pod.component is not None:
            known = before.component if before is not None else None
            self._component_changed(Change(change.kind, change.key, pod.component, known))
        unchanged = before is not None and (before.pod, before.label) == (pod.pod, pod.label)
        if change.kind == "deleted" or not unchanged:
            self._wake(self._of(version) for version in (before, pod) if version is not None)

    def _component_changed(self, change: Change[ComponentObject]) -> None:
        component, before = change.object, change.before
        wrapper = _wrapper_of(component)
        if change.kind == "deleted":
            owner = component.owner
            if owner is not None and self.wrappers.get(owner.uid) is not None:
                self._departed[component.uid] = component
                self._departed_of.put(component.uid, component)
        elif before is not None and replace(before, version=component.version) == component:
            return
        elif before is None:  # pods that came before it may be its wrapper's
            self._wake(pod.label for pod in self._pods.by_index("owner", component.uid))
        labeled = (component.namespace, component.label)
        self._wake(key for key in (wrapper, labeled) if key is not None)

    def _wake(self, keys: Iterable[Key]) -> None:
        for key in dict.fromkeys(keys):
            self._changed(key)

    # --- nodes

    def _node_changed(self, change: Change[Node]) -> None:
        now = None if change.kind == "deleted" else change.object
        if self._sick(now) != self._sick(change.before):
            name = change.object.metadata.name
            pods = self._pods.store.values()
            self._wake(self._of(pod) for pod in pods if pod.pod.node == name)


@lru_cache(maxsize=4096)
def _once(*key: str) -> Key:
    """One object for all pods of a wrapper."""
    return key[0], key[1]


def _kinds_of(wrapper: AppWrapper) -> Iterable[Kind]:
    wrapped = getattr(wrapper.spec.components, "kinds", ())  # of Packed
    known = (kind_of(known.api_version, known.kind) for known in wrapper.status.component_status)
    return [kind for kind in dict.fromkeys((*wrapped, *known)) if all(kind[1:])]


def _forbidden(cache: Cache[Any]) -> bool:
    return isinstance(cache.problem, KubeError) and cache.problem.status == _FORBIDDEN


def _components(cache: Cache[Any], index: str, value: str) -> Iterator[ComponentObject]:
    return filter(None, map(_component, cache.by_index(index, value)))


def _component(item: Any) -> ComponentObject | None:
    component: ComponentObject | None = item.component if isinstance(item, _Pod) else item
    return component


def _owner(item: _Pod | ComponentObject) -> tuple[str, ...]:
    if isinstance(item, _Pod):
        return (item.pod.owner,) if item.pod.owner else ()
    return (item.owner.uid,) if item.owner is not None else ()


def _label(item: _Pod | ComponentObject) -> tuple[str, ...]:
    return ("/".join(item.label),) if isinstance(item, _Pod) else ()


def _name(item: _Pod | ComponentObject) -> tuple[str, ...]:
    component = _component(item)
    return (f"{component.namespace}/{component.name}",) if component is not None else ()


def _wrapper_of(component: ComponentObject) -> Key | None:
    owner = component.owner
    if owner is None or owner.api_version != API_VERSION:
        return None
    return component.namespace, owner.name
