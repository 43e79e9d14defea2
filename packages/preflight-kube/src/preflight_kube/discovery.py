"""What the cluster serves."""

from __future__ import annotations

import msgspec

from .client import Client

__all__ = ["served"]


class _Version(msgspec.Struct, rename="camel"):
    group_version: str


class _Group(msgspec.Struct, rename="camel"):
    name: str
    versions: list[_Version]
    preferred_version: _Version


class _Groups(msgspec.Struct):
    groups: list[_Group]


class _Resource(msgspec.Struct):
    name: str


class _Resources(msgspec.Struct):
    resources: list[_Resource]


async def served(client: Client, group: str, resource: str) -> str | None:
    """The path of a collection (``resource`` is its plural name), in the version that the cluster
    prefers of those that have it; None where none has. ``group`` is a named one: core resources are
    always served.

    Raises :class:`~.errors.KubeError` when the cluster does not say.
    """
    groups = await client.get("/apis", _Groups)
    known = next((one for one in groups.groups if one.name == group), None)
    for version in [known.preferred_version, *known.versions] if known is not None else []:
        listed = await client.get(f"/apis/{version.group_version}", _Resources)
        if any(one.name == resource for one in listed.resources):
            return f"/apis/{version.group_version}/{resource}"
    return None
