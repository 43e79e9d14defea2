"""One pod's way through admission: what is injected, what it costs, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pods import GPU, cost, is_member, of, pods, qos
from pods import judged as decided
from preflight_proto.names import CHECKED, CHECKED_LABEL
from preflight_webhook.config.config import Config, parse
from preflight_webhook.core.decision import Decision
from preflight_webhook.core.inject.patch import applied

CONFIG = parse(
    "checks: [{name: dcgm-diag, image: dcgm:1}, {name: mine, image: mine:1}]\ndcgm: {hostengineAddr: '$(NODE_IP):5555'}"
)


def judged(pod: dict[str, Any], config: Config = CONFIG) -> tuple[Decision, dict[str, Any]]:
    return decided(pod, config)


def gpu_pod(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "main", "image": "i", "resources": {"limits": {GPU: "2"}}}],
            **spec,
        },
    }


def checks(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        c for c in pod["spec"].get("initContainers") or [] if c["name"].startswith("preflight-")
    ]


@given(pods())
def test_injection_never_changes_what_a_pod_costs(pod: dict[str, Any]) -> None:
    _, after = judged(pod)
    for name in ("cpu", "memory", GPU):
        assert cost(after, "requests", name) == cost(pod, "requests", name), name
        if all(
            of(c, "limits", name)
            for c in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
        ):
            assert cost(after, "limits", name) == cost(pod, "limits", name), (
                name
            )  # what a quota on limits counts
    assert qos(after) == qos(pod)


@given(pods())
def test_the_patch_adds_checks_to_gpu_pods_and_nothing_to_others(pod: dict[str, Any]) -> None:
    decision, after = judged(pod)
    needs = cost(pod, "requests", GPU) > 0
    assert decision.result == ("injected" if needs else "stamped" if is_member(pod) else "no-gpu")
    assert [c["name"] for c in checks(after)] == (
        ["preflight-dcgm-diag", "preflight-mine"] if needs else []
    )
    if needs:
        assert checks(after)[0]["resources"]["limits"][GPU] == str(cost(pod, "requests", GPU))
        assert after["spec"]["containers"] == pod["spec"]["containers"]
        assert [c for c in after["spec"]["initContainers"] if c not in checks(after)] == pod[
            "spec"
        ].get("initContainers", [])
    else:
        assert after["spec"] == pod["spec"]
        assert is_member(pod) or after == pod


@given(pods())
def test_a_second_pass_on_its_own_output_changes_nothing(pod: dict[str, Any]) -> None:
    first, after = judged(pod)
    second, again = judged(after)
    assert again == after
    assert second.result == (
        "unchanged" if first.result in {"injected", "stamped"} else first.result
    )
    assert second.patch == []


@given(pods())
def test_explain_applies_a_patch_as_the_api_server_does(pod: dict[str, Any]) -> None:
    decision, after = judged(pod)
    assert applied(copy.deepcopy(pod), decision.patch) == after


@given(pods(), st.data())
def test_whatever_stands_under_reserved_names_is_rebuilt(
    pod: dict[str, Any], data: st.DataObject
) -> None:
    _, honest = judged(pod)
    forged = copy.deepcopy(pod)
    fake = {"name": "preflight-dcgm-diag", "image": "evil", "command": ["true"]}
    init = forged["spec"].setdefault("initContainers", [])
    init.insert(data.draw(st.integers(0, len(init))), fake)
    forged["spec"].setdefault("volumes", []).append(
        {"name": "preflight-tmp", "hostPath": {"path": "/"}}
    )
    forged["metadata"].setdefault("labels", {})["preflight.nvsentinel.nvidia.com/checked"] = "false"
    forged["metadata"].setdefault("annotations", {})["preflight.nvsentinel.nvidia.com/roster"] = (
        "{}"
    )
    decision, after = judged(forged)
    assert checks(after) == checks(honest)
    assert "evil" not in json.dumps(after)
    assert "roster" not in json.dumps(after)
    assert any("replaced" in warning for warning in decision.warnings)


def test_what_the_api_servers_own_admission_writes_into_a_check_stays() -> None:
    """It would refuse the pod in the end: AlwaysPullImages, LimitRanger, OpenShift's ids."""
    config = parse(
        "checks: [{name: mine, image: m, securityContext: {runAsUser: null, runAsGroup: null}}]"
    )
    _, after = judged(gpu_pod(), config)
    check = after["spec"]["initContainers"][0]
    check["imagePullPolicy"] = "Always"
    check["resources"]["requests"]["ephemeral-storage"] = "1Gi"
    check["resources"]["limits"]["ephemeral-storage"] = "2Gi"
    check["securityContext"] |= {"runAsUser": 1000650000, "seLinuxOptions": {"level": "s0:c1,c2"}}
    decision, again = judged(after, config)
    assert again == after
    assert (decision.result, decision.patch, decision.warnings) == ("unchanged", [], [])


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ((), {"imagePullPolicy": "Never"}),
        (("securityContext",), {"runAsUser": 0, "runAsNonRoot": False, "privileged": True}),
        (("resources", "limits"), {"cpu": "1m", "memory": "1Ki", GPU: "1", "x.y/z": "1"}),
    ],
)
def test_nothing_else_that_stands_in_a_check_stays(
    where: tuple[str, ...], found: dict[str, Any]
) -> None:
    _, honest = judged(gpu_pod())
    forged = copy.deepcopy(honest)
    part = forged["spec"]["initContainers"][0]
    for key in where:
        part = part[key]
    part |= found
    assert judged(forged)[1] == honest


@pytest.mark.parametrize("section", ["containers", "initContainers"])
def test_a_tenants_mount_of_our_volume_is_denied_and_told_why(section: str) -> None:
    mount = {
        "name": "spy",
        "image": "i",
        "volumeMounts": [{"name": "preflight-connector-socket", "mountPath": "/s"}],
    }
    pod = gpu_pod()
    pod["spec"].setdefault(section, []).append(mount)
    decision, _ = judged(pod)
    assert decision.denied
    assert (
        f'spec.{section}: container "spy" mounts the volume "preflight-connector-socket"'
        in decision.message
    )


@pytest.mark.parametrize("labels", [{}, {CHECKED_LABEL: CHECKED}], ids=["plain", "labelled"])
def test_a_main_container_called_like_a_check_is_denied(labels: dict[str, str]) -> None:
    """With our label, too, by which an init container of that name would be rebuilt."""
    pod = gpu_pod()
    pod["metadata"]["labels"] = labels
    pod["spec"]["containers"][0]["name"] = "preflight-dcgm-diag"
    decision, _ = judged(pod)
    assert decision.denied
    assert 'spec.containers: the name "preflight-dcgm-diag" is reserved' in decision.message


def test_the_check_is_restricted_and_sees_no_token() -> None:
    container = checks(judged(gpu_pod())[1])[0]
    security = container["securityContext"]
    assert (
        security["runAsNonRoot"],
        security["allowPrivilegeEscalation"],
        security["capabilities"],
    ) == (
        True,
        False,
        {"drop": ["ALL"]},
    )
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["readOnlyRootFilesystem"] is True
    assert {m["mountPath"] for m in container["volumeMounts"]} == {
        "/var/run/nvsentinel",
        "/tmp",
        "/var/run/secrets/kubernetes.io/serviceaccount",
    }


APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


@pytest.mark.parametrize(
    ("annotations", "profile", "expected"),
    [
        ({}, {"type": "Localhost", "localhostProfile": "no-network"}, {"type": "RuntimeDefault"}),
        ({f"{APPARMOR}preflight-mine": "localhost/x"}, None, {"type": "RuntimeDefault"}),
        # Nodes without AppArmor refuse a pod that names a profile.
        ({}, {"type": "Unconfined"}, None),
        ({f"{APPARMOR}main": "localhost/x"}, None, None),
        ({}, None, None),
    ],
)
def test_a_profile_of_apparmor_that_is_made_for_the_workload_is_not_that_of_its_checks(
    annotations: dict[str, str], profile: dict[str, str] | None, expected: dict[str, str] | None
) -> None:
    security = {"seccompProfile": {"type": "Localhost", "localhostProfile": "own"}}
    pod = gpu_pod(securityContext={**security, "appArmorProfile": profile})
    pod["metadata"]["annotations"] = annotations
    _, after = judged(pod)
    for check in checks(after):
        assert check["securityContext"].get("appArmorProfile") == expected
    assert judged(after)[0].patch == []


def test_the_node_ip_stands_before_the_address_that_refers_to_it() -> None:
    env = checks(judged(gpu_pod())[1])[0]["env"]
    order = [e["name"] for e in env]
    assert order.index("NODE_IP") < order.index("DCGM_HOSTENGINE_ADDR")
    assert {"name": "EXPECTED_GPUS", "value": "2"} in env


def test_the_connector_s_token_is_mounted_where_it_is_wanted() -> None:
    config = parse(
        "checks: [{name: dcgm-diag, image: d}]\nplatformConnector: {auth: {enabled: true}}"
    )
    _, after = judged(gpu_pod(), config)
    [container] = checks(after)
    assert {
        "name": "PLATFORM_CONNECTOR_TOKEN_PATH",
        "value": "/var/run/secrets/nvsentinel/platform-connector/token",
    } in container["env"]
    [volume] = [v for v in after["spec"]["volumes"] if "projected" in v]
    assert (
        volume["projected"]["sources"][0]["serviceAccountToken"]["audience"]
        == "platform-connector.nvsentinel.nvidia.com"
    )


def test_observe_is_passed_on() -> None:
    config = parse("checks: [{name: dcgm-diag, image: d, enforcement: observe}]")
    assert {"name": "GATE", "value": "observe"} in checks(judged(gpu_pod(), config)[1])[0]["env"]


def test_windows_pods_are_left_alone() -> None:
    decision, after = judged(gpu_pod(os={"name": "windows"}))
    assert (decision.result, checks(after)) == ("windows", [])


def test_a_test_between_nodes_needs_a_network_and_a_gang() -> None:
    config = parse("checks: [{name: nccl-loopback, image: l}, {name: nccl-allreduce, image: a}]")
    decision, _ = judged(gpu_pod(), config)
    assert (decision.checks, [(s.check, s.reason) for s in decision.skipped]) == (
        ["nccl-loopback"],
        [("nccl-allreduce", "no-gang")],
    )
    decision, _ = judged(gpu_pod(schedulingGroup={"podGroupName": "train"}), config)
    assert [(s.check, s.reason) for s in decision.skipped] == [("nccl-allreduce", "no-network")]
    pod = gpu_pod()
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mlnxnics"] = "4"
    _, after = judged(pod, config)
    assert checks(after)[0]["resources"]["limits"]["nvidia.com/mlnxnics"] == "4"


SELECTING = parse(
    "checks: [{name: dcgm-diag, image: d}, {name: one, image: i}, {name: two, image: i}]\npodSelection: {enabled: true}"
)


def asking(text: str) -> dict[str, Any]:
    pod = gpu_pod()
    pod["metadata"]["annotations"] = {"nvsentinel.nvidia.com/preflight-checks": text}
    return pod


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("two,one", ["dcgm-diag", "two", "one"]),
        ("", ["dcgm-diag"]),
        ("one, dcgm-diag", ["one", "dcgm-diag"]),
    ],
)
def test_a_pod_may_choose_but_required_checks_stay(text: str, names: list[str]) -> None:
    assert judged(asking(text), SELECTING)[0].checks == names


@pytest.mark.parametrize("text", ["three", "one,one"])
def test_unknown_or_repeated_names_are_denied_with_the_configured_ones(text: str) -> None:
    decision, _ = judged(asking(text), SELECTING)
    assert decision.denied
    assert "configured are dcgm-diag, one, two" in decision.message


def test_the_annotation_counts_only_where_selection_is_enabled() -> None:
    assert judged(asking("three"))[0].checks == ["dcgm-diag", "mine"]


def test_a_bad_quantity_is_denied_by_name() -> None:
    pod = gpu_pod()
    pod["spec"]["containers"][0]["resources"]["limits"][GPU] = "two"
    assert '"two" is not a quantity' in judged(pod)[0].message


def test_a_bad_quantity_among_the_pods_own_resources_is_denied_by_name() -> None:
    decision, _ = judged(gpu_pod(resources={"requests": {"cpu": "lots"}}))
    assert (decision.result, decision.message) == (
        "denied",
        'spec: "lots" is not a quantity; write e.g. 8, 500m or 64Gi.',
    )


@pytest.mark.parametrize("cpu", ["8", "16"])
def test_a_guaranteed_pod_of_one_container_gives_its_checks_all_of_its_cores(cpu: str) -> None:
    limits = {GPU: "1", "cpu": cpu, "memory": "1Gi"}
    pod = gpu_pod()
    pod["spec"]["containers"][0]["resources"] = {"limits": limits}
    _, after = judged(pod)
    resources = checks(after)[0]["resources"]
    assert qos(after) == "Guaranteed"
    assert resources["limits"] == resources["requests"]
    assert resources["limits"]["cpu"] == cpu


def test_no_more_cores_are_pinned_for_a_check_than_for_any_one_container() -> None:
    pod = gpu_pod()
    pod["spec"]["containers"] = [
        {
            "name": name,
            "image": "i",
            "resources": {"limits": {GPU: "1", "cpu": "8", "memory": "1Gi"}},
        }
        for name in "ab"
    ]
    _, after = judged(pod)
    assert qos(after) == "Guaranteed"
    assert checks(after)[0]["resources"]["limits"]["cpu"] == "15999m"


def test_the_cores_of_a_burstable_pod_are_never_pinned_so_none_is_held_back() -> None:
    pod = gpu_pod()
    pod["spec"]["containers"] = [
        {"name": name, "image": "i", "resources": {"requests": {"cpu": "8"}, "limits": {GPU: "1"}}}
        for name in "ab"
    ]
    assert checks(judged(pod)[1])[0]["resources"]["requests"]["cpu"] == "16"
