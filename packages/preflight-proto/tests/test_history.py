"""What crosses between gangs: small, and bounded whoever has written it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.history import (
    MAX_GBPS,
    MOST_PARTNERS,
    Past,
    Sighting,
    Spell,
    Usual,
    digest,
    said,
    told,
)
from preflight_proto.result import MAX_BYTES, VERSION, Result, encode_result
from preflight_proto.roster import Roster, decode_roster, encode_roster

SEEN = Sighting(
    kind="NVIDIA H100 80GB HBM3/8/8x400/4Gi",
    nodes=4096,
    pair=371.2,
    edges=4,
    own=380.1,
    bad=tuple(digest(f"node-{i}") for i in range(MOST_PARTNERS)),
    sick=True,
)


def test_what_is_said_is_what_is_told() -> None:
    assert told(said(SEEN)) == SEEN
    assert told(said(Sighting(kind="k"))) == Sighting(kind="k")


def test_without_a_kind_nothing_is_told() -> None:
    assert told({}) is None
    assert told({"pair": "100", "bad": digest("node-a")}) is None


def test_the_longest_sighting_leaves_most_of_a_result_to_its_reason() -> None:
    bare = {
        "v": VERSION,
        "check": "nccl-allreduce",
        "outcome": "failed",
        "code": "LOW_BANDWIDTH",
        "gated": True,
    }
    result = Result(**bare, duration=100.0, reason="x" * 2000, details=said(SEEN))  # type: ignore[arg-type]
    data = encode_result(result)
    assert len(data) <= MAX_BYTES
    assert msgspec.json.decode(data, type=Result).details == said(SEEN)
    assert len(msgspec.json.decode(data, type=Result).reason) > 200


@given(
    st.dictionaries(
        st.sampled_from(["kind", "nodes", "pair", "edges", "own", "bad", "sick"]),
        st.text(max_size=900),
    )
)
def test_whatever_a_result_says_what_is_taken_of_it_is_bounded(details: dict[str, str]) -> None:
    seen = told(details)
    if seen is not None:
        assert len(seen.kind) <= 96
        assert 0 <= seen.pair <= MAX_GBPS
        assert 0 <= seen.own <= MAX_GBPS
        assert 0 <= seen.edges <= 1_000_000
        assert len(seen.bad) <= MOST_PARTNERS
        assert all(len(one) == 8 for one in seen.bad)


def test_a_roster_brings_the_past_and_one_of_before_brings_none() -> None:
    sealed = {
        "rank": 0,
        "nnodes": 2,
        "master_addr": "10.0.0.1",
        "master_port": 1,
        "control_port": 2,
        "token": "t",
    }
    roster = Roster(v=1, pod_uid="u", generation=1, epoch=1, answer="sealed", **sealed)  # type: ignore[arg-type]
    past = Past(kind="k", spells=(Spell(3600.0, 1, True, ("node-b",)),), gang=Usual(370.0, 2.0, 9))
    assert decode_roster(encode_roster(msgspec.structs.replace(roster, past=past))).past == past
    assert decode_roster(encode_roster(roster)).past is None
    assert "past" not in encode_roster(roster)
