"""How many participants a gang must have. Unknown means wait, never guess.

Pure. The size counts pods; what takes part are those of them that ask for GPUs, so members without
a gang check come off it. Where it is the least that must be there, members beyond it that can start
take part as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from preflight_kube.api.workloads.sizes import DeclaredSize, SizedObject

from preflight_gang.api.sources import BUILT_IN, Sources
from preflight_gang.core.membership import GangMember, MemberStage

_ORDERED: Final = frozenset({"lws"})
"""Sources whose pods say the size, and whose object alone says that they start in order."""

Lookup = Callable[[str, str, str], SizedObject | str]
"""(source, namespace, object name) → the object, or why it cannot be had, to stand behind both."""


class GangSize(msgspec.Struct, frozen=True, kw_only=True):
    """``participants`` to seal with, or why to ``skip`` it, or what is ``unknown`` so far."""

    participants: int | None = None
    skip: str = ""
    unknown: str = ""


def size(
    namespace: str,
    raw_id: str,
    members: Sequence[GangMember],
    lookup: Lookup,
    sources: Sources = BUILT_IN,
) -> GangSize:
    """The size of the gang that ``members`` belong to (at least one)."""
    said = _pods(namespace, raw_id, members, lookup, sources)
    if said.count is None:
        return GangSize(skip=said.skip, unknown=said.unknown)
    without = _without_the_check(said, members)
    participants = said.count - without
    if said.least:
        startable = [m for m in members if m.alive and m.can_start]
        there = [m for m in startable if m.stage is not MemberStage.PASSED]
        participants = max(participants, len(there))
        on_their_way = any(m.stage is not MemberStage.WAITING for m in there or members)
        if participants < 2 <= said.count and on_their_way:
            return GangSize(unknown="one member with the check is there so far, and more may come")
    if participants < 2:
        but = f", of which {without} without the check" if without else ""
        return GangSize(skip=f"the gang has {said.count} member(s){but}; a fabric test needs two")
    return GangSize(participants=participants)


def _without_the_check(declared: DeclaredSize, members: Sequence[GangMember]) -> int:
    """How many of those that the size counts have no gang check.

    One that failed has a successor there, and one that succeeded needs none; but those of an
    earlier run have succeeded, too, so no more of them are counted than the others leave places.
    """
    ray = any(m.owner is not None and m.owner.kind == "RayCluster" for m in members)
    # A RayJob's submitter is made by a Job once all others run, and no size counts it.
    counted = [m for m in members if not (ray and m.owner is not None and m.owner.kind == "Job")]
    here = [m for m in counted if not (m.terminal or m.stage is MemberStage.GONE)]
    over = {m.name for m in counted if m.succeeded and not m.takes_part}
    left = (declared.count or 0) - len({m.name for m in here if m.can_start or not declared.least})
    without = {m.name for m in here if not m.takes_part}
    return len(without) + max(0, min(len(over - without), left))


def object_of(members: Sequence[GangMember]) -> tuple[str, str] | None:
    """(source, name) of the object that knows the size; None while no member names one."""
    named = [(m.source, name) for m in members if (name := m.object or m.pod_group)]
    return min(named) if named else None


def _pods(
    namespace: str, raw_id: str, members: Sequence[GangMember], lookup: Lookup, sources: Sources
) -> DeclaredSize:
    # What members say that are over is about an earlier life of the gang, where others are there.
    here = [m for m in members if not m.terminal and m.stage is not MemberStage.GONE]
    stamped = {m.size for m in here or members if m.size is not None}
    if len(stamped) > 1:
        sizes = ", ".join(map(str, sorted(stamped)))
        return DeclaredSize(unknown=f"its members disagree about the size ({sizes})")
    named = object_of(members)
    if stamped and (named is None or named[0] not in _ORDERED):
        return DeclaredSize(count=stamped.pop())
    if named is None:
        return _unknown(f"no member says it or names who does ({members[0].source})")
    source, name = named
    kinds = sources.get(source)
    if kinds is None:
        return _unknown(f"a gang by {source} has it from its pods, and they do not say it")
    found = lookup(source, namespace, name)
    about = f"{' or '.join(kind.kind for kind in kinds[:2])} {name}"
    if stamped and (isinstance(found, str) or not found.size(raw_id).skip):
        return DeclaredSize(count=stamped.pop())
    if isinstance(found, str):
        return _unknown(f"{about} {found}")
    said = found.size(raw_id)
    if said.unknown:
        return _unknown(f"{about}: {said.unknown}")
    return DeclaredSize(skip=f"{about}: {said.skip}") if said.skip else said


def _unknown(why: str) -> DeclaredSize:
    return DeclaredSize(unknown=f"the size is not known: {why}")
