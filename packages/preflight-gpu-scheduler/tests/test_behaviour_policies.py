"""What the accounts' policies leave of an object: on a real API server with the chart's roles and
policies, every field that its OpenAPI knows is tried.
"""

from __future__ import annotations

import copy
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import httpx
import pytest
from preflight_gpu_scheduler import names
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.helm import UMBRELLA, Object, render

pytestmark = pytest.mark.timeout(400)
HOME, NAME = "preflight", "preflight-gpu-scheduler"
PODS = "/api/v1/namespaces/team/pods"
RBAC, ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{}}/rolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
EXEMPT = "restorer"
VALUES: Object = {
    NAME: {
        "enabled": True,
        "kubeScheduler": {"image": "x"},
        "protection": {"exemptUsers": [EXEMPT]},
    }
}
OURS = {"managedFields", "resourceVersion", "generation"}
"""Fields of metadata that the API server itself keeps, whatever a client sends."""


def account(part: str) -> str:
    return f"system:serviceaccount:{HOME}:{NAME}-{part}"


class Answer(NamedTuple):
    status: int
    body: Any

    @property
    def policy(self) -> str:
        """The policy of ours that refused the request; empty where none did."""
        said = str(self.body.get("message", "")) if self.status >= 400 else ""
        return said.partition(f"ValidatingAdmissionPolicy '{NAME}-")[2].partition("'")[0]


class Fields:
    """Every field of a kind, by the OpenAPI of the API server, each with values to try."""

    TEXTS = ("x", "10.0.0.1", "2026-01-01T00:00:00Z", "Always", "Exists", "example.com/x")

    def __init__(self, document: Object) -> None:
        self._known = document["components"]["schemas"]

    def changes(self, kind: str, now: Object, depth: int = 6) -> Iterator[tuple[str, list[Any]]]:
        """Each path, with what the whole object may be when this field alone is another."""
        yield from self._object(self._known[kind], now, depth)

    def _object(self, schema: Object, now: Object, depth: int) -> Iterator[tuple[str, list[Any]]]:
        for key, each in schema.get("properties", {}).items():
            for path, values in self._value(each, now.get(key), depth - 1):
                whole = f"{key}{path}"
                yield whole, [{**now, key: one} for one in values]
            if key in now and key not in schema.get("required", ()):
                yield f"{key} left out", [{k: v for k, v in now.items() if k != key}]

    def _value(self, schema: Object, now: Any, depth: int) -> Iterator[tuple[str, list[Any]]]:
        schema = self._resolved(schema)
        if depth < 0:
            return
        if schema.get("type") == "array":
            yield from self._array(schema, now or [], depth)
        elif "properties" in schema:
            yield from (
                (f".{path}", values) for path, values in self._object(schema, now or {}, depth)
            )
        elif schema.get("type") == "object":
            present = now or {}
            value = self._samples(schema.get("additionalProperties", {}))
            yield ".*", [{**present, "example.com/more": one} for one in value]
            for key in present:
                yield f".{key} left out", [{k: v for k, v in present.items() if k != key}]
                other = [one for one in [*value, "7"] if one != present[key]]
                yield f".{key}", [{**present, key: one} for one in other]
        else:
            yield "", [one for one in self._samples(schema) if one != now]

    def _array(self, schema: Object, now: list[Any], depth: int) -> Iterator[tuple[str, list[Any]]]:
        item = self._resolved(schema["items"])
        if now:
            yield " shorter", [now[1:]]
        yield " longer", [[*now, one] for one in self._samples(item)]
        if "properties" in item:
            first = now[0] if now else {}
            for path, values in self._object(item, first, depth - 1):
                yield f"[0].{path}", [[one, *now[1:]] for one in values]

    def _resolved(self, schema: Object) -> Object:
        if "allOf" in schema:
            schema = schema | schema["allOf"][0]
        reference = schema.get("$ref", "").rpartition("/")[2]
        return self._known[reference] if reference else schema

    def _samples(self, schema: Object) -> list[Any]:
        schema = self._resolved(schema)
        match schema.get("type"):
            case "string":
                return list(schema.get("enum", self.TEXTS))
            case "integer" | "number":
                return [1, 7]
            case "boolean":
                return [True, False]
            case "array":
                return [[one] for one in self._samples(schema["items"])]
            case "object" if "properties" in schema:
                least = {
                    key: self._samples(each)[0]
                    for key, each in schema["properties"].items()
                    if key in schema.get("required", ())
                }
                more = {"name": "x"} if "name" in schema["properties"] else {}
                return [least, {**least, **more}, {**least, "key": "x", "operator": "Exists"}]
            case "object":
                return [{"example.com/more": one} for one in self.TEXTS]
        return ["x", 1]  # a number or a text


class Cluster:
    def __init__(self, server: ApiServer) -> None:
        self.server = server
        trusted = ssl.create_default_context(cafile=str(server.ca))
        self._http = httpx.Client(base_url=server.server, verify=trusted, timeout=60)
        self.core = Fields(self.ask("GET", "/openapi/v3/api/v1").body)

    def close(self) -> None:
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = "",
        groups: Sequence[str] = (),
        node: str = "",
    ) -> Answer:
        """As ``user`` (the administrator where there is none) with a token of ``node``."""
        patch = "json-patch" if isinstance(body, list) else "strategic-merge-patch"
        headers = [
            ("Authorization", f"Bearer {self.server.token}"),
            (
                "Content-Type",
                f"application/{patch}+json" if method == "PATCH" else "application/json",
            ),
        ]
        if user:
            headers.append(("Impersonate-User", user))
            headers += [("Impersonate-Group", one) for one in ("system:authenticated", *groups)]
        if node:
            headers.append(("Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", node))
        content = None if body is None else json.dumps(body)
        answer = self._http.request(method, path, content=content, headers=headers)
        return Answer(answer.status_code, answer.json())

    def create(self, path: str, body: Object) -> Object:
        answer = self.ask("POST", path, body)
        assert answer.status == 201, answer.body
        found: Object = answer.body
        return found

    def until(self, holds: Callable[[Answer], bool], ask: Callable[[], Answer]) -> None:
        """A policy or a right takes a moment to be in force."""
        end = time.monotonic() + 60
        while not holds(answer := ask()):
            assert time.monotonic() < end, answer
            time.sleep(0.1)

    def until_refused(self, policy: str, ask: Callable[[], Answer]) -> None:
        self.until(lambda answer: answer.policy == policy, ask)

    def sweep(
        self, path: str, kind: str, policy: str, user: str, keeps: Callable[[Object], Any]
    ) -> set[str]:
        """Every field of the object at ``path`` that the administrator can change: those too that
        the account can, where ``keeps`` of the object is not what it was.
        """
        other = [{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]
        self.until_refused(policy, lambda: self.ask("PATCH", path, other, user=user))
        now = self.ask("GET", path.partition("?")[0].removesuffix("/status")).body
        open_, refused = set(), set()
        for field, values in self.core.changes(kind, now):
            for value in values:
                section = field.partition(".")[0].partition("[")[0].partition(" ")[0]
                change = (
                    [{"op": "add", "path": f"/{section}", "value": value[section]}]
                    if section in value
                    else [{"op": "remove", "path": f"/{section}"}]
                )
                free = self.ask("PATCH", path, change)
                if free.status != 200 or keeps(free.body) == keeps(now):
                    continue
                held = self.ask("PATCH", path, change, user=user)
                if held.policy == policy:
                    refused.add(field)
                elif held.status == 200 and keeps(held.body) != keeps(now):
                    open_.add(field)
                else:
                    raise AssertionError(f"{field}: {held}")
                break
        assert open_ == set()
        return refused


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    home = tmp_path_factory.mktemp("policies")
    with ApiServer(home, folder, authorization="RBAC") as server:
        found = Cluster(server)
        try:
            for name in (HOME, "team", names.LOCK_NAMESPACE):
                found.create("/api/v1/namespaces", {"metadata": {"name": name}})
            for o in render(UMBRELLA, VALUES, namespace=HOME):
                if o["kind"] in PATHS:
                    found.create(PATHS[o["kind"]].format(o["metadata"].get("namespace")), o)
            server.served(names.STATUSES)
            yield found
        finally:
            found.close()


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


def test_of_a_pod_the_controllers_account_changes_three_annotations_and_its_own_gate_alone(
    cluster: Cluster,
) -> None:
    cluster.create(PODS, pod("p"))
    path, user, policy = f"{PODS}/p?dryRun=All", account("controller"), "controller-pods"

    def patched(**change: Any) -> Answer:
        return cluster.ask("PATCH", path, change, user=user)

    refused = cluster.sweep(
        path,
        "io.k8s.api.core.v1.Pod",
        policy,
        user,
        lambda found: (metadata(found), found["spec"], found.get("status")),
    )
    assert refused >= {
        "metadata.annotations.*",
        "metadata.annotations.other",
        "metadata.annotations.other left out",
        "metadata.labels.*",
        "metadata.finalizers longer",
        "metadata.ownerReferences longer",
        "spec.activeDeadlineSeconds",
        "spec.containers[0].image",
        "spec.initContainers[0].image",
        "spec.nodeSelector.*",
        "spec.tolerations longer",
        "spec.schedulingGates shorter",
    }
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
    cluster: Cluster,
) -> None:
    cluster.create(PODS, pod("many", **{f"k{n}": "" for n in range(20_000)}))
    body = {"metadata": {"annotations": {names.NUDGED_ANNOTATION: "1"}}}
    answer = cluster.ask("PATCH", f"{PODS}/many?dryRun=All", body, user=account("controller"))
    assert answer.policy == "controller-pods"
    assert "more than 1,000 annotations" in answer.body["message"]


def node(name: str) -> Object:
    amounts = {"cpu": "4", "pods": "10", "memory": "1.5Gi"}
    return {
        "metadata": {"name": name, "labels": {"zone": "a"}, "annotations": {"other": "kept"}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [{"names": ["a:1"], "sizeBytes": 1}],
            "nodeInfo": {"kubeletVersion": "v1"},
        },
    }


def test_of_a_node_the_controllers_account_changes_the_counted_resource_alone(
    cluster: Cluster,
) -> None:
    cluster.create("/api/v1/nodes", node("n"))
    path, user, policy = (
        "/api/v1/nodes/n/status?dryRun=All",
        account("controller"),
        "controller-nodes",
    )

    def patched(**change: Any) -> Answer:
        return cluster.ask("PATCH", path, change, user=user)

    refused = cluster.sweep(
        path,
        "io.k8s.api.core.v1.Node",
        policy,
        user,
        lambda found: (metadata(found), found["spec"], found["status"]),
    )
    assert refused >= {
        "metadata.annotations.*",
        "metadata.labels.*",
        "metadata.finalizers longer",
        "metadata.ownerReferences longer",
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
    }
    assert patched(status={"capacity": {names.COUNT_RESOURCE: "8"}}).status == 200
    assert (
        cluster.ask("PATCH", "/api/v1/nodes/n", {"spec": {"unschedulable": True}}, user=user).status
        == 403
    )


def test_a_binding_of_the_scheduler_brings_a_pod_its_node_and_its_gpus_alone(
    cluster: Cluster,
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
    for field, values in cluster.core.changes("io.k8s.api.core.v1.Binding", start, 4):
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
    cluster: Cluster, namespace: str
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
    cluster: Cluster,
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


def test_an_agent_makes_a_status_of_its_node_and_nothing_beside_it(cluster: Cluster) -> None:
    path = f"{names.STATUSES}?dryRun=All"
    good = {
        "apiVersion": names.API_VERSION,
        "kind": "GpuNodeStatus",
        "metadata": {"name": "mine"},
        "spec": {"nodeName": "mine"},
    }

    def made(spec: Object | None = None, **about: Any) -> Answer:
        body = {
            **good,
            "metadata": {"name": "mine", **about},
            "spec": good["spec"] if spec is None else spec,
        }
        return cluster.ask("POST", path, body, user=account("agent"), node="mine")

    cluster.until_refused("agents", lambda: made(name="other"))
    assert made().status == 201
    owner = {"apiVersion": "v1", "kind": "Node", "name": "mine", "uid": "u"}
    for about in (
        {"labels": {"a": "b"}},
        {"annotations": {"a": "b"}},
        {"finalizers": ["example.com/x"]},
        {"ownerReferences": [owner]},
    ):
        assert made(**about).policy == "agents", about
    assert made(spec={"nodeName": "other"}).policy == "agents"
    cluster.create(names.STATUSES, good)
    body = [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
        {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/x"]},
        {"op": "add", "path": "/spec/nodeName", "value": "other"},
        {"op": "add", "path": "/status", "value": {"total": 0}},
    ]
    written = cluster.ask(
        "PATCH", f"{names.STATUSES}/mine/status", body, user=account("agent"), node="mine"
    )
    assert without(metadata(written.body), "uid", "creationTimestamp") == {"name": "mine"}
    assert (written.body["spec"], written.body["status"]) == ({"nodeName": "mine"}, {"total": 0})


def test_of_a_claim_the_controllers_account_writes_the_status_alone(cluster: Cluster) -> None:
    claims = f"/apis/{names.API_VERSION}/namespaces/team/gpuclaims"
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "GpuClaim",
        "metadata": {"name": "one"},
        "spec": {},
    }
    before = cluster.create(claims, body)
    change = [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
        {"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}},
        {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/x"]},
        {"op": "add", "path": "/spec/gangRef", "value": "gang"},
        {"op": "add", "path": "/status", "value": {"phase": "Bound"}},
    ]
    user = account("controller")
    answer = cluster.ask("PATCH", f"{claims}/one/status", change, user=user)
    assert (metadata(answer.body), answer.body["spec"]) == (metadata(before), before["spec"])
    assert answer.body["status"] == {"phase": "Bound"}
    assert cluster.ask("PATCH", f"{claims}/one", change[:1], user=user).status == 403


def test_the_controllers_account_speaks_and_leads_in_its_own_name_alone(cluster: Cluster) -> None:
    user, spoken = account("controller"), "gpu-scheduler-controller"

    def said(component: str, reporter: str) -> Answer:
        body = {
            "metadata": {"name": "e", "namespace": "team"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "team"},
            "source": {"component": component},
            "reportingComponent": reporter,
        }
        return cluster.ask("POST", "/api/v1/namespaces/team/events?dryRun=All", body, user=user)

    cluster.until_refused("controller-events", lambda: said("kubelet", "kubelet"))
    assert said(spoken, "kubelet").policy == "controller-events"
    assert said("kubelet", spoken).policy == "controller-events"
    assert said(spoken, spoken).status == 201

    def leads(name: str, part: str) -> Answer:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases?dryRun=All"
        return cluster.ask("POST", path, {"metadata": {"name": name}}, user=account(part))

    cluster.until_refused("leaders", lambda: leads("preflight-gang", "controller"))
    assert leads("gpu-scheduler-controller", "controller").status == 201
    assert leads("gpu-scheduler-kube", "scheduler").status == 201
    assert leads("gpu-scheduler-kube", "controller").policy == "leaders"


def test_the_webhooks_account_writes_nothing_and_the_certificates_account_one_bundle(
    cluster: Cluster,
) -> None:
    assert (
        cluster.ask("POST", f"{PODS}?dryRun=All", pod("w"), user=account("webhook")).status == 403
    )
    known = Fields(cluster.ask("GET", f"/openapi/v3{ADMISSION}").body)
    selector = {"matchLabels": {"nobody": "has-this"}}
    entry = {
        "name": "pods.gpu.scheduling",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "namespaceSelector": selector,
        "objectSelector": selector,
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
            }
        ],
        "matchConditions": [{"name": "a", "expression": "true"}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    path = f"{ADMISSION}/mutatingwebhookconfigurations"
    cluster.create(path, {"metadata": {"name": NAME, "labels": {"a": "b"}}, "webhooks": [entry]})
    cluster.core, core = known, cluster.core
    try:
        refused = cluster.sweep(
            f"{path}/{NAME}?dryRun=All",
            "io.k8s.api.admissionregistration.v1.MutatingWebhookConfiguration",
            "certs-configuration",
            account("certs"),
            lambda found: (
                metadata(found),
                [
                    {**one, "clientConfig": without(one["clientConfig"], "caBundle")}
                    for one in found.get("webhooks", ())
                ],
            ),
        )
    finally:
        cluster.core = core
    assert refused >= {"metadata.labels.*", "webhooks[0].failurePolicy", "webhooks shorter"}


def _good(answer: Answer) -> bool:
    return answer.status == 200


def test_the_clusters_own_roles_read_and_write_claims(cluster: Cluster) -> None:
    made = render(UMBRELLA, VALUES, namespace=HOME)
    ours = [
        o
        for o in made
        if o["kind"] == "ClusterRole" and any("aggregate" in k for k in o["metadata"]["labels"])
    ]
    claims = f"/apis/{names.API_VERSION}/namespaces/team/gpuclaims"
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "GpuClaim",
        "metadata": {"name": "c"},
        "spec": {},
    }
    for role, writes in (("view", False), ("edit", True), ("admin", True)):
        # What the API server's own role gathers; kube-controller-manager does so.
        [selector] = cluster.ask("GET", f"{RBAC}/clusterroles/{role}").body["aggregationRule"][
            "clusterRoleSelectors"
        ]
        [gathered] = [
            o for o in ours if selector["matchLabels"].items() <= o["metadata"]["labels"].items()
        ]
        cluster.create(
            f"{RBAC}/clusterrolebindings",
            {
                "metadata": {"name": f"people-{role}"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": gathered["metadata"]["name"],
                },
                "subjects": [
                    {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role}
                ],
            },
        )
        for path in (claims, names.STATUSES):
            cluster.until(_good, lambda: cluster.ask("GET", path, user=role))  # noqa: B023
        created = cluster.ask("POST", f"{claims}?dryRun=All", body, user=role).status
        assert created == (201 if writes else 403)
        assert cluster.ask("PATCH", f"{claims}/c/status", {}, user=role).status == 403
        status = {**body, "kind": "GpuNodeStatus"}
        assert cluster.ask("POST", names.STATUSES, status, user=role).status == 403
