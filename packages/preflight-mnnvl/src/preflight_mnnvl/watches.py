"""The reflectors that keep the controller's mirror. What the cluster does not serve is an empty
collection, until it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from sys import intern
from typing import Final, NoReturn, Protocol, TypeVar

import anyio
import msgspec
from preflight_kube.client.client import Client, NotFound, Params
from preflight_kube.logs import get_logger
from preflight_kube.runtime.reflector import Change, Reflector

from .config import Config
from .desired import Key
from .detection import ABSENT, Detection
from .mirror import Mirror, Part
from .names import (
    ADOPTED,
    COMPUTE_DOMAIN_GROUP,
    FABRIC_LABEL,
    GROVE_GROUP,
    GROVE_MNNVL_GROUP,
    KEYS,
    MANAGED,
    READ_LABELS,
    RECREATED,
    RESOURCE_GROUP,
    SCHEDULER_GROUP,
)
from .objects import (
    CliqueSpec,
    ComputeDomain,
    Group,
    Metadata,
    OwnerReference,
    PodClique,
    PodCliqueSet,
    PodGang,
)
from .support import ClusterFacts, served_claims, served_domains

__all__ = ["FabricNodes", "PartWatch", "Watches", "brief", "domain_watches"]

GLANCE: Final = 1.0
"""Seconds between two looks at whether a mirror says that its kind has gone; no request is made."""

T = TypeVar("T")
_NO_SPEC: Final = CliqueSpec()

log = get_logger(__name__)


class Node(msgspec.Struct):
    """As far as it is read: which fabric it is part of."""

    metadata: Metadata


class FabricNodes:
    """How many nodes carry the fabric's label with a value; nobody else's nodes are watched."""

    def __init__(self, client: Client, detection: Detection) -> None:
        self._nodes: set[str] = set()
        self._detection = detection
        self._reflector = Reflector(
            client,
            "/api/v1/nodes",
            Node,
            on_change=self._changed,
            kept=lambda one: Node(brief(one.metadata)),
            params={"labelSelector": FABRIC_LABEL},
        )

    @property
    def synced(self) -> anyio.Event:
        """Set when the nodes have been read once."""
        return self._reflector.synced

    async def run(self) -> None:
        """Follow them until cancelled; every change of their number is a new fact."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._reflector.run)
            await self._reflector.synced.wait()
            self._detection.see(fabric_nodes=len(self._nodes))

    def _changed(self, change: Change[Node]) -> None:
        if change.kind != "deleted" and change.object.metadata.label(FABRIC_LABEL):
            self._nodes.add(change.key)
        else:
            self._nodes.discard(change.key)
        if self._reflector.synced.is_set():
            self._detection.see(fabric_nodes=len(self._nodes))


class Watches:
    """All that the controller mirrors; :meth:`run` until cancelled."""

    def __init__(
        self, client: Client, config: Config, mirror: Mirror, detection: Detection
    ) -> None:
        self._client, self._mirror, self.detection = client, mirror, detection
        self._cliques = self._grove(
            f"{GROVE_GROUP}/v1alpha1/podcliques",
            PodClique,
            self._clique,
            lambda one: PodClique(metadata=brief(one.metadata), spec=_NO_SPEC),
        )
        self._fixed: list[Reflector[PodClique] | Reflector[PodCliqueSet] | Reflector[PodGang]] = [
            self._cliques,
            self._grove(
                f"{GROVE_GROUP}/v1alpha1/podcliquesets",
                PodCliqueSet,
                self._set,
                lambda one: PodCliqueSet(metadata=brief(one.metadata)),
            ),
            self._grove(
                f"{SCHEDULER_GROUP}/v1alpha1/podgangs",
                PodGang,
                self._gang,
                lambda one: PodGang(metadata=brief(one.metadata)),
            ),
        ]
        self._nodes = FabricNodes(client, detection)
        self._moving = domain_watches(client, config, mirror, detection)
        if (
            config.mode == "literal"
        ):  # those of others are many; one of our name is found when it is in the way
            ours: Params = {"labelSelector": f"{MANAGED}=true"}
            self._moving.append(
                PartWatch(
                    client,
                    detection,
                    mirror,
                    "claim",
                    served_claims,
                    group=RESOURCE_GROUP,
                    plural="resourceclaims",
                    params=ours,
                )
            )

    def _grove(
        self,
        path: str,
        type_: type[T],
        changed: Callable[[Change[T]], None],
        kept: Callable[[T], T],
    ) -> Reflector[T]:
        return Reflector(
            self._client, f"/apis/{path}", type_, on_change=changed, kept=kept, absent_retry=ABSENT
        )

    @property
    def synced(self) -> bool:
        """Whether everything has been read once."""
        every = [
            *(one.synced for one in self._fixed),
            *(one.synced for one in self._moving),
            self._nodes.synced,
        ]
        return all(one.is_set() for one in every)

    async def wait_synced(self) -> None:
        """Until everything has been read once."""
        for one in [*self._fixed, *self._moving, self._nodes]:
            await one.synced.wait()

    @property
    def cliques_are_level(self) -> bool:
        """Whether the PodCliques are followed now: what is not seen may be there."""
        return self._cliques.problem is None

    async def run(self) -> None:
        """Keep the mirror current until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.detection.run)
            for one in [*self._fixed, *self._moving, self._nodes]:
                group.start_soon(one.run)

    def _clique(self, change: Change[PodClique]) -> None:
        ignored = self._mirror.clique(
            change.key, None if change.kind == "deleted" else change.object
        )
        if ignored is not None:
            about = f"{ignored.namespace}/{ignored.name}"
            log.warning("a decision is not followed", podclique=about, why=ignored.why)

    def _set(self, change: Change[PodCliqueSet]) -> None:
        self._mirror.set_(_wishes(change.object), gone=change.kind == "deleted")

    def _gang(self, change: Change[PodGang]) -> None:
        self._mirror.gang(
            PodGang(metadata=_short(change.object.metadata)), gone=change.kind == "deleted"
        )


class PartStore(Protocol):
    """What keeps ComputeDomains and what belongs to them, as :class:`~.mirror.Mirror` does."""

    def part(self, part: Part, found: ComputeDomain, *, gone: bool = False) -> None:
        """An object as it is now, or (``gone``) was."""

    def only(self, part: Part, there: Iterable[Key]) -> None:
        """All that exist of a part."""


class PartWatch:
    """The mirror of a kind whose version the cluster says; made anew whenever that is another one,
    or it is served again.
    """

    def __init__(
        self,
        client: Client,
        detection: Detection,
        seen: PartStore,
        part: Part,
        version: Callable[[ClusterFacts], str],
        *,
        group: str,
        plural: str,
        params: Params | None = None,
    ) -> None:
        self.synced = anyio.Event()
        self._client, self._detection, self._seen = client, detection, seen
        self._part, self._version = part, version
        self._group, self._plural, self._params = group, plural, params

    async def run(self) -> NoReturn:
        """Follow what is served until cancelled."""
        detection = self._detection
        await detection.known.wait()
        while True:
            version = self._version(detection.facts)
            if not version:
                self._seen.only(self._part, ())
                self.synced.set()
                await detection.change()
                continue
            async with anyio.create_task_group() as group:
                reflector = self._reflector(version)
                group.start_soon(reflector.run)
                await reflector.synced.wait()
                self._seen.only(
                    self._part, [_place(one.metadata) for one in reflector.store.values()]
                )
                self.synced.set()
                group.start_soon(self._watch_over, reflector)
                while self._version(detection.facts) == version:
                    await detection.change()
                group.cancel_scope.cancel()

    def _reflector(self, version: str) -> Reflector[ComputeDomain]:
        return Reflector(
            self._client,
            f"/apis/{self._group}/{version}/{self._plural}",
            ComputeDomain,
            on_change=self._changed,
            kept=lambda one: ComputeDomain(metadata=brief(one.metadata)),
            params=self._params,
            absent_retry=ABSENT,
        )

    async def _watch_over(self, reflector: Reflector[ComputeDomain]) -> None:
        """Ask what is served once the mirror says that this kind is not."""
        # A reflector has no event for it.
        while not isinstance(reflector.problem, NotFound):  # noqa: ASYNC110
            await anyio.sleep(GLANCE)
        self._detection.ask()

    def _changed(self, change: Change[ComputeDomain]) -> None:
        found = change.object
        self._seen.part(
            self._part, ComputeDomain(metadata=_read(found.metadata)), gone=change.kind == "deleted"
        )


def domain_watches(
    client: Client, config: Config, seen: PartStore, detection: Detection
) -> list[PartWatch]:
    """The mirrors of ComputeDomains and claim templates."""
    domains, templates = "computedomains", "resourceclaimtemplates"
    served = served_domains(config.mode)
    return [
        PartWatch(
            client, detection, seen, "domain", served, group=COMPUTE_DOMAIN_GROUP, plural=domains
        ),
        PartWatch(
            client,
            detection,
            seen,
            "template",
            served_claims,
            group=RESOURCE_GROUP,
            plural=templates,
        ),
    ]


def _place(meta: Metadata) -> tuple[str, str]:
    return meta.namespace, meta.name


def brief(meta: Metadata) -> Metadata:
    """What tells an object and its versions apart; the rest passes by."""
    return Metadata(
        name=meta.name,
        namespace=intern(meta.namespace),
        uid=meta.uid,
        resource_version=meta.resource_version,
    )


def _read(meta: Metadata) -> Metadata:
    """What a turn reads of a ComputeDomain or claim. Of thousands, most say the same of set,
    release and owner: each text is kept once.
    """
    labels, recreated = meta.labels or {}, meta.annotation(RECREATED)
    kept = brief(meta)
    kept.labels = {key: intern(labels[key]) for key in READ_LABELS if key in labels} or None
    kept.annotations = None if recreated is None else {RECREATED: recreated}
    kept.deletion_timestamp = meta.deletion_timestamp
    kept.finalizers = meta.finalizers
    kept.creation_timestamp = meta.creation_timestamp and intern(meta.creation_timestamp)
    kept.owner_references = meta.owner_references and [
        OwnerReference(
            api_version=intern(one.api_version),
            kind=intern(one.kind),
            name=intern(one.name),
            uid=intern(one.uid),
            controller=one.controller,
            block_owner_deletion=one.block_owner_deletion,
        )
        for one in meta.owner_references
    ]
    return kept


def _wishes(set_: PodCliqueSet) -> PodCliqueSet:
    """Of a set who it is, and what it and its scaling groups wish."""
    kept = PodCliqueSet(metadata=_short(set_.metadata))
    kept.metadata.annotations = _wish(set_.metadata.annotations)
    kept.metadata.creation_timestamp = set_.metadata.creation_timestamp
    kept.spec.template.pod_clique_scaling_groups = [
        Group(name=one.name, annotations=wish)
        for one in set_.groups
        if (wish := _wish(one.annotations))
    ]
    return kept


def _wish(annotations: dict[str, str] | None) -> dict[str, str] | None:
    found = annotations or {}
    return {key: found[key] for key in (*KEYS, GROVE_MNNVL_GROUP) if key in found} or None


def _short(meta: Metadata) -> Metadata:
    """Without what people and other controllers write on an object, of which nothing is read but
    one annotation of a PodGang.
    """
    said = meta.annotation(ADOPTED)
    kept = brief(meta)
    kept.annotations = None if said is None else {ADOPTED: said}
    kept.deletion_timestamp = meta.deletion_timestamp
    kept.owner_references = meta.owner_references
    return kept
