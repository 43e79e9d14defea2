"""What the accounts' policies leave of an object: on a real API server with the chart's roles and
policies, every field that its OpenAPI knows is tried.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.rights import RIGHTS
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.fields import (
    ADMISSION,
    OURS,
    RBAC,
    Answer,
    Impersonator,
    RightCase,
    example,
    rows,
)
from preflight_testing.helm import UMBRELLA, Object, render

pytestmark = pytest.mark.timeout(400)
HOME, NAME = "preflight", "preflight-gpu-scheduler"
PODS = "/api/v1/namespaces/team/pods"
EXEMPT = "restorer"
VALUES: Object = {
    NAME: {
        "enabled": True,
        "kubeScheduler": {"image": "x"},
        "protection": {"exemptUsers": [EXEMPT]},
    }
}


def account(part: str) -> str:
    return f"system:serviceaccount:{HOME}:{NAME}-{part}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Impersonator]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    home = tmp_path_factory.mktemp("policies")
    with ApiServer(home, folder, authorization="RBAC") as server:
        found = Impersonator(server, NAME, EXEMPT)
        for name in (HOME, "team", names.LOCK_NAMESPACE):
            found.create("/api/v1/namespaces", {"metadata": {"name": name}})
        found.install(render(UMBRELLA, VALUES, namespace=HOME))
        server.served(names.STATUSES)
        yield found


def pod(name: str, **annotations: str) -> Object:
    said = annotations or {names.CLAIM_ANNOTATION: "two", "other": "kept"}
    gates = [{"name": "example.com/theirs"}, {"name": names.GATE}]
    return {
        "metadata": {"name": name, "annotations": said, "labels": {"app": "train"}},
        "spec": {
            "containers": [{"name": "c", "image": "x"}],
            "initContainers": [{"name": "i", "image": "x"}],
            "schedulingGates": gates,
            "activeDeadlineSeconds": 1000,
            "terminationGracePeriodSeconds": 30,
        },
    }


def without(whole: Mapping[str, Any], *left: str) -> Object:
    return {key: value for key, value in whole.items() if key not in left}


def metadata(whole: Object) -> Object:
    return without(whole["metadata"], *OURS)


CLAIMS = f"/apis/{names.API_VERSION}/namespaces/team/gpuclaims"


def node(name: str) -> Object:
    amounts = {"cpu": "4", "pods": "10", "memory": "1.5Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": "a"}, "annotations": {"other": "kept"}},
        "status": {
            "capacity": {**amounts, names.COUNT_RESOURCE: "2"},
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [{"names": ["a:1"], "sizeBytes": 1}],
            "nodeInfo": {"kubeletVersion": "v1"},
        },
    }


def of(row: RightCase) -> tuple[str, Object]:
    """Where an object is that the row is for, and the object."""
    ours = {"apiVersion": names.API_VERSION}
    match row.right.resource:
        case "pods":
            return PODS, {"apiVersion": "v1", "kind": "Pod", **pod("tabled")}
        case "nodes/status":
            return "/api/v1/nodes", node("tabled")
        case "leases" if not row.right.names:
            path, body = example(row)
            about = {"labels": {names.MANAGED_LABEL: "true"}}
            about["annotations"] = {names.ID_ANNOTATION: "0"}
            return path, body | {"metadata": {"name": f"gpu-n-{row.verb}", **about}}
        case "gpuclaims/status":
            claim = {"kind": "GpuClaim", "metadata": {"name": "tabled"}, "spec": {}, "status": {}}
            return CLAIMS, ours | claim
        case "gpunodestatuses" | "gpunodestatuses/status":
            name = f"tabled-{row.verb}"
            about = {"metadata": {"name": name}, "spec": {"nodeName": name}}
            return names.STATUSES, {**ours, "kind": "GpuNodeStatus", **about}
    return example(row, "gpu-scheduler-controller")


WORDS = {
    "name": NAME,
    "namespace": HOME,
    "lockNamespace": names.LOCK_NAMESPACE,
    "count": names.COUNT_RESOURCE,
    "secret": f"{NAME}-tls",
}
METADATA = {
    "metadata.annotations.*",
    "metadata.labels.*",
    "metadata.finalizers longer",
    "metadata.ownerReferences longer",
}
WRITTEN: dict[str, tuple[set[str], set[str]]] = {
    "controller-pods-update": (
        set(),
        METADATA
        | {
            "metadata.annotations.other",
            "metadata.annotations.other left out",
            "spec.activeDeadlineSeconds",
            "spec.containers[0].image",
            "spec.initContainers[0].image",
            "spec.nodeSelector.*",
            "spec.tolerations longer",
            "spec.schedulingGates shorter",
        },
    ),
    "controller-nodes-status-update": (
        {f"status.capacity.{names.COUNT_RESOURCE}"},
        METADATA
        | {
            "status.addresses[0].address",
            "status.allocatable.cpu",
            "status.capacity.cpu",
            "status.capacity.cpu left out",
            "status.capacity.*",
            "status.conditions longer",
            "status.conditions[0].status",
            "status.daemonEndpoints.kubeletEndpoint.Port",
            "status.images[0].names longer",
            "status.nodeInfo.kubeletVersion",
            "status.phase",
            "status.volumesAttached longer",
        },
    ),
    "controller-gpuclaims-status-update": ({"status.phase"}, set()),
    "agent-gpunodestatuses-create": (set(), METADATA | {"metadata.name", "spec.nodeName"}),
    "agent-gpunodestatuses-status-update": ({"status.total"}, set()),
    "certs-mutatingwebhookconfigurations-update": (
        {"webhooks[0].clientConfig.caBundle"},
        METADATA | {"webhooks[0].failurePolicy", "webhooks shorter"},
    ),
    "certs-secrets-update": (
        {"data.tls.crt", "metadata.labels.*"},
        {"metadata.finalizers longer", "metadata.annotations.*", "immutable"},
    ),
    "certs-secrets-create": ({"data.tls.crt"}, {"metadata.name", "type", "immutable"}),
    "controller-events-create": (
        {"message", "reason"},
        METADATA | {"source.component", "reportingComponent", "related.name"},
    ),
    **{
        f"{part}-leases-{verb}": ({"spec.holderIdentity"}, METADATA)
        for part in ("scheduler", "controller")
        for verb in ("create", "update")
    },
}
"""By row: some fields of which it must be known that they are accepted, or refused."""


@pytest.mark.parametrize(
    "row", [row for row in rows(RIGHTS, WORDS) if row.right.resource != "pods/binding"], ids=str
)
def test_what_an_account_writes_is_what_the_table_says(
    cluster: Impersonator, row: RightCase
) -> None:
    path, body = of(row)
    name = body["metadata"]["name"] if row.component == "agent" else ""
    tried = cluster.tries(row, path, body, account(row.component), node=name)
    accepted, refused = WRITTEN[str(row)]
    assert tried.accepted >= accepted
    assert tried.refused >= refused


def test_of_a_pod_the_controllers_account_changes_three_annotations_and_its_own_gate_alone(
    cluster: Impersonator,
) -> None:
    cluster.create(PODS, pod("p"))
    path, user, policy = f"{PODS}/p?dryRun=All", account("controller"), "controller-pods"

    def patched(**change: Any) -> Answer:
        return cluster.ask("PATCH", path, change, user=user)

    for key in ("claim", "allocated", "nvidia-visible-devices", "cuda-visible-devices", "more"):
        assert patched(metadata={"annotations": {f"gpu.scheduling/{key}": "a:0"}}).policy == policy
    image = [{"name": "c", "image": "evil.example/root:1"}]
    ungated = {"schedulingGates": [{"$patch": "delete", "name": names.GATE}]}
    assert patched(spec={**ungated, "containers": image}).policy == policy, "beside the gate"
    for key in ("reserved", "reclaimed", "nudged"):
        ours = {"annotations": {f"gpu.scheduling/{key}": "1"}}
        assert patched(metadata=ours, spec=ungated).status == 200
        assert patched(metadata=ours).status == 200
    everything = patched(spec={"schedulingGates": [{"$patch": "replace"}]})
    assert everything.policy == policy, "a gate of others"


def test_a_pod_with_more_annotations_than_can_be_compared_is_refused_at_once(
    cluster: Impersonator,
) -> None:
    cluster.create(PODS, pod("many", **{f"k{n}": "" for n in range(20_000)}))
    body = {"metadata": {"annotations": {names.NUDGED_ANNOTATION: "1"}}}
    answer = cluster.ask("PATCH", f"{PODS}/many?dryRun=All", body, user=account("controller"))
    assert answer.policy == "controller-pods"
    assert "more than 1,000 annotations" in answer.body["message"]


def test_a_binding_of_the_scheduler_brings_a_pod_its_node_and_its_gpus_alone(
    cluster: Impersonator,
) -> None:
    zone = {"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "rack": "1"}
    cluster.create("/api/v1/nodes", {"metadata": {"name": "zoned", "labels": zone}})
    user, policy = account("scheduler"), "scheduler-bindings"
    ours = {names.PREFIX + key: "zoned:0" for key in ("allocated", *VARIABLES)}
    start = {"metadata": {"annotations": ours}, "target": {"kind": "Node", "name": "zoned"}}
    numbers = iter(range(1000))

    def bound(change: Object) -> Answer | Object:
        """The refusal, or the pod that was bound."""
        name = f"b-{next(numbers)}"
        cluster.create(PODS, {**pod(name), "spec": {"containers": [{"name": "c", "image": "x"}]}})
        whole = copy.deepcopy(change)
        whole["metadata"] |= {"name": name}
        answer = cluster.ask("POST", f"{PODS}/{name}/binding", whole, user=user)
        if answer.status != 201:
            return answer
        found: Object = cluster.ask("GET", f"{PODS}/{name}").body
        for key in ("name", "uid", "creationTimestamp"):
            del found["metadata"][key]
        return {"metadata": metadata(found), "spec": found["spec"]}

    foreign = {"metadata": {"name": "x", "labels": {"app": "x"}}, "target": {"name": "zoned"}}
    cluster.until_refused(
        policy, lambda: cluster.ask("POST", f"{PODS}/x/binding?dryRun=All", foreign, user=user)
    )
    as_it_should = bound(start)
    assert isinstance(as_it_should, dict)
    # The API server's own plug-in has written them into the Binding.
    assert as_it_should["metadata"]["labels"] == {"app": "train", **without(zone, "rack")}
    refused = set()
    for field, values in cluster.fields(PODS).changes("io.k8s.api.core.v1.Binding", start, 4):
        if field in {"target.name", "metadata.name"} or " left out" in field:
            continue
        for value in values:
            answer = bound(value)
            if isinstance(answer, Answer):
                refused |= {field} if answer.policy == policy else set()
            else:
                where = field.startswith("metadata.annotations.gpu.scheduling/")
                assert where or answer == as_it_should, field
    assert refused >= {"metadata.annotations.*", "metadata.labels.*", "metadata.finalizers longer"}


MIRROR = "kubernetes.io/config.mirror"
VARIABLES = ("nvidia-visible-devices", "cuda-visible-devices")


@pytest.mark.parametrize("namespace", ["team", "kube-system", HOME])
def test_a_pod_is_made_and_bound_by_nobody_else_with_gpus_that_it_says_it_has(
    cluster: Impersonator, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"

    def made(user: str, *groups: str, **annotations: str) -> Answer:
        body = pod("forged", **annotations)
        if MIRROR in annotations:
            body["spec"] = {"containers": body["spec"]["containers"], "nodeName": "a"}
        return cluster.ask(
            "POST", f"{path}?dryRun=All", body, user=user, groups=("system:masters", *groups)
        )

    for key in names.FORGEABLE:
        for claim in ({}, {names.CLAIM_ANNOTATION: "two"}):
            cluster.until_refused("pods", lambda: made("alice", **{key: "a:0", **claim}))  # noqa: B023
            assert made("alice", **{MIRROR: "x", key: "a:0"}, **claim).policy == "pods"
        # Said to be allowed by the operator, as for restoring a backup.
        assert made(EXEMPT, **{key: "a:0"}).status == 201
    assert made("alice", **{names.CLAIM_ANNOTATION: "two"}).status == 201
    name = f"plain-{namespace}"
    cluster.create(
        path, {**pod(name, other="x"), "spec": {"containers": [{"name": "c", "image": "x"}]}}
    )
    for key in (names.CLAIM_ANNOTATION, *names.FORGEABLE):
        binding = {
            "metadata": {"name": name, "annotations": {key: "a:0"}},
            "target": {"kind": "Node", "name": "a"},
        }
        answer = cluster.ask(
            "POST",
            f"{path}/{name}/binding?dryRun=All",
            binding,
            user="alice",
            groups=("system:masters",),
        )
        assert answer.policy == "pods", key


def test_a_pod_is_passed_over_as_a_mirror_where_a_kubelet_makes_it_and_nobody_else(
    cluster: Impersonator,
) -> None:
    cluster.create("/api/v1/namespaces", {"metadata": {"name": "mirrors"}})
    guarding = {NAME: {**VALUES[NAME], "guardOthers": True}}
    [made] = [
        o
        for o in render(UMBRELLA, guarding, namespace=HOME)
        if o["kind"] == "MutatingWebhookConfiguration"
    ]
    # Nobody answers here: whoever is asked about is refused.
    for webhook in made["webhooks"]:
        webhook["clientConfig"] = {"url": "https://127.0.0.1:1/"}
        webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": "mirrors"}}
    path = f"{ADMISSION}/mutatingwebhookconfigurations"
    cluster.create(path, {**made, "metadata": {"name": "mirrors"}})

    def tried(user: str, group: str) -> Answer:
        spec = {"containers": [{"name": "c", "image": "x"}], "nodeName": "a"}
        body = {"metadata": {"name": "static", "annotations": {MIRROR: "x"}}, "spec": spec}
        where = "/api/v1/namespaces/mirrors/pods?dryRun=All"
        return cluster.ask("POST", where, body, user=user, groups=("system:masters", group))

    def asked(answer: Answer) -> bool:
        return "failed calling webhook" in answer.body.get("message", "")

    try:
        cluster.until(asked, lambda: tried("alice", "system:authenticated"))
        assert not asked(tried("system:node:a", "system:nodes"))
    finally:
        assert cluster.ask("DELETE", f"{path}/mirrors").status == 200


def test_the_webhooks_account_writes_nothing(cluster: Impersonator) -> None:
    assert (
        cluster.ask("POST", f"{PODS}?dryRun=All", pod("w"), user=account("webhook")).status == 403
    )


def _good(answer: Answer) -> bool:
    return answer.status == 200


def test_the_clusters_own_roles_read_and_write_claims(cluster: Impersonator) -> None:
    made = render(UMBRELLA, VALUES, namespace=HOME)
    ours = [
        o
        for o in made
        if o["kind"] == "ClusterRole" and any("aggregate" in k for k in o["metadata"]["labels"])
    ]
    body = {"kind": "GpuClaim", "metadata": {"name": "c"}, "spec": {}}
    body["apiVersion"] = names.API_VERSION
    for role, writes in (("view", False), ("edit", True), ("admin", True)):
        # What the API server's own role gathers; kube-controller-manager does so.
        [selector] = cluster.ask("GET", f"{RBAC}/clusterroles/{role}").body["aggregationRule"][
            "clusterRoleSelectors"
        ]
        [gathered] = [
            o for o in ours if selector["matchLabels"].items() <= o["metadata"]["labels"].items()
        ]
        group = "rbac.authorization.k8s.io"
        bound = {"apiGroup": group, "kind": "ClusterRole", "name": gathered["metadata"]["name"]}
        user = {"apiGroup": group, "kind": "User", "name": role}
        binding = {"metadata": {"name": f"people-{role}"}, "roleRef": bound, "subjects": [user]}
        cluster.create(f"{RBAC}/clusterrolebindings", binding)
        for path in (CLAIMS, names.STATUSES):
            cluster.until(_good, lambda: cluster.ask("GET", path, user=role))  # noqa: B023
        created = cluster.ask("POST", f"{CLAIMS}?dryRun=All", body, user=role).status
        assert created == (201 if writes else 403)
        assert cluster.ask("PATCH", f"{CLAIMS}/c/status", {}, user=role).status == 403
        status = {**body, "kind": "GpuNodeStatus"}
        assert cluster.ask("POST", names.STATUSES, status, user=role).status == 403


def test_a_pod_with_as_much_as_can_be_compared_is_still_the_controllers_to_write(
    cluster: Impersonator,
) -> None:
    most = {f"example.com/{'k' * 50}-{n}": "v" * 150 for n in range(998)}
    labels = {f"example.com/{'k' * 50}-{n}": "v" for n in range(999)}
    body = pod("full", **{names.CLAIM_ANNOTATION: "two", **most})
    body["metadata"]["labels"] = labels
    body["spec"]["containers"] = [{"name": f"c-{n}", "image": "x" * 200} for n in range(500)]
    cluster.create(PODS, body)
    patch = {"metadata": {"annotations": {names.NUDGED_ANNOTATION: "1"}}}
    path, user = f"{PODS}/full?dryRun=All", account("controller")
    cluster.until(
        lambda answer: answer.status != 403, lambda: cluster.ask("PATCH", path, patch, user=user)
    )
    assert cluster.ask("PATCH", path, patch, user=user).status == 200
    foreign = {"metadata": {"annotations": {"example.com/more": "1"}}}
    assert cluster.ask("PATCH", path, foreign, user=user).policy == "controller-pods"
