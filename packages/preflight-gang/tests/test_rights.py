"""The chart's rights are exactly what a controller uses: one that does all it ever does, on an API
server that writes an audit log.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
from gangs import result_line
from played import Cluster, container, played
from preflight_gang.api.crd import crd, node_health_crd
from preflight_gang.api.sources import BUILT_IN
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client
from preflight_proto import names, policy
from preflight_testing.apiserver import ASSETS, GANG_APIS, ApiServer, assets, version
from preflight_testing.helm import UMBRELLA, Object, render
from preflight_testing.rights import Rights, compared, granted, read
from preflight_testing.waiting import until
from replica import replica

pytestmark = pytest.mark.anyio

HOME = "preflight"
ACCOUNT = f"system:serviceaccount:{HOME}:preflight-gang"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
PATHS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{HOME}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{HOME}/rolebindings",
    "ServiceAccount": f"/api/v1/namespaces/{HOME}/serviceaccounts",
}


def chart() -> list[Object]:
    return render(UMBRELLA, {"preflight-gang": {"enabled": True}}, namespace=HOME)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the chart's accounts and roles, and with every kind that knows sizes."""
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    home = tmp_path_factory.mktemp("audited")
    (home / "policy.json").write_text(json.dumps(POLICY))
    more = [
        f"--audit-policy-file={home}/policy.json",
        f"--audit-log-path={home}/audit.log",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    ]
    gates, groups = GANG_APIS.get(version(folder / "kube-apiserver"), ([], []))
    with ApiServer(
        home, folder, authorization="RBAC", feature_gates=gates, runtime_config=groups, more=more
    ) as server:
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": HOME}})
        for item in chart():
            if item["kind"] in PATHS:
                server.call("POST", PATHS[item["kind"]], item)
        server.define(crd())
        server.define(node_health_crd())
        for group, plural, kind in sorted(foreign()):
            server.call(
                "POST",
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                definition(group, plural, kind),
            )
        yield server


def foreign() -> set[tuple[str, str, str]]:
    """Kinds that know sizes and are not Kubernetes' own."""
    every = {
        (kind.group, kind.resource, kind.kind) for kinds in BUILT_IN.values() for kind in kinds
    }
    return {one for one in every if one[0] not in {"batch", "scheduling.k8s.io"}}


def definition(group: str, plural: str, kind: str) -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    shown = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # Groups under k8s.io want to know who has approved of them.
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [shown],
        },
    }


@pytest.fixture
async def cluster(audited: ApiServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    labels = {names.NAMESPACE_LABEL: names.NAMESPACE_ENABLED}
    audited.call("POST", "/api/v1/namespaces", {"metadata": {"name": "training", "labels": labels}})
    admin = connection({"KUBECONFIG": str(audited.kubeconfig(tmp_path / "admin"))})
    # A pod without checks that may have its GPUs by a claim: the audit looks.
    container = {"name": "train", "image": "x"}
    claims = [{"name": "devices", "resourceClaimName": "devices"}]
    pod = {
        "metadata": {"name": "unchecked"},
        "spec": {"containers": [container], "resourceClaims": claims},
    }
    audited.call("POST", "/api/v1/namespaces/training/pods", pod)
    async with Client(admin, agent="tests") as client, played(client, "training") as cluster:
        yield cluster


async def everything(cluster: Cluster) -> None:
    """All that a controller has to do with gangs and pods."""
    shown = {
        "name": names.VOLUME_PREFIX + "node",
        "downwardAPI": {
            "items": [
                {
                    "path": "topology",
                    "fieldRef": {
                        "fieldPath": f"metadata.annotations['{names.TOPOLOGY_ANNOTATION}']"
                    },
                }
            ]
        },
    }
    # A node is sick.
    await cluster.client.create("/api/v1/nodes", {"metadata": {"name": "node-a"}})
    sick = {"type": "DcgmDiagnosticMemory", "status": "True", "reason": "R", "message": "m"}
    await cluster.client.merge_patch(
        "/api/v1/nodes/node-a/status", {"status": {"conditions": [sick]}}
    )
    for i in range(2):
        await cluster.admit(f"pod-{i}")
        await cluster.address(f"pod-{i}", f"10.0.0.{i + 1}")
    await cluster.answered("sealed", "pod-0", "pod-1", generation=1)
    # A replaced member changes the record, and whom it belongs to.
    await cluster.delete("pod-1")
    await cluster.admit("pod-1")
    await cluster.address("pod-1", "10.0.0.3")
    await cluster.answered("sealed", "pod-0", "pod-1", generation=2)
    # Somebody else's ConfigMap is in the way.
    await cluster.client.create(
        "/api/v1/namespaces/training/configmaps", {"metadata": {"name": "preflight-job-2.labels"}}
    )
    for i in (2, 3):
        await cluster.admit(f"pod-{i}", gang="job-2")
        await cluster.address(f"pod-{i}", f"10.0.0.{i + 1}")
        await cluster.test(f"pod-{i}")
    await cluster.answered("wait", "pod-2", "pod-3")
    # A check has ended.
    ended = container("dcgm-diag", "ended", message=result_line("dcgm-diag", "passed", "OK"))
    await cluster.report("pod-0", ended, container("nccl-allreduce", "waiting"))
    await until(lambda: cluster.events, "the Event")
    # A pod shows its node to a container.
    await cluster.admit(
        "pod-4",
        gang="job-3",
        spec={"volumes": [shown, {"name": names.GANG_VOLUME, "emptyDir": {}}]},
    )
    # A namespace has a configuration of its own.
    config = {
        "apiVersion": f"{policy.GROUP}/{policy.VERSION}",
        "kind": policy.KIND,
        "metadata": {"name": "ours"},
    }
    await cluster.client.create(
        policy.path("training"), {**config, "spec": {"enforcement": "observe"}}
    )
    # A gang by each source.
    for source in BUILT_IN:
        await cluster.admit(
            f"by-{source.lower()}", gang=f"by-{source}", source=source, about="train", size=None
        )


async def test_the_chart_grants_exactly_what_a_controller_uses(
    audited: ApiServer, cluster: Cluster, tmp_path: Path
) -> None:
    path = audited.kubeconfig(tmp_path / "account", audited.token_of(HOME, "preflight-gang"))
    async with replica(connection({"KUBECONFIG": str(path)}), HOME, tmp_path / "one") as one:
        await until(lambda: one.leads, "it leads")
        await everything(cluster)

        allowed = granted(chart())

        def rights() -> list[str]:
            with (audited.home / "audit.log").open() as lines:
                return compared(read(lines), allowed)

        with anyio.move_on_after(60):
            while any("never did" in said for said in rights()):
                await anyio.sleep(0.2)
    assert rights() == []


def line(verb: str, resource: str, *, user: str = ACCOUNT, allowed: bool = True, **ref: str) -> str:
    decision = {"authorization.k8s.io/decision": "allow" if allowed else "forbid"}
    return json.dumps(
        {
            "verb": verb,
            "user": {"username": user},
            "objectRef": {"resource": resource, **ref},
            "annotations": decision,
        }
    )


def test_what_is_too_much_and_what_is_too_little_is_said() -> None:
    log = [
        line("list", "pods"),
        line("patch", "pods", subresource="status", allowed=False),
        line("get", "jobs", apiGroup="batch"),
        '{"verb":"get","user":{"username":"x"},"requestURI":"/healthz"}',
        '{"cut',
    ]
    used = read(log)
    assert used == {
        ACCOUNT: Rights(
            used={("", "pods", "list"), ("batch", "jobs", "get")},
            refused={("", "pods/status", "patch")},
        )
    }
    assert compared(used, {ACCOUNT: {("", "pods", "list"), ("", "secrets", "get")}}) == [
        f"{ACCOUNT}: may get secrets, and never did.",
        f"{ACCOUNT}: tried to patch pods/status, and may not.",
        f"{ACCOUNT}: did get jobs.batch, by a right that is not the chart's.",
    ]
