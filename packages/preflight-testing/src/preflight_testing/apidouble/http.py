"""The HTTP side of the double: requests to paths, answers in the shapes of a kube-apiserver,
watches as streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from .patches import DoesNotApply, json_patch, merge_patch, strategic_patch
from .selectors import Matches, selection
from .store import ApiRefused, Object, Resource, Store

PATCHES: Final = {
    "application/json-patch+json": json_patch,
    "application/merge-patch+json": merge_patch,
    "application/strategic-merge-patch+json": strategic_patch,
}


@dataclass(frozen=True)
class ApiRequest:
    """Names of ``headers`` are in lower case."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    data: bytes

    def json(self) -> Any:
        """The body, decoded; raises :class:`ApiRefused` with 400 where it is not JSON."""
        try:
            return msgspec.json.decode(self.data)
        except msgspec.DecodeError as error:
            raise ApiRefused(400, "BadRequest", f"the body is not JSON: {error}") from error

    def matches(self) -> Matches:
        """What its selectors select; everything where it has none."""
        return selection(self.params.get("labelSelector", ""), self.params.get("fieldSelector", ""))


@dataclass(frozen=True)
class ApiAnswer:
    """``body`` is JSON, or text where the real server answers text."""

    code: int
    body: Any
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ApiPath:
    """What a path means."""

    resource: Resource
    namespace: str
    name: str
    sub: str


@dataclass
class Api:
    """Answers requests from a store. A group version in ``absent`` is not served, as on a cluster
    without it.
    """

    store: Store
    served: set[Resource]
    absent: set[str]
    bookmark_seconds: float = 60.0

    def answer(self, request: ApiRequest) -> ApiAnswer:
        """Everything but the stream of a watch."""
        try:
            return self._answer(request)
        except ApiRefused as refused:
            return ApiAnswer(refused.code, refused.status)
        except NotImplementedError as missing:
            message = f"the double does not implement {request.method} {request.path}: {missing}"
            return ApiAnswer(501, ApiRefused(501, "NotImplemented", message).status)

    def target(self, path: str) -> ApiPath | None:
        """None for a path in an absent API group, or in a version that no kind of its group has."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        root = {"api": 2, "apis": 3}.get(parts[0], len(parts))
        group_version, rest = "/".join(parts[1:root]), parts[root:]
        group = group_version.rpartition("/")[0]
        known = {r.group_version for r in self.served if r.group_version.startswith(f"{group}/")}
        if group_version in self.absent or (group and known and group_version not in known):
            return None
        table = {r.plural: r for r in self.served if r.group_version == group_version}
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] in table:
            namespace, rest = rest[1], rest[2:]
        plural, name, sub = (*rest, "", "", "")[:3]
        if plural not in table or len(rest) > 3:
            raise NotImplementedError("no such path")
        if name and bool(namespace) != table[plural].namespaced:
            raise NotImplementedError("no such path")
        if sub and not (sub == "status" and table[plural].status):
            raise NotImplementedError(f"subresource {sub}")
        return ApiPath(table[plural], namespace, name, sub)

    def discovered(self, path: str) -> Object | None:
        """What is served: the groups, or the resources of one version of a group; None for any
        other path.
        """
        served = sorted({r.group_version for r in self.served} - self.absent, reverse=True)
        if path == "/apis":
            groups: dict[str, list[Object]] = {}
            # The later one is preferred.
            for api_version in filter(lambda version: "/" in version, served):
                group, version = api_version.split("/")
                about = {"groupVersion": api_version, "version": version}
                groups.setdefault(group, []).append(about)
            listed = [
                {"name": name, "versions": of, "preferredVersion": of[0]}
                for name, of in groups.items()
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        group_version = path.removeprefix("/apis/").removeprefix("/api/")
        if group_version not in served:
            return None
        resources = [
            {"name": r.plural, "kind": r.kind, "namespaced": r.namespaced}
            for r in self.served
            if r.group_version == group_version
        ]
        return {"kind": "APIResourceList", "groupVersion": group_version, "resources": resources}

    def _answer(self, request: ApiRequest) -> ApiAnswer:
        if request.method == "GET" and (item := self.discovered(request.path)) is not None:
            return ApiAnswer(200, item)
        if (target := self.target(request.path)) is None:
            return ApiAnswer(404, "404 page not found\n")
        if "dryRun" in request.params:
            raise NotImplementedError("dryRun")
        resource, store = target.resource, self.store
        match request.method, bool(target.name):
            case "GET", False:
                limit = int(request.params.get("limit", 0))
                token = request.params.get("continue", "")
                matches, head = request.matches(), resource.head
                items, meta = store.page(resource, target.namespace, matches, limit, token)
                bare = [{k: v for k, v in i.items() if k not in head} for i in items]
                listed = {"kind": f"{resource.kind}List", "apiVersion": resource.group_version}
                return ApiAnswer(200, listed | {"metadata": meta, "items": bare})
            case "POST", False:
                if target.namespace:
                    namespaces = next(r for r in self.served if r.plural == "namespaces")
                    store.get(namespaces, "", target.namespace)
                return ApiAnswer(201, store.create(resource, target.namespace, request.json()))
            case _, False:
                raise NotImplementedError("on a collection")
        item = store.get(resource, target.namespace, target.name)
        match request.method:
            case "GET":
                pass
            case "PUT" | "PATCH" as method:
                body = request.json() if method == "PUT" else _patched(item, request)
                item = store.update(resource, item, body, status=bool(target.sub))
            case "DELETE" if not target.sub:
                item = store.delete(resource, item, request.json() if request.data else {})
            case _:
                raise NotImplementedError("on an object")
        return ApiAnswer(200, item)

    async def watch(self, request: ApiRequest, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send one line an event, until the asked-for time is over or the version is too old."""
        target = self.target(request.path)
        assert target is not None
        resource, params, now = target.resource, request.params, asyncio.get_running_loop().time
        matches, version = request.matches(), int(params.get("resourceVersion") or 0)

        async def line(kind: str, item: Object) -> None:
            await send(msgspec.json.encode({"type": kind, "object": item}) + b"\n")

        if not version:  # from any version: first what there is
            items, meta = self.store.page(resource, target.namespace, matches, 0, "")
            version = int(meta["resourceVersion"])
            for item in items:
                await line("ADDED", item)
        # As the real server does it: a bookmark a minute and one shortly before the end, but only
        # where there was a write of this resource, selected or not.
        end = now() + int(params.get("timeoutSeconds", 1800))
        marked = params.get("allowWatchBookmarks") == "true"
        mark, moved = min(now() + self.bookmark_seconds, end - 2), False
        while now() < end:
            news = self.store.news
            try:
                steps = self.store.since(version)
            except ApiRefused as refused:
                return await line("ERROR", refused.status)
            for step in steps:
                if event := step.event(resource, target.namespace, matches):
                    await line(*event)
                version, moved = step.version, moved or step.resource == resource
            if now() >= mark:
                if marked and moved:
                    meta = {"resourceVersion": str(version)}
                    await line("BOOKMARK", resource.head | {"metadata": meta})
                mark, moved = min(now() + self.bookmark_seconds, max(end - 2, now() + 1)), False
            try:
                async with asyncio.timeout_at(min(mark, end)):
                    await news.wait()
            except TimeoutError:
                pass
        return None


def _patched(item: Object, request: ApiRequest) -> Object:
    kind, patch = request.headers.get("content-type", ""), request.json()
    if kind not in PATCHES:
        raise NotImplementedError(f"patch format {kind!r}")
    if isinstance(patch, list) != (kind == "application/json-patch+json"):
        raise ApiRefused(400, "BadRequest", "error decoding patch")
    try:
        after: Object = PATCHES[kind](item, patch)
    except DoesNotApply as error:
        message = "the server rejected our request due to an error in our request"
        raise ApiRefused(422, "Invalid", message) from error
    return after


async def converse(
    api: Api,
    intercept: Callable[[ApiRequest], Awaitable[ApiAnswer | ApiRequest]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Answer one connection's requests, one after another, until it closes; ``intercept`` may
    change or answer each.
    """

    async def send(*parts: bytes) -> None:
        writer.writelines(parts)
        await writer.drain()

    async def chunk(data: bytes) -> None:
        await send(b"%x\r\n" % len(data), data, b"\r\n")

    while request := await _read(reader):
        answer = await intercept(request)
        if isinstance(answer, ApiRequest):
            request = answer
            watches = request.method == "GET" and request.params.get("watch") in {"true", "1"}
            # What a list of the same path is refused for, a watch is, too.
            first = request.params | {"limit": "1"} if watches else request.params
            answer = api.answer(replace(request, params=first))
            if watches and answer.code == 200:
                await send(_head(200, "application/json", ("Transfer-Encoding", "chunked")))
                await api.watch(request, chunk)
                await chunk(b"")
                continue
        text = isinstance(answer.body, str)
        data = answer.body.encode() if text else msgspec.json.encode(answer.body)
        kind, size = "text/plain" if text else "application/json", str(len(data))
        await send(_head(answer.code, kind, ("Content-Length", size), *answer.headers), data)


async def _read(reader: asyncio.StreamReader) -> ApiRequest | None:
    """The next request of a connection, None when the client has closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    url = urlsplit(target)
    params = dict(parse_qsl(url.query, keep_blank_values=True))
    data = await reader.readexactly(int(headers.get("content-length", 0)))
    return ApiRequest(method, url.path, params, headers, data)


def _head(code: int, kind: str, *more: tuple[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {code} {HTTPStatus(code).phrase}", f"Content-Type: {kind}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in more), "", ""]).encode()
