from __future__ import annotations

from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st
from preflight_computedomain._generated.dra import Claim, NodePrepareResourcesRequest
from preflight_computedomain.api.wire import TEXT, fits

SHAPE = {1: {1: TEXT, 2: TEXT, 3: TEXT}}
TEXTS = st.text(max_size=20)
CLAIMS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=3)


@given(CLAIMS)
def test_what_google_encodes_fits_and_is_read_alike(
    google: dict[str, ModuleType], claims: list[tuple[str, str, str]]
) -> None:
    messages = google["v1"]
    made = messages.NodePrepareResourcesRequest(
        claims=[messages.Claim(namespace=a, uid=b, name=c) for a, b, c in claims]
    )
    data = made.SerializeToString()
    assert fits(data, SHAPE)
    assert NodePrepareResourcesRequest.parse(data).claims == [
        Claim(namespace=a, uid=b, name=c) for a, b, c in claims
    ]


@given(st.binary(max_size=60))
def test_bytes_that_fit_are_read_without_an_error_and_google_reads_them_too(
    google: dict[str, ModuleType], data: bytes
) -> None:
    if fits(data, SHAPE):
        read = NodePrepareResourcesRequest.parse(data)
        assert all(
            isinstance(text, str)
            for one in read.claims
            for text in (one.namespace, one.uid, one.name)
        )
        google["v1"].NodePrepareResourcesRequest.FromString(data)


@given(CLAIMS.filter(bool), st.data())
def test_a_message_that_is_cut_within_a_field_does_not_fit(
    claims: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    whole = bytes(
        NodePrepareResourcesRequest(
            claims=[Claim(namespace=a, uid=b, name=c) for a, b, c in claims]
        )
    )
    last = bytes(
        NodePrepareResourcesRequest(
            claims=[Claim(namespace=a, uid=b, name=c) for a, b, c in claims[-1:]]
        )
    )
    cut = data.draw(st.integers(1, len(last) - 1))
    assert not fits(whole[:-cut], SHAPE)


def test_fields_that_a_later_version_has_are_passed_over() -> None:
    assert fits(
        b"\x0a\x04\x0a\x02ns" + b"\x10\x05" + b"\x1d\x00\x00\x00\x00" + b"\x22\x01\xff", SHAPE
    )


def test_a_number_where_text_should_be_does_not_fit() -> None:
    assert not fits(b"\x0a\x02\x08\x05", SHAPE)
    assert not fits(b"\x08\x05", SHAPE)
    assert not fits(b"\x0b", SHAPE)
    assert not fits(b"\xff\xff\xff", SHAPE)
    assert not fits(b"\x0a\x03\x0a\x01\xff", SHAPE)
