"""Stamp, roster and result: golden encodings, versions, and readers that bear anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.admitted import Admitted, SeenClaim, decode_admitted, encode_admitted
from preflight_proto.check.node import topology
from preflight_proto.gang_source import BUILT_IN
from preflight_proto.names import TOPOLOGY_FILE
from preflight_proto.policy import GangDiscoveryOverride, decode_spec
from preflight_proto.result import (
    MAX_BYTES,
    MAX_GBPS,
    MAX_SECONDS,
    Result,
    encode_result,
    from_termination,
)
from preflight_proto.roster import (
    FILE,
    ContractError,
    Roster,
    decode_roster,
    encode_roster,
    read_roster,
)
from preflight_proto.stamp import (
    Stamp,
    configmap_name,
    decode_stamp,
    encode_stamp,
    gang_hash,
    gang_id,
)

GOLDEN = Path(__file__).parent / "golden"

STAMP = Stamp(
    v=2,
    id="train/a",
    source="labels",
    config_map=configmap_name("ml", "train/a", "labels"),
    takes_part=True,
    size=4,
)
WAIT = Roster(
    v=1, pod_uid="u-1", generation=3, epoch=7, answer="wait", missing=("pod-2: Unschedulable",)
)
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


ADMITTED = Admitted(
    v=1,
    claims={
        "gpus": SeenClaim(kind="ResourceClaim", name="training-gpus", uid="u-1", gpu=True),
        "net": SeenClaim(kind="", name="", uid="", gpu=False),
    },
)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("v2/stamp", encode_stamp(STAMP)),
        ("v1/roster-wait", encode_roster(WAIT)),
        ("v1/roster-sealed", encode_roster(SEALED)),
        ("v1/result", encode_result(RESULT).decode()),
        ("v1/claims", encode_admitted(ADMITTED)),
    ],
)
def test_encodings_of_a_version_never_change(name: str, data: str) -> None:
    assert data == (GOLDEN / f"{name}.json").read_text().rstrip("\n")


@pytest.mark.parametrize("rank", [0, 2])
def test_a_successor_is_another_member(rank: int) -> None:
    told = msgspec.structs.replace(SEALED, successors=((1, "10.0.1.6"),))
    assert decode_roster(encode_roster(told)) == told
    with pytest.raises(ContractError, match="successors are of ranks"):
        decode_roster(encode_roster(told).replace("[[1,", f"[[{rank},"))


def test_golden_documents_read_back() -> None:
    assert decode_stamp((GOLDEN / "v2/stamp.json").read_text()) == STAMP
    assert decode_roster((GOLDEN / "v1/roster-wait.json").read_text()) == WAIT
    assert decode_roster((GOLDEN / "v1/roster-sealed.json").read_text()) == SEALED
    assert from_termination("nccl-loopback", (GOLDEN / "v1/result.json").read_text(), 1) == RESULT
    assert decode_admitted((GOLDEN / "v1/claims.json").read_text()) == ADMITTED
    spec = decode_spec((GOLDEN / "v1alpha1/preflightconfig.json").read_bytes())
    assert spec.enforcement == "observe"
    assert isinstance(spec.gang_discovery, GangDiscoveryOverride)
    assert (spec.gang_discovery.method, spec.gang_discovery.opt_in) == ("labels", ("jobset",))


@pytest.mark.anyio
async def test_a_nodes_topology_reads_back(tmp_path: Path) -> None:
    (tmp_path / TOPOLOGY_FILE).write_text((GOLDEN / "v1/topology.json").read_text())
    assert await topology(str(tmp_path)) == {
        "topology.kubernetes.io/zone": "a",
        "network.topology.nvidia.com/leaf": "leaf-1",
    }


def test_a_result_says_whom_it_blames_only_where_it_blames_somebody() -> None:
    assert b"blames" not in encode_result(RESULT)
    blaming = encode_result(msgspec.structs.replace(RESULT, blames="NODE_SLOW\n" + "x" * 100))
    read = from_termination("nccl-loopback", blaming.decode(), 1)
    assert isinstance(read.blames, str)
    assert read.blames.startswith("NODE_SLOW x")
    assert len(read.blames) == 64


def test_readers_ignore_unknown_fields() -> None:
    assert decode_stamp(json.dumps({**json.loads(encode_stamp(STAMP)), "later": [1]})) == STAMP


@pytest.mark.parametrize(("decode", "known"), [(decode_stamp, 2), (decode_roster, 1)])
def test_a_higher_version_is_refused_by_name(decode: object, known: int) -> None:
    assert callable(decode)
    with pytest.raises(ContractError, match=f"version {known + 1} is newer than {known}"):
        decode(f'{{"v":{known + 1}}}')


@given(st.binary())
def test_readers_of_annotations_raise_nothing_but_contract_errors(data: bytes) -> None:
    for decode in (decode_stamp, decode_roster):
        with pytest.raises(ContractError):
            decode(data)


def test_a_sealed_roster_is_complete_or_refused() -> None:
    with pytest.raises(ContractError, match="needs rank"):
        decode_roster('{"v":1,"pod_uid":"u","generation":1,"epoch":1,"answer":"sealed","rank":0}')


SOURCES = st.sampled_from([*BUILT_IN, "jobSet", "kueueworkload"])
IDS = st.one_of(
    st.text(min_size=1, max_size=80),
    st.sampled_from(["train", "train.labels", "train-labels", "train-job", "x" * 300]),
)


@given(IDS, IDS, SOURCES, SOURCES)
def test_config_map_names_are_valid_and_tell_gangs_apart(
    one: str, other: str, by: str, by_other: str
) -> None:
    name = configmap_name("ns", one, by)
    assert len(name) <= 253
    assert re.fullmatch(r"preflight-[a-z0-9-]*[a-z0-9](\.[a-z]([a-z-]*[a-z])?)?", name)
    if (one, by) != (other, by_other):
        assert name != configmap_name("ns", other, by_other)
        assert gang_hash("ns", one, by) != gang_hash("ns", other, by_other)
        assert gang_id(by, one) != gang_id(by_other, other)


@pytest.mark.parametrize("by", ["labels", "schedulingGroup"])
@pytest.mark.parametrize(("one", "other"), [("pg.1", "pg-1"), ("A", "a"), ("x" * 300, "x" * 301)])
def test_ids_that_sanitize_alike_get_names_of_their_own(one: str, other: str, by: str) -> None:
    assert configmap_name("ns", one, by) != configmap_name("ns", other, by)


def test_an_id_cannot_be_written_so_as_to_take_the_hashed_name_of_another() -> None:
    victim = configmap_name("ns", "pg.1", "schedulingGroup")
    assert configmap_name("ns", victim.removeprefix("preflight-"), "schedulingGroup") != victim


def test_a_plain_id_of_kubernetes_own_gangs_keeps_the_name_of_the_adr() -> None:
    assert (
        configmap_name("ns", "myworkload-group1", "schedulingGroup")
        == "preflight-myworkload-group1"
    )


@pytest.mark.parametrize(
    ("source", "name"), [("volcano", "volcano"), ("kueueWorkload", "kueue-workload")]
)
def test_the_name_of_any_other_gang_says_its_source(source: str, name: str) -> None:
    assert configmap_name("ns", "train", source) == f"preflight-train.{name}"


@pytest.mark.parametrize("source", ["", "../../secrets", "a:b", "labels\n", "x" * 51])
def test_a_source_is_a_word(source: str) -> None:
    with pytest.raises(ContractError, match="source"):
        decode_stamp(encode_stamp(msgspec.structs.replace(STAMP, source=source)))


def test_gang_labels_differ_between_namespaces() -> None:
    assert gang_hash("a", "g", "labels") != gang_hash("b", "g", "labels")


def result(**changes: Any) -> Result:
    return msgspec.structs.replace(RESULT, check="c", **changes)


@given(
    st.text(max_size=3000),
    st.text(max_size=1000),
    st.text(max_size=200),
    st.dictionaries(st.text(max_size=20), st.text(max_size=60), max_size=8),
)
def test_a_result_always_fits_and_reads_back(
    reason: str, subject: str, code: str, details: dict[str, str]
) -> None:
    written = result(code=code, subject=subject, reason=reason, details=details)
    data = encode_result(written)
    assert len(data) <= MAX_BYTES
    assert from_termination("c", data.decode(), 1).outcome == "failed"


@pytest.mark.parametrize("containers", [17, 24, 32, 60])
@given(st.text(max_size=900), st.dictionaries(st.text(max_size=9), st.text(max_size=40)))
def test_a_result_of_which_the_kubelet_keeps_a_part_says_what_it_has_found(
    containers: int, reason: str, details: dict[str, str]
) -> None:
    written = msgspec.structs.replace(
        RESULT, outcome="inconclusive", code="GANG_TIMEOUT", reason=reason, details=details
    )
    kept = encode_result(written)[: 12 * 1024 // containers].decode(errors="replace")
    read = from_termination("nccl-loopback", kept, 1)
    assert (read.outcome, read.code, read.duration) == ("inconclusive", "GANG_TIMEOUT", 12.5)


@given(st.integers(0, 100))
def test_a_result_that_is_cut_before_its_code_is_judged_by_the_exit_status(kept: int) -> None:
    data = encode_result(RESULT).decode()
    assert from_termination("nccl-loopback", data[:kept], 1).outcome == "failed"
    assert from_termination("nccl-loopback", data[:kept], 0).outcome in {"passed", "failed"}


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
    claim = encode_result(result(outcome="passed", code="OK")).decode()
    assert from_termination("c", claim, 137).outcome == "inconclusive"


def test_a_roster_for_another_pod_is_ignored(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(encode_roster(SEALED))
    assert read_roster(tmp_path, "u-1") == SEALED
    assert read_roster(tmp_path, "u-2") is None


def test_no_roster_yet_is_none(tmp_path: Path) -> None:
    assert read_roster(tmp_path, "u-1") is None
    (tmp_path / FILE).write_text("")
    assert read_roster(tmp_path, "u-1") is None


NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from(
    [1e308, -1e308, 1e400, -1.0]
)


@given(seconds=NUMBERS, measured=st.none() | NUMBERS, expected=st.none() | NUMBERS)
def test_numbers_of_a_result_are_finite_and_bounded_when_written_and_when_read(
    seconds: float, measured: float | None, expected: float | None
) -> None:
    claimed = result(duration=seconds, measured=measured, expected=expected)
    written = json.loads(encode_result(claimed))
    foreign = json.dumps(
        {"v": 1, "check": "c", "outcome": "failed", "code": "X", "gated": True, "duration": seconds}
        | {"measured": measured, "expected": expected}
    ).replace("Infinity", "1e999")
    read = from_termination("c", foreign, 1)
    for duration, *bandwidths in (
        (written["duration"], written["measured"], written["expected"]),
        (read.duration, read.measured, read.expected),
    ):
        assert 0 <= duration <= MAX_SECONDS
        assert all(value is None or 0 <= value <= MAX_GBPS for value in bandwidths)


@given(st.text(st.characters(exclude_categories=())), st.text())
def test_texts_of_a_result_are_printable_when_written_and_when_read(ours: str, theirs: str) -> None:
    mine = result(code=ours, subject=ours, reason=ours, details={ours: ours})
    written = json.loads(encode_result(mine))
    assert all(written[name].isprintable() for name in ("code", "subject", "reason"))
    assert all(
        text.isprintable() for detail in written.get("details", {}).items() for text in detail
    )
    claim = {"v": 1, "check": "c", "outcome": "failed", "gated": True, "duration": 1}
    told = {
        "code": theirs,
        "reason": theirs,
        "details": {f"{theirs}{i}": theirs for i in range(40)},
    }
    claimed = json.dumps(claim | told)
    read = from_termination("c", claimed, 1)
    assert read.code.isprintable()
    assert read.reason.isprintable()
    assert read.details is not msgspec.UNSET
    assert len(read.details) <= 16
    assert all(text.isprintable() for detail in read.details.items() for text in detail)
    assert from_termination("c", theirs, 1).reason.isprintable()


def test_details_of_a_usual_pass_are_kept() -> None:
    details = {
        "model": "NVIDIA H100 80GB HBM3",
        "gpus": "8",
        "links": "nvlink",
        "size": "1G",
        "nccl": "2.28.7",
    }
    usual = result(outcome="passed", code="OK", reason="x" * 700, details=details)
    assert from_termination("c", encode_result(usual).decode(), 0).details == details


def test_a_check_under_another_name_has_not_passed_because_it_only_observes() -> None:
    foreign = encode_result(
        msgspec.structs.replace(RESULT, check="dcgm-diag", gated=False)
    ).decode()
    read = from_termination("gpu-health", foreign, 0)
    assert (read.check, read.outcome, read.code) == ("gpu-health", "inconclusive", "BAD_RESULT")
    assert "speaks of the check 'dcgm-diag'; give the check this name" in read.reason
