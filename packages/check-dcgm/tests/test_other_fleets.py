"""Documents and lists as the engines of others print them: facts of public reports and of DCGM's
source, each with where it is from.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from check_dcgm import identity
from check_dcgm.catalogue import by_words, known
from check_dcgm.judge import DiagRequest, by_exit_status, judge
from check_dcgm.parse import UnreadableDocument, parse
from documents import fault, v4
from engines import Fault, document
from preflight_proto.check import Action, Outcome, Verdict

GPU = "GPU-aaaa"


def _gb10() -> dict[str, Any]:
    """baldwinSPC/glimmer-burnin, a GB10 at level 1, DCGM 4.2.3, driver 580.82.09, exit status 226:
    persistence mode is off, what could not be read stands in the summary, and the serial number is
    one that is none.
    """
    words = "Persistence Mode: Persistence mode for GPU 0 is disabled. Enable persistence mode by "
    fault = Fault(
        "software", 0, 29, 5, 8, f'{words}running "nvidia-smi -i <gpuId> -pm 1 " as root.'
    )
    output, _ = document("4.2.3", 1, (0,), [fault], serials={0: "<<<NOT_SUPPORTED>>>"})
    raw: dict[str, Any] = json.loads(output)
    [test] = raw["DCGM Diagnostic"]["test_categories"][0]["tests"]
    unread = (
        "Error getting the SRAM Threshold Count for GPU 0. Status = 0. Value = 9223372036854775794."
    )
    test["test_summary"]["info"] = [f"{unread} SRAM Threshold checking was skipped."]
    return raw


GB10 = _gb10()
NO_NUMBERS = (
    "<<<NOT_SUPPORTED>>>",  # dcgm_structs.h
    "<<<NOT_PERMISSIONED>>>",
    "<<<NOT_FOUND>>>",
    "<<<NULL>>>",
    "Not Supported",  # dcgmi's tables: CommandOutputController.cpp
    "Insf. Permission",
    "Not Found",
    "****",
    "N/A",
    "",
)


def verdict(document: dict[str, Any] | str, status: int, level: int = 1) -> Verdict:
    text = document if isinstance(document, str) else json.dumps(document, indent=1)
    return judge(parse(text), status, DiagRequest(level, {0: GPU}, "node:5555"))


@pytest.mark.parametrize(
    "printed",
    [
        json.dumps(GB10),
        "Successfully ran diagnostic for group.\n" + json.dumps(GB10, indent=1),
        "\ufeff\x1b[0m" + json.dumps(GB10, indent=1).replace("\n", "\r\n") + "\x1b[0m",
        "WARNING: CUDA_VISIBLE_DEVICES is set {and ignored}\n" + json.dumps(GB10),
    ],
    ids=["alone", "banner", "terminal", "warning"],
)
def test_a_gpu_without_persistence_mode_passes_with_its_warning(printed: str) -> None:
    found = verdict(printed, 226)
    assert (found.outcome, [f.code for f in found.findings]) == (
        Outcome.PASSED,
        ["DCGM_FR_PERSISTENCE_MODE"],
    )


@pytest.mark.parametrize("printed", NO_NUMBERS)
def test_what_the_engine_prints_for_a_serial_number_it_does_not_know_is_nobodys_number(
    printed: str,
) -> None:
    assert parse(json.dumps(GB10).replace("<<<NOT_SUPPORTED>>>", printed)).serials == {}
    table = f"| UUID | {GPU} |\n| Serial Number | {printed} |\n"
    assert identity.parse_serial(table) == (GPU, "")


def test_a_real_serial_number_is_read() -> None:
    assert parse(json.dumps(GB10).replace("<<<NOT_SUPPORTED>>>", " 1652023014912 ")).serials == {
        0: "1652023014912"
    }


@pytest.mark.parametrize("status", [0, 205, 226])
def test_a_document_that_is_cut_short_is_no_verdict_and_is_said_to_be_cut(status: int) -> None:
    printed = json.dumps(GB10, indent=1)[:-200]
    with pytest.raises(UnreadableDocument, match="is cut short or broken") as refused:
        parse(printed)
    found = by_exit_status(status, DiagRequest(1, {0: GPU}, "node:5555"), str(refused.value))
    assert (found.outcome, found.findings) == (Outcome.INCONCLUSIVE, ())


def _memory(test: dict[str, Any]) -> dict[str, Any]:
    document = json.loads(v4({"software": {0: []}, "pcie": {0: []}}))
    document["DCGM Diagnostic"]["test_categories"][0]["tests"].append({"name": "memory", **test})
    return dict(document)


SKIPPED = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Skip"}
WORDS = "Only 511 mb of memory is free, but we need to allocate 1024 mb to pass this test. Skipping"


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({"results": [{**SKIPPED, "info": [WORDS]}], "test_summary": {"status": "Skip"}}, WORDS),
        ({"results": [SKIPPED], "test_summary": {"status": "Skip", "info": [WORDS]}}, WORDS),
        ({"test_summary": {"status": "Skip", "info": [WORDS]}}, WORDS),
        (
            {"results": [SKIPPED], "test_summary": {"status": "Skip"}},
            "it was skipped, and the engine does not say why",
        ),
        (
            {"results": [{**SKIPPED, "status": "Not Run"}]},
            "it was skipped, and the engine does not say why",
        ),
        ({"results": []}, "the engine reports no result of it"),
    ],
)
def test_why_a_required_test_was_skipped_is_told_from_wherever_the_engine_says_it(
    test: dict[str, Any], said: str
) -> None:
    found = verdict(_memory(test), 0, 2)
    assert (found.outcome, found.code) == (Outcome.INCONCLUSIVE, "NOT_TESTED")
    assert f"Memory on {GPU} ({said})" in found.reason


@pytest.mark.parametrize("name", ["Page Retirement", "Page Retirement/Row Remap"])
def test_retired_pages_are_a_finding_of_the_software_test_under_its_old_name_too(name: str) -> None:
    # dcgmi/Diag.cpp: the name is the shorter one up to 2.3
    failed = {
        "status": "Fail",
        "warnings": "Pending page retirements together with a DBE were detected on GPU 0.",
    }
    tests = [
        {"name": "NVML Library", "results": [{"status": "Pass"}]},
        {"name": name, "results": [failed]},
    ]
    found = verdict(
        {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]}},
        205,
    )
    [finding] = found.findings
    assert (finding.code, finding.subject.test, finding.fatal) == (
        "DCGM_FR_DBE_PENDING_PAGE_RETIREMENTS",
        "Software",
        True,
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [  # dcgm_errors.h of 2.4.7 and 3.1.8, whose documents have no ids
        ("GPU 0 is running at PCI link width 8X, which is below the minimum allowed link generation of 16 (parameter 'x')", "PCIE_WIDTH"),
        ("GPU 0 is running at PCI link generation 3, which is below the minimum allowed link generation of 4", "PCIE_GENERATION"),
        ("NvSwitch physical ID 11's NvLink port 3 is currently down.", "NVSWITCH_DOWN"),
        ("NVSwitch 11's NvLink 3 is down.", "NVSWITCH_NVLINK_DOWN"),
        ("GPU 0's NvLink link 3 is currently down", "NVLINK_DOWN"),
        ("Detected 2 volatile double-bit ECC error(s) in GPU 0.", "VOLATILE_DBE_DETECTED"),
        ("CUDA APIs have indicated that a double-bit ECC error has occured on GPU 0.", "CUDA_DBE"),
        ("A memory mismatch was detected on GPU 0, but no error was reported by CUDA or NVML.", "MEMORY_MISMATCH"),
        ("Detected a miscompare failure in the L1 cache.", "L1TAG_MISCOMPARE"),
        ("Detected fatal errors on NvSwitch 11 link 3", "NVSWITCH_FATAL_ERROR"),
        ("A corrupt InfoROM has been detected in GPU 0.", "CORRUPT_INFOROM"),
        ("Detected more than 80 PCIe replays per minute for GPU 0 : 120", "PCI_REPLAY_RATE"),
        ("Max stress level of 3200.5 did not reach desired stress level of 9500.0 for GPU 0", "STRESS_LEVEL"),
        ("Max power of 310.1 did not reach desired power minimum target_power_min_ratio of 350.0 for GPU 0", "TARGET_POWER"),
        ("Found 14 faulty memory elements on GPU 3", "FAULTY_MEMORY"),
        ("A pending retired page has been detected in GPU 3.", "PENDING_PAGE_RETIREMENTS"),
        ("GPU 3 had a row remapping failure", "ROW_REMAP_FAILURE"),
        ("Detected 2 ecc_dbe_volatile_total for GPU 0", "DBE_VIOLATION"),
        ("Detected 2 ecc_dbe_volatile_total for GPU 0 which is above the threshold 0", "DBE_THRESHOLD_VIOLATION"),
        ("Detected 9 ecc_sbe_volatile_total for GPU 0 which is above the threshold 2", "SBE_THRESHOLD_VIOLATION"),
        ("Detected 90 pcie_replay_counter for GPU 0 which is above the threshold 80", "PCIE_REPLAY_THRESHOLD_VIOLATION"),
        ("Detected 79 xid_errors for GPU 0", "XID_ERROR"),
        ("nvlink_flit_crc_error_count_l3 met or exceeded the threshold of 100 per second: 250 at 1.0 seconds into the test.", "FIELD_THRESHOLD_TS"),
        ("GPU 0 only achieved a memory bandwidth of 900.1 GB/s, failing to meet 1300.0 GB/s for test 1", "MEMORY_BANDWIDTH"),
    ],
)  # fmt: skip
def test_an_error_without_an_id_is_the_one_that_its_words_are_of(text: str, name: str) -> None:
    number = by_words("memory", text)
    assert number is not None
    assert known()[number].name == f"DCGM_FR_{name}"


@pytest.mark.parametrize("version", ["2.4.7", "3.1.8", "3.2.6"])
@pytest.mark.parametrize("status", ["Pass", "Fail"])
def test_memory_errors_that_the_pcie_test_counts_are_fatal_whatever_it_calls_them(
    version: str, status: str
) -> None:
    # nvvs/src/DcgmRecorder.cpp up to 3.2.6: FIELD_THRESHOLD, for the replays' limit makes every
    # counter's one
    text = "Detected 2 ecc_dbe_volatile_total for GPU 0 which is above the threshold 0"
    counted = Fault("pcie", 0, 34, 1, 2, text, status)
    found = verdict(document(version, 2, (0,), [counted])[0], 226, level=2)
    assert (found.outcome, found.code) == (Outcome.FAILED, "DCGM_FR_DBE_THRESHOLD_VIOLATION")
    assert [(f.fatal, f.subject.test) for f in found.findings] == [(True, "Pcie")]


@pytest.mark.parametrize("version", ["3.1.8", "3.2.6"])
@pytest.mark.parametrize("over", ["", " which is above the threshold 0"])
def test_memory_errors_that_are_told_behind_another_error_are_fatal(
    version: str, over: str
) -> None:
    # modules/diag/DcgmDiagManager.cpp up to 3.2.6: one text for all errors of a GPU, those that
    # nvvs counts after the test's own, and the id of the first where none isolates
    text = (
        "GPU 0: Error using CUDA API cublasSgemm 'CUBLAS_STATUS_EXECUTION_FAILED' for GPU 0, "
        f"GPU 0: Detected 2 ecc_dbe_volatile_total for GPU 0{over}"
    )
    told = Fault("diagnostic", 0, 51, 1, 6, text)
    found = verdict(document(version, 3, (0,), [told])[0], 226, level=3)
    assert found.outcome is Outcome.FAILED
    assert [(f.fatal, f.subject.test) for f in found.findings] == [(True, "Diagnostic")]


@pytest.mark.parametrize(
    ("xid", "outcome", "action"),
    [
        (13, Outcome.INCONCLUSIVE, Action.NONE),
        (79, Outcome.FAILED, Action.RESTART_BM),
        (48, Outcome.FAILED, Action.COMPONENT_RESET),
    ],
)
def test_an_xid_that_dcgm_3_1_counts_is_the_one_of_its_number(
    xid: int, outcome: Outcome, action: Action
) -> None:
    counted = Fault("diagnostic", 0, 33, 1, 15, f"Detected {xid} xid_errors for GPU 0")
    found = verdict(document("3.1.8", 3, (0,), [counted])[0], 226, level=3)
    assert found.outcome is outcome
    assert [(f.code, f.action) for f in found.findings] == [("DCGM_FR_XID_ERROR", action)]


@pytest.mark.parametrize(
    ("test", "number"), [("Persistence Mode", 29), ("Blacklist", 23), ("GPU Memory", None)]
)
def test_an_error_whose_words_are_of_none_is_what_its_test_looks_for(
    test: str, number: int | None
) -> None:
    assert by_words(test, "something else") == number


@pytest.mark.parametrize("number", [89, 90, 91])
def test_how_the_extended_diagnostic_is_installed_is_no_verdict_about_a_gpu(number: int) -> None:
    passed: dict[str, Any] = {test: {0: []} for test in ("software", "memory", "pcie")}
    failed = fault(number, 4, 7, "Failed to run the EUD binary.")
    found = verdict(v4({**passed, "eud": {0: [failed]}}), 226, 2)
    assert found.outcome is Outcome.INCONCLUSIVE
    [finding] = found.findings
    assert (finding.fatal, finding.action, finding.subject.test) == (False, Action.NONE, "Eud")
    assert "how the extended diagnostic is installed on the node" in found.reason


@pytest.mark.parametrize(("severity", "category"), [(1, 6), (4, 6), (4, 15)])
def test_cuda_that_waits_for_the_nvswitch_fabric_is_no_verdict_about_hardware(
    severity: int, category: int
) -> None:
    # NVIDIA/nccl-tests#264: DCGM 3.3.8 on eight H100 without a fabric manager
    text = "Error using CUDA API cuInit Unable to initialize CUDA library: 'system not yet initialized'."
    failed = fault(51, severity, category, text)
    found = verdict(
        v4({"software": {0: []}, "memory": {0: [failed]}, "pcie": {0: [failed]}}), 226, 2
    )
    assert (found.outcome, found.code) == (Outcome.INCONCLUSIVE, "FABRIC_NOT_READY")
    assert "start nvidia-fabricmanager" in found.reason


EARLY = ("nccl_tests exited with code 3", "Output missing expected result lines")
WRONG = "# Out of bounds values : 3 FAILED "


@pytest.mark.parametrize(
    ("said", "outcome", "fatal"),
    [(EARLY, Outcome.INCONCLUSIVE, False), ((WRONG, EARLY[0]), Outcome.FAILED, True)],
)
def test_of_the_engines_own_nccl_test_wrong_data_fails_and_not_that_it_ended_early(
    said: tuple[str, ...], outcome: Outcome, fatal: bool
) -> None:
    # nvvs/plugin_src/nccl_tests/NcclTestsPlugin.cpp of 4.6.0: one error for a full /dev/shm of the
    # engine's, a library that is not there, and wrong data
    passed: dict[str, Any] = {test: {0: []} for test in ("software", "memory", "pcie")}
    errors = [
        fault(129, 6, 15, f"Detected NCCL error: {text} Recovery action: 4 (DRAIN_AND_RESET).")
        for text in said
    ]
    found = verdict(v4({**passed, "nccl_tests": {0: errors}}), 226, 2)
    assert (found.outcome, [f.fatal for f in found.findings]) == (outcome, [fatal])


@pytest.mark.parametrize(
    ("call", "error", "outcome"),
    [
        ("cudaMalloc((void **)&bufferd1, m_size)", "cudaErrorMemoryAllocation", Outcome.INCONCLUSIVE),
        ("cudaMalloc((void **)&bufferd1, m_size)", "cudaErrorDevicesUnavailable", Outcome.INCONCLUSIVE),
        ("cudaMalloc((void **)&bufferd1, m_size)", "cudaErrorSystemNotReady", Outcome.INCONCLUSIVE),
        ("cudaDeviceSynchronize()", "cudaErrorECCUncorrectable", Outcome.FAILED),
        ("cudaDeviceSynchronize()", "cudaErrorLaunchFailure", Outcome.FAILED),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [86, 87, 113, 114, 115, 116, None])
def test_a_peer_to_peer_test_that_cuda_refused_its_memory_accuses_no_gpu(
    number: int | None, call: str, error: str, outcome: Outcome
) -> None:
    # nvvs/plugin_src/pcie/Brokenp2p.cpp: whatever call fails ends in the same error as data that
    # came out wrong
    text = f"GPU 0 was unsuccessfully written to by GPU 1 over PCIe in a peer-to-peer test: Error on line 110 {call}: {error}"
    tests: dict[str, Any] = {"software": {0: []}, "memory": {0: []}}
    tests["pcie"] = {0: [fault(number, 2, 13, text)]}
    found = verdict(v4(tests), 205, 2)
    assert (found.outcome, any(f.fatal for f in found.findings)) == (
        outcome,
        outcome is Outcome.FAILED,
    )


PAIR = DiagRequest(2, {0: GPU, 1: "GPU-bbbb"}, "node:5555")


def of_the_last(
    tests: dict[str, Any],
    info: dict[int, str] | None = None,
    status: str = "Pass",
    test: str = "memory",
) -> str:
    """A document whose memory test, or another, prints this status for all GPUs: memory.cpp (of
    nvvs/plugin_src) of DCGM 3.1 to 4.6 sets one result for all of them, that of the last.
    """
    passed: dict[str, Any] = {test: {0: [], 1: []} for test in ("software", "memory", "pcie")}
    document: dict[str, Any] = json.loads(v4({**passed, **tests}))
    [category] = document["DCGM Diagnostic"]["test_categories"]
    for row in next(t["results"] for t in category["tests"] if t["name"] == test):
        row["status"] = status
        row["info"] = [(info or {})[row["entity_id"]]] if row["entity_id"] in (info or {}) else []
    return json.dumps(document)


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        ("out of memory", Outcome.INCONCLUSIVE, "DCGM_FR_CUDA_API"),
        ("unknown error", Outcome.INCONCLUSIVE, "DCGM_FR_CUDA_API"),
        ("uncorrectable ECC error encountered", Outcome.FAILED, "DCGM_FR_CUDA_API"),
    ],
)
def test_a_memory_test_whose_cuda_call_failed_is_not_passed_by_the_gpu_after_it(
    error: str, outcome: Outcome, code: str
) -> None:
    text = f"GPU 0: Error using CUDA API cuCtxCreate_v2 Check DCGM and system logs for errors: '{error}'"
    document = of_the_last({"memory": {0: [fault(51, 1, 6, text)], 1: []}})
    found = judge(parse(document), 226, PAIR)
    assert (found.outcome, found.code) == (outcome, code)
    assert any(f.fatal for f in found.findings) == (outcome is Outcome.FAILED)


@pytest.mark.parametrize("status", ["Fail", "Pass"])
def test_too_few_pcie_lanes_are_fatal_though_what_comes_after_passes_the_gpu(status: str) -> None:
    # Pcie.cpp of 3.3 to 4.6 sets Pass for each GPU without replays after its load (level 4)
    text = (
        "GPU 0 is running at PCI link width 8X, which is below the minimum allowed link width of 16"
    )
    document = of_the_last({"pcie": {0: [fault(46, 5, 13, text)], 1: []}}, None, status, "pcie")
    found = judge(parse(document), 226, PAIR)
    assert (found.outcome, found.code, found.subject) == (
        Outcome.FAILED,
        "DCGM_FR_PCIE_WIDTH",
        GPU,
    )
    assert found.findings[0].fatal


def test_an_ecc_error_that_a_cuda_call_met_counts_though_the_gpu_after_it_was_skipped() -> None:
    text = "GPU 0: Error using CUDA API cuCtxCreate_v2: 'uncorrectable ECC error encountered'"
    document = of_the_last({"memory": {0: [fault(51, 1, 6, text)], 1: []}}, status="Skip")
    found = judge(parse(document), 226, PAIR)
    assert (found.outcome, found.subject) == (Outcome.FAILED, GPU)


@pytest.mark.parametrize("test", ["memory", "pcie", "nvbandwidth"])
def test_a_gpu_that_fails_with_another_one_is_not_what_the_verdict_is_about(test: str) -> None:
    text = "GPU 1: Error using CUDA API cuCtxCreate_v2: 'CUDA-capable device(s) is/are busy or unavailable'"
    document = of_the_last({test: {0: [], 1: [fault(51, 1, 6, text)]}}, status="Fail", test=test)
    found = judge(parse(document), 226, PAIR)
    assert (found.outcome, found.code) == (Outcome.INCONCLUSIVE, "DCGM_FR_CUDA_API")
    assert "another process holds the GPU" in found.reason
    assert GPU not in found.reason


def test_why_a_test_fails_on_all_gpus_is_what_the_summary_says_of_nobody() -> None:
    # NVBandwidthPlugin.cpp of 4.5.2, where the package with the program is not installed
    text = (
        "Couldn't find the nvbandwidth executable which is required; the install may have failed."
    )
    document = json.loads(of_the_last({"nvbandwidth": {0: [], 1: []}}, None, "Fail", "nvbandwidth"))
    [category] = document["DCGM Diagnostic"]["test_categories"]
    [test] = [t for t in category["tests"] if t["name"] == "nvbandwidth"]
    warning = {"warning": text, "error_id": 44, "error_severity": 4, "error_category": 16}
    test["test_summary"] = {"status": "Fail", "warnings": [warning]}
    found = judge(parse(json.dumps(document)), 226, PAIR)
    assert (found.outcome, found.code) == (Outcome.INCONCLUSIVE, "DCGM_FR_INTERNAL")
    assert "Couldn't find the nvbandwidth executable" in found.reason


GIVEN = "Allocated 84005572608 bytes (98.4%)"
NO_ECC = "Skipping test memory because ECC is not enabled on GPU 0"


@pytest.mark.parametrize("info", [{1: GIVEN}, {0: NO_ECC, 1: GIVEN}])
def test_a_gpu_that_the_memory_test_gave_no_memory_is_not_passed_by_the_one_after_it(
    info: dict[int, str],
) -> None:
    found = judge(parse(of_the_last({}, info)), 0, PAIR)
    assert (found.outcome, found.code) == (Outcome.INCONCLUSIVE, "NOT_TESTED")
    assert f"Memory on {GPU} ({info.get(0, 'DCGM prints Pass')}" in found.reason


@pytest.mark.parametrize("info", [{0: GIVEN, 1: GIVEN}, {0: GIVEN}, {}])
def test_a_document_that_keeps_no_more_messages_passes(info: dict[int, str]) -> None:
    # up to 4.3 it has room for sixteen, and those of the last GPUs are left out
    assert judge(parse(of_the_last({}, info)), 0, PAIR).outcome is Outcome.PASSED


def test_a_whole_document_beside_a_strange_exit_status_is_not_called_missing() -> None:
    found = verdict(document("4.4.2", 1, (0,))[0], 1)
    assert (found.outcome, found.code) == (Outcome.INCONCLUSIVE, "ENGINE_ERROR")
    assert "dcgmi exited 1, which is no end of a diagnostic" in found.reason
