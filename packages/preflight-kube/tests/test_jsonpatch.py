"""JSON Patches as API servers take them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_world import Item, config_map
from preflight_kube.api import jsonpatch
from preflight_kube.client.client import Client, PreconditionFailed
from preflight_testing.plugin import ApiFixture


@given(st.lists(st.text(max_size=20)))
def test_a_pointer_leads_back_to_its_keys(keys: list[str]) -> None:
    assert jsonpatch.keys(jsonpatch.pointer(*keys)) == keys


def test_slashes_and_tildes_are_escaped_and_numbers_are_places() -> None:
    assert (
        jsonpatch.pointer("metadata", "annotations", "a.b/c~d") == "/metadata/annotations/a.b~1c~0d"
    )
    assert jsonpatch.pointer("spec", "containers", 0) == "/spec/containers/0"
    assert jsonpatch.pointer() == ""


def test_an_operation_is_what_rfc_6902_calls_it() -> None:
    assert [
        jsonpatch.test("/data/a", "1"),
        jsonpatch.replace("/data/a", "9"),
        jsonpatch.remove("/data/b"),
        jsonpatch.add("/data/c", "3"),
    ] == [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "replace", "path": "/data/a", "value": "9"},
        {"op": "remove", "path": "/data/b"},
        {"op": "add", "path": "/data/c", "value": "3"},
    ]


@pytest.mark.anyio
async def test_an_annotation_is_set_beside_others_and_on_an_object_that_has_none(
    client: Client, api: ApiFixture
) -> None:
    await client.create(api.path("configmaps"), config_map("a"))
    path = api.path("configmaps", "a")
    wanted = {"example.com/x": "1", "plain": "2"}
    await client.json_patch(path, jsonpatch.set_annotations(wanted, annotated=False))
    await client.json_patch(path, [jsonpatch.set_annotation("example.com/other", "3")])
    assert (await client.get(path, Item)).metadata.annotations == {
        **wanted,
        "example.com/other": "3",
    }
    with pytest.raises(
        PreconditionFailed
    ):  # somebody has annotated it meanwhile, and that must not be lost
        await client.json_patch(path, jsonpatch.set_annotations({"new": "1"}, annotated=False))
