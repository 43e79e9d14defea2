"""One request to the API server, as data: what a fuzzer sends and what it saves."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import threading
from dataclasses import dataclass
from typing import Any

from preflight_testing.apiserver import ApiServer

MERGE = "application/merge-patch+json"
_DEEP = re.compile(rb'"@(deep|fields):(\d+)@"')
_PARTS = {b"deep": (b"[", b"", b"]"), b"fields": (b'{"f:a":', b"{}", b"}")}


def deep(levels: int) -> str:
    """A value that becomes so many nested arrays when the shot is encoded: Python's own encoder
    would not.
    """
    return f"@deep:{levels}@"


def fields(levels: int) -> str:
    """The same with objects, as ``managedFields`` has them."""
    return f"@fields:{levels}@"


def nested(levels: int, before: str = "", after: str = "") -> str:
    """JSON text nested so deep, for where an object carries text."""
    return f"{before}{'[' * levels}{']' * levels}{after}"


@dataclass(frozen=True)
class Shot:
    """``what`` says in a word or two what it is about; ``body`` is JSON data in which :func:`deep`
    may stand.
    """

    what: str
    method: str
    path: str
    body: Any = None
    content: str = "application/json"

    def encoded(self) -> bytes | None:
        if self.body is None:
            return None
        return _DEEP.sub(_unfolded, json.dumps(self.body).encode())

    def saved(self) -> dict[str, Any]:
        """For a file that shows what was sent."""
        return {
            "what": self.what,
            "method": self.method,
            "path": self.path,
            "content": self.content,
            "body": self.body,
        }


def _unfolded(match: re.Match[bytes]) -> bytes:
    before, middle, after = _PARTS[match[1]]
    levels = int(match[2])
    return before * levels + middle + after * levels


def pod_path(namespace: str, name: str = "", *, dry: bool = False) -> str:
    return (
        f"/api/v1/namespaces/{namespace}/pods"
        + (f"/{name}" if name else "")
        + ("?dryRun=All" if dry else "")
    )


class ShotSender:
    """Sends shots, each thread over a connection of its own; what the API server answers is data,
    never an exception.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._context = ssl.create_default_context(cafile=str(server.ca))
        self._own = threading.local()

    def send(self, shot: Shot, timeout: float = 30.0) -> tuple[int, bytes]:
        """Status and body; status 0 where there was no answer."""
        body = shot.encoded()
        for _ in range(2):  # a connection that was kept too long is made again once
            kept = getattr(self._own, "connection", None)
            connection = kept or self._connect(timeout)
            try:
                headers = {
                    "Authorization": f"Bearer {self._server.token}",
                    "Content-Type": shot.content,
                }
                connection.request(shot.method, shot.path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException):
                self._own.connection = None
                connection.close()
                if kept is None:
                    return 0, b""
                continue
            if answer.will_close:
                self._own.connection = None
                connection.close()
            else:
                self._own.connection = connection
            return answer.status, content
        return 0, b""

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        host, _, port = self._server.server.removeprefix("https://").partition(":")
        return http.client.HTTPSConnection(host, int(port), context=self._context, timeout=timeout)
