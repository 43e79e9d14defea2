"""Stamp, roster and result: golden encodings, versions, and readers that bear anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.result import MAX_BYTES, Result, encode_result, from_termination
from preflight_proto.roster import FILE, ContractError, Roster, decode_roster, encode_roster, read_roster
from preflight_proto.stamp import Stamp, configmap_name, decode_stamp, encode_stamp, gang_hash

GOLDEN = Path(__file__).parent / "golden" / "v1"

STAMP = Stamp(v=1, id="train/a", source="labels", config_map=configmap_name("ml", "train/a"), takes_part=True, size=4)
WAIT = Roster(v=1, pod_uid="u-1", generation=3, epoch=7, answer="wait", missing=("pod-2: Unschedulable",))
SEALED = Roster(
    v=1,
    pod_uid="u-1",
    generation=3,
    epoch=7,
    answer="sealed",
    rank=0,
    nnodes=2,
    master_addr="10.0.1.5",
    master_port=29500,
    control_port=29501,
    token="t",
)
RESULT = Result(
    v=1,
    check="nccl-loopback",
    outcome="failed",
    code="LOW_BANDWIDTH",
    gated=True,
    duration=12.5,
    reason="busbw 210 of 400 GB/s.",
    measured=210.0,
    expected=400.0,
)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("stamp", encode_stamp(STAMP)),
        ("roster-wait", encode_roster(WAIT)),
        ("roster-sealed", encode_roster(SEALED)),
        ("result", encode_result(RESULT).decode()),
    ],
)
def test_encodings_of_version_1_never_change(name: str, data: str) -> None:
    assert data == (GOLDEN / f"{name}.json").read_text().rstrip("\n")


def test_golden_documents_read_back() -> None:
    assert decode_stamp((GOLDEN / "stamp.json").read_text()) == STAMP
    assert decode_roster((GOLDEN / "roster-wait.json").read_text()) == WAIT
    assert decode_roster((GOLDEN / "roster-sealed.json").read_text()) == SEALED
    assert from_termination("nccl-loopback", (GOLDEN / "result.json").read_text(), 1) == RESULT


def test_readers_ignore_unknown_fields() -> None:
    assert decode_stamp(json.dumps({**json.loads(encode_stamp(STAMP)), "later": [1]})) == STAMP


@pytest.mark.parametrize("decode", [decode_stamp, decode_roster])
def test_a_higher_version_is_refused_by_name(decode: object) -> None:
    assert callable(decode)
    with pytest.raises(ContractError, match="version 2 is newer than 1"):
        decode('{"v":2}')


@given(st.binary())
def test_readers_of_annotations_raise_nothing_but_contract_errors(data: bytes) -> None:
    for decode in (decode_stamp, decode_roster):
        with pytest.raises(ContractError):
            decode(data)


def test_a_sealed_roster_is_complete_or_refused() -> None:
    with pytest.raises(ContractError, match="needs rank"):
        decode_roster('{"v":1,"pod_uid":"u","generation":1,"epoch":1,"answer":"sealed","rank":0}')


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_config_map_names_are_valid_and_tell_ids_apart(one: str, other: str) -> None:
    name = configmap_name("ns", one)
    assert len(name) <= 253
    assert name.removeprefix("preflight-")
    assert all(c.isascii() and (c.isdigit() or c.islower() or c == "-") for c in name)
    if one != other:
        assert name != configmap_name("ns", other)


@pytest.mark.parametrize(("one", "other"), [("pg.1", "pg-1"), ("A", "a"), ("x" * 300, "x" * 301)])
def test_ids_that_sanitise_alike_get_names_of_their_own(one: str, other: str) -> None:
    assert configmap_name("ns", one) != configmap_name("ns", other)


def test_an_id_cannot_be_written_so_as_to_take_the_hashed_name_of_another() -> None:
    victim = configmap_name("ns", "pg.1")
    assert configmap_name("ns", victim.removeprefix("preflight-")) != victim


def test_a_plain_id_keeps_the_name_of_the_adr() -> None:
    assert configmap_name("ns", "myworkload-group1") == "preflight-myworkload-group1"


def test_gang_labels_differ_between_namespaces() -> None:
    assert gang_hash("a", "g") != gang_hash("b", "g")


@given(st.text(max_size=3000), st.text(max_size=1000), st.text(max_size=200))
def test_a_result_always_fits_and_reads_back(reason: str, subject: str, code: str) -> None:
    data = encode_result(
        Result(v=1, check="c", outcome="failed", code=code, gated=True, duration=1.0, subject=subject, reason=reason)
    )
    assert len(data) <= MAX_BYTES
    assert from_termination("c", data.decode(), 1).outcome == "failed"


def test_a_result_that_fits_is_not_cut() -> None:
    assert json.loads(encode_result(RESULT))["reason"] == RESULT.reason


@given(st.text(), st.integers(0, 255))
def test_reading_a_termination_message_never_raises(message: str, exit_code: int) -> None:
    assert from_termination("c", message, exit_code).check == "c"


@pytest.mark.parametrize(
    ("exit_code", "outcome"),
    [(0, "passed"), (1, "failed"), (2, "misconfigured"), (137, "inconclusive"), (139, "failed")],
)
def test_without_a_result_the_exit_status_judges(exit_code: int, outcome: str) -> None:
    assert from_termination("c", "", exit_code).outcome == outcome


def test_a_claim_of_success_beside_a_failing_status_is_not_believed() -> None:
    claim = encode_result(Result(v=1, check="c", outcome="passed", code="OK", gated=True, duration=1.0)).decode()
    assert from_termination("c", claim, 137).outcome == "inconclusive"


def test_a_roster_for_another_pod_is_ignored(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(encode_roster(SEALED))
    assert read_roster(tmp_path, "u-1") == SEALED
    assert read_roster(tmp_path, "u-2") is None


def test_no_roster_yet_is_none(tmp_path: Path) -> None:
    assert read_roster(tmp_path, "u-1") is None
    (tmp_path / FILE).write_text("")
    assert read_roster(tmp_path, "u-1") is None
