"""What a replica says of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import anyio
from preflight_kube.client.client import Client
from preflight_kube.runtime.manager import STUCK, Parts, _Replica
from prometheus_client import CollectorRegistry


def test_a_replica_whose_event_loop_is_stuck_is_neither_healthy_nor_ready() -> None:
    async def body() -> None:
        client = cast(Client, SimpleNamespace(mirrors=SimpleNamespace(trouble=lambda _: "")))
        replica = _Replica(client, CollectorRegistry(), None, 0.0)
        replica._parts = Parts()
        assert (replica.unhealthy(), replica.unready()) == ("", "")
        replica._beat -= STUCK + 1
        assert replica.unhealthy().startswith("the event loop has not turned for ")
        assert replica.unready() == replica.unhealthy()

    anyio.run(body)
