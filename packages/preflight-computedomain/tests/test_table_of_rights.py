"""What each account writes, by the API server's OpenAPI: the fields of the table, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from preflight_computedomain.api.names import API_VERSION, DRIVER, KIND
from preflight_computedomain.api.rights import RIGHTS
from preflight_computedomain.api.types import ComputeDomain
from preflight_computedomain.core import slices, template
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.fields import Impersonator, RightCase, example, rows
from preflight_testing.helm import UMBRELLA, Object, render

pytestmark = pytest.mark.timeout(400)
HOME, NAME, NODE = "preflight", "preflight-computedomain", "node-a"
DOMAINS = f"/apis/{API_VERSION}/namespaces/default/computedomains"
DRA = "/apis/resource.k8s.io/v1"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Impersonator]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    gates = {"enabled": True, "featureGates": {"HostManagedIMEX": True}}
    with ApiServer(tmp_path_factory.mktemp("table"), folder, authorization="RBAC") as server:
        found = Impersonator(server, NAME)
        for name in (HOME, "team"):
            found.create("/api/v1/namespaces", {"metadata": {"name": name}})
        found.install(render(UMBRELLA, {NAME: gates}, namespace=HOME))
        server.served(DOMAINS)
        yield found


def of(row: RightCase) -> tuple[str, Object]:
    """Where an object is that the row is for, and the object."""
    match row.right.resource:
        case "computedomains" | "computedomains/status":
            channel = {"resourceClaimTemplate": {"name": "x"}, "allocationMode": "Single"}
            return DOMAINS, {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": "tabled", "labels": {"a": "b"}},
                "spec": {"numNodes": 0, "channel": channel},
            }
        case "resourceclaimtemplates":
            channel = {"resourceClaimTemplate": {"name": f"tabled-{row.verb}"}}
            about = {"name": "d", "uid": "d-1", "namespace": "default"}
            domain = msgspec.convert(
                {"metadata": about, "spec": {"channel": channel}}, ComputeDomain
            )
            return f"{DRA}/namespaces/default/resourceclaimtemplates", template.body(domain)
        case "resourceslices":
            return f"{DRA}/resourceslices", slices.body(
                NODE, "a-uid", slices.channel("0.7", "570.158.1")
            )
    return example(row, "compute-domain-controller")


METADATA = {"metadata.annotations.*", "metadata.labels.*"}
OWNED = {"metadata.finalizers longer", "metadata.ownerReferences longer"}
WRITTEN: dict[str, tuple[set[str], set[str]]] = {
    "controller-computedomains-update": (set(), METADATA | OWNED | {"metadata.labels.a left out"}),
    "controller-computedomains-status-update": ({"status.status"}, set()),
    "controller-resourceclaimtemplates-update": (
        {"metadata.finalizers shorter"},
        METADATA | OWNED,
    ),
    "controller-resourceclaimtemplates-create": (
        set(),
        METADATA | OWNED | {"spec.spec.devices.config shorter"},
    ),
    "controller-events-create": ({"message"}, METADATA | OWNED | {"source.component"}),
    "controller-leases-create": ({"spec.holderIdentity"}, METADATA | OWNED | {"metadata.name"}),
    "controller-leases-update": ({"spec.holderIdentity"}, METADATA | OWNED),
    "kubelet-plugin-resourceslices-create": (
        {"metadata.ownerReferences longer", "spec.pool.generation", "spec.devices shorter"},
        METADATA
        | {"metadata.finalizers longer", "metadata.name", "spec.pool.name", "spec.driver"}
        | {"spec.nodeName", "spec.devices[0].name"},
    ),
    "kubelet-plugin-resourceslices-update": (
        {*METADATA, "spec.pool.generation", "spec.devices shorter"},
        {"metadata.finalizers longer"},
    ),
}
"""By row: some fields of which it must be known that they are accepted, or refused."""
WORDS = {"name": NAME, "namespace": HOME}


@pytest.mark.parametrize("row", [*rows(RIGHTS, WORDS)], ids=str)
def test_what_an_account_writes_is_what_the_table_says(
    cluster: Impersonator, row: RightCase
) -> None:
    path, body = of(row)
    user = f"system:serviceaccount:{HOME}:{NAME}-{row.component}"
    node = NODE if row.component == "kubelet-plugin" else ""
    tried = cluster.tries(row, path, body, user, node=node)
    accepted, refused = WRITTEN[str(row)]
    assert tried.accepted >= accepted
    assert tried.refused >= refused


def test_a_computedomain_without_a_spec_gets_its_finalizer(cluster: Impersonator) -> None:
    body: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "bare"}}
    cluster.create(DOMAINS, body)
    change = [{"op": "add", "path": "/metadata/finalizers", "value": [f"{DRIVER}/other"]}]
    user = f"system:serviceaccount:{HOME}:{NAME}-controller"
    cluster.until_refused(
        "finalizers", lambda: cluster.ask("PATCH", f"{DOMAINS}/bare", change, user=user)
    )
    change[0]["value"] = ["resource.nvidia.com/computeDomain"]
    assert cluster.ask("PATCH", f"{DOMAINS}/bare", change, user=user).status == 200
