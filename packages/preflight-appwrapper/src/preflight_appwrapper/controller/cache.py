"""What is mirrored: wrappers, labelled pods, labelled objects of each kind that is wrapped, and the
labels of nodes.

A mirror of a kind is opened when a wrapper first holds one. What a wrapper's own writer has been
answered goes in here, too: it is newer than what a watch has brought so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup
from preflight_kube.api.kinds import Kind, kind_of, version_of
from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.cache import Cache
from preflight_kube.runtime.discovery import RESTMapper
from preflight_kube.runtime.indexes import namespaced_name
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_kube.runtime.workqueue import Key

from preflight_appwrapper.api.names import API_VERSION, LABEL, WRAPPERS
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, Pod
from preflight_appwrapper.core import decode as cluster
from preflight_appwrapper.core.decode import POD, ComponentObject, Node, PartialObject
from preflight_appwrapper.core.leader_state import VersionedPod
from preflight_appwrapper.core.snapshot import Mirrored
from preflight_appwrapper.core.unhealthy_nodes import sick_resources

__all__ = ["WrapperCache"]

_LABELED: Final = {"labelSelector": LABEL}
_LOOK: Final = 1.0
"""Seconds between two looks at a mirror that cannot be opened."""
_FORBIDDEN: Final = 403

log = get_logger(__name__)

Name = tuple[Kind, str]
Place = tuple[str, Kind, str]
"""Namespace, kind and name."""


class _Mirror:
    """Of one kind. ``barred``: it may not be listed, and so cannot be followed."""

    def __init__(self, reflector: Reflector[PartialObject] | None) -> None:
        self.reflector, self.barred = reflector, False

    @property
    def ready(self) -> bool:
        return self.barred or (self.reflector is not None and self.reflector.synced.is_set())

    @property
    def version(self) -> int:
        return version_of(self.reflector.version) if self.reflector is not None else 0


class WrapperCache:
    """``changed`` is called with each wrapper that something has changed about."""

    def __init__(
        self,
        client: Client,
        kinds: RESTMapper,
        rules: WrapperRules,
        changed: Callable[[Key], None],
    ) -> None:
        self._client, self._kinds, self._rules, self._changed = client, kinds, rules, changed
        self._pods: dict[Key, dict[str, VersionedPod]] = {}
        self._pod_places: dict[str, tuple[Key, bool]] = {}  # by uid; whether its owner says so
        self._wrapper_of: dict[str, Key] = {}  # by a component's uid
        self._unowned: dict[str, dict[str, Key]] = {}  # by an owner not known: uids and labels
        self._things: dict[Place, ComponentObject] = {}
        self._owned: dict[str, set[Place]] = {}  # by the controller's uid
        self._departed: dict[str, dict[Name, ComponentObject]] = {}  # the same
        self._nodes: dict[str, frozenset[str]] = {}
        self._open: dict[Kind, _Mirror] = {}
        self._group: TaskGroup | None = None
        self._wrappers: Cache[AppWrapper] = Cache(
            client,
            WRAPPERS,
            PartialObject,
            decode=self._decoded,
            on_change=self._wrapper_changed,
            indexes={"name": namespaced_name, "phase": lambda it: (it.status.phase,)},
        )
        self._pod_mirror = self._reflector("/api/v1/pods", self._pod_changed)
        self._node_mirror = Reflector(client, "/api/v1/nodes", Node, on_change=self._node_changed)

    async def run(self) -> None:
        """Keep all of it current until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            self._open[POD] = _Mirror(self._pod_mirror)
            group.start_soon(self._wrappers.run)
            group.start_soon(self._pod_mirror.run)
            if self._rules.autopilot.monitor:
                group.start_soon(self._node_mirror.run)
            group.start_soon(self._announce)

    async def _announce(self) -> None:
        """Have everything looked at once the first mirrors are there."""
        await self.synced()
        for wrapper in list(self.wrappers()):
            self._changed((wrapper.metadata.namespace, wrapper.metadata.name))

    async def synced(self) -> None:
        """Wait until wrappers, pods and nodes have been read."""
        await self._wrappers.synced.wait()
        await self._pod_mirror.synced.wait()
        if self._rules.autopilot.monitor:
            await self._node_mirror.synced.wait()

    # --- wrappers

    def wrappers(self) -> Iterable[AppWrapper]:
        """All that are known."""
        return self._wrappers.store.values()

    def in_phase(self, phase: str) -> int:
        """How many wrappers are in this phase."""
        return self._wrappers.count("phase", phase)

    def wrapper(self, key: Key) -> AppWrapper | None:
        """The newest that is known; None where it is gone."""
        named = self._wrappers.by_index("name", "/".join(key))
        return max(named, key=lambda it: version_of(it.metadata.resource_version), default=None)

    def keep(self, raw: PartialObject) -> None:
        """Take in what the API server has answered of a wrapper."""
        self._wrappers.wrote(raw)

    def drop(self, uid: str) -> None:
        """Take in that the API server has said that this wrapper is gone."""
        self._wrappers.deleted(uid)

    def _decoded(self, raw: PartialObject) -> AppWrapper:
        return cluster.wrapper(raw, self._wrappers.store.get(raw.metadata.uid))

    def _wrapper_changed(self, change: Change[AppWrapper]) -> None:
        metadata = change.object.metadata
        if change.kind == "deleted":
            self._departed.pop(metadata.uid, None)
        self._changed((metadata.namespace, metadata.name))

    # --- pods and components

    def view(self, key: Key, wrapper: AppWrapper) -> Mirrored:
        """What there is of one wrapper."""
        namespace, uid = key[0], wrapper.metadata.uid
        kinds = set(_kinds_of(wrapper))
        ready = all(mirror.ready for kind in kinds if (mirror := self._open.get(kind)) is not None)
        base = self._pod_mirror.synced.is_set() and (
            not self._rules.autopilot.monitor or self._node_mirror.synced.is_set()
        )
        things = {(place[1], place[2]): self._things[place] for place in self._owned.get(uid, ())}
        for one in wrapper.status.component_status:
            name = (kind_of(one.api_version, one.kind), one.name)
            found = self._things.get((namespace, *name))
            if found is not None:
                things[name] = found
        return Mirrored(
            complete=base and ready,
            things=things,
            departed=self._departed.get(uid, {}),
            pods=self._pods.get(key, {}),
            nodes=self._nodes,
            version=self._version,
            pods_version=version_of(self._pod_mirror.version),
            elsewhere=lambda pod: self.elsewhere(key, pod),
        )

    def elsewhere(self, key: Key, uid: str) -> bool:
        """Whether the pod with this uid belongs to another wrapper than ``key``."""
        known = self._pod_places.get(uid)
        return known is not None and known[0] != key

    def _version(self, kind: Kind) -> int:
        mirror = self._open.get(kind)
        return mirror.version if mirror is not None else 0

    async def follow(self, wrapper: AppWrapper) -> None:
        """Open the mirrors that this wrapper needs. Raises :class:`KubeError` where the cluster
        does not say what it serves.
        """
        for kind in _kinds_of(wrapper):
            if kind in self._open:
                continue
            path = await self._kinds.collection(kind)
            if path is None or kind in self._open or self._group is None:
                continue  # not served: then nothing of it exists
            mirror = self._open[kind] = _Mirror(self._component_mirror(path, kind))
            self._group.start_soon(self._keep_open, kind, mirror)

    async def _keep_open(self, kind: Kind, mirror: _Mirror) -> None:
        assert mirror.reflector is not None
        async with anyio.create_task_group() as group:
            group.start_soon(mirror.reflector.run)
            while not mirror.reflector.synced.is_set():
                with anyio.move_on_after(_LOOK):
                    await mirror.reflector.synced.wait()
                problem = mirror.reflector.problem
                barred = isinstance(problem, KubeError) and problem.status == _FORBIDDEN
                if barred and not mirror.barred:
                    log.warning(
                        "kind may not be listed; add it to wrappedKinds",
                        kind="/".join(part for part in kind if part),
                    )
                    mirror.barred = True
                    self._wake(kind)
            mirror.barred = False
            self._wake(kind)

    def _wake(self, kind: Kind) -> None:
        for wrapper in self.wrappers():
            if kind in _kinds_of(wrapper):
                self._changed((wrapper.metadata.namespace, wrapper.metadata.name))

    def _component_mirror(self, path: str, kind: Kind) -> Reflector[PartialObject]:
        return self._reflector(path, lambda change: self._thing_changed(change, kind))

    def _reflector(
        self, path: str, changed: Callable[[Change[PartialObject]], None]
    ) -> Reflector[PartialObject]:
        return Reflector(
            self._client, path, PartialObject, on_change=changed, kept=_kept, params=_LABELED
        )

    def _pod_changed(self, change: Change[PartialObject]) -> None:
        metadata = change.object.metadata
        label = (metadata.namespace, metadata.labels.get(LABEL, ""))
        if change.kind == "deleted":
            self._drop_pod(metadata.uid)
        else:
            made = cluster.pod(change.object)
            self._hold_pod(made, label, version_of(metadata.resource_version))
        if metadata.controller is not None and metadata.controller.api_version == API_VERSION:
            self._thing_changed(change, POD)

    def _hold_pod(self, made: Pod, label: Key, version: int) -> None:
        """It is of the wrapper that its owner belongs to, else of the one that its label names;
        once its owner was known, it stays where it is.
        """
        uid, known = made.uid, self._pod_places.get(made.uid)
        owner = made.metadata.controller
        of = self._wrapper_of.get(made.owner)
        if owner is not None and owner.api_version == API_VERSION:
            of = (label[0], owner.name)
        key = of or (known[0] if known is not None and known[1] else label)
        before = self._pods.get(known[0], {}).get(uid) if known is not None else None
        if known is not None and known[0] != key:
            self._drop_pod(uid)
        if of is None and owner is not None:
            self._unowned.setdefault(owner.uid, {})[uid] = label
        self._pod_places[uid] = (key, of is not None or (known is not None and known[1]))
        self._pods.setdefault(key, {})[uid] = VersionedPod(made, version, key != label)
        if before is None or before.pod != made or known is None or known[0] != key:
            self._changed(key)

    def _drop_pod(self, uid: str) -> None:
        known = self._pod_places.pop(uid, None)
        if known is None:
            return
        held = self._pods[known[0]]
        owner = held.pop(uid).pod.owner
        if owner in self._unowned:
            self._unowned[owner].pop(uid, None)
            if not self._unowned[owner]:
                del self._unowned[owner]
        if not held:
            del self._pods[known[0]]
        self._changed(known[0])

    def _own(self, made: ComponentObject) -> None:
        """Pods that came before their owner go where that belongs."""
        if made.owner is None or made.owner.api_version != API_VERSION:
            return
        self._wrapper_of[made.uid] = (made.namespace, made.owner.name)
        for uid, label in self._unowned.pop(made.uid, {}).items():
            known = self._pod_places.get(uid)
            if known is not None:
                held = self._pods[known[0]][uid]
                self._hold_pod(held.pod, label, held.version)

    def _thing_changed(self, change: Change[PartialObject], kind: Kind) -> None:
        made = cluster.thing(change.object, kind, self._rules.failure_rules)
        place = (made.namespace, kind, made.name)
        before = self._things.get(place)
        if change.kind == "deleted":
            if before is not None and before.uid == made.uid:
                del self._things[place]
                self._wrapper_of.pop(made.uid, None)
                self._disown(before, place)
            if made.owner is not None and self._wrappers.get(made.owner.uid) is not None:
                # A list only says that it has gone; then what was seen before says more.
                last = (
                    before
                    if before is not None and before.uid == made.uid and not change.object.full
                    else made
                )
                self._departed.setdefault(made.owner.uid, {})[kind, made.name] = last
        else:
            if before is not None:
                self._disown(before, place)
            self._things[place] = made
            self._own(made)
            if made.owner is not None:
                self._owned.setdefault(made.owner.uid, set()).add(place)
            if before is not None and _same(before, made):
                return
        self._changed((made.namespace, change.object.metadata.labels.get(LABEL, "")))

    def _disown(self, one: ComponentObject, place: Place) -> None:
        if one.owner is not None and (places := self._owned.get(one.owner.uid)) is not None:
            places.discard(place)
            if not places:
                del self._owned[one.owner.uid]

    # --- nodes

    def _node_changed(self, change: Change[Node]) -> None:
        metadata = change.object.metadata
        before = self._nodes.get(metadata.name, frozenset())
        sick = (
            frozenset()
            if change.kind == "deleted"
            else sick_resources(metadata.labels, self._rules.autopilot)
        )
        if sick == before:
            return
        if sick:
            self._nodes[metadata.name] = sick
        else:
            self._nodes.pop(metadata.name, None)
        for key, pods in self._pods.items():
            if any(held.pod.node == metadata.name for held in pods.values()):
                self._changed(key)


def _kinds_of(wrapper: AppWrapper) -> Iterable[Kind]:
    found: dict[Kind, Any] = dict.fromkeys(getattr(wrapper.spec.components, "kinds", ()))  # Packed
    for one in wrapper.status.component_status:
        found[kind_of(one.api_version, one.kind)] = None
    return [kind for kind in found if all(kind[1:])]


def _kept(raw: PartialObject) -> PartialObject:
    """What tells one version from the next; all else is kept in a form of its own."""
    metadata = raw.metadata
    return PartialObject(
        metadata=msgspec.structs.replace(
            metadata,
            labels={LABEL: metadata.labels.get(LABEL, "")},
            annotations={},
            finalizers=(),
            owner_references=tuple(one for one in metadata.owner_references if one.controller),
        )
    )


def _same(one: ComponentObject, other: ComponentObject) -> bool:
    return msgspec.structs.replace(one, version=other.version) == other
