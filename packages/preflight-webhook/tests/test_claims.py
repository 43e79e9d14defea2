"""Device claims: what they ask for in every shape, and what a pod with them gets."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pods import judged as decided
from preflight_kube.errors import NotFound
from preflight_proto.admitted import SeenClaim, decode_admitted, swapped
from preflight_proto.devices import VERSIONS
from preflight_proto.names import CLAIMS_ANNOTATION
from preflight_webhook.config.config import Config, parse
from preflight_webhook.core.admit import decide
from preflight_webhook.core.decision import Decision
from preflight_webhook.core.detect.devices import (
    ClaimDevices,
    DeviceClaim,
    Ref,
    given_by,
    read_claim,
)
from preflight_webhook.report.live import needed
from preflight_webhook.report.workloads import FoundPod

CLASSES = """
gpuDetection: {deviceClasses: [gpu.nvidia.com, h100.example.com]}
networkDetection: {deviceClasses: [rdma.nvidia.com]}
"""
CONFIG = parse("checks: [{name: dcgm-diag, image: d}]" + CLASSES)


def exactly(device_class: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": "r",
        "exactly": {
            "deviceClassName": device_class,
            "allocationMode": "ExactCount",
            "count": 1,
            **fields,
        },
    }


def first_available(*alternatives: tuple[str, int]) -> dict[str, Any]:
    made = [
        {"name": f"a{i}", "deviceClassName": name, "count": n}
        for i, (name, n) in enumerate(alternatives)
    ]
    return {"name": "r", "firstAvailable": made}


def template(*requests: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "ResourceClaimTemplate",
        "spec": {"spec": {"devices": {"requests": list(requests)}}},
    }


def claim(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "ResourceClaim", "spec": {"devices": {"requests": list(requests)}}}


GPU, NIC = exactly("gpu.nvidia.com", count=4), exactly("rdma.nvidia.com")
ADMIN = exactly("gpu.nvidia.com", adminAccess=True)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (claim(GPU), ClaimDevices(True, False, 4)),
        (template(GPU), ClaimDevices(True, False, 4)),
        # v1beta1.
        (claim({"name": "r", "deviceClassName": "gpu.nvidia.com", "count": 2}), ClaimDevices(True, False, 2)),
        (claim({"name": "r", "deviceClassName": "gpu.nvidia.com"}), ClaimDevices(True, False, 1)),
        (claim(exactly("gpu.nvidia.com", allocationMode="All")), ClaimDevices(True, False, None)),
        (claim(GPU, exactly("h100.example.com", count=2)), ClaimDevices(True, False, 6)),
        (claim(GPU, NIC), ClaimDevices(True, True, 4)),
        (claim(NIC), ClaimDevices(False, True, 0)),
        (claim(exactly("fpga.example.com")), ClaimDevices(False, False, 0)),
        (claim(first_available(("gpu.nvidia.com", 2), ("h100.example.com", 2))), ClaimDevices(True, False, 2)),
        (claim(first_available(("gpu.nvidia.com", 2), ("h100.example.com", 1))), ClaimDevices(True, False, None)),
        (claim(first_available(("gpu.nvidia.com", 2), ("fpga.example.com", 2))), ClaimDevices(True, False, None)),
        (claim(ADMIN), ClaimDevices(False, False, 0)),
        (claim(ADMIN, NIC), ClaimDevices(False, True, 0)),
        (claim({"name": "r", "deviceClassName": "gpu.nvidia.com", "adminAccess": True}), ClaimDevices(False, False, 0)),
        ({"spec": {}}, ClaimDevices(False, False, 0)),
    ],
)  # fmt: skip
def test_what_a_claim_gives_is_read_in_every_shape(
    made: dict[str, Any], expected: ClaimDevices
) -> None:
    assert given_by(read_claim(made), CONFIG) == expected


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "devices", "requests", "exactly", "firstAvailable", "count"]),
            inner,
        )
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["spec", "kind"]), anything))
def test_reading_never_raises(made: dict[str, Any]) -> None:
    given_by(read_claim(made), CONFIG)


ENTRIES = {
    "own": {"name": "own", "resourceClaimTemplateName": "own"},
    "shared": {"name": "shared", "resourceClaimName": "shared"},
    "net": {"name": "net", "resourceClaimTemplateName": "net"},
    "fpga": {"name": "fpga", "resourceClaimTemplateName": "fpga"},
}
TEMPLATES = "resourceclaimtemplates"
KNOWN: dict[Ref, DeviceClaim | None] = {
    Ref(TEMPLATES, "own"): read_claim(template(GPU)),
    Ref("resourceclaims", "shared"): read_claim(claim(GPU)),
    Ref(TEMPLATES, "net"): read_claim(template(NIC)),
    Ref(TEMPLATES, "fpga"): read_claim(template(exactly("fpga.example.com"))),
}


def pod_with(*names: str, limits: dict[str, str] | None = None) -> dict[str, Any]:
    used = [{"name": name} for name in names]
    resources = {"claims": used, **({"limits": limits} if limits else {})}
    main = {"name": "main", "image": "i", "resources": resources}
    return {
        "metadata": {"name": "p"},
        "spec": {"resourceClaims": [ENTRIES[n] for n in names], "containers": [main]},
    }


def judged(
    pod: dict[str, Any], config: Config = CONFIG, known: dict[Ref, DeviceClaim | None] | None = None
) -> tuple[Decision, dict[str, Any]]:
    return decided(pod, config, KNOWN if known is None else known)


def test_gpu_and_network_claims_are_referenced_whole_and_others_are_not() -> None:
    decision, after = judged(pod_with("fpga", "net", "own"))
    assert decision.checks == ["dcgm-diag"]
    for one in after["spec"]["initContainers"]:
        assert one["resources"]["claims"] == [{"name": "net"}, {"name": "own"}]
        assert {"name": "EXPECTED_GPUS", "value": "4"} in one["env"]
    assert judged(after)[0].result == "unchanged"


def test_claims_and_extended_resources_add_up() -> None:
    _, after = judged(pod_with("own", limits={"nvidia.com/gpu": "2"}))
    [one] = after["spec"]["initContainers"]
    assert {"name": "EXPECTED_GPUS", "value": "6"} in one["env"]
    assert one["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_without_a_network_claim_the_fabric_is_not_tested() -> None:
    config = parse(
        "checks: [{name: dcgm-diag, image: d}, {name: nccl-allreduce, image: a}]" + CLASSES
    )
    pod = pod_with("own")
    pod["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    assert [(s.check, s.reason) for s in judged(pod, config)[0].skipped] == [
        ("nccl-allreduce", "no-network")
    ]


def test_a_pod_whose_claims_are_for_something_else_is_left_alone() -> None:
    decision, after = judged(pod_with("fpga", "net"))
    assert (decision.result, "initContainers" in after["spec"]) == ("no-gpu", False)
    assert "gpu.nvidia.com" in decision.message


def shared_claims(how: str, checks: str = "{name: dcgm-diag, image: d}") -> Config:
    return parse(
        f"checks: [{checks}]" + CLASSES.replace("{deviceC", f"{{sharedClaims: {how}, deviceC", 1)
    )


def in_use(pod: str) -> dict[Ref, DeviceClaim | None]:
    made = {
        **claim(GPU),
        "status": {"reservedFor": [{"resource": "pods", "name": pod, "uid": "u"}]},
    }
    return {**KNOWN, Ref("resourceclaims", "shared"): read_claim(made)}


def test_the_gpus_of_a_claim_by_name_are_tested_where_no_other_pod_has_it() -> None:
    decision, after = judged(pod_with("shared"))
    assert decision.checks == ["dcgm-diag"]
    assert after["spec"]["initContainers"][0]["resources"]["claims"] == [{"name": "shared"}]


def test_while_another_pod_has_it_a_required_check_denies_and_says_whose_it_is() -> None:
    decision, _ = judged(pod_with("shared"), known=in_use("trainer-0"))
    assert decision.denied
    assert 'claim "shared" is in use by pod trainer-0' in decision.message
    assert "resourceClaimTemplateName" in decision.message


def test_gpus_of_its_own_beside_a_claim_in_use_do_not_hide_it() -> None:
    assert judged(pod_with("own", "shared"), known=in_use("trainer-0"))[0].denied


@pytest.mark.parametrize(
    "check", ["{name: mine, image: m}", "{name: dcgm-diag, image: d, enforcement: observe}"]
)
def test_a_check_that_holds_nobody_back_is_left_out_instead(check: str) -> None:
    assert (
        judged(pod_with("shared"), shared_claims("auto", check), in_use("t"))[0].label
        == "no-checks-shared"
    )


def test_the_operator_may_leave_claims_by_name_out_or_test_them_always() -> None:
    skipping = shared_claims("skip")
    assert judged(pod_with("shared"), skipping)[0].label == "no-checks-shared"
    assert judged(pod_with("shared"), shared_claims("inject"), in_use("t"))[0].checks == [
        "dcgm-diag"
    ]
    able = shared_claims(
        "skip", "{name: dcgm-diag, image: d}, {name: mine, image: m, supports: [shared]}"
    )
    assert judged(pod_with("shared"), able)[0].checks == ["mine"]
    decision, after = judged(pod_with("own", "shared"), skipping)
    assert "claim shared cannot be tested" in decision.message
    [one] = after["spec"]["initContainers"]
    assert one["resources"]["claims"] == [{"name": "own"}]
    assert {"name": "EXPECTED_GPUS", "value": "4"} in one["env"]


def test_alternatives_of_which_one_is_a_gpu_are_tested() -> None:
    known = {
        **KNOWN,
        Ref(TEMPLATES, "own"): read_claim(
            template(first_available(("gpu.nvidia.com", 1), ("fpga.example.com", 1)))
        ),
    }
    decision, after = judged(pod_with("own"), known=known)
    assert decision.checks == ["dcgm-diag"]
    assert "EXPECTED_GPUS" not in json.dumps(after)


@pytest.mark.parametrize("name", ["gpu.nvidia.com", "h100.example.com"])
def test_a_device_class_asked_for_as_an_extended_resource_is_a_gpu(name: str) -> None:
    resource = f"deviceclass.resource.kubernetes.io/{name}"
    main = {"name": "main", "image": "i", "resources": {"limits": {resource: "8"}}}
    decision, after = judged({"metadata": {"name": "p"}, "spec": {"containers": [main]}})
    assert decision.checks == ["dcgm-diag"]
    [one] = after["spec"]["initContainers"]
    assert one["resources"]["limits"] == {resource: "8"}
    assert {"name": "EXPECTED_GPUS", "value": "8"} in one["env"]


def test_another_class_asked_for_so_is_none() -> None:
    limits = {"deviceclass.resource.kubernetes.io/fpga.example.com": "1"}
    main = {"name": "main", "image": "i", "resources": {"limits": limits}}
    assert judged({"metadata": {"name": "p"}, "spec": {"containers": [main]}})[0].result == "no-gpu"


def seen(after: dict[str, Any]) -> dict[str, SeenClaim]:
    return decode_admitted(after["metadata"]["annotations"][CLAIMS_ANNOTATION]).claims


def with_uid(made: dict[str, Any], uid: str) -> DeviceClaim:
    return read_claim({**made, "metadata": {"uid": uid}})


def test_what_was_known_of_claims_is_written_down_whether_the_pod_is_checked_or_not() -> None:
    known: dict[Ref, DeviceClaim | None] = {
        Ref("resourceclaims", "shared"): with_uid(claim(exactly("fpga.example.com")), "u1")
    }
    decision, after = judged(pod_with("shared"), known=known)
    assert decision.result == "no-gpu"
    assert seen(after) == {
        "shared": SeenClaim(kind="ResourceClaim", name="shared", uid="u1", gpu=False)
    }
    assert judged(after, known=known)[0].result == "unchanged"
    known = {Ref(TEMPLATES, "own"): with_uid(template(GPU), "u2")}
    assert seen(judged(pod_with("own"), known=known)[1]) == {
        "own": SeenClaim(kind="ResourceClaimTemplate", name="own", uid="u2", gpu=True)
    }


def test_a_claim_that_was_swapped_after_admission_can_be_told() -> None:
    known: dict[Ref, DeviceClaim | None] = {
        Ref("resourceclaims", "shared"): with_uid(claim(exactly("fpga.example.com")), "u1")
    }
    before = seen(judged(pod_with("shared"), known=known)[1])["shared"]
    assert swapped(before, "u2", gpu=True)
    assert not swapped(before, "u2", gpu=False)


def test_a_forged_account_of_claims_is_replaced() -> None:
    pod = pod_with("fpga")
    pod["metadata"]["annotations"] = {CLAIMS_ANNOTATION: '{"v":1,"claims":{}}'}
    assert list(seen(judged(pod)[1])) == ["fpga"]
    plain = {
        "metadata": {"name": "p", "annotations": {CLAIMS_ANNOTATION: "x"}},
        "spec": {"containers": [{"name": "m"}]},
    }
    assert judged(plain)[1]["metadata"]["annotations"] == {}


def test_without_the_claims_it_is_said_which_are_needed() -> None:
    decision = decide(json.dumps(pod_with("own", "shared")).encode(), "ml", CONFIG)
    assert (decision.result, decision.needs) == (
        "needs-claims",
        (Ref(TEMPLATES, "own"), Ref("resourceclaims", "shared")),
    )


def test_where_no_class_matters_claims_do_not() -> None:
    config = parse("checks: [{name: dcgm-diag, image: d}]\nmirrorClaims: []")
    assert decide(json.dumps(pod_with("own")).encode(), "ml", config).result == "no-gpu"


CHANNEL = "compute-domain-default-channel.nvidia.com"
WITH_CHANNEL: dict[Ref, DeviceClaim | None] = {
    **KNOWN,
    Ref(TEMPLATES, "net"): read_claim(template(exactly(CHANNEL))),
}


def test_a_channel_to_other_nodes_gpus_is_mirrored_with_nothing_configured() -> None:
    config = parse("checks: [{name: dcgm-diag, image: d}]")
    decision, after = judged(pod_with("net", limits={"nvidia.com/gpu": "4"}), config, WITH_CHANNEL)
    [one] = after["spec"]["initContainers"]
    assert one["resources"]["claims"] == [{"name": "net"}]
    assert {"name": "EXPECTED_GPUS", "value": "4"} in one["env"]
    assert "net" not in decision.message
    assert judged(after, config, WITH_CHANNEL)[0].result == "unchanged"


def test_claims_of_any_class_can_be_mirrored_and_no_other_is() -> None:
    both = pod_with("own", "fpga", "net")
    [one] = judged(both, CONFIG, WITH_CHANNEL)[1]["spec"]["initContainers"]
    assert one["resources"]["claims"] == [{"name": "own"}, {"name": "net"}]
    every = parse(
        "checks: [{name: dcgm-diag, image: d}]\nmirrorClaims: ['*.example.com']" + CLASSES
    )
    [one] = judged(both, every, WITH_CHANNEL)[1]["spec"]["initContainers"]
    assert one["resources"]["claims"] == [{"name": "own"}, {"name": "fpga"}]


def test_a_request_that_may_be_met_by_another_class_is_not_mirrored() -> None:
    known = {
        **KNOWN,
        Ref(TEMPLATES, "net"): read_claim(
            template(first_available((CHANNEL, 1), ("fpga.example.com", 1)))
        ),
    }
    [one] = judged(pod_with("own", "net"), CONFIG, known)[1]["spec"]["initContainers"]
    assert one["resources"]["claims"] == [{"name": "own"}]


def test_a_claim_that_does_not_exist_keeps_no_pod_without_gpus_where_no_claim_can_give_one() -> (
    None
):
    config = parse("checks: [{name: dcgm-diag, image: d}]")
    unknown: dict[Ref, DeviceClaim | None] = {Ref(TEMPLATES, "net"): None}
    assert judged(pod_with("net"), config, unknown)[0].result == "no-gpu"
    decision, _ = judged(pod_with("net", limits={"nvidia.com/gpu": "4"}), config, unknown)
    assert decision.denied
    assert "create the claim first" in decision.message


NOTHING: dict[Ref, DeviceClaim | None] = {Ref(TEMPLATES, "own"): None}


@pytest.mark.parametrize(
    ("policy", "result"), [("deny", "denied"), ("allow", "no-gpu"), ("inject", "injected")]
)
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
    config = parse(
        "checks: [{name: nccl-loopback, image: l}]\nskipNcclWithoutNetwork: false" + CLASSES
    )
    pod = pod_with("own")
    pod["spec"]["containers"][0]["env"] = [{"name": "NCCL_ALGO", "value": "gpu"}]
    pod["spec"]["containers"].insert(
        0, {"name": "side", "image": "i", "env": [{"name": "NCCL_ALGO", "value": "side"}]}
    )
    [one] = judged(pod, config)[1]["spec"]["initContainers"]
    assert {"name": "NCCL_ALGO", "value": "gpu"} in one["env"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_live_claim_is_found_in_the_version_that_the_cluster_serves(version: str) -> None:
    asked = []

    class Client:
        clock = time.monotonic

        async def get(self, path: str, type_: type[Any]) -> Any:
            if path != f"/apis/resource.k8s.io/{version}":
                raise NotFound(path, 404)
            served = {"name": "resourceclaims", "kind": "ResourceClaim", "namespaced": True}
            return msgspec.convert({"resources": [served]}, type_)

        async def get_or_none(self, path: str, _: type[Any]) -> dict[str, Any]:
            asked.append(path)
            return {"kind": "ResourceClaim", "spec": {}}

    pod = {"spec": {"resourceClaims": [{"name": "mine", "resourceClaimName": "shared"}]}}
    known = asyncio.run(needed(FoundPod("Pod p", "ml", pod, {}, confined=False), Client()))  # type: ignore[arg-type]
    assert known == {Ref("resourceclaims", "shared"): DeviceClaim(())}
    assert asked == [f"/apis/resource.k8s.io/{version}/namespaces/ml/resourceclaims/shared"]
