"""A component as it is created: labels, Kueue's wishes, affinities,
and what makes it impossible.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from player import job, service, wrapper
from preflight_appwrapper.api.names import CLAIMED, INDEX, LABEL
from preflight_appwrapper.api.rules import Autopilot, LabelTaint, WrapperRules
from preflight_appwrapper.api.types import wrapper_from
from preflight_appwrapper.core.components import (
    ComponentError,
    build,
    claims_of,
    named,
)

KEY = "autopilot.ibm.com/gpuhealth"
AVOID = {"key": KEY, "operator": "NotIn", "values": ["ERR", "EVICT"]}


def built(
    template: dict[str, Any], infos: Any = None, rules: WrapperRules | None = None
) -> dict[str, Any]:
    raw = wrapper(template)
    if infos is not None:
        raw["spec"]["components"][0]["podSetInfos"] = infos
    return build(wrapper_from(raw), 0, "train", rules or WrapperRules())


def pod_spec(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = made["spec"]["template"]["spec"]
    return found


def with_spec(**spec: Any) -> dict[str, Any]:
    made = job()
    made["spec"]["template"]["spec"].update(spec)
    return made


def required(made: dict[str, Any]) -> Any:
    affinity = pod_spec(made)["affinity"]["nodeAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def test_object_and_pod_template_carry_the_label_and_the_object_its_owner() -> None:
    made = built(job())
    assert made["metadata"]["labels"] == {LABEL: "w"}
    assert made["spec"]["template"]["metadata"]["labels"] == {LABEL: "w"}
    owner = made["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("AppWrapper", "wrapper-uid", True)
    assert made["metadata"]["namespace"] == "ns"


def test_an_exported_manifest_has_no_version_that_the_api_server_would_refuse() -> None:
    template = job()
    template["metadata"] |= {"resourceVersion": "123", "uid": "of-another", "generation": 2}
    assert "resourceVersion" not in built(template)["metadata"]


def test_the_manifest_itself_is_not_changed_and_the_same_input_gives_the_same_bytes() -> None:
    template = job()
    before = copy.deepcopy(template)
    assert str(built(template)) == str(built(template))
    assert template == before


def test_what_kueue_wants_is_merged_into_the_pods() -> None:
    info = {
        "labels": {"a": "1"},
        "annotations": {"b": "2"},
        "nodeSelector": {"zone": "z"},
        "tolerations": [{"key": "t", "operator": "Exists"}],
        "schedulingGates": [{"name": "gate"}, {"name": "mine"}],
    }
    made = built(
        with_spec(schedulingGates=[{"name": "mine"}], tolerations=[{"key": "own"}]), [info]
    )
    spec, metadata = pod_spec(made), made["spec"]["template"]["metadata"]
    assert metadata["labels"] == {LABEL: "w", "a": "1"}
    assert metadata["annotations"] == {"b": "2", INDEX: "0"}
    assert spec["nodeSelector"] == {"zone": "z"}
    assert spec["tolerations"] == [{"key": "own"}, {"key": "t", "operator": "Exists"}]
    assert spec["schedulingGates"] == [{"name": "mine"}, {"name": "gate"}]


@pytest.mark.parametrize(
    ("template", "infos", "where"),
    [
        (with_spec(nodeSelector={"zone": "a"}), [{"nodeSelector": {"zone": "b"}}], "spec.nodeSelector"),
        (with_spec(nodeSelector=[]), [{"nodeSelector": {"zone": "b"}}], "must be a map"),
        (with_spec(tolerations="x"), [{"tolerations": [{}]}], "must be a list"),
        (with_spec(affinity="x"), None, "spec.affinity: must be a map"),
        ({**job(), "metadata": {"name": "x", "labels": {LABEL: "other"}}}, None, "metadata.labels"),
        ({**job(), "metadata": {"name": "x", "namespace": "kube-system"}}, None, "metadata.namespace"),
        ({**job(), "metadata": {"name": "x", "namespace": ["a"]}}, None, "metadata.namespace"),
        (
            {**job(), "metadata": {"name": "x", "ownerReferences": [{"controller": True}]}},
            None,
            "ownerReferences",
        ),
    ],
)  # fmt: skip
def test_what_contradicts_is_one_sentence_with_its_path(
    template: dict[str, Any], infos: Any, where: str
) -> None:
    with pytest.raises(ComponentError) as caught:
        built(template, infos)
    assert where in str(caught.value)
    assert str(caught.value).startswith("spec.components[0].template")


@pytest.mark.parametrize("quantity", [8, "8", "500m", "1e3", "1Ki", 0.5])
def test_pods_that_ask_avoid_marked_nodes(quantity: object) -> None:
    template = with_spec(
        containers=[{"name": "a", "resources": {"requests": {"nvidia.com/gpu": quantity}}}]
    )
    assert required(built(template)) == [{"matchExpressions": [AVOID]}]


@pytest.mark.parametrize("quantity", ["0", "0m", "-1", -1, 0, "x", "", None, True, [], "9" * 100])
def test_pods_that_ask_for_nothing_keep_no_affinity(quantity: object) -> None:
    template = with_spec(
        containers=[{"name": "a", "resources": {"limits": {"nvidia.com/gpu": quantity}}}]
    )
    assert "affinity" not in pod_spec(built(template))


def test_an_init_container_that_asks_is_enough() -> None:
    asking = [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]
    assert required(built(with_spec(containers=[{"name": "a"}], initContainers=asking)))


CLAIMS = [
    {"name": "a", "resourceClaimTemplateName": "gpus"},
    {"name": "b", "resourceClaimName": "nic"},
]
GPUS, NIC = ("ResourceClaimTemplate", "gpus"), ("ResourceClaim", "nic")


@pytest.mark.parametrize(
    ("known", "avoids", "claimed"),
    [
        ({GPUS: {"gpu.nvidia.com"}, NIC: {"nic.example.com"}}, True, "gpu.nvidia.com"),
        ({GPUS: {"mig.nvidia.com"}, NIC: set()}, False, None),
        ({GPUS: {"mig.nvidia.com"}}, True, None),  # the other may be for GPUs
    ],
)
def test_pods_that_have_gpus_by_claims_avoid_marked_nodes_and_say_so(
    known: dict[tuple[str, str], set[str]], avoids: bool, claimed: str | None
) -> None:
    template = with_spec(containers=[{"name": "a"}], resourceClaims=CLAIMS)
    of = wrapper_from(wrapper(template))
    assert claims_of(of, 0) == [GPUS, NIC]
    made = build(of, 0, "train", WrapperRules(), known)
    assert ("affinity" in pod_spec(made)) is avoids
    if avoids:
        assert required(made) == [{"matchExpressions": [AVOID]}]
    annotations = made["spec"]["template"]["metadata"].get("annotations", {})
    assert annotations.get(CLAIMED) == claimed


def test_a_pod_that_has_gpus_by_a_device_class_alone_avoids_marked_nodes() -> None:
    asking = {"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 1}}
    made = built(with_spec(containers=[{"name": "a", "resources": asking}]))
    assert required(made) == [{"matchExpressions": [AVOID]}]


def test_every_term_gets_the_expression_and_an_empty_one_is_left_alone() -> None:
    own = {"key": "zone", "operator": "In", "values": ["z"]}
    terms = [{"matchExpressions": [own]}, {"matchFields": [own]}, {}, {"matchExpressions": []}]
    affinity = {
        "podAffinity": {"x": 1},
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        },
    }
    made = built(with_spec(affinity=affinity))
    assert required(made) == [
        {"matchExpressions": [own, AVOID]},
        {"matchFields": [own], "matchExpressions": [AVOID]},
        {},
        {"matchExpressions": []},
    ]
    assert pod_spec(made)["affinity"]["podAffinity"] == {"x": 1}


def test_preferred_labels_become_one_weighted_term_and_one_key_one_expression() -> None:
    taints = {
        "nvidia.com/gpu": (
            LabelTaint("k", "A", "NoSchedule"),
            LabelTaint("k", "W", "PreferNoSchedule"),
        ),
        "rdma/ib": (LabelTaint("k", "B", "NoExecute"),),
    }
    asking = [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1, "rdma/ib": 1}}}]
    made = built(
        with_spec(containers=asking),
        rules=WrapperRules(autopilot=Autopilot(taints=taints, weight=7)),
    )
    assert required(made) == [
        {"matchExpressions": [{"key": "k", "operator": "NotIn", "values": ["A", "B"]}]}
    ]
    preferred = pod_spec(made)["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert [one["weight"] for one in preferred] == [7]


def test_injection_can_be_switched_off_and_a_scheduler_is_only_set_where_none_is() -> None:
    rules = WrapperRules(autopilot=Autopilot(inject=False), scheduler_name="mine")
    assert "affinity" not in pod_spec(built(job(), rules=rules))
    assert pod_spec(built(job(), rules=rules))["schedulerName"] == "mine"
    assert pod_spec(built(with_spec(schedulerName="own"), rules=rules))["schedulerName"] == "own"


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (service("a"), "Service a"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}}, "Pod p-abcde"),
        (
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x" * 80}},
            "Pod " + "x" * 58 + "abcde",
        ),
    ],
)
def test_a_component_has_its_name_before_it_exists(template: dict[str, Any], wanted: str) -> None:
    assert str(named(wrapper_from(wrapper(template)), 0, "abcde")) == wanted


@pytest.mark.parametrize(
    "template", [[], "x", None, {}, {"kind": "Job"}, {"apiVersion": "v1", "kind": "Pod"}]
)
def test_a_template_that_is_no_manifest_is_refused(template: Any) -> None:
    with pytest.raises(ComponentError, match=r"^spec\.components\[0\]\.template"):
        named(wrapper_from(wrapper(template)), 0, "abcde")


def test_what_is_nested_too_deeply_is_refused_and_not_copied() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"x": deep}
    with pytest.raises(ComponentError, match="nested too deeply"):
        built({**job(), "status": deep})


def test_each_pod_says_of_which_component_it_is_whatever_its_template_says() -> None:
    templates = [job("a"), job("b"), job("c")]
    templates[1]["spec"]["template"]["metadata"] = {"annotations": {INDEX: "0"}}
    templates[2]["spec"]["template"]["metadata"] = {"annotations": None}
    of = wrapper_from(wrapper(*templates))
    for i, name in enumerate("abc"):
        made = build(of, i, name, WrapperRules())
        assert made["spec"]["template"]["metadata"]["annotations"] == {INDEX: str(i)}
