"""What is particular to the gang controller's chart. What an API server makes of its policies:
tests/cluster.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import yaml
from preflight_e2e import umbrella
from preflight_e2e.umbrella import SOURCE, specs, verbs
from preflight_testing.helm import CHARTS, GANG, Object, Values, only

made = partial(umbrella.rendered, GANG)

MIRROR = {"list", "watch"}


def account(objects: list[Object]) -> Object:
    """The ClusterRole of the controller's account; the other is people's."""
    roles = [one for one in objects if one["kind"] == "ClusterRole"]
    return next(one for one in roles if "aggregate" not in str(one["metadata"]["labels"]))


def pod(**values: Any) -> Object:
    spec: Object = only(made(**values), "Deployment")["spec"]["template"]["spec"]
    return spec


def policies(namespace: str = "preflight", **values: Any) -> dict[str, Object]:
    return specs("ValidatingAdmissionPolicy", made(namespace, **values))


# --- rights


def test_the_controller_reads_no_secrets_and_reaches_no_subresource_but_its_own_kinds_status() -> (
    None
):
    resources = {resource for _, resource in verbs(account(made()))}
    assert "secrets" not in resources
    assert {resource for resource in resources if "/" in resource} == {
        "nodehealths/status",
        "preflightconfigs/status",
    }


def test_objects_of_a_configured_source_may_be_read_and_no_more() -> None:
    assert verbs(account(made(sources=[SOURCE])))[SOURCE["group"], "podgroups"] == MIRROR


def test_the_one_lease_that_may_be_written_is_there_under_any_name_of_the_release() -> None:
    objects = made(fullnameOverride="second")
    rules = only(objects, "Role")["rules"]
    assert [name for rule in rules for name in rule.get("resourceNames", [])] == ["preflight-gang"]
    assert only(objects, "Lease")["metadata"]["name"] == "preflight-gang"
    assert [rule["verbs"] for rule in rules if "resourceNames" not in rule] == [["create"]]


# --- pods


def test_the_configuration_is_what_the_controller_is_told_and_no_more() -> None:
    chosen = made(checks=["dcgm-diag", "ours"], topologyLabels=["example.com/rack"])
    config = yaml.safe_load(only(chosen, "ConfigMap")["data"]["config.yaml"])
    assert config == {
        "auditInterval": "5m",
        "checks": ["dcgm-diag", "ours"],
        "excludeNamespaces": [
            "nvsentinel",
            "kube-system",
            "kube-public",
            "kube-node-lease",
            "preflight",
        ],
        "gpuClaims": False,
        "gpuDeviceClasses": ["gpu.nvidia.com"],
        "gpuResourceNames": ["nvidia.com/gpu"],
        "instanceTypeLabel": "node.kubernetes.io/instance-type",
        "leaseDuration": "15s",
        "logLevel": "info",
        "namespaces": [],
        "nodeConditions": ["DcgmDiagnostic*", "NCCLLoopbackTest*", "NCCLAllReduceTest*"],
        "otherResourceNames": [
            "nvidia.com/hostdev*",
            "nvidia.com/mlnx*",
            "nvidia.com/*sriov*",
            "nvidia.com/*rdma*",
            "nvidia.com/*roce*",
        ],
        "sources": [],
        "topologyLabels": ["example.com/rack"],
        "writes": 32,
    }


def test_every_key_that_the_controller_knows_reaches_it() -> None:
    values = json.loads((GANG / "values.schema.json").read_text())["properties"]
    schema = CHARTS / "schema"
    of_the_chart = json.loads((schema / "preflight-gang.json").read_text())["properties"]
    common = json.loads((schema / "common.json").read_text())
    of_the_chart |= common["shared"] | common["each"]
    config = yaml.safe_load(only(made(), "ConfigMap")["data"]["config.yaml"])
    assert {*config} == {*values} - {*of_the_chart}


def test_the_configuration_is_mounted_where_the_controller_looks_for_it() -> None:
    controller = pod()["containers"][0]
    assert controller["args"] == ["run", "--config=/etc/preflight-gang/config.yaml"]
    assert [m["mountPath"] for m in controller["volumeMounts"]] == ["/etc/preflight-gang"]


def test_the_controller_is_told_its_pods_name_and_namespace() -> None:
    env = {
        e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"]
        for e in pod()["containers"][0]["env"]
        if "valueFrom" in e
    }
    assert env == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}


# --- policies

WRITTEN = ("configmaps", "events", "leases", "nodehealths", "pods", "preflightconfigs")


def test_the_confined_account_is_the_controllers() -> None:
    user = "'system:serviceaccount:elsewhere:preflight-gang'"
    confined = [p for name, p in policies("elsewhere").items() if name.startswith("controller-")]
    assert len(confined) == len(WRITTEN)
    for policy in confined:
        assert [c["expression"] for c in policy["matchConditions"]] == [
            f"request.userInfo.username == {user}"
        ]
    account = only(made("elsewhere"), "ServiceAccount")["metadata"]
    assert (account["namespace"], account["name"]) == ("elsewhere", "preflight-gang")
    assert pod()["serviceAccountName"] == account["name"]


def test_no_deletion_of_a_record_is_anybodys_business_but_the_controllers() -> None:
    rules = policies()["records"]["matchConstraints"]["resourceRules"]
    assert [rule["operations"] for rule in rules] == [["CREATE", "UPDATE"]]


def not_exempt(policy: str, **values: Any) -> str:
    found = {c["name"]: c["expression"] for c in policies(**values)[policy]["matchConditions"]}
    return str(found["not-exempt"])


def test_nobody_is_exempt_but_the_controller() -> None:
    only_it = '!(request.userInfo.username in ["system:serviceaccount:preflight:preflight-gang"])'
    assert not_exempt("records") == only_it


def test_users_and_groups_can_be_exempt() -> None:
    both = not_exempt(
        "records", protection={"exemptUsers": ["anna"], "exemptGroups": ['say "friend"']}
    )
    assert '["system:serviceaccount:preflight:preflight-gang","anna"]' in both
    assert r'exists(g, g in ["say \"friend\""])' in both


CHOSEN: Object = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}


@pytest.mark.parametrize(
    ("values", "selected"),
    [({}, None), ({"protection": {"namespaceSelector": CHOSEN}}, {"namespaceSelector": CHOSEN})],
    ids=["default", "chosen"],
)
def test_the_controller_is_confined_everywhere_and_records_are_kept_where_the_selector_says(
    values: Values, selected: Object | None
) -> None:
    bindings = specs("ValidatingAdmissionPolicyBinding", made(**values))
    assert {name: spec.get("matchResources") for name, spec in bindings.items()} == {
        **{f"controller-{kind}": None for kind in WRITTEN},
        "records": selected,
    }
