"""One schema from two: the service's own and the chart's."""

from __future__ import annotations

import jsonschema
import pytest
from preflight_e2e.chart_schema import Schema, combined

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
