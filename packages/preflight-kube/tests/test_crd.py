"""Definitions made from Structs: what is in them, and that a real API server takes them and judges
objects as they say.
"""

from __future__ import annotations

import json
import urllib.error
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import UNSET, Meta, UnsetType
from preflight_kube.api.conditions import Conditions
from preflight_kube.api.crd import (
    Column,
    Int32,
    ValidationRule,
    condition_column,
    crd,
    embedded,
    list_map,
    structural,
)
from preflight_testing.apiserver import ASSETS, ApiServer, assets

GROUP = "tests.example.com"
PATH = f"/apis/{GROUP}/v1/namespaces/default/boxes"


class Item(msgspec.Struct, kw_only=True, rename="camel"):
    """One thing in the box."""

    name: str
    many: Annotated[int, Meta(ge=0, le=9)] = 1
    weight_kg: float | None = None


class Lid(msgspec.Struct, frozen=True):
    tight: bool = True


class BoxSpec(msgspec.Struct, kw_only=True, rename="camel"):
    """What is wanted."""

    size: Literal["small", "large"] = "small"
    volume: Annotated[int, Meta(gt=0)] | UnsetType = UNSET
    replicas: Int32 | UnsetType = UNSET
    lid: Lid = Lid()
    items: Annotated[list[Item], Meta(max_length=3, extra_json_schema=list_map("name"))] = []
    labels: Annotated[dict[str, str], Meta(max_length=2)] | UnsetType = UNSET
    template: Annotated[dict[str, Any], Meta(extra_json_schema=embedded())] | UnsetType = UNSET
    anything: Any = None


class BoxStatus(msgspec.Struct):
    """What is so."""

    conditions: Conditions = ()


def boxes() -> dict[str, Any]:
    return crd(
        GROUP,
        "Box",
        "v1",
        spec=BoxSpec,
        status=BoxStatus,
        plural="boxes",
        short_names=["bx"],
        rules=[
            ValidationRule(
                ("spec",),
                "self.size != 'small' || !has(self.items) || size(self.items) < 2",
                "a small box has one item",
            ),
        ],
        columns=[
            condition_column("Full"),
            Column("Size", ".spec.size"),
            Column("Volume", ".spec.volume", "integer", 1),
        ],
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if (folder := assets()) is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path_factory.mktemp("crd"), folder) as made:
        made.define(boxes())
        yield made


def made(server: ApiServer, spec: dict[str, Any]) -> Any:
    """The object as the API server would keep it; what it has against it where it refuses."""
    body = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Box",
        "metadata": {"name": f"x-{uuid.uuid4().hex[:8]}"},
        "spec": spec,
    }
    try:
        return server.call("POST", f"{PATH}?dryRun=All", body)["spec"]
    except urllib.error.HTTPError as error:
        with error:
            assert error.code == 422, error
            return str(json.loads(error.read())["message"])


TEMPLATE = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
TWO = [{"name": "a", "many": 9, "weightKg": 0.5}, {"name": "b", "weightKg": None}]
GOOD: list[dict[str, Any]] = [
    {},
    {"size": "large", "items": TWO},
    {"replicas": -(2**31), "volume": 2**62},
    {"template": {**TEMPLATE, "spec": {"any": [1, None]}}},
    {"anything": {"x": [1]}},
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"size": "huge"}, "spec.size"),
    ({"volume": 0}, "spec.volume"),
    ({"replicas": 2**31}, "spec.replicas"),
    ({"size": "large", "items": [{"name": "a"}, {"name": "a"}]}, "Duplicate value"),
    ({"items": [{"name": "a"}, {"name": "b"}]}, "a small box has one item"),
    ({"items": [{"many": 2}]}, "spec.items[0].name"),
    ({"items": [{"name": "a", "many": 10}]}, "spec.items[0].many"),
    ({"labels": {"a": "1", "b": "2", "c": "3"}}, "spec.labels"),
    ({"labels": {"a": 1}}, "spec.labels.a"),
    ({"template": {"metadata": {"name": "a"}}}, "spec.template"),
]


def test_an_api_server_takes_what_the_structs_say(server: ApiServer) -> None:
    for spec in GOOD:
        kept = made(server, spec)
        assert isinstance(kept, dict), (spec, kept)
        msgspec.convert(kept, BoxSpec)


@pytest.mark.parametrize(("spec", "names"), BAD)
def test_an_api_server_refuses_what_the_structs_do_not_say_and_names_the_place(
    server: ApiServer, spec: dict[str, Any], names: str
) -> None:
    assert names in str(made(server, spec))


def test_defaults_are_filled_in_also_within_what_was_not_given(server: ApiServer) -> None:
    assert made(server, {}) == {"size": "small", "lid": {"tight": True}}
    assert made(server, {"items": [{"name": "a"}]})["items"] == [{"name": "a", "many": 1}]


def test_a_status_is_a_subresource_whose_conditions_are_bounded(server: ApiServer) -> None:
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Box", "metadata": {"name": "box"}, "spec": {}}
    box = server.call("POST", PATH, {**body, "status": {"conditions": [{"type": "forged"}]}})
    assert "status" not in box
    condition: dict[str, Any] = {"type": "Full", "status": "True", "reason": "", "message": ""}
    bad = {**condition, "lastTransitionTime": "yesterday"}
    good = {**condition, "reason": "ItIs", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    good["observedGeneration"] = 1
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.call("PUT", f"{PATH}/box/status", {**box, "status": {"conditions": [bad]}})
    with caught.value as error:
        said = error.read().decode()
    assert "status.conditions[0].reason" in said
    assert "lastTransitionTime" in said
    written = server.call("PUT", f"{PATH}/box/status", {**box, "status": {"conditions": [good]}})
    assert written["status"] == {"conditions": [good]}


def test_names_columns_and_places_are_as_given() -> None:
    found = boxes()
    assert found["metadata"]["name"] == "boxes.tests.example.com"
    assert found["spec"]["names"] == {
        "kind": "Box", "listKind": "BoxList", "plural": "boxes", "singular": "box", "shortNames": ["bx"]
    }  # fmt: skip
    columns = found["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [(one["name"], one.get("priority", 0)) for one in columns] == [
        ("Full", 0),
        ("Size", 0),
        ("Volume", 1),
    ]
    plain = crd(GROUP, "Box", "v1", spec=BoxSpec, defaults=False)
    assert plain["metadata"]["name"] == "boxs.tests.example.com"
    assert "subresources" not in plain["spec"]["versions"][0]
    assert '"default"' not in json.dumps(plain)


class Pair(msgspec.Struct):
    both: tuple[int, str]


class Mixed(msgspec.Struct):
    either: int | bool


class Keyed(msgspec.Struct):
    by: dict[Annotated[str, Meta(min_length=1)], str]


@pytest.mark.parametrize(
    ("struct", "says"),
    [
        (Pair, "Pair.both: no structural schema has prefixItems"),
        (Mixed, "Mixed.either: a union of several types"),
        (Keyed, "Keyed.by: no structural schema has propertyNames"),
    ],
)
def test_what_no_structural_schema_can_say_is_refused_with_its_place(
    struct: type, says: str
) -> None:
    with pytest.raises(TypeError) as caught:
        structural(struct)
    assert str(caught.value).startswith(says)


def test_a_rule_for_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError):
        crd(
            GROUP, "Box", "v1", spec=BoxSpec, rules=[ValidationRule(("spec", "colour"), "true", "")]
        )
