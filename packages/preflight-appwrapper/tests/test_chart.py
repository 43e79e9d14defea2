"""The chart: what it makes is what the service reads, and what a real API server takes."""

from __future__ import annotations

import urllib.error
from typing import Any

import pytest
from preflight_appwrapper.api.rules import LabelTaint
from preflight_appwrapper.config import settings
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import PARTS, UMBRELLA, ChartError, Object, render

CHART = PARTS / "preflight-appwrapper"
LABELS = {"labeler": {"enabled": True}}
PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}


def config(objects: list[Object]) -> Any:
    found = next(one for one in objects if one["kind"] == "ConfigMap")
    return settings(found["data"]["config.yaml"])[1]


def path(one: Object) -> str:
    version, kind = one["apiVersion"], one["kind"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = one["metadata"].get("namespace")
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{within}/{PLURALS.get(kind, kind.lower() + 's')}"


def test_the_umbrella_installs_it_only_when_it_is_switched_on() -> None:
    assert render(UMBRELLA) == []
    on = {one["kind"] for one in render(UMBRELLA, {"preflight-appwrapper": {"enabled": True}})}
    assert {"Deployment", "CustomResourceDefinition", "ValidatingWebhookConfiguration"} <= on


def test_the_service_reads_the_defaults_as_its_own() -> None:
    made, own = config(render(CHART)), settings("")[1]
    assert made.autopilot == own.autopilot
    assert (made.warmup, made.retry_limit, made.success_ttl) == (
        own.warmup,
        own.retry_limit,
        own.success_ttl,
    )


@pytest.mark.parametrize("values", [LABELS, {**LABELS, "autopilot": None}])
def test_with_the_labeler_workloads_leave_nodes_with_its_label_as_well_as_autopilots(
    values: dict[str, Any],
) -> None:
    taints = config(render(CHART, values)).autopilot.taints["nvidia.com/gpu"]
    assert LabelTaint("preflight.nvsentinel.nvidia.com/gpu-health", "EVICT", "NoExecute") in taints
    assert LabelTaint("autopilot.ibm.com/gpuhealth", "EVICT", "NoExecute") in taints


def test_the_webhook_that_sets_the_queue_is_called_before_kueues() -> None:
    found = next(one for one in render(CHART) if one["kind"] == "MutatingWebhookConfiguration")
    assert found["metadata"]["name"] < "kueue-mutating-webhook-configuration"
    excluded = found["webhooks"][0]["namespaceSelector"]["matchExpressions"][0]
    assert excluded["operator"] == "NotIn"
    assert {"kube-system", "preflight"} <= set(excluded["values"])


def test_the_controller_may_change_no_component_and_nobody_more_than_is_said() -> None:
    role = next(
        one
        for one in render(CHART, LABELS)
        if one["kind"] == "ClusterRole"
        and one["metadata"]["name"] == "preflight-appwrapper-controller"
    )
    for rule in role["rules"]:
        if rule["apiGroups"] != ["workload.codeflare.dev"]:
            assert not {"update", "patch", "deletecollection", "*"} & set(rule["verbs"]), rule
        assert "*" not in rule["resources"]


def test_without_monitoring_of_nodes_the_controller_has_no_right_on_them() -> None:
    role = next(
        one
        for one in render(CHART, {"autopilot": {"monitorNodes": False}})
        if one["kind"] == "ClusterRole"
        and one["metadata"]["name"] == "preflight-appwrapper-controller"
    )
    assert all("nodes" not in rule["resources"] for rule in role["rules"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"faultTolerence": {}}, "faultTolerence"),
        ({"faultTolerance": {"retryLimit": "many"}}, "retryLimit"),
        ({"wrappedKinds": [{"group": "batch"}]}, "resources"),
        ({"certificates": {"lifetimeDays": 1}}, "certificates.lifetimeDays is 1"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ChartError) as refused:
        render(CHART, values)
    assert said in str(refused.value)


def test_a_real_api_server_takes_every_object(control_plane: ApiServer) -> None:
    try:
        control_plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "preflight"}})
    except urllib.error.HTTPError as error:
        assert error.code == 409
    for one in render(CHART, LABELS):
        if one["kind"] == "CustomResourceDefinition":
            continue  # the control plane has it already
        try:
            control_plane.call("POST", f"{path(one)}?dryRun=All&fieldValidation=Strict", one)
        except urllib.error.HTTPError as error:
            raise AssertionError(
                f"{one['kind']} {one['metadata']['name']}: {error.read().decode()}"
            ) from error


def test_the_webhook_knows_what_the_controller_may_create() -> None:
    kinds = [{"group": "", "resources": ["services"]}, {"group": "batch", "resources": ["jobs"]}]
    [webhook] = [
        one
        for one in render(CHART, {"wrappedKinds": kinds})
        if one["kind"] == "Deployment" and one["metadata"]["name"].endswith("-webhook")
    ]
    args = webhook["spec"]["template"]["spec"]["containers"][0]["args"]
    named = [one for one in args if one.startswith("--wrapped-kind=")]
    assert named == ["--wrapped-kind=services", "--wrapped-kind=jobs.batch"]
