from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client
from preflight_testing.plugin import ApiFixture, api, real_api_server

__all__ = ["api", "real_api_server"]

sys.path.insert(0, str(Path(__file__).parent))  # what several tests share


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {}


@pytest.fixture
def target(api: ApiFixture) -> Connection:
    """How the test's API server is reached."""
    return connection({"KUBECONFIG": str(api.kubeconfig)})


@pytest.fixture
async def client(target: Connection) -> AsyncIterator[Client]:
    async with Client(target, agent="tests") as made:
        yield made
