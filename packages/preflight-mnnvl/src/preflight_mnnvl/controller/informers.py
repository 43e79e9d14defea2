"""The informers of controller and webhook: what the cluster serves, asked again, and reflectors of
it. A kind that is not served is an empty collection, until it is; nothing here ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

import anyio
from preflight_kube.client.client import Client, KubeError, NotFound, Params
from preflight_kube.logs import get_logger
from preflight_kube.runtime.discovery import versions
from preflight_kube.runtime.reflector import Change, Reflector

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import (
    CliqueSpec,
    ComputeDomain,
    Group,
    Key,
    Metadata,
    Part,
    PartialObjectMetadata,
    PodClique,
    PodCliqueSet,
    PodGang,
    picked,
)
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.cache import MnnvlCache
from preflight_mnnvl.core.fabric import DRIVER, PodClaim, Slice, cliques_of
from preflight_mnnvl.core.support import (
    CHANNEL_CLASS,
    ClusterFacts,
    served_claims,
    served_domains,
)

__all__ = ["AdmissionInformers", "Detection", "DomainInformers"]

ASKED_AGAIN: Final = 30.0
"""Seconds between two questions what is served."""
UNANSWERED: Final = 2.0
GLANCE: Final = 1.0
"""Seconds between two looks at whether a reflector says that its kind has gone; nothing is sent."""

T = TypeVar("T")
_NO_SPEC: Final = CliqueSpec()
_ASKED: Final = (*names.KEYS, names.GROVE_MNNVL_GROUP)


class Detection:
    """``facts`` are those of now; ``changed`` is called after each change of them."""

    def __init__(
        self, client: Client, config: Config, changed: Callable[[ClusterFacts], None]
    ) -> None:
        self.facts = ClusterFacts()
        self.known = anyio.Event()
        """Set when the API server has answered once."""
        self._client, self._config, self._changed = client, config, changed
        self._poke = anyio.Event()
        self._next = anyio.Event()

    def ask(self) -> None:
        """Have the cluster asked again now: a kind that was served is not any more."""
        self._poke.set()

    async def change(self) -> None:
        """Wait for the next change of the facts."""
        await self._next.wait()

    def see(self, **facts: Any) -> None:
        """Facts that others find: nodes, device classes."""
        found = self.facts._replace(**facts)
        if found != self.facts:
            self.facts = found
            self._next.set()
            self._next = anyio.Event()
            self._changed(found)

    async def run(self) -> NoReturn:
        """Ask again and again until cancelled, sooner after :meth:`ask`."""
        while True:
            self._poke = anyio.Event()
            pause = await self.look()
            with anyio.move_on_after(pause):
                await self._poke.wait()
                # What is being removed or made takes a moment, and this pause keeps requests few.
                await anyio.sleep(UNANSWERED)

    async def look(self) -> float:
        """Ask once; the seconds until the next time."""
        try:
            domains = await versions(self._client, names.COMPUTE_DOMAIN_GROUP, "computedomains")
            claims = await versions(self._client, names.RESOURCE_GROUP, "resourceclaims")
            required = True
            if self._config.mode == "literal" and domains:
                required = await self._channel_required(domains)
        except KubeError as error:
            if not self.known.is_set():
                log.warning("the API server has not said what it serves", error=str(error))
            return UNANSWERED
        if domains != self.facts.domains:
            served = {"computedomains": ", ".join(domains) or "not served"}
            log.info("what the cluster serves", **served, resourceclaims=", ".join(claims))
        self.see(domains=domains, claims=claims, channel_required=required)
        self.known.set()
        return ASKED_AGAIN

    async def _channel_required(self, versions: tuple[str, ...]) -> bool:
        """Whether the schema of ComputeDomain wants `spec.channel`;
        every account may read schemas.
        """
        version = "v1beta1" if "v1beta1" in versions else versions[0]
        path = f"/openapi/v3/apis/{names.COMPUTE_DOMAIN_GROUP}/{version}"
        found = await self._client.get_or_none(path, dict[str, Any])
        schemas = ((found or {}).get("components") or {}).get("schemas") or {}
        for name, schema in schemas.items():
            if name.endswith(".ComputeDomain"):
                spec = (schema.get("properties") or {}).get("spec") or {}
                return "channel" in (spec.get("required") or ())
        return True


log = get_logger(__name__)


class PartStore(Protocol):
    """What keeps ComputeDomains and what belongs to them."""

    def part(self, part: Part, found: ComputeDomain, *, gone: bool = False) -> None:
        """Take in an object as it is now, or (``gone``) was."""

    def only(self, part: Part, there: Iterable[Key]) -> None:
        """Forget what is not among all that exist of a part."""


class AdmissionStore(PartStore, Protocol):
    """What keeps what reviews are decided by. ``sets_are_level``: whether sets are followed now."""

    sets_are_level: Callable[[], bool]

    def facts(self, facts: ClusterFacts) -> None:
        """Take in what the cluster can do now."""

    def set_(self, found: PodCliqueSet, *, gone: bool = False) -> None:
        """Take in a PodCliqueSet as it is now, or (``gone``) was."""


class MnnvlInformers:
    """What controller and webhook both follow: what is served, nodes of a fabric, and ``parts``.
    ``changed`` is called with the facts after each change of them.
    """

    def __init__(
        self,
        client: Client,
        config: Config,
        store: PartStore,
        changed: Callable[[ClusterFacts], None],
        parts: Mapping[Part, Params | None],
    ) -> None:
        self._client, self._config = client, config
        self.detection = Detection(client, config, changed)
        self._nodes = Reflector(
            client,
            "/api/v1/nodes",
            PartialObjectMetadata,
            on_change=self._node_changed,
            kept=_fabric,
            params={"labelSelector": names.FABRIC_LABEL},
            indexes={"name": lambda one: (one.metadata.name,)},
        )
        self._reflectors: list[Reflector[Any]] = [self._nodes]
        self._versioned: list[VersionedReflector[Any]] = []
        for part, params in parts.items():
            self._part(part, store, params)

    def _part(self, part: Part, store: PartStore, params: Params | None) -> None:
        def changed(change: Change[ComputeDomain]) -> None:
            meta = change.object.metadata.only(names.READ_LABELS, (names.RECREATED,))
            found = ComputeDomain(metadata=meta, status=change.object.status)
            store.part(part, found, gone=change.kind == "deleted")

        def level(there: Collection[ComputeDomain]) -> None:
            store.only(part, [(one.metadata.namespace, one.metadata.name) for one in there])

        self._resource(
            {
                "domain": "computedomains",
                "template": "resourceclaimtemplates",
                "claim": "resourceclaims",
            }[part],
            ComputeDomain,
            on_change=changed,
            level=level,
            params=params,
            kept=lambda one: ComputeDomain(metadata=one.metadata.brief()),
        )

    def _resource(
        self,
        plural: str,
        type_: type[T],
        *,
        level: Callable[[Collection[T]], None] = lambda _: None,
        **more: Any,
    ) -> VersionedReflector[T]:
        """Follow a kind in the version that the cluster serves."""
        domains = plural == "computedomains"
        group = names.COMPUTE_DOMAIN_GROUP if domains else names.RESOURCE_GROUP
        version = served_domains(self._config.mode) if domains else served_claims

        def make(served: str) -> Reflector[T]:
            path = f"/apis/{group}/{served}/{plural}"
            return Reflector(self._client, path, type_, absent_retry=ASKED_AGAIN, **more)

        self._versioned.append(made := VersionedReflector(self.detection, version, make, level))
        return made

    def _grove(
        self,
        path: str,
        type_: type[T],
        changed: Callable[[Change[T]], None],
        kept: Callable[[T], T],
    ) -> Reflector[T]:
        reflector = Reflector(
            self._client,
            f"/apis/{path}",
            type_,
            on_change=changed,
            kept=kept,
            absent_retry=ASKED_AGAIN,
        )
        self._reflectors.append(reflector)
        return reflector

    def _node_changed(self, change: Change[PartialObjectMetadata]) -> None:
        self._count_nodes()
        self._node(change.object.metadata.name)

    def _node(self, name: str) -> None:
        """The NVLink clique of a node may have changed."""

    def _count_nodes(self) -> None:
        if self._nodes.synced.is_set():
            nodes = sum(
                bool(one.metadata.label(names.FABRIC_LABEL)) for one in self._nodes.store.values()
            )
            self.detection.see(fabric_nodes=nodes)

    def _awaited(self) -> Iterator[anyio.Event]:
        yield self.detection.known
        yield from (one.synced for one in self._reflectors)
        yield from (one.synced for one in self._versioned)

    @property
    def synced(self) -> bool:
        """Whether everything has been read once; it stays so."""
        return all(event.is_set() for event in self._awaited())

    async def wait_synced(self) -> None:
        """Until everything has been read once."""
        for event in self._awaited():
            await event.wait()

    async def run(self) -> None:
        """Keep up with the cluster until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.detection.run)
            for one in self._reflectors:
                group.start_soon(one.run)
            for kind in self._versioned:
                group.start_soon(kind.run)
            await self._nodes.synced.wait()
            self._count_nodes()


class DomainInformers(MnnvlInformers):
    """All that the controller follows."""

    def __init__(
        self,
        client: Client,
        config: Config,
        cache: MnnvlCache,
        changed: Callable[[ClusterFacts], None],
    ) -> None:
        parts: dict[Part, Params | None] = {"domain": None, "template": None}
        if config.mode == "literal":
            # Others' are many; one of our name is found when it is in the way.
            parts["claim"] = {"labelSelector": f"{names.MANAGED}=true"}
        super().__init__(client, config, cache, changed, parts)
        self._cache = cache
        self._claims: VersionedReflector[PodClaim] | None = None
        self._slices: VersionedReflector[Slice] | None = None
        if config.mode == "driver":
            self._claims = self._resource(
                "resourceclaims",
                PodClaim,
                on_change=self._claim,
                kept=PodClaim.brief,
                indexes={"podclique": _podclique, "node": lambda one: (one.node,)},
            )
            ours = {"fieldSelector": f"spec.driver={DRIVER}"}
            self._slices = self._resource(
                "resourceslices",
                Slice,
                on_change=lambda change: self._node(change.object.spec.node_name),
                params=ours,
                indexes={"node": lambda one: (one.spec.node_name,)},
            )
            cache.pods = self
        self._cliques = self._grove(
            f"{names.GROVE_GROUP}/v1alpha1/podcliques",
            PodClique,
            self._clique,
            lambda one: PodClique(metadata=one.metadata.brief(), spec=_NO_SPEC),
        )
        self._grove(
            f"{names.GROVE_GROUP}/v1alpha1/podcliquesets",
            PodCliqueSet,
            self._set,
            lambda one: PodCliqueSet(metadata=one.metadata.brief()),
        )
        self._grove(
            f"{names.SCHEDULER_GROUP}/v1alpha1/podgangs",
            PodGang,
            self._gang,
            lambda one: PodGang(metadata=one.metadata.brief()),
        )

    @property
    def cliques_are_level(self) -> bool:
        """Whether the PodCliques are followed now: what is not seen may be there."""
        return self._cliques.problem is None

    # --- claims of pods, and the NVLink cliques of nodes

    def claims_of(self, namespace: str, podclique: str) -> dict[str, PodClaim]:
        """By pod, the claims of a PodClique's pods."""
        reflector = self._claims and self._claims.reflector
        found = reflector.by_index("podclique", f"{namespace}/{podclique}") if reflector else ()
        return {one.pod: one for one in found}

    def nvlink_cliques(self, nodes: Iterable[str]) -> dict[str, str]:
        """By node, its NVLink clique, as far as it is known: the driver's word before a label."""
        found: dict[str, str] = {}
        reflector = self._slices and self._slices.reflector
        for name in nodes:
            labels = [
                node.metadata.label(names.FABRIC_LABEL)
                for node in self._nodes.by_index("name", name)
            ]
            found.update((name, clique) for clique in labels if clique)
            found.update(cliques_of(reflector.by_index("node", name) if reflector else ()))
        return found

    def _claim(self, change: Change[PodClaim]) -> None:
        for one in (change.before, change.object):
            for name in _podclique(one) if one is not None else ():
                self._cache.pods_changed(*name.split("/"))

    def _node(self, name: str) -> None:
        """Have the PodGangs looked at that have pods on a node."""
        reflector = self._claims and self._claims.reflector
        for one in reflector.by_index("node", name) if reflector else ():
            self._claim(Change("modified", "", one, None))

    def _clique(self, change: Change[PodClique]) -> None:
        clique = None if change.kind == "deleted" else change.object
        ignored = self._cache.clique(change.key, clique)
        if ignored is not None:
            about = f"{ignored.namespace}/{ignored.name}"
            log.warning("a decision is not followed", podclique=about, why=ignored.why)

    def _set(self, change: Change[PodCliqueSet]) -> None:
        set_ = PodCliqueSet(metadata=change.object.metadata.only(annotations=_ASKED))
        set_.spec.template.pod_clique_scaling_groups = [
            Group(name=group.name, annotations=asked)
            for group in change.object.groups
            if (asked := picked(group.annotations, _ASKED))
        ]
        self._cache.set_(set_, gone=change.kind == "deleted")

    def _gang(self, change: Change[PodGang]) -> None:
        meta = change.object.metadata.only(annotations=(names.ADOPTED, names.ONE_FABRIC))
        gang = PodGang(metadata=meta)
        self._cache.gang(gang, gone=change.kind == "deleted")


class AdmissionInformers(MnnvlInformers):
    """All that the webhook follows: also what others have under names that may become ours."""

    def __init__(self, client: Client, config: Config, store: AdmissionStore) -> None:
        claims: Part = "template" if config.mode == "driver" else "claim"
        super().__init__(client, config, store, store.facts, {"domain": None, claims: None})
        sets = self._grove(
            f"{names.GROVE_GROUP}/v1alpha1/podcliquesets",
            PodCliqueSet,
            lambda change: store.set_(change.object, gone=change.kind == "deleted"),
            lambda one: PodCliqueSet(metadata=one.metadata.brief()),
        )
        store.sets_are_level = lambda: sets.problem is None
        if config.mode == "driver":
            # The class of the driver's templates.
            see = self.detection.see
            self._resource(
                "deviceclasses",
                PartialObjectMetadata,
                on_change=lambda change: see(device_class=change.kind != "deleted"),
                level=lambda there: see(device_class=bool(there)),
                params={"fieldSelector": f"metadata.name={CHANNEL_CLASS}"},
            )


class VersionedReflector(Generic[T]):
    """The reflector of a kind of which ``version`` says what is served, made by ``make`` anew
    whenever that is another version, or it is served again. ``level`` is called with all that exist
    once that is known; with nothing while the kind is not served.
    """

    def __init__(
        self,
        detection: Detection,
        version: Callable[[ClusterFacts], str],
        make: Callable[[str], Reflector[T]],
        level: Callable[[Collection[T]], None] = lambda _: None,
    ) -> None:
        self.synced = anyio.Event()
        self.reflector: Reflector[T] | None = None
        self._detection, self._version, self._make, self._level = detection, version, make, level

    async def run(self) -> NoReturn:
        """Follow what is served until cancelled."""
        detection = self._detection
        await detection.known.wait()
        while True:
            version = self._version(detection.facts)
            async with anyio.create_task_group() as group:
                self.reflector = self._make(version) if version else None
                if self.reflector is not None:
                    group.start_soon(self.reflector.run)
                    await self.reflector.synced.wait()
                    group.start_soon(self._watch_over, self.reflector)
                self._level(self.reflector.store.values() if self.reflector is not None else ())
                self.synced.set()
                while self._version(detection.facts) == version:
                    await detection.change()
                group.cancel_scope.cancel()

    async def _watch_over(self, reflector: Reflector[T]) -> None:
        """Ask what is served once the reflector says that this kind is not."""
        # A reflector has no event for it.
        while not isinstance(reflector.problem, NotFound):  # noqa: ASYNC110
            await anyio.sleep(GLANCE)
        self._detection.ask()


def _podclique(claim: PodClaim) -> tuple[str, ...]:
    """``namespace/name`` of the PodClique whose pod's claim it is."""
    pod = claim.pod
    return (f"{claim.metadata.namespace}/{pod.rpartition('-')[0]}",) if pod else ()


def _fabric(node: PartialObjectMetadata) -> PartialObjectMetadata:
    """Of a node whether it is part of a fabric: no change is reported of anything else."""
    meta = node.metadata
    labels = picked(meta.labels, (names.FABRIC_LABEL,))
    return PartialObjectMetadata(Metadata(name=meta.name, uid=meta.uid, labels=labels))
