from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from leading import Leading, leads
from played import Cluster, played
from preflight_e2e.plugin import Api
from preflight_gang.kube.client import Client
from preflight_gang.kube.connection import Connection


@pytest.fixture
async def cluster(client: Client, api: Api) -> AsyncIterator[Cluster]:
    """The test's own namespace, played by the test."""
    async with played(client, api.namespace) as cluster:
        yield cluster
    if api.kind == "real":  # which serves the next test, too, and its controller sees all namespaces
        for plural in ("pods", "configmaps"):
            await client.delete(api.path(plural), {"gracePeriodSeconds": 0})


@pytest.fixture
async def leading(target: Connection, cluster: Cluster) -> AsyncIterator[Leading]:
    async with leads(target) as leading:
        yield leading
