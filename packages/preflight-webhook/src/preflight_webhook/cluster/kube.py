"""A client for commands that read and write single objects. Knows nothing of Preflight.

Synchronous and small on purpose. How the API server is reached is :mod:`preflight_kube.connection`'s; what is
followed (:mod:`.policies`) or asked for (:mod:`.lookups`) while admissions wait has rules of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import httpx
import msgspec
from preflight_kube.connection import Connection, connection
from preflight_kube.errors import BadAccess, Conflict, KubeError, NoCluster

__all__ = [
    "Answer",
    "BadAccess",
    "Client",
    "Conflict",
    "Connection",
    "KubeError",
    "NoCluster",
    "Object",
    "ask",
    "connection",
]

MOST_BYTES: Final = 64 * 1024 * 1024
"""Of one answer; some are lists, read whole."""

UNPACKED: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}
"""Headers of every request: what comes packed could be a thousand times as large, so nothing is unpacked."""

_NOT_SERVED: Final = b"404 page not found"
"""What an API server says of an API group that it does not have; to all else that is not there it answers with a Status."""

Object = dict[str, Any]
"""A Kubernetes object as it travels: decoded JSON."""


class Answer(NamedTuple):
    """``absent``: the API server itself says that there is no such thing. A proxy's page says nothing of what there is."""

    status: int
    body: bytes
    absent: bool

    @property
    def is_success(self) -> bool:
        return httpx.codes.is_success(self.status)


async def ask(http: httpx.AsyncClient, path: str, most: int, params: Mapping[str, str] | None = None) -> Answer:
    """What is at ``path``. Raises :class:`KubeError` for an answer of more than ``most`` bytes, and what httpx raises."""
    async with http.stream("GET", path, params=params, headers=UNPACKED) as answer:
        body = bytearray()
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > most:
                raise KubeError(f"GET {path}: the answer has more than {most} bytes, and is not read.")
    code, data = answer.status_code, bytes(body)
    return Answer(code, data, code == httpx.codes.NOT_FOUND and _says_absent(data))


def _says_absent(body: bytes) -> bool:
    """Whether a 404 is an API server's own."""
    if body.strip() == _NOT_SERVED:
        return True
    try:
        said = msgspec.json.decode(body, type=_Said)
    except (ValueError, RecursionError):  # a MsgspecError is a ValueError
        return False
    return (said.kind, said.reason) == ("Status", "NotFound")


class _Said(msgspec.Struct):
    """Of a Status: what it is about."""

    kind: str = ""
    reason: str = ""


class Client:
    """Reads and writes single objects by path. Use as a context manager; not shared between threads."""

    def __init__(self, target: Connection, *, timeout: float = 10) -> None:
        # The name is the one under which the API server records our writes.
        headers = {"User-Agent": "preflight-webhook", **UNPACKED}
        if target.token:
            headers["Authorization"] = f"Bearer {target.token}"
        self.target = target
        # Proxies of the environment are for the world outside, not for the cluster's own API server.
        self._http = httpx.Client(
            base_url=target.server, verify=target.verify, headers=headers, timeout=timeout, trust_env=False
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str) -> Object | None:
        """The object at ``path``, or None where there is none."""
        try:
            return self._send("GET", path)
        except KubeError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def create(self, path: str, body: Object) -> Object:
        """Create ``body`` in the collection ``path``; Conflict where it exists already."""
        return self._send("POST", path, body)

    def replace(self, path: str, body: Object) -> Object:
        """Replace the object at ``path``; Conflict where its resourceVersion is no longer the one in ``body``."""
        return self._send("PUT", path, body)

    def merge(self, path: str, body: Object) -> Object:
        """Strategic merge patch: lists with names merge by name. A resourceVersion in ``body`` must still hold."""
        return self._send("PATCH", path, body, "application/strategic-merge-patch+json")

    def _send(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        head = {"Content-Type": kind} if body else {}
        try:
            with self._http.stream(method, path, json=body, headers=head) as answer:
                data = self._data(answer, f"{method} {path}")
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            UnicodeError,
        ) as error:  # the latter two: of a Location that is no address
            raise KubeError(
                f"{self.target.server}: no answer to {method} {path} ({error}); is it reachable?"
            ) from error
        try:
            made = json.loads(data)
        except (ValueError, RecursionError):
            made = None
        if answer.is_success:
            if not isinstance(made, dict):
                raise KubeError(
                    f"{method} {path}: the answer {answer.status_code} is no object; does a proxy stand in between?"
                )
            return made
        said = made["message"] if isinstance(made, dict) and "message" in made else data[:200].decode(errors="replace")
        sentence = f"{method} {path}: the API server answered {answer.status_code} ({said})"
        if answer.status_code == httpx.codes.CONFLICT:
            raise Conflict(f"{sentence}.", answer.status_code)
        if answer.status_code == httpx.codes.NOT_FOUND and not _says_absent(data):
            raise KubeError(f"{sentence}, which is not in an API server's words; does a proxy stand in between?")
        raise KubeError(f"{sentence}.", answer.status_code)

    @staticmethod
    def _data(answer: httpx.Response, what: str) -> bytes:
        """The answer's bytes as they come, never unpacked: what is asked for is not packed."""
        data = bytearray()
        for piece in answer.iter_raw():
            data += piece
            if len(data) > MOST_BYTES:
                raise KubeError(f"{what}: the answer has more than {MOST_BYTES} bytes, and is not read.")
        return bytes(data)
