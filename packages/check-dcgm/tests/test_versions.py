"""Every error of DCGM's table, in every version's document, in every status: judged as the table
says.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from check_dcgm.catalogue import known, overridden
from check_dcgm.judge import DiagRequest, judge
from check_dcgm.parse import UnreadableDocument, parse
from engines import TESTS, VERSIONS, Fault, Skip, document, runtime_error
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_proto.check import NODE, Action, Outcome, Verdict

A, B = "GPU-aaaa", "GPU-bbbb"
OURS, FOREIGN = (3, 5), 0
FABRIC, INSTALLATION = {108, 112, 123}, {89, 90, 91}
"""The GPU has not joined its NVLink fabric; the extended diagnostic is installed wrongly."""
WITH_IDS = tuple(v for v in VERSIONS if v not in {"2.4.7", "3.1.8"})
MUTATIONS = 10 * settings().max_examples


def request(level: int = 2) -> DiagRequest:
    return DiagRequest(level, {3: A, 5: B}, "node:5555")


def verdict(output: str, status: int = 0, level: int = 2) -> Verdict:
    return judge(parse(output), status, request(level))


def expected(number: int, severity: int, category: int) -> tuple[Outcome, bool]:
    """What a failed memory test with this error is, by the rules in the manual and by nothing of
    the check's own.
    """
    if number in {56, 73, *FABRIC, *INSTALLATION}:  # 56, 73: no memory could be had for the test
        return Outcome.INCONCLUSIVE, False
    if number == 46:  # too few PCIe lanes, which DCGM calls a configuration
        return Outcome.FAILED, True
    if category in {3, 4, 8, 16}:  # software, configuration, DCGM itself
        return Outcome.INCONCLUSIVE, False
    if severity in {2, 6}:
        return Outcome.FAILED, True
    if severity == 4:
        return Outcome.FAILED, category not in {0, 5, 6, 7}
    return Outcome.INCONCLUSIVE, False


@pytest.mark.parametrize("version", VERSIONS)
def test_healthy_gpus_pass_in_every_version(version: str) -> None:
    for level in TESTS:
        output, status = document(version, level, OURS)
        assert verdict(output, status, level).code == "OK", level


@pytest.mark.parametrize("version", WITH_IDS)
def test_a_failed_memory_test_is_never_passed_and_is_what_its_error_says(version: str) -> None:
    for number, row in known().items():
        output, status = document(
            version, 2, OURS, [Fault("memory", 3, number, row.severity, row.category)]
        )
        found = verdict(output, status)
        outcome, fatal = expected(number, row.severity, row.category)
        assert (found.outcome, any(f.fatal for f in found.findings)) == (outcome, fatal), number
        assert {f.subject.gpu_uuid for f in found.findings if f.code == row.name} == {A}
        assert found.code == ("FABRIC_NOT_READY" if number in FABRIC else row.name)
        if found.outcome is Outcome.FAILED:
            assert (row.fatal, found.findings[0].action.value) == (fatal, row.action)


@pytest.mark.parametrize("version", WITH_IDS)
def test_the_same_error_in_the_software_test_is_decided_by_its_severity(version: str) -> None:
    for number, row in known().items():
        text = f"Something about GPU {OURS[0]}."
        output, status = document(
            version, 2, OURS, [Fault("software", 3, number, row.severity, row.category, text)]
        )
        found = verdict(output, status)
        if version == "3.2.6":
            # It prints no id for these tests; the words are unknown and the test's own id is an
            # environment's.
            assert found.outcome in {Outcome.PASSED, Outcome.INCONCLUSIVE}
        elif row.severity in {1, 5} and number not in FABRIC:
            assert (found.outcome, [f.action for f in found.findings]) == (
                Outcome.PASSED,
                [Action.NONE],
            )
        else:
            outcome, fatal = expected(number, row.severity, row.category)
            assert (found.outcome, any(f.fatal for f in found.findings)) == (outcome, fatal), number
        own = {"NOT_TESTED", "UNEXPLAINED_STATUS", "FABRIC_NOT_READY"}
        assert all(f.subject.gpu_uuid == A or f.code in own for f in found.findings)


@pytest.mark.parametrize("version", WITH_IDS)
def test_a_skipped_memory_test_is_never_passed(version: str) -> None:
    for number, row in known().items():
        fault = Fault("memory", 3, number, row.severity, row.category, status="Skip")
        found = verdict(document(version, 2, OURS, [fault])[0], 226)
        assert found.outcome is not Outcome.PASSED, number


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_of_another_gpu_never_touches_ours(version: str) -> None:
    for number, row in known().items():
        fault = Fault("memory", FOREIGN, number, row.severity, row.category, f"On GPU {FOREIGN}.")
        output, status = document(version, 2, (FOREIGN, *OURS), [fault])
        found = verdict(output, status)
        assert found.outcome is Outcome.PASSED, found.reason
        assert not any(f.fatal for f in found.findings)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("test", ["memory", "pcie"])
@pytest.mark.parametrize("how", ["skipped", "absent"])
def test_a_required_test_that_did_not_run_is_named_with_its_reason(
    version: str, test: str, how: str
) -> None:
    skips = [Skip(test, 5)] if how == "skipped" else []
    absent = [(test, 5)] if how == "absent" else []
    found = verdict(*document(version, 2, OURS, skips=skips, absent=absent))
    assert (found.outcome, found.code) == (Outcome.INCONCLUSIVE, "NOT_TESTED")
    assert (B in found.reason, A in found.reason, test.capitalize() in found.reason) == (
        True,
        False,
        True,
    )
    assert ("not allowed on this SKU" in found.reason) == (how == "skipped")


@pytest.mark.parametrize("version", VERSIONS)
def test_persistence_mode_that_is_off_passes_with_one_event_at_level_1(version: str) -> None:
    faults = [
        Fault(
            "software",
            gpu,
            29,
            5,
            8,
            f"Persistence mode for GPU {gpu} is disabled.",
            old="Persistence Mode",
        )
        for gpu in OURS
    ]
    # Up to 3.2 there is room for one error, and the exit status is 205: it was an isolate error
    # then.
    found = verdict(document(version, 1, OURS, faults)[0], 205 if version < "3.3" else 226, 1)
    assert (found.outcome, found.code) == (Outcome.PASSED, "OK")
    assert {f.code for f in found.findings} == {"DCGM_FR_PERSISTENCE_MODE"}
    assert {f.subject.gpu_uuid for f in found.findings} <= {A, B}
    assert "persistence mode is off" in found.reason
    assert found.reason.endswith("; switch it on, by nvidia-persistenced or nvidia-smi -pm 1.")


@pytest.mark.parametrize("version", WITH_IDS)
@pytest.mark.parametrize("number", sorted(FABRIC))
def test_level_1_does_not_pass_gpus_that_have_not_joined_their_fabric(
    version: str, number: int
) -> None:
    row = known()[number]
    words = "Fabric Manager (Cluster UUID: 0, Clique ID: 0, Health Mask: 0): training in progress."
    faults = [Fault("software", gpu, number, row.severity, row.category, words) for gpu in OURS]
    found = verdict(*document(version, 1, OURS, faults), level=1)
    if version == "3.2.6":  # whose documents have no id for these tests
        return
    assert (found.outcome, found.code) == (Outcome.INCONCLUSIVE, "FABRIC_NOT_READY")
    assert not any(f.fatal for f in found.findings)
    assert "see that nvidia-fabricmanager runs on the node" in found.reason


@pytest.mark.parametrize("version", ["2.4.7", "4.4.2"])  # without its id, and with it
def test_too_few_pcie_lanes_are_fatal_unless_the_operators_table_says_otherwise(
    version: str,
) -> None:
    words = "GPU 3 is running at PCI link width 4X, which is below the minimum allowed link generation of 16"
    output, status = document(version, 2, OURS, [Fault("pcie", 3, 46, 5, 13, words)])
    found = verdict(output, status)
    [finding] = found.findings
    assert (found.outcome, found.code, finding.fatal) == (
        Outcome.FAILED,
        "DCGM_FR_PCIE_WIDTH",
        True,
    )
    assert (finding.action, finding.subject.test) == (Action.CONTACT_SUPPORT, "Pcie")
    table = overridden("[46]\nfatal = false\n", "mine")
    mine = judge(parse(output), status, DiagRequest(2, {3: A, 5: B}, "node:5555", table=table))
    assert (mine.outcome, any(f.fatal for f in mine.findings)) == (Outcome.INCONCLUSIVE, False)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_of_nobody_is_the_nodes(version: str) -> None:
    fault = Fault("software", None, 23, 5, 3, "Found driver nouveau", old="Denylist")
    found = verdict(*document(version, 2, OURS, [fault]))
    assert (found.outcome, [(f.code, f.subject) for f in found.findings]) == (
        Outcome.PASSED,
        [("DCGM_FR_DENYLISTED_DRIVER", NODE)],
    )


@pytest.mark.parametrize("version", ["4.5.0", "4.6.0"])
def test_a_summary_that_repeats_an_error_names_the_gpu_once(version: str) -> None:
    found = verdict(*document(version, 2, OURS, [Fault("memory", 3, 52, 2, 10, "14 elements")]))
    assert [(f.subject.gpu_uuid, f.fatal) for f in found.findings] == [(A, True)]
    assert found.subject == A
    assert B in {s.gpu_uuid for s in found.clears}


def test_a_summary_that_failed_while_every_result_passed_is_not_believed_either_way() -> None:
    raw = json.loads(document("4.4.2", 2, OURS)[0])
    raw["DCGM Diagnostic"]["test_categories"][1]["tests"][0]["test_summary"]["status"] = "Fail"
    assert verdict(json.dumps(raw)).code == "UNEXPLAINED_FAIL"


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= "3.3"])
def test_every_problem_of_a_result_is_kept(version: str) -> None:
    faults = [
        Fault("memory", 3, n, known()[n].severity, known()[n].category, f"words {n}")
        for n in (52, 80, 14)
    ]
    found = verdict(*document(version, 2, OURS, faults))
    assert {f.code for f in found.findings} == {
        "DCGM_FR_FAULTY_MEMORY",
        "DCGM_FR_ROW_REMAP_FAILURE",
        "DCGM_FR_NVLINK_DOWN",
    }


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (238, "DCGM_ST_GPU_IS_LOST", Outcome.FAILED),
        (237, "DCGM_ST_RESET_REQUIRED", Outcome.FAILED),
        (217, "ENGINE_BUSY", Outcome.INCONCLUSIVE),
        (222, "ENGINE_BUSY", Outcome.INCONCLUSIVE),
        (244, "ENGINE_VERSION", Outcome.INCONCLUSIVE),
        (245, "ENGINE_TIMEOUT", Outcome.INCONCLUSIVE),
        (203, "ENGINE_STOPPED", Outcome.INCONCLUSIVE),
        (233, "MIXED_GPUS", Outcome.INCONCLUSIVE),
        (223, "ENGINE_INCOMPLETE", Outcome.INCONCLUSIVE),
        (226, "DIAG_NOT_RUN", Outcome.INCONCLUSIVE),
        (205, "DIAG_NOT_RUN", Outcome.INCONCLUSIVE),
        (0, "DIAG_NOT_RUN", Outcome.INCONCLUSIVE),
    ],
)
def test_a_runtime_error_is_what_the_exit_status_says(
    status: int, code: str, outcome: Outcome
) -> None:
    for version in VERSIONS:
        found = verdict(runtime_error(version, "Error: something"), status)
        assert (found.outcome, found.code) == (outcome, code), version
        assert any(f.fatal for f in found.findings) == (outcome is Outcome.FAILED)


def test_no_exit_status_passes_a_runtime_error() -> None:
    for version in VERSIONS:
        for status in range(-64, 256):
            assert verdict(runtime_error(version, "words"), status).outcome is not Outcome.PASSED


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("Error using CUDA API cudaMemcpy: 'uncorrectable ECC error encountered'", Outcome.FAILED),
        ("GPU 3's NvLink link 4 is currently down", Outcome.FAILED),
        ("GPU 3 has fallen off the bus", Outcome.FAILED),
        ("a double-bit ECC error has occurred", Outcome.FAILED),
        ("GPU is lost", Outcome.FAILED),
        ("CUDA error 214: CUDA_ERROR_ECC_UNCORRECTABLE", Outcome.FAILED),
        ("cudaErrorECCUncorrectable", Outcome.FAILED),
        ("CUDA_ERROR_NVLINK_UNCORRECTABLE", Outcome.FAILED),
        ("single-bit ECC errors", Outcome.INCONCLUSIVE),
        ("ECC is not enabled", Outcome.INCONCLUSIVE),
        ("no NVLink errors", Outcome.INCONCLUSIVE),
        ("device(s) is/are busy or unavailable", Outcome.INCONCLUSIVE),
    ],
)
def test_a_monitor_error_of_a_hardware_test_fails_where_its_words_name_broken_hardware(
    text: str, outcome: Outcome
) -> None:
    found = verdict(*document("4.4.2", 2, OURS, [Fault("pcie", 3, 51, 1, 6, text)]))
    assert (found.outcome, found.subject) == (outcome, A if outcome is Outcome.FAILED else "")


PROGRAM, USED = "run the check again", "analyzing-xid-catalog"


@pytest.mark.parametrize(
    ("test", "xids", "outcome", "fatal", "action", "says"),
    [
        ("memory", (13, 31, 43, 45), Outcome.INCONCLUSIVE, False, Action.NONE, PROGRAM),
        ("diagnostic", (63, 92, 94, 121), Outcome.INCONCLUSIVE, False, Action.NONE, USED),
        ("memory", (79,), Outcome.FAILED, True, Action.RESTART_BM, ""),
        ("memory", (48, 95), Outcome.FAILED, True, Action.COMPONENT_RESET, ""),
        ("memory", (99, 130), Outcome.FAILED, False, Action.CONTACT_SUPPORT, ""),
        # The immediate action of NVIDIA's Xid catalog.
        ("targeted_stress", (79,), Outcome.FAILED, True, Action.RESTART_BM, ""),
        ("targeted_stress", (48, 64, 95, 140), Outcome.FAILED, True, Action.COMPONENT_RESET, ""),
        (
            *("targeted_stress", (62, 109, 110, 119, 120, 136, 143, 156, 158)),
            *(Outcome.FAILED, True, Action.COMPONENT_RESET, ""),
        ),
        ("targeted_stress", (74,), Outcome.FAILED, True, Action.CONTACT_SUPPORT, ""),
    ],
)
def test_an_xid_is_a_programs_or_harmless_or_calls_for_its_own_action(
    test: str, xids: tuple[int, ...], outcome: Outcome, fatal: bool, action: Action, says: str
) -> None:
    for xid in xids:
        fault = Fault(test, 3, 101, 4, 5, f"Detected XID {xid} for GPU 3")
        found = verdict(*document("4.4.2", 3, OURS, [fault]), level=3)
        assert found.outcome is outcome, xid
        assert [(f.fatal, f.action) for f in found.findings] == [(fatal, action)], xid
        assert says in found.reason, xid


@pytest.mark.parametrize(
    ("version", "fault", "action"),
    [
        (
            "4.6.0",
            Fault("diagnostic", 3, 120, 2, 15, "GPU 3 has fallen off the bus"),
            Action.RESTART_BM,
        ),
        ("4.4.2", Fault("targeted_stress", 3, 50, 4, 1), Action.RUN_DCGMEUD),
    ],
    ids=["off the bus", "below the target of a stress test"],
)
def test_a_fault_calls_for_an_action_of_its_own(version: str, fault: Fault, action: Action) -> None:
    [finding] = verdict(*document(version, 3, OURS, [fault]), level=3).findings
    assert (finding.fatal, finding.action) == (True, action)


def test_an_isolate_status_without_an_isolate_error_is_not_believed() -> None:
    output, _ = document("4.4.2", 1, OURS, [Fault("software", 3, 19, 1, 4, "words")])
    assert verdict(output, 226, 1).code == "OK"
    assert verdict(output, 205, 1).code == "UNEXPLAINED_STATUS"


def test_tests_that_the_operator_calls_optional_may_be_skipped() -> None:
    output, status = document("4.4.2", 3, OURS, skips=[Skip("targeted_power", 3)])
    assert verdict(output, status, 3).code == "NOT_TESTED"
    lenient = DiagRequest(3, {3: A, 5: B}, "node:5555", optional=frozenset({"TargetedPower"}))
    assert judge(parse(output), status, lenient).code == "OK"


# --- properties

errors = st.sampled_from(sorted(known()))
texts = st.sampled_from(
    ["words", "GPU 3", "GPU 5 and GPU 3", "uncorrectable ECC error", "GPU 0 is busy", ""]
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, int, list[Fault], list[Skip], list[tuple[str, int]]]:
    version, level = draw(st.sampled_from(VERSIONS)), draw(st.integers(1, 4))
    tests = st.sampled_from(TESTS[level])
    gpus = st.sampled_from((FOREIGN, *OURS))
    faults = [
        Fault(test, gpu, n, severity, category, text, status)
        for test, gpu, n, severity, category, text, status in draw(
            st.lists(
                st.tuples(
                    tests,
                    gpus,
                    errors,
                    st.integers(0, 6),
                    st.integers(0, 16),
                    texts,
                    st.sampled_from(["Fail", "Fail", "Pass", "Skip", "Warn", ""]),
                ),
                max_size=3,
            )
        )
    ]
    skips = [Skip(test, gpu) for test, gpu in draw(st.lists(st.tuples(tests, gpus), max_size=1))]
    absent = draw(st.lists(st.tuples(tests, gpus), max_size=1))
    # What is not among the results is not repeated by the summary either.
    return version, level, [f for f in faults if (f.test, f.gpu) not in absent], skips, absent


HARDWARE_BY_LEVEL = {1: [], 2: ["memory", "pcie"]}
for _level in (3, 4):
    HARDWARE_BY_LEVEL[_level] = [t for t in TESTS[_level] if t not in {"software", "nvbandwidth"}]


@given(cases(), st.sampled_from([0, 205, 226]))
def test_nothing_passes_that_did_not_pass_every_required_test_on_every_gpu_of_ours(
    case: tuple[str, int, list[Fault], list[Skip], list[tuple[str, int]]], status: int
) -> None:
    version, level, faults, skips, absent = case
    output, _ = document(version, level, (FOREIGN, *OURS), faults, skips, absent=absent)
    found = judge(parse(output), status, request(level))
    failed = [
        f
        for f in faults
        if f.gpu in OURS and f.test != "software" and f.status in {"Fail", "Warn", ""}
    ]
    unknown = "nvbandwidth" if version < "4" else ""  # which older ones do not have
    present = [f for f in failed if (f.test, f.gpu) not in absent and f.test != unknown]
    first = {(f.test, f.gpu): f.status for f in reversed(faults)}
    ran = all(
        (test, gpu) not in absent
        and first.get(
            (test, gpu), "Skip" if (test, gpu) in {(s.test, s.gpu) for s in skips} else "Pass"
        )
        == "Pass"
        for test in HARDWARE_BY_LEVEL[level]
        for gpu in OURS
    )
    visible = [f for f in present if first[f.test, f.gpu] == f.status]
    if visible or not ran:
        assert found.outcome is not Outcome.PASSED
    if not any(
        f.gpu in OURS
        or f.gpu is None
        or "GPU 3" in f.text
        or "GPU 5" in f.text
        or f.test == "software"
        for f in faults
    ):
        assert found.outcome in {Outcome.PASSED, Outcome.INCONCLUSIVE}, found.reason
        assert not any(f.fatal for f in found.findings)


def _mutated(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(1, 4)):
        kind, place = rng.randrange(7), rng.randrange(len(text))
        if kind == 0:
            text = text[:place] + text[place + rng.randint(1, 40) :]
        elif kind == 1:
            text = text[:place] + rng.choice('{}[]",:0123456789-.eE \\\x00é') + text[place:]
        elif kind == 2:
            end = min(len(text), place + rng.randint(1, 200))
            text = text[:end] + text[place:end] + text[end:]
        elif kind == 3:
            words = ("Pass", "Fail", "Skip", "Warn", "null", "3", "5", "-1", '"3"', "1e0", "0.5")
            old = rng.choice(
                ('"Pass"', '"Fail"', '"Skip"', ": 3", ": 5", "null", "results", "entity_id")
            )
            hits = [m.start() for m in re.finditer(re.escape(old), text)]
            if hits:
                at = rng.choice(hits)
                text = text[:at] + rng.choice(words) + text[at + len(old) :]
        elif kind == 4:
            text = text.replace(
                rng.choice(['"Fail"', '"Pass"', '"memory"', '"pcie"']),
                rng.choice(['"Skip"', '"x"', '""']),
            )
        elif kind == 5:
            text = text[:place]
        else:
            text = rng.choice(["WARNING {x} ", '"{"', "\n{\n"]) + text
        if not text:
            return " "
    return text


def _rows(text: str) -> list[tuple[str, int | None, str]]:
    """(test, GPU, status) as a plain reader sees them, with nothing of the check's own code."""
    try:
        raw: Any = json.loads(text[text.index("{") :])
    except ValueError:
        return []
    found = []
    for root in ("DCGM Diagnostic", "DCGM GPU Diagnostic"):
        body = raw.get(root) if isinstance(raw, dict) else None
        for category in (body or {}).get("test_categories", []) if isinstance(body, dict) else []:
            for test in category.get("tests", []) if isinstance(category, dict) else []:
                for row in test.get("results") or []:
                    if isinstance(row, dict):
                        gpu = row.get("entity_id", row.get("gpu_id", row.get("gpu_ids")))
                        found.append((str(test.get("name")).lower(), gpu, str(row.get("status"))))
    return found


@pytest.mark.timeout(900)
def test_mutated_documents_neither_raise_nor_pass_wrongly() -> None:
    rng = random.Random(20261121)
    passed = 0
    for _ in range(MUTATIONS):
        version = rng.choice(VERSIONS)
        number = rng.choice(sorted(known()))
        row = known()[number]
        faults = (
            [Fault("memory", 3, number, row.severity, row.category)] if rng.random() < 0.7 else []
        )
        text = _mutated(rng, document(version, 2, (FOREIGN, *OURS), faults)[0])
        try:
            found = verdict(text, rng.choice([0, 205, 226]))
        except UnreadableDocument:
            continue
        if found.outcome is Outcome.PASSED:
            passed += 1
            rows = _rows(text)
            if not rows:
                continue  # noise before the document: it is as it was
            for gpu in OURS:
                for names in (("memory", "gpu memory"), ("pcie",)):
                    mine = [
                        s
                        for t, g, s in rows
                        if t.replace("_", " ") in names and str(g) in {str(gpu), f"{gpu}.0"}
                    ]
                    assert ("Pass" in mine, "Fail" in mine) == (True, False), text
    assert passed  # some mutations change nothing that matters
