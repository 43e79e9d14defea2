"""The HTTP side of the double: requests to paths, answers in the shapes of a kube-apiserver, watches as streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from .patches import DoesNotApply, json_patch, merge_patch, strategic_patch
from .selectors import selection
from .store import Object, Refused, Resource, Store, event

MERGES = {"application/merge-patch+json": merge_patch, "application/strategic-merge-patch+json": strategic_patch}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    """Names in lower case."""
    data: bytes

    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.data)
        except msgspec.DecodeError as error:
            raise Refused(400, "BadRequest", f"the body is not JSON: {error}") from error


@dataclass(frozen=True)
class Answer:
    code: int
    body: Any
    """JSON, or text where the real server answers text."""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Target:
    """What a path means."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    sub: str = ""


class Api:
    """Answers requests from a store. ``served`` is the table of resources; a group version in ``absent`` is a 404."""

    def __init__(self, store: Store, served: set[Resource], absent: set[str]) -> None:
        self.store, self.served, self.absent = store, served, absent
        self.bookmark_seconds = 60.0

    def answer(self, request: Request) -> Answer:
        """Everything but a watch; what is not implemented is a 501 that names method and path."""
        try:
            return self._answer(request)
        except Refused as refused:
            return Answer(refused.code, refused.status)
        except NotImplementedError as missing:
            said = f"the double does not implement {request.method} {request.path}: {missing}"
            return Answer(501, Refused(501, "NotImplemented", said).status)

    def refusal_to_watch(self, request: Request) -> Answer | None:
        """Why this watch is answered with an error, before it begins."""
        answer = self.answer(Request("GET", request.path, {**request.params, "limit": "1"}, request.headers, b""))
        return None if answer.code == 200 else answer

    def target(self, path: str) -> Target | None:
        """None for a path of an API group that is declared absent."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        root = 2 if parts[0] == "api" else 3
        group_version, rest = "/".join(parts[1:root]), parts[root:]
        if group_version in self.absent:
            return None
        table = {r.plural: r for r in self.served if r.group_version == group_version}
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] != "status":
            namespace, rest = rest[1], rest[2:]
        if not rest or rest[0] not in table or len(rest) > 3 or parts[0] not in {"api", "apis"}:
            raise NotImplementedError("no such path")
        resource, (name, sub) = table[rest[0]], (*rest[1:], "", "")[:2]
        if sub and not (sub == "status" and resource.status):
            raise NotImplementedError(f"subresource {sub}")
        if bool(namespace) != resource.namespaced and (name or namespace):
            raise NotImplementedError("no such path")
        return Target(resource, namespace, name, sub)

    def _answer(self, request: Request) -> Answer:
        if request.method == "GET" and request.path in {"/healthz", "/readyz", "/livez"}:
            return Answer(200, "ok")
        if request.method == "GET" and request.path == "/version":
            return Answer(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.0-double"})
        target = self.target(request.path)
        if target is None:
            return Answer(404, "404 page not found\n")
        if "dryRun" in request.params:
            raise NotImplementedError("dryRun")
        if not target.name:
            if request.method == "GET":
                return Answer(200, self._list(target, request.params))
            if request.method == "POST":
                return Answer(201, self._create(target, request.json()))
            raise NotImplementedError("on a collection")
        found = self.store.get(target.resource, target.namespace, target.name)
        match request.method:
            case "GET":
                return Answer(200, found)
            case "PUT":
                return Answer(200, self.store.update(target.resource, found, request.json(), status=bool(target.sub)))
            case "PATCH":
                body = self._patched(found, request)
                return Answer(200, self.store.update(target.resource, found, body, status=bool(target.sub)))
            case "DELETE" if not target.sub:
                options = request.json() if request.data else {}
                if "gracePeriodSeconds" in request.params:
                    options["gracePeriodSeconds"] = int(request.params["gracePeriodSeconds"])
                return Answer(200, self.store.delete(target.resource, found, options))
        raise NotImplementedError("on an object")

    def _list(self, target: Target, params: dict[str, str]) -> Object:
        resource = target.resource
        items, version, following, remain = self.store.page(
            resource, target.namespace, selected(params), int(params.get("limit", 0)), params.get("continue", "")
        )
        meta: Object = {"resourceVersion": str(version)}
        if following:
            meta |= {"continue": following, "remainingItemCount": remain}
        bare = [{k: v for k, v in item.items() if k not in {"kind", "apiVersion"}} for item in items]
        return {
            "kind": f"{resource.kind}List", "apiVersion": resource.group_version, "metadata": meta, "items": bare,
        }  # fmt: skip

    def _create(self, target: Target, body: Object) -> Object:
        if target.resource.namespaced:
            namespaces = next(r for r in self.served if r.plural == "namespaces")
            self.store.get(namespaces, "", target.namespace)
        return self.store.create(target.resource, target.namespace, body)

    def _patched(self, found: Object, request: Request) -> Object:
        kind, patch = request.headers.get("content-type", ""), request.json()
        if kind == "application/json-patch+json":
            if not isinstance(patch, list):
                raise Refused(400, "BadRequest", "error decoding patch: not a list of operations")
            try:
                return json_patch(found, patch)
            except DoesNotApply as error:
                said = "the server rejected our request due to an error in our request"
                raise Refused(422, "Invalid", said) from error
        if kind not in MERGES:
            raise NotImplementedError(f"patch format {kind!r}")
        after: Object = MERGES[kind](found, patch)
        return after

    async def watch(self, request: Request, send: Callable[[bytes], Any]) -> None:
        """Send one line an event, until the asked-for time is over or the version is too old."""
        target = self.target(request.path)
        assert target is not None
        resource, params, loop = target.resource, request.params, asyncio.get_running_loop()
        matches = selected(params) if not target.name else lambda item: bool(item["metadata"]["name"] == target.name)

        async def line(kind: str, item: Object) -> None:
            await send(msgspec.json.encode({"type": kind, "object": item}) + b"\n")

        asked = params.get("resourceVersion", "")
        version = int(asked or 0)
        if not version:  # "from any version": first what there is
            items, version, _, _ = self.store.page(resource, target.namespace, matches, 0, "")
            for item in items:
                await line("ADDED", item)
        end = loop.time() + int(params.get("timeoutSeconds", 1800))
        # The real server sends one a minute, and one shortly before the end.
        marks = params.get("allowWatchBookmarks") == "true"
        mark = min(loop.time() + self.bookmark_seconds, end - 2) if marks else end
        while loop.time() < end:
            news = self.store.news
            try:
                steps = self.store.since(version)
            except Refused as refused:
                await line("ERROR", refused.status)
                return
            for step in steps:
                if said := event(step, resource, target.namespace, matches):
                    await line(*said)
                version = step.version
            if marks and loop.time() >= mark:
                await line(
                    "BOOKMARK",
                    {
                        "kind": resource.kind,
                        "apiVersion": resource.group_version,
                        "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
                    },
                )
                mark = max(min(loop.time() + self.bookmark_seconds, end - 2), loop.time() + 0.05)
            try:
                async with asyncio.timeout_at(min(mark, end)):
                    await news.wait()
            except TimeoutError:
                continue


def selected(params: dict[str, str]) -> Callable[[Object], bool]:
    return selection(params.get("labelSelector", ""), params.get("fieldSelector", ""))


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection, None when the client has closed it."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    data = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    params = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    return Request(method, url.path, params, headers, data)


def head(code: int, kind: str, *more: tuple[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {code} {HTTPStatus(code).phrase}", f"Content-Type: {kind}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in more), "", ""]).encode()


async def converse(
    api: Api,
    intercept: Callable[[Request], Awaitable[Answer | Request]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Answer one connection's requests, one after another, until it closes; ``intercept`` may change or answer each."""

    async def chunk(data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()

    while request := await read_request(reader):
        admitted = await intercept(request)
        request, answer = (admitted, None) if isinstance(admitted, Request) else (request, admitted)
        if answer is None and request.params.get("watch") in {"true", "1"} and request.method == "GET":
            answer = api.refusal_to_watch(request)
            if answer is None:
                writer.write(head(200, "application/json", ("Transfer-Encoding", "chunked")))
                await api.watch(request, chunk)
                await chunk(b"")
                continue
        answer = answer or api.answer(request)
        text = isinstance(answer.body, str)
        data = answer.body.encode() if text else msgspec.json.encode(answer.body)
        kind = "text/plain" if text else "application/json"
        writer.write(head(answer.code, kind, ("Content-Length", str(len(data))), *answer.headers) + data)
        await writer.drain()
