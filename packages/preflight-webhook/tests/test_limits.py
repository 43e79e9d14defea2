"""What a pod may have before admission looks at it in earnest, and what an answer says of a
tenant's text.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from preflight_kube.admission.review import MOST_TEXT, MOST_WARNINGS, BadReview, encode
from preflight_webhook.config.config import parse
from preflight_webhook.core import limits
from preflight_webhook.core.admit import decide
from preflight_webhook.core.decision import Decision

CONFIG = parse("""
checks: [{name: dcgm-diag, image: d}, {name: nccl-loopback, image: l}]
skipNcclWithoutNetwork: false
podSelection: {enabled: true}
gpuDetection: {deviceClasses: [gpu.nvidia.com]}
""")
GPU = {"limits": {"nvidia.com/gpu": "8"}}


def pod(gpu: bool = True, **main: Any) -> dict[str, Any]:
    resources = GPU if gpu else {"limits": {"cpu": "1"}}
    return {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "resources": resources, **main}]},
    }


def decided(made: dict[str, Any]) -> Decision:
    return decide(json.dumps(made).encode(), "ml", CONFIG)


def with_spec(**more: Any) -> dict[str, Any]:
    made = pod()
    made["spec"].update(more)
    return made


def with_metadata(**more: Any) -> dict[str, Any]:
    made = pod()
    made["metadata"].update(more)
    return made


MANY = limits.ENTRIES + 1
TOO_MUCH = {
    "env": (pod(env=[{"name": f"A{i}"} for i in range(MANY)]), "variables", limits.ENTRIES),
    "envFrom": (pod(envFrom=[{"prefix": f"A{i}"} for i in range(MANY)]), "envFrom", limits.ENTRIES),
    "mounts": (
        pod(volumeMounts=[{"name": f"a{i}"} for i in range(MANY)]),
        "mounts",
        limits.ENTRIES,
    ),
    "volumes": (
        with_spec(volumes=[{"name": f"a{i}"} for i in range(MANY)]),
        "volumes",
        limits.ENTRIES,
    ),
    "environment": (
        pod(env=[{"name": "A", "value": "x" * limits.SETTINGS_BYTES}]),
        "bytes",
        limits.SETTINGS_BYTES,
    ),
    "security": (
        pod(securityContext={"capabilities": {"add": ["A" * 30] * 20_000}}),
        "bytes",
        limits.SETTINGS_BYTES,
    ),
    "init containers": (
        with_spec(initContainers=[{"name": f"a{i}"} for i in range(limits.CONTAINERS)]),
        "containers",
        limits.CONTAINERS,
    ),
    "resources": (
        pod(resources={"limits": {f"a/{i}": "1" for i in range(300)}}),
        "resources",
        limits.RESOURCES,
    ),
    "claims": (
        with_spec(
            resourceClaims=[{"name": f"a{i}", "resourceClaimName": f"a{i}"} for i in range(17)]
        ),
        "claims",
        limits.CLAIMS,
    ),
    "labels of ours": (
        with_metadata(labels={f"preflight.nvsentinel.nvidia.com/{i}": "x" for i in range(65)}),
        "entries",
        limits.OURS,
    ),
    "container name": (
        with_spec(initContainers=[{"name": "a" * 1_000}]),
        "characters",
        limits.NAME,
    ),
    "resource name": (
        pod(resources={"limits": {"a" * 1_000: "1"}}),
        "characters",
        limits.RESOURCE_NAME,
    ),
    "claim name": (
        with_spec(resourceClaims=[{"name": "a", "resourceClaimName": "a" * 1000}]),
        "characters",
        253,
    ),
    "pull secret": (with_spec(imagePullSecrets=[{"name": "a" * 1_000}]), "characters", 253),
    "asked": (
        with_metadata(annotations={"nvsentinel.nvidia.com/preflight-checks": "a," * 3_000}),
        "characters",
        limits.ASKED,
    ),
}


@pytest.mark.parametrize(("made", "what", "limit"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_pod_beyond_a_limit_is_denied_in_one_sentence_with_what_was_found_and_the_limit(
    made: dict[str, Any], what: str, limit: int
) -> None:
    decision = decided(made)
    assert decision.result == "denied"
    assert what in decision.message
    assert f" {limit} " in decision.message
    assert decision.message.endswith(".")
    assert len(decision.message) < 400


AT_THE_LIMIT = {
    "env": pod(env=[{"name": f"A{i}", "value": "{{{"} for i in range(limits.ENTRIES)]),
    "mounts": pod(
        volumeMounts=[{"name": f"a{i}", "mountPath": f"/a{i}"} for i in range(limits.ENTRIES)]
    ),
    "volumes": with_spec(volumes=[{"name": f"a{i}"} for i in range(limits.ENTRIES)]),
    "init containers": with_spec(
        initContainers=[{"name": f"a{i}"} for i in range(limits.CONTAINERS - 1)]
    ),
    "resources": pod(
        resources={"limits": {"nvidia.com/gpu": "8", **{f"a/{i}": "1" for i in range(255)}}}
    ),
    "container name": with_spec(initContainers=[{"name": "a" * limits.NAME}]),
    "braces in a text": pod(env=[{"name": "A", "value": "{" * 50_000}]),
}


@pytest.mark.parametrize("made", AT_THE_LIMIT.values(), ids=AT_THE_LIMIT)
def test_a_pod_at_a_limit_is_checked(made: dict[str, Any]) -> None:
    assert decided(made).result == "injected"


@pytest.mark.parametrize("kind", ["env", "envFrom", "volumeMounts"])
def test_a_pod_without_gpus_is_admitted_however_much_it_has(kind: str) -> None:
    assert (
        decided(pod(gpu=False, **{kind: [{"name": f"a{i}"} for i in range(10_000)]})).result
        == "no-gpu"
    )


def test_nothing_is_counted_of_what_no_check_inherits() -> None:
    config = parse("checks: [{name: dcgm-diag, image: d}]")
    made = json.dumps(pod(env=[{"name": f"A{i}"} for i in range(5_000)])).encode()
    assert decide(made, "ml", config).result == "injected"


def test_a_mirror_pod_is_left_as_it_is() -> None:
    made = with_metadata(annotations={"kubernetes.io/config.mirror": "x"})
    assert (decided(made).result, decided(made).patch) == ("mirror", [])


def test_a_mirror_pod_that_carries_what_is_reserved_is_denied() -> None:
    mirror = {"kubernetes.io/config.mirror": "x"}
    roster = {"preflight.nvsentinel.nvidia.com/roster": "{}"}
    label = {"preflight.nvsentinel.nvidia.com/checked": "true"}
    for made in (
        with_metadata(annotations=mirror | roster),
        with_metadata(annotations=mirror, labels=label),
    ):
        assert decided(made).result == "denied"
        assert "reserved for preflight; leave these out" in decided(made).message


LONG = "x" * 300_000
TEXTS = {
    "annotation": with_metadata(
        annotations={"nvsentinel.nvidia.com/preflight-checks": "x" * 4_000}
    ),
    "quantity": pod(resources={"limits": {"nvidia.com/gpu": LONG}}),
    "container": pod(name=LONG),
    "ours": pod(name="preflight-" + LONG),
    "mount": pod(volumeMounts=[{"name": "preflight-" + LONG, "mountPath": "/a"}]),
    "variable": pod(env=[{"name": f"NCCL_{i}" + "x" * 5_000, "value": "$(A)"} for i in range(50)]),
}


@pytest.mark.parametrize("made", TEXTS.values(), ids=TEXTS)
def test_an_answer_carries_little_of_a_tenants_text(made: dict[str, Any]) -> None:
    decision = decided(made)
    answer = json.loads(encode("u", decision.response))["response"]
    said = [answer.get("status", {}).get("message", ""), *answer.get("warnings", ())]
    assert max(map(len, said)) <= MOST_TEXT
    assert len(said) <= MOST_WARNINGS + 1
    assert all(one.count("x") < 1_100 for one in said)


@pytest.mark.parametrize("depth", [1_100, 100_000])
@pytest.mark.parametrize("where", ["metadata", "spec", "env"])
def test_what_is_nested_too_deep_is_refused_in_a_sentence(depth: int, where: str) -> None:
    nested = "[" * depth + "]" * depth
    texts = {
        "metadata": f'{{"metadata": {{"managedFields": {nested}}}, "spec": {{"containers": []}}}}',
        "spec": f'{{"spec": {{"x": {nested}, "containers": []}}}}',
        "env": f'{{"spec": {{"containers": [{{"name": "a", "env": {nested}}}]}}}}',
    }
    with pytest.raises(BadReview, match="nested deeper"):
        decide(texts[where].encode(), "ml", CONFIG)


HOSTILE = "a\u202eb\u200bc\x1b[2Jd\r\ne\x00f\u2066"


@pytest.mark.parametrize(
    "made",
    [
        with_metadata(annotations={"nvsentinel.nvidia.com/preflight-checks": HOSTILE}),
        with_spec(initContainers=[{"name": "preflight-" + HOSTILE, "image": "x"}]),
        pod(resources={"limits": {"nvidia.com/gpu": HOSTILE}}),
        pod(volumeMounts=[{"name": "preflight-" + HOSTILE, "mountPath": "/x"}]),
        pod(name="x" * 70 + HOSTILE),
        with_spec(resourceClaims=[{"name": HOSTILE * 10, "resourceClaimName": "x"}]),
    ],
    ids=["asked", "init container", "amount", "mount", "container", "claim"],
)
def test_no_text_of_a_pod_changes_a_terminal_or_the_order_of_reading(made: dict[str, Any]) -> None:
    decision = decided(made)
    assert decision.denied
    answer = json.loads(encode("u", decision.response))
    assert answer["response"]["status"]["message"].isprintable()


def test_a_warning_is_printable_too() -> None:
    decision = Decision("injected", "x", warnings=[f"{HOSTILE} differs"])
    answer = json.loads(encode("u", decision.response))
    assert answer["response"]["warnings"] == ["a\\u202eb\\u200bcd e\\x00f\\u2066 differs"]
