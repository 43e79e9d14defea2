"""Documents in, verdicts out: what is a fault, whose it is, and what is not a verdict about
hardware at all.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from check_dcgm.catalogue import canonical_test, known
from check_dcgm.judge import DiagRequest, by_exit_status, judge
from check_dcgm.parse import UnreadableDocument, parse
from documents import fault, v4
from engines import Fault, document
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check import NODE, Action, Outcome, Subject, Verdict
from preflight_proto.check.events import EventDraft, events

A, B = "GPU-aaaa", "GPU-bbbb"
Tests = dict[int, list[dict[str, Any]]]
REQUEST = DiagRequest(2, {3: A, 5: B}, "node:5555")


def verdict(output: str, status: int = 0) -> Verdict:
    return judge(parse(output), status, REQUEST)


def with_the_rest(tests: dict[str, Tests]) -> dict[str, Tests]:
    """What level 2 requires besides, passed."""
    healthy: Tests = {3: [], 5: []}
    return {"software": healthy, "memory": healthy, "pcie": healthy, **tests}


def test_a_pass_of_every_gpu_clears_each_test_and_leaves_the_node_to_a_run_that_passes() -> None:
    found = verdict(v4(with_the_rest({})))
    assert (found.outcome, found.code, found.findings) == (Outcome.PASSED, "OK", ())
    tests = ("Memory", "Pcie", "Software")
    assert found.clears == {Subject(test, gpu) for test in tests for gpu in (A, B)}


def test_faulty_memory_is_fatal_for_that_gpu_alone() -> None:
    found = verdict(v4({"memory": {3: [], 5: [fault()]}, "pcie": {3: [], 5: []}}), 205)
    [finding] = found.findings
    assert (found.outcome, found.code, found.subject) == (
        Outcome.FAILED,
        "DCGM_FR_FAULTY_MEMORY",
        B,
    )
    assert (finding.subject, finding.fatal, finding.action) == (
        Subject("Memory", B),
        True,
        Action.CONTACT_SUPPORT,
    )
    assert Subject("Memory", A) in found.clears
    assert Subject("Memory", B) not in found.clears


def test_dcgm_3_and_4_raise_the_same_identity() -> None:
    new, old = (
        verdict(*document(version, 2, (3, 5), [Fault("memory", 3, 52, 2, 10)])).findings[0]
        for version in ("4.4.2", "3.3.9")
    )
    assert (new.code, new.subject, new.message) == (old.code, old.subject, old.message)


@given(measured=st.integers(), at=st.integers(0), unit=st.text(max_size=20))
def test_events_of_a_fault_are_the_same_whatever_was_measured(
    measured: int, at: int, unit: str
) -> None:
    def reported(text: str) -> list[EventDraft]:
        found = verdict(v4({"memory": {3: [fault(text=text)], 5: []}}), 205)
        return [
            replace(event, metadata={}) for event in events("dcgm-diag", "Diagnostic", "GPU", found)
        ]

    expected = reported("14 errors; at 0x1")
    assert reported(f"{measured} {unit} at {at:#x}") == expected
    assert not any(";" in event.message for event in expected)


def test_the_deployment_quirk_of_dcgm_3_names_the_gpu_in_the_warning() -> None:
    raw = json.loads(document("3.3.9", 2, (3, 5))[0])
    [test] = [
        test
        for test in raw["DCGM GPU Diagnostic"]["test_categories"][0]["tests"]
        if test["name"] == "Persistence Mode"
    ]
    warning = {"warnings": "it is off", "error_id": 29, "gpu_id": "3"}
    test["results"] = [{"status": "Fail", "warnings": [warning]}]
    found = verdict(json.dumps(raw), 226)
    assert [f.subject for f in found.findings] == [Subject("Software", A)]


@pytest.mark.parametrize(
    ("test", "error_id", "severities", "categories", "outcome", "fatal"),
    [
        pytest.param(
            *("pcie", 30, {4}, {9, 10, 11, 12, 13, 15}, Outcome.FAILED, True),
            id="triage of hardware is fatal",
        ),
        pytest.param(
            *("pcie", 110, {4}, {1, 2, 14}, Outcome.FAILED, True),
            id="triage of performance that a hardware test measured is fatal",
        ),
        pytest.param(
            *("pcie", 101, {4}, {5, 6, 7}, Outcome.FAILED, False),
            id="other triage fails without being fatal",
        ),
        pytest.param(
            *("software", 900, {2, 4, 6}, {3, 4, 8, 16}, Outcome.INCONCLUSIVE, False),
            id="trouble of the environment is never fatal",
        ),
    ],
)
def test_severity_and_category_decide(
    test: str,
    error_id: int,
    severities: set[int],
    categories: set[int],
    outcome: Outcome,
    fatal: bool,
) -> None:
    for severity, category in itertools.product(severities, categories):
        found = verdict(v4({test: {3: [fault(error_id, severity, category)], 5: []}}))
        assert (found.outcome, any(f.fatal for f in found.findings)) == (outcome, fatal), category


def test_an_error_without_severity_and_not_in_the_table_is_inconclusive() -> None:
    found = verdict(v4({"memory": {3: [fault(999, None, None)], 5: []}}), 226)
    assert found.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("status", [203, 217, 222, 235, 244, 245, 190, 242, 255, -9])
def test_infrastructure_is_no_verdict_about_hardware(status: int) -> None:
    found = by_exit_status(status, REQUEST, "said")
    assert found.outcome is Outcome.INCONCLUSIVE
    passing = v4({"memory": {3: [], 5: []}})
    assert verdict(passing, status).outcome is Outcome.INCONCLUSIVE


def test_a_fail_without_an_error_is_not_believed_either_way() -> None:
    found = verdict(v4({"memory": {3: [], 5: []}}).replace('"Pass"', '"Fail"', 1), 226)
    assert found.code == "UNEXPLAINED_FAIL"


@pytest.mark.parametrize(
    ("number", "severity", "category"), [(52, 7, 10), (52, -1, 10), (52, 99, 0), (30, 4, 17)]
)
def test_a_severity_or_category_that_a_later_version_has_is_that_of_the_table(
    number: int, severity: int, category: int
) -> None:
    sick = fault(number, severity, category)
    found = verdict(v4(with_the_rest({"memory": {3: [sick], 5: []}})), 205)
    assert (found.code, found.findings[0].fatal) == (known()[number].name, True)


@pytest.mark.parametrize("tests", [{}, {"memory": {3: []}}])
def test_a_gpu_on_which_no_test_ran_is_not_passed_whatever_is_optional(
    tests: dict[str, Tests],
) -> None:
    optional = frozenset({"Software", "Memory", "Pcie"})
    found = judge(parse(v4(tests)), 0, replace(REQUEST, optional=optional))
    assert (found.outcome, found.code) == (Outcome.INCONCLUSIVE, "NOT_TESTED")
    assert (A in found.reason, B in found.reason) == (not tests, True)
    assert "DCGM_OPTIONAL_TESTS" not in found.reason  # they are named there


@pytest.mark.parametrize(
    ("status", "todo"), [(237, "reset the GPU."), (238, "and contact support.")]
)
def test_a_status_about_a_gpu_says_what_to_do(status: int, todo: str) -> None:
    assert by_exit_status(status, REQUEST, "").reason.endswith(todo)


def test_the_document_is_found_among_other_lines() -> None:
    assert (
        verdict('Warning: {x}\n{"a": 1}\n' + v4(with_the_rest({})) + "\nbye").outcome
        is Outcome.PASSED
    )


def test_iterations_are_judged_together() -> None:
    good, bad = (
        json.loads(v4({"memory": {3: [], 5: []}})),
        json.loads(v4({"memory": {3: [fault()], 5: []}})),
    )
    assert (
        verdict(json.dumps({"iterations": [good, bad], "Overall Result": "Fail"}), 205).outcome
        is Outcome.FAILED
    )


@given(st.integers(0, 400))
def test_half_a_document_is_unreadable(cut: int) -> None:
    whole = v4({"memory": {3: [fault()], 5: []}})
    with pytest.raises(UnreadableDocument):
        parse(whole[: min(cut, len(whole) - 1)])


@given(st.text())
def test_any_output_is_parsed_or_refused(output: str) -> None:
    try:
        assert parse(output).results is not None
    except UnreadableDocument as error:
        assert str(error)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "tests",
                    "results",
                    "warnings",
                    "gpu_id",
                    "entity_id",
                    "status",
                    "test_categories",
                    "test_summary",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(values, st.integers(-64, 255))
def test_a_document_of_any_shape_gets_a_verdict_and_blames_nobody(
    body: object, status: int
) -> None:
    found = verdict(json.dumps({"DCGM Diagnostic": {"test_categories": body}}), status)
    if status not in {237, 238}:
        assert not any(f.fatal for f in found.findings)


problems = st.lists(
    st.builds(fault, st.integers(1, 140), st.integers(0, 7), st.integers(0, 17)), max_size=2
)


@given(
    st.dictionaries(
        st.sampled_from(["memory", "pcie", "software", "targeted_stress"]),
        st.fixed_dictionaries({3: problems, 5: problems, 0: problems}),
    ),
    st.integers(-64, 255),
)
def test_fatal_comes_from_severity_and_category_alone(
    tests: dict[str, dict[int, list[dict[str, int]]]], status: int
) -> None:
    found = verdict(v4(tests), status)
    clean = {
        uuid
        for number, uuid in REQUEST.gpus.items()
        if not any(by_gpu[number] for by_gpu in tests.values())
    }
    assert not any(f.subject.gpu_uuid in clean for f in found.findings)
    for finding in found.findings:
        if finding.fatal and finding.subject != NODE:
            assert finding.metadata["severity"] in {"2", "4", "6"}
            assert finding.metadata["category"] not in {"3", "4", "8", "16"}
    assert not found.clears & {f.subject for f in found.findings if f.fatal}


def test_tests_of_both_generations_share_their_names() -> None:
    pairs = [
        ("GPU Memory", "memory"),
        ("PCIe", "pcie"),
        ("Targeted Stress", "targeted_stress"),
        ("Denylist", "software"),
        ("EUD Test", "eud"),
    ]
    for old, new in pairs:
        assert canonical_test(old) == canonical_test(new)
    assert canonical_test("page retirement/row remap") == "Software"
    assert canonical_test("brand_new-test 2") == "BrandNewTest2"


def test_the_table_has_every_id_of_dcgm_4_6() -> None:
    table = known()
    assert sorted(table) == list(range(133))
    assert all(
        row.name.startswith("DCGM_FR_") and row.says and row.since and row.source
        for row in table.values()
    )
    assert len({row.name for row in table.values()}) == 133
    assert {number for number, row in table.items() if row.severity == 3} == {0, 1, 2, 21}
