"""Whoever watches while a bench changes a cluster: one collection, in a thread."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")
_SECONDS = 7200


class _Server(Protocol):
    def call(self, method: str, path: str) -> Any: ...
    def connect(self) -> http.client.HTTPConnection: ...
    def headers(self) -> dict[str, str]: ...


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str


class _Versioned(msgspec.Struct):
    metadata: _Version


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Follow(Generic[T]):
    """``seen`` is called with the type of each event and its object as a ``type_``, from what
    happens next on.

    An API server that is busy ends the watches of who reads too slowly: the next one goes on from
    there, and where the server no longer knows that version all that is there is told as
    ``MODIFIED``.
    """

    def __init__(
        self, server: _Server, path: str, seen: Callable[[str, T], None], type_: type[T]
    ) -> None:
        self._server, self._path, self._seen = server, path, seen
        self._decoder, self._ended = msgspec.json.Decoder(type_), False
        self._version = str(server.call("GET", f"{path}?limit=1")["metadata"]["resourceVersion"])
        self._connection, self._answer = self._opened()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def close(self) -> None:
        self._ended = True
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)
        self._thread.join()
        self._connection.close()

    def _opened(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._server.connect()
        connection.timeout = None
        query = f"{self._path}?watch=true&resourceVersion={self._version}&timeoutSeconds={_SECONDS}"
        connection.request("GET", query, headers=self._server.headers())
        return connection, connection.getresponse()

    def _watch(self) -> None:
        events, versions = msgspec.json.Decoder(_Event), msgspec.json.Decoder(_Versioned)
        try:
            while True:
                while line := self._answer.readline():
                    event = events.decode(line)
                    if event.type == "ERROR":  # what happened since is no longer known
                        self._list()
                        break
                    self._version = versions.decode(event.object).metadata.resource_version
                    self._seen(event.type, self._decoder.decode(event.object))
                if self._ended:
                    return
                self._connection.close()
                self._connection, self._answer = self._opened()
        except (OSError, ValueError, http.client.HTTPException):
            if not self._ended:
                raise

    def _list(self) -> None:
        listed = self._server.call("GET", self._path)
        self._version = listed["metadata"]["resourceVersion"]
        for item in listed["items"]:
            self._seen("MODIFIED", self._decoder.decode(msgspec.json.encode(item)))
