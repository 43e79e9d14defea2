"""What the tests of the Kubernetes layer share: two Structs, an object to create, and what a
Reflector told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from preflight_kube.runtime.reflector import Change


class Meta(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Item(msgspec.Struct):
    """Any object, as far as these tests look at it."""

    metadata: Meta
    data: dict[str, str] = {}


class Kept(msgspec.Struct):
    """An object of which only the data is read; the key is kept too."""

    metadata: KeptMeta
    data: dict[str, str] = {}


class KeptMeta(msgspec.Struct):
    uid: str
    name: str


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def names(items: Iterable[Any]) -> list[str]:
    return sorted(item.metadata.name for item in items)


class Changes:
    """What a Reflector told, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, change: Change[Kept]) -> None:
        self.seen.append((change.kind, change.object.metadata.name))
