"""What the cluster serves."""

from __future__ import annotations

import msgspec

from preflight_kube.client.client import Client

__all__ = ["served", "versions"]


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
    if (known := await _known(client, group)) is None:
        return None
    for version in [known.preferred_version, *known.versions]:
        if await _has(client, version, resource):
            return f"/apis/{version.group_version}/{resource}"
    return None


async def versions(client: Client, group: str, resource: str) -> tuple[str, ...]:
    """The versions in which ``group`` has a collection, as the cluster lists them; empty where it
    has none. Raises as :func:`served`.
    """
    known = await _known(client, group)
    every = known.versions if known is not None else []
    having = [one for one in every if await _has(client, one, resource)]
    return tuple(one.group_version.rpartition("/")[2] for one in having)


async def _known(client: Client, group: str) -> _Group | None:
    groups = await client.get("/apis", _Groups)
    return next((one for one in groups.groups if one.name == group), None)


async def _has(client: Client, version: _Version, resource: str) -> bool:
    listed = await client.get_or_none(f"/apis/{version.group_version}", _Resources)
    return listed is not None and any(one.name == resource for one in listed.resources)
