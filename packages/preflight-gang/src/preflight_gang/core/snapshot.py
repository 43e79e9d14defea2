"""What is known about a gang at one moment, put together from its members, its record and the
object that has its size. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec

from preflight_gang.api.sources import Sources
from preflight_gang.api.types import OwnerReference
from preflight_gang.core.membership import GangMember, Key
from preflight_gang.core.participants import GangSize, Lookup, size

MOST_MEMBERS: Final = 100_000
"""Four times as many as a ConfigMap has room for: a uid alone has 122 bits of chance, so 1 MiB
holds less than 70,000 of them."""


class RankAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """A member as it was sealed; its place in the record is its rank."""

    uid: str
    name: str
    ip: str
    node: str
    attempt: int


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The value of ``members`` in a gang's ConfigMap: one line of JSON.

    ``passed``: one of its members has had the verdict of all. It is written down where the pod that
    shows it goes before the others have read theirs.
    """

    v: int = 1
    token: str
    master_port: int
    control_port: int
    assignments: Annotated[tuple[RankAssignment, ...], msgspec.Meta(max_length=MOST_MEMBERS)] = (
        msgspec.field(name="members")
    )
    passed: bool = False


class Record(StoredRecord, frozen=True, kw_only=True):
    """A sealed generation, as it is committed in the gang's ConfigMap."""

    generation: int


class GangView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a gang at one moment. ``owner`` is the object that the size is read
    from, if one is. ``obstacle``: why nothing can be committed for it, if so. ``departed``: members
    that had passed when their pods went, as they were last seen. ``refused``: members whose pods
    cannot be written to, by uid, and why."""

    namespace: str
    source: str
    id: str
    config_map: str
    members: tuple[GangMember, ...]
    sized: GangSize
    record: Record | None = None
    owner: OwnerReference | None = None
    obstacle: str = ""
    departed: tuple[GangMember, ...] = ()
    refused: Mapping[str, str] = {}

    @property
    def generation(self) -> int:
        """The last one sealed. Where the record was deleted, the members still know it."""
        published = (m.published.generation for m in self.members if m.published and m.sealed)
        return max([self.record.generation if self.record else 0, *published])


def assemble(
    key: Key, members: Iterable[GangMember], lookup: Lookup, sources: Sources, **more: Any
) -> GangView:
    """The gang ``key`` of these members (one at least); ``more``: fields of :class:`GangView`."""
    namespace, (source, _, raw) = key[0], key[1].partition(":")
    everyone = tuple(sorted(members, key=lambda one: (one.name, one.uid)))
    sized = size(namespace, raw, everyone, lookup, sources)
    return GangView(
        namespace=namespace, source=source, id=raw, members=everyone, sized=sized, **more
    )
