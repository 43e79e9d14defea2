"""Device claims: what they ask for in every shape, and what a pod with them gets."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preflight_webhook.admission import decide
from preflight_webhook.claims import Claim, Devices, Ref, devices, read
from preflight_webhook.config import Config, parse
from preflight_webhook.decision import Decision
from preflight_webhook.workloads import Found, needed

CLASSES = """
gpuDetection: {deviceClasses: [gpu.nvidia.com, h100.example.com]}
networkDetection: {deviceClasses: [rdma.nvidia.com]}
"""
CONFIG = parse("checks: [{name: dcgm-diag, image: d}, {name: nccl-loopback, image: l}]" + CLASSES)


def exactly(device_class: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": "r",
        "exactly": {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1, **fields},
    }


def first_available(*alternatives: tuple[str, int]) -> dict[str, Any]:
    made = [{"name": f"a{i}", "deviceClassName": name, "count": n} for i, (name, n) in enumerate(alternatives)]
    return {"name": "r", "firstAvailable": made}


def template(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": {"requests": list(requests)}}}}


def claim(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "ResourceClaim", "spec": {"devices": {"requests": list(requests)}}}


GPU, NIC = exactly("gpu.nvidia.com", count=4), exactly("rdma.nvidia.com")
ADMIN = exactly("gpu.nvidia.com", adminAccess=True)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (claim(GPU), Devices(True, False, 4)),
        (template(GPU), Devices(True, False, 4)),
        (claim({"name": "r", "deviceClassName": "gpu.nvidia.com", "count": 2}), Devices(True, False, 2)),  # v1beta1
        (claim({"name": "r", "deviceClassName": "gpu.nvidia.com"}), Devices(True, False, 1)),
        (claim(exactly("gpu.nvidia.com", allocationMode="All")), Devices(True, False, None)),
        (claim(GPU, exactly("h100.example.com", count=2)), Devices(True, False, 6)),
        (claim(GPU, NIC), Devices(True, True, 4)),
        (claim(NIC), Devices(False, True, 0)),
        (claim(exactly("fpga.example.com")), Devices(False, False, 0)),
        (claim(first_available(("gpu.nvidia.com", 2), ("h100.example.com", 2))), Devices(True, False, 2)),
        (claim(first_available(("gpu.nvidia.com", 2), ("h100.example.com", 1))), Devices(True, False, None)),
        (claim(first_available(("gpu.nvidia.com", 2), ("fpga.example.com", 2))), Devices(False, False, 0)),
        (claim(ADMIN), Devices(False, False, 0)),
        (claim(ADMIN, NIC), Devices(False, True, 0)),
        (claim({"name": "r", "deviceClassName": "gpu.nvidia.com", "adminAccess": True}), Devices(False, False, 0)),
        ({"spec": {}}, Devices(False, False, 0)),
    ],
)  # fmt: skip
def test_what_a_claim_gives_is_read_in_every_shape(made: dict[str, Any], expected: Devices) -> None:
    assert devices(read(made), CONFIG) == expected


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["spec", "devices", "requests", "exactly", "firstAvailable", "count"]), inner)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(["spec", "kind"]), anything))
def test_reading_never_raises(made: dict[str, Any]) -> None:
    devices(read(made), CONFIG)


ENTRIES = {
    "own": {"name": "own", "resourceClaimTemplateName": "own"},
    "shared": {"name": "shared", "resourceClaimName": "shared"},
    "net": {"name": "net", "resourceClaimTemplateName": "net"},
    "fpga": {"name": "fpga", "resourceClaimTemplateName": "fpga"},
}
TEMPLATES = "resourceclaimtemplates"
KNOWN: dict[Ref, Claim | None] = {
    Ref(TEMPLATES, "own"): read(template(GPU)),
    Ref("resourceclaims", "shared"): read(claim(GPU)),
    Ref(TEMPLATES, "net"): read(template(NIC)),
    Ref(TEMPLATES, "fpga"): read(template(exactly("fpga.example.com"))),
}


def pod_with(*names: str, limits: dict[str, str] | None = None) -> dict[str, Any]:
    used = [{"name": name} for name in names]
    resources = {"claims": used, **({"limits": limits} if limits else {})}
    main = {"name": "main", "image": "i", "resources": resources}
    return {"metadata": {"name": "p"}, "spec": {"resourceClaims": [ENTRIES[n] for n in names], "containers": [main]}}


def judged(
    pod: dict[str, Any], config: Config = CONFIG, known: dict[Ref, Claim | None] | None = None
) -> tuple[Decision, dict[str, Any]]:
    decision = decide(json.dumps(pod).encode(), "ml", config, KNOWN if known is None else known)
    return decision, jsonpatch.apply_patch(copy.deepcopy(pod), decision.patch)


def test_gpu_and_network_claims_are_referenced_whole_and_others_are_not() -> None:
    decision, after = judged(pod_with("fpga", "net", "own"))
    assert decision.checks == ["dcgm-diag", "nccl-loopback"]
    for one in after["spec"]["initContainers"]:
        assert one["resources"]["claims"] == [{"name": "net"}, {"name": "own"}]
        assert {"name": "EXPECTED_GPUS", "value": "4"} in one["env"]
    assert judged(after)[0].result == "unchanged"


def test_claims_and_extended_resources_add_up() -> None:
    _, after = judged(pod_with("own", limits={"nvidia.com/gpu": "2"}))
    [one] = after["spec"]["initContainers"]
    assert {"name": "EXPECTED_GPUS", "value": "6"} in one["env"]
    assert one["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_without_a_network_claim_there_are_no_nccl_checks() -> None:
    assert [(s.check, s.reason) for s in judged(pod_with("own"))[0].skipped] == [("nccl-loopback", "no-network")]


def test_a_pod_whose_claims_are_for_something_else_is_left_alone() -> None:
    decision, after = judged(pod_with("fpga", "net"))
    assert (decision.result, "initContainers" in after["spec"]) == ("no-gpu", False)
    assert "gpu.nvidia.com" in decision.message


def test_checks_are_not_run_on_a_claim_that_other_pods_may_use_unless_allowed() -> None:
    assert judged(pod_with("shared"))[0].label == "no-checks-shared"
    allowed = parse(
        "checks: [{name: dcgm-diag, image: d}]" + CLASSES.replace("{deviceC", "{sharedClaims: inject, deviceC", 1)
    )
    assert judged(pod_with("shared"), allowed)[0].checks == ["dcgm-diag"]
    able = parse("checks: [{name: dcgm-diag, image: d}, {name: mine, image: m, supports: [shared]}]" + CLASSES)
    assert judged(pod_with("shared"), able)[0].checks == ["mine"]


def test_without_the_claims_it_is_said_which_are_needed() -> None:
    decision = decide(json.dumps(pod_with("own", "shared")).encode(), "ml", CONFIG)
    assert (decision.result, decision.needs) == (
        "needs-claims",
        (Ref(TEMPLATES, "own"), Ref("resourceclaims", "shared")),
    )


def test_without_device_classes_claims_do_not_matter() -> None:
    config = parse("checks: [{name: dcgm-diag, image: d}]")
    assert decide(json.dumps(pod_with("own")).encode(), "ml", config).result == "no-gpu"


NOTHING: dict[Ref, Claim | None] = {Ref(TEMPLATES, "own"): None}


@pytest.mark.parametrize(("policy", "result"), [("deny", "denied"), ("allow", "no-gpu"), ("inject", "injected")])
def test_a_claim_that_does_not_exist_is_treated_as_configured(policy: str, result: str) -> None:
    config = parse(f"checks: [{{name: dcgm-diag, image: d}}]\nunresolvedClaims: {policy}" + CLASSES)
    decision, after = judged(pod_with("own"), config, NOTHING)
    assert decision.result == result
    if policy == "deny":
        assert "create the claim first" in decision.message
        assert "own" in decision.message
    if policy == "inject":
        [one] = after["spec"]["initContainers"]
        assert one["resources"]["claims"] == [{"name": "own"}]
        assert "EXPECTED_GPUS" not in {e["name"] for e in one["env"]}


def test_an_entry_of_a_kind_that_is_not_known_is_unresolved() -> None:
    pod = pod_with("own")
    pod["spec"]["resourceClaims"][0] = {"name": "own", "someNewSource": "x"}
    assert judged(pod)[0].denied


def test_a_container_with_a_gpu_claim_decides_about_the_environment() -> None:
    config = parse("checks: [{name: nccl-loopback, image: l}]\nskipNcclWithoutNetwork: false" + CLASSES)
    pod = pod_with("own")
    pod["spec"]["containers"][0]["env"] = [{"name": "NCCL_X", "value": "gpu"}]
    pod["spec"]["containers"].insert(0, {"name": "side", "image": "i", "env": [{"name": "NCCL_X", "value": "side"}]})
    [one] = judged(pod, config)[1]["spec"]["initContainers"]
    assert {"name": "NCCL_X", "value": "gpu"} in one["env"]


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_a_live_claim_is_found_in_the_version_that_the_cluster_serves(version: str) -> None:
    asked = []

    def get(path: str) -> dict[str, Any] | None:
        asked.append(path)
        return {"kind": "ResourceClaim", "spec": {}} if f"/{version}/" in path else None

    pod = {"spec": {"resourceClaims": [{"name": "mine", "resourceClaimName": "shared"}]}}
    known = needed(Found("Pod p", "ml", pod, {}, confined=False), get)
    assert known == {Ref("resourceclaims", "shared"): ()}
    assert asked[-1] == f"/apis/resource.k8s.io/{version}/namespaces/ml/resourceclaims/shared"
