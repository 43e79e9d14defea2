"""What is read of objects, of annotations and of the scheduler's calls, whatever stands in them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_gpu_scheduler.api import allocation, names
from preflight_gpu_scheduler.api.allocation import Reserved
from preflight_gpu_scheduler.api.claim import Claim, RawClaim
from preflight_gpu_scheduler.api.gpu_node_status import Inventory, RawStatus
from preflight_gpu_scheduler.api.types import Metadata, Pod, PodSpec
from preflight_gpu_scheduler.core.filter_prioritize import (
    ExtenderArgs,
    ExtenderBindingArgs,
    FilterResult,
    read_call,
)

tree = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def read(spec: object) -> Claim | list[str]:
    return RawClaim(metadata=Metadata(name="two"), spec=spec).read()


def read_status(status: object) -> Inventory:
    return RawStatus(Metadata(name="n"), status=msgspec.Raw(msgspec.json.encode(status))).read()


def problems_of(raw: object) -> list[str]:
    found = read(raw)
    return found if isinstance(found, list) else []


def claim(**devices: object) -> dict[str, object]:
    return {"devices": devices}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (claim(count=0), "spec.devices.count: must be at least 1; found the number 0."),
        (claim(count=-1), "spec.devices.count: must be at least 1; found the number -1."),
        (claim(count=65), "spec.devices.count: must be at most 64; found the number 65."),
        (
            claim(count="2"),
            'spec.devices.count: must be a whole number (GPUs for each pod); found the string "2".',
        ),
        (
            claim(exclusivity="MIG"),
            'spec.devices.exclusivity: must be one of Exclusive; found the string "MIG".',
        ),
        (
            {"selector": {"matchLabels": {"k": "v" * 64}}},
            f'spec.selector.matchLabels.k: must have at most 63 characters; found the string "{"v" * 59}…".',
        ),
        (None, "spec: is missing; set it."),
        (
            {7: "x"},
            "spec.7: unknown key; known here are devices, gangRef, selector, topology.",
        ),
    ],
)
def test_a_claim_that_cannot_be_is_told_so_in_a_sentence(raw: object, words: str) -> None:
    assert problems_of(raw) == [words]


def test_all_problems_of_a_claim_are_said_at_once() -> None:
    raw = {
        "devices": {"count": 0, "polcy": "x"},
        "gangRef": "No Name",
        "topology": {"mode": "Best"},
    }
    assert sorted(one.split(":")[0] for one in problems_of(raw)) == [
        "spec.devices.count",
        "spec.devices.polcy",
        "spec.gangRef",
        "spec.topology.mode",
    ]


def test_a_claim_of_five_lines_is_a_claim() -> None:
    found = read(claim(count=2, policy="contiguous"))
    assert isinstance(found, Claim)
    assert (found.want.count, found.want.policy, found.want.mode, found.gang) == (
        2,
        "contiguous",
        "Preferred",
        None,
    )


@given(tree)
def test_any_data_is_a_claim_or_has_problems(raw: object) -> None:
    for shape in (raw, {"devices": raw}, {"devices": {"preferIds": raw}}):
        if not problems_of(shape):
            assert isinstance(read(shape), Claim)


@given(tree, tree)
def test_a_status_that_cannot_be_used_says_so_and_gives_nothing(one: object, other: object) -> None:
    for status in (other, {"devices": one}, {"devices": [{"id": one, "island": other}]}):
        found = read_status(status)
        assert not (found.problems and found.devices)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"devices": [{"id": 0}, {"id": 0}]}, "the id 0 is there more than once"),
        (
            {"devices": [{"id": 0, "uuid": "G"}, {"id": 1, "uuid": "G"}]},
            "the uuid G is there more than once",
        ),
        ({"devices": [{"id": "0"}]}, "status.devices[0].id: expected"),
    ],
)
def test_gpus_that_cannot_be_told_apart_are_not_given(status: object, words: str) -> None:
    found = read_status(status)
    assert not found.devices
    assert words in found.problems[0]


def test_a_status_written_by_hand_with_the_least_is_enough() -> None:
    devices = [
        {"id": 1, "island": "a", "bandwidthGBps": 64},
        {"id": 0, "island": "a", "bandwidthGBps": 600},
    ]
    found = read_status({"devices": devices})
    assert [(one.id, one.usable, one.bandwidth_gbps) for one in found.devices] == [
        (0, True, 600.0),
        (1, True, 64.0),
    ]
    assert found.observed_time is None


@given(st.text(max_size=40) | st.from_regex(r"[a-z.-]{1,20}:[0-9,]{0,12}", fullmatch=True))
def test_allocated_is_read_as_it_is_written_or_not_at_all(text: str) -> None:
    found = allocation.parse_allocated(text)
    if found is not None:
        assert allocation.parse_allocated(str(found)) == found
        assert text.partition(":")[2].count(",") == len(found.ids) - 1


def test_the_variables_carry_uuids_where_all_are_known_and_ids_where_one_is_not() -> None:
    known = allocation.binding_annotations("n", [3, 2], {2: "GPU-a", 3: "GPU-b"})
    assert known[names.CUDA_ANNOTATION] == known[names.NVIDIA_ANNOTATION] == "GPU-a,GPU-b"
    assert known[names.ALLOCATED_ANNOTATION] == "n:2,3"
    half = allocation.binding_annotations("n", [2, 3], {2: "GPU-a"})
    assert (half[names.CUDA_ANNOTATION], half[names.NVIDIA_ANNOTATION]) == ("2,3", "all")


@given(tree)
def test_a_reservation_is_read_as_it_was_written_or_not_at_all(raw: object) -> None:
    assert allocation.parse_reserved(json.dumps(raw)) is None or isinstance(raw, dict)
    whole = Reserved(number=1, node="n", ids=(0, 2), plan="p", members=2, first="a", first_uid="u")
    assert allocation.parse_reserved(allocation.written(whole)) == whole
    assert allocation.parse_reserved(allocation.written(whole).replace("[0,2]", "[2,0]")) is None


def test_a_reservation_that_is_nested_without_end_is_none() -> None:
    nested = '{"x":' + "[" * 1500
    assert allocation.parse_reserved(nested) is None
    assert allocation.parse_start(nested) is None


def test_a_reservation_that_was_taken_back_counts_no_more() -> None:
    whole = allocation.written(
        Reserved(number=1, node="n", ids=(0,), plan="p", members=1, first="a", first_uid="u")
    )
    raw = {"metadata": {"name": "p", "annotations": {names.RESERVED_ANNOTATION: whole}}}
    assert msgspec.convert(raw, Pod).reserved is not None
    raw["metadata"]["annotations"][names.RECLAIMED_ANNOTATION] = "1"  # type: ignore[index]
    assert msgspec.convert(raw, Pod).reserved is None


def test_annotations_that_nobody_reads_are_not_kept_and_long_ones_are_cut() -> None:
    raw = {
        "metadata": {
            "name": "p",
            "annotations": {"other": "x" * 10_000, names.CLAIM_ANNOTATION: "c" * 10_000},
        }
    }
    kept = msgspec.convert(raw, Pod).metadata.annotations or {}
    assert list(kept) == [names.CLAIM_ANNOTATION]
    assert len(kept[names.CLAIM_ANNOTATION]) == 254


def test_of_what_a_pod_asks_of_nodes_it_is_kept_alone_that_it_does() -> None:
    tolerations = [{"key": f"k{n}", "operator": "Exists"} for n in range(14_000)]
    labels = {f"k{n}": "v" for n in range(14_000)}
    spec = msgspec.convert({"tolerations": tolerations, "nodeSelector": labels}, PodSpec)
    assert spec == PodSpec()
    spec = msgspec.convert({"affinity": {"nodeAffinity": labels}}, PodSpec)
    assert spec == PodSpec(affinity=True)


@pytest.mark.parametrize(
    ("pod", "particular"),
    [
        ({}, False),
        ({"spec": {"affinity": {}, "topologySpreadConstraints": []}}, False),
        ({"spec": {"affinity": {"podAffinity": {}}}}, True),
        ({"spec": {"topologySpreadConstraints": [{}]}}, True),
        ({"spec": {"topologySpreadConstraints": "x"}}, True),
        ({"metadata": {"ownerReferences": [{"kind": "Job", "controller": True}]}}, False),
        ({"metadata": {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}}, True),
    ],
)
def test_the_scheduler_has_wishes_of_its_own_about_pods_with_affinity_and_about_replicas(
    pod: dict[str, Any], particular: bool
) -> None:
    assert msgspec.convert({"metadata": {}} | pod, Pod).particular is particular


def test_the_schedulers_calls_are_read_by_gos_names() -> None:
    body = json.dumps(
        {
            "Pod": {"metadata": {"name": "p", "uid": "u"}, "spec": {}, "status": {}},
            "Nodes": None,
            "NodeNames": ["a", "b"],
        }
    ).encode()
    args = read_call(body, ExtenderArgs)
    assert isinstance(args, ExtenderArgs)
    assert (args.pod.metadata.uid, args.node_names) == ("u", ("a", "b"))
    bound = read_call(
        b'{"PodName": "p", "PodNamespace": "team", "PodUID": "u", "Node": "a"}', ExtenderBindingArgs
    )
    assert not isinstance(bound, str)
    assert bound.pod_uid == "u"
    assert json.loads(msgspec.json.encode(FilterResult(error="no"))) == {
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "no",
    }


@given(st.binary(max_size=60) | tree.map(lambda one: json.dumps(one).encode()))
def test_a_call_that_is_none_is_answered_in_a_sentence(body: bytes) -> None:
    for found in (read_call(body, ExtenderArgs), read_call(body, ExtenderBindingArgs)):
        assert isinstance(found, str)
        assert "\n" not in found


def test_a_call_with_whole_nodes_says_what_to_set() -> None:
    found = read_call(b'{"Pod": {"metadata": {}}, "Nodes": {"items": []}}', ExtenderArgs)
    assert isinstance(found, str)
    assert "nodeCacheCapable: true" in found
