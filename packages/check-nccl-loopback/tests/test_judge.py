"""What is measured next, and the verdict: over simulated nodes, sick and healthy."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from check_nccl_loopback import floors, perf, steps
from check_nccl_loopback.floors import LinkClass
from check_nccl_loopback.judge import SMALLER, Progress, Step, StepKind, StepResult, decide
from check_nccl_loopback.links import parse_matrix
from check_nccl_loopback.measurement import Measurement, read
from check_nccl_loopback.settings import Settings
from check_nccl_loopback.tool import Tool
from hypothesis import given
from hypothesis import strategies as st
from nodes import GIB, H100, Node, conclude, gpus
from preflight_proto.check import NODE, Action, Finding, Outcome, Subject, Verdict, alive, counters
from preflight_proto.check import gpus as devices
from preflight_proto.check.events import events
from test_links import HYBRID

A100_PCIE = "NVIDIA A100 80GB PCIe"


def case(
    count: int = 8, model: str = H100, link: LinkClass = LinkClass.NVLINK, size: int = GIB
) -> Progress:
    known = {s: row for s in (size, *SMALLER) if (row := floors.find(model, count, link, s))}
    return Progress(
        gpus(count, model),
        size,
        known,
        comparable=floors.uniform(model),
        shm="/dev/shm has 64 MiB, 64 free",
    )


def whole(result: Measurement) -> StepResult:
    """A run of all eight GPUs."""
    return StepResult(Step(StepKind.ALL, tuple(range(8)), result.size), result)


def decided(*results: StepResult, **rest: Any) -> Verdict:
    """The verdict after these runs."""
    seen = decide(replace(case(), results=results, **rest))
    assert isinstance(seen, Verdict)
    return seen


def sign(code: str, gpu: int, *, fatal: bool = False) -> Finding:
    """What the driver says of a GPU."""
    return Finding(code, "x", fatal, Action.NONE, Subject("Scan", f"GPU-{gpu}"))


def verdict(node: Node, given: Progress | None = None) -> Verdict:
    return conclude(node, given or case())[0]


def subjects(seen: Verdict) -> set[str | None]:
    return {f.subject.gpu_uuid for f in seen.findings if f.fatal}


def test_a_healthy_node_passes_after_one_run() -> None:
    seen, after = conclude(Node(), case())
    assert (seen.outcome, seen.code, seen.measured, seen.expected) == (
        Outcome.PASSED,
        "OK",
        466.0,
        466.0,
    )
    assert len(after.results) == 1


def test_a_dip_is_measured_again_and_forgiven() -> None:
    dips = iter([0.5, 1.0])
    seen, after = conclude(Node(noise=lambda: next(dips)), case())
    assert (seen.code, len(after.results)) == ("OK", 2)


def test_a_slow_gpu_is_named_by_contrast() -> None:
    seen = verdict(Node(ports={3: 120.0}))
    assert (seen.outcome, seen.code, seen.subject, subjects(seen)) == (
        Outcome.FAILED,
        "SLOW_GPU",
        "GPU-3",
        {"GPU-3"},
    )
    assert seen.findings[0].action is Action.CONTACT_SUPPORT
    assert Subject("Bandwidth", "GPU-0") in seen.clears


@pytest.mark.parametrize("sick", [(2, 4), (2, 3), (0, 7), (1, 5)])
def test_two_slow_gpus_are_both_named_and_nobody_between_them(sick: tuple[int, int]) -> None:
    assert subjects(verdict(Node(ports={sick[0]: 150.0, sick[1]: 90.0}))) == {
        f"GPU-{i}" for i in sick
    }


def test_a_node_that_is_slow_all_over_quarantines_nobody() -> None:
    seen = verdict(Node(rings=150.0, nvls=150.0))
    assert (seen.outcome, seen.code, subjects(seen)) == (Outcome.FAILED, "SLOW_NODE", set())
    assert [f.subject for f in seen.findings] == [NODE]
    assert "no GPU stands out" in seen.reason


def test_one_slow_link_names_both_its_ends_and_blames_neither() -> None:
    seen = verdict(Node(links={(2, 3): 90.0}))
    assert (seen.code, subjects(seen)) == ("SLOW_NODE", set())
    assert "only the link between GPU-2 and GPU-3 is slow" in seen.reason


def test_where_pairs_differ_by_design_a_slow_run_is_the_node_s() -> None:
    bridged = Node(rings=200.0, nvls=0.0, links={(1, 2): 10.0, (0, 3): 10.0}, ports={3: 8.0})
    seen, after = conclude(bridged, replace(case(4, A100_PCIE, LinkClass.MIXED), threshold=15.0))
    assert (seen.code, subjects(seen)) == ("SLOW_NODE", set())
    assert after.pairs == {}


def test_two_gpus_have_nobody_to_be_compared_with() -> None:
    seen, after = conclude(Node(rings=50.0), replace(case(2), threshold=300.0))
    assert (seen.code, subjects(seen), after.pairs) == ("SLOW_NODE", set(), {})


def test_healthy_rings_without_nvls_pass_and_say_so() -> None:
    seen, after = conclude(Node(nvls=0.0), case())
    assert (seen.outcome, seen.code) == (Outcome.PASSED, "OK_WITHOUT_NVLS")
    assert after.results[-1].step.set_ == {"NCCL_NVLS_ENABLE": "0"}


def test_nvls_that_is_slower_than_rings_is_no_excuse() -> None:
    assert verdict(Node(nvls=320.0)).code == "SLOW_NODE"
    assert verdict(Node(nvls=100.0)).code == "SLOW_NODE"


def test_unknown_hardware_is_measured_and_passes_at_any_speed() -> None:
    seen, after = conclude(Node(rings=0.5, nvls=0.0), case(8, "NVIDIA X1000"))
    assert (seen.outcome, seen.code, seen.measured, len(after.results)) == (
        Outcome.PASSED,
        "UNKNOWN_HARDWARE",
        0.5,
        1,
    )


def siblings(count: int, **kinds: str) -> Progress:
    pairs = {
        (a, b): kinds.get(f"k{a}{b}", "PIX") for a in range(count) for b in range(a + 1, count)
    }
    return replace(case(count, "NVIDIA X1000", LinkClass.PCIE), kinds=pairs)


def test_where_no_floor_is_known_a_slow_gpu_is_named_by_its_siblings() -> None:
    seen = verdict(Node(rings=20.0, nvls=0.0, ports={2: 6.0}), siblings(4))
    assert (seen.outcome, seen.code, seen.subject, subjects(seen)) == (
        Outcome.FAILED,
        "SLOW_GPU",
        "GPU-2",
        set(),
    )
    given = replace(siblings(4), signs=(sign("PCIE_WIDTH", 2),))
    assert subjects(verdict(Node(rings=20.0, nvls=0.0, ports={2: 6.0}), given)) == {"GPU-2"}


def test_where_no_floor_is_known_a_slow_link_is_named() -> None:
    seen = verdict(Node(rings=20.0, nvls=0.0, links={(1, 2): 5.0}), siblings(4))
    assert (seen.code, subjects(seen)) == ("SLOW_NODE", set())
    assert "only the link between GPU-1 and GPU-2 is slow" in seen.reason


def test_pairs_that_are_joined_differently_are_not_compared() -> None:
    apart = {"k12": "SYS", "k03": "SYS"}
    node = Node(rings=20.0, nvls=0.0, links={(1, 2): 8.0, (0, 3): 8.0})
    assert verdict(node, siblings(4, **apart)).code == "UNKNOWN_HARDWARE"


def test_a_healthy_board_whose_gpus_have_one_or_two_nvlinks_between_them_passes() -> None:
    board = case(4, "Tesla V100-SXM2-16GB", LinkClass.NVLINK)
    node = Node(rings=45.0, nvls=0.0, links=dict.fromkeys([(0, 1), (0, 2), (1, 3)], 22.0))
    assert verdict(node, replace(board, kinds=parse_matrix(HYBRID))).code == "UNKNOWN_HARDWARE"


def test_four_gpus_of_a_known_board_are_held_to_something() -> None:
    assert verdict(Node(rings=1.0, nvls=0.0), case(4)).code == "SLOW_NODE"
    assert verdict(Node(rings=360.0, nvls=0.0), case(4)).code == "OK"


def test_a_floor_of_one_source_fails_nobody_by_itself() -> None:
    h20 = case(8, "NVIDIA H20")
    assert (verdict(Node(rings=250.0, nvls=0.0), h20).outcome) is Outcome.PASSED
    assert verdict(Node(rings=250.0, nvls=0.0), h20).code == "BELOW_ONE_SOURCE"
    given = replace(h20, signs=(sign("POWER_BRAKE", 2),))
    assert verdict(Node(rings=250.0, nvls=0.0), given).code == "SLOW_NODE"
    assert verdict(Node(rings=340.0, nvls=0.0, ports={4: 100.0}), h20).code == "SLOW_GPU"


def test_a_gpu_that_is_slow_only_in_a_crowd_is_found_by_leaving_it_out() -> None:
    seen = verdict(Node(rings=370.0, nvls=466.0, crowd={6: 150.0}))
    assert (seen.code, seen.subject, subjects(seen)) == ("SLOW_GPU", "GPU-6", set())
    assert "without GPU-6" in seen.reason


@pytest.mark.parametrize("sick", [{5}, {0}])
def test_a_hang_is_narrowed_down_to_the_gpu_whose_pairs_hang(sick: set[int]) -> None:
    one = next(iter(sick))
    hanging = frozenset((min(one, other), max(one, other)) for other in range(8) if other != one)
    seen = verdict(Node(hanging=hanging))
    assert (seen.outcome, seen.code, seen.subject, subjects(seen)) == (
        Outcome.FAILED,
        "NCCL_HANG",
        f"GPU-{one}",
        set(),
    )


def test_a_hang_of_one_pair_names_the_pair_and_no_gpu() -> None:
    seen = verdict(Node(hanging=frozenset({(2, 3)})))
    assert (seen.code, seen.subject) == ("NCCL_HANG", "")
    assert "GPU-2 and GPU-3" in seen.reason


def test_where_every_pair_hangs_nobody_is_named() -> None:
    everyone = frozenset((a, b) for a in range(8) for b in range(a + 1, 8))
    seen = verdict(Node(hanging=everyone))
    assert (seen.outcome, seen.code) == (Outcome.INCONCLUSIVE, "CHECK_TIMEOUT")


def test_a_busy_gpu_is_quarantined_by_nobody() -> None:
    busy = "h: Test CUDA failure common.cu:941 'CUDA-capable device(s) is/are busy or unavailable'"
    seen = ended(busy, 2)
    assert (seen.outcome, seen.code) == (Outcome.INCONCLUSIVE, "GPU_OCCUPIED")


def test_an_error_class_beside_processes_of_somebody_else_is_no_fault() -> None:
    seen = ended("h: Test NCCL failure common.cu:1 'unhandled cuda error'", held={"GPU-5": 1})
    assert (seen.outcome, seen.code) == (Outcome.INCONCLUSIVE, "GPU_OCCUPIED")
    assert "GPU-5 (1 process(es))" in seen.reason


@pytest.mark.parametrize(
    ("held", "code"),
    [({"GPU-3": 2}, "GPU_OCCUPIED"), ({"GPU-5": 2}, "SLOW_GPU"), ({}, "SLOW_GPU")],
)
def test_a_gpu_is_not_slow_by_itself_while_somebody_else_computes_on_it(
    held: dict[str, int], code: str
) -> None:
    seen = verdict(Node(ports={3: 120.0}), replace(case(), held=held))
    assert (seen.code, bool(subjects(seen))) == (code, code == "SLOW_GPU")
    if code == "GPU_OCCUPIED":
        assert seen.outcome is Outcome.INCONCLUSIVE
        assert "GPU-3 (2 process(es))" in seen.reason
        assert "SLOW_GPU" in seen.reason


def test_a_node_is_not_slow_by_itself_while_somebody_else_computes_on_it() -> None:
    slow = Node(ports=dict.fromkeys(range(8), 120.0))
    assert verdict(slow).code == "SLOW_NODE"
    assert verdict(slow, replace(case(), held={"GPU-5": 1})).code == "GPU_OCCUPIED"
    assert verdict(Node(), replace(case(), held={"GPU-5": 1})).outcome is Outcome.PASSED


def test_an_ecc_error_without_a_number_is_the_gpus_whose_counter_grew() -> None:
    words = "h: Test CUDA failure common.cu:1 'uncorrectable ECC error encountered'"
    seen = ended(words, signs=(sign("ECC_UNDER_LOAD", 3, fatal=True),))
    assert (seen.code, subjects(seen)) == ("GPU_ECC", {"GPU-3"})


def test_wrong_data_of_a_small_size_counts() -> None:
    small = Measurement(GIB, 466.0, 4.0, wrong_size=1024)
    seen, _ = conclude(Node(), replace(case(), results=(whole(small),)))
    assert seen.code == "WRONG_DATA"
    assert "an all-reduce of 1K" in seen.reason


SLOW = Node(rings=40.0, nvls=40.0)
SLOW_GPU = Node(ports={3: 40.0})
HANGING = Node(
    hanging=frozenset((3, gpu) for gpu in range(8) if gpu != 3)
    | frozenset((gpu, 3) for gpu in range(8))
)


@pytest.mark.parametrize(
    "node", [SLOW, SLOW_GPU, HANGING], ids=["slow node", "slow GPU", "hanging GPU"]
)
def test_nobody_is_blamed_for_the_time_of_a_run_without_its_cpus(node: Node) -> None:
    blamed = verdict(node, case())
    assert blamed.outcome is Outcome.FAILED
    seen = verdict(node, replace(case(), throttled=0.6))
    assert (seen.outcome, seen.code, seen.findings, seen.measured) == (
        Outcome.INCONCLUSIVE,
        "CPU_THROTTLED",
        (),
        None,
    )
    assert "60% of the time" in seen.reason
    assert blamed.code in seen.reason


def test_a_limit_that_hardly_counts_excuses_nothing() -> None:
    assert verdict(SLOW_GPU, replace(case(), throttled=0.05)).code == "SLOW_GPU"


def test_wrong_data_is_wrong_however_little_cpu_there_was() -> None:
    assert verdict(Node(wrong=frozenset({3})), replace(case(), throttled=1.0)).code == "WRONG_DATA"


def test_who_is_fast_enough_without_cpu_passes() -> None:
    assert verdict(Node(), replace(case(), throttled=1.0)).outcome is Outcome.PASSED


def test_output_that_contradicts_itself_is_no_pass() -> None:
    odd = Measurement(GIB, contradiction="algbw 1 over 8 GPUs does not make a busbw of 400")
    seen = decided(whole(odd))
    assert (seen.outcome, seen.code) == (Outcome.INCONCLUSIVE, "CONTRADICTORY_OUTPUT")


def test_a_floor_holds_for_its_own_size_only() -> None:
    seen = verdict(Node(rings=0.5, nvls=0.0), case(size=512 << 20))
    assert (seen.outcome, seen.code) == (Outcome.PASSED, "NO_FLOOR_FOR_SIZE")
    assert "256M" in seen.reason


def test_a_pass_without_a_floor_does_not_clear_a_slow_gpu() -> None:
    seen = verdict(Node(rings=0.5, nvls=0.0), case(8, "NVIDIA X1000"))
    assert {subject.test for subject in seen.clears} == {"Data", "Device"}


@pytest.mark.parametrize(
    ("threshold", "code"), [(10.0, "OK"), (150.0, "OK"), (151.0, "SLOW_NODE"), (500.0, "SLOW_NODE")]
)
def test_the_operator_s_threshold_overrides_the_floor(threshold: float, code: str) -> None:
    assert verdict(Node(rings=150.0, nvls=0.0), replace(case(), threshold=threshold)).code == code


def test_a_threshold_judges_hardware_that_is_unknown_otherwise() -> None:
    seen = verdict(Node(rings=5.0, nvls=0.0), replace(case(8, "NVIDIA X1000"), threshold=10.0))
    assert (seen.outcome, seen.code) == (Outcome.FAILED, "SLOW_NODE")


def test_the_workloads_variables_disarm_nothing() -> None:
    seen = verdict(
        Node(rings=5.0, nvls=0.0),
        replace(case(), threshold=150.0, variables=("NCCL_P2P_DISABLE", "NCCL_FOO")),
    )
    assert (seen.outcome, seen.code) == (Outcome.FAILED, "SLOW_NODE")


def test_what_a_variable_of_the_workload_costs_is_told_and_fails_nobody() -> None:
    seen, after = conclude(
        Node(costs={"NCCL_ALGO": 0.6}), replace(case(), variables=("NCCL_ALGO", "NCCL_IB_HCA"))
    )
    assert (seen.outcome, seen.code, seen.findings, seen.measured) == (
        Outcome.PASSED,
        "OK",
        (),
        466.0,
    )
    assert "your NCCL_ALGO costs 40 %" in seen.reason
    assert "NCCL_IB_HCA" not in seen.reason
    assert [taken.step.variables for taken in after.results if taken.step.decides] == [()]


def test_variables_that_cost_nothing_are_not_mentioned() -> None:
    seen, after = conclude(Node(), replace(case(), variables=("NCCL_ALGO",)))
    assert (seen.code, "NCCL_ALGO" in seen.reason, len(after.results)) == ("OK", False, 2)


def test_variables_with_which_nccl_fails_are_told_and_fail_nobody() -> None:
    first = whole(Measurement(GIB, 466.0, 0.0))
    error = read("h: Test NCCL failure common.cu:1 'invalid usage (run with …)'", "", 3, GIB)
    wished = StepResult(
        Step(StepKind.VARIABLES, tuple(range(8)), GIB, variables=("NCCL_ALGO",)), error
    )
    seen = decided(first, wished, variables=("NCCL_ALGO",))
    assert (seen.outcome, seen.code) == (Outcome.PASSED, "OK")
    assert "With your NCCL_ALGO, NCCL fails on this healthy node" in seen.reason


def test_a_node_that_needs_the_workloads_topology_file_passes_with_it_alone() -> None:
    slow = whole(Measurement(GIB, 100.0, 0.0))
    taken = (slow, replace(slow, step=replace(slow.step, what=StepKind.AGAIN)))
    step = decide(replace(case(), variables=("NCCL_TOPO_FILE",), results=taken))
    assert isinstance(step, Step)
    assert (step.what, step.variables) == (StepKind.TOPOLOGY, ("NCCL_TOPO_FILE",))
    again = StepResult(step, Measurement(GIB, 460.0, 0.0))
    seen = decided(*taken, again, variables=("NCCL_TOPO_FILE",), exhausted=True)
    assert (seen.code, seen.measured) == ("OK", 460.0)


def test_a_topology_file_that_slows_a_healthy_node_is_the_one_to_blame() -> None:
    seen = verdict(Node(topology_factor=0.3), replace(case(), topology_file="/topo/wrong.xml"))
    assert (seen.outcome, seen.code, subjects(seen)) == (Outcome.FAILED, "TOPOLOGY_FILE", set())
    assert "/topo/wrong.xml" in seen.reason


def test_a_topology_file_does_not_hide_a_slow_gpu() -> None:
    seen = verdict(Node(ports={6: 100.0}), replace(case(), topology_file="/topo/fine.xml"))
    assert subjects(seen) == {"GPU-6"}


def test_wrong_data_is_named_by_contrast_at_full_speed() -> None:
    seen = verdict(Node(wrong=frozenset({5})))
    assert (seen.outcome, seen.code, subjects(seen)) == (Outcome.FAILED, "WRONG_DATA", {"GPU-5"})
    assert seen.findings[0].subject == Subject("Data", "GPU-5")


def test_wrong_data_that_no_gpu_explains_is_the_node_s_and_fatal() -> None:
    seen = verdict(Node(wrong=frozenset(range(8))))
    assert (seen.code, subjects(seen)) == ("WRONG_DATA", {None})


def test_wrong_data_on_unknown_hardware_fails_all_the_same() -> None:
    assert verdict(Node(wrong=frozenset({1})), case(4, "NVIDIA X1000")).code == "WRONG_DATA"


def test_wrong_data_of_one_run_is_not_outvoted_by_another() -> None:
    wrong = whole(Measurement(GIB, 300.0, 4.0))
    seen, _ = conclude(Node(), replace(case(), results=(wrong,)))
    assert (seen.code, subjects(seen)) == ("WRONG_DATA", {None})


@dataclass(frozen=True)
class BrokenPair(Node):
    """GPUs 1 and 2 alone, or ``those``, come to what no other run shows."""

    pair: dict[str, Any] = field(default_factory=dict)
    those: tuple[int, ...] = (1, 2)

    def run(self, step: Step, topology_file: str = "") -> Measurement:
        result = Node.run(self, step, topology_file)
        return replace(result, **self.pair) if step.gpus == self.those else result


CRASHED = {"busbw": None, "wrong": None, "status": 3}
CUDA_FAILED = read(
    "h: Test CUDA failure common.cu:1 'unspecified launch failure'", "", 3, GIB
).error


@pytest.mark.parametrize("speed", [100.0, 466.0])
def test_wrong_data_of_a_pair_alone_is_the_node_s_and_fatal(speed: float) -> None:
    wrong = BrokenPair(rings=speed, nvls=speed, pair={"wrong": 37.0, "wrong_size": 1024})
    seen = verdict(wrong, case() if speed == 100.0 else without_a_floor())
    assert (seen.outcome, seen.code, subjects(seen)) == (Outcome.FAILED, "WRONG_DATA", {None})
    assert not {"GPU-1", "GPU-2"} & {each.gpu_uuid for each in seen.clears}


def without_a_floor() -> Progress:
    kinds = {(a, b): "SYS" for a in range(4) for b in range(a + 1, 4)}
    return replace(case(4, "NVIDIA X1000"), kinds=kinds)


@pytest.mark.parametrize(
    ("result", "outcome", "code"),
    [
        ({**CRASHED, "timed_out": True}, Outcome.FAILED, "NCCL_HANG"),
        ({**CRASHED, "error": CUDA_FAILED}, Outcome.FAILED, "NCCL_CUDA_ERROR"),
        ({**CRASHED, "status": -9}, Outcome.INCONCLUSIVE, "TOOL_KILLED"),
        ({**CRASHED, "too_big": True}, Outcome.PASSED, "UNKNOWN_HARDWARE"),
    ],
)
def test_a_pair_that_comes_to_no_result_is_no_pass_without_a_floor(
    result: dict[str, Any], outcome: Outcome, code: str
) -> None:
    seen = verdict(BrokenPair(pair=result), without_a_floor())
    assert (seen.outcome, seen.code) == (outcome, code)
    assert not subjects(seen)
    if outcome is Outcome.FAILED:
        assert {each.gpu_uuid for each in seen.clears} == {"GPU-0", "GPU-3"}


@pytest.mark.parametrize("those", [(1, 2), (0, 1, 2, 3, 4, 6, 7)])
def test_some_gpus_that_come_to_no_result_are_no_pass_below_a_floor_of_one_source(
    those: tuple[int, ...],
) -> None:
    node = BrokenPair(rings=250.0, nvls=0.0, pair={**CRASHED, "error": CUDA_FAILED}, those=those)
    seen = verdict(node, case(8, "NVIDIA H20"))
    assert (seen.outcome, seen.code) == (Outcome.FAILED, "NCCL_CUDA_ERROR")
    assert not subjects(seen)


def ended(output: str, status: int = 3, *, timed_out: bool = False, **rest: object) -> Verdict:
    result = read(output, "", status, GIB, timed_out=timed_out, gpus=8)
    return decided(whole(result), exhausted=True, **rest)


WRONG_ROW = "  1048576  262144  float  sum  -1  100.0  10.49  18.35  37  100.0  10.49  18.35  0\n"


@pytest.mark.parametrize(
    ("ended_by", "status", "timed_out"),
    [
        ("h: Test NCCL failure common.cu:1204 'unhandled cuda error / '", 3, False),
        ("h: Test CUDA failure common.cu:1 'out of memory'", 2, False),
        ("", -11, False),
        ("", -9, True),
    ],
)
def test_wrong_elements_count_however_the_run_ends_that_printed_them(
    ended_by: str, status: int, timed_out: bool
) -> None:
    seen = ended(WRONG_ROW + ended_by, status, timed_out=timed_out)
    assert (seen.outcome, seen.code, subjects(seen)) == (Outcome.FAILED, "WRONG_DATA", {None})
    assert "37 wrong elements in an all-reduce of 1M" in seen.reason


def test_a_row_that_was_cut_into_by_other_words_has_counted_nothing() -> None:
    garbled = WRONG_ROW.replace("10.49", "1.49", 1)
    assert ended(garbled, -11).code == "TOOL_KILLED"


SHM = """h:1:2 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-KWfVyt to 33030532 bytes, error: No space left on device (28)
h: Test NCCL failure common.cu:958 'internal error - please report this issue to the NCCL developers / '"""
FABRIC = "h: Test CUDA failure common.cu:941 'system not yet initialized'\n .. h pid 15: Test failure common.cu:891"


@pytest.mark.parametrize(
    ("output", "code", "says"),
    [
        (SHM, "SHM_FULL", "/dev/shm has 64 MiB"),
        (FABRIC, "FABRIC_NOT_READY", "nvidia-fabricmanager"),
        ("Invalid number of GPUs: 8 requested but only 4 were found.", "GPU_COUNT", "fewer GPUs"),
        (
            "h:1:2 [1] init.cc:800 NCCL WARN Duplicate GPU detected : rank 1 and rank 0",
            "DUPLICATE_GPU",
            "time-slicing",
        ),
        (
            "h: Test NCCL failure common.cu:1 'invalid usage (run with …)'",
            "NCCL_INVALID_USAGE",
            "no verdict",
        ),
        ("h: Test timeout (60s) common.cu:501", "NCCL_TIMEOUT", "no verdict"),
        ("h: Test CUDA failure common.cu:1 'out of memory'", "GPU_MEMORY", "nvidia-smi"),
        (
            "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file: No such file or directory",
            "LIBRARY_MISSING",
            "libnccl.so.2",
        ),
        ("", "NO_RESULT", "exited 3"),
    ],
)
def test_trouble_of_the_environment_is_no_verdict_on_the_node(
    output: str, code: str, says: str
) -> None:
    seen = ended(output)
    assert (seen.outcome, seen.code, subjects(seen)) == (Outcome.INCONCLUSIVE, code, set())
    assert says in seen.reason


def test_a_tool_that_was_killed_says_by_what() -> None:
    assert (ended("", -9).code, ended("", 137).code) == ("TOOL_KILLED", "TOOL_KILLED")


def test_a_hang_is_inconclusive_with_the_last_words() -> None:
    seen = ended("NCCL version 2.28.7+cuda13.0\n", -9, timed_out=True)
    assert (seen.outcome, seen.code) == (Outcome.INCONCLUSIVE, "CHECK_TIMEOUT")
    assert "NCCL version" in seen.reason


def unending(silent: dict[str, str]) -> Verdict:
    result = read("", "", -9, GIB, timed_out=True, stuck=True)
    return decided(whole(result), silent=silent)


def test_a_tool_that_not_even_sigkill_ends_is_fatal_where_the_driver_does_not_answer() -> None:
    seen = unending({"GPU-3": "no answer within 5 s"})
    assert (seen.outcome, seen.code, subjects(seen)) == (Outcome.FAILED, "DRIVER_HANG", {None})
    assert "GPU-3: no answer within 5 s" in seen.reason


def test_a_tool_that_not_even_sigkill_ends_is_no_fault_of_gpus_that_answer() -> None:
    seen = unending({})
    assert (seen.outcome, seen.code, seen.findings) == (Outcome.INCONCLUSIVE, "TOOL_STUCK", ())


def test_a_driver_that_answers_nothing_is_named_before_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stuck(*_: object, **__: object) -> Measurement:
        return read("", "", -9, GIB, timed_out=True, stuck=True)

    async def unanswered(*_: object) -> dict[str, str]:
        return {"GPU-1": "no answer within 5 s"}

    async def never(*_: object) -> None:
        await anyio.sleep_forever()

    @asynccontextmanager
    async def unsampled(_: object) -> AsyncIterator[list[object]]:
        yield []

    monkeypatch.setattr(perf, "run", stuck)
    monkeypatch.setattr(alive, "silent", unanswered)
    monkeypatch.setattr(devices, "lost", never)
    monkeypatch.setattr(counters, "snapshot", never)
    monkeypatch.setattr(counters, "sampled", unsampled)

    async def story() -> Verdict:
        run: Any = SimpleNamespace(
            deadline=anyio.current_time() + 2.5, progress=print, settings=Settings()
        )
        pair = case(2)
        with anyio.CancelScope(deadline=run.deadline):
            seen, _ = await steps._measure(
                run, pair, None, Tool(), counters.DriverWatch(pair.gpus, ())
            )
            return seen
        raise AssertionError("no verdict in time")

    seen = anyio.run(story)
    assert (seen.code, subjects(seen)) == ("DRIVER_HANG", {None})


ECC = "h:1:2 [6] enqueue.cc:1674 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\nh: Test NCCL failure common.cu:1 'unhandled cuda error'"


def test_an_ecc_error_is_fatal_for_the_gpu_that_nccl_names() -> None:
    seen = ended(ECC)
    assert (seen.outcome, seen.code, subjects(seen)) == (Outcome.FAILED, "GPU_ECC", {"GPU-6"})


def test_a_device_fault_that_shows_in_a_pair_only_counts_as_well() -> None:
    slow = whole(Measurement(GIB, 100.0, 0.0))
    pair = StepResult(Step(StepKind.PAIR, (3, 7), GIB), read(ECC.replace("[6]", "[1]"), "", 3, GIB))
    seen = decided(slow, slow, pair)
    assert (seen.code, subjects(seen)) == ("GPU_ECC", {"GPU-7"})


def test_an_ecc_error_without_a_number_is_fatal_for_the_node() -> None:
    seen = ended("h: Test CUDA failure common.cu:1 'uncorrectable ECC error encountered'")
    assert (seen.code, subjects(seen)) == ("GPU_ECC", {None})


@pytest.mark.parametrize(
    "output", [SHM, FABRIC, "", "h: Test NCCL failure common.cu:1 'unhandled cuda error'"]
)
def test_a_gpu_that_the_driver_has_lost_outweighs_whatever_nccl_says(output: str) -> None:
    seen = ended(output, lost={"GPU-2": "GPU is lost"})
    assert (seen.outcome, seen.code, subjects(seen)) == (Outcome.FAILED, "GPU_LOST", {"GPU-2"})


def test_an_error_class_alone_fails_the_run_and_quarantines_nobody() -> None:
    seen = verdict(Node(dying=frozenset(range(8))))
    assert (seen.outcome, seen.code, subjects(seen)) == (
        Outcome.FAILED,
        "NCCL_INTERNAL_ERROR",
        set(),
    )


def test_an_error_that_comes_with_one_gpu_only_is_that_gpu_s_and_fatal_with_a_second_sign() -> None:
    seen = verdict(Node(dying=frozenset({4})))
    assert (seen.code, seen.subject, subjects(seen), seen.findings[0].action) == (
        "NCCL_INTERNAL_ERROR",
        "GPU-4",
        set(),
        Action.RUN_DCGMEUD,
    )
    given = replace(case(), signs=(sign("NVLINK_RECOVERY", 4),))
    assert subjects(verdict(Node(dying=frozenset({4})), given)) == {"GPU-4"}


def test_too_little_memory_falls_back_to_a_smaller_size_with_a_floor_of_its_own() -> None:
    first = whole(Measurement(GIB, too_big=True))
    seen, after = conclude(Node(), replace(case(), results=(first,)))
    assert (seen.code, after.results[-1].step.size) == ("OK", 256 << 20)
    assert "256M, the largest that fits" in seen.reason


@pytest.mark.parametrize("tried", [(GIB,), (GIB, 256 << 20)])
def test_a_smaller_size_asks_for_no_more_memory_than_its_own(tried: tuple[int, ...]) -> None:
    taken = tuple(whole(Measurement(size, too_big=True)) for size in tried)
    step = decide(replace(case(), results=taken))
    assert isinstance(step, Step)
    argv = perf.argv(Settings(), step)
    assert argv[argv.index("-e") + 1] == str(step.size)


def test_no_size_that_fits_is_inconclusive() -> None:
    seen = decided(*(whole(Measurement(size, too_big=True)) for size in (GIB, *SMALLER)))
    assert (seen.outcome, seen.code) == (Outcome.INCONCLUSIVE, "GPU_MEMORY")


def test_unverified_data_is_no_pass() -> None:
    seen = decided(whole(Measurement(GIB, 466.0, None)))
    assert (seen.outcome, seen.code) == (Outcome.INCONCLUSIVE, "NOT_VERIFIED")


def test_without_time_for_pairs_the_node_is_slow_and_nobody_accused() -> None:
    seen = decided(whole(Measurement(GIB, 100.0, 0.0)), exhausted=True)
    assert (seen.code, subjects(seen)) == ("SLOW_NODE", set())


def noise(seed: int) -> Callable[[], float]:
    dice = random.Random(seed)
    return lambda: dice.uniform(0.97, 1.0)


factors = st.dictionaries(st.integers(0, 7), st.floats(0.05, 0.7), max_size=8)
nodes = st.builds(
    lambda rings, nvls, slow, links, wrong, dying, seed: Node(
        rings,
        nvls,
        {gpu: factor * rings for gpu, factor in slow.items()},
        dict.fromkeys(links, 0.5 * rings),
        frozenset(wrong),
        frozenset(dying),
        noise=noise(seed),
    ),
    st.floats(1, 400),
    st.one_of(st.just(0.0), st.floats(1, 500)),
    factors,
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda p: p[0] < p[1]), max_size=3
    ),
    st.one_of(st.just([]), st.lists(st.integers(0, 7), max_size=2)),
    st.one_of(st.just([]), st.lists(st.integers(0, 7), max_size=2)),
    st.integers(0, 1 << 16),
)


@given(nodes, st.integers(2, 8), st.sampled_from([H100, "NVIDIA X1000", A100_PCIE]))
def test_a_pass_against_a_floor_clears_whatever_a_failing_run_raised(
    node: Node, count: int, model: str
) -> None:
    failed = verdict(node, replace(case(count, model), threshold=300.0))
    passed = verdict(Node(), replace(case(count, model), threshold=300.0))
    assert passed.outcome is Outcome.PASSED
    raised = {
        e.identity
        for e in events("nccl-loopback", "NCCLLoopbackTest", "Node", failed)
        if not e.healthy
    }
    cleared = {
        e.identity for e in events("nccl-loopback", "NCCLLoopbackTest", "Node", passed) if e.healthy
    }
    assert raised <= cleared


@given(nodes, st.integers(2, 8))
def test_a_message_is_constant_for_its_code_and_subject(node: Node, count: int) -> None:
    for finding in verdict(node, replace(case(count), threshold=300.0)).findings:
        text = finding.message.replace(finding.subject.gpu_uuid or "-", "").replace("H100", "")
        assert not any(character.isdigit() or character == ";" for character in text)


@given(st.integers(3, 8), st.data())
def test_a_healthy_gpu_is_never_accused_of_being_slow(count: int, data: st.DataObject) -> None:
    sick = data.draw(st.lists(st.integers(0, count - 1), max_size=count, unique=True))
    seed = data.draw(st.integers(0, 1 << 16))
    dice = random.Random(seed)
    node = Node(
        ports={i: 370 * dice.uniform(0.2, 0.7) for i in sick}, noise=lambda: dice.uniform(0.95, 1.0)
    )
    seen = verdict(node, replace(case(count), threshold=360.0))
    assert subjects(seen) <= {f"GPU-{i}" for i in sick}
    if len(sick) == 1:
        assert subjects(seen) == {f"GPU-{sick[0]}"}


@given(nodes, st.integers(2, 8))
def test_there_is_a_verdict_after_a_bounded_number_of_steps(node: Node, count: int) -> None:
    _, after = conclude(node, replace(case(count), threshold=300.0), most=70)
    assert len(after.results) <= 4 + 2 * count + 4 * count
