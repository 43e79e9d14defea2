"""How many requests a client has under way, and that it sends nothing in a pause that the server
has asked for.
"""

from __future__ import annotations

import ssl
from collections import Counter

import anyio
import pytest
from anyio.abc import SocketStream
from kube_world import Item, config_map
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, KubeError
from preflight_kube.clock import Clock
from preflight_testing.apidouble import ApiAnswer, ApiDouble, ApiRequest
from preflight_testing.waiting import until
from test_http1 import ANSWER, served

pytestmark = pytest.mark.anyio

PATH = "/api/v1/namespaces/default/configmaps"


@pytest.mark.parametrize("code", [429, 503])
async def test_neither_reads_nor_writes_are_sent_before_the_pause_is_over_that_the_server_asked_for(
    code: int,
) -> None:
    now = [0.0]
    seen: Counter[str] = Counter()

    def turned_away(request: ApiRequest) -> ApiAnswer | None:
        seen[request.method] += 1
        if seen.total() > 1:
            return None
        return ApiAnswer(code, {"kind": "Status", "code": code}, (("Retry-After", "0.2"),))

    async with (
        ApiDouble() as double,
        Client(
            Connection(double.url, ssl.create_default_context()),
            agent="tests",
            clock=Clock(lambda: now[0]),
        ) as client,
    ):
        double.create("configmaps", {"metadata": {"name": "one", "namespace": "default"}})
        double.fault = turned_away
        with pytest.raises(KubeError):
            await client.create(PATH, config_map("two"))
        async with anyio.create_task_group() as group:
            group.start_soon(client.get, f"{PATH}/one", Item)
            group.start_soon(client.create, PATH, config_map("two"))
            await anyio.sleep(1)  # longer than the pause, by a clock that the client does not go by
            assert seen == {"POST": 1}
            now[0] = 1.0
        assert seen == {"POST": 2, "GET": 1}


@pytest.mark.parametrize("code", [500, 504])
async def test_a_read_that_the_servers_storage_failed_is_sent_again_after_its_pause_and_others_meanwhile(
    code: int,
) -> None:
    """What an API server answers while etcd has no leader, or its own cache is behind (504)."""
    seen: Counter[str] = Counter()

    def failed(request: ApiRequest) -> ApiAnswer | None:
        seen[request.method] += 1
        if request.method != "GET" or seen["GET"] > 1:
            return None
        return ApiAnswer(code, {"kind": "Status", "code": code}, (("Retry-After", "1"),))

    async with (
        ApiDouble() as double,
        Client(Connection(double.url, ssl.create_default_context()), agent="tests") as client,
    ):
        double.create("configmaps", {"metadata": {"name": "one", "namespace": "default"}})
        double.fault = failed
        async with anyio.create_task_group() as group:
            group.start_soon(client.get, f"{PATH}/one", Item)
            await until(lambda: seen["GET"] == 1, "the read was refused")
            await client.create(PATH, config_map("two"))
            assert seen == {"GET": 1, "POST": 1}
        assert seen == {"GET": 2, "POST": 1}


async def test_no_more_requests_are_under_way_than_the_client_may_have() -> None:
    under_way, most, answered = 0, 0, 0
    let_go = anyio.Event()

    async def serve(stream: SocketStream) -> None:
        nonlocal under_way, most, answered
        async with stream:
            async for _ in stream:
                under_way += 1
                most = max(most, under_way)
                await let_go.wait()
                under_way -= 1
                answered += 1
                await stream.send(ANSWER)

    async with served(serve) as client, anyio.create_task_group() as group:
        clients = client, client.fenced(lambda: True)
        for i in range(100):
            group.start_soon(clients[i % 2].get, f"{PATH}/one", Item)
        await until(lambda: under_way >= 32, "32 requests under way")
        let_go.set()
    assert (most, answered) == (32, 100)
