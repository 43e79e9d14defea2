"""What a member makes of its workers' failures before it tells the leader."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from check_nccl_allreduce import ranks
from check_nccl_allreduce.control.messages import Result, Trouble
from preflight_proto.check import Gpu
from test_control import Gang

GPUS = tuple(Gpu(i, f"GPU-{i}", "H100", f"0000:0{i}:00.0") for i in range(2))
SAID = Result(1, trouble=Trouble("peer", "NCCL_REMOTE_ERROR", "a peer ended"))


def explained(result: Result, lost: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Result:
    async def nvml(gpus: Sequence[Gpu]) -> dict[str, str]:
        return lost

    async def explain() -> Result:
        one = ranks.Ranks({}, "127.0.0.1", print)
        one.join(Gang().roster(0), 2, {}, GPUS)
        return await one._explained(result)

    monkeypatch.setattr("preflight_proto.check.gpus.lost", nvml)
    return anyio.run(explain)


def test_a_gpu_that_the_driver_has_lost_explains_whatever_its_ranks_said(monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = explained(SAID, {"GPU-1": "GPU is lost"}, monkeypatch).trouble
    assert trouble == Trouble("device", "GPU_LOST", "the driver has lost GPU-1: GPU is lost")


def test_where_no_gpu_is_lost_the_ranks_words_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explained(SAID, {}, monkeypatch) == SAID


def test_a_result_is_a_result_whatever_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Result(1, (0.1,), 1)
    assert explained(good, {"GPU-1": "GPU is lost"}, monkeypatch) == good
