"""What is particular to the chart of ComputeDomains. What an API server makes of its policies: the
package's own tests.
"""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml
from preflight_e2e.chart_schema import ALIKE
from preflight_testing.helm import (
    COMPUTEDOMAIN,
    UMBRELLA,
    ChartError,
    Object,
    only,
    render,
)

ON = {"HostManagedIMEX": True}
CHANNEL = "compute-domain-default-channel.nvidia.com"
POLICIES = {
    f"preflight-computedomain-{one}"
    for one in (
        *("slices", "templates", "finalizers", "allocation-mode"),
        *("controller-events", "controller-leases"),
    )
}


def made(gates: dict[str, Any] | None = None, **values: Any) -> list[Object]:
    chosen = ON if gates is None else gates
    return render(
        UMBRELLA, {"preflight-computedomain": {"enabled": True, "featureGates": chosen, **values}}
    )


def names(objects: list[Object], kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in objects if one["kind"] == kind}


def env(objects: list[Object], kind: str) -> dict[str, str]:
    container = only(objects, kind)["spec"]["template"]["spec"]["containers"][0]
    return {one["name"]: one.get("value", "") for one in container["env"]}


def test_values_by_the_names_of_nvidias_chart_mean_what_ours_do() -> None:
    resources, security = {"limits": {"memory": "1Gi"}}, {"readOnlyRootFilesystem": True}
    theirs = made(
        image={"pullPolicy": "Always"},
        logVerbosity=6,
        controller={
            "containers": {"computeDomain": {"resources": resources, "securityContext": security}}
        },
        kubeletPlugin={
            "containers": {
                "computeDomains": {"resources": resources, "securityContext": {"privileged": False}}
            }
        },
    )
    ours = made(
        imagePullPolicy="Always",
        logLevel="debug",
        controller={"resources": resources, "securityContext": security},
        kubeletPlugin={"resources": resources, "privileged": False},
    )
    assert theirs == ours
    assert made(logVerbosity=4) == made()


def test_it_is_off_until_it_is_switched_on() -> None:
    assert render(UMBRELLA, {}) == []


@pytest.mark.parametrize("gate", [True, "true"])  # --set-string
def test_nothing_of_driver_managed_mode_is_made(gate: bool | str) -> None:
    objects = made({"HostManagedIMEX": gate})
    assert names(objects, "DeviceClass") == {CHANNEL}
    assert names(objects, "Deployment") == {"preflight-computedomain-controller"}
    assert names(objects, "DaemonSet") == {"preflight-computedomain-kubelet-plugin"}
    programs = {"preflight-computedomain-controller", "preflight-computedomain-kubelet-plugin"}
    for kind in ("ClusterRoleBinding", "ServiceAccount"):
        assert programs == names(objects, kind)
    people = {f"preflight-computedomain-{role}" for role in ("view", "edit", "admin")}
    assert programs | people == names(objects, "ClusterRole")
    assert names(objects, "ValidatingAdmissionPolicy") == POLICIES


@pytest.mark.parametrize(
    "gates",
    [
        {"HostManagedIMEX": False},
        {"HostManagedIMEX": "false"},
        {},
        {"HostManagedIMEXDaemon": True},
    ],
)
def test_without_its_gate_an_install_is_refused_and_told_what_to_set(gates: dict[str, Any]) -> None:
    told = "set featureGates.HostManagedIMEX=true"
    with pytest.raises(ChartError, match=told):
        made(gates)
    with pytest.raises(ChartError, match=told):
        render(COMPUTEDOMAIN, {"featureGates": gates})


def test_the_shape_of_the_vendors_chart_is_the_same_gate() -> None:
    objects = made(
        {"HostManagedIMEXDaemon": True},
        resources={"computeDomains": {"imex": {"mode": "hostManaged"}}},
    )
    assert names(objects, "DeviceClass") == {CHANNEL}
    assert env(objects, "Deployment")["IMEX_MODE"] == "hostManaged"


def test_without_compute_domains_nothing_but_the_definition_is_made() -> None:
    objects = made({}, resources={"computeDomains": {"enabled": False}})
    assert {one["kind"] for one in objects} == {"CustomResourceDefinition"}


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_both_programs_get_the_gates_as_they_stand_in_the_values(kind: str) -> None:
    objects = made({"HostManagedIMEX": "true", "DynamicMIG": False})
    assert env(objects, kind)["FEATURE_GATES"] == "DynamicMIG=false,HostManagedIMEX=true"


@pytest.mark.parametrize(
    "values",
    [
        {"featureGates": {"HostManagedIMX": True}},
        {"featureGates": {"HostManagedIMEX": "yes"}},
        {"resources": {"computeDomains": {"imex": {"mode": "other"}}}},
        {"resources": {"computeDomains": {"imex": {"isolation": "channel"}}}},
        {"admission": {"allocationMode": "Perhaps"}},
        {"colour": "red"},
        {"cdiRoot": "relative"},
    ],
)
def test_a_wrong_value_stops_the_install(values: dict[str, Any]) -> None:
    with pytest.raises(ChartError, match="- at '"):
        render(UMBRELLA, {"preflight-computedomain": {"enabled": True, **values}})


def test_no_right_is_given_by_pattern_and_none_on_pods_daemonsets_or_cliques() -> None:
    for one in made():
        for rule in one.get("rules", []) if one["kind"] in {"ClusterRole", "Role"} else []:
            assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not {"pods", "daemonsets", "computedomaincliques", "secrets"} & {
                *rule["resources"]
            }
            if "nodes" in rule["resources"]:
                assert rule["verbs"] == ["get"]


def test_the_plugin_gets_the_nodes_folders_and_no_network_of_the_node() -> None:
    pod = only(
        made(cdiRoot="/etc/cdi", altProcDevices="/etc/node-local/proc-devices"), "DaemonSet"
    )["spec"]["template"]["spec"]
    assert "hostNetwork" not in pod
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"]}
    assert paths == {
        "registry": "/var/lib/kubelet/plugins_registry",
        "plugins": "/var/lib/kubelet/plugins",
        "cdi": "/etc/cdi",
        "driver-root": "/",
        "proc-devices": "/etc/node-local/proc-devices",
    }
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {
        "name": "driver-root",
        "mountPath": "/driver-root",
        "readOnly": True,
        "mountPropagation": "HostToContainer",
    } in container["volumeMounts"]


def test_without_privilege_the_plugin_has_no_capability() -> None:
    pod = only(made(kubeletPlugin={"privileged": False}), "DaemonSet")["spec"]["template"]["spec"]
    context = pod["containers"][0]["securityContext"]
    assert "privileged" not in context
    assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("mode", "actions"), [("Warn", ["Warn", "Audit"]), ("Deny", ["Deny", "Audit"]), ("Off", None)]
)
def test_what_is_said_to_mode_all_is_a_value(mode: str, actions: list[str] | None) -> None:
    bindings = {
        one["metadata"]["name"]: one["spec"]["validationActions"]
        for one in made(admission={"allocationMode": mode})
        if one["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert bindings.get("preflight-computedomain-allocation-mode") == actions


def test_all_values_stand_in_the_values_file_and_are_taken_by_the_schema() -> None:
    values = yaml.safe_load((COMPUTEDOMAIN / "values.yaml").read_text())
    schema = yaml.safe_load((COMPUTEDOMAIN / "values.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(values)
    assert {*schema["properties"]} - {*values} - ALIKE == {"enabled", "global", "logVerbosity"}


def detection(**values: Any) -> dict[str, Any]:
    """What the injector is told of networks, beside a chart of ComputeDomains with ``values``."""
    own = {"featureGates": ON, **values}
    objects = render(
        UMBRELLA, {"preflight-injector": {"enabled": True}, "preflight-computedomain": own}
    )
    (text,) = only([one for one in objects if "config.yaml" in one.get("data", {})], "ConfigMap")[
        "data"
    ].values()
    found: dict[str, Any] = yaml.safe_load(text)["networkDetection"]
    return found


def test_while_it_is_on_the_injector_takes_its_channel_for_a_network_device() -> None:
    assert detection(enabled=True)["deviceClasses"] == [CHANNEL]
    assert detection(enabled=False)["deviceClasses"] == []
    assert (
        detection(enabled=True)["resourceNames"] == detection(enabled=False)["resourceNames"] != []
    )


def test_classes_that_the_injector_has_been_told_of_stay() -> None:
    injector = {
        "enabled": True,
        "networkDetection": {"deviceClasses": ["rdma.example.com", CHANNEL]},
    }
    objects = render(
        UMBRELLA,
        {
            "preflight-injector": injector,
            "preflight-computedomain": {"enabled": True, "featureGates": ON},
        },
    )
    (text,) = only([one for one in objects if "config.yaml" in one.get("data", {})], "ConfigMap")[
        "data"
    ].values()
    assert yaml.safe_load(text)["networkDetection"]["deviceClasses"] == [
        "rdma.example.com",
        CHANNEL,
    ]
