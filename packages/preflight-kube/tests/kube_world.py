"""What the tests of the Kubernetes layer share: two Structs, an object to create, and what a
Reflector told.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import trustme
from anyio.abc import TaskGroup
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


def serving(
    authority: trustme.CA, name: str = "127.0.0.1", *, clients: trustme.CA | None = None
) -> ssl.SSLContext:
    """What serves with a certificate of ``authority``; ``clients``: whose it wants to see."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        clients.configure_trust(context)
    return context


def names(items: Iterable[Any]) -> list[str]:
    return sorted(item.metadata.name for item in items)


@asynccontextmanager
async def going(*tasks: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[TaskGroup]:
    """While ``tasks`` go on, and what is started beside them; all of them are cancelled then."""
    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(task)
        yield group
        group.cancel_scope.cancel()


class Changes:
    """What a Reflector told, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, change: Change[Kept]) -> None:
        self.seen.append((change.kind, change.object.metadata.name))
