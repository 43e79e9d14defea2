"""One asynchronous client of the API server: typed reads, paged lists, watches and plain writes,
over HTTP/1.1.

Every object is decoded by itself into the caller's Struct, which names only the fields that are
read: see ``decoding``.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeVar

import anyio
import httpcore
import msgspec

from preflight_kube.auth.connection import Connection
from preflight_kube.client import budget
from preflight_kube.client.decoding import MOST_BYTES, Undecodable, Unreadable, decode, decoded
from preflight_kube.client.paging import FIRST, TooMuch, next_limit, read_page
from preflight_kube.client.responses import (
    LONGEST,
    kind_of,
    known,
    refusal,
    retry_after,
    timely,
    whole,
    words,
)
from preflight_kube.client.transport import UNREACHABLE, ConnectionPool
from preflight_kube.client.watch_lag import Mirrors
from preflight_kube.client.watching import WatchEvent, events
from preflight_kube.clock import Clock
from preflight_kube.errors import (
    Conflict,
    Fenced,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    PreconditionFailed,
    Unusable,
)

__all__ = [
    "Conflict",
    "Fenced",
    "Gone",
    "Invalid",
    "KubeError",
    "NotFound",
    "PreconditionFailed",
    "Unreadable",
    "Unusable",
    "WatchEvent",
]

T = TypeVar("T")
Params = Mapping[str, str | int]
Propagation = Literal["Background", "Foreground", "Orphan"]
"""What becomes of what an object owns: deleted after it, deleted before it, or left."""

READ_ATTEMPTS: Final = 5
BARE: Final = ("/binding", "/eviction")
"""How paths end where what is created is answered by a bare Status, and not by an object."""
WATCH_SECONDS: Final = (120, 240)
"""For how long one watch is asked for; spread, so that the watches of all replicas do not end
together. Not longer, because a watch says nothing while nothing happens: this is also how late a
silent break could be noticed."""


@dataclass
class Requests:
    """What was sent so far, by Kubernetes' verbs: get, list, watch, create, update,
    patch, delete.
    """

    count: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)


class Client:
    """Use as an asynchronous context manager, within one event loop.

    ``agent`` is the program's name: the API server records writes under it. ``concurrency`` bounds
    the requests under way; watches hold connections of their own beside it. ``timeout`` (seconds)
    bounds each step of a request: connect, send, and the wait for the next bytes. ``clock`` is for
    all that is done with it.

    Reads are repeated, ``attempts`` times in all, when the connection fails or the server answers
    429 or 503 with Retry-After. Writes never are: whoever writes must look again whether the write
    is still right. But where the server has asked for a pause, nothing is sent before it is over,
    reads and writes alike.
    """

    def __init__(
        self,
        target: Connection,
        *,
        agent: str,
        concurrency: int = 32,
        timeout: float = 30.0,
        attempts: int = READ_ATTEMPTS,
        clock: Clock | None = None,
    ) -> None:
        self.target = target
        self.requests = Requests()
        self.mirrors = Mirrors()
        self._agent, self._timeout, self._attempts = agent, timeout, attempts
        self._slots = anyio.Semaphore(concurrency)
        self.clock = clock or Clock()
        self._throttle = budget.Throttle(self.clock)
        self._may_write: Callable[[], bool] | None = None
        self._pool = ConnectionPool(target, agent, timeout)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Hang up; for who does not use it as a context manager."""
        await self._pool.aclose()

    def sibling(self, *, concurrency: int, timeout: float) -> Client:
        """A client of the same server with connections of its own,
        counted together with this one.
        """
        client = Client(
            self.target,
            concurrency=concurrency,
            timeout=timeout,
            attempts=self._attempts,
            agent=self._agent,
            clock=self.clock,
        )
        client.requests, client.mirrors = self.requests, self.mirrors
        return client

    def fenced(self, may_write: Callable[[], bool]) -> Client:
        """This client, but each write asks ``may_write`` when it is about to be sent; Fenced is
        raised when not.
        """
        view = copy.copy(self)
        view._may_write = may_write
        return view

    async def get(self, path: str, type_: type[T], *, params: Params | None = None) -> T:
        """The object at ``path``.

        Raises:
            NotFound: there is none.
            KubeError: the server cannot be reached or refuses.
        """
        try:
            data = await self._read("get", path, params, whole)
        except TooMuch as error:
            raise kind_of(*error.args)(
                f"{path}: the answer has more than {MOST_BYTES} bytes, and is not read."
            ) from None
        try:
            return decode(msgspec.json.Decoder(type_), data)
        except Undecodable as error:
            kind = kind_of(data)
            hint = "." if kind is Unusable else "; does a proxy stand in between?"
            raise kind(f"{path}: the API server's answer cannot be read ({error}){hint}") from None

    async def get_or_none(
        self, path: str, type_: type[T], *, params: Params | None = None
    ) -> T | None:
        """The object at ``path``; None where the API server says that there is none. Raises as
        :meth:`get` otherwise.
        """
        try:
            return await self.get(path, type_, params=params)
        except NotFound:
            return None

    async def pages(
        self,
        path: str,
        type_: type[T],
        *,
        params: Params | None = None,
        limit: int = 500,
        on_unreadable: Callable[[Unreadable], None] = lambda _: None,
    ) -> AsyncGenerator[tuple[list[T], str]]:
        """The collection at ``path``, page by page, each with the version of the whole list.

        A page has ``limit`` objects at most, and fewer where they are large. What cannot be read is
        left out, counted, and passed to ``on_unreadable``.

        Raises:
            Gone: the list has become too old while it was read; begin again.
        """
        decoder, token, next_ = msgspec.json.Decoder(type_), "", min(limit, FIRST)
        while True:
            now, at = next_, {"continue": token} if token else {}
            page = partial(read_page, decoder=decoder, path=path, alone=now == 1)
            try:
                chunk = await self._read("list", path, {**(params or {}), "limit": now, **at}, page)
            except TooMuch:
                next_ = next_limit(now, None, limit)
                continue
            for unreadable in chunk.unreadable:
                self.mirrors.cannot_read(path, unreadable)
                on_unreadable(unreadable)
            yield chunk.items, chunk.version
            if not (token := chunk.token):
                return
            next_ = next_limit(now, chunk, limit)

    @asynccontextmanager
    async def watch(
        self,
        path: str,
        type_: type[T],
        *,
        resource_version: str,
        params: Params | None = None,
        seconds: int | None = None,
    ) -> AsyncGenerator[AsyncIterator[WatchEvent[T]]]:
        """What happens in ``path`` after ``resource_version``; entered when the server has accepted
        the watch.

        The events end without an error when the server ends the watch, after ``seconds`` at the
        latest (default: a value within ``WATCH_SECONDS``).

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
        await self._throttle.wait()
        self.requests.count["watch"] += 1
        what = f"watch {path}"
        try:
            async with (
                self._pool.acquire() as http,
                http.stream("GET", path, params=asked, patience=seconds) as answer,
            ):
                if answer.status >= 300:
                    raise await self._refusal(answer, what)
                pieces = timely(answer, seconds + self._timeout, what)
                watch_events = self._events(pieces, msgspec.json.Decoder(type_), path)
                async with aclosing(watch_events) as reported:
                    yield reported
        except UNREACHABLE as error:
            raise self._silence(what, error) from error

    async def _events(
        self, pieces: AsyncIterator[bytes], decoder: msgspec.json.Decoder[T], path: str
    ) -> AsyncGenerator[WatchEvent[T]]:
        try:
            async for event in events(pieces, decoder, path):
                if event.unreadable is not None:
                    self.mirrors.cannot_read(path, event.unreadable)
                yield event
        except UNREACHABLE as error:
            raise self._silence(f"watch {path}", error) from error

    async def create(self, path: str, body: object) -> bytes:
        """Create ``body`` in the collection ``path``; Conflict where it exists already."""
        return await self._write("create", "POST", path, body)

    async def ask(self, path: str, body: object, type_: type[T]) -> T:
        """Create ``body`` in a collection that stores nothing and answers at once, as those of
        access reviews do. Raises :class:`KubeError`.
        """
        answer = await self._write("create", "POST", path, body, stored=False)
        return decoded(msgspec.json.Decoder(type_), answer, path)

    async def replace(self, path: str, body: object) -> bytes:
        """Replace the object at ``path``; Conflict where its resourceVersion is no longer the one
        in ``body``.
        """
        return await self._write("update", "PUT", path, body)

    async def json_patch(self, path: str, operations: list[dict[str, Any]]) -> bytes:
        """Apply RFC 6902 operations, all or none; PreconditionFailed where a ``test`` does not
        hold.
        """
        return await self._write(
            "patch", "PATCH", path, operations, kind="application/json-patch+json"
        )

    async def merge_patch(self, path: str, body: object) -> bytes:
        """Apply an RFC 7386 merge patch; Conflict where it names a resourceVersion that no longer
        holds.
        """
        return await self._write("patch", "PATCH", path, body, kind="application/merge-patch+json")

    async def strategic_patch(self, path: str, body: object) -> bytes:
        """Apply a strategic merge patch, which Kubernetes' own kinds know; Conflict where it names
        a resourceVersion or uid that no longer holds.
        """
        return await self._write(
            "patch", "PATCH", path, body, kind="application/strategic-merge-patch+json"
        )

    async def replace_status(self, path: str, body: object) -> bytes:
        """Replace the status of the object at ``path``, and nothing else of it; Conflict as for
        :meth:`replace`.
        """
        return await self.replace(f"{path}/status", body)

    async def delete(
        self,
        path: str,
        *,
        uid: str = "",
        resource_version: str = "",
        grace: int | None = None,
        propagation: Propagation | None = None,
    ) -> bytes:
        """Delete the object at ``path``, or all of a collection; what the server answers: the
        object where something holds it, else a Status.

        Only if it has this ``uid`` and this ``resource_version``, where given. ``grace``: seconds
        that a pod gets to end (0: at once, which does not wait for its kubelet). ``propagation``:
        what becomes of what it owns (default: as its kind has it).

        Raises:
            NotFound: there is none.
            Conflict: the object there is another one, or has changed.
        """
        preconditions = {
            key: value
            for key, value in (("uid", uid), ("resourceVersion", resource_version))
            if value
        }
        options = {
            "preconditions": preconditions or None,
            "gracePeriodSeconds": grace,
            "propagationPolicy": propagation,
        }
        given = {key: value for key, value in options.items() if value is not None}
        about = {"kind": "DeleteOptions", "apiVersion": "v1"}
        return await self._write("delete", "DELETE", path, {**about, **given} if given else None)

    async def _read(
        self,
        verb: str,
        path: str,
        params: Params | None,
        take: Callable[[AsyncIterator[bytes]], Awaitable[T]],
    ) -> T:
        """What ``take`` makes of the answer's bytes, while they come."""
        budget.spend(f"{verb} {path}")
        for attempt in range(1, self._attempts + 1):
            try:
                return (await self._send(verb, "GET", path, take, params=params))[1]
            except UNREACHABLE as error:
                if attempt == self._attempts:
                    raise self._silence(f"{verb} {path}", error) from error
                pause = 0.1 * 2**attempt
            except KubeError as error:
                if attempt == self._attempts or error.retry_after is None:
                    raise
                pause = error.retry_after
            # Never earlier than asked.
            await anyio.sleep(pause * random.uniform(1.0, 1.5))  # noqa: S311
        raise AssertionError("unreachable")

    async def _write(
        self,
        verb: str,
        method: str,
        path: str,
        body: object | None,
        *,
        kind: str = "application/json",
        stored: bool = True,
    ) -> bytes:
        what = f"{verb} {path}"
        budget.spend(what)
        data = b"" if body is None else msgspec.json.encode(body)
        try:
            status, answer = await self._send(verb, method, path, whole, data=data, kind=kind)
        except UNREACHABLE as error:
            raise self._silence(what, error) from error
        except TooMuch:
            raise KubeError(
                f"{what}: the answer has more than {MOST_BYTES} bytes, and is not read."
            ) from None
        if method != "DELETE" and stored:
            known(status, answer, what, bare=path.endswith(BARE))
        return answer

    async def _send(
        self,
        verb: str,
        method: str,
        path: str,
        take: Callable[[AsyncIterator[bytes]], Awaitable[T]],
        *,
        data: bytes = b"",
        kind: str = "",
        params: Params | None = None,
    ) -> tuple[int, T]:
        """Send a request once; the status and what ``take`` makes of the answer. Raises KubeError
        for a refusal, and :data:`~.transport.UNREACHABLE`.
        """
        what = f"{verb} {path}"
        async with self._slots, self._pool.acquire() as http:
            await self._throttle.wait()
            if method != "GET" and self._may_write is not None and not self._may_write():
                raise Fenced(f"{what} was not sent: the right to write had ended.")
            self.requests.count[verb] += 1
            self.requests.bytes[verb] += len(data)
            head = {"Content-Type": kind} if data else None
            async with http.stream(
                method, path, content=data or None, headers=head, params=params
            ) as answer:
                if answer.status < 300:
                    return answer.status, await take(timely(answer, LONGEST, what))
                refused = await self._refusal(answer, what, kind)
        raise refused

    async def _refusal(self, answer: httpcore.Response, what: str, kind: str = "") -> KubeError:
        """The error that an answer is; where the server turns away whoever asks (429, 503) and
        wants a pause, nothing is sent until that is over.
        """
        json_patch = kind == "application/json-patch+json"
        error = refusal(answer.status, await words(answer), what, json_patch=json_patch)
        error.retry_after = retry_after(answer)
        if error.retry_after is not None and answer.status in {429, 503}:
            self._throttle.pause(error.retry_after)
        return error

    def _silence(self, what: str, error: Exception) -> KubeError:
        return KubeError(
            f"{self.target.server}: no answer to {what} ({type(error).__name__} {error}); is it reachable?"
        )
