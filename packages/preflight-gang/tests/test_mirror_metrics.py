"""What the metrics say of mirrors: one series a collection, 1 while it is behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from preflight_gang.metrics import Metrics
from preflight_kube.client.client import Client, Requests
from preflight_kube.client.decoding import Identity, Unreadable
from preflight_kube.client.watch_lag import Mirrors


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
