"""A real API server with Grove's and the driver's kinds, and a real garbage collector; and one
test's namespace in it.
"""

from __future__ import annotations

import json
import math
import ssl
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from anyio.abc import TaskGroup
from cliques import decoded_set
from grove import Driver, Grove
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client, NotFound
from preflight_kube.runtime.lease import Leadership
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.controller import Controller
from preflight_mnnvl.controller.informers import MnnvlInformers
from preflight_mnnvl.core.mutate_podclique import ClusterView, Review, decide
from preflight_mnnvl.core.support import ClusterFacts, judge
from preflight_mnnvl.metrics import Metrics
from preflight_testing.apidouble.patches import json_patch
from preflight_testing.apiserver import ASSETS, ApiServer, assets, free_port
from preflight_testing.grove_kinds import GROVE, compute_domains

Json = dict[str, Any]
FIXTURES = Path(__file__).parent / "fixtures"
CONTROLLERS = (
    "garbage-collector-controller",
    "resourceclaim-controller",
    "namespace-controller",
    "serviceaccount-token-controller",  # Grove's own operator waits for a token
)


@contextmanager
def api_server(
    home: Path,
    *,
    kinds: list[Json] | None = None,
    more: list[str] | None = None,
    authorization: str = "AlwaysAllow",
    runtime_config: list[str] | None = None,
) -> Iterator[ApiServer]:
    """With all kinds defined, unless told which, and kube-controller-manager beside it."""
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(
        home,
        folder,
        more=more or [],
        authorization=authorization,
        runtime_config=runtime_config or [],
    ) as server:
        for crd in kinds if kinds is not None else [*GROVE, compute_domains()]:
            server.define(crd)
        with _manager(server, folder / "kube-controller-manager"):
            yield server


@contextmanager
def _manager(server: ApiServer, program: Path) -> Iterator[None]:
    kubeconfig = server.kubeconfig(server.home / "manager.kubeconfig")
    command = [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--controllers={','.join(CONTROLLERS)}",
        f"--service-account-private-key-file={server.home}/sa.key",
        "--leader-elect=false",
        f"--secure-port={free_port()}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={server.home}/manager-pki",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]
    with (server.home / "manager.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Space:
    """One namespace, and what is seen of it."""

    def __init__(
        self, server: ApiServer, client: Client, target: Connection, namespace: str, grove: Grove
    ) -> None:
        self.server, self.client, self.target, self.namespace, self.grove = (
            server,
            client,
            target,
            namespace,
            grove,
        )
        self.driver = Driver(client)
        self.version = "v1beta1"

    def domain_path(self, name: str = "") -> str:
        path = (
            f"/apis/resource.nvidia.com/{self.version}/namespaces/{self.namespace}/computedomains"
        )
        return f"{path}/{name}" if name else path

    def claim_path(self, plural: str = "resourceclaimtemplates", name: str = "") -> str:
        path = f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/{plural}"
        return f"{path}/{name}" if name else path

    async def all(self, path: str) -> dict[str, Json]:
        return {
            one["metadata"]["name"]: one
            async for page, _ in self.client.pages(path, dict)
            for one in page
        }

    async def domains(self) -> dict[str, Json]:
        return await self.all(self.domain_path())

    async def names(self) -> list[str]:
        return sorted(await self.domains())

    async def owners(self) -> dict[str, list[tuple[str, str]]]:
        """The owners of each domain: kind and name, and "other uid" for one that does not live
        under this uid.
        """
        living = {
            one["metadata"]["uid"]
            for kind in ("podgangs", "podcliquesets")
            for one in (await self.grove.all(kind)).values()
        }
        found = {}
        for name, one in (await self.domains()).items():
            owners = one["metadata"].get("ownerReferences", [])
            found[name] = [
                (
                    owner["kind"],
                    owner["name"] if owner["uid"] in living else f"{owner['name']} (gone)",
                )
                for owner in owners
            ]
        return found

    async def dry_run(self, plural: str, body: Json) -> Json:
        """What the API server says to a creation that it is not to store: the object, or the Status
        that refuses it.
        """

        def ask() -> Json:
            try:
                found: Json = self.server.call(
                    "POST", f"{self.grove.path(plural)}?dryRun=All", body
                )
            except urllib.error.HTTPError as refused:
                found = json.loads(refused.read())
                refused.close()
            return found

        return await anyio.to_thread.run_sync(ask)

    async def warnings(self, plural: str, body: Json) -> list[str]:
        """What the API server warns of when it is asked for a creation that it is not to store."""

        def ask() -> list[str]:
            url = f"{self.server.server}{self.grove.path(plural)}?dryRun=All"
            headers = {
                "Authorization": f"Bearer {self.server.token}",
                "Content-Type": "application/json",
            }
            request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
            context = ssl.create_default_context(cafile=str(self.server.ca))
            with urllib.request.urlopen(request, context=context) as answer:
                return [
                    value.replace('\\"', '"') for value in answer.headers.get_all("Warning") or []
                ]

        return await anyio.to_thread.run_sync(ask)

    async def events(self, reason: str = "") -> list[Json]:
        found = await self.all(f"/api/v1/namespaces/{self.namespace}/events")
        return [one for one in found.values() if reason in ("", one["reason"])]

    async def told(self, reason: str, times: int = 1) -> None:
        """Wait for so many Events of a reason, or more."""

        async def enough() -> bool:
            return len(await self.events(reason)) >= times

        await self.happens(enough, f"{times} Events {reason}")

    async def announced(self) -> set[str]:
        """The PodGangs that are told that all their domains are their own."""
        key = "grove.io/mnnvl-resources-adopted"
        gangs = await self.grove.all("podgangs")
        return {
            name
            for name, one in gangs.items()
            if one["metadata"].get("annotations", {}).get(key) == "true"
        }

    async def turned(self, podcliques: int) -> None:
        """Grove's turns until so many PodCliques are stored: what a busy machine could not answer
        in time is tried again, as there.
        """

        async def stored() -> bool:
            await self.grove.turn()
            return len(await self.grove.all("podcliques")) == podcliques

        await self.happens(stored, f"{podcliques} PodCliques; refused: {self.grove.refused}", 60)
        assert all("tried again" in said for said in self.grove.refused), self.grove.refused

    async def settled(
        self, found: Callable[[], Awaitable[object]], wanted: object, seconds: float = 120.0
    ) -> None:
        """Wait until it is so; what it is instead is said at the end."""
        now: object = None
        with anyio.move_on_after(seconds):
            while (now := await found()) != wanted:
                await anyio.sleep(0.05)
            return
        raise AssertionError(f"never {wanted!r}; it is {now!r}")

    async def happens(
        self, true: Callable[[], Awaitable[object]], what: str, seconds: float = 120.0
    ) -> None:
        with anyio.move_on_after(seconds):
            while not await true():
                await anyio.sleep(0.05)
            return
        raise AssertionError(f"never happened: {what}")


def admitting(config: Config) -> Callable[[str, Json, Json | None, Json], Awaitable[Json]]:
    """The webhook's decision without a webhook."""
    facts = ClusterFacts(
        domain="v1beta1",
        device_class=True,
        fabric_nodes=8,
    )

    async def admit(operation: str, found: Json, old: Json | None, set_: Json) -> Json:
        review = Review(
            operation,
            "default",
            json.dumps(found).encode(),
            json.dumps(old).encode() if old else None,
        )
        answer = decide(
            review, config, ClusterView(judge(facts, config), decoded_set(set_), True, {})
        )
        assert answer.allowed, answer.message
        stored: Json = json_patch(found, list(answer.patch))
        return stored

    return admit


@asynccontextmanager
async def space_of(
    server: ApiServer,
    tmp_path: Path,
    config: Config,
    labels: Any = "grove",
    *,
    webhook: bool = False,
    played: bool = True,
) -> AsyncIterator[Space]:
    """A namespace of one's own, in which everything is deleted at the end. ``webhook``: one is
    registered, and nothing stands for it. ``played``: Grove is the tests' own.
    """
    namespace = f"t-{uuid.uuid4().hex[:8]}"
    target = connection(
        {"KUBECONFIG": str(server.kubeconfig(tmp_path / f"{namespace}.kubeconfig"))}
    )
    async with Client(target, agent="tests") as client:
        await client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        grove = Grove(client, namespace, labels, None if webhook else admitting(config))
        space = Space(server, client, target, namespace, grove)
        try:
            async with anyio.create_task_group() as group:
                if played:
                    group.start_soon(grove.end)
                yield space
                group.cancel_scope.cancel()
        finally:
            # By their names: an API server deletes a collection of a thousand one after the other.
            for plural in ("podcliquesets", "podcliques", "podgangs", "podcliquescalinggroups"):
                async with anyio.create_task_group() as group:
                    for name in await grove.all(plural):
                        group.start_soon(_delete, client, grove.path(plural, name))
            for plural in ("podcliques", "podcliquescalinggroups") if played else ():
                for name in await grove.all(plural):
                    await client.merge_patch(
                        grove.path(plural, name), {"metadata": {"finalizers": None}}
                    )
            try:
                for name in await space.domains():
                    await client.merge_patch(
                        space.domain_path(name), {"metadata": {"finalizers": None}}
                    )
                    await client.delete(space.domain_path(name))
            except NotFound:
                pass


async def _delete(client: Client, path: str) -> None:
    with suppress(NotFound):
        await client.delete(path)


class Leading:
    """The real controller as a task of the test, leading."""

    def __init__(self, controller: Controller, metrics: Metrics, client: Client) -> None:
        self.controller, self.metrics, self.client = controller, metrics, client

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def writes(self) -> int:
        count = self.client.requests.count
        return count["create"] + count["patch"]


async def followed(group: TaskGroup, informers: MnnvlInformers) -> None:
    """Until all has been read once, as the manager of a replica has it."""
    for reflector in informers.reflectors:
        group.start_soon(reflector.run)
    for reflector in informers.reflectors:
        await reflector.wait_synced()


@asynccontextmanager
async def leading(target: Connection, config: Config, *, epoch: int = 1) -> AsyncIterator[Leading]:
    async with Client(target, agent="preflight-mnnvl") as client:
        metrics = Metrics()
        controller = Controller(client, config, metrics)
        async with anyio.create_task_group() as group:
            await followed(group, controller.cache)
            group.start_soon(controller.lead, Leadership(epoch, math.inf))
            yield Leading(controller, metrics, client)
            group.cancel_scope.cancel()


def fixture(name: str) -> Json:
    found: Json = yaml.safe_load((FIXTURES / f"{name}.yaml").read_text())
    return found
