"""What only a GPU can show: NCCL's sums bit by bit, and device events against the wall clock. Skipped, visibly, where there is none."""

from __future__ import annotations

import importlib.util

import pytest
from gangs import MUTANTS, Gang


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

NCCL = {
    "NCCL_ALLREDUCE_BACKEND": "nccl",
    "NCCL_ALLREDUCE_SIZE": "256Mi",
    "NCCL_ALLREDUCE_ITERATIONS": "20",
    "NCCL_ALLREDUCE_THRESHOLD_GBPS": "0.001",
}


def start(gang: Gang, code: str, **variables: str) -> None:
    """One member with all devices, or two members on the only one."""
    if gpus() < 2 and not shareable():
        pytest.skip("one CUDA device, and an NCCL older than 2.30.3, which refuses two ranks on it")
    gang.size = 2 if gpus() == 1 else 1
    gang.start(*range(gang.size), code=code, EXPECTED_GPUS=str(gpus()), **NCCL, **variables)
    gang.seal()


@needs_gpu
def test_nccl_delivers_every_bit(gang: Gang) -> None:
    start(gang, "from check_nccl_allreduce.check import main; main()")
    for end in gang.all_ended():
        assert end.result.outcome == "passed"
        assert "0 wrong element(s) in 21 verified iterations" in end.output


@needs_gpu
def test_device_events_tell_the_wall_clocks_time_within_two_percent(gang: Gang) -> None:
    start(gang, MUTANTS, MUTANT="wall-clock")
    assert all(end.result.outcome == "passed" for end in gang.all_ended())
    logs = [member.home / "wall-clock" for member in gang.members.values()]
    shares = [float(line) for log in logs for line in log.read_text().splitlines()]
    assert sorted(shares)[len(shares) // 2] == pytest.approx(1.0, abs=0.02)
