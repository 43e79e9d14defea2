"""What the API server lets the gang controller write, with its own token. Needs KUBECONFIG; no
image and no node is used.
"""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.impersonation import (
    CHECKED,
    GANG,
    LEASE,
    MANAGED_BY,
    OURS,
    RECORD,
    ROSTER,
    Patch,
    TenantNamespace,
    add,
    annotation,
    error_of,
    label,
    prepared,
    remove,
)
from preflight_e2e.installed_release import Installed, until

pytestmark = [pytest.mark.timeout(240), pytest.mark.policies]


def test_the_policies_pass_the_api_servers_type_check(place: TenantNamespace) -> None:
    admission, name = place.installed.admission, place.installed.gang
    for suffix in ("controller-pods", "controller-configmaps", "records"):

        def checked(policy: str = f"{name}-{suffix}") -> Any:
            return admission.read_validating_admission_policy(policy).status.type_checking

        until(lambda checked=checked: checked() is not None, "type check")  # type: ignore[misc]
        assert checked().expression_warnings is None


# --- the controller


def test_the_controller_tells_a_pod_its_answer(place: TenantNamespace) -> None:
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
    "a foreign annotation": (add(annotation("team"), "other"), "metadata.annotations team"),
    "a new foreign annotation": (add(annotation("new"), "x"), "metadata.annotations new"),
    "a foreign annotation away": (remove(annotation("team")), "metadata.annotations team"),
    "the gang annotation": (add(annotation(GANG), '{"v":1}'), "metadata.annotations " + GANG),
    "the gang annotation away": (remove(annotation(GANG)), "metadata.annotations " + GANG),
    "all annotations": (remove("/metadata/annotations"), "metadata.annotations " + GANG),
    "a finalizer": (add("/metadata/finalizers", ["example.com/hold"]), "finalizers"),
    "an owner": (
        add(
            "/metadata/ownerReferences",
            [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
        ),
        "ownerReferences",
    ),
}


@pytest.mark.parametrize("change", OF_THE_CONTROLLER)
def test_the_controller_changes_nothing_else_of_a_pod(place: TenantNamespace, change: str) -> None:
    patch, part = OF_THE_CONTROLLER[change]
    pod = place.pod()
    answer = place.controller.patch(pod, patch)
    assert f"pods {place.namespace}/{pod.metadata.name}: system:serviceaccount:" in answer
    assert part in answer.partition("but this request changes ")[2]


def test_the_controller_writes_to_no_pod_that_is_not_stamped(place: TenantNamespace) -> None:
    pod = place.pod(labels={"app": "web"})
    answer = place.controller.patch(pod, add(annotation(ROSTER), "{}"))
    assert f"pods only where it has the label {CHECKED} or {GANG}" in answer


def test_the_controller_keeps_a_gangs_record(place: TenantNamespace) -> None:
    api = place.controller.api
    made = api.create_namespaced_config_map(
        place.namespace, place.configmap("preflight-job", RECORD)
    )
    made.data["peers"] = "a:10.0.0.1"
    api.replace_namespaced_config_map(made.metadata.name, place.namespace, made)
    api.delete_namespaced_config_map(made.metadata.name, place.namespace)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("training-data", RECORD),
        ("preflight-job", {}),
        ("preflight-job", {MANAGED_BY: "Helm"}),
    ],
)
def test_the_controller_creates_no_configmap_but_records(
    place: TenantNamespace, name: str, labels: dict[str, str]
) -> None:
    body = place.configmap(name, labels)
    answer = error_of(
        lambda: place.controller.api.create_namespaced_config_map(place.namespace, body)
    )
    assert "configmaps only where its name begins with preflight-" in answer


def test_the_controller_creates_no_configmap_whose_name_the_api_server_makes(
    place: TenantNamespace,
) -> None:
    body = {"metadata": {"generateName": "train-", "labels": RECORD}}
    answer = error_of(
        lambda: place.controller.api.create_namespaced_config_map(place.namespace, body)
    )
    assert "but this request changes metadata.generateName" in answer


@pytest.mark.parametrize("name", ["training-data", "preflight-notes"])
@pytest.mark.parametrize("write", ["replace", "delete"])
def test_the_controller_takes_over_no_configmap_of_a_tenant(
    place: TenantNamespace, name: str, write: str
) -> None:
    api, namespace = place.controller.api, place.namespace
    theirs = place.installed.api.create_namespaced_config_map(
        namespace, place.configmap(name, {"app": "train"})
    )
    theirs.metadata.labels[MANAGED_BY] = "preflight-gang"
    found = theirs.metadata.name
    answer = error_of(
        (lambda: api.replace_namespaced_config_map(found, namespace, theirs))
        if write == "replace"
        else (lambda: api.delete_namespaced_config_map(found, namespace))
    )
    assert f"configmaps {namespace}/{found}: system:serviceaccount:" in answer


def test_the_controller_gives_no_record_away(place: TenantNamespace) -> None:
    api = place.controller.api
    made = api.create_namespaced_config_map(
        place.namespace, place.configmap("preflight-job", RECORD)
    )
    made.metadata.labels = {}
    answer = error_of(
        lambda: api.replace_namespaced_config_map(made.metadata.name, place.namespace, made)
    )
    assert "is, and was, preflight-gang" in answer


def test_the_controller_cannot_change_its_own_configuration(place: TenantNamespace) -> None:
    name, namespace = place.installed.gang, place.installed.name
    found = place.controller.api.read_namespaced_config_map(name, namespace)
    answer = error_of(
        lambda: place.controller.api.replace_namespaced_config_map(name, namespace, found)
    )
    assert "configmaps only where its name begins with preflight-" in answer


def test_the_controller_holds_one_lease(place: TenantNamespace) -> None:
    coordination, name = place.controller.coordination, place.installed.name
    coordination.replace_namespaced_lease(
        LEASE, name, coordination.read_namespaced_lease(LEASE, name)
    )
    other = {"metadata": {"name": "other"}}
    answer = error_of(lambda: coordination.create_namespaced_lease(name, other))
    assert "leases only where its name is preflight-gang" in answer
    assert "forbidden" in error_of(lambda: coordination.read_namespaced_lease("other", name))
    assert "forbidden" in error_of(
        lambda: coordination.create_namespaced_lease(place.namespace, other)
    )


def test_the_controller_replaces_a_lease_that_somebody_deletes(fresh: Installed) -> None:
    coordination, name = prepared(fresh).controller.coordination, fresh.name
    leases: Any = client.CoordinationV1Api()
    leases.delete_namespaced_lease(LEASE, name)
    coordination.create_namespaced_lease(name, {"metadata": {"name": LEASE}})
    coordination.replace_namespaced_lease(
        LEASE, name, coordination.read_namespaced_lease(LEASE, name)
    )


# --- the release


def test_an_upgrade_exempts_somebody_and_the_leader_stays(fresh: Installed) -> None:
    place = prepared(fresh)
    coordination, name = place.controller.coordination, fresh.name
    lease = coordination.read_namespaced_lease(LEASE, name)
    lease.spec = {"holderIdentity": "somebody", "leaseTransitions": 3}
    coordination.replace_namespaced_lease(LEASE, name, lease)
    assert forged(place) != ""
    values = fresh.gang_values()
    tenant = f"system:serviceaccount:{place.namespace}:tenant"
    values["preflight-gang"]["protection"]["exemptUsers"] = [tenant]
    fresh.release.upgrade(values)
    until(lambda: forged(place) == "", "exemption")
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
        assert [
            o.metadata.name for o in left().items if o.metadata.name.startswith(fresh.name)
        ] == []
    for left in (
        leases.list_namespaced_lease,
        fresh.rbac.list_namespaced_role,
        fresh.api.list_namespaced_service,
    ):
        assert left(fresh.name).items == []
    # What only the policies have kept apart is now the tenant's again.
    until(lambda: forged(place) == "", "end of the policy")


def forged(place: TenantNamespace) -> str:
    """What the API server has against a tenant's record of a gang."""
    body = place.configmap("preflight-job", RECORD)
    create = place.tenant.api.create_namespaced_config_map
    return error_of(lambda: create(place.namespace, body, dry_run="All"))
