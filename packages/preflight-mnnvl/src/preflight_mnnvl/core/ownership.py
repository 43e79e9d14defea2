"""Whose a domain's objects are, and the patch that makes them a PodGang's. Pure."""

from __future__ import annotations

from typing import Any

from preflight_mnnvl.api.names import ADOPTED, PODGANG, label_value
from preflight_mnnvl.api.types import Metadata, OwnerReference
from preflight_mnnvl.core.builders import gang_owner

__all__ = ["abandoned", "adopted", "adoption", "alive", "announcement", "owned_by_set"]

_NOBODY = "00000000-0000-0000-0000-000000000000"


def alive(meta: Metadata | None) -> bool:
    """Whether it is there and not being deleted; only what has a uid can own anything."""
    return meta is not None and bool(meta.uid) and not meta.going


def adopted(meta: Metadata, gang: Metadata | None) -> bool:
    """Whether this PodGang, of this uid, is its one owner."""
    return gang is not None and [_whole(owner) for owner in meta.owner_references or ()] == [
        gang_owner(gang.name, gang.uid)
    ]


def owned_by_set(meta: Metadata) -> bool:
    """Whether a PodCliqueSet is its only owner, or nobody is."""
    return all(owner.kind == "PodCliqueSet" for owner in meta.owner_references or ())


def adoption(meta: Metadata, gang: Metadata) -> list[dict[str, Any]]:
    """The JSONPatch after which ``gang`` is the one owner; it fails where the object is no longer
    the one that was read.
    """
    patch = [
        *_guards(meta),
        {
            "op": "add",
            "path": "/metadata/ownerReferences",
            "value": [gang_owner(gang.name, gang.uid)],
        },
    ]
    if meta.label(PODGANG) != label_value(gang.name):
        patch.append(
            {
                "op": "add",
                "path": f"/metadata/labels/{PODGANG.replace('/', '~1')}",
                "value": label_value(gang.name),
            }
        )
    return patch


def abandoned(meta: Metadata) -> list[dict[str, Any]]:
    """The JSONPatch that hands an object to the garbage collector: its owner is a PodGang that
    cannot exist.

    There is no right to delete, on purpose; and this fails, as a deletion would not, where a
    PodGang has adopted the object meanwhile.
    """
    owner = {**gang_owner(meta.label(PODGANG) or "none", _NOBODY), "blockOwnerDeletion": False}
    return [*_guards(meta), {"op": "add", "path": "/metadata/ownerReferences", "value": [owner]}]


def announcement(gang: Metadata, *, whole: bool = True) -> dict[str, Any] | None:
    """The merge patch after which a PodGang says that its objects belong to it exactly where that
    is so (``whole``); None where nothing changes.
    """
    if (gang.annotation(ADOPTED) == "true") == whole:
        return None
    return {"metadata": {"uid": gang.uid, "annotations": {ADOPTED: "true" if whole else None}}}


def _guards(meta: Metadata) -> list[dict[str, Any]]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": meta.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version},
    ]


def _whole(owner: OwnerReference) -> dict[str, Any]:
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": owner.controller,
        "blockOwnerDeletion": owner.block_owner_deletion,
    }
