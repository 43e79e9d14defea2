"""A kind by its group and version, how an API server serves it, and versions of objects. Pure."""

from __future__ import annotations

import msgspec

__all__ = ["Kind", "RESTMapping", "kind_of", "root", "version_of"]

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
