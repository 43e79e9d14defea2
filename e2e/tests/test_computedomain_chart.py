"""What is particular to the chart of ComputeDomains. What an API server makes of its policies: the
package's own tests.
"""

from __future__ import annotations

from typing import Any

import pytest
from preflight_e2e import umbrella
from preflight_e2e.umbrella import channels, configs, injector, named, specs
from preflight_testing.helm import COMPUTEDOMAIN, ChartError, Object, only, render

ON = {"HostManagedIMEX": True}
CHANNEL = "compute-domain-default-channel.nvidia.com"
POLICIES = {
    *("slices", "templates", "finalizers", "allocation-mode"),
    *("controller-events", "controller-leases"),
}


def made(gates: dict[str, Any] | None = None, **values: Any) -> list[Object]:
    return umbrella.rendered(COMPUTEDOMAIN, featureGates=ON if gates is None else gates, **values)


def names(objects: list[Object], kind: str) -> set[str]:
    return {*named(kind, objects)}


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
    assert {*specs("ValidatingAdmissionPolicy", objects)} == POLICIES


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


def test_no_right_is_given_on_pods_daemonsets_or_cliques() -> None:
    for one in made():
        for rule in one.get("rules", []) if one["kind"] in {"ClusterRole", "Role"} else []:
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
    bindings = specs("ValidatingAdmissionPolicyBinding", made(admission={"allocationMode": mode}))
    assert bindings.get("allocation-mode", {}).get("validationActions") == actions


def detection(enabled: bool, **values: Any) -> dict[str, Any]:
    """What the injector, with ``values``, is told of networks beside this chart."""
    made = configs({**injector(**values), **channels(enabled=enabled)})
    return dict(made["preflight-injector"]["networkDetection"])


def test_while_it_is_on_the_injector_takes_its_channel_for_a_network_device() -> None:
    assert detection(enabled=True)["deviceClasses"] == [CHANNEL]
    assert detection(enabled=False)["deviceClasses"] == []
    assert (
        detection(enabled=True)["resourceNames"] == detection(enabled=False)["resourceNames"] != []
    )


def test_classes_that_the_injector_has_been_told_of_stay() -> None:
    own = {"deviceClasses": ["rdma.example.com", CHANNEL]}
    assert detection(enabled=True, networkDetection=own)["deviceClasses"] == own["deviceClasses"]
