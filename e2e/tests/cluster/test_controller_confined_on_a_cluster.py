"""What the API server lets the gang controller write, with its own token. Needs KUBECONFIG; no
image and no node is used. Which fields it may change, and what of others not: the package's
`test_table_of_rights.py` and `e2e/attacks/tokens.toml`.
"""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.impersonation import (
    LEASE,
    OURS,
    RECORD,
    ROSTER,
    Patch,
    TenantNamespace,
    annotation,
    error_of,
    prepared,
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


def test_the_controller_keeps_a_gangs_record(place: TenantNamespace) -> None:
    api = place.controller.api
    made = api.create_namespaced_config_map(
        place.namespace, place.configmap("preflight-job", RECORD)
    )
    made.data["peers"] = "a:10.0.0.1"
    api.replace_namespaced_config_map(made.metadata.name, place.namespace, made)
    api.delete_namespaced_config_map(made.metadata.name, place.namespace)


def test_the_controller_creates_no_configmap_whose_name_the_api_server_makes(
    place: TenantNamespace,
) -> None:
    body = {"metadata": {"generateName": "train-", "labels": RECORD}}
    answer = error_of(
        lambda: place.controller.api.create_namespaced_config_map(place.namespace, body)
    )
    assert "but this request changes metadata.generateName" in answer


def test_the_controller_cannot_change_its_own_configuration(place: TenantNamespace) -> None:
    name, namespace = place.installed.gang, place.installed.name
    found = place.controller.api.read_namespaced_config_map(name, namespace)
    answer = error_of(
        lambda: place.controller.api.replace_namespaced_config_map(name, namespace, found)
    )
    assert "configmaps only where its name begins with preflight-" in answer


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
