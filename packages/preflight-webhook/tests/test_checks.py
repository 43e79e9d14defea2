"""What an operator sets for one check: where it stands, what it runs on, and what its container
holds.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from pods import GPU, amount, cost, judged, of, pods, qos
from preflight_webhook.config.config import Config, ConfigError, parse
from preflight_webhook.core.admit import decide


def pod_with(limits: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}],
            **spec,
        },
    }


def config(check: str, more: str = "") -> Config:
    return parse(f"checks: [{{name: mine, image: m, {check}}}]\n{more}")


def test_a_check_that_is_not_enabled_is_not_there() -> None:
    made = parse("checks: [{name: dcgm-diag, image: d, enabled: false}, {name: mine, image: m}]")
    assert judged(pod_with({GPU: "1"}), made)[0].checks == ["mine"]


def test_checks_may_stand_behind_the_workloads_own_init_containers() -> None:
    made = parse(
        "checks: [{name: late, image: m, placement: last}, {name: early, image: m}]\nproviderInit: [driver]"
    )
    own = [
        {"name": "driver", "image": "i"},
        {"name": "mesh", "image": "i", "restartPolicy": "Always"},
    ]
    _, after = judged(pod_with({GPU: "1"}, initContainers=own), made)
    order = [c["name"] for c in after["spec"]["initContainers"]]
    assert order == ["driver", "preflight-early", "mesh", "preflight-late"]
    assert judged(after, made)[0].patch == []


@given(pods())
def test_a_check_behind_the_others_changes_no_cost_either(pod: dict[str, Any]) -> None:
    made = parse(
        "checks: [{name: late, image: m, placement: last}, {name: early, image: m, resources: {limits: {cpu: 1}}}]"
    )
    decision, after = judged(pod, made)
    for name in ("cpu", "memory", GPU):
        assert cost(after, "requests", name) == cost(pod, "requests", name), name
        if all(
            of(c, "limits", name)
            for c in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
        ):
            assert cost(after, "limits", name) == cost(pod, "limits", name), name
    assert qos(after) == qos(pod)
    if "late" in decision.checks:
        assert after["spec"]["initContainers"][-1]["name"] == "preflight-late"


def test_a_security_context_is_merged_over_ours() -> None:
    made = config(
        "securityContext: {runAsUser: 0, runAsNonRoot: false, capabilities: {add: [SYS_NICE]}}"
    )
    security = judged(pod_with({GPU: "1"}), made)[1]["spec"]["initContainers"][0]["securityContext"]
    assert (security["runAsUser"], security["allowPrivilegeEscalation"]) == (0, False)
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_NICE"]}


def test_ids_can_be_left_to_the_cluster_as_openshift_wants_it() -> None:
    made = config("securityContext: {runAsUser: null, runAsGroup: null}")
    security = judged(pod_with({GPU: "1"}), made)[1]["spec"]["initContainers"][0]["securityContext"]
    assert "runAsUser" not in security
    assert "runAsGroup" not in security
    assert security["runAsNonRoot"] is True


def test_any_field_of_a_container_is_merged_by_its_keys() -> None:
    made = config(
        "container: {command: [run], args: [-v], workingDir: /w, imagePullPolicy: null,"
        " env: [{name: GATE, value: observe}, {name: X, value: y}], volumeMounts: [{name: preflight-tmp, mountPath: /w}]}"
    )
    one = judged(pod_with({GPU: "1"}), made)[1]["spec"]["initContainers"][0]
    env = {e["name"]: e.get("value") for e in one["env"]}
    assert (one["command"], one["workingDir"], env["GATE"], env["X"]) == (
        ["run"],
        "/w",
        "observe",
        "y",
    )
    assert "imagePullPolicy" not in one
    assert {"/tmp", "/w"} <= {m["mountPath"] for m in one["volumeMounts"]}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("container: {name: x}", "checks[0].container.name"),
        ("container: {restartPolicy: Always}", "checks[0].container.restartPolicy"),
        ("required: true, envPatterns: [A]", "checks[0].envPatterns"),
        ("resources: {limits: {cpu: lots}}", "checks[0].resources.limits.cpu"),
        ("resources: {limits: {cpu: 0}}", "checks[0].resources.limits.cpu"),
        ("resources: {limits: {nvidia.com/gpu: 1}}", "checks[0].resources.limits.nvidia.com/gpu"),
        ("placement: middle", "checks[0].placement"),
        ("supports: [tpu]", "checks[0].supports[0]"),
    ],
)
def test_what_a_check_cannot_have_is_named(text: str, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(text)
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [path]


@pytest.mark.parametrize("own", [None, [], [{"name": "theirs"}], [{"name": "ours"}]])
def test_pull_secrets_are_added_once(own: list[dict[str, str]] | None) -> None:
    made = config("required: true", "checkImagePullSecrets: [ours]")
    pod = pod_with({GPU: "1"}, **({} if own is None else {"imagePullSecrets": own}))
    _, after = judged(pod, made)
    names = [one["name"] for one in after["spec"]["imagePullSecrets"]]
    assert names == [*(one["name"] for one in own or [] if one["name"] != "ours"), "ours"]
    assert judged(after, made)[0].patch == []


@pytest.mark.parametrize(
    ("resource", "reason"), [("nvidia.com/mig-1g.10gb", "mig"), ("nvidia.com/gpu.shared", "shared")]
)
def test_checks_run_on_slices_and_shared_gpus_only_where_they_can(
    resource: str, reason: str
) -> None:
    made = parse(
        f"checks: [{{name: dcgm-diag, image: d}}, {{name: mine, image: m, supports: [{reason}]}}]"
    )
    decision, after = judged(pod_with({resource: "2"}), made)
    assert (decision.checks, [(s.check, s.reason) for s in decision.skipped]) == (
        ["mine"],
        [("dcgm-diag", reason)],
    )
    [one] = after["spec"]["initContainers"]
    assert one["resources"]["limits"][resource] == "2"
    assert "EXPECTED_GPUS" not in {
        e["name"] for e in one["env"]
    }  # how many devices that makes, nobody knows here
    alone = judged(pod_with({resource: "2"}), parse("checks: [{name: dcgm-diag, image: d}]"))[0]
    assert (alone.result, alone.label) == ("no-checks", f"no-checks-{reason}")


def test_a_plain_name_can_be_declared_shared() -> None:
    made = config("enabled: true", "gpuDetection: {sharedResourceNames: [nvidia.com/gpu]}")
    assert judged(pod_with({GPU: "1"}), made)[0].label == "no-checks-shared"


@pytest.mark.parametrize(
    ("resource", "detection"),
    [
        ("nvidia.com/pgpu", "{}"),
        ("nvidia.com/GH100_H100", "{}"),
        ("nvidia.com/gpu", "{resourceNames: [amd.com/gpu]}"),
        ("nvidia.com/gpu.shared", "{sharedResourceNames: []}"),
        ("nvidia.com/mig-1g.10gb", "{migResourceNames: []}"),
    ],
)
def test_what_may_be_a_gpu_and_is_not_known_is_counted_and_told_and_changes_no_pod(
    resource: str, detection: str
) -> None:
    made = config("enabled: true", f"gpuDetection: {detection}")
    pod = pod_with({resource: "1"})
    decision, after = judged(pod, made)
    assert (decision.label, after) == ("no-checks-unknown-resource", pod)
    assert decision.message.startswith(f"{resource} may be a GPU")
    assert "gpuDetection.resourceNames" in decision.message
    assert [skip.reason for skip in decision.skipped] == ["unknown-resource"]
    member = {
        **pod,
        "metadata": {"name": "p", "annotations": {"scheduling.k8s.io/group-name": "g"}},
    }
    assert judged(member, made)[0].label == "stamped-unknown-resource"


@pytest.mark.parametrize(
    ("resource", "amount"),
    [
        ("nvidia.com/hostdev", "8"),
        ("nvidia.com/hostdev_a", "8"),
        ("nvidia.com/mlnxnics", "8"),
        ("nvidia.com/sriov_rdma_vf", "8"),
        ("nvidia.com/rdma_shared_device_a", "8"),
        ("nvidia.com/roce_gdr", "8"),
        ("nvidia.com/cx7", "8"),
        ("nvidia.com/dpu", "8"),
        ("nvidia.com/pgpu", "0"),
        ("amd.com/gpu", "8"),
        ("example.com/nvidia.com", "8"),
    ],
)
def test_what_is_known_to_be_no_gpu_is_not_told_of(resource: str, amount: str) -> None:
    others = "gpuDetection: {otherResourceNames: [nvidia.com/*rdma*, nvidia.com/roce*, nvidia.com/hostdev*, nvidia.com/dpu]}"
    known = "networkDetection: {resourceNames: [nvidia.com/cx*, nvidia.com/mlnxnics, nvidia.com/*sriov*]}"
    made = config("enabled: true", f"{others}\n{known}")
    assert judged(pod_with({resource: amount}), made)[0].label == "no-gpu"
    if resource not in {"nvidia.com/cx7", "nvidia.com/dpu"}:  # the defaults know them
        assert judged(pod_with({resource: amount}), config("enabled: true"))[0].label == "no-gpu"


def test_beside_gpus_that_are_known_an_unknown_resource_changes_nothing() -> None:
    made = config("required: true")
    alone, _ = judged(pod_with({GPU: "1"}), made)
    beside, _ = judged(pod_with({GPU: "1", "nvidia.com/pgpu": "1"}), made)
    assert (beside.patch, beside.label) == (alone.patch, alone.label)


def test_where_hostpath_volumes_are_forbidden_the_pod_is_denied_and_told_what_to_do() -> None:
    pod = json.dumps(pod_with({GPU: "1"})).encode()
    decision = decide(pod, "ml", config("required: true"), confined=True)
    assert decision.denied
    assert "pod-security.kubernetes.io/enforce" in decision.message
    assert (
        decide(
            json.dumps(pod_with({})).encode(), "ml", config("required: true"), confined=True
        ).result
        == "no-gpu"
    )


def test_or_it_is_checked_without_reports() -> None:
    made = config(
        "required: true",
        "onPodSecurityConflict: report-off\nplatformConnector: {auth: {enabled: true}}",
    )
    pod = pod_with({GPU: "1"})
    decision = decide(json.dumps(pod).encode(), "ml", made, confined=True)
    after = jsonpatch.apply_patch(pod, decision.patch)
    assert {next(iter(set(v) - {"name"})) for v in after["spec"]["volumes"]} == {"emptyDir"}
    assert {"name": "PLATFORM_CONNECTOR_SOCKET", "value": "off"} in after["spec"]["initContainers"][
        0
    ]["env"]
    assert "report nothing" in decision.warnings[0]


def test_where_sidecars_hold_all_gpus_there_is_nothing_to_test() -> None:
    made = parse("checks: [{name: early, image: m}, {name: late, image: m, placement: last}]")
    side = {
        "name": "s",
        "image": "i",
        "restartPolicy": "Always",
        "resources": {"limits": {GPU: "2"}},
    }
    pod = {
        "metadata": {},
        "spec": {"containers": [{"name": "main", "image": "i"}], "initContainers": [side]},
    }
    decision, _ = judged(pod, made)
    assert (decision.checks, [(s.check, s.reason) for s in decision.skipped]) == (
        ["early"],
        [("late", "no-room")],
    )


def test_what_a_check_expects_is_what_it_is_given() -> None:
    made = parse("checks: [{name: early, image: m}, {name: late, image: m, placement: last}]")
    side = {
        "name": "s",
        "image": "i",
        "restartPolicy": "Always",
        "resources": {"limits": {GPU: "2"}},
    }
    _, after = judged(pod_with({GPU: "3"}, initContainers=[side]), made)
    early, _, late = after["spec"]["initContainers"]
    for one, count in ((early, "5"), (late, "3")):
        assert one["resources"]["limits"][GPU] == count
        assert {"name": "EXPECTED_GPUS", "value": count} in one["env"]


def test_nor_more_than_the_largest_container_where_that_is_configured() -> None:
    made = config("required: true", "gpuCount: max")
    pod = pod_with({GPU: "3"})
    pod["spec"]["containers"].append(
        {"name": "two", "image": "i", "resources": {"limits": {GPU: "2"}}}
    )
    [one] = judged(pod, made)[1]["spec"]["initContainers"]
    assert one["resources"]["limits"][GPU] == "3"
    assert {"name": "EXPECTED_GPUS", "value": "3"} in one["env"]


def as_int64(text: str) -> int | None:
    """A quantity as the kubelet's static memory manager reads it, None where it refuses the pod.

    `getContainerRequestedResources` (Kubernetes 1.36,
    pkg/kubelet/cm/memorymanager/policy_static.go) takes each container's request of memory, of init
    containers too, by apimachinery's `Quantity.AsInt64`, which knows no fractions and nothing past
    64 bits.
    """
    written = re.fullmatch(r"(\d+)(k|M|G|T|P|E|[KMGTPE]i|)", text)
    if written is None:
        return None
    suffix = written[2]
    base, steps = (1024, "KMGTPE") if suffix.endswith("i") else (1000, "kMGTPE")
    value = int(written[1]) * base ** (1 + steps.index(suffix[0]) if suffix else 0)
    return value if value < 2**63 else None


@pytest.mark.parametrize(
    "memory", ["64Gi", "100G", "9223372037", "1Ti", "68719476736000m", "1.5Gi", "9223372036854m"]
)
def test_the_static_memory_manager_of_a_kubelet_can_read_what_a_check_asks_for(memory: str) -> None:
    pod = pod_with({GPU: "8", "cpu": "96", "memory": memory})
    [one] = judged(pod, config("required: true"))[1]["spec"]["initContainers"]
    assert as_int64(one["resources"]["requests"]["memory"]) == int(amount(memory))
    assert as_int64(one["resources"]["limits"]["memory"]) == int(amount(memory))


def test_what_the_static_memory_manager_refuses_is_known_to_this_test() -> None:
    assert [as_int64(one) for one in ("9223372036854m", "9223372036854775808")] == [None, None]
    assert [as_int64(one) for one in ("64Gi", "64G", "512")] == [64 * 2**30, 64 * 10**9, 512]


@pytest.mark.parametrize(
    ("memory", "whole"), [("9223372036854m", "9223372036"), ("500m", "1")]
)  # as Kubernetes counts it
def test_of_a_fraction_of_a_byte_the_whole_bytes_are_taken(memory: str, whole: str) -> None:
    pod = pod_with({GPU: "1", "cpu": "1", "memory": memory})
    [one] = judged(pod, config("required: true"))[1]["spec"]["initContainers"]
    assert one["resources"]["limits"]["memory"] == whole
