from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_computedomain.api.names import slice_name
from preflight_computedomain.api.types import Slice
from preflight_computedomain.core.slices import body, channel, wanted

CLIQUE = "00010203-0405-0607-0809-0a0b0c0d0e0f.7"
CHANNEL = channel(CLIQUE, "570.158.1")
GOOD = body("node-1", "uid-1", CHANNEL, 4, "77")


def found(made: dict[str, Any]) -> Slice:
    return msgspec.json.decode(json.dumps(made).encode(), type=Slice)


def test_the_slice_has_channel_0_and_nothing_else() -> None:
    spec = GOOD["spec"]
    [device] = spec["devices"]
    assert device == {
        "name": "channel-0",
        "attributes": {
            "type": {"string": "channel"},
            "id": {"int": 0},
            "cliqueID": {"string": CLIQUE},
            "driverVersion": {"version": "570.158.1"},
        },
    }
    assert (spec["nodeName"], spec["pool"]["name"], spec["pool"]["resourceSliceCount"]) == (
        "node-1",
        "node-1",
        1,
    )
    assert GOOD["metadata"]["name"] == "node-1-compute-domain.nvidia.com"


def test_none_is_made_and_a_good_one_is_left_alone() -> None:
    assert wanted("node-1", "uid-1", CHANNEL, None) == body("node-1", "uid-1", CHANNEL)
    assert wanted("node-1", "uid-1", CHANNEL, found(GOOD)) is None


def test_a_node_without_a_clique_offers_nothing_and_a_clique_that_comes_is_a_change() -> None:
    nothing = wanted("node-1", "uid-1", channel("", "570.158.1"), found(GOOD))
    assert nothing is not None
    assert nothing == body("node-1", "uid-1", [], 5, "77")
    del nothing["spec"]["devices"]  # as the API server gives back an empty list
    assert wanted("node-1", "uid-1", [], found(nothing)) is None
    assert wanted("node-1", "uid-1", CHANNEL, found(nothing)) == body(
        "node-1", "uid-1", CHANNEL, 6, "77"
    )


CHANGES: list[tuple[str, Any]] = [
    ("nodeName", "node-2"),
    ("allNodes", True),
    ("perDeviceNodeSelection", True),
    ("nodeSelector", {"nodeSelectorTerms": []}),
    ("devices", []),
    ("devices", [*GOOD["spec"]["devices"], {"name": "daemon-0"}]),
    ("devices", [{**GOOD["spec"]["devices"][0], "taints": [{"key": "x", "effect": "NoSchedule"}]}]),
    (
        "devices",
        [{"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 1}}}],
    ),
]


@pytest.mark.parametrize(("field", "value"), CHANGES)
def test_one_that_was_altered_is_put_right_with_the_next_generation(field: str, value: Any) -> None:
    bad = copy.deepcopy(GOOD)
    bad["spec"][field] = value
    assert wanted("node-1", "uid-1", CHANNEL, found(bad)) == body(
        "node-1", "uid-1", CHANNEL, 5, "77"
    )


def test_one_of_a_node_that_was_made_anew_gets_its_owner_and_keeps_its_generation() -> None:
    assert wanted("node-1", "uid-2", CHANNEL, found(GOOD)) == body(
        "node-1", "uid-2", CHANNEL, 4, "77"
    )


@given(
    st.from_regex(
        r"[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?){0,4}",
        fullmatch=True,
    ).filter(lambda one: len(one) <= 253)
)
def test_a_slices_name_is_a_name_whatever_the_nodes_is(node: str) -> None:
    from preflight_computedomain.api.names import fits_as_name

    assert fits_as_name(slice_name(node))


def test_long_names_of_two_nodes_are_two() -> None:
    one, two = ("a" * 63 + ".") * 3 + "b" * 60 + "1", ("a" * 63 + ".") * 3 + "b" * 60 + "2"
    assert slice_name(one) != slice_name(two)
