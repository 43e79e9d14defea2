"""GPU pods that carry no checks are counted, where checks are wanted."""

from __future__ import annotations

from typing import Any

import pytest
from kube_world import until
from leading import Leading, leads
from played import Cluster
from preflight_gang import config
from preflight_gang.kube.connection import Connection
from preflight_proto import names

pytestmark = pytest.mark.anyio


async def gpu_pod(cluster: Cluster, name: str, *, gpus: int = 1, labels: dict[str, str] | None = None) -> None:
    amount = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [{"name": "train", "image": "x", "resources": {"limits": amount, "requests": amount}}]},
    }
    await cluster.client.create(f"/api/v1/namespaces/{cluster.namespace}/pods", body)
    await until(lambda: name in cluster.pods, f"{name} is there")


async def opt_in(cluster: Cluster, value: str = "enabled") -> None:
    body = {"metadata": {"labels": {names.NAMESPACE_LABEL: value}}}
    await cluster.client.merge_patch(f"/api/v1/namespaces/{cluster.namespace}", body)


def unchecked(leading: Leading, cluster: Cluster, reason: str) -> float:
    return leading.counted("preflight_unchecked_pods", namespace=cluster.namespace, reason=reason)


async def test_pods_without_checks_are_counted_by_reason(cluster: Cluster, target: Connection) -> None:
    await opt_in(cluster)
    for name in ("one", "two", "three"):
        await gpu_pod(cluster, name)
    await cluster.report("one", phase="Running")
    await cluster.report("three", phase="Succeeded")
    await gpu_pod(cluster, "without", gpus=0)
    await gpu_pod(cluster, "checked", labels={names.CHECKED_LABEL: "true"})
    async with leads(target) as leading:
        await until(lambda: leading.counted("preflight_audit_timestamp_seconds"), "it is counted")
        assert unchecked(leading, cluster, "running") == 1
        assert unchecked(leading, cluster, "not-started") == 1


async def test_where_checks_are_not_wanted_nothing_is_counted(cluster: Cluster, target: Connection) -> None:
    await opt_in(cluster, "disabled")
    await gpu_pod(cluster, "one")
    async with leads(target) as leading:
        await until(lambda: leading.counted("preflight_audit_timestamp_seconds"), "it is counted")
        assert unchecked(leading, cluster, "not-started") == 0
        assert not [one for one in leading.wire.sent if one.path.startswith(f"/api/v1/namespaces/{cluster.namespace}/")]


async def test_a_pod_that_has_gone_is_counted_no_more(
    cluster: Cluster, target: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "LEAST_AUDIT", 0.0)
    await opt_in(cluster)
    await gpu_pod(cluster, "one")
    async with leads(target, config=config.parse("auditInterval: 100ms")) as leading:
        await until(lambda: unchecked(leading, cluster, "not-started") == 1, "it is counted")
        await cluster.delete("one")
        await until(lambda: unchecked(leading, cluster, "not-started") == 0, "it is counted no more")


async def test_an_audit_that_is_switched_off_reads_nothing(cluster: Cluster, target: Connection) -> None:
    async with leads(target, config=config.parse("auditInterval: '0'")) as leading:
        await cluster.pair()
        await cluster.answered("sealed", "pod-0", "pod-1")
        assert not [one for one in leading.wire.sent if one.path.startswith("/api/v1/namespaces?")]
