"""The fields of Kubernetes objects that are read, and where text of others is decoded. Pure.

What a PodClique brings as its pod's template stays raw until it is known that it asks for anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from preflight_kube.text import shared
from preflight_proto.printable import printable

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace and name, mostly of a ComputeDomain."""
Part = Literal["domain", "template", "claim"]
"""The ComputeDomain, the driver's claim template, and in `literal` mode the claim."""
_SHOWN: Final = 120
_MOST_OWNERS: Final = 64
"""Owners, and finalizers, of an object that are kept. A patch tests that the owners are those that
were read: of an object with more it fails.
"""


class _Object(msgspec.Struct, rename="camel", gc=False):
    pass


class OwnerReference(_Object):
    """An owner reference; None is what an API server leaves out, and means no."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Metadata(_Object):
    """Times as the API server writes them (RFC 3339); what is not there is None, or empty."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None

    @property
    def going(self) -> bool:
        """Tell whether it is being deleted."""
        return self.deletion_timestamp is not None

    def annotation(self, key: str) -> str | None:
        """Its value; None where there is none."""
        return self.annotations.get(key) if self.annotations else None

    def label(self, key: str) -> str | None:
        """Its value; None where there is none."""
        return self.labels.get(key) if self.labels else None

    def brief(self) -> Metadata:
        """The fields that tell an object and its versions apart."""
        version = self.resource_version
        return Metadata(self.name, "", shared(self.namespace), self.uid, version)

    def only(self, labels: Iterable[str] = (), annotations: Iterable[str] = ()) -> Metadata:
        """A copy with these labels and annotations; a text that many objects have is kept once."""
        kept = self.brief()
        kept.creation_timestamp = self.creation_timestamp and shared(self.creation_timestamp)
        kept.deletion_timestamp = self.deletion_timestamp
        kept.finalizers = (self.finalizers or [])[:_MOST_OWNERS] if self.going else None
        kept.labels = picked(self.labels, labels)
        kept.annotations = picked(self.annotations, annotations)
        kept.owner_references = self.owner_references and [
            OwnerReference(
                shared(owner.api_version),
                shared(owner.kind),
                shared(owner.name),
                shared(owner.uid),
                owner.controller,
                owner.block_owner_deletion,
            )
            for owner in self.owner_references[:_MOST_OWNERS]
        ]
        return kept


def picked(texts: Mapping[str, str] | None, keys: Iterable[str]) -> dict[str, str] | None:
    """Those of ``keys`` that are in ``texts``; None where none is."""
    return {key: shared(texts[key]) for key in keys if key in texts} or None if texts else None


class ResourceRequirements(_Object):
    """Amounts are texts or numbers; what else stands there is the API server's to refuse."""

    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    claims: list[dict[str, Any]] | None = None


class Container(_Object):
    """A container of a pod's template; init containers and sidecars are the same."""

    name: str = ""
    resources: ResourceRequirements | None = None


class ContainerPlace(NamedTuple):
    """A container, the list it stands in (`containers`, `initContainers`), and where in it."""

    list: str
    position: int
    container: Container


class PodSpec(_Object):
    """A pod's template. What is rebuilt is decoded whole, so that nothing of it is lost."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resource_claims: list[dict[str, Any]] | None = None
    affinity: dict[str, Any] | None = None

    def everyone(self) -> Iterator[ContainerPlace]:
        """Its containers and init containers, sidecars among them."""
        lists = {"containers": self.containers, "initContainers": self.init_containers}
        for where, containers in lists.items():
            for i, container in enumerate(containers or ()):
                yield ContainerPlace(where, i, container)


class CliqueSpec(_Object):
    """What a clique's pods are made of, and how many."""

    pod_spec: msgspec.Raw = msgspec.Raw(b"null")
    replicas: int | None = None


class CliqueStatus(_Object):
    """How many pods a clique has."""

    ready_replicas: int | None = None
    scheduled_replicas: int | None = None


class KubeObject(_Object):
    """The part that all objects have."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)


class PartialObjectMetadata(KubeObject):
    """A node or a device class: nothing else of it is read."""


class PodClique(KubeObject):
    """``grove.io/v1alpha1``: pods that are alike."""

    spec: CliqueSpec = msgspec.field(default_factory=CliqueSpec)
    status: CliqueStatus | None = None


class Clique(_Object):
    """A PodClique's template in a PodCliqueSet."""

    name: str = ""
    annotations: dict[str, str] | None = None
    spec: CliqueSpec = msgspec.field(default_factory=CliqueSpec)


class Group(_Object):
    """A scaling group's entry in a PodCliqueSet."""

    name: str = ""
    clique_names: list[str] | None = None
    annotations: dict[str, str] | None = None
    replicas: int | None = None
    min_available: int | None = None


class Template(_Object):
    """``spec.template`` of a PodCliqueSet, in the order in which it is written."""

    cliques: list[Clique] | None = None
    pod_clique_scaling_groups: list[Group] | None = None


class SetSpec(_Object):
    """What a set is made of, and how often."""

    replicas: int | None = None
    template: Template = msgspec.field(default_factory=Template)


class PodCliqueSet(KubeObject):
    """``grove.io/v1alpha1``: what the user wrote."""

    spec: SetSpec = msgspec.field(default_factory=SetSpec)

    @property
    def cliques(self) -> list[Clique]:
        """Its clique templates; none is an empty list."""
        return self.spec.template.cliques or []

    @property
    def groups(self) -> list[Group]:
        """Its scaling groups; none is an empty list."""
        return self.spec.template.pod_clique_scaling_groups or []

    def grouped(self) -> dict[str, int]:
        """By the exact names of cliques, the place of the first scaling group that lists each."""
        places = reversed(list(enumerate(self.groups)))
        return {name: at for at, group in places for name in group.clique_names or ()}


class PodGang(KubeObject):
    """``scheduler.grove.io/v1alpha1``. That it lives, and its uid, is all that is read."""


class DomainNode(_Object):
    """A node of a domain, with the state of its daemon."""

    name: str = ""
    status: str = ""


class ComputeDomainStatus(_Object):
    """The driver's word on a domain and its nodes."""

    status: str = ""
    nodes: list[DomainNode] | None = None


class ComputeDomain(KubeObject):
    """``resource.nvidia.com``; also read as a claim or claim template: of those the metadata."""

    status: ComputeDomainStatus | None = None


class BadObject(ValueError):
    """An object that is not what it says. The message is one sentence without its end."""


_decoder: Final = cache(msgspec.json.Decoder)
_pod: msgspec.json.Decoder[PodSpec | None] = msgspec.json.Decoder(PodSpec | None)


def decode(raw: bytes | bytearray | msgspec.Raw, type_: type[T]) -> T:
    """The fields of ``type_`` in the JSON ``raw``. Raises :class:`BadObject`, and nothing else."""
    decoder: msgspec.json.Decoder[T] = _decoder(type_)  # type: ignore[arg-type]
    return _decoded(decoder, raw, f"it is not a {type_.__name__}")


def decode_pod(raw: bytes | msgspec.Raw) -> PodSpec:
    """A pod's template. Raises :class:`BadObject`, and nothing else."""
    return _decoded(_pod, raw, "podSpec is none") or PodSpec()


def _decoded(
    decoder: msgspec.json.Decoder[T], raw: bytes | bytearray | msgspec.Raw, problem: str
) -> T:
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise BadObject(f"{problem}: it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise BadObject(f"{problem}: {shown(str(error))}") from None


def shown(text: str, most: int = _SHOWN) -> str:
    """Text of others, fit for a sentence: one line, bounded."""
    return printable(text, most)
