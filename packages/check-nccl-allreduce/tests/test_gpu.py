"""What only a GPU can show: NCCL's sums bit by bit, device events against the wall clock, and
bandwidth against nccl-tests'.

Skipped, visibly, where there is none.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess

import pytest
from allreduce_testing.gangs.gang import CHECK, MUTANTS, GangUnderTest


def gpus() -> int:
    """How many CUDA devices torch sees here."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def shareable() -> bool:
    """Whether this NCCL lets two ranks of one communicator share a device: 2.30.3 or newer."""
    import torch

    return bool(torch.cuda.nccl.version() >= (2, 30, 3))


needs_gpu = pytest.mark.skipif(
    gpus() == 0, reason="no CUDA device here, or no torch: NCCL and device events are not tested"
)

pytestmark = pytest.mark.timeout(
    600
)  # eight GPUs take most of a minute to start, and once more for nccl-tests

WITHIN = 240.0
SIZE = 256 * 1024**2
NCCL = {
    "NCCL_ALLREDUCE_BACKEND": "nccl",
    "NCCL_ALLREDUCE_SIZE": "256Mi",
    "NCCL_ALLREDUCE_ITERATIONS": "20",
    "NCCL_ALLREDUCE_WARMUP": "5",
    "NCCL_ALLREDUCE_THRESHOLD_GBPS": "0.001",
    "CHECK_TIMEOUT": "200s",
}
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""Without it NCCL refuses two ranks on one device, whatever its version."""
TOOL = os.environ.get("NCCL_LOOPBACK_TOOL") or "all_reduce_perf"


def start(gang: GangUnderTest, code: str, **variables: str) -> None:
    """One member with all devices, or two members on the only one."""
    if gpus() < 2 and not shareable():
        pytest.skip("one CUDA device, and an NCCL older than 2.30.3, which refuses two ranks on it")
    gang.size = 2 if gpus() == 1 else 1
    shared = SHARED if gang.size == 2 else {}
    gang.start(
        *range(gang.size), code=code, EXPECTED_GPUS=str(gpus()), **NCCL, **shared, **variables
    )
    gang.seal()


def nccl_tests_busbw() -> float:
    """GB/s of nccl-tests over all devices, of the same size, type and number of iterations; the
    mean of out-of-place and in-place.
    """
    tool = shutil.which(TOOL)
    if tool is None:
        pytest.skip(f"no {TOOL} of nccl-tests on the PATH, nor named by NCCL_LOOPBACK_TOOL")
    if gpus() < 2:
        pytest.skip("one CUDA device, and nccl-tests places no two ranks on one")
    size = ["-b", str(SIZE), "-e", str(SIZE), "-d", "float", "-o", "sum"]
    argv = [
        tool,
        *size,
        "-g",
        str(gpus()),
        "-n",
        NCCL["NCCL_ALLREDUCE_ITERATIONS"],
        "-w",
        NCCL["NCCL_ALLREDUCE_WARMUP"],
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=WITHIN)
    # Rows have changed with versions, this line never did; of a single size it is that row's mean.
    found = re.search(r"^#\s*Avg bus bandwidth\s*:\s*([0-9.]+)", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found is not None, done.stdout + done.stderr
    return float(found[1])


@needs_gpu
def test_nccl_delivers_every_bit(gang: GangUnderTest) -> None:
    start(gang, CHECK)
    for end in gang.all_ended(within=WITHIN):
        assert end.result.outcome == "passed", end.output
        assert "0 wrong element(s) in 25 verified iterations" in end.output


@needs_gpu
def test_device_events_tell_the_wall_clocks_time_within_two_percent(gang: GangUnderTest) -> None:
    start(gang, MUTANTS, MUTANT="wall-clock")
    for end in gang.all_ended(within=WITHIN):
        assert end.result.outcome == "passed", end.output
    logs = [member.home / "wall-clock" for member in gang.members.values()]
    shares = [float(line) for log in logs for line in log.read_text().splitlines()]
    assert sorted(shares)[len(shares) // 2] == pytest.approx(1.0, abs=0.02)


@needs_gpu
def test_the_bandwidth_is_at_least_95_percent_of_what_nccl_tests_measures(
    gang: GangUnderTest,
) -> None:
    reference = nccl_tests_busbw()
    start(gang, CHECK)
    [end] = gang.all_ended(within=WITHIN)
    assert end.result.outcome == "passed", end.output
    assert (end.result.measured or 0.0) >= 0.95 * reference, (
        f"nccl-tests: {reference} GB/s\n{end.output}"
    )
