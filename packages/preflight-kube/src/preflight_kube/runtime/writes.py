"""Writes as data, and what the API server may answer to one: a decision names writes, a shell sends
each of them once.

A write that is not answered was done, or was not, or will be: whoever sent it reads what there is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Literal, TypeVar

import anyio
import msgspec

from preflight_kube.client.client import Client, Propagation
from preflight_kube.client.decoding import decoded
from preflight_kube.errors import Conflict, Fenced, KubeError, NotFound, PreconditionFailed

T = TypeVar("T")


class Create(msgspec.Struct, frozen=True):
    """A new object in the collection ``path``."""

    path: str
    body: Any


class Patch(msgspec.Struct, frozen=True):
    """A change of the object, or of the part of it, at ``path``. Its preconditions stand in it: a
    ``test`` of a JSON patch, a uid or resourceVersion in another.
    """

    path: str
    patch: Any
    kind: Literal["json", "merge", "strategic"] = "json"


class ReplaceStatus(msgspec.Struct, frozen=True):
    """The whole status of the object at ``path``, in the version that ``body`` names."""

    path: str
    body: Any


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the very object that is meant, in exactly this version where one is given; see
    :meth:`.client.Client.delete`.
    """

    path: str
    uid: str
    resource_version: str = ""
    grace: int | None = None
    propagation: Propagation | None = None


Write = Create | Patch | ReplaceStatus | Delete


class Stored(msgspec.Struct, frozen=True):
    """It was done. ``body``: the object as it is now, or a bare Status."""

    path: str
    body: bytes

    def object(self, type_: type[T]) -> T:
        """The object as it is now. Raises :class:`KubeError` where it cannot be read."""
        return decoded(msgspec.json.Decoder(type_), self.body, self.path)


class Exists(msgspec.Struct, frozen=True):
    """Not created: the name is taken."""


class Missing(msgspec.Struct, frozen=True):
    """There is no such object, or another one has its name."""


class Refused(msgspec.Struct, frozen=True):
    """For certain nothing was stored. ``stale``: the object has changed, and a precondition does
    not hold.
    """

    error: KubeError
    stale: bool = False


class Lost(msgspec.Struct, frozen=True):
    """No answer, or one that leaves open what happened."""

    error: KubeError


Answer = Stored | Exists | Missing | Refused | Lost


async def apply(client: Client, write: Write) -> Answer:
    """Send a write once. Raises :class:`Fenced` where it was not sent: leadership had ended."""
    try:
        return Stored(write.path, await _send(client, write))
    except Fenced:
        raise
    except NotFound as error:
        return Refused(error) if isinstance(write, Create) else Missing()
    except Conflict as error:
        if isinstance(write, Create) and error.reason == "AlreadyExists":
            return Exists()
        if isinstance(write, Delete) and not write.resource_version:
            return Missing()
        return Refused(error, stale=True)
    except PreconditionFailed as error:
        return Refused(error, stale=True)
    except KubeError as error:
        # A timeout (408) may have been done.
        certain = 400 <= error.status < 500 and error.status != 408
        return Refused(error) if certain else Lost(error)


async def _send(client: Client, write: Write) -> bytes:
    match write:
        case Create(path, body):
            return await client.create(path, body)
        case ReplaceStatus(path, body):
            return await client.replace_status(path, body)
        case Patch(path, patch, kind):
            send = {
                "json": client.json_patch,
                "merge": client.merge_patch,
                "strategic": client.strategic_patch,
            }
            return await send[kind](path, patch)
        case Delete():
            return await client.delete(
                write.path,
                uid=write.uid,
                resource_version=write.resource_version,
                grace=write.grace,
                propagation=write.propagation,
            )


async def gather(requests: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for several requests at the same time; their answers, in their order. Raises the first
    :class:`KubeError` once all have ended.
    """
    waiting = list(requests)
    if len(waiting) == 1:
        return [await waiting[0]]
    answers: dict[int, T] = {}
    failed: list[KubeError] = []

    async def wait(i: int, request: Awaitable[T]) -> None:
        try:
            answers[i] = await request
        except KubeError as error:
            failed.append(error)

    async with anyio.create_task_group() as group:
        for i, request in enumerate(waiting):
            group.start_soon(wait, i, request)
    if failed:
        raise failed[0]
    return [answers[i] for i in range(len(waiting))]
