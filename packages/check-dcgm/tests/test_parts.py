"""The smaller parts: reading at linear cost, identity, known false alarms, the engine's lists."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from check_dcgm import alarms, hostengine, identity
from check_dcgm.catalogue import STRESS, action_for, canonical_test, known, required
from check_dcgm.judge import DiagRequest, confirmed, judge
from check_dcgm.parse import DocumentProblem, UnreadableDocument, objects, parse
from engines import VERSIONS, Fault, document
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check import Action, Finding, Gpu, Outcome, Subject, Verdict

A, B = "GPU-aaaa", "GPU-bbbb"

# --- reading


@pytest.mark.parametrize(
    "output",
    [
        "{" * 300_000,
        '{"' * 150_000,
        '{"a":' * 60_000,
        '{"a":1,' * 45_000,
        "[{" * 150_000,
        '{"a":[' * 50_000,
        "{ " * 150_000,
        '{"a":"' * 50_000,
        '{"x": 1}' * 37_500,
        "{\n" * 150_000,
        '{"\\' * 100_000,
        '{"iterations":[' * 50_000,
    ],
    ids=lambda output: output[:9].encode("unicode_escape").decode(),
)
def test_hostile_output_is_refused_in_one_walk(output: str) -> None:
    def cost(text: str) -> float:
        costs = []
        for _ in range(3):
            started = time.process_time()
            with pytest.raises(UnreadableDocument):
                parse(text)
            costs.append(time.process_time() - started)
        return min(costs)

    # Four times the text costs four times as much, and sixteen times where each beginning is
    # walked from; the sum is for a clock that counts in hundredths.
    assert cost(output) < 10 * cost(output[: len(output) // 4]) + 0.05


def test_what_never_ends_is_not_read_again_from_each_of_its_beginnings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[object, int]:
            looks.append(idx)
            return super().raw_decode(s, idx)

    output = '{"a":[' * 200 + "1," * 5000
    monkeypatch.setattr("check_dcgm.parse._DECODER", Counting(strict=False))
    monkeypatch.setattr("check_dcgm.parse.MAX_READ", 10 * len(output))
    assert list(objects(output)) == []
    assert len(looks) < 15


def test_a_document_is_found_behind_hostile_output() -> None:
    output, _ = document("4.4.2", 2, (3, 5))
    assert len(parse("{" * 1000 + "\n" + output).results) == 6


@given(
    st.dictionaries(
        st.text(max_size=5), st.integers() | st.text() | st.lists(st.text(max_size=9)), min_size=1
    )
)
def test_any_object_is_found_whole_among_other_text(value: dict[str, object]) -> None:
    text = json.dumps(value)
    assert list(objects(f"warning: it's {{x}} \n{text}\n{text} end")) == [value, value]


@pytest.mark.parametrize(("raw", "number"), [("3", 3), ("3.0", 3), ('"3"', 3), ('"3.0"', 3)])
def test_a_gpus_number_is_read_however_it_is_written(raw: str, number: int) -> None:
    output, status = document("4.4.2", 2, (number, 5), [Fault("memory", number, 52, 2, 10)])
    found = judge(
        parse(output.replace(f'"entity_id": {number},', f'"entity_id": {raw},')),
        status,
        DiagRequest(2, {3: A, 5: B}, "n:1"),
    )
    assert (found.outcome, found.subject) == (Outcome.FAILED, A)


@pytest.mark.parametrize("raw", ["0.5", '"x"', "true", "[]", "-7", "1e400"])
def test_a_number_that_cannot_be_read_accuses_nobody_and_clears_nobody(raw: str) -> None:
    output, status = document("4.4.2", 2, (3, 5), [Fault("memory", 3, 52, 2, 10)])
    found = judge(
        parse(output.replace('"entity_id": 3', f'"entity_id": {raw}')),
        status,
        DiagRequest(2, {3: A, 5: B}, "n"),
    )
    assert found.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= "3.3"])
def test_serial_numbers_are_read(version: str) -> None:
    assert parse(document(version, 1, (3, 5), serials={3: "16", 5: "17"})[0]).serials == {
        3: "16",
        5: "17",
    }


# --- the table


def test_action_and_fatality_of_the_table_follow_from_severity_and_category() -> None:
    for number, row in known().items():
        hardware = row.category not in {3, 4, 8, 16}
        fatal = hardware and (
            row.severity in {2, 6}
            or (row.severity == 4 and row.category in {1, 2, 9, 10, 11, 12, 13, 14, 15})
        )
        failed = fatal or (hardware and row.severity == 4)
        if number == 46:  # too few PCIe lanes: a configuration to DCGM, the hardware to ADR-026
            fatal = failed = True
        if number in {89, 90, 91}:  # the extended diagnostic is installed wrongly
            failed = False
        assert row.fatal == fatal, number
        assert (row.action == "NONE") == (not failed), number


def test_a_failed_stress_test_is_for_the_extended_diagnostic_and_a_reset_is_a_reset() -> None:
    assert {action_for(test, known()[50]) for test in STRESS} == {Action.RUN_DCGMEUD}
    assert action_for("Memory", known()[52]) is Action.CONTACT_SUPPORT
    assert action_for("Software", known()[85]) is Action.COMPONENT_RESET


def test_each_level_asks_for_what_the_one_before_asks_for_and_more() -> None:
    sets = [required(level) for level in (1, 2, 3, 4)]
    assert all(less < more for less, more in itertools.pairwise(sets))
    assert sets[0] == {"Software"}


# --- known false alarms


@pytest.mark.parametrize(
    ("test", "problem", "around", "link"),
    [
        (
            "Nvbandwidth",
            DocumentProblem("memory copy utilization for the GPU: 2 is greater than 10%", 44),
            ("4.5.0", "", ""),
            "272",
        ),
        # NVBandwidthPlugin.cpp of 4.2.3 to 4.4.2, which calls both a memory fault to isolate
        *(
            ("Nvbandwidth", DocumentProblem(text, number, 2, 10), (version, "", ""), "272")
            for version in ("4.2.3", "4.4.2")
            for number, text in (
                (
                    38,
                    "The memory copy utilitization for the GPU: 2 is greater than 10%. This may affect the results of the nvbandwidth test.",
                ),
                (37, "Failed to get the memory copy utilitization for the GPU: 2"),
            )
        ),
        ("Memory", DocumentProblem("", 56), ("4.5.0", "", ""), "284"),
        ("Pcie", DocumentProblem("", 65), ("4.4.1", "580.65.06", "Tesla V100-SXM2-16GB"), "254"),
        *(
            (
                "Pcie",
                DocumentProblem("GPU 0's NvLink link 3 is currently down", 14),
                (version, "", model),
                "49",
            )
            for version, model in (
                ("2.4.6", "NVIDIA A100-PCIE-40GB"),
                ("3.1.3", "NVIDIA A100 80GB PCIe"),
                ("3.0.4", "NVIDIA A40"),
            )
        ),
        (
            "Pcie",
            DocumentProblem("CUDA-capable device(s) is/are busy or unavailable", 65),
            ("", "", ""),
            "224",
        ),
    ],
)
def test_a_known_false_alarm_is_found_with_its_link(
    test: str, problem: DocumentProblem, around: tuple[str, str, str], link: str
) -> None:
    row = alarms.explains(test, problem, alarms.Circumstances(*around))
    assert row is not None
    assert row.link.endswith(f"/{link}")


@pytest.mark.parametrize(
    ("test", "problem", "around"),
    [
        ("Nvbandwidth", DocumentProblem("bandwidth too low", 30), ("4.5.0", "", "")),
        ("Pcie", DocumentProblem("", 65), ("4.4.1", "570.1", "Tesla V100")),
        ("Pcie", DocumentProblem("", 65), ("4.4.1", "580.1", "NVIDIA H100")),
        (
            "Pcie",
            DocumentProblem("", 46),
            ("4.4.1", "580.1", "Tesla V100"),
        ),  # a narrow link is a narrow link
        ("Memory", DocumentProblem("", 52), ("4.5.0", "", "")),
        ("Pcie", DocumentProblem("", 14), ("3.1.3", "", "NVIDIA A100-SXM4-80GB")),
        ("Pcie", DocumentProblem("", 14), ("3.1.6", "", "NVIDIA A100 80GB PCIe")),
    ],
)
def test_no_real_fault_is_explained_away(
    test: str, problem: DocumentProblem, around: tuple[str, str, str]
) -> None:
    assert alarms.explains(test, problem, alarms.Circumstances(*around)) is None


def test_memory_that_passed_without_memory_is_no_pass() -> None:
    output, status = document(
        "4.5.0", 2, (3, 5), [Fault("memory", 3, 56, 4, 8, "no room", status="Pass")]
    )
    found = judge(parse(output), status, DiagRequest(2, {3: A, 5: B}, "n:1"))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "issues/284" in found.reason


@pytest.mark.parametrize(
    ("version", "model", "known_hang"),
    [
        ("4.2.3", "NVIDIA B200", True),
        ("4.2.3", "NVIDIA GB200", True),
        ("4.3.1", "NVIDIA B200", False),
        ("4.2.3", "NVIDIA H200", False),
    ],
)
def test_a_hang_is_known_by_version_and_model(version: str, model: str, known_hang: bool) -> None:
    assert (alarms.hang(alarms.Circumstances(version, "", model)) is not None) == known_hang


# --- identity


@pytest.mark.parametrize(
    ("host", "file", "redirected"),
    [
        ("dcgm.ns.svc", "127.0.0.1 localhost\n10.0.0.9 dcgm.ns.svc other\n", True),
        ("DCGM.ns.svc.", "10.0.0.9\tdcgm.ns.svc # a comment\n", True),
        ("dcgm.ns.svc", "127.0.0.1 localhost\n10.0.0.9 pod-a\n# 10.0.0.9 dcgm.ns.svc\n", False),
        ("10.0.0.9", "10.0.0.9 10.0.0.9\n", False),
        ("[fd00::1]", "fd00::1 [fd00::1]\n", False),
        ("localhost", "127.0.0.1 localhost\n", False),
        ("engine", "# Kubernetes-managed hosts file (host network).\n10.0.0.9 engine\n", False),
        (
            "engine",
            "# Kubernetes-managed hosts file (host network).\n# Entries added by HostAliases.\n10.0.0.9\tengine\n",
            True,
        ),
    ],
)
def test_a_name_that_the_pod_itself_redirects_is_seen(
    host: str, file: str, redirected: bool
) -> None:
    assert identity.redirected(host, file) == redirected


def test_only_a_gpu_whose_serial_number_the_driver_knows_can_be_foreign() -> None:
    ours = {A: "0111", B: "", "GPU-c": "3", "GPU-d": "4"}
    assert identity.differences(ours, {A: "111", B: "9", "GPU-c": "5"}) == (["GPU-c"], ["GPU-d"])


def test_the_serial_number_is_read_from_the_engines_table() -> None:
    table = "| UUID                     | GPU-aaaa    |\n| Serial Number            | 1650522003820   |\n"
    assert identity.parse_serial(table) == (A, "1650522003820")
    assert identity.parse_serial(table.replace("1650522003820", "****")) == (A, "")


# --- the engine's lists


def test_the_status_of_inactive_gpus_is_read() -> None:
    table = """2 GPUs found (All).
| GPU ID | Device Information |
| 0      | Name: NVIDIA H100  |
|        | Device UUID: GPU-aaaa |
| 1      | Status: LOST |
|        | Name: NVIDIA H100 (last known) |
|        | Device UUID: GPU-bbbb |
"""
    assert hostengine.parse_statuses(table) == {B: "LOST"}
    assert hostengine.parse_listing(table) == {A: 0, B: 1}


@pytest.mark.parametrize(
    ("tools", "version", "says", "advice"),
    [
        (
            {"dcgmi": (4, 4, 2), "dcgmi3": (3, 3, 1)},
            (3, 1, 8),
            "n:1 (DCGM 3.1.8) is older than dcgmi 4.4.2, older than dcgmi3 3.3.1, and refuses",
            "upgrade DCGM on the node to 4.4.2, or put dcgmi 3.1.8 into the image and name it in DCGMI.",
        ),
        (
            {"dcgmi": (4, 4, 2), "dcgmi3": (3, 3, 1)},
            (4, 1, 1),
            "n:1 (DCGM 4.1.1) is older than dcgmi 4.4.2, newer than dcgmi3 3.3.1, and refuses",
            "upgrade DCGM on the node to 4.4.2, or put dcgmi 4.1.1 into the image and name it in DCGMI.",
        ),
        (
            {"dcgmi": (3, 3, 1)},
            (5, 0, 0),
            "n:1 (DCGM 5.0.0) is newer than dcgmi 3.3.1, and refuses",
            "put dcgmi 5.0.0 into the image and name it in DCGMI.",
        ),
        (
            {"dcgmi": (0,)},
            (0,),
            "n:1 (it does not say its version) is of another version than dcgmi, and refuses",
            "upgrade DCGM on the node, or put dcgmi of its version into the image and name it in DCGMI.",
        ),
    ],
)
def test_a_refusal_says_which_side_is_behind_and_what_to_do(
    tools: dict[str, tuple[int, ...]], version: tuple[int, ...], says: str, advice: str
) -> None:
    said = hostengine.refusal("n:1", tools, version)
    assert says in said
    assert said.endswith(f"; {advice}")


def engine(version: str) -> hostengine.Hostengine:
    parts = tuple(int(part) for part in version.split("."))
    return hostengine.Hostengine("dcgmi", "n:1", parts, parts, {A: 3})


@pytest.mark.parametrize(
    ("version", "offers"), [("3.3.7", False), ("3.3.8", True), ("4.0.0", True), ("4.6.0", True)]
)
def test_the_engine_is_given_the_deadline_where_it_takes_one(version: str, offers: bool) -> None:
    assert ("-t" in hostengine.diag_argv(engine(version), 2, [A], 900.0)) == offers


@pytest.mark.parametrize(
    ("version", "elapsed", "name"),
    [
        ("4.0.0", 0.5, "SIGKILL"),
        ("4.0.0", 1.5, "SIGTERM"),
        ("4.4.2", 60.0, "SIGKILL"),
        ("3.3.9", 60.0, "SIGTERM"),
    ],
)
def test_only_a_diagnostic_that_is_surely_ours_is_stopped_on_the_engine(
    version: str, elapsed: float, name: str
) -> None:
    assert hostengine.stop_signal(engine(version), elapsed).name == name


# --- a GPU that is missing


def missing(**metadata: str) -> Verdict:
    finding = Finding(
        "GPU_MISSING", "m", False, Action.CONTACT_SUPPORT, Subject("Presence", B), metadata
    )
    return Verdict(Outcome.FAILED, "GPU_MISSING", "r", (finding,), subject=B)


@pytest.mark.parametrize(
    ("verdict", "listed", "statuses", "fatal"),
    [
        (missing(), {A: 0}, {B: "LOST"}, True),
        # "usually due to cgroups" (DcgmEntityStatusInaccessible of dcgm_structs.h)
        (missing(), {A: 0}, {B: "INACCESSIBLE"}, False),
        (missing(lost_by_NVML="Unknown Error"), {A: 0}, {B: "INACCESSIBLE"}, True),
        (missing(lost_by_NVML="Unknown Error"), {A: 0}, {}, True),
        (missing(), {A: 0}, {}, False),
        (missing(lost_by_NVML="Unknown Error"), {A: 0, B: 1}, {}, False),
        (missing(lost_by_NVML="Unknown Error"), {}, {}, False),
        (missing(), {A: 0}, {B: "UNSUPPORTED"}, False),
    ],
)
def test_two_sources_make_a_missing_gpu_fatal(
    verdict: Verdict, listed: dict[str, int], statuses: dict[str, str], fatal: bool
) -> None:
    assert confirmed(verdict, listed, statuses).findings[0].fatal == fatal


def test_the_details_of_a_gpu_do_not_change_the_message() -> None:
    output, status = document("4.4.2", 2, (3, 5), [Fault("memory", 3, 52, 2, 10)])
    plain = DiagRequest(2, {3: A, 5: B}, "n:1")
    rich = DiagRequest(2, {3: A, 5: B}, "n:1", details={A: Gpu(0, A, "H100", "0:1", serial="9")})
    one, other = (judge(parse(output), status, request).findings[0] for request in (plain, rich))
    assert one.message == other.message
    assert (other.metadata["serial"], canonical_test(other.metadata["test"])) == ("9", "Memory")
