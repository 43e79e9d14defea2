"""What the metrics say of mirrors, one series a collection, and of the replica that leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from preflight_gang import service
from preflight_gang.config import Config
from preflight_gang.metrics import Metrics
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, Requests
from preflight_kube.client.decoding import Identity, Unreadable
from preflight_kube.client.watch_lag import Mirrors
from preflight_kube.runtime import manager


def test_the_gauge_is_one_while_a_mirror_is_behind_and_what_cannot_be_read_is_counted() -> None:
    mirrors, metrics = Mirrors(), Metrics()
    metrics.follow(cast(Client, SimpleNamespace(requests=Requests(), mirrors=mirrors)))

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"path": "/api/v1/pods"})

    assert value("preflight_gang_behind") is None
    mirrors.follows("a", "/api/v1/namespaces/n/pods")
    assert (value("preflight_gang_behind"), value("preflight_gang_unreadable_total")) == (0.0, None)
    mirrors.falls_behind("a", "/api/v1/namespaces/n/pods", "refused")
    for _ in range(3):
        mirrors.cannot_read(
            "/api/v1/namespaces/n/pods",
            Unreadable(Identity("evil", "n", "u1"), "nested too deeply"),
        )
    assert (value("preflight_gang_behind"), value("preflight_gang_unreadable_total")) == (1.0, 3.0)


def test_the_gauge_of_the_lead_is_one_while_it_lasts_and_zero_once_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[float | None] = []
    client = cast(Client, SimpleNamespace(requests=Requests(), mirrors=Mirrors()))

    async def played(build: Any, registry: Any) -> None:
        def show() -> None:
            shown.append(registry.get_sample_value("preflight_gang_leader"))

        async def lead(_: object) -> None:
            show()
            scope.cancel()  # as the manager does when the Lease is somebody else's
            await anyio.lowlevel.checkpoint()

        controller = SimpleNamespace(mirror=None, lead=lead)
        monkeypatch.setattr(service, "Controller", lambda *_: controller)
        parts = await build(client)
        show()
        with anyio.CancelScope() as scope:
            await parts.lead(None)
        show()

    def run(build: Any, _: object, *, registry: Any, **__: object) -> int:
        anyio.run(played, build, registry)
        return 0

    monkeypatch.setattr(manager, "run", run)
    service.run(cast(Connection, None), Config(), namespace="n", host="", port=0)
    assert shown == [0, 1, 0]
