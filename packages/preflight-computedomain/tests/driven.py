"""A user of a real API server, and a controller that leads in it."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
from claimed import parameters
from preflight_computedomain.api.names import (
    API_VERSION,
    CHANNEL_CLASS,
    CLAIMS,
    DOMAINS,
    DRIVER,
    KIND,
    SLICES,
    TEMPLATES,
    namespaced,
)
from preflight_computedomain.api.types import ComputeDomain
from preflight_computedomain.controller.controller import Controller
from preflight_computedomain.core import slices, template
from preflight_computedomain.metrics import ControllerMetrics
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.runtime.lease import Leadership, lead

Body = dict[str, Any]


async def until(
    asked: Callable[[], Any], fits: Callable[[Any], Any] = bool, seconds: float = 120
) -> Any:
    """The first answer of ``asked``, which may be asynchronous, that ``fits``."""
    with anyio.fail_after(seconds):
        while True:
            answer = asked()
            if isinstance(answer, Awaitable):
                answer = await answer
            if fits(answer):
                return answer
            await anyio.sleep(0.01)


def template_of(uid: str, name: str = "train-a-channel") -> Body:
    """The template of the ComputeDomain ``uid`` in the namespace of whoever makes it."""
    channel = {"resourceClaimTemplate": {"name": name}}
    domain = {"metadata": {"name": "d", "uid": uid}, "spec": {"channel": channel}}
    made = template.body(msgspec.convert(domain, ComputeDomain))
    del made["metadata"]["namespace"]
    return made


@dataclass
class User:
    """Somebody with all rights, in a namespace of his own."""

    client: Client
    namespace: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:10]}")

    async def begin(self) -> None:
        await self.client.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})

    def at(self, collection: str, name: str = "") -> str:
        return namespaced(collection, self.namespace, name)

    async def create(
        self, name: str = "train-a", wants: str = "", mode: str = "", nodes: int = 0
    ) -> Body:
        channel: Body = {"resourceClaimTemplate": {"name": wants or f"{name}-channel"}}
        if mode:
            channel["allocationMode"] = mode
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name},
            "spec": {"numNodes": nodes, "channel": channel},
        }
        return _read(await self.client.create(self.at(DOMAINS), body))

    async def domain(self, name: str = "train-a") -> Body | None:
        return await self.client.get_or_none(self.at(DOMAINS, name), dict)

    async def template(self, name: str = "train-a-channel") -> Body | None:
        return await self.client.get_or_none(self.at(TEMPLATES, name), dict)

    async def make_template(self, body: Body) -> Body:
        return _read(await self.client.create(self.at(TEMPLATES), body))

    async def claim(
        self, name: str, domain: str, node: str, mode: str = "Single", device: str = "channel-0"
    ) -> Body:
        """A ResourceClaim that is allocated on ``node``."""
        opaque = {"driver": DRIVER, "parameters": parameters(domainID=domain, allocationMode=mode)}
        config = {"requests": ["channel"], "opaque": opaque}
        request = {"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [request], "config": [config]}},
        }
        made = _read(await self.client.create(self.at(CLAIMS), body))
        result = {"request": "channel", "driver": DRIVER, "pool": node, "device": device}
        devices = {"results": [result], "config": [{**config, "source": "FromClaim"}]}
        status = {"status": {"allocation": {"devices": devices}}}
        return _read(
            await self.client.merge_patch(
                self.at(CLAIMS, made["metadata"]["name"]) + "/status", status
            )
        )

    async def active(self, name: str, clique: str, claim: str = "") -> None:
        """A ComputeDomain with a claim that is allocated on a node of its own in ``clique``."""
        made, node = await self.create(name), f"node-{uuid.uuid4().hex[:8]}"
        devices = slices.channel(clique, "570.158.1")
        await self.client.create(SLICES, slices.body(node, "a-uid", devices))
        await self.claim(claim or f"claim-{name}", made["metadata"]["uid"], node)

    async def delete(self, collection: str, name: str) -> None:
        await self.client.delete(self.at(collection, name))

    async def patch(self, collection: str, name: str, body: Body) -> Body:
        return _read(await self.client.merge_patch(self.at(collection, name), body))

    async def status(self, name: str = "train-a") -> str:
        found = await self.domain(name)
        return str((found or {}).get("status", {}).get("status", ""))

    async def ready(self, name: str = "train-a") -> Body:
        """The ComputeDomain, once it is Ready."""

        def fits(found: Body | None) -> bool:
            return found is not None and found.get("status", {}).get("status") == "Ready"

        found: Body = await until(lambda: self.domain(name), fits)
        return found

    async def gone(self, collection: str, name: str) -> None:
        path = self.at(collection, name)
        await until(lambda: self.client.get_or_none(path, dict), lambda found: found is None)

    async def events(self, reason: str) -> list[Body]:
        found = await self.client.get(f"/api/v1/namespaces/{self.namespace}/events", dict)
        return [one for one in found["items"] if one["reason"] == reason]

    async def event(self, reason: str) -> Body:
        found: list[Body] = await until(lambda: self.events(reason))
        return found[0]


def _read(answer: bytes) -> Body:
    found: Body = json.loads(answer)
    return found


@asynccontextmanager
async def leads(
    target: Connection,
    *,
    sweep_seconds: float = 600.0,
    namespace: str = "default",
    lease: str = "",
    client: type[Client] = Client,
    only: str = "",
    exclusive: bool = False,
) -> AsyncIterator[Controller]:
    """A controller that leads; ``sweep_seconds``: between two looks for stale templates. ``only``:
    it looks at nothing else than this namespace.
    """
    async with (
        client(target, agent="compute-domain-controller") as made,
        anyio.create_task_group() as group,
    ):
        controller = Controller(
            made, ControllerMetrics(), sweep_seconds=sweep_seconds, exclusive=exclusive
        )
        if only:
            for one in controller.reflectors[:3]:  # nodes' slices are in no namespace
                group_, _, plural = one._path.rpartition("/")
                one._path = f"{group_}/namespaces/{only}/{plural}"
        leading = anyio.Event()

        async def act(leadership: Leadership) -> None:
            leading.set()
            await controller.lead(leadership)

        async def stand() -> None:
            await lead(
                made,
                namespace=namespace,
                name=lease or f"cd-{uuid.uuid4().hex[:8]}",
                identity="one",
                duration=15,
                body=act,
            )

        for one in controller.reflectors:
            group.start_soon(one.run)
        group.start_soon(stand)
        with anyio.fail_after(600):
            await leading.wait()
        yield controller
        group.cancel_scope.cancel()
