"""What each account writes, by the API server's OpenAPI: the fields of the table, and no other; and
what the chart's policies refuse beyond that.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from driven import template_of
from preflight_computedomain.api.names import (
    API_VERSION,
    DRIVER,
    GRANTED,
    KIND,
    LABEL,
    slice_name,
)
from preflight_computedomain.api.rights import RIGHTS
from preflight_computedomain.core import slices
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.fields import Impersonator, RightCase, example, rows
from preflight_testing.helm import UMBRELLA, Object, render

pytestmark = pytest.mark.timeout(400)
HOME, NAME, NODE = "preflight", "preflight-computedomain", "node-a"
DOMAINS = f"/apis/{API_VERSION}/namespaces/default/computedomains"
DRA = "/apis/resource.k8s.io/v1"
SLICES, TEMPLATES = f"{DRA}/resourceslices", f"{DRA}/namespaces/team/resourceclaimtemplates"
CONTROLLER = f"system:serviceaccount:{HOME}:{NAME}-controller"
PLUGIN = f"system:serviceaccount:{HOME}:{NAME}-kubelet-plugin"
[CHANNEL] = slices.channel("00010203-0405-0607-0809-0a0b0c0d0e0f.7", "570.158.1")


def chart(**values: Any) -> list[Object]:
    values = {"enabled": True, "featureGates": {"HostManagedIMEX": True}, **values}
    return render(UMBRELLA, {NAME: values}, namespace=HOME)


def domain(name: str, mode: str = "Single") -> Object:
    channel = {"resourceClaimTemplate": {"name": "x"}, "allocationMode": mode}
    about = {"name": name, "labels": {"a": "b"}}
    spec = {"numNodes": 0, "channel": channel}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": about, "spec": spec}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Impersonator]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path_factory.mktemp("table"), folder, authorization="RBAC") as server:
        found = Impersonator(server, NAME)
        for name in (HOME, "team"):
            found.create("/api/v1/namespaces", {"metadata": {"name": name}})
        found.install(chart())
        server.served(DOMAINS)
        yield found


def of(row: RightCase) -> tuple[str, Object]:
    """Where an object is that the row is for, and the object."""
    match row.right.resource:
        case "computedomains" | "computedomains/status":
            return DOMAINS, domain("tabled")
        case "resourceclaimtemplates":
            path = f"{DRA}/namespaces/default/resourceclaimtemplates"
            return path, template_of("d-1", f"tabled-{row.verb}")
        case "resourceslices":
            return SLICES, slices.body(NODE, "a-uid", slices.channel("0.7", "570.158.1"))
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
    plugin = row.component == "kubelet-plugin"
    user, node = (PLUGIN, NODE) if plugin else (CONTROLLER, "")
    tried = cluster.tries(row, path, body, user, node=node)
    accepted, refused = WRITTEN[str(row)]
    assert tried.accepted >= accepted
    assert tried.refused >= refused


def test_a_computedomain_without_a_spec_gets_its_finalizer(cluster: Impersonator) -> None:
    body: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "bare"}}
    cluster.create(DOMAINS, body)
    change = [{"op": "add", "path": "/metadata/finalizers", "value": [f"{DRIVER}/other"]}]
    cluster.until_refused(
        "finalizers", lambda: cluster.ask("PATCH", f"{DOMAINS}/bare", change, user=CONTROLLER)
    )
    change[0]["value"] = ["resource.nvidia.com/computeDomain"]
    assert cluster.ask("PATCH", f"{DOMAINS}/bare", change, user=CONTROLLER).status == 200


def test_what_a_policy_refuses_is_in_the_audit_log() -> None:
    bindings = [o for o in chart() if o["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert bindings
    assert all("Audit" in o["spec"]["validationActions"] for o in bindings)


def configuration(driver: str, kind: str) -> list[Object]:
    parameters = {"apiVersion": API_VERSION, "kind": kind}
    return [{"requests": ["gpu"], "opaque": {"driver": driver, "parameters": parameters}}]


@pytest.mark.parametrize(
    "configured",
    [
        pytest.param([], id="without a configuration"),
        pytest.param(configuration("gpu.nvidia.com", "GpuConfig"), id="of GPUs"),
        pytest.param(
            configuration("gpu.nvidia.com", "ComputeDomainChannelConfig"), id="of another driver"
        ),
        pytest.param(configuration(DRIVER, "ComputeDomainDaemonConfig"), id="of daemons"),
    ],
)
def test_the_controllers_account_leaves_foreign_templates_alone(
    cluster: Impersonator, configured: list[Object]
) -> None:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    spec = {"spec": {"devices": {"requests": requests, "config": configured}}}
    name = f"foreign-{uuid.uuid4().hex[:8]}"
    path, dry = f"{TEMPLATES}/{name}", "?dryRun=All"
    cluster.create(TEMPLATES, {"metadata": {"name": name}, "spec": spec})
    cluster.until_refused("templates", lambda: cluster.ask("DELETE", path + dry, user=CONTROLLER))

    def refused(method: str, where: str, body: Object | None = None) -> None:
        answer = cluster.ask(method, where + dry, body, user=CONTROLLER)
        assert "its configuration is a ComputeDomainChannelConfig" in answer.words

    ours, nobodys = ({"metadata": {"labels": {LABEL: one}}} for one in ("d-1", None))
    refused("DELETE", path)
    refused("PATCH", path, ours)
    # Nor is it the controller's with a label that somebody else gave it.
    assert cluster.ask("PATCH", path, ours).status == 200
    refused("DELETE", path)
    refused("PATCH", path, nobodys)
    for labels in ({}, ours["metadata"]):
        refused("POST", TEMPLATES, {"metadata": {"name": "another", **labels}, "spec": spec})


HOSTNAME = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
BY_SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [HOSTNAME]}]}
BY_DEVICE = {"perDeviceNodeSelection": True, "devices": [{**CHANNEL, "nodeName": NODE}]}
COUNTERS = [{"name": "all", "counters": {"channels": {"value": "1"}}}]
ANOTHER_POOL = {"name": "node-b", "generation": 999, "resourceSliceCount": 1}
ALONE = "the device channel-0 alone or none"


def wrong(
    case: str, change: Object, why: str, *, name: str = slice_name(NODE), token: str = NODE
) -> Any:
    return pytest.param(change, why, name, token, id=case)


@pytest.mark.parametrize(
    ("change", "why", "name", "token"),
    [
        wrong("another node", {"nodeName": "node-b"}, "the token's own node"),
        wrong("all nodes", {"nodeName": None, "allNodes": True}, "and no other selection"),
        wrong("by selector", {"nodeName": None, "nodeSelector": BY_SELECTOR}, "and no other sel"),
        wrong("by device", {"nodeName": None, **BY_DEVICE}, "and no other selection"),
        wrong("a token of no node", {}, "the token's own node", token=""),
        wrong("another driver", {"driver": "gpu.example.com"}, f"its driver is {DRIVER}"),
        wrong("another pool", {"pool": ANOTHER_POOL}, "its pool is of the token's own node"),
        wrong("counters", {"sharedCounters": COUNTERS, "devices": None}, f"{ALONE}, and no shared"),
        wrong("another device", {"devices": [{**CHANNEL, "name": "channel-1"}]}, ALONE),
        wrong("two devices", {"devices": [CHANNEL, {"name": "channel-1"}]}, ALONE),
        wrong("another name", {}, f"the token's own node, and -{DRIVER}", name=f"{NODE}-more"),
    ],
)
def test_the_plugins_account_writes_the_slice_of_its_own_node_alone(
    cluster: Impersonator, change: Object, why: str, name: str, token: str
) -> None:
    body = slices.body(NODE, "a-uid", [CHANNEL])
    body["metadata"]["name"] = name
    body["spec"] |= change
    where = f"{SLICES}?dryRun=All"
    cluster.until_refused(
        "slices", lambda: cluster.ask("POST", where, body, user=PLUGIN, node=token)
    )
    assert why in cluster.ask("POST", where, body, user=PLUGIN, node=token).words


def test_the_plugins_account_neither_changes_nor_deletes_the_slice_of_another_node(
    cluster: Impersonator,
) -> None:
    there = cluster.create(SLICES, slices.body("node-b", "a-uid", [CHANNEL]))
    path = f"{SLICES}/{there['metadata']['name']}"
    there["spec"]["devices"] = []

    def tried(method: str, body: Object | None = None) -> Any:
        return cluster.ask(method, f"{path}?dryRun=All", body, user=PLUGIN, node=NODE)

    cluster.until_refused("slices", lambda: tried("DELETE"))
    for answer in (tried("DELETE"), tried("PUT", there)):
        assert "the token's own node, and no other selection" in answer.words


def test_a_node_with_the_longest_name_has_its_slice_and_the_controllers_account_none(
    cluster: Impersonator,
) -> None:
    node = "node" + "-n" * 124 + "x"
    body, where = slices.body(node, "a-uid", [CHANNEL]), f"{SLICES}?dryRun=All"
    assert len(node) == 253
    assert cluster.ask("POST", where, body, user=PLUGIN, node=node).status == 201
    assert "cannot create resource" in cluster.ask("POST", where, body, user=CONTROLLER).words


def test_mode_all_is_warned_of_when_it_is_applied(cluster: Impersonator) -> None:
    token = ("Authorization", f"Bearer {cluster.server.token}")
    headers = [token, ("Content-Type", "application/json")]

    def warned() -> bool:
        body = json.dumps(domain("warned", "All")).encode()
        answer, _ = cluster.server.exchange("POST", f"{DOMAINS}?dryRun=All", body, headers)
        return "set Single" in str(answer.headers.get("Warning"))

    cluster.until(lambda _: warned(), lambda: cluster.ask("GET", DOMAINS))


def in_force(cluster: Impersonator, objects: list[Object], name: str, namespace: str) -> str:
    """Where ComputeDomains of ``namespace`` are, for which alone the policy ``name`` holds."""
    cluster.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    for item in objects:
        if item["metadata"]["name"] == name:
            if item["kind"] == "ValidatingAdmissionPolicy":
                here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
                item["spec"]["matchConstraints"]["namespaceSelector"] = here
            cluster.install([item])
    return f"/apis/{API_VERSION}/namespaces/{namespace}/computedomains"


def test_mode_all_is_denied_where_the_values_say_so(cluster: Impersonator) -> None:
    values: Object = {"fullnameOverride": "strict", "admission": {"allocationMode": "Deny"}}
    path = in_force(cluster, chart(**values), "strict-allocation-mode", "strict")
    path += "?dryRun=All"
    body = domain("all", "All")
    cluster.until_refused("strict-allocation-mode", lambda: cluster.ask("POST", path, body))
    assert "set Single" in cluster.ask("POST", path, body).words
    assert cluster.ask("POST", path, domain("single")).status == 201


def test_nobody_but_the_controller_says_which_cliques_a_computedomain_has(
    cluster: Impersonator,
) -> None:
    path = in_force(cluster, chart(exclusiveCliques=True), f"{NAME}-cliques", "exclusive")
    cluster.create(path, domain("train"))

    def patched(key: str, value: str | None, user: str = "", dry: str = "") -> Any:
        body = {"metadata": {"annotations": {key: value}}}
        media = "application/merge-patch+json"
        return cluster.ask("PATCH", f"{path}/train{dry}", body, user=user, media=media)

    cluster.until_refused("cliques", lambda: patched(GRANTED, "a.1", dry="?dryRun=All"))
    assert "the controller alone writes it" in patched(GRANTED, "a.1").words
    assert patched(GRANTED, "a.1", CONTROLLER).status == 200
    assert patched("other", "x").status == 200
    assert patched(GRANTED, None).policy == "cliques"
