"""The informers of controller and webhook: what the cluster serves, asked again, and reflectors of
it. A kind that is not served is an empty collection, until it is; nothing here ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NoReturn, TypeVar

import anyio
from preflight_kube.client.client import Client, KubeError, NotFound
from preflight_kube.logs import get_logger
from preflight_kube.runtime.cache import Cache
from preflight_kube.runtime.discovery import versions
from preflight_kube.runtime.indexes import namespaced_name
from preflight_kube.runtime.reflector import Change, Reflector

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import (
    ComputeDomain,
    Metadata,
    Part,
    PartialObjectMetadata,
    PodCliqueSet,
    picked,
    trimmed,
)
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.support import (
    CHANNEL_CLASS,
    ClusterFacts,
    judge,
    served_claims,
    served_domains,
)
from preflight_mnnvl.metrics import Metrics

__all__ = [
    "ASKED_AGAIN",
    "PLURALS",
    "AdmissionInformers",
    "Detection",
    "MnnvlInformers",
    "VersionedReflector",
]

ASKED_AGAIN: Final = 30.0
"""Seconds between two questions what is served."""
UNANSWERED: Final = 2.0
PLURALS: Final[dict[Part, str]] = {
    "domain": "computedomains",
    "template": "resourceclaimtemplates",
    "claim": "resourceclaims",
}
GLANCE: Final = 1.0
"""Seconds between two looks at whether a reflector says that its kind has gone; nothing is sent."""

T = TypeVar("T")


class Detection:
    """``facts`` are those of now; ``changed`` is called after each change of them."""

    def __init__(self, client: Client, changed: Callable[[ClusterFacts], None]) -> None:
        self.facts = ClusterFacts()
        self.known = anyio.Event()
        """Set when the API server has answered once."""
        self._client, self._changed = client, changed
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
        known = self.facts._replace(**facts)
        if known != self.facts:
            self.facts = known
            self._next.set()
            self._next = anyio.Event()
            self._changed(known)

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
        except KubeError as error:
            if not self.known.is_set():
                log.warning("the API server has not said what it serves", error=str(error))
            return UNANSWERED
        if domains != self.facts.domains:
            served = {"computedomains": ", ".join(domains) or "not served"}
            log.info("what the cluster serves", **served, resourceclaims=", ".join(claims))
        self.see(domains=domains, claims=claims)
        self.known.set()
        return ASKED_AGAIN


log = get_logger(__name__)


class MnnvlInformers:
    """The kinds that both programs follow: what is served, and nodes of a fabric. ``changed``
    is called with the facts after each change of them.
    """

    def __init__(
        self, client: Client, config: Config, changed: Callable[[ClusterFacts], None]
    ) -> None:
        self._client, self._config = client, config
        self.detection = Detection(client, changed)
        self._nodes = Reflector(
            client,
            "/api/v1/nodes",
            PartialObjectMetadata,
            on_change=self._node_changed,
            kept=_fabric,
            params={"labelSelector": names.FABRIC_LABEL},
            indexes={"name": lambda it: (it.metadata.name,)},
        )
        self._reflectors: list[Reflector[Any]] = [self._nodes]
        self._versioned: list[VersionedReflector[Any]] = []

    def _resource(
        self,
        plural: str,
        type_: type[T],
        *,
        on_change: Callable[[Change[T]], None] = lambda _: None,
        level: Callable[[Collection[T]], None] = lambda _: None,
        followed: bool = True,
        **more: Any,
    ) -> VersionedReflector[T]:
        """Follow a kind in the version that the cluster serves; not ``followed``, it is as if the
        cluster did not serve it.
        """
        domains = plural == "computedomains"
        group = names.COMPUTE_DOMAIN_GROUP if domains else names.RESOURCE_GROUP
        version = served_domains(self._config.mode) if domains else served_claims

        def make(served: str) -> Cache[T]:
            path, options = f"/apis/{group}/{served}/{plural}", {"on_change": on_change, **more}
            return Cache(self._client, path, type_, absent_retry=ASKED_AGAIN, **options)

        reflector = VersionedReflector(self.detection, version, make, on_change, level)
        if followed:
            self._versioned.append(reflector)
        return reflector

    def _grove(
        self,
        plural: str,
        type_: type[T],
        changed: Callable[[Change[T]], None] = lambda _: None,
        *,
        kept: Callable[[T], T],
        **indexes: Callable[[T], Iterable[str]],
    ) -> Reflector[T]:
        group = names.SCHEDULER_GROUP if plural == "podgangs" else names.GROVE_GROUP
        reflector = Reflector(
            self._client,
            f"/apis/{group}/v1alpha1/{plural}",
            type_,
            on_change=changed,
            kept=kept,
            absent_retry=ASKED_AGAIN,
            indexes={"name": namespaced_name, **indexes},
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
                bool(node.metadata.label(names.FABRIC_LABEL)) for node in self._nodes.store.values()
            )
            self.detection.see(fabric_nodes=nodes)

    def _awaited(self) -> Iterator[anyio.Event]:
        yield self.detection.known
        yield from (reflector.synced for reflector in self._reflectors)
        yield from (reflector.synced for reflector in self._versioned)

    @property
    def synced(self) -> bool:
        """Tell whether everything has been read once; it stays so."""
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


class AdmissionInformers(MnnvlInformers):
    """All that the webhook follows: also what others have under names that may become ours.
    ``support``: what the cluster can do now, which ``metrics`` show.
    """

    def __init__(self, client: Client, config: Config, metrics: Metrics) -> None:
        super().__init__(client, config, self._facts_changed)
        self._metrics = metrics
        self.support = judge(ClusterFacts(), config)
        literal = config.mode == "literal"
        self._taken = [self._named("domain"), self._named("claim" if literal else "template")]
        self._sets = self._grove("podcliquesets", PodCliqueSet, kept=trimmed)
        if not literal:
            # The class of the driver's templates.
            see = self.detection.see
            self._resource(
                "deviceclasses",
                PartialObjectMetadata,
                on_change=lambda change: see(device_class=change.kind != "deleted"),
                level=lambda there: see(device_class=bool(there)),
                params={"fieldSelector": f"metadata.name={CHANNEL_CLASS}"},
            )

    def _facts_changed(self, facts: ClusterFacts) -> None:
        self.support = judge(facts, self._config)
        self._metrics.support(self.support.ok, self.support.fabric_nodes)

    def _named(self, part: Part) -> VersionedReflector[ComputeDomain]:
        def names_of(one: ComputeDomain) -> tuple[str, ...]:
            meta = one.metadata
            ours = meta.name.endswith(_ENDS[part])
            return (f"{meta.namespace}/{meta.name}", f"{meta.namespace}/") if ours else ()

        return self._resource(PLURALS[part], ComputeDomain, kept=_owned, indexes={"name": names_of})

    def set_(self, namespace: str, name: str) -> PodCliqueSet | None:
        """The PodCliqueSet of this name; None while sets are not followed, too: it may have been
        made anew, and a clique of a scaling group does not say of which it is.
        """
        if self._sets.problem is not None:
            return None
        return next(reversed(self._sets.by_index("name", f"{namespace}/{name}")), None)

    def taken(self, namespace: str) -> Mapping[str, Metadata]:
        """By name, the ComputeDomains and claim templates or claims that may have names of ours."""
        return _Taken(self._taken, namespace)


_ENDS: Final[dict[Part, str]] = {
    "domain": "-cd",
    "template": "-mnnvl-claim",
    "claim": "-mnnvl-claim",
}


class _Taken(Mapping[str, Metadata]):
    """Looked up as it is asked for."""

    def __init__(self, kinds: list[VersionedReflector[ComputeDomain]], namespace: str) -> None:
        self._kinds, self._namespace = kinds, namespace

    def __getitem__(self, name: str) -> Metadata:
        # The last one, as its predecessor may not have been seen to go.
        if name and (objects := self._under(name)):
            return objects[-1]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(meta.name for meta in self._under("")))

    def __len__(self) -> int:
        return len({*self})

    def _under(self, name: str) -> list[Metadata]:
        value = f"{self._namespace}/{name}"
        return [part.metadata for kind in self._kinds for part in kind.by_index("name", value)]


class VersionedReflector(Generic[T]):
    """The reflector of a kind of which ``version`` says what is served, made by ``make`` anew
    whenever that is another version, or it is served again: then all that was known is reported as
    deleted by ``changed``. ``level`` is called with all that exist once that is known; with nothing
    while the kind is not served.
    """

    def __init__(
        self,
        detection: Detection,
        version: Callable[[ClusterFacts], str],
        make: Callable[[str], Cache[T]],
        changed: Callable[[Change[T]], None],
        level: Callable[[Collection[T]], None] = lambda _: None,
    ) -> None:
        self.synced = anyio.Event()
        self.reflector: Cache[T] | None = None
        self._detection, self._version, self._make = detection, version, make
        self._changed, self._level = changed, level

    def by_index(self, name: str, value: str) -> list[T]:
        """The objects that an index finds; nothing while the kind is not served."""
        return self.reflector.by_index(name, value) if self.reflector is not None else []

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
            gone, self.reflector = self.reflector, None
            for key, one in gone.store.items() if gone is not None else ():
                self._changed(Change("deleted", key, one, one))

    async def _watch_over(self, reflector: Reflector[T]) -> None:
        """Ask what is served once the reflector says that this kind is not."""
        # A reflector has no event for it.
        while not isinstance(reflector.problem, NotFound):  # noqa: ASYNC110
            await anyio.sleep(GLANCE)
        self._detection.ask()


def _owned(part: ComputeDomain) -> ComputeDomain:
    """The part of an object that says whose it is."""
    return ComputeDomain(metadata=part.metadata.only(names.READ_LABELS))


def _fabric(node: PartialObjectMetadata) -> PartialObjectMetadata:
    """The part of a node that says its fabric: no change is reported of anything else."""
    meta = node.metadata
    labels = picked(meta.labels, (names.FABRIC_LABEL,))
    return PartialObjectMetadata(Metadata(name=meta.name, uid=meta.uid, labels=labels))
