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
from hypothesis import given
from hypothesis import strategies as st
from nodes import GIB, H100, Node, conclude, gpus
from preflight_proto.check import Action, Finding, Outcome, Subject, Verdict, alive, counters
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


def siblings(count: int, **kinds: str) -> Progress:
    pairs = {
        (a, b): kinds.get(f"k{a}{b}", "PIX") for a in range(count) for b in range(a + 1, count)
    }
    return replace(case(count, "NVIDIA X1000", LinkClass.PCIE), kinds=pairs)


def pairs_of(gpu: int) -> frozenset[tuple[int, int]]:
    return frozenset((min(gpu, other), max(gpu, other)) for other in range(8) if other != gpu)


def evenly(rings: float, *slow: tuple[int, int]) -> Node:
    """A node that is as fast as that all over, by rings, but for the links that are slow."""
    return Node(rings=rings, nvls=0.0, links=dict.fromkeys(slow, 0.45 * rings))


EIGHT, X1000, H20 = case(), case(8, "NVIDIA X1000"), case(8, "NVIDIA H20")
BONDED = replace(case(4, "Tesla V100-SXM2-16GB"), kinds=parse_matrix(HYBRID))
MAPPED = replace(EIGHT, topology_file="/topo/mapped.xml")
SLOW, SLOW_GPU = Node(rings=40.0, nvls=40.0), Node(ports={3: 120.0})
SIBLING = Node(rings=20.0, nvls=0.0, ports={2: 6.0})
VERDICTS: dict[str, tuple[Node, Progress, str, set[str | None], str]] = {
    # id: node, what is known before, outcome and code, who is blamed fatally, words of the reason
    "slow GPUs 2 and 4": (Node(ports={2: 150.0, 4: 90.0}), EIGHT, "failed SLOW_GPU", {"GPU-2", "GPU-4"}, "GPU-2, GPU-4 are slow with every partner"),
    "slow GPUs 2 and 3": (Node(ports={2: 150.0, 3: 90.0}), EIGHT, "failed SLOW_GPU", {"GPU-2", "GPU-3"}, ""),
    "slow GPUs 0 and 7": (Node(ports={0: 150.0, 7: 90.0}), EIGHT, "failed SLOW_GPU", {"GPU-0", "GPU-7"}, ""),
    "slow GPUs 1 and 5": (Node(ports={1: 150.0, 5: 90.0}), EIGHT, "failed SLOW_GPU", {"GPU-1", "GPU-5"}, ""),
    "slow all over": (SLOW, EIGHT, "failed SLOW_NODE", set(), "no GPU stands out"),
    "one slow link": (Node(links={(2, 3): 90.0}), EIGHT, "failed SLOW_NODE", set(), "only the link between GPU-2 and GPU-3 is slow"),
    "NVLS slower than rings": (Node(nvls=320.0), EIGHT, "failed SLOW_NODE", set(), ""),
    "NVLS far slower": (Node(nvls=100.0), EIGHT, "failed SLOW_NODE", set(), ""),
    "no floor, a slow sibling": (SIBLING, siblings(4), "failed SLOW_GPU", set(), "GPU-2 is slow with every partner"),
    "no floor, a slow sibling with fewer lanes": (SIBLING, replace(siblings(4), signs=(sign("PCIE_WIDTH", 2),)), "failed SLOW_GPU", {"GPU-2"}, ""),
    "no floor, a slow link": (evenly(20.0, (1, 2)), siblings(4), "failed SLOW_NODE", set(), "only the link between GPU-1 and GPU-2 is slow"),
    "no floor, pairs joined differently": (evenly(20.0, (1, 2), (0, 3)), siblings(4, k12="SYS", k03="SYS"), "passed UNKNOWN_HARDWARE", set(), ""),
    "no floor, one or two NVLinks a pair": (evenly(45.0, (0, 1), (0, 2), (1, 3)), BONDED, "passed UNKNOWN_HARDWARE", set(), ""),
    "no floor for this size": (evenly(0.5), case(size=512 << 20), "passed NO_FLOOR_FOR_SIZE", set(), "256M"),
    "four of a board, slow": (evenly(1.0), case(4), "failed SLOW_NODE", set(), ""),
    "four of a board, healthy": (evenly(360.0), case(4), "passed OK", set(), ""),
    "one source": (evenly(250.0), H20, "passed BELOW_ONE_SOURCE", set(), ""),
    "one source, and the driver": (evenly(250.0), replace(H20, signs=(sign("POWER_BRAKE", 2),)), "failed SLOW_NODE", set(), ""),
    "one source, a slow GPU": (Node(rings=340.0, nvls=0.0, ports={4: 100.0}), H20, "failed SLOW_GPU", {"GPU-4"}, ""),
    "slow in a crowd": (Node(crowd={6: 150.0}), EIGHT, "failed SLOW_GPU", set(), "without GPU-6"),
    "GPU 5 hangs": (Node(hanging=pairs_of(5)), EIGHT, "failed NCCL_HANG", set(), "each has GPU-5"),
    "GPU 0 hangs": (Node(hanging=pairs_of(0)), EIGHT, "failed NCCL_HANG", set(), "each has GPU-0"),
    "a pair hangs": (Node(hanging=frozenset({(2, 3)})), EIGHT, "failed NCCL_HANG", set(), "of GPU-2 and GPU-3 hangs, while other pairs end; see"),
    "every pair hangs": (Node(hanging=frozenset().union(*map(pairs_of, range(8)))), EIGHT, "inconclusive CHECK_TIMEOUT", set(), ""),
    "slow, and somebody on a GPU": (SLOW, replace(EIGHT, held={"GPU-5": 1}), "inconclusive GPU_OCCUPIED", set(), ""),
    "fast, and somebody on a GPU": (Node(), replace(EIGHT, held={"GPU-5": 1}), "passed OK", set(), ""),
    "a slow GPU with somebody on it": (SLOW_GPU, replace(EIGHT, held={"GPU-3": 2}), "inconclusive GPU_OCCUPIED", set(), "GPU-3 (2 process(es))"),
    "somebody on it excuses it": (SLOW_GPU, replace(EIGHT, held={"GPU-3": 2}), "inconclusive GPU_OCCUPIED", set(), "nobody is blamed for SLOW_GPU"),
    "a slow GPU with somebody on another": (SLOW_GPU, replace(EIGHT, held={"GPU-5": 2}), "failed SLOW_GPU", {"GPU-3"}, ""),
    "a limit of CPU that hardly counts": (SLOW_GPU, replace(EIGHT, throttled=0.05), "failed SLOW_GPU", {"GPU-3"}, ""),
    "fast without CPU": (Node(), replace(EIGHT, throttled=1.0), "passed OK", set(), ""),
    "wrong data without CPU": (Node(wrong=frozenset({3})), replace(EIGHT, throttled=1.0), "failed WRONG_DATA", {"GPU-3"}, ""),
    "a threshold far below": (evenly(150.0), replace(EIGHT, threshold=10.0), "passed OK", set(), ""),
    "a threshold just met": (evenly(150.0), replace(EIGHT, threshold=150.0), "passed OK", set(), ""),
    "a threshold just missed": (evenly(150.0), replace(EIGHT, threshold=151.0), "failed SLOW_NODE", set(), ""),
    "a threshold above the floor": (evenly(150.0), replace(EIGHT, threshold=500.0), "failed SLOW_NODE", set(), ""),
    "a threshold for unknown hardware": (evenly(5.0), replace(X1000, threshold=10.0), "failed SLOW_NODE", set(), ""),
    "the workload's variables": (evenly(5.0), replace(EIGHT, threshold=150.0, variables=("NCCL_P2P_DISABLE", "NCCL_FOO")), "failed SLOW_NODE", set(), ""),
    "a topology file that slows": (Node(topology_factor=0.3), MAPPED, "failed TOPOLOGY_FILE", set(), "/topo/mapped.xml"),
    "a slow GPU, a fine topology file": (Node(ports={6: 100.0}), MAPPED, "failed SLOW_GPU", {"GPU-6"}, ""),
    "wrong data": (Node(wrong=frozenset({5})), EIGHT, "failed WRONG_DATA", {"GPU-5"}, ""),
    "wrong data of no single GPU": (Node(wrong=frozenset(range(8))), EIGHT, "failed WRONG_DATA", {None}, ""),
    "wrong data of unknown hardware": (Node(wrong=frozenset({1})), case(4, "NVIDIA X1000"), "failed WRONG_DATA", {"GPU-1"}, ""),
    "an error of all": (Node(dying=frozenset(range(8))), EIGHT, "failed NCCL_INTERNAL_ERROR", set(), ""),
    "an error of one GPU": (Node(dying=frozenset({4})), EIGHT, "failed NCCL_INTERNAL_ERROR", set(), "only with GPU-4"),
    "an error of one GPU, and its links": (Node(dying=frozenset({4})), replace(EIGHT, signs=(sign("NVLINK_RECOVERY", 4),)), "failed NCCL_INTERNAL_ERROR", {"GPU-4"}, ""),
}  # fmt: skip


@pytest.mark.parametrize("what", VERDICTS)
def test_the_verdict_about_a_node(what: str) -> None:
    node, known, code, blamed, says = VERDICTS[what]
    seen = verdict(node, known)
    assert (f"{seen.outcome} {seen.code}", subjects(seen)) == (code, blamed)
    assert says in seen.reason


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


def test_unknown_hardware_is_measured_and_passes_at_any_speed() -> None:
    seen, after = conclude(Node(rings=0.5, nvls=0.0), case(8, "NVIDIA X1000"))
    assert (seen.outcome, seen.code, seen.measured, len(after.results)) == (
        Outcome.PASSED,
        "UNKNOWN_HARDWARE",
        0.5,
        1,
    )


def test_wrong_data_of_a_small_size_counts() -> None:
    small = Measurement(GIB, 466.0, 4.0, wrong_size=1024)
    seen, _ = conclude(Node(), replace(case(), results=(whole(small),)))
    assert seen.code == "WRONG_DATA"
    assert "an all-reduce of 1K" in seen.reason


@pytest.mark.parametrize(
    "node",
    [SLOW, SLOW_GPU, Node(hanging=pairs_of(3))],
    ids=["slow node", "slow GPU", "hanging GPU"],
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


def test_a_pass_without_a_floor_does_not_clear_a_slow_gpu() -> None:
    seen = verdict(Node(rings=0.5, nvls=0.0), case(8, "NVIDIA X1000"))
    assert {subject.test for subject in seen.clears} == {"Data", "Device"}


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


SHM = """h:1:2 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-KWfVyt to 33030532 bytes, error: No space left on device (28)
h: Test NCCL failure common.cu:958 'internal error - please report this issue to the NCCL developers / '"""
FABRIC = "h: Test CUDA failure common.cu:941 'system not yet initialized'\n .. h pid 15: Test failure common.cu:891"


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
            seen, _ = await steps._measure(run, pair, counters.DriverWatch(pair.gpus, ()))
            return seen
        raise AssertionError("no verdict in time")

    seen = anyio.run(story)
    assert (seen.code, subjects(seen)) == ("DRIVER_HANG", {None})


@pytest.mark.parametrize(
    ("longest", "allowed", "then"),
    [(4.0, 50.0, 25.0), (60.0, 185.0, 90.0), (200.0, 300.0, 250.0)],
)
def test_a_pair_that_hangs_leaves_time_for_others_and_a_healthy_one_has_what_runs_take(
    longest: float, allowed: float, then: float
) -> None:
    slow = replace(case(), results=(whole(Measurement(GIB, 100.0, 0.0)),))
    pair = Step(StepKind.PAIR, (0, 1), GIB)
    assert steps._allowed(slow, pair, 500.0, longest) == allowed
    hung = replace(
        slow, results=(*slow.results, StepResult(pair, Measurement(GIB, timed_out=True)))
    )
    assert steps._allowed(hung, replace(pair, gpus=(2, 3)), 250.0, longest) == then


ECC = "h:1:2 [6] enqueue.cc:1674 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\nh: Test NCCL failure common.cu:1 'unhandled cuda error'"


def test_a_device_fault_that_shows_in_a_pair_only_counts_as_well() -> None:
    slow = whole(Measurement(GIB, 100.0, 0.0))
    pair = StepResult(Step(StepKind.PAIR, (3, 7), GIB), read(ECC.replace("[6]", "[1]"), "", 3, GIB))
    seen = decided(slow, slow, pair)
    assert (seen.code, subjects(seen)) == ("GPU_ECC", {"GPU-7"})


BARE = "h: Test CUDA failure common.cu:1 'uncorrectable ECC error encountered'"
BUSY = "h: Test CUDA failure common.cu:941 'CUDA-capable device(s) is/are busy or unavailable'"
CLASS = "h: Test NCCL failure common.cu:1 'unhandled cuda error'"
STARTED = read("NCCL version 2.28.7+cuda13.0\n", "", -9, GIB, timed_out=True)
UNENDING = read("", "", -9, GIB, timed_out=True, stuck=True)
SILENT = {"silent": {"GPU-3": "no answer within 5 s"}}
ODD = "algbw 1 over 8 GPUs does not make a busbw of 400"
RUNS: dict[str, tuple[Measurement, dict[str, Any], str, set[str | None], str]] = {
    # id: a run of all, what else is known, outcome and code, who is blamed fatally, words
    "it contradicts itself": (Measurement(GIB, contradiction=ODD), {}, "inconclusive CONTRADICTORY_OUTPUT", set(), ODD),
    "nothing was verified": (Measurement(GIB, 466.0, None), {}, "inconclusive NOT_VERIFIED", set(), ""),
    "slow, and no time for pairs": (Measurement(GIB, 100.0, 0.0), {}, "failed SLOW_NODE", set(), ""),
    "the smallest is too big": (Measurement(SMALLER[-1], too_big=True), {}, "inconclusive GPU_MEMORY", set(), ""),
    "killed": (read("", "", -9, GIB), {}, "inconclusive TOOL_KILLED", set(), "by signal 9"),
    "killed below a shell": (read("", "", 137, GIB), {}, "inconclusive TOOL_KILLED", set(), "by signal 9"),
    "a row cut into by other words counts nothing": (read(WRONG_ROW.replace("10.49", "1.49", 1), "", -11, GIB, gpus=8), {}, "inconclusive TOOL_KILLED", set(), ""),
    "a hang": (STARTED, {}, "inconclusive CHECK_TIMEOUT", set(), "NCCL version 2.28.7"),
    "not even SIGKILL ends it": (UNENDING, {}, "inconclusive TOOL_STUCK", set(), ""),
    "not even SIGKILL, and no answer": (UNENDING, SILENT, "failed DRIVER_HANG", {None}, "GPU-3: no answer within 5 s"),
    "ECC by its number": (read(ECC, "", 3, GIB), {}, "failed GPU_ECC", {"GPU-6"}, ""),
    "ECC of nobody": (read(BARE, "", 3, GIB), {}, "failed GPU_ECC", {None}, ""),
    "ECC by a counter": (read(BARE, "", 3, GIB), {"signs": (sign("ECC_UNDER_LOAD", 3, fatal=True),)}, "failed GPU_ECC", {"GPU-3"}, ""),
    "no shared memory": (read(SHM, "", 3, GIB), {}, "inconclusive SHM_FULL", set(), "/dev/shm has 64 MiB"),
    "no fabric": (read(FABRIC, "", 3, GIB), {}, "inconclusive FABRIC_NOT_READY", set(), "start nvidia-fabricmanager"),
    "wrong usage": (read("h: Test NCCL failure common.cu:1 'invalid usage (run with …)'", "", 3, GIB), {}, "inconclusive NCCL_INVALID_USAGE", set(), "no verdict"),
    "a time-out of the tool": (read("h: Test timeout (60s) common.cu:501", "", 3, GIB), {}, "inconclusive NCCL_TIMEOUT", set(), "no verdict"),
    "out of memory": (read("h: Test CUDA failure common.cu:1 'out of memory'", "", 3, GIB), {}, "inconclusive GPU_MEMORY", set(), "nvidia-smi"),
    "nothing said": (read("", "", 3, GIB), {}, "inconclusive NO_RESULT", set(), "exited 3"),
    "a busy GPU": (read(BUSY, "", 2, GIB), {}, "inconclusive GPU_OCCUPIED", set(), ""),
    "a class, and somebody on a GPU": (read(CLASS, "", 3, GIB), {"held": {"GPU-5": 1}}, "inconclusive GPU_OCCUPIED", set(), "GPU-5 (1 process(es))"),
}  # fmt: skip


@pytest.mark.parametrize("what", RUNS)
def test_the_verdict_after_one_run_without_time_for_more(what: str) -> None:
    result, known, code, blamed, says = RUNS[what]
    seen = decided(whole(result), exhausted=True, **known)
    assert (f"{seen.outcome} {seen.code}", subjects(seen)) == (code, blamed)
    assert says in seen.reason


@pytest.mark.parametrize(
    "output", [SHM, FABRIC, "", "h: Test NCCL failure common.cu:1 'unhandled cuda error'"]
)
def test_a_gpu_that_the_driver_has_lost_outweighs_whatever_nccl_says(output: str) -> None:
    seen = ended(output, lost={"GPU-2": "GPU is lost"})
    assert (seen.outcome, seen.code, subjects(seen)) == (Outcome.FAILED, "GPU_LOST", {"GPU-2"})


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
