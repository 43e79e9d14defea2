"""How many participants a gang must have. Unknown means wait, never guess.

Pure. The size counts pods; what takes part are those of them that ask for GPUs, so members without a gang check come off it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from .membership import Member
from .sources import SOURCES, SizeOf

__all__ = ["Lookup", "Sized", "size"]

Lookup = Callable[[str, str, str], Mapping[str, Any] | str]
"""(source, namespace, object name) → the object, or why it cannot be had."""


class Sized(msgspec.Struct, frozen=True, kw_only=True):
    """``participants`` to seal with, or ``skip`` with the reason, or neither and ``unknown`` says what is missing."""

    participants: int | None = None
    skip: str = ""
    unknown: str = ""


def size(namespace: str, raw_id: str, members: Sequence[Member], lookup: Lookup) -> Sized:
    """The size of the gang that ``members`` belong to (at least one)."""
    said = _pods(namespace, raw_id, members, lookup)
    if said.count is None:
        return Sized(skip=said.skip, unknown=said.unknown)
    without = len({m.name for m in members if not m.takes_part})
    participants = said.count - without
    if participants < 2:
        only = f"{said.count} member(s), of which {without} without the check" if without else f"{said.count} member(s)"
        return Sized(skip=f"the gang has {only}; a fabric test needs two")
    return Sized(participants=participants)


def _pods(namespace: str, raw_id: str, members: Sequence[Member], lookup: Lookup) -> SizeOf:
    stamped = {m.size for m in members if m.size is not None}
    if len(stamped) > 1:
        return SizeOf(unknown=f"its members disagree about the size ({', '.join(map(str, sorted(stamped)))})")
    if stamped:
        return SizeOf(count=stamped.pop())
    first = min(members, key=lambda m: m.name)
    source = SOURCES.get(first.source)
    if source is None or first.object is None:
        return SizeOf(unknown=f"the size is not known: nothing says it for a gang by {first.source}")
    found = lookup(source.name, namespace, first.object)
    if isinstance(found, str):
        return SizeOf(unknown=f"the size is not known: {source.kind} {first.object} {found}")
    said = source.read(found, raw_id)
    return SizeOf(unknown=f"the size is not known: {said.unknown}") if said.unknown else said
