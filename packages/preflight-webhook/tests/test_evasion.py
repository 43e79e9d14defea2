"""Ways round a required check: each is checked, or denied with a reason, and never silently let
pass.
"""

from __future__ import annotations

from typing import Any

import pytest
from pods import GPU
from pods import judged as decided
from preflight_webhook.config.config import Config, parse
from preflight_webhook.core.decision import Decision

CONFIG = parse(
    "checks: [{name: dcgm-diag, image: d}, {name: mine, image: m}]\nproviderInit: [driver*]"
)


def judged(pod: dict[str, Any], config: Config = CONFIG) -> tuple[Decision, dict[str, Any]]:
    return decided(pod, config)


def container(name: str, limits: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", "resources": {"limits": limits or {}}, **fields}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


SLICES = {"nvidia.com/mig-1g.10gb": "1", "nvidia.com/gpu.shared": "2"}


@pytest.mark.parametrize("slices", [{name: count} for name, count in SLICES.items()] + [SLICES])
def test_whole_gpus_beside_slices_are_tested_alone(slices: dict[str, str]) -> None:
    decision, after = judged(pod(container("main", {GPU: "8", **slices})))
    assert decision.checks == ["dcgm-diag", "mine"]
    for one in after["spec"]["initContainers"]:
        assert one["resources"]["limits"] == {GPU: "8"}
        assert {"name": "EXPECTED_GPUS", "value": "8"} in one["env"]
    for name, count in slices.items():
        assert f"{count} {name}" in decision.message.split("; ")[1]
    assert judged(after)[0].patch == []


def test_a_check_that_can_test_slices_gets_them_too() -> None:
    config = parse("checks: [{name: mine, image: m, supports: [mig]}, {name: other, image: o}]")
    _, after = judged(pod(container("main", {GPU: "1", **SLICES})), config)
    mine, other = after["spec"]["initContainers"]
    assert mine["resources"]["limits"] == {GPU: "1", "nvidia.com/mig-1g.10gb": "1"}
    assert "EXPECTED_GPUS" not in {e["name"] for e in mine["env"]}
    assert other["resources"]["limits"] == {GPU: "1"}


def test_slices_alone_are_left_out_and_it_is_said() -> None:
    decision, _ = judged(pod(container("main", SLICES)))
    assert {(s.check, s.reason) for s in decision.skipped} == {
        ("dcgm-diag", "mig"),
        ("mine", "mig"),
    }


@pytest.mark.parametrize("policy", [None, "Always"])
@pytest.mark.parametrize("held", ["8", "7", "1"])
def test_no_container_gets_gpus_before_a_required_check(policy: str | None, held: str) -> None:
    first = container(
        "driver-of-mine", {GPU: held}, **({"restartPolicy": policy} if policy else {})
    )
    decision, _ = judged(pod(container("main", {GPU: "1"}), initContainers=[first]))
    assert decision.denied
    assert '"driver-of-mine" gets GPUs and starts before preflight-dcgm-diag' in decision.message
    assert "providerInit" in decision.message


def test_a_required_check_behind_a_sidecar_that_holds_gpus_is_refused_and_an_optional_one_left_out() -> (
    None
):
    side = container("side", {GPU: "2"}, restartPolicy="Always")
    late = parse("checks: [{name: mine, image: m, placement: last, required: true}]")
    assert judged(pod(container("main"), initContainers=[side]), late)[0].denied
    optional = parse("checks: [{name: mine, image: m, placement: last}]")
    assert (
        judged(pod(container("main"), initContainers=[side]), optional)[0].label
        == "no-checks-no-room"
    )
    watching = parse(
        "checks: [{name: mine, image: m, placement: last, required: true, enforcement: observe}]"
    )
    assert (
        judged(pod(container("main"), initContainers=[side]), watching)[0].label
        == "no-checks-no-room"
    )
    done = container("prepare", {GPU: "2"})
    assert judged(pod(container("main", {GPU: "2"}), initContainers=[done]), late)[0].checks == [
        "mine"
    ]


@pytest.mark.parametrize("limits", [{}, {GPU: "1"}])
@pytest.mark.parametrize("section", ["containers", "initContainers"])
def test_a_users_container_under_the_reserved_prefix_is_denied_and_never_dropped(
    section: str, limits: dict[str, str]
) -> None:
    made = pod(container("main", limits))
    made["spec"].setdefault(section, []).insert(0, container("preflight-download"))
    decision, _ = judged(made)
    assert decision.denied
    assert f'spec.{section}: the name "preflight-download" is reserved' in decision.message
    assert "rename the container" in decision.message


def test_our_own_output_passes_again_and_with_a_check_that_is_no_more_it_is_denied() -> None:
    _, after = judged(pod(container("main", {GPU: "1"})))
    assert judged(after)[0].result == "unchanged"
    fewer = parse("checks: [{name: dcgm-diag, image: d}]")
    assert "preflight-mine" in judged(after, fewer)[0].message


@pytest.mark.parametrize("limits", [{}, {GPU: "1"}])
def test_an_init_container_that_a_user_calls_like_a_check_is_denied_and_never_dropped(
    limits: dict[str, str],
) -> None:
    named = pod(
        container("main", limits),
        initContainers=[container("preflight-dcgm-diag", command=["fetch"])],
    )
    decision, _ = judged(named)
    assert decision.denied
    assert decision.message == (
        'spec.initContainers: the name "preflight-dcgm-diag" is reserved for preflight checks ("preflight-…"); rename the container, '
        "or copy a checked pod with its labels (kubectl debug --copy-to … --keep-labels)."
    )
