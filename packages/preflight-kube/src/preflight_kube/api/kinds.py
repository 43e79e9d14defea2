"""A kind by its group and version, how an API server serves it, and what all objects have. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

Kind = tuple[str, str, str]
"""Group, version, kind."""


class RESTMapping(msgspec.Struct, frozen=True):
    """What the API server says of a kind."""

    resource: str
    namespaced: bool


def kind_of(api_version: str, kind: str) -> Kind:
    """Group, version and kind; the group is empty for core kinds."""
    group, _, version = api_version.rpartition("/")
    return group, version, kind


def root(kind: Kind) -> str:
    """The path below which the objects of its group and version stand."""
    group, version, _ = kind
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def version_of(text: str) -> int:
    """A resourceVersion as a number, as which all of one API server can be compared; 0 for none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


class OwnerReference(msgspec.Struct, rename="camel", frozen=True):
    """Whose object it is: it goes with its owners."""

    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(msgspec.Struct, rename="camel", frozen=True):
    """What most controllers read of an object's metadata. Who reads less names less in a Struct of
    its own, and holds less.
    """

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, as a work queue has them."""
        return self.namespace, self.name

    @property
    def precondition(self) -> dict[str, str]:
        """The metadata of a patch that is for this very object in this very version."""
        return {"uid": self.uid, "resourceVersion": self.resource_version}


def controller_reference(api_version: str, kind: str, owner: Any) -> dict[str, Any]:
    """The ownerReference of what a controller makes of ``owner``, the metadata of an object."""
    about = {"apiVersion": api_version, "kind": kind, "name": owner.name, "uid": owner.uid}
    return {**about, "controller": True, "blockOwnerDeletion": True}
