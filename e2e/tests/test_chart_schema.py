"""One schema from two: the service's own and the chart's."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from preflight_e2e.chart_schema import Schema, combined, umbrella, vendor

WEBHOOK: Schema = {
    "$ref": "#/$defs/Config",
    "$defs": {
        "Config": {
            "type": "object",
            "properties": {"dcgm": {"$ref": "#/$defs/Dcgm"}},
            "additionalProperties": False,
        },
        "Dcgm": {"type": "object", "properties": {"diagLevel": {"enum": [1, 2]}}},
    },
}
CHART: Schema = {
    "properties": {"namespaces": {"$ref": "#/$defs/Names"}},
    "$defs": {"Names": {"type": "array", "items": {"type": "string"}}},
}


def accepts(values: object) -> bool:
    return jsonschema.Draft202012Validator(combined(WEBHOOK, CHART, "any")).is_valid(values)


@pytest.mark.parametrize("values", [{}, {"dcgm": {"diagLevel": 2}, "namespaces": ["a"]}])
def test_keys_of_both_are_taken(values: object) -> None:
    assert accepts(values)


@pytest.mark.parametrize("values", [{"dcgm": {"diagLevel": 5}}, {"namespaces": "a"}, {"dcmg": {}}])
def test_what_either_refuses_is_refused(values: object) -> None:
    assert not accepts(values)


@pytest.mark.parametrize(
    "chart",
    [{"properties": {"dcgm": {}}, "$defs": {}}, {"properties": {}, "$defs": {"Dcgm": {}}}],
    ids=["property", "definition"],
)
def test_one_name_for_two_things_is_refused(chart: Schema) -> None:
    with pytest.raises(ValueError, match=r"^any: both the service and the chart define [dD]cgm"):
        combined(WEBHOOK, chart, "any")


def made(**added: object) -> Schema:
    return combined(WEBHOOK, {**CHART, **added}, "any")


def refuses(schema: Schema, values: object) -> bool:
    return not jsonschema.Draft202012Validator(schema).is_valid(values)


def test_lists_and_maps_may_be_null_and_the_items_of_a_list_may_not() -> None:
    items = {
        "$defs": {"Item": {"type": "object"}},
        "properties": {"list": {"type": "array", "items": {"$ref": "#/$defs/Item"}}},
    }
    schema = combined(WEBHOOK, items, "any")
    assert not refuses(schema, {"dcgm": None, "list": None})
    assert not refuses(schema, {"list": [{}]})
    assert refuses(schema, {"list": [None]})
    assert refuses(schema, {"dcgm": {"diagLevel": None}})


def test_a_chart_may_be_stricter_than_what_its_service_says_in_its_schema() -> None:
    stricter = {"$defs": {"Dcgm": {"properties": {"diagLevel": {"enum": [2]}}}}}
    assert not refuses(made(), {"dcgm": {"diagLevel": 1}})
    assert refuses(made(stricter=stricter), {"dcgm": {"diagLevel": 1}})


def test_a_description_reaches_its_key() -> None:
    schema = made(descriptions={"Values.namespaces": "Where.", "Dcgm.diagLevel": "How."})
    assert schema["properties"]["namespaces"]["description"] == "Where."
    assert schema["$defs"]["Dcgm"]["properties"]["diagLevel"]["description"] == "How."


@pytest.mark.parametrize("path", ["Values.nothing", "Nobody.diagLevel", "Dcgm.level"])
def test_a_description_of_nothing_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"^any: there is no {path} to describe"):
        made(descriptions={path: "What?"})


def test_the_umbrella_takes_its_parts_and_leaves_what_is_in_them_to_their_own_schemas() -> None:
    part = made(
        properties={
            "enabled": {"type": "boolean"},
            "global": {"type": "object", "properties": {"preflight": {}}},
        }
    )
    schema = umbrella({"a": part, "b": part})
    assert not refuses(schema, {"a": {"enabled": True, "whatever": 1}, "global": {"preflight": 1}})
    mistakes: list[object] = [{"c": {}}, {"a": {"enabled": "yes"}}, {"b": []}, {"global": 1}]
    assert all(refuses(schema, wrong) for wrong in mistakes)


def test_the_library_of_a_chart_is_brought_up_to_date_and_left_alone_where_it_is(
    tmp_path: Path,
) -> None:
    library, copy = tmp_path / "library", tmp_path / "chart/charts/library"
    (library / "templates").mkdir(parents=True)
    (library / "templates/_names.tpl").write_text("new")
    (copy / "templates").mkdir(parents=True)
    (copy / "templates/_names.tpl").write_text("old")
    (copy / "templates/_gone.tpl").touch()
    vendor(library, copy)
    assert [one.name for one in (copy / "templates").iterdir()] == ["_names.tpl"]
    assert (copy / "templates/_names.tpl").read_text() == "new"
    before = (copy / "templates/_names.tpl").stat().st_ino
    vendor(library, copy)
    assert (copy / "templates/_names.tpl").stat().st_ino == before
