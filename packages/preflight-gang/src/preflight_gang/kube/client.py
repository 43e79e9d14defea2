"""One asynchronous client of the API server: typed reads, paged lists, watches and plain writes, over HTTP/1.1.

Every answer is decoded by msgspec into the caller's Struct, which names only the fields that are read.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Generic, Literal, TypeVar, cast

import anyio
import httpx
import msgspec

from .clock import Clock
from .connection import Connection
from .door import Door
from .errors import Conflict, Fenced, Gone, Invalid, KubeError, NotFound, PreconditionFailed
from .transport import Lines

__all__ = [
    "Client",
    "Conflict",
    "Event",
    "Fenced",
    "Gone",
    "Invalid",
    "KubeError",
    "NotFound",
    "Params",
    "PreconditionFailed",
    "Requests",
]

T = TypeVar("T")
Params = Mapping[str, str | int]

READ_ATTEMPTS: Final = 5
WATCH_SECONDS: Final = (120, 240)
"""For how long one watch is asked for; spread, so that the watches of all replicas do not end together. Not longer,
because a watch says nothing while nothing happens: this is also how late a silent break could be noticed."""


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class _Versioned(msgspec.Struct):
    metadata: _Meta


class _Page(msgspec.Struct, Generic[T]):
    metadata: _Meta
    items: list[T] | None


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Details(msgspec.Struct):
    causes: list[msgspec.Raw] | None = None


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """One event of a watch; ``object`` is None for a bookmark, which only moves ``resource_version``."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: T | None
    resource_version: str


@dataclass
class Requests:
    """What was sent so far, by Kubernetes' verbs: get, list, watch, create, update, patch, delete."""

    count: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)


class Client:
    """Use as an asynchronous context manager, within one event loop.

    ``concurrency`` bounds the requests under way; watches hold connections of their own beside it. ``timeout``
    (seconds) bounds each step of a request: connect, send, and the wait for the next bytes. ``clock`` is for all that is done with it.

    Reads are repeated, ``READ_ATTEMPTS`` times in all, when the connection fails or the server answers 429 or 503
    with Retry-After. Writes never are: whoever writes must look again whether the write is still right. But where the
    server has asked for a pause, nothing is sent before it is over, reads and writes alike.
    """

    def __init__(
        self,
        target: Connection,
        *,
        concurrency: int = 32,
        timeout: float = 30.0,
        agent: str = "preflight-gang",
        clock: Clock | None = None,
    ) -> None:
        self.target = target
        self.requests = Requests()
        self._agent, self._timeout = agent, timeout  # the API server records our writes under this name
        self._slots = anyio.Semaphore(concurrency)
        self.clock = clock or Clock()
        self._door = Door(self.clock)
        self._may_write: Callable[[], bool] | None = None
        self._lines = Lines(target, agent, timeout)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lines.aclose()

    def sibling(self, *, concurrency: int, timeout: float) -> Client:
        """A client of the same server with connections of its own, counted together with this one."""
        made = Client(self.target, concurrency=concurrency, timeout=timeout, agent=self._agent, clock=self.clock)
        made.requests = self.requests
        return made

    def fenced(self, may_write: Callable[[], bool]) -> Client:
        """This client, but each write asks ``may_write`` when it is about to be sent; Fenced is raised when not."""
        view = copy.copy(self)
        view._may_write = may_write
        return view

    async def get(self, path: str, type_: type[T], *, params: Params | None = None) -> T:
        """The object at ``path``.

        Raises:
            NotFound: there is none.
            KubeError: the server cannot be reached or refuses.
        """
        return _decoded(msgspec.json.Decoder(type_), await self._read("get", path, params), path)

    async def pages(
        self, path: str, type_: type[T], *, params: Params | None = None, limit: int = 500
    ) -> AsyncGenerator[tuple[list[T], str]]:
        """The collection at ``path``, page by page, each with the version of the whole list.

        Raises:
            Gone: the list has become too old while it was read; begin again.
        """
        decoder = msgspec.json.Decoder(_Page[type_])  # type: ignore[valid-type]
        asked: dict[str, str | int] = {**(params or {}), "limit": limit}
        while True:
            page = _decoded(decoder, await self._read("list", path, asked), path)
            yield page.items or [], page.metadata.resource_version
            if not page.metadata.continue_:
                return
            asked["continue"] = page.metadata.continue_

    @asynccontextmanager
    async def watch(
        self,
        path: str,
        type_: type[T],
        *,
        resource_version: str,
        params: Params | None = None,
        seconds: int | None = None,
    ) -> AsyncGenerator[AsyncIterator[Event[T]]]:
        """What happens in ``path`` after ``resource_version``; entered when the server has accepted the watch.

        The events end without an error when the server ends the watch, after ``seconds`` at the latest (default:
        a value within ``WATCH_SECONDS``).

        Raises:
            Gone: ``resource_version`` is too old; on entering or from the events.
            KubeError: the server refuses, or the connection broke.
        """
        seconds = seconds or random.randint(*WATCH_SECONDS)  # noqa: S311 - spread, not a secret
        asked = {
            **(params or {}),
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }
        await self._door.open()
        self.requests.count["watch"] += 1
        timeout = httpx.Timeout(self._timeout, read=seconds + self._timeout)
        http = self._lines.streams
        try:
            answer = await http.send(http.build_request("GET", path, params=asked, timeout=timeout), stream=True)
            if answer.is_error:
                await answer.aread()
                self._asked_to_wait(answer)
                raise _refusal(answer, f"watch {path}")
        except httpx.HTTPError as error:
            raise self._silence(f"watch {path}", error) from error
        try:
            async with aclosing(self._events(answer, msgspec.json.Decoder(type_), path)) as events:
                yield events
        finally:
            await answer.aclose()

    async def _events(
        self, answer: httpx.Response, decoder: msgspec.json.Decoder[T], path: str
    ) -> AsyncGenerator[Event[T]]:
        rest = b""
        try:
            async for chunk in answer.aiter_raw():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield _event(line, decoder, path)
        except httpx.HTTPError as error:
            raise self._silence(f"watch {path}", error) from error

    async def create(self, path: str, body: object) -> bytes:
        """Create ``body`` in the collection ``path``; Conflict where it exists already."""
        return await self._write("create", "POST", path, body)

    async def replace(self, path: str, body: object) -> bytes:
        """Replace the object at ``path``; Conflict where its resourceVersion is no longer the one in ``body``."""
        return await self._write("update", "PUT", path, body)

    async def json_patch(self, path: str, operations: list[dict[str, Any]]) -> bytes:
        """Apply RFC 6902 operations, all or none; PreconditionFailed where a ``test`` does not hold."""
        return await self._write("patch", "PATCH", path, operations, "application/json-patch+json")

    async def merge_patch(self, path: str, body: object) -> bytes:
        """Apply an RFC 7386 merge patch; Conflict where it names a resourceVersion that no longer holds."""
        return await self._write("patch", "PATCH", path, body, "application/merge-patch+json")

    async def delete(self, path: str, body: object | None = None) -> None:
        """Delete the object at ``path``; ``body`` may hold DeleteOptions such as preconditions."""
        await self._write("delete", "DELETE", path, body)

    async def _read(self, verb: str, path: str, params: Params | None) -> bytes:
        for attempt in range(1, READ_ATTEMPTS + 1):
            try:
                async with self._slots, self._lines.one() as http:
                    await self._door.open()
                    self.requests.count[verb] += 1
                    answer = await http.get(path, params=params)
            except httpx.HTTPError as error:
                if attempt == READ_ATTEMPTS or not isinstance(error, httpx.TransportError):
                    raise self._silence(f"{verb} {path}", error) from error
                pause = 0.1 * 2**attempt
            else:
                if answer.is_success:
                    return answer.content
                wait = self._asked_to_wait(answer)
                if attempt == READ_ATTEMPTS or wait is None:
                    raise _refusal(answer, f"{verb} {path}")
                pause = wait
            await anyio.sleep(pause * random.uniform(1.0, 1.5))  # noqa: S311 - never earlier than asked
        raise AssertionError("unreachable")

    async def _write(
        self, verb: str, method: str, path: str, body: object | None, kind: str = "application/json"
    ) -> bytes:
        data = b"" if body is None else msgspec.json.encode(body)
        async with self._slots, self._lines.one() as http:
            await self._door.open()
            if self._may_write is not None and not self._may_write():
                raise Fenced(f"{verb} {path} was not sent: the right to write had ended.")
            self.requests.count[verb] += 1
            self.requests.bytes[verb] += len(data)
            try:
                answer = await http.request(
                    method, path, content=data or None, headers={"Content-Type": kind} if data else None
                )
            except httpx.HTTPError as error:
                raise self._silence(f"{verb} {path}", error) from error
        if answer.is_success:
            return answer.content
        self._asked_to_wait(answer)
        raise _refusal(answer, f"{verb} {path}", json_patch=kind == "application/json-patch+json")

    def _asked_to_wait(self, answer: httpx.Response) -> float | None:
        """Seconds that the server asks us to wait before the next attempt; until then the door is shut."""
        if (seconds := _retry_after(answer)) is not None:
            self._door.shut(seconds)
        return seconds

    def _silence(self, what: str, error: httpx.HTTPError) -> KubeError:
        return KubeError(
            f"{self.target.server}: no answer to {what} ({type(error).__name__} {error}); is it reachable?"
        )


_FRAME: Final = msgspec.json.Decoder(_Frame)
_STATUS: Final = msgspec.json.Decoder(_Status)
_VERSIONED: Final = msgspec.json.Decoder(_Versioned)


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw, path: str) -> T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise KubeError(f"{path}: the API server's answer cannot be read ({error}).") from error


def _event(line: bytes, decoder: msgspec.json.Decoder[T], path: str) -> Event[T]:
    frame = _decoded(_FRAME, line, path)
    if frame.type == "ERROR":
        status = _decoded(_STATUS, frame.object, path)
        raise _error(f"watch {path}", status.code, status)
    kind = cast(Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"], frame.type)
    version = _decoded(_VERSIONED, frame.object, path).metadata.resource_version
    return Event(kind, None if kind == "BOOKMARK" else _decoded(decoder, frame.object, path), version)


def _retry_after(answer: httpx.Response) -> float | None:
    """Seconds that the server asks us to wait before the next attempt."""
    if answer.status_code not in {429, 503}:
        return None
    try:
        return min(max(float(answer.headers["Retry-After"]), 0.1), 30.0)
    except (KeyError, ValueError):
        return None


def _refusal(answer: httpx.Response, what: str, *, json_patch: bool = False) -> KubeError:
    try:
        status = _STATUS.decode(answer.content)
    except msgspec.DecodeError:
        status = _Status(message=answer.text[:200].strip())
    return _error(what, answer.status_code, status, json_patch=json_patch)


def _error(what: str, code: int, status: _Status, *, json_patch: bool = False) -> KubeError:
    kind = {404: NotFound, 409: Conflict, 410: Gone, 422: Invalid}.get(code, KubeError)
    # An object that fails validation comes with its causes; a patch that could not be applied comes with none.
    if json_patch and code == 422 and not (status.details and status.details.causes):
        kind = PreconditionFailed
    return kind(f"{what}: the API server answered {code} ({status.message}).", code, status.reason)
