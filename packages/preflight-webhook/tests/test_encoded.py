"""A patch made of parts that were encoded once is the JSON that it would be in one piece."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from preflight_webhook.core.inject.encoded import Built, encode_patch, text_of

TEXT = st.text(max_size=8)
FIELDS = st.dictionaries(
    st.text(min_size=1, max_size=8), TEXT | st.integers() | st.lists(TEXT), min_size=1
).filter(lambda fields: "resources" not in fields)


@st.composite
def built(draw: st.DrawFn) -> Built:
    fields = draw(FIELDS)
    return Built(fields, text_of(fields), draw(st.dictionaries(TEXT, TEXT)))


VALUES = (
    TEXT | st.dictionaries(TEXT, TEXT) | built() | st.lists(built(), min_size=1) | st.lists(TEXT)
)


def plain(value: Any) -> Any:
    if isinstance(value, Built):
        return value.whole
    return [plain(one) for one in value] if isinstance(value, list) else value


@given(st.lists(st.tuples(TEXT, VALUES), min_size=1))
def test_a_patch_of_parts_is_the_patch(entries: list[tuple[str, Any]]) -> None:
    patch = [{"op": "add", "path": path, "value": value} for path, value in entries]
    encoded = encode_patch(patch)
    assert json.loads(base64.b64decode(json.loads(encoded), validate=True)) == [
        {**operation, "value": plain(operation["value"])} for operation in patch
    ]


def test_an_operation_without_a_value_stays_as_it_is() -> None:
    removed = [{"op": "remove", "path": "/metadata/labels/x"}]
    assert json.loads(base64.b64decode(json.loads(encode_patch(removed)))) == removed


def test_a_patch_that_changes_nothing_is_none() -> None:
    assert encode_patch([]) == b""
