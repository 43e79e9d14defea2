"""The informers of controller and webhook: what the cluster serves, asked again, and reflectors of
it. A kind that is not served is an empty collection, until it is; nothing here ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn, Protocol, TypeVar

import anyio
from preflight_kube.client.client import Client, KubeError, NotFound, Params
from preflight_kube.logs import get_logger
from preflight_kube.runtime.discovery import versions
from preflight_kube.runtime.reflector import Change, Reflector

from preflight_mnnvl.api.names import (
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
from preflight_mnnvl.core.support import (
    CHANNEL_CLASS,
    ClusterFacts,
    judge,
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
_ASKED: Final = (*KEYS, GROVE_MNNVL_GROUP)


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
            domains = await versions(self._client, COMPUTE_DOMAIN_GROUP, "computedomains")
            claims = await versions(self._client, RESOURCE_GROUP, "resourceclaims")
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
        path = f"/openapi/v3/apis/{COMPUTE_DOMAIN_GROUP}/{version}"
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
            on_change=lambda _: self._count_nodes(),
            kept=_fabric,
            params={"labelSelector": FABRIC_LABEL},
        )
        self._reflectors: list[Reflector[Any]] = [self._nodes]
        self._parts = [
            PartReflector(client, config, self.detection, store, one, params=params)
            for one, params in parts.items()
        ]

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

    def _count_nodes(self) -> None:
        if self._nodes.synced.is_set():
            nodes = sum(
                bool(one.metadata.label(FABRIC_LABEL)) for one in self._nodes.store.values()
            )
            self.detection.see(fabric_nodes=nodes)

    def _awaited(self) -> Iterator[anyio.Event]:
        yield self.detection.known
        yield from (one.synced for one in self._reflectors)
        yield from (one.synced for one in self._parts)

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
            for part in self._parts:
                group.start_soon(part.run)
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
            parts["claim"] = {"labelSelector": f"{MANAGED}=true"}
        super().__init__(client, config, cache, changed, parts)
        self._cache = cache
        self._cliques = self._grove(
            f"{GROVE_GROUP}/v1alpha1/podcliques",
            PodClique,
            self._clique,
            lambda one: PodClique(metadata=one.metadata.brief(), spec=_NO_SPEC),
        )
        self._grove(
            f"{GROVE_GROUP}/v1alpha1/podcliquesets",
            PodCliqueSet,
            self._set,
            lambda one: PodCliqueSet(metadata=one.metadata.brief()),
        )
        self._grove(
            f"{SCHEDULER_GROUP}/v1alpha1/podgangs",
            PodGang,
            self._gang,
            lambda one: PodGang(metadata=one.metadata.brief()),
        )

    @property
    def cliques_are_level(self) -> bool:
        """Whether the PodCliques are followed now: what is not seen may be there."""
        return self._cliques.problem is None

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
        gang = PodGang(metadata=change.object.metadata.only(annotations=(ADOPTED,)))
        self._cache.gang(gang, gone=change.kind == "deleted")


class AdmissionInformers(MnnvlInformers):
    """All that the webhook follows: also what others have under names that may become ours."""

    def __init__(self, client: Client, config: Config, store: AdmissionStore) -> None:
        claims: Part = "template" if config.mode == "driver" else "claim"
        super().__init__(client, config, store, store.facts, {"domain": None, claims: None})
        sets = self._grove(
            f"{GROVE_GROUP}/v1alpha1/podcliquesets",
            PodCliqueSet,
            lambda change: store.set_(change.object, gone=change.kind == "deleted"),
            lambda one: PodCliqueSet(metadata=one.metadata.brief()),
        )
        store.sets_are_level = lambda: sets.problem is None

    async def run(self) -> None:
        """Keep up with the cluster until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(super().run)
            if self._config.mode == "driver":
                group.start_soon(self._classes)

    async def _classes(self) -> None:
        """Follow whether the class of the driver's templates exists, in the version that is
        served.
        """
        await self.detection.known.wait()
        while True:
            version = self._claim_version()
            async with anyio.create_task_group() as group:
                if version:
                    reflector = Reflector(
                        self._client,
                        f"/apis/{RESOURCE_GROUP}/{version}/deviceclasses",
                        PartialObjectMetadata,
                        on_change=lambda change: self.detection.see(
                            device_class=change.kind != "deleted"
                        ),
                        params={"fieldSelector": f"metadata.name={CHANNEL_CLASS}"},
                        absent_retry=ASKED_AGAIN,
                    )
                    group.start_soon(reflector.run)
                    await reflector.synced.wait()
                    self.detection.see(device_class=bool(reflector.store))
                while self._claim_version() == version:
                    await self.detection.change()
                group.cancel_scope.cancel()

    def _claim_version(self) -> str:
        return judge(self.detection.facts, self._config).claim_version


class PartReflector:
    """The reflector of a kind whose version the cluster says; made anew whenever that is another
    one, or it is served again.
    """

    def __init__(
        self,
        client: Client,
        config: Config,
        detection: Detection,
        store: PartStore,
        part: Part,
        *,
        params: Params | None,
    ) -> None:
        self.synced = anyio.Event()
        self._client, self._detection, self._store, self._part = client, detection, store, part
        self._params = params
        if part == "domain":
            self._version, self._group = served_domains(config.mode), COMPUTE_DOMAIN_GROUP
            self._plural = "computedomains"
        else:
            self._version, self._group = served_claims, RESOURCE_GROUP
            self._plural = "resourceclaims" if part == "claim" else "resourceclaimtemplates"

    async def run(self) -> NoReturn:
        """Follow what is served until cancelled."""
        detection = self._detection
        await detection.known.wait()
        while True:
            version = self._version(detection.facts)
            if not version:
                self._store.only(self._part, ())
                self.synced.set()
                await detection.change()
                continue
            async with anyio.create_task_group() as group:
                reflector = Reflector(
                    self._client,
                    f"/apis/{self._group}/{version}/{self._plural}",
                    ComputeDomain,
                    on_change=self._changed,
                    kept=lambda one: ComputeDomain(metadata=one.metadata.brief()),
                    params=self._params,
                    absent_retry=ASKED_AGAIN,
                )
                group.start_soon(reflector.run)
                await reflector.synced.wait()
                there = [one.metadata for one in reflector.store.values()]
                self._store.only(self._part, [(one.namespace, one.name) for one in there])
                self.synced.set()
                group.start_soon(self._watch_over, reflector)
                while self._version(detection.facts) == version:
                    await detection.change()
                group.cancel_scope.cancel()

    async def _watch_over(self, reflector: Reflector[ComputeDomain]) -> None:
        """Ask what is served once the reflector says that this kind is not."""
        # A reflector has no event for it.
        while not isinstance(reflector.problem, NotFound):  # noqa: ASYNC110
            await anyio.sleep(GLANCE)
        self._detection.ask()

    def _changed(self, change: Change[ComputeDomain]) -> None:
        found = ComputeDomain(metadata=change.object.metadata.only(READ_LABELS, (RECREATED,)))
        self._store.part(self._part, found, gone=change.kind == "deleted")


def _fabric(node: PartialObjectMetadata) -> PartialObjectMetadata:
    """Of a node whether it is part of a fabric: no change is reported of anything else."""
    meta = node.metadata
    labels = picked(meta.labels, (FABRIC_LABEL,))
    return PartialObjectMetadata(Metadata(name=meta.name, uid=meta.uid, labels=labels))
