"""What the API server lets the gang controller and a tenant write. Needs KUBECONFIG; no image and no node is used.

The controller's rights and policies are installed with no replica, and the test speaks with the controller's own token.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from preflight_e2e.installed import Installed, until

pytestmark = pytest.mark.timeout(240)

OURS = "preflight.nvsentinel.nvidia.com/"
ROSTER, GANG, CHECKED = OURS + "roster", OURS + "gang", OURS + "checked"
LEASE = "preflight-gang"
MANAGED_BY = "app.kubernetes.io/managed-by"
Patch = list[dict[str, Any]]


def at(*keys: str) -> str:
    """A JSON pointer."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)


def annotation(key: str) -> str:
    return at("metadata", "annotations", key)


def label(key: str) -> str:
    return at("metadata", "labels", key)


def add(path: str, value: Any) -> Patch:
    return [{"op": "add", "path": path, "value": value}]


def remove(path: str) -> Patch:
    return [{"op": "remove", "path": path}]


@dataclass
class Actor:
    """Somebody with a token of his own. Each write answers what the API server said against it, or nothing."""

    api: Any
    coordination: Any

    def patch(self, pod: Any, patch: Patch, **options: str) -> str:
        return said(lambda: self.api.patch_namespaced_pod(pod.metadata.name, pod.metadata.namespace, patch, **options))

    def debug(self, pod: Any, container: dict[str, Any]) -> str:
        body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "x", **container}]}}
        name, namespace = pod.metadata.name, pod.metadata.namespace
        return said(lambda: self.api.patch_namespaced_pod_ephemeralcontainers(name, namespace, body))


def said(write: Callable[[], Any]) -> str:
    try:
        write()
    except client.ApiException as error:
        return str(json.loads(error.body or "{}").get("message"))
    return ""


@dataclass
class Place:
    """A release with no replica, one namespace of a tenant, and the two who write there."""

    installed: Installed
    namespace: str
    controller: Actor
    tenant: Actor
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def pod(self, *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Any:
        """A member of a gang as the webhook leaves it, which no scheduler ever looks at."""
        body = {
            "metadata": {
                "name": f"member-{next(self._numbers)}",
                "labels": {"app": "train", CHECKED: "true", GANG: "0123456789abcdef"} if labels is None else labels,
                "annotations": {"team": "vision", GANG: "{}", ROSTER: "", **(annotations or {})},
            },
            "spec": {
                "schedulerName": "nobody",
                "initContainers": [
                    {"name": "fetch", "image": "fetch:1"},
                    {"name": "preflight-dcgm-diag", "image": "preflight-dcgm-diag:1"},
                ],
                "containers": [{"name": "train", "image": "train:1"}],
                "volumes": [{"name": "preflight-state", "emptyDir": {}}, {"name": "data", "emptyDir": {}}],
            },
        }
        return self.installed.api.create_namespaced_pod(self.namespace, body)

    def read(self, pod: Any) -> Any:
        return self.installed.api.read_namespaced_pod(pod.metadata.name, pod.metadata.namespace)

    def configmap(self, name: str, labels: dict[str, str]) -> dict[str, Any]:
        return {"metadata": {"name": f"{name}-{next(self._numbers)}", "labels": labels}, "data": {"peers": ""}}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        pytest.skip("KUBECONFIG is not set: no cluster")
    config.load_kube_config(kubeconfig)  # type: ignore[no-untyped-call]
    made = Installed(Path(kubeconfig))
    try:
        yield prepared(made)
    finally:
        made.remove()


def prepared(made: Installed) -> Place:
    made.release.install(made.gang_values())
    namespace = made.shielded()
    until(lambda: said(lambda: made.api.read_namespaced_service_account("default", namespace)) == "", "default account")
    made.api.create_namespaced_service_account(namespace, {"metadata": {"name": "tenant"}})
    debugger = {"apiGroups": [""], "resources": ["pods/ephemeralcontainers"], "verbs": ["patch"]}
    made.rbac.create_namespaced_role(namespace, {"metadata": {"name": "debugger"}, "rules": [debugger]})
    for kind, role in (("ClusterRole", "admin"), ("Role", "debugger")):
        made.rbac.create_namespaced_role_binding(
            namespace,
            {
                "metadata": {"name": f"tenant-{role}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}],
            },
        )
    place = Place(made, namespace, actor(made, made.name, made.name), actor(made, namespace, "tenant"))
    wait_for_policies(place)
    return place


def actor(made: Installed, namespace: str, account: str) -> Actor:
    spec = {"spec": {"expirationSeconds": 3600}}
    token = made.api.create_namespaced_service_account_token(account, namespace, spec).status.token
    admin = client.Configuration.get_default_copy()
    settings = client.Configuration(host=admin.host, api_key={"authorization": f"Bearer {token}"})
    settings.ssl_ca_cert, settings.verify_ssl = admin.ssl_ca_cert, admin.verify_ssl
    one: Any = client.ApiClient(settings)
    reviews: Any = client.AuthenticationV1Api(one)
    user = reviews.create_self_subject_review({}).status.user_info.username
    assert user == f"system:serviceaccount:{namespace}:{account}", "the admin's own credentials prove nothing"
    return Actor(client.CoreV1Api(one), client.CoordinationV1Api(one))


def wait_for_policies(place: Place) -> None:
    """The API server loads policies and rights a moment after they are stored."""
    pod, foreign = place.pod(), place.configmap("foreign", {})
    create = place.controller.api.create_namespaced_config_map
    attempts = {
        "policy of the controller's pods": lambda: place.controller.patch(pod, add(label("x"), "x"), dry_run="All"),
        "policy of its ConfigMaps": lambda: said(lambda: create(place.namespace, foreign, dry_run="All")),
        "policy of what is reserved": lambda: place.tenant.patch(pod, add(annotation(ROSTER), "x"), dry_run="All"),
    }
    for what, attempt in attempts.items():
        until(lambda attempt=attempt: "ValidatingAdmissionPolicy" in attempt(), what)  # type: ignore[misc]


def test_the_policies_pass_the_api_servers_type_check(place: Place) -> None:
    admission, name = place.installed.admission, place.installed.name
    for suffix in ("controller-pods", "controller-configmaps", "reserved"):

        def checked(policy: str = f"{name}-{suffix}") -> Any:
            return admission.read_validating_admission_policy(policy).status.type_checking

        until(lambda checked=checked: checked() is not None, "type check")  # type: ignore[misc]
        assert checked().expression_warnings is None


# --- the controller


def test_the_controller_tells_a_pod_its_answer(place: Place) -> None:
    pod = place.pod()
    patch: Patch = [
        {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
        {"op": "test", "path": annotation(ROSTER), "value": ""},
        {"op": "replace", "path": annotation(ROSTER), "value": "{}"},
        {"op": "add", "path": annotation(OURS + "node-instance-type"), "value": "p5.48xlarge"},
    ]
    assert place.controller.patch(pod, patch) == ""
    assert place.read(pod).metadata.annotations[ROSTER] == "{}"
    late = place.controller.patch(pod, patch)
    assert late != "", "the second write rests on an answer that is there no more"
    assert "ValidatingAdmissionPolicy" not in late


OF_THE_CONTROLLER = {
    "the workload's image": (add("/spec/containers/0/image", "evil:1"), "spec"),
    "a check's image": (add("/spec/initContainers/1/image", "evil:1"), "spec"),
    "a toleration": (add("/spec/tolerations/-", {"operator": "Exists"}), "spec"),
    "the deadline": (add("/spec/activeDeadlineSeconds", 1), "spec"),
    "a label": (add(label("app"), "other"), "labels"),
    "a label of ours": (remove(label(CHECKED)), "labels"),
    "a new label": (add(label("new"), "x"), "labels"),
    "a foreign annotation": (add(annotation("team"), "other"), "annotation team"),
    "a new foreign annotation": (add(annotation("new"), "x"), "annotation new"),
    "a foreign annotation away": (remove(annotation("team")), "annotation team"),
    "the gang annotation": (add(annotation(GANG), '{"v":1}'), "annotation " + GANG),
    "the gang annotation away": (remove(annotation(GANG)), "annotation " + GANG),
    "all annotations": (remove("/metadata/annotations"), "annotation " + GANG),
    "a finalizer": (add("/metadata/finalizers", ["example.com/hold"]), "finalizers"),
    "an owner": (
        add("/metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]),
        "ownerReferences",
    ),
}


@pytest.mark.parametrize("change", OF_THE_CONTROLLER)
def test_the_controller_changes_nothing_else_of_a_pod(place: Place, change: str) -> None:
    patch, part = OF_THE_CONTROLLER[change]
    pod = place.pod()
    answer = place.controller.patch(pod, patch)
    assert f"Pod {place.namespace}/{pod.metadata.name}: the gang controller may change nothing but" in answer
    assert part in answer.partition("but this request changes ")[2]


def test_the_controller_writes_to_no_pod_that_is_not_stamped(place: Place) -> None:
    pod = place.pod(labels={"app": "web"})
    answer = place.controller.patch(pod, add(annotation(ROSTER), "{}"))
    assert f"Pod {place.namespace}/{pod.metadata.name} carries neither the label {CHECKED} nor {GANG}" in answer


def test_the_controller_keeps_a_gangs_record(place: Place) -> None:
    api, record = place.controller.api, place.configmap("preflight-job", {MANAGED_BY: "preflight-gang"})
    made = api.create_namespaced_config_map(place.namespace, record)
    made.data["peers"] = "a:10.0.0.1"
    api.replace_namespaced_config_map(made.metadata.name, place.namespace, made)
    api.delete_namespaced_config_map(made.metadata.name, place.namespace)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("training-data", {MANAGED_BY: "preflight-gang"}),
        ("preflight-job", {}),
        ("preflight-job", {MANAGED_BY: "Helm"}),
    ],
)
def test_the_controller_creates_no_configmap_but_records(place: Place, name: str, labels: dict[str, str]) -> None:
    body = place.configmap(name, labels)
    answer = said(lambda: place.controller.api.create_namespaced_config_map(place.namespace, body))
    assert "the gang controller may write only ConfigMaps whose name begins with preflight-" in answer


def test_the_controller_creates_no_configmap_whose_name_the_api_server_makes(place: Place) -> None:
    body = {"metadata": {"generateName": "train-", "labels": {MANAGED_BY: "preflight-gang"}}}
    answer = said(lambda: place.controller.api.create_namespaced_config_map(place.namespace, body))
    assert "the gang controller may write only ConfigMaps" in answer


@pytest.mark.parametrize("name", ["training-data", "preflight-notes"])
@pytest.mark.parametrize("write", ["replace", "delete"])
def test_the_controller_takes_over_no_configmap_of_a_tenant(place: Place, name: str, write: str) -> None:
    api, namespace = place.controller.api, place.namespace
    theirs = place.installed.api.create_namespaced_config_map(namespace, place.configmap(name, {"app": "train"}))
    theirs.metadata.labels[MANAGED_BY] = "preflight-gang"
    found = theirs.metadata.name
    answer = said(
        (lambda: api.replace_namespaced_config_map(found, namespace, theirs))
        if write == "replace"
        else (lambda: api.delete_namespaced_config_map(found, namespace))
    )
    assert f"ConfigMap {namespace}/{found}: the gang controller may write only" in answer


def test_the_controller_gives_no_record_away(place: Place) -> None:
    api = place.controller.api
    made = api.create_namespaced_config_map(
        place.namespace, place.configmap("preflight-job", {MANAGED_BY: "preflight-gang"})
    )
    made.metadata.labels = {}
    answer = said(lambda: api.replace_namespaced_config_map(made.metadata.name, place.namespace, made))
    assert "is, and was, preflight-gang" in answer


def test_the_controller_cannot_change_its_own_configuration(place: Place) -> None:
    name = place.installed.name
    found = place.controller.api.read_namespaced_config_map(name, name)
    answer = said(lambda: place.controller.api.replace_namespaced_config_map(name, name, found))
    assert "the gang controller may write only ConfigMaps" in answer


def test_the_controller_holds_one_lease(place: Place) -> None:
    coordination, name = place.controller.coordination, place.installed.name
    coordination.replace_namespaced_lease(LEASE, name, coordination.read_namespaced_lease(LEASE, name))
    other = {"metadata": {"name": "other"}}
    coordination.create_namespaced_lease(name, other)
    assert "forbidden" in said(lambda: coordination.read_namespaced_lease("other", name))
    assert "forbidden" in said(lambda: coordination.create_namespaced_lease(place.namespace, other))


def test_the_controller_replaces_a_lease_that_somebody_deletes(fresh: Installed) -> None:
    prepared(fresh)
    coordination, name = actor(fresh, fresh.name, fresh.name).coordination, fresh.name
    leases: Any = client.CoordinationV1Api()
    leases.delete_namespaced_lease(LEASE, name)
    coordination.create_namespaced_lease(name, {"metadata": {"name": LEASE}})
    coordination.replace_namespaced_lease(LEASE, name, coordination.read_namespaced_lease(LEASE, name))


# --- a tenant who may do in his namespace whatever its admin may

OF_A_TENANT = {
    "the roster": (add(annotation(ROSTER), "{}"), "annotation " + ROSTER),
    "the roster away": (remove(annotation(ROSTER)), "annotation " + ROSTER),
    "the gang annotation": (add(annotation(GANG), '{"v":1}'), "annotation " + GANG),
    "a new reserved annotation": (add(annotation(OURS + "x"), ""), "annotation " + OURS + "x"),
    "all annotations": (remove("/metadata/annotations"), "annotation " + ROSTER),
    "the gang label": (add(label(GANG), "x"), "label " + GANG),
    "the checked label away": (remove(label(CHECKED)), "label " + CHECKED),
    "all labels": (remove("/metadata/labels"), "label " + GANG),
    "a check's image": (add("/spec/initContainers/1/image", "evil:1"), "preflight-dcgm-diag evil:1"),
}


@pytest.mark.parametrize("change", OF_A_TENANT)
def test_a_tenant_changes_nothing_that_is_reserved(place: Place, change: str) -> None:
    patch, part = OF_A_TENANT[change]
    pod = place.pod()
    answer = place.tenant.patch(pod, patch)
    assert f"Pod {place.namespace}/{pod.metadata.name}: " in answer
    assert part in answer
    assert "create the pod anew" in answer


def test_a_tenant_makes_no_member_of_a_pod_that_is_none(place: Place) -> None:
    pod = place.pod(labels={"app": "web"})
    assert "label " + GANG in place.tenant.patch(pod, add(label(GANG), "0123456789abcdef"))


@pytest.mark.parametrize(
    "container",
    [
        {"volumeMounts": [{"name": "preflight-state", "mountPath": "/s"}]},
        {"targetContainerName": "preflight-dcgm-diag"},
    ],
    ids=["mount", "target"],
)
def test_a_tenant_looks_into_no_check(place: Place, container: dict[str, Any]) -> None:
    answer = place.tenant.debug(place.pod(), container)
    assert "ephemeral container debug can neither mount a volume preflight-* nor target a preflight check" in answer


FREE = {
    "his label": add(label("app"), "other"),
    "his annotation": add(annotation("team"), "other"),
    "his image": add("/spec/containers/0/image", "train:2"),
    "his init container's image": add("/spec/initContainers/0/image", "fetch:2"),
    "a toleration": add("/spec/tolerations/-", {"operator": "Exists"}),
}


@pytest.mark.parametrize("change", FREE)
def test_a_tenant_changes_what_is_his(place: Place, change: str) -> None:
    assert place.tenant.patch(place.pod(), FREE[change]) == ""


@pytest.mark.parametrize(
    "container",
    [{"volumeMounts": [{"name": "data", "mountPath": "/data"}]}, {"targetContainerName": "train"}],
    ids=["mount", "target"],
)
def test_a_tenant_debugs_what_is_his(place: Place, container: dict[str, Any]) -> None:
    assert place.tenant.debug(place.pod(), container) == ""


def test_a_finalizer_comes_and_goes(place: Place) -> None:
    pod = place.pod()
    assert place.tenant.patch(pod, add("/metadata/finalizers", ["example.com/hold"])) == ""
    assert place.tenant.patch(pod, remove("/metadata/finalizers")) == ""


def test_a_pod_without_our_labels_is_nobodys_business(place: Place) -> None:
    pod = place.pod(labels={"app": "web"})
    assert place.tenant.patch(pod, add(annotation(OURS + "x"), "")) == ""
    assert place.tenant.patch(pod, add("/spec/initContainers/1/image", "other:1")) == ""


# --- pods that could keep an API server busy


def many(count: int) -> dict[str, str]:
    return {f"a{number}": "" for number in range(count)}


def test_a_pod_with_many_annotations_gets_its_answer_and_keeps_it(place: Place) -> None:
    pod = place.pod(annotations=many(990))
    assert place.controller.patch(pod, add(annotation(ROSTER), "{}")) == ""
    assert "annotation a7;" in place.controller.patch(pod, remove(annotation("a7")))
    assert place.tenant.patch(pod, remove(annotation("a7"))) == ""
    assert "annotation " + ROSTER in place.tenant.patch(pod, add(annotation(ROSTER), ""))


def test_nobody_walks_over_the_annotations_of_a_pod_with_too_many(place: Place) -> None:
    pod = place.pod(annotations=many(20_000))
    assert "has more than 1,000 annotations" in place.controller.patch(pod, add(annotation(ROSTER), "{}"))
    assert "has more than 1,000 labels, annotations" in place.tenant.patch(pod, add(annotation(ROSTER), "{}"))
    assert place.tenant.patch(pod, add("/spec/containers/0/image", "train:2")) == ""
    assert place.tenant.patch(pod, add("/metadata/finalizers", ["example.com/hold"])) == ""
    assert place.tenant.patch(pod, remove("/metadata/finalizers")) == ""


# --- the release


def test_an_upgrade_exempts_somebody_and_the_leader_stays(fresh: Installed) -> None:
    place = prepared(fresh)
    coordination, name, pod = place.controller.coordination, fresh.name, place.pod()
    lease = coordination.read_namespaced_lease(LEASE, name)
    lease.spec = {"holderIdentity": "somebody", "leaseTransitions": 3}
    coordination.replace_namespaced_lease(LEASE, name, lease)
    forged = add(annotation(ROSTER), "{}")
    assert place.tenant.patch(pod, forged) != ""
    values = fresh.gang_values()
    tenant = f"system:serviceaccount:{place.namespace}:tenant"
    values["preflight-gang"]["protection"]["exemptUsers"] = [tenant]
    fresh.release.upgrade(values)
    until(lambda: place.tenant.patch(pod, forged, dry_run="All") == "", "exemption")
    kept = coordination.read_namespaced_lease(LEASE, name).spec
    assert (kept.holder_identity, kept.lease_transitions) == ("somebody", 3)


def test_uninstall_leaves_no_gang_controller_behind(fresh: Installed) -> None:
    place = prepared(fresh)
    place.installed.release.uninstall()
    leases: Any = client.CoordinationV1Api()
    for left in (
        fresh.admission.list_validating_admission_policy,
        fresh.admission.list_validating_admission_policy_binding,
        fresh.rbac.list_cluster_role,
        fresh.rbac.list_cluster_role_binding,
    ):
        assert [o.metadata.name for o in left().items if o.metadata.name.startswith(fresh.name)] == []
    for left in (leases.list_namespaced_lease, fresh.rbac.list_namespaced_role, fresh.api.list_namespaced_service):
        assert left(fresh.name).items == []
    # What only the policies have kept apart is now the tenant's again.
    pod = place.pod()
    until(lambda: place.tenant.patch(pod, add(annotation(ROSTER), "{}"), dry_run="All") == "", "end of the policy")
