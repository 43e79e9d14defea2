"""GPU pods that carry no checks are counted, where checks are wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from leading import Leading, leads, settled
from played import Cluster, played
from played import opt_in as label
from preflight_gang import config
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client
from preflight_proto import names
from preflight_proto.admitted import Admitted, SeenClaim, encode_admitted
from preflight_testing.apidouble import RESOURCES, ApiDouble, Resource, write_kubeconfig
from preflight_testing.plugin import ApiFixture
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio


CHECKS = [{"name": names.container_name("dcgm-diag"), "image": "x"}]


async def gpu_pod(
    cluster: Cluster,
    name: str,
    *,
    gpus: int = 1,
    labels: dict[str, str] | None = None,
    check: bool = False,
    resource: str = "nvidia.com/gpu",
) -> None:
    amount = {resource: str(gpus)} if gpus else {}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "initContainers": CHECKS if check else [],
            "containers": [
                {"name": "train", "image": "x", "resources": {"limits": amount, "requests": amount}}
            ],
        },
    }
    await cluster.client.create(f"/api/v1/namespaces/{cluster.namespace}/pods", body)
    await until(lambda: name in cluster.pods, f"{name} is there")


async def opt_in(cluster: Cluster, value: str = "enabled") -> None:
    await label(cluster.client, cluster.namespace, value)


def unchecked(leading: Leading, cluster: Cluster, reason: str) -> float:
    return leading.counted("preflight_unchecked_pods", namespace=cluster.namespace, reason=reason)


async def test_pods_without_checks_are_counted_by_reason(
    cluster: Cluster, target: Connection
) -> None:
    await opt_in(cluster)
    for name in ("one", "two", "three"):
        await gpu_pod(cluster, name)
    await cluster.report("one", phase="Running")
    await cluster.report("three", phase="Succeeded")
    await gpu_pod(cluster, "without", gpus=0)
    await gpu_pod(cluster, "checked", labels={names.CHECKED_LABEL: names.CHECKED}, check=True)
    await gpu_pod(cluster, "says-so", labels={names.CHECKED_LABEL: names.CHECKED})
    await gpu_pod(cluster, "untestable", labels={names.CHECKED_LABEL: names.NO_CHECK_APPLIES})
    async with leads(target) as leading:
        await until(lambda: leading.counted("preflight_audit_timestamp_seconds"), "it is counted")
        assert unchecked(leading, cluster, "running") == 1
        assert unchecked(leading, cluster, "not-started") == 2, (
            "the one without a mark, and the one that has nothing else"
        )


async def test_a_pod_that_has_gone_is_counted_no_more(
    cluster: Cluster, target: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "LEAST_AUDIT", 0.0)
    await opt_in(cluster)
    await gpu_pod(cluster, "one")
    async with leads(target, config=config.parse("auditInterval: 100ms")) as leading:
        await until(lambda: unchecked(leading, cluster, "not-started") == 1, "it is counted")
        await cluster.delete("one")
        await until(
            lambda: unchecked(leading, cluster, "not-started") == 0, "it is counted no more"
        )


async def test_an_audit_that_is_switched_off_reads_nothing(
    cluster: Cluster, target: Connection
) -> None:
    async with leads(target, config=config.parse("auditInterval: '0'")) as leading:
        await cluster.pair()
        await cluster.answered("sealed", "pod-0", "pod-1")
        await settled(cluster, leading)
        asked = [one.path for one in leading.wire.sent if one.method == "GET"]
        assert not [
            path for path in asked if path.startswith("/api/v1/namespaces/") and "/pods?" in path
        ]
        assert not [path for path in asked if "resource.k8s.io" in path]


# --- dynamic resource allocation


@pytest.fixture
async def dra(cluster: Cluster, api: ApiFixture) -> Callable[[str, Any], Awaitable[None]]:
    """Creates an object of resource.k8s.io; its plural, and its body."""
    if api.kind != "real":
        pytest.skip("the double does not serve resource.k8s.io")

    async def create(plural: str, body: dict[str, Any]) -> None:
        await cluster.client.create(
            f"/apis/resource.k8s.io/v1/namespaces/{cluster.namespace}/{plural}", body
        )

    return create


def devices(kind: str) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": kind}}]}}


async def claiming_pod(
    cluster: Cluster,
    name: str,
    entry: dict[str, Any],
    about: dict[str, Any] | None = None,
    **spec: Any,
) -> None:
    body: dict[str, Any] = {
        "metadata": {"name": name, **(about or {})},
        "spec": {
            "containers": [{"name": "train", "image": "x"}],
            "resourceClaims": [{"name": "a", **entry}],
            **spec,
        },
    }
    await cluster.client.create(f"/api/v1/namespaces/{cluster.namespace}/pods", body)
    await until(lambda: name in cluster.pods, f"{name} is there")


async def test_gpus_by_claims_templates_and_alternatives_are_counted(
    cluster: Cluster, target: Connection, dra: Callable[[str, Any], Awaitable[None]]
) -> None:
    either = [
        {"name": "large", "deviceClassName": "gpu.nvidia.com"},
        {"name": "any", "deviceClassName": "other"},
    ]
    await dra("resourceclaims", {"metadata": {"name": "gpus"}, "spec": devices("gpu.nvidia.com")})
    await dra("resourceclaims", {"metadata": {"name": "nics"}, "spec": devices("nic.example.com")})
    spec = {"devices": {"requests": [{"name": "r", "firstAvailable": either}]}}
    await dra("resourceclaims", {"metadata": {"name": "either"}, "spec": spec})
    await dra(
        "resourceclaimtemplates",
        {"metadata": {"name": "made"}, "spec": {"spec": devices("gpu.nvidia.com")}},
    )
    for name in ("gpus", "nics", "either"):
        await claiming_pod(cluster, name, {"resourceClaimName": name})
    await claiming_pod(cluster, "made", {"resourceClaimTemplateName": "made"})
    async with leads(target) as leading:
        await until(lambda: leading.counted("preflight_audit_timestamp_seconds"), "it is counted")
        assert unchecked(leading, cluster, "not-started") == 3


async def test_a_claim_that_is_made_anew_as_gpus_after_its_pod_was_admitted_is_counted(
    cluster: Cluster,
    target: Connection,
    dra: Callable[[str, Any], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "LEAST_AUDIT", 0.0)
    await dra(
        "resourceclaims", {"metadata": {"name": "swapped"}, "spec": devices("nic.example.com")}
    )
    await claiming_pod(
        cluster,
        "pod",
        {"resourceClaimName": "swapped"},
        schedulingGates=[{"name": "example.com/held"}],
    )
    async with leads(target, config=config.parse("auditInterval: 100ms")) as leading:
        await until(lambda: leading.counted("preflight_audit_timestamp_seconds"), "it is counted")
        assert unchecked(leading, cluster, "not-started") == 0
        await cluster.client.delete(
            f"/apis/resource.k8s.io/v1/namespaces/{cluster.namespace}/resourceclaims/swapped"
        )
        await dra(
            "resourceclaims", {"metadata": {"name": "swapped"}, "spec": devices("gpu.nvidia.com")}
        )
        await until(lambda: unchecked(leading, cluster, "not-started") == 1, "it is counted")


def admitted(uid: str, *, gpu: bool = True) -> dict[str, Any]:
    """The metadata of a pod that was checked for a claim."""
    seen = SeenClaim(kind="ResourceClaim", name="training", uid=uid, gpu=gpu)
    text = encode_admitted(Admitted(v=1, claims={"a": seen}))
    return {"labels": {names.CHECKED_LABEL: "true"}, "annotations": {names.CLAIMS_ANNOTATION: text}}


async def count_differing_claims(cluster: Cluster, target: Connection) -> None:
    """A checked pod whose claim is made anew is counted, and one whose claim stays is not."""
    claims = f"/apis/resource.k8s.io/v1/namespaces/{cluster.namespace}/resourceclaims"

    async def made(name: str) -> str:
        body = {"metadata": {"name": name}, "spec": devices("gpu.nvidia.com")}
        await cluster.client.create(claims, body)
        return str((await cluster.client.get(f"{claims}/{name}", dict))["metadata"]["uid"])

    gate = [{"name": "example.com/held"}]
    for name in ("stays", "goes"):
        spec = {"schedulingGates": gate, "initContainers": CHECKS}
        await claiming_pod(
            cluster, name, {"resourceClaimName": name}, admitted(await made(name)), **spec
        )
    async with leads(target, config=config.parse("auditInterval: 100ms")) as leading:
        rounds = leading.counted("preflight_audit_timestamp_seconds")
        await until(
            lambda: leading.counted("preflight_audit_timestamp_seconds") > rounds, "it is counted"
        )
        assert unchecked(leading, cluster, "claim-differs") == 0
        await cluster.client.delete(f"{claims}/goes")
        await made("goes")
        await until(lambda: unchecked(leading, cluster, "claim-differs") == 1, "it is counted")
        for reason in ("not-started", "running"):
            assert unchecked(leading, cluster, reason) == 0


@pytest.mark.usefixtures("dra")
async def test_a_checked_pod_whose_claim_is_made_anew_is_counted(
    cluster: Cluster, target: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "LEAST_AUDIT", 0.0)
    await count_differing_claims(cluster, target)


DRA = [
    Resource("resource.k8s.io/v1", "deviceclasses", "DeviceClass", namespaced=False),
    Resource("resource.k8s.io/v1", "resourceclaims", "ResourceClaim"),
    Resource("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
]


async def test_a_checked_pod_whose_claim_is_made_anew_is_counted_on_a_double_with_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "LEAST_AUDIT", 0.0)
    async with ApiDouble([*RESOURCES, *DRA]) as double:
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", double.url)
        target = connection({"KUBECONFIG": str(kubeconfig)})
        async with Client(target, agent="tests") as client, played(client, "default") as cluster:
            await opt_in(cluster)
            await count_differing_claims(cluster, target)
            stands_for = {"extendedResourceName": "example.com/gpu"}
            gpus = {"metadata": {"name": "gpu.nvidia.com"}, "spec": stands_for}
            await client.create("/apis/resource.k8s.io/v1/deviceclasses", gpus)
            await gpu_pod(cluster, "extended", resource="example.com/gpu")
            async with leads(target) as leading:
                await until(lambda: unchecked(leading, cluster, "not-started") == 1, "counted, too")
            asked = [
                one.path
                for one in double.requests
                if one.method == "GET" and "resource.k8s.io" in one.path
            ]
            assert not [
                path for path in asked if "/namespaces/" in path and "/default/" not in path
            ]
