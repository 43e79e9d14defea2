from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from preflight_gang.api.crd import node_health_crd
from preflight_gang.controller import controller, node_health
from preflight_gang.core import waiting
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client, Conflict
from preflight_kube.runtime import retry
from preflight_proto import names
from preflight_testing.plugin import ApiFixture, api, real_api_server

if TYPE_CHECKING:
    from leading import Leading
    from played import Cluster

__all__ = ["api", "real_api_server"]

sys.path.insert(0, str(Path(__file__).parent))  # what several tests share
PAUSES = (
    *((waiting, "FIRST"), (waiting, "NEXT"), (retry, "FIRST")),
    *((controller, "OBSTRUCTED"), (node_health, "MIN_INTERVAL")),
)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {}


@pytest.fixture
def target(api: ApiFixture, request: pytest.FixtureRequest) -> Connection:
    """How the test's API server is reached."""
    if api.kind == "real":
        request.getfixturevalue("real_api_server").define(node_health_crd())
    return connection({"KUBECONFIG": str(api.kubeconfig)})


@pytest.fixture
async def client(target: Connection) -> AsyncIterator[Client]:
    async with Client(target, agent="tests") as made:
        yield made


@pytest.fixture
async def cluster(
    client: Client, api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Cluster]:
    """The test's own namespace, opted in, in which the test plays the webhook, the scheduler and
    the kubelets. A controller of this process pauses for a tenth of its seconds.
    """
    from played import opt_in, played

    for module, name in PAUSES:
        monkeypatch.setattr(module, name, getattr(module, name) / 10)
    await opt_in(client, api.namespace, names.NAMESPACE_ENABLED)
    with suppress(Conflict):  # another test's, on the same server
        await client.create(
            "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}
        )
    async with played(client, api.namespace) as cluster:
        yield cluster
    if api.kind == "real":  # it serves the next test, too, whose controller sees all namespaces
        for plural in ("pods", "configmaps"):
            await client.delete(api.path(plural), grace=0)


@pytest.fixture
async def leading(target: Connection, cluster: Cluster) -> AsyncIterator[Leading]:
    """The real controller, leading."""
    from leading import leads

    async with leads(target) as leading:
        yield leading
