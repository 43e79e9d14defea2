"""What a pod becomes when it is created."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.claim import Claim, Devices, Spec
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core.admission import AdmissionVerdict, admit
from preflight_testing.apidouble.patches import json_patch

THREE = ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"]


def claim(count: int = 2, gang: str = "") -> Claim:
    return Claim(
        namespace="team",
        name="two",
        uid="u",
        spec=Spec(devices=Devices(count=count), gang_ref=gang),
    )


def pod(*, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    about = {names.CLAIM_ANNOTATION: "two"} if annotations is None else annotations
    return {
        "metadata": {"name": "p", "annotations": about},
        "spec": {"containers": [{"name": "main"}], **spec},
    }


def applied(before: dict[str, Any], verdict: AdmissionVerdict) -> dict[str, Any]:
    assert not verdict.refused, verdict.refused
    made = json_patch(before, list(verdict.patch))
    assert isinstance(made, dict)
    return made


def test_every_container_init_container_and_sidecar_gets_the_three_entries_and_no_others_of_those_names() -> (
    None
):
    own = [
        {"name": "A", "value": "1"},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "7"},
        {"name": "B", "value": "2"},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "8"},
    ]
    before = pod(
        containers=[{"name": "main", "env": own}],
        initContainers=[{"name": "warm"}, {"name": "side", "restartPolicy": "Always"}],
    )
    made = applied(before, admit(before, claim(), Config()))
    assert [one["name"] for one in made["spec"]["containers"][0]["env"]] == [
        "A",
        "CUDA_VISIBLE_DEVICES",
        "B",
        THREE[0],
        THREE[2],
    ]
    for container in made["spec"]["initContainers"]:
        assert [one["name"] for one in container["env"]] == THREE
    entry = made["spec"]["containers"][0]["env"][1]
    assert (
        entry["valueFrom"]["fieldRef"]["fieldPath"]
        == "metadata.annotations['gpu.scheduling/cuda-visible-devices']"
    )


def test_the_pod_is_counted_tolerates_our_nodes_and_goes_to_our_scheduler() -> None:
    before = pod()
    verdict = admit(before, claim(), Config())
    spec = applied(before, verdict)["spec"]
    assert spec["containers"][0]["resources"] == {
        "limits": {"gpu.scheduling/gpu": "2"},
        "requests": {"gpu.scheduling/gpu": "2"},
    }
    assert spec["tolerations"] == [
        {
            "key": "gpu.scheduling/managed",
            "operator": "Equal",
            "value": "true",
            "effect": "NoSchedule",
        }
    ]
    assert spec["schedulerName"] == "gpu-scheduler"
    assert "schedulingGates" not in spec
    assert len(verdict.warnings) == 1


@pytest.mark.parametrize("found", [None, claim(gang="job")], ids=["missing claim", "gang"])
def test_a_pod_whose_claim_is_missing_and_a_gangs_member_wait_behind_the_gate(
    found: Claim | None,
) -> None:
    before = pod(schedulingGates=[{"name": "other"}])
    assert applied(before, admit(before, found, Config()))["spec"]["schedulingGates"] == [
        {"name": "other"},
        {"name": names.GATE},
    ]


def test_what_only_the_system_writes_is_taken_off_a_claim_pod() -> None:
    before = pod(
        annotations={
            names.CLAIM_ANNOTATION: "two",
            "mine": "stays",
            **dict.fromkeys(names.FORGEABLE, "node-a:0"),
        }
    )
    assert applied(before, admit(before, claim(), Config()))["metadata"]["annotations"] == {
        names.CLAIM_ANNOTATION: "two",
        "mine": "stays",
    }


def test_allocated_without_a_claim_is_a_literal_value() -> None:
    before = pod(
        annotations={names.ALLOCATED_ANNOTATION: "node-a:0,1"}, initContainers=[{"name": "i"}]
    )
    made = applied(before, admit(before, None, Config()))["spec"]
    assert (
        made["containers"][0]["env"]
        == made["initContainers"][0]["env"]
        == [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}]
    )


def test_a_pod_with_none_of_our_annotations_is_left_alone_unless_others_are_guarded() -> None:
    before = pod(annotations={})
    assert admit(before, None, Config()) == AdmissionVerdict()
    env = applied(before, admit(before, None, Config(guard_others=True)))["spec"]["containers"][0][
        "env"
    ]
    assert env == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    plugin = pod(
        annotations={}, containers=[{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 1}}}]
    )
    assert admit(plugin, None, Config(guard_others=True)) == AdmissionVerdict()


ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
OTHER = {"name": "A", "value": "1"}


@pytest.mark.parametrize(
    ("annotations", "spec"),
    [
        ({}, {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}),
        ({names.ALLOCATED_ANNOTATION: "node-a:0"}, {}),
    ],
    ids=["a network card's claim", "allocated by nobody"],
)
def test_a_guarded_pod_sees_no_gpu_whatever_else_it_says(
    annotations: dict[str, str], spec: dict[str, Any]
) -> None:
    parts = [{"name": "c", "env": [ALL, OTHER]}, {"name": "d"}]
    before = pod(annotations=annotations, containers=parts, initContainers=parts[:1], **spec)
    made = applied(before, admit(before, None, Config(guard_others=True)))["spec"]
    assert [one["env"][0] for one in (*made["containers"], *made["initContainers"])] == [VOID] * 3


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "volcano.sh/vgpu-number"],
)
def test_beside_a_device_plugin_the_plugins_variable_stands_and_no_other(resource: str) -> None:
    asks = {"limits": {resource: "1"}}
    parts = [
        {"name": "c", "env": [ALL, OTHER, ALL], "resources": asks},
        {"name": "side", "env": [ALL]},
        {"name": "none", "resources": {"limits": {resource: "0"}}, "env": [ALL]},
    ]
    before = pod(annotations={}, containers=parts)
    made = applied(before, admit(before, None, Config(guard_others=True)))["spec"]["containers"]
    # Of two variables of one name the container's wins over what the plugin sets.
    assert [one["env"] for one in made] == [[OTHER], [VOID], [VOID]]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodeName": "node-a"}, "spec.nodeName: is set"),
        ({"schedulerName": "volcano"}, 'spec.schedulerName: is "volcano"'),
        (
            {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            '"nvidia.com/gpu": is asked for beside',
        ),
        (
            {
                "initContainers": [
                    {"name": "m", "resources": {"requests": {"nvidia.com/mig-1g.5gb": 1}}}
                ]
            },
            '"nvidia.com/mig-1g.5gb"',
        ),
        ({"resourceClaims": [{"name": "gpus"}]}, 'spec.resourceClaims: "gpus"'),
        (
            {"containers": [{"name": "m", "resources": {"limits": {"gpu.scheduling/gpu": 3}}}]},
            "gpu.scheduling/gpu: is 3",
        ),
        (
            {"containers": [{"name": "m", "resources": {"limits": {"gpu.scheduling/gpu": "1e3"}}}]},
            "gpu.scheduling/gpu: is not a whole",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(spec: dict[str, Any], words: str) -> None:
    refused = admit(pod(**spec), claim(), Config(), gpu_entries={"gpus"}).refused
    assert words in refused
    assert refused.endswith(".")


def test_all_that_is_wrong_is_said_at_once() -> None:
    refused = admit(
        pod(annotations={names.CLAIM_ANNOTATION: "No Name"}, nodeName="n", schedulerName="x"),
        None,
        Config(),
    ).refused
    assert refused.count("; ") == 3


NONE = ["", " ", "Two", "a/b", "-a", "a-", "a.", "a..b", "a.-b", "a-.b", "a\n", "a" * 254]


@pytest.mark.parametrize("name", NONE)
def test_a_name_that_no_claim_can_ever_have_is_refused_and_not_waited_for(name: str) -> None:
    refused = admit(pod(annotations={names.CLAIM_ANNOTATION: name}), None, Config()).refused
    assert "is not the name of a GpuClaim" in refused


@pytest.mark.parametrize("name", ["a", "0", "a-b.c", "a--b", "ip-10-0-0-1.ec2", "a" * 253])
def test_a_name_that_a_claim_may_have_is_waited_for(name: str) -> None:
    verdict = admit(pod(annotations={names.CLAIM_ANNOTATION: name}), None, Config())
    assert not verdict.refused
    assert any(one["path"] == "/spec/schedulingGates" for one in verdict.patch)


def test_a_missing_claim_is_refused_where_the_operator_wants_that() -> None:
    assert "there is no GpuClaim two" in admit(pod(), None, Config(missing_claim="deny")).refused


def test_the_count_of_all_containers_may_be_the_claims_already() -> None:
    parts = [
        {"name": one, "resources": {"limits": {"gpu.scheduling/gpu": 1}}} for one in ("a", "b")
    ]
    before = pod(containers=parts)
    assert [
        one["resources"]
        for one in applied(before, admit(before, claim(), Config()))["spec"]["containers"]
    ] == [one["resources"] for one in parts]


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {"name": st.sampled_from([*THREE, "A", "B"])},
    optional={"value": st.text(max_size=4), "valueFrom": json},
)
resources = st.fixed_dictionaries(
    {},
    optional={
        "limits": st.dictionaries(
            st.sampled_from(["gpu.scheduling/gpu", "cpu"]), st.sampled_from(["1", "2", 2])
        )
    },
)
containers = st.fixed_dictionaries(
    {"name": st.text(max_size=5)},
    optional={"env": st.lists(entries, max_size=6), "resources": resources},
)


@given(
    st.lists(containers, min_size=1, max_size=3),
    st.lists(containers, max_size=2),
    st.sampled_from([None, claim(), claim(gang="g")]),
    st.dictionaries(
        st.sampled_from([names.CLAIM_ANNOTATION, *names.FORGEABLE]),
        st.sampled_from(["two", "node-a:0", "x"]),
    ),
    st.booleans(),
)
def test_a_second_call_is_an_empty_patch(
    main: Any, init: Any, found: Claim | None, annotations: dict[str, str], guard: bool
) -> None:
    before = pod(annotations=annotations, containers=main, initContainers=init)
    rules = Config(guard_others=guard)
    first = admit(before, found, rules)
    if not first.refused:
        again = admit(applied(before, first), found, rules)
        assert (again.patch, again.refused) == ((), "")


@given(json, json, json, json)
def test_a_hostile_pod_is_answered_and_never_raises(
    spec: Any, env: Any, amount: Any, metadata: Any
) -> None:
    limits = {"limits": {"gpu.scheduling/gpu": amount}}
    specs: list[Any] = [
        spec,
        {"containers": spec},
        {"containers": [{"env": env, "resources": env}], "tolerations": [spec]},
        {"containers": [{"env": [{"name": "A", "valueFrom": env}], "resources": limits}]},
        {
            "containers": [{"resources": {"limits": env}}],
            "initContainers": spec,
            "tolerations": [{"key": amount}],
        },
    ]
    about = {"annotations": {names.CLAIM_ANNOTATION: "two"}}
    shapes: list[Any] = [{"spec": each, "metadata": about} for each in specs]
    shapes.append({"spec": {"containers": []}, "metadata": metadata})
    for shape in shapes:
        assert isinstance(admit(shape, claim(), Config(guard_others=True)), AdmissionVerdict)
