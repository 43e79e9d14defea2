"""The informers of controller and webhook. A kind that is not served is an empty collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from preflight_kube.client.client import Client
from preflight_kube.runtime.cache import Cache
from preflight_kube.runtime.indexes import namespaced_name
from preflight_kube.runtime.reflector import Change, Reflector

from preflight_mnnvl.api import names, types
from preflight_mnnvl.api.types import ComputeDomain, Metadata, Part, PodCliqueSet
from preflight_mnnvl.config import Config
from preflight_mnnvl.core import support
from preflight_mnnvl.core.support import ClusterFacts, Support

ABSENT_RETRY: Final = 30.0
"""Seconds after which a kind that is not served is asked for again."""
PLURALS: Final[dict[Part, str]] = {
    "domain": "computedomains",
    "template": "resourceclaimtemplates",
    "claim": "resourceclaims",
}

ASKED: Final = (*names.KEYS, names.GROVE_MNNVL_GROUP)
"""The annotations by which a set, a scaling group or a clique asks for the fabric."""

T = TypeVar("T")


class ServedKind(Generic[T]):
    """A cache for each version of a kind, best first: that of the first that is served counts."""

    def __init__(self, caches: Mapping[str, Cache[T]]) -> None:
        self.caches = caches

    @property
    def version(self) -> str | None:
        """The version that counts; empty where none is served, None before that is known."""
        for version, cache in self.caches.items():
            if not cache.synced.is_set():
                return None
            if not cache.absent:
                return version
        return ""

    @property
    def cache(self) -> Cache[T] | None:
        """The cache that counts."""
        return self.caches.get(self.version or "")

    def by_index(self, name: str, value: str) -> list[T]:
        """The objects that an index finds; nothing while the kind is not served."""
        cache = self.cache
        return cache.by_index(name, value) if cache is not None else []


class MnnvlInformers:
    """The kinds that both programs follow: all have read the cluster once ``reflectors`` have."""

    def __init__(self, client: Client, config: Config) -> None:
        self._client, self._config = client, config
        self.reflectors: list[Reflector[Any]] = []
        self._nodes: Cache[types.PartialObjectMetadata] = Cache(
            client,
            "/api/v1/nodes",
            types.PartialObjectMetadata,
            on_change=lambda change: self._node(change.object.metadata.name),
            kept=_fabric,
            params={"labelSelector": names.FABRIC_LABEL},
            indexes={
                "name": lambda it: (it.metadata.name,),
                "fabric": lambda it: ("",) if it.metadata.label(names.FABRIC_LABEL) else (),
            },
        )
        self.reflectors.append(self._nodes)
        self._domains: ServedKind[ComputeDomain]

    @property
    def facts(self) -> ClusterFacts:
        """The facts of now."""
        nodes = self._nodes.count("fabric", "") if self._nodes.synced.is_set() else None
        return ClusterFacts(self._domains.version, fabric_nodes=nodes)

    @property
    def support(self) -> Support:
        """What the cluster can do now."""
        return support.judge(self.facts, self._config)

    def _resource(
        self,
        plural: str,
        type_: type[Any],
        *,
        on_change: Callable[[Change[T]], None] = lambda _: None,
        **more: Any,
    ) -> ServedKind[T]:
        """Follow a kind in the versions that the mode knows."""
        group, versions = names.RESOURCE_GROUP, support.CLAIM_VERSIONS[self._config.mode]
        if plural == "computedomains":
            group, versions = names.COMPUTE_DOMAIN_GROUP, support.DOMAIN_VERSIONS[self._config.mode]
        more |= {"on_change": on_change, "absent_retry": ABSENT_RETRY}
        caches = {
            version: Cache[T](self._client, f"/apis/{group}/{version}/{plural}", type_, **more)
            for version in versions
        }
        self.reflectors += caches.values()
        return ServedKind(caches)

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
            absent_retry=ABSENT_RETRY,
            indexes={"name": namespaced_name, **indexes},
        )
        self.reflectors.append(reflector)
        return reflector

    def _node(self, name: str) -> None:
        """The NVLink clique of a node may have changed."""


class AdmissionInformers(MnnvlInformers):
    """All that the webhook follows: also what others have under names that may become ours."""

    def __init__(self, client: Client, config: Config) -> None:
        super().__init__(client, config)
        driver = config.mode == "driver"
        self._domains = self._named("domain")
        self._taken = [self._domains, self._named("template" if driver else "claim")]
        self._sets = self._grove("podcliquesets", PodCliqueSet, kept=asked)
        self._class: ServedKind[types.PartialObjectMetadata] | None = (
            self._resource(
                "deviceclasses",
                types.PartialObjectMetadata,
                params={"fieldSelector": f"metadata.name={support.CHANNEL_CLASS}"},
                indexes={"name": lambda it: (it.metadata.name,)},
            )
            if driver
            else None
        )

    @property
    def facts(self) -> ClusterFacts:
        """The facts of now, with the class of the driver's templates."""
        facts = super().facts
        if self._class is None or self._class.version is None:
            return facts
        return facts._replace(
            device_class=bool(self._class.by_index("name", support.CHANNEL_CLASS))
        )

    def _named(self, part: Part) -> ServedKind[ComputeDomain]:
        def names_of(item: ComputeDomain) -> tuple[str, ...]:
            meta, end = item.metadata, "-cd" if part == "domain" else "-mnnvl-claim"
            ours = meta.name.endswith(end)
            return (f"{meta.namespace}/{meta.name}", f"{meta.namespace}/{meta.uid}") if ours else ()

        return self._resource(PLURALS[part], ComputeDomain, kept=_owned, indexes={"name": names_of})

    def set_(self, namespace: str, name: str) -> PodCliqueSet | None:
        """The PodCliqueSet of this name; None while sets are not followed: another may be there."""
        if self._sets.problem is not None:
            return None
        return self._sets.newest("name", f"{namespace}/{name}")

    def taken(self, namespace: str, name: str) -> Metadata | None:
        """What has this name, which may be one of ours, or uid."""
        value = f"{namespace}/{name}"
        there = [part.metadata for kind in self._taken for part in kind.by_index("name", value)]
        # The last one, as its predecessor may not have been seen to go.
        return there[-1] if there else None


def _owned(part: ComputeDomain) -> ComputeDomain:
    """The part of an object that says whose it is."""
    return ComputeDomain(metadata=part.metadata.only(names.READ_LABELS))


def _fabric(node: types.PartialObjectMetadata) -> types.PartialObjectMetadata:
    """The part of a node that says its fabric: no change is reported of anything else."""
    meta = node.metadata
    labels = types.picked(meta.labels, (names.FABRIC_LABEL,))
    return types.PartialObjectMetadata(Metadata(name=meta.name, uid=meta.uid, labels=labels))


def asked(set_: PodCliqueSet) -> PodCliqueSet:
    """The annotations of a set's layers, and how many replicas it has."""
    kept = PodCliqueSet(metadata=set_.metadata.only(annotations=ASKED))
    kept.spec.replicas = set_.spec.replicas
    kept.spec.template.pod_clique_scaling_groups = [
        types.Group(name=group.name, annotations=annotations)
        for group in set_.groups
        if (annotations := types.picked(group.annotations, ASKED))
    ]
    return kept
