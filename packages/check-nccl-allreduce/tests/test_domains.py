"""Which label of the nodes says what switch they are behind."""

from __future__ import annotations

import pytest
from allreduce_testing.gangs.gang import GangUnderTest
from check_nccl_allreduce import domains
from check_nccl_allreduce.control.messages import Hello, LaunchOrder
from check_nccl_allreduce.probing import EndpointMap
from hypothesis import given
from hypothesis import strategies as st
from needs import needs_torch

ACCELERATOR, LEAF, _, LAYER_3, SUBBLOCK = domains.LEVELS
ZONE = "topology.kubernetes.io/zone"
SPINE = "network.topology.nvidia.com/spine"


@pytest.mark.parametrize(
    ("nodes", "label", "values"),
    [
        ([{LEAF: "one"}, {LEAF: "two"}, {LEAF: "one"}], LEAF, ("one", "two", "one")),
        ([{ACCELERATOR: "rack", LEAF: "one"}] * 2, ACCELERATOR, ("rack", "rack")),
        ([{ACCELERATOR: f"gpu-{i}", LEAF: "one"} for i in range(2)], LEAF, ("one", "one")),
        ([{LEAF: "one"}, {LEAF: "two"}], LEAF, ("one", "two")),
        (
            [{LAYER_3: "a"}, {LAYER_3: "a", SUBBLOCK: "x"}, {SUBBLOCK: "x"}, {LAYER_3: "b"}],
            *(LAYER_3, ("a", "a", None, "b")),
        ),
    ],
    ids=["leaf", "narrowest that groups", "each its own", "nobody together", "most nodes have it"],
)
def test_the_label_that_most_nodes_have_and_that_groups_them_is_taken(
    nodes: list[dict[str, str]], label: str, values: tuple[str | None, ...]
) -> None:
    assert domains.choose(nodes) == (label, values)


def test_zone_and_spine_are_no_domain() -> None:
    assert domains.kept({ZONE: "a", SPINE: "s", LEAF: "one"}) == {LEAF: "one"}
    assert domains.choose([domains.kept({ZONE: "a", SPINE: "s"})] * 3) == ("", (None, None, None))


def test_the_operators_own_label_alone_decides() -> None:
    labels = {"example.com/rack": "r7", LEAF: "one"}
    assert domains.kept(labels, "example.com/rack") == {"example.com/rack": "r7"}
    assert domains.choose([{"example.com/rack": "r7"}] * 2) == ("example.com/rack", ("r7", "r7"))


@given(
    st.lists(
        st.dictionaries(st.sampled_from([*domains.LEVELS, "own"]), st.sampled_from("abc")),
        max_size=6,
    )
)
def test_each_node_has_the_value_of_the_label_taken_or_none(nodes: list[dict[str, str]]) -> None:
    label, chosen = domains.choose(nodes)
    assert chosen == tuple(node.get(label) for node in nodes)
    assert (label == "") == (not any(nodes))


def test_the_members_labels_become_the_endpoints_domains() -> None:
    def hello(rank: int, node: str, leaf: str) -> Hello:
        return Hello(rank, f"pod-{rank}", node, "gloo", 1, topology={LEAF: leaf})

    hellos = {
        0: hello(0, "node-a", "one"),
        1: hello(1, "node-b", "two"),
        2: hello(2, "node-a", "one"),
    }
    shape = EndpointMap.of(hellos, LaunchOrder(1, 29500, "gloo", 4096, 3, 1, 3, 10.0))
    assert [(one.name, one.domain) for one in shape.endpoints] == [
        ("node-a", "one"),
        ("node-b", "two"),
    ]
    assert shape.summary() == f"{LEAF} says of 2 of 2 nodes which switch they are behind: 2 in all"


@needs_torch
def test_the_leader_hears_from_each_member_which_switch_its_node_is_behind(
    gang: GangUnderTest,
) -> None:
    gang.size = 3
    gang.start(
        0, 1, 2, NCCL_ALLREDUCE_THRESHOLD_GBPS="5000"
    )  # GB/s, which nothing reaches: pairs are asked for
    for rank, leaf in enumerate(("one", "two", "one")):
        gang.members[rank].folder.topology = {LEAF: leaf, ZONE: "a"}
    gang.seal()
    gang.members[0].said(f"{LEAF} says of 3 of 3 nodes which switch they are behind: 2 in all")
    gang.all_ended()


def test_without_labels_the_driver_says_which_nodes_share_an_nvlink_domain() -> None:
    label, switches, racks = domains.places([{}] * 4, ["a.1", "a.1", "a.2", ""])
    assert (label, switches, racks) == ("", (None,) * 4, ("a.1", "a.1", None, None))


def test_the_driver_stands_before_the_label_of_an_nvlink_domain() -> None:
    _, _, racks = domains.places([{domains.NVLINK: "one"}] * 4, ["a.1", "a.1", "a.2", "a.2"])
    assert racks == ("a.1", "a.1", "a.2", "a.2")
