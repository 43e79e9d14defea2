"""What an operator sets for one check: where it stands, what it runs on, and what its container holds."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from pods import GPU, cost, of, pods, qos
from preflight_webhook.admission import decide
from preflight_webhook.config import Config, ConfigError, parse
from preflight_webhook.decision import Decision


def judged(pod: dict[str, Any], config: Config) -> tuple[Decision, dict[str, Any]]:
    decision = decide(json.dumps(pod).encode(), "ml", config)
    return decision, jsonpatch.apply_patch(copy.deepcopy(pod), decision.patch)


def pod_with(limits: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}], **spec},
    }


def config(check: str, more: str = "") -> Config:
    return parse(f"checks: [{{name: mine, image: m, {check}}}]\n{more}")


def test_a_check_that_is_not_enabled_is_not_there() -> None:
    made = parse("checks: [{name: dcgm-diag, image: d, enabled: false}, {name: mine, image: m}]")
    assert judged(pod_with({GPU: "1"}), made)[0].checks == ["mine"]


def test_checks_may_stand_behind_the_workloads_own_init_containers() -> None:
    made = parse("checks: [{name: late, image: m, placement: last}, {name: early, image: m}]\nproviderInit: [driver]")
    own = [{"name": "driver", "image": "i"}, {"name": "mesh", "image": "i", "restartPolicy": "Always"}]
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
        if all(of(c, "limits", name) for c in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]):
            assert cost(after, "limits", name) == cost(pod, "limits", name), name
    assert qos(after) == qos(pod)
    if "late" in decision.checks:
        assert after["spec"]["initContainers"][-1]["name"] == "preflight-late"


def test_a_check_takes_no_more_than_it_is_given() -> None:
    pod = pod_with({GPU: "1", "cpu": "8", "memory": "64Gi"})
    made = config("resources: {requests: {cpu: 500m}, limits: {cpu: 2, memory: 4Gi}}")
    limits = judged(pod, made)[1]["spec"]["initContainers"][0]["resources"]["limits"]
    assert (limits["cpu"], limits["memory"]) == ("500m", "4294967296")  # Guaranteed: the smaller of both


def test_a_security_context_is_merged_over_ours() -> None:
    made = config("securityContext: {runAsUser: 0, runAsNonRoot: false, capabilities: {add: [SYS_NICE]}}")
    security = judged(pod_with({GPU: "1"}), made)[1]["spec"]["initContainers"][0]["securityContext"]
    assert (security["runAsUser"], security["allowPrivilegeEscalation"]) == (0, False)
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_NICE"]}


def test_any_field_of_a_container_is_merged_by_its_keys() -> None:
    made = config(
        "container: {command: [run], args: [-v], workingDir: /w, imagePullPolicy: null,"
        " env: [{name: GATE, value: observe}, {name: X, value: y}], volumeMounts: [{name: preflight-tmp, mountPath: /w}]}"
    )
    one = judged(pod_with({GPU: "1"}), made)[1]["spec"]["initContainers"][0]
    env = {e["name"]: e.get("value") for e in one["env"]}
    assert (one["command"], one["workingDir"], env["GATE"], env["X"]) == (["run"], "/w", "observe", "y")
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
def test_checks_run_on_slices_and_shared_gpus_only_where_they_can(resource: str, reason: str) -> None:
    made = parse(f"checks: [{{name: dcgm-diag, image: d}}, {{name: mine, image: m, supports: [{reason}]}}]")
    decision, after = judged(pod_with({resource: "2"}), made)
    assert (decision.checks, [(s.check, s.reason) for s in decision.skipped]) == (["mine"], [("dcgm-diag", reason)])
    [one] = after["spec"]["initContainers"]
    assert one["resources"]["limits"][resource] == "2"
    assert "EXPECTED_GPUS" not in {e["name"] for e in one["env"]}  # how many devices that makes, nobody knows here
    alone = judged(pod_with({resource: "2"}), parse("checks: [{name: dcgm-diag, image: d}]"))[0]
    assert (alone.result, alone.label) == ("no-checks", f"no-checks-{reason}")


def test_a_plain_name_can_be_declared_shared() -> None:
    made = config("enabled: true", "gpuDetection: {sharedResourceNames: [nvidia.com/gpu]}")
    assert judged(pod_with({GPU: "1"}), made)[0].label == "no-checks-shared"


def test_where_hostpath_volumes_are_forbidden_the_pod_is_denied_and_told_what_to_do() -> None:
    pod = json.dumps(pod_with({GPU: "1"})).encode()
    decision = decide(pod, "ml", config("required: true"), confined=True)
    assert decision.denied
    assert "pod-security.kubernetes.io/enforce" in decision.message
    assert decide(json.dumps(pod_with({})).encode(), "ml", config("required: true"), confined=True).result == "no-gpu"


def test_or_it_is_checked_without_reports() -> None:
    made = config("required: true", "onPodSecurityConflict: report-off\nplatformConnector: {auth: {enabled: true}}")
    pod = pod_with({GPU: "1"})
    decision = decide(json.dumps(pod).encode(), "ml", made, confined=True)
    after = jsonpatch.apply_patch(pod, decision.patch)
    assert {next(iter(set(v) - {"name"})) for v in after["spec"]["volumes"]} == {"emptyDir"}
    assert {"name": "PLATFORM_CONNECTOR_SOCKET", "value": "off"} in after["spec"]["initContainers"][0]["env"]
    assert "report nothing" in decision.warnings[0]


def test_where_sidecars_hold_all_gpus_there_is_nothing_to_test() -> None:
    made = parse("checks: [{name: early, image: m}, {name: late, image: m, placement: last}]")
    side = {"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"limits": {GPU: "2"}}}
    pod = {"metadata": {}, "spec": {"containers": [{"name": "main", "image": "i"}], "initContainers": [side]}}
    decision, _ = judged(pod, made)
    assert (decision.checks, [(s.check, s.reason) for s in decision.skipped]) == (["early"], [("late", "no-room")])


def test_what_a_check_expects_is_what_it_is_given() -> None:
    made = parse("checks: [{name: early, image: m}, {name: late, image: m, placement: last}]")
    side = {"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"limits": {GPU: "2"}}}
    _, after = judged(pod_with({GPU: "3"}, initContainers=[side]), made)
    early, _, late = after["spec"]["initContainers"]
    for one, count in ((early, "5"), (late, "3")):
        assert one["resources"]["limits"][GPU] == count
        assert {"name": "EXPECTED_GPUS", "value": count} in one["env"]


def test_nor_more_than_the_largest_container_where_that_is_configured() -> None:
    made = config("required: true", "gpuCount: max")
    pod = pod_with({GPU: "3"})
    pod["spec"]["containers"].append({"name": "two", "image": "i", "resources": {"limits": {GPU: "2"}}})
    [one] = judged(pod, made)[1]["spec"]["initContainers"]
    assert one["resources"]["limits"][GPU] == "3"
    assert {"name": "EXPECTED_GPUS", "value": "3"} in one["env"]
