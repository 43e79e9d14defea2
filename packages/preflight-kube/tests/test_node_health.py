"""Which nodes are sick, by whose word, and what of it outlives a repair."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_kube.api.node_health import (
    MOST_RECENT,
    SICK,
    CheckEnd,
    EndedRun,
    NodeCondition,
    NodeHealth,
    NodeHealthStatus,
    code_of,
    cut_short,
    gpus_named,
    judge,
    makes_sick,
    noted,
)
from preflight_testing.matrix.scenario import fatal_subjects

GPU, OTHER = "GPU-5c1b8f0e-0000-4000-8000-000000000003", "GPU-5c1b8f0e-0000-4000-8000-000000000004"
NEW = NodeHealthStatus()


def at(minute: int) -> str:
    then = datetime(2026, 11, 26, tzinfo=UTC) + timedelta(minutes=minute)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    type_: str = "DcgmDiagnosticMemory", *gpus: str, status: str = "True", minute: int = 5
) -> NodeCondition:
    named = " ".join(f"GPU_UUID:{gpu}" for gpu in gpus)
    return NodeCondition(
        type=type_,
        status=status,
        reason=f"{type_}IsNotHealthy",
        message=f"ErrorCode:DCGM_FR_FAULTY_MEMORY {named} is bad. Recommended Action=CONTACT_SUPPORT;",
        last_transition_time=at(minute),
    )


def passed(minute: int, gbps: float | None = None, of: str = "", check: str = "c") -> EndedRun:
    return EndedRun(check, True, CheckEnd(time=at(minute), pod="ns/p"), gbps, of)


def failed(
    minute: int, gpu: str = "", *, blames: bool = True, gbps: float | None = None
) -> EndedRun:
    end = CheckEnd(time=at(minute), code="SLOW_GPU", pod="ns/p", gpu=gpu, blames=blames)
    return EndedRun("c", False, end, gbps)


def after(*runs: EndedRun, status: NodeHealthStatus = NEW) -> NodeHealthStatus:
    for run in runs:
        status = noted(status, run)
    return status


def test_every_fatal_finding_of_the_matrix_makes_the_node_sick_while_its_condition_is_true() -> (
    None
):
    for type_, of_gpu in sorted(fatal_subjects()):
        gpus = (GPU,) if of_gpu else ()
        found = judge(NEW, [condition(type_, *gpus)], at(9))
        assert (found.state, found.found_by, found.by_word_of) == ("Sick", type_, "NodeCondition")
        assert (found.since, found.code) == (at(5), "DCGM_FR_FAULTY_MEMORY")
        assert [one.uuid for one in found.gpus] == list(gpus)
        for status in ("False", "Unknown"):
            assert judge(NEW, [condition(type_, *gpus, status=status)], at(9)).state == "Unknown"


def test_each_gpu_of_a_condition_has_the_code_of_its_own_part() -> None:
    message = f"ErrorCode:A GPU_UUID:{GPU} Recommended Action=NONE;ErrorCode:B GPU_UUID:{OTHER} Recommended Action=NONE;"
    both = NodeCondition(type="DcgmDiagnosticMemory", status="True", message=message)
    assert [(one.uuid, one.code) for one in judge(NEW, [both], at(9)).gpus] == [
        (GPU, "A"),
        (OTHER, "B"),
    ]


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (f"ErrorCode:A GPU_UUID:{GPU[:20]}... Recommended Action=NONE;", []),
        (f"ErrorCode:A GPU_UUID:{GPU} is... Recommended Action=NONE;ErrorCode:A GPU_UU... Recommended Action=NONE;", [GPU]),
        (f"ErrorCode:A GPU_UUID:{GPU} is bad Recommended Action=NONE;ErrorCode:A GPU_UUID:{OTHER[:20]};...", [GPU]),
    ],
)  # fmt: skip
def test_a_condition_that_the_connector_cut_short_is_about_the_node_and_the_gpus_it_names_whole(
    message: str, named: list[str]
) -> None:
    assert (gpus_named(message), cut_short(message)) == (named, True)
    found = judge(NEW, [NodeCondition(type="X", status="True", message=message)], at(9))
    assert (found.state, [one.uuid for one in found.gpus]) == ("Sick", named)


def test_a_condition_whose_sentences_alone_were_shortened_is_about_its_gpus_alone() -> None:
    part = "ErrorCode:A GPU_UUID:{} is... Recommended Action=NONE;"
    assert not cut_short(part.format(GPU) + part.format(OTHER))
    assert not cut_short("the kubelet has... Recommended Action=NONE;...")


def test_other_conditions_make_no_node_sick() -> None:
    for other in ("Ready", "DiskPressure", "GpuDcgmDiagnostic", "ncclloopbacktest", ""):
        assert not makes_sick(other, "True")
        assert judge(NEW, [NodeCondition(type=other, status="True")], at(9)).state == "Unknown"
    assert not makes_sick(SICK[0], "True", ())


def test_a_condition_of_any_type_that_names_gpus_makes_these_sick() -> None:
    found = judge(NEW, [condition("SysLogsXIDError", GPU, OTHER)], at(9))
    assert (found.state, [one.uuid for one in found.gpus]) == ("Sick", [GPU, OTHER])


def test_a_result_makes_a_node_suspect_and_a_later_pass_of_the_check_ends_that() -> None:
    status = judge(after(passed(1), failed(2, GPU)), (), at(3))
    assert (status.state, status.since, status.by_word_of) == ("Suspect", at(2), "PodResult")
    assert (status.gpu, status.found_by, status.code) == (GPU, "c", "SLOW_GPU")
    again = judge(after(passed(4), status=status), (), at(5))
    assert (again.state, again.repaired, again.revalidated) == ("Healthy", at(5), at(4))
    assert again.gpus == ()
    elsewhere = judge(after(passed(4, check="other"), status=status), (), at(5))
    assert elsewhere.state == "Suspect"


def test_a_failure_that_blames_nobody_accuses_nobody() -> None:
    assert judge(after(failed(2, blames=False)), (), at(3)).state == "Unknown"
    assert judge(after(passed(1), failed(2, blames=False)), (), at(3)).state == "Healthy"


def test_a_later_failure_that_blames_nobody_leaves_a_suspect_as_it_is_in_any_order() -> None:
    bad, other = failed(2, GPU), failed(3, blames=False)
    for status in (after(bad, other), after(other, bad)):
        assert judge(status, (), at(4)).state == "Suspect"
    assert judge(after(bad, other, passed(4)), (), at(5)).state == "Healthy"
    assert judge(after(bad, passed(4), failed(5, blames=False)), (), at(6)).state == "Healthy"


def test_no_result_ends_what_a_condition_says() -> None:
    found = judge(after(passed(50)), [condition("NCCLLoopbackTestDevice", GPU)], at(60))
    assert (found.state, found.gpu, found.last_pass) == ("Sick", GPU, at(50))


def test_the_trusted_word_comes_before_hearsay_about_the_same_gpu() -> None:
    status = judge(after(failed(2, GPU)), [condition("DcgmDiagnosticMemory", GPU)], at(6))
    assert [(one.state, one.by_word_of) for one in status.gpus] == [("Sick", "NodeCondition")]


def test_a_repaired_node_is_unknown_until_a_check_has_passed_and_a_replaced_gpu_goes_then() -> None:
    sick = judge(after(passed(1)), [condition("DcgmDiagnosticMemory", GPU)], at(6))
    repaired = judge(sick, (), at(60))
    assert (repaired.state, repaired.since, repaired.repaired) == ("Unknown", at(60), at(60))
    assert [(one.uuid, one.repaired) for one in repaired.gpus] == [(GPU, at(60))]
    well = judge(after(passed(70), status=repaired), (), at(71))
    assert (well.state, well.revalidated, well.gpus) == ("Healthy", at(70), ())
    worse = judge(well, [condition("DcgmDiagnosticMemory", OTHER, minute=80)], at(81))
    assert (worse.state, worse.repaired, worse.revalidated) == ("Sick", None, None)


def test_the_pass_that_clears_the_condition_is_its_revalidation() -> None:
    sick = judge(NEW, [condition("DcgmDiagnosticMemory", GPU)], at(6))
    still = judge(after(passed(20), status=sick), [condition("DcgmDiagnosticMemory", GPU)], at(20))
    assert still.state == "Sick"
    well = judge(still, (), at(21))
    assert (well.state, well.repaired, well.revalidated) == ("Healthy", at(21), at(20))
    assert well.gpus == ()


def test_a_pass_from_before_the_complaint_began_is_no_revalidation() -> None:
    speaks = condition("NCCLLoopbackTestDevice", GPU, minute=1)
    status = judge(after(passed(0)), [speaks], at(1))
    cleared = judge(status, (), at(5))
    assert (cleared.state, cleared.repaired, cleared.revalidated) == ("Unknown", at(5), None)
    assert [(one.uuid, one.state) for one in cleared.gpus] == [(GPU, "Unknown")]
    noted_late = judge(after(passed(4), status=cleared), (), at(6))
    assert (noted_late.state, noted_late.revalidated, noted_late.gpus) == ("Healthy", at(4), ())


def test_a_pass_between_two_complaints_that_end_together_is_no_revalidation() -> None:
    first = condition("DcgmDiagnosticMemory", GPU, minute=1)
    second = condition("NCCLLoopbackTestDevice", GPU, minute=3)
    status = judge(after(passed(2)), [first, second], at(3))
    status = judge(judge(status, [first], at(4)), (), at(5))
    assert (status.state, status.complained, status.revalidated) == ("Unknown", at(3), None)
    assert [(one.uuid, one.complained) for one in status.gpus] == [(GPU, at(3))]


def test_the_record_of_a_release_that_kept_no_beginning_has_that_of_its_state() -> None:
    speaks = condition("NCCLLoopbackTestDevice", GPU, minute=1)
    old = judge(after(passed(0)), [speaks], at(1))
    gpus = tuple(msgspec.structs.replace(gpu, complained=None) for gpu in old.gpus)
    old = msgspec.structs.replace(old, complained=None, gpus=gpus)
    cleared = judge(old, (), at(5))
    assert (cleared.state, cleared.complained) == ("Unknown", at(1))
    assert [one.complained for one in cleared.gpus] == [at(1)]


def test_the_usual_bandwidth_is_the_median_of_the_last_runs_that_passed() -> None:
    runs = [passed(i, 400.0 + i) for i in range(20)]
    (check,) = after(*runs, failed(30, gbps=90.0)).checks
    assert len(check.recent) == MOST_RECENT
    assert (check.measured, check.usual) == (90.0, 415.0)


def test_what_is_measured_of_something_else_is_not_compared() -> None:
    (check,) = after(passed(1, 400.0, "8 GPUs"), passed(2, 90.0, "2 GPUs")).checks
    assert (check.measured, check.usual) == (90.0, 90.0)


RUNS = st.lists(
    st.one_of(
        st.builds(passed, st.integers(0, 40), st.sampled_from([None, 90.0, 400.0])),
        st.builds(failed, st.integers(0, 40), st.sampled_from(["", GPU]), blames=st.booleans()),
    ),
    max_size=8,
)
CONDITIONS = st.lists(
    st.builds(condition, st.sampled_from(["DcgmDiagnosticMemory", "Ready"]), st.sampled_from([GPU, OTHER])),
    max_size=2,
)  # fmt: skip


@given(RUNS, CONDITIONS)
def test_what_was_noted_and_judged_once_is_not_written_again_and_can_be_read(
    runs: list[EndedRun], conditions: list[NodeCondition]
) -> None:
    once = judge(after(*runs), conditions, at(60))
    assert judge(after(*runs, status=once), conditions, at(90)) == once
    assert msgspec.json.decode(msgspec.json.encode(once), type=NodeHealthStatus) == once


def test_uuids_and_codes_are_found_as_the_platform_connector_writes_them() -> None:
    message = f"ErrorCode:119 GPU_UUID:{GPU} fell off; GPU_UUID:'{OTHER}', GPU_UUID:{GPU}"
    assert gpus_named(message) == [GPU, OTHER]
    assert (code_of("R", message), code_of("R", "words")) == ("119", "R")


def test_the_health_of_an_earlier_release_is_read_and_still_written_alike() -> None:
    golden = json.loads((Path(__file__).parent / "golden/v1alpha1/nodehealth.json").read_text())
    read = msgspec.convert(golden, NodeHealth)
    assert (read.metadata.name, read.spec.node_uid) == ("node-a", "uid-a")
    assert (read.status.state, read.status.gpus[0].uuid) == ("Suspect", "GPU-3")
    assert json.loads(msgspec.json.encode(read.status)) == golden["status"]
