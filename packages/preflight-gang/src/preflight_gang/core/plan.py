"""From decisions to what is written: the gang's ConfigMap, which commits a generation, and each
member's roster.

Pure. The token and the ports are part of the record, so whoever leads when it is delivered delivers
the same.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from preflight_kube.api import jsonpatch
from preflight_proto import names
from preflight_proto.roster import VERSION, Roster, encode_roster

from preflight_gang.api.types import (
    GANG_ID_ANNOTATION,
    GANG_SOURCE_ANNOTATION,
    ConfigMap,
    OwnerReference,
)
from preflight_gang.core.membership import GangMember
from preflight_gang.core.reconcile import MemberAnswer
from preflight_gang.core.snapshot import (
    MOST_MEMBERS,
    GangView,
    RankAssignment,
    Record,
    StoredRecord,
)

PORT: Final = 29500
"""torch's own default for the rendezvous, as in ADR-026; the parents' channel takes the next."""

_HOST_PORTS: Final = range(20000, 30000, 2)
"""Where pods share their node's ports, a gang has a pair by its hash, outside the ephemeral range,
and each generation another one. Where two gangs of a node have the same (one in 5,000), one of them
finds it taken, and has another in its next generation."""

_MAX_OWNERS: Final = 16
_SUCCESSORS: Final = 4
"""Members who may lead when rank 0 is lost: all of them are in every member's annotation."""
_RECORD: Final = "members"
_ROOM: Final = 1024 * 1024
"""Bytes of a ConfigMap's values together (MaxSecretSize of k8s.io/api/core/v1 holds here, too)."""
_MOST_UNPACKED: Final = 160 * MOST_MEMBERS
_MOST_DIGITS: Final = 18
_MOST_RATIO: Final = 40
"""Bytes that a packed byte may stand for. Ours: about 4, and 15 with the longest names."""


class TooLarge(Exception):
    """A generation with so many members that no ConfigMap can hold its record."""


def seal(gang: GangView, chosen: Sequence[GangMember], token: str) -> Record:
    """The next generation, ranks as ``chosen`` stand."""
    generation = gang.generation + 1
    port = PORT
    if any(m.host_network for m in chosen):
        digest = hashlib.sha256(f"{gang.namespace}\0{gang.source}\0{gang.id}".encode()).digest()
        first = int.from_bytes(digest[:4], "big")
        port = _HOST_PORTS[(first + generation) % len(_HOST_PORTS)]
    return Record(
        generation=generation,
        assignments=tuple(
            RankAssignment(uid=m.uid, name=m.name, ip=m.ip, node=m.node, attempt=m.attempt)
            for m in chosen
        ),
        token=token,
        master_port=port,
        control_port=port + 1,
    )


def config_map(gang: GangView, record: Record, resource_version: str) -> dict[str, Any]:
    """The ConfigMap that commits ``record``: ADR-026's keys for people, all for the next leader.

    ``resource_version`` is that of the ConfigMap to replace, empty for a new one. What does not fit
    is packed or left out, and ``note`` says so. Raises :class:`TooLarge`.
    """
    metadata: dict[str, Any] = {
        "name": gang.config_map,
        "namespace": gang.namespace,
        "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
        "annotations": {GANG_ID_ANNOTATION: gang.id, GANG_SOURCE_ANNOTATION: gang.source},
        "ownerReferences": _owners(gang, {assigned.uid for assigned in record.assignments}),
    }
    if resource_version:
        metadata["resourceVersion"] = resource_version
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **_content(record)}


def _content(record: Record) -> dict[str, Any]:
    """All of it, readable (to about 5,000 members), else packed, else without the list of peers."""
    everyone = len(record.assignments)
    peers = sorted((assigned.name, assigned.ip) for assigned in record.assignments)
    data = {
        "expected_count": str(everyone),
        "generation": str(record.generation),
        "master_addr": record.assignments[0].ip,
        "peers": "".join(f"{name}:{ip}\n" for name, ip in peers),
    }
    stored = {name: getattr(record, name) for name in StoredRecord.__struct_fields__}
    members = msgspec.json.encode(StoredRecord(**stored))
    if _fits([*data.values(), members]):
        return {"data": {**data, _RECORD: members.decode()}}
    packed = zlib.compress(members, 9)
    why = f"with {everyone} members it would not fit into a ConfigMap's 1 MiB"
    data["note"] = f"{_RECORD} is packed (JSON, zlib) under binaryData: {why}."
    if not _fits([*data.values(), packed]):
        data["note"] += (
            " peers is left out for the same reason; each member has its own part in its pod's annotation."
        )
        del data["peers"]
    if not _fits([*data.values(), packed]) or len(members) > _most_unpacked(packed):
        raise TooLarge(f"the record of {everyone} members does not fit into a ConfigMap's 1 MiB")
    return {"data": data, "binaryData": {_RECORD: packed}}


def _fits(values: Sequence[str | bytes]) -> bool:
    encoded = (value if isinstance(value, bytes) else value.encode() for value in values)
    return sum(map(len, encoded)) <= _ROOM


def owned_by(found: ConfigMap) -> bool:
    """Whether a ConfigMap is ours to write."""
    return found.metadata.labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY


def _most_unpacked(packed: bytes) -> int:
    return min(_MOST_UNPACKED, _MOST_RATIO * len(packed))


def unpacked_size(found: ConfigMap) -> int:
    """Bytes that :func:`record_of` reads, at most."""
    return len(found.data.get(_RECORD, "")) or _most_unpacked(found.binary_data.get(_RECORD, b""))


def record_of(found: ConfigMap) -> Record | None:
    """The record in one of our ConfigMaps; None when a hand has made it unreadable.

    No more is unpacked than a record can mean: it costs in proportion to the ConfigMap's bytes.
    """
    try:
        generation = int(found.data.get("generation", "0")[:_MOST_DIGITS])
        members: str | bytes = found.data.get(_RECORD, "")
        if not members:
            packed = found.binary_data[_RECORD]
            unpacking = zlib.decompressobj()
            members = unpacking.decompress(packed, _most_unpacked(packed))
            if unpacking.unconsumed_tail:
                return None
        stored = msgspec.json.decode(members, type=StoredRecord)
    except (KeyError, ValueError, zlib.error, msgspec.MsgspecError, RecursionError):
        return None
    return Record(generation=generation, **msgspec.structs.asdict(stored))


def obstacle(found: ConfigMap | None) -> str:
    """Why a ConfigMap cannot be the gang's, or nothing."""
    if found is None or (owned_by(found) and found.metadata.deletion_timestamp is None):
        return ""
    if owned_by(found):
        return f"the ConfigMap {found.metadata.name} is being deleted and something holds it back; remove its finalizers"
    return (
        f"the ConfigMap {found.metadata.name} exists and is not managed by preflight-gang; "
        "rename or delete it, its name is the gang's"
    )


class RosterWrite(msgspec.Struct, frozen=True, kw_only=True):
    """The roster to be written to a member's pod, and the annotations that go with it."""

    member: GangMember
    roster: Roster
    annotations: Mapping[str, str] = {}

    @property
    def text(self) -> str:
        """The annotation's value."""
        return encode_roster(self.roster)

    def patch(self) -> list[dict[str, Any]]:
        """The JSON Patch. It fails where the pod is another one, or its roster has changed since: a
        leader that was paused cannot overwrite what its successor has written."""
        path = jsonpatch.pointer("metadata", "annotations", names.ROSTER_ANNOTATION)
        return [
            jsonpatch.test("/metadata/uid", self.member.uid),
            jsonpatch.test(path, self.member.roster),
            *(jsonpatch.set_annotation(key, value) for key, value in self.annotations.items()),
            jsonpatch.replace(path, self.text),
        ]


def plan(gang: GangView, answers: Mapping[str, MemberAnswer], epoch: int) -> list[RosterWrite]:
    """What is to be written so that each member has its answer; tried again with refused pods."""
    writes = []
    for one in gang.members:
        if (answer := answers.get(one.uid)) is None:
            continue
        write = roster_write(one, answer, gang.record, epoch)
        if write is None and one.uid in gang.refused:
            write = RosterWrite(member=one, roster=_roster(one, answer, gang.record, epoch))
        if write is not None:
            writes.append(write)
    return writes


def roster_write(
    member: GangMember, answer: MemberAnswer, record: Record | None, epoch: int
) -> RosterWrite | None:
    """What gives ``member`` its answer; None when its pod has it already, from whichever leader."""
    roster, published = _roster(member, answer, record, epoch), member.published
    if published is not None:
        # What an earlier release has written is not written again for fields that it did not know.
        known = msgspec.structs.replace(
            published, epoch=epoch, successors=published.successors or roster.successors
        )
        if known == roster:
            return None
        if answer.answer == "fail" and member.answered("fail", answer.generation):
            return None  # a generation ends once, and for all with the cause that was seen first
    return RosterWrite(member=member, roster=roster)


def _roster(member: GangMember, answer: MemberAnswer, record: Record | None, epoch: int) -> Roster:
    common: dict[str, Any] = {"v": VERSION, "pod_uid": member.uid}
    common |= {"generation": answer.generation, "epoch": epoch}
    if answer.rank is None or record is None:
        return Roster(**common, answer=answer.answer, missing=answer.missing, reason=answer.reason)
    return Roster(
        **common,
        answer="sealed",
        rank=answer.rank,
        nnodes=len(record.assignments),
        master_addr=record.assignments[0].ip,
        master_port=record.master_port,
        control_port=record.control_port,
        token=record.token,
        successors=_successors(record.assignments),
    )


def _successors(assignments: Sequence[RankAssignment]) -> tuple[tuple[int, str], ...]:
    """Each on a node of its own: they are there for when rank 0's is lost."""
    found: list[tuple[int, str]] = []
    nodes = {assignments[0].node}
    for rank, assigned in enumerate(assignments):
        if len(found) == _SUCCESSORS:
            break
        if assigned.node not in nodes:
            nodes.add(assigned.node)
            found.append((rank, assigned.ip))
    return tuple(found)


def _owners(gang: GangView, sealed: set[str]) -> list[Mapping[str, Any]]:
    """With whom the ConfigMap ends: what knows the size, else the members' controller, or some."""
    here = [m for m in gang.members if m.uid in sealed] or gang.members
    owners = {m.owner for m in here}
    owner = gang.owner or (owners.pop() if len(owners) == 1 else None)
    pods = (OwnerReference(api_version="v1", kind="Pod", name=m.name, uid=m.uid) for m in here)
    references = [owner] if owner is not None else islice(pods, _MAX_OWNERS)
    return [
        {
            "apiVersion": o.api_version,
            "kind": o.kind,
            "name": o.name,
            "uid": o.uid,
            "blockOwnerDeletion": False,
        }
        for o in references
    ]
