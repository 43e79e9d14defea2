"""Variables that say which GPUs a container sees, where a scheduler chooses them: checks have the
workload's.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pods import judged as decided
from preflight_webhook.config.config import Config, ConfigError, parse
from preflight_webhook.core.decision import Decision

COUNTED = "gpu.scheduling/gpu"
CONFIG = """
checks:
  - {name: dcgm-diag, image: d}
  - {name: nccl-loopback, image: l, envPatterns: [NCCL_*, CUDA_DEVICE_ORDER]}
gpuDetection: {resourceNames: [nvidia.com/gpu, gpu.scheduling/gpu]}
deviceVariables: {enabled: true}
"""
ON = parse(CONFIG)


def reference(name: str, annotation: str) -> dict[str, Any]:
    path = f"metadata.annotations['{annotation}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


WANTED = [
    reference("NVIDIA_VISIBLE_DEVICES", "gpu.scheduling/nvidia-visible-devices"),
    reference("CUDA_VISIBLE_DEVICES", "gpu.scheduling/cuda-visible-devices"),
    {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"},
]


def pod(
    limits: dict[str, str] | None = None,
    *,
    claim: str = "two",
    counted: bool = True,
    env: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    main = {
        "name": "main",
        "image": "i",
        "resources": {"limits": limits or {COUNTED: "2"}} if counted else {},
        "env": env or [],
    }
    annotations = {"gpu.scheduling/claim": claim} if claim else {}
    return {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [main]}}


def judged(made: dict[str, Any], config: Config = ON) -> tuple[Decision, dict[str, Any]]:
    return decided(made, config)


def devices(container: dict[str, Any]) -> list[dict[str, Any]]:
    names = {one["name"] for one in WANTED}
    return [one for one in container.get("env", ()) if one["name"] in names]


def checks(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        one
        for one in made["spec"].get("initContainers", ())
        if one["name"].startswith("preflight-")
    ]


def test_every_check_of_a_pod_with_a_claim_refers_to_the_gpus_that_its_binding_will_name() -> None:
    decision, made = judged(pod())
    assert decision.result == "injected"
    assert [devices(one) for one in checks(made)] == [WANTED, WANTED]
    assert {one["resources"]["limits"][COUNTED] for one in checks(made)} == {"2"}


def test_what_another_webhook_wrote_into_the_checks_meanwhile_is_what_stands_there_anyway() -> None:
    _, made = judged(pod())
    for one in made["spec"]["containers"]:
        one["env"] = [*WANTED]
    again, same = judged(made)
    assert again.result == "unchanged"
    assert same == made


def test_a_pods_author_bends_no_check_by_variables_of_its_own() -> None:
    own = [{"name": one["name"], "value": "GPU-well"} for one in WANTED]
    _, made = judged(pod(env=own))
    assert [devices(one) for one in checks(made)] == [WANTED, WANTED]
    for one in made["spec"]["initContainers"]:
        one["env"] = [*own, *one["env"]]
    _, rebuilt = judged(made)
    assert [devices(one) for one in checks(rebuilt)] == [WANTED, WANTED]


@pytest.mark.parametrize(
    "made",
    [pod(claim=""), pod({"nvidia.com/gpu": "2"}), pod({"nvidia.com/gpu": "2", COUNTED: "2"})],
    ids=["no claim", "GPUs of a device plugin", "GPUs of both"],
)
def test_where_something_else_says_which_gpus_a_pod_has_its_checks_get_no_variable_from_a_claim(
    made: dict[str, Any],
) -> None:
    decision, got = judged(made)
    assert decision.result == "injected"
    assert [devices(one) for one in checks(got)] == [[], []]


def test_without_being_asked_for_nothing_of_it_happens() -> None:
    off = parse(CONFIG.replace("enabled: true", "enabled: false"))
    _, made = judged(pod(), off)
    assert [devices(one) for one in checks(made)] == [[], []]
    assert judged(pod(counted=False), off)[0].result == "no-gpu"


def expected(made: dict[str, Any]) -> list[str]:
    return [
        entry["value"]
        for one in checks(made)
        for entry in one["env"]
        if entry["name"] == "EXPECTED_GPUS"
    ]


def test_a_pod_whose_claim_is_not_there_yet_is_a_gpu_pod_all_the_same() -> None:
    decision, made = judged(pod(counted=False))
    assert decision.result == "injected"
    assert "will test the GPUs of annotation gpu.scheduling/claim before" in decision.message
    assert [devices(one) for one in checks(made)] == [WANTED, WANTED]
    assert expected(made) == []  # which is not known; zero would be a pod without GPUs
    assert [one.get("resources", {}).get("limits") for one in checks(made)] == [None, None]
    assert judged(made)[0].result == "unchanged"


def test_its_checks_are_left_out_by_no_sidecar_and_inherit_from_its_first_container() -> None:
    made = pod(counted=False, env=[{"name": "NCCL_DEBUG", "value": "INFO"}])
    sidecar = {"name": "log", "image": "i", "restartPolicy": "Always"}
    made["spec"]["initContainers"] = [sidecar]
    decision, got = judged(made)
    assert (decision.result, decision.skipped) == ("injected", [])
    [_, loopback] = checks(got)
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in loopback["env"]


def test_whichever_webhook_comes_first_the_pod_is_the_same() -> None:
    _, first = judged(pod(counted=False))
    later = copy.deepcopy(first)
    later["spec"]["containers"][0]["resources"] = {"limits": {COUNTED: "2"}}
    _, second = judged(later)
    assert second == judged(pod())[1]
    assert expected(second) == ["2", "2"]


def test_other_gpus_of_a_pod_with_the_annotation_are_counted_as_ever() -> None:
    decision, made = judged(pod({"nvidia.com/gpu": "4"}))
    assert decision.gpus == {"nvidia.com/gpu": 4}
    assert expected(made) == ["4", "4"]


def test_a_pod_without_the_annotation_and_without_gpus_is_told_what_makes_one() -> None:
    decision, _ = judged(pod(counted=False, claim=""))
    assert decision.result == "no-gpu"
    assert decision.message.endswith("and it has no annotation gpu.scheduling/claim.")


REFUSED = {
    "uncounted": (
        CONFIG.replace(", gpu.scheduling/gpu]", "]"),
        'deviceVariables.resourceName: "gpu.scheduling/gpu" is not among gpuDetection.resourceNames',
    ),
    "set by the operator": (
        CONFIG.replace("image: d", "image: d, env: [{name: CUDA_VISIBLE_DEVICES, value: '0'}]"),
        "checks[0].env[0].name: CUDA_VISIBLE_DEVICES is one of deviceVariables",
    ),
    "laid over": (
        CONFIG.replace(
            "image: d", "image: d, container: {env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}"
        ),
        "checks[0].container.env[0].name: NVIDIA_VISIBLE_DEVICES is one of deviceVariables",
    ),
    "twice": (
        CONFIG.replace(
            "enabled: true", "enabled: true, variables: [{name: A, value: x}, {name: A, value: y}]"
        ),
        'deviceVariables.variables[1].name: "A" is there twice',
    ),
    "both": (
        CONFIG.replace(
            "enabled: true", "enabled: true, variables: [{name: A, value: x, annotation: a/b}]"
        ),
        "deviceVariables.variables[0]: it has an annotation and a value",
    ),
    "ours": (
        CONFIG.replace(
            "enabled: true", "enabled: true, variables: [{name: EXPECTED_GPUS, value: '1'}]"
        ),
        'deviceVariables.variables[0].name: "EXPECTED_GPUS" is a setting of the checks',
    ),
    "no key": (
        CONFIG.replace(
            "enabled: true", 'enabled: true, variables: [{name: A, annotation: "x\']"}]'
        ),
        "deviceVariables.variables[0].annotation",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_contradicts_itself_is_refused_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    assert [one for one in raised.value.problems if sentence in one], raised.value.problems
