"""Objects as an API server has them, taken apart into what is read of them here. Pure.

Only the metadata is decoded strictly, which the API server itself has checked. A spec or status
that cannot be read does not hide an object.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace
from preflight_kube.api.kinds import Kind, version_of
from preflight_kube.text import shared
from preflight_proto import names

from preflight_appwrapper.api.names import CLAIMED, INDEX, LABEL, PREFIX
from preflight_appwrapper.api.rules import FailureRule
from preflight_appwrapper.api.types import (
    MOST_FINALIZERS,
    AppWrapper,
    AppWrapperSpec,
    AppWrapperStatus,
    Component,
    Metadata,
    OwnerReference,
    Pod,
    lenient,
)
from preflight_appwrapper.core.component_status import ComponentVerdict, verdict
from preflight_appwrapper.core.podsets import group_kind, slacks

POD: Final[Kind] = ("", "v1", "Pod")
_NULL: Final = msgspec.Raw(b"null")
_NONE: Final[dict[str, str]] = {}
"""No labels or annotations, of whatever has none."""
_MOST_NAMED: Final = 8
"""Finalizers that are kept of what is not written: they say who holds it."""
_MOST_ANNOTATIONS: Final = 64
"""Annotations of ours that are kept of a wrapper; there are a dozen."""
_FAILS: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class PartialObject(msgspec.Struct, frozen=True):
    """Any object, with its parts still to be read."""

    metadata: Metadata
    spec: msgspec.Raw = _NULL
    status: msgspec.Raw = _NULL


class PartialWrapper(PartialObject, frozen=True):
    """A wrapper, with its parts still to be read; of its finalizers all are written back."""

    def __post_init__(self) -> None:
        if (count := len(self.metadata.finalizers)) > MOST_FINALIZERS:
            raise ValueError(f"it has {count} finalizers, more than {MOST_FINALIZERS}")


class LabeledMetadata(msgspec.Struct, frozen=True):
    """The fields of a node's metadata that are read."""

    name: str
    uid: str
    labels: dict[str, str] = {}


class Node(msgspec.Struct, frozen=True):
    """A node's name and labels; its heartbeats are none of these, and so no change."""

    metadata: LabeledMetadata

    def only(self, labels: Collection[str]) -> Node:
        """The same node with these of its labels."""
        about = self.metadata
        kept = {key: about.labels[key] for key in labels if key in about.labels}
        return Node(metadata=LabeledMetadata(name=about.name, uid=about.uid, labels=kept))


class ComponentObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that may be a component. ``owner``: its controller, if it has one. ``label``: of
    which wrapper, without which no cache has it."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    version: int
    going: bool = False
    finalizers: tuple[str, ...] = ()
    owner: OwnerReference | None = None
    label: str = ""
    verdict: ComponentVerdict = ComponentVerdict()

    @property
    def api_version(self) -> str:
        """Group and version, as a manifest has them."""
        return "/".join(part for part in self.kind[:2] if part)

    def belongs_to(self, wrapper: AppWrapper) -> bool:
        """Say whether its controller is this very wrapper, by uid."""
        return self.owner is not None and self.owner.uid == wrapper.metadata.uid


class Packed(Sequence[Component]):
    """The components of a spec, as few bytes as they can be: as objects, a megabyte of ``{}`` would
    take 24, and whoever may create AppWrappers says how many there are. Those of one wrapper at a
    time are unpacked.
    """

    def __init__(self, spec: bytes, components: Sequence[Component]) -> None:
        self._packed, self._count = zlib.compress(spec, 1), len(components)
        self.slacks = slacks(components)
        kinds = dict.fromkeys(group_kind(component.template) for component in components)
        self.kinds = tuple((shared(group), shared(v), shared(kind)) for group, v, kind in kinds)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return _unpacked(self._packed)[index]


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> tuple[Component, ...]:
    return lenient(AppWrapperSpec, _plain(msgspec.Raw(zlib.decompress(packed)))).components


def wrapper(raw: PartialObject, known: AppWrapper | None = None) -> AppWrapper:
    """Take a wrapper apart. ``known``: an earlier one, of the same spec while its generation is."""
    annotations = {
        key: value for key, value in raw.metadata.annotations.items() if key.startswith(PREFIX)
    }
    metadata = replace(
        raw.metadata,
        namespace=shared(raw.metadata.namespace),
        finalizers=tuple(map(shared, raw.metadata.finalizers)),
        annotations=dict(islice(annotations.items(), _MOST_ANNOTATIONS)) or _NONE,
        labels=_NONE,
        owner_references=(),
    )
    status = lenient(AppWrapperStatus, _shared_texts(_plain(raw.status)))
    if known is not None and 0 < known.metadata.generation == metadata.generation:
        return AppWrapper(metadata=metadata, spec=known.spec, status=status)
    spec = lenient(AppWrapperSpec, _plain(raw.spec))
    packed = cast("tuple[Component, ...]", Packed(bytes(raw.spec), spec.components))
    return AppWrapper(metadata=metadata, spec=replace(spec, components=packed), status=status)


def pod(raw: PartialObject, resources: Iterable[str]) -> Pod:
    """A pod without what nobody asks of one; ``resources``: those that it may be asked for."""
    read = lenient(Pod, {"spec": _plain(raw.spec), "status": _shared_texts(_plain(raw.status))})
    checked = raw.metadata.labels.get(names.CHECKED_LABEL) == names.CHECKED
    left_out = read.spec.sidecars  # how they end says nothing of the workload
    inits = tuple(
        known
        for known in read.status.init_container_statuses
        if known.name not in left_out
        # What bears a check's name where none was injected is anybody's.
        and (checked or not known.name.startswith(names.CONTAINER_PREFIX))
    )
    if len(inits) < len(read.status.init_container_statuses):
        read = replace(read, status=replace(read.status, init_container_statuses=inits))
    metadata = raw.metadata
    kept = Metadata(
        name=metadata.name,
        namespace=shared(metadata.namespace),
        uid=metadata.uid,
        deletion_timestamp=metadata.deletion_timestamp,
        finalizers=metadata.finalizers[:_MOST_NAMED],
        owner_references=tuple(owner for owner in metadata.owner_references if owner.controller),
        labels=_NONE,
        annotations={k: v for k, v in metadata.annotations.items() if k == CLAIMED} or _NONE,
    )
    index = metadata.annotations.get(INDEX, "")
    component = int(index) if index.isascii() and index.isdigit() and len(index) < 4 else -1
    return replace(read, metadata=kept, spec=read.spec.only(resources), component=component)


def thing(raw: PartialObject, kind: Kind, rules: Iterable[FailureRule]) -> ComponentObject:
    """An object of ``kind``, with what its status says by ``rules``."""
    metadata = raw.metadata
    whole: dict[str, Any] = {"apiVersion": "/".join(filter(None, kind[:2])), "kind": kind[2]}
    whole["metadata"] = {"annotations": metadata.annotations}
    says = verdict({**whole, "spec": _plain(raw.spec), "status": _plain(raw.status)}, rules)
    return ComponentObject(
        kind=kind,
        namespace=shared(metadata.namespace),
        name=metadata.name,
        uid=metadata.uid,
        version=version_of(metadata.resource_version),
        going=metadata.deletion_timestamp is not None,
        finalizers=metadata.finalizers[:_MOST_NAMED],
        owner=metadata.controller,
        label=metadata.labels.get(LABEL, ""),
        verdict=says,
    )


def _shared_texts(value: Any) -> Any:
    """Plain data, each text of which is kept once: thousands of objects say the same."""
    if isinstance(value, str):
        return shared(value)
    if isinstance(value, list):
        return [_shared_texts(item) for item in value]
    if isinstance(value, dict):
        return {key: _shared_texts(item) for key, item in value.items()}
    return value


def _plain(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except _FAILS:
        return None
