"""The rank's arithmetic with torch itself: filling, comparing, tables, on data that does not end
with a period.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from check_nccl_allreduce import syndrome
from check_nccl_allreduce.worker import pattern
from needs import needs_torch
from residuals import expected, first_row

pytestmark = [needs_torch, pytest.mark.component]  # torch starts programs where it is imported

LENGTHS = [1024, pattern.M - 1, pattern.M, 3 * pattern.M + 17, 300 * pattern.M + 5]


@pytest.fixture
def measure() -> Any:
    from check_nccl_allreduce.worker import measure

    return measure


@pytest.fixture
def tables(measure: Any) -> Any:
    import torch

    return measure._Tables(4, torch.device("cpu"))


def test_the_device_has_the_very_rows_of_the_pattern(tables: Any) -> None:
    assert tables.row(3, 17).int().tolist() == first_row(4, 3, 17)
    assert tables.reduced(17).int().tolist() == expected(4, 17)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sum_of_filled_ranks_is_what_is_expected(measure: Any, tables: Any, length: int) -> None:
    import torch

    total = torch.zeros(length)
    for rank in range(4):
        one = torch.empty(length)
        measure._fill(one, tables.row(rank, 5))
        total += one
    assert measure._compare(total, tables.reduced(5)) == (0, -1)
    assert measure._compare(total, tables.reduced(4))[0] > length // 2


@pytest.mark.parametrize("length", LENGTHS)
def test_one_wrong_bit_is_found_wherever_it_is(measure: Any, tables: Any, length: int) -> None:
    import torch

    data = torch.empty(length)
    for place in {0, length // 2, length - 1}:
        measure._fill(data, tables.reduced(5))
        data.view(torch.int32)[place] ^= 1
        assert measure._compare(data, tables.reduced(5)) == (1, place)


def test_a_negative_zero_is_not_zero_and_a_nan_is_wrong(measure: Any) -> None:
    import torch

    row = torch.zeros(pattern.M)
    assert measure._compare(torch.full((8,), -0.0), row) == (8, 0)
    assert measure._compare(torch.full((8,), float("nan")), row) == (8, 0)


@pytest.mark.parametrize("length", [3 * pattern.M + 17, 70 * pattern.M + 5])
def test_what_is_reported_of_a_wrong_sum_is_bounded_spread_over_it_and_tells_whose_part_was_wrong(
    measure: Any, tables: Any, length: int
) -> None:
    import torch

    samples = []
    for iteration in range(6):
        total = torch.zeros(length)
        for rank in range(4):
            one = torch.empty(length)
            measure._fill(one, tables.row(rank, iteration))
            total += one * (2 if rank == 3 else 1)
        found = measure._residuals(total, tables.reduced(iteration))
        assert len(found) == measure.SAMPLES_AT_ONCE
        assert found[0][0] < length / 8
        assert found[-1][0] > length * 7 / 8
        samples += [syndrome.ResidualSample(iteration, *one) for one in found]
    told = syndrome.decode(4, samples)
    assert told is not None
    assert (told.rank, told.what) == (3, "counted twice")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, -0.0])
def test_what_is_no_exact_number_is_reported_as_such(measure: Any, value: float) -> None:
    import torch

    data, row = torch.zeros(100), torch.zeros(pattern.M)
    data[42] = value
    assert measure._residuals(data, row) == [(42, 0.0)]


def test_a_right_sum_has_no_residuals(measure: Any, tables: Any) -> None:
    assert measure._residuals(tables.reduced(5).clone(), tables.reduced(5)) == []


def test_memory_is_checked_before_anybody_is_met(
    measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(measure, "device_of", lambda backend, local: torch.device("cuda", local))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 << 30, 80 << 30))
    order = measure.MeasureTask("nccl", 4 << 30, 1, 0, 5.0, "127.0.0.1", 1, "nobody listens there")
    with pytest.raises(
        RuntimeError, match=f"out of memory before the start: {4 << 30} of .* are needed"
    ):
        measure.measure(order, 0, 0, 2, lambda stage, iteration: None)


RANK = """
import json, sys, time
from check_nccl_allreduce.worker.measure import Task, reduce_all
import torch, torch.distributed as dist
rank, late, folder = int(sys.argv[1]), sys.argv[2] == "late", sys.argv[3]
until = time.monotonic() + (0 if late else 1000)
done = reduce_all(
    Task("gloo", 4096, 20, 5, 100.0, until=until),
    dist.FileStore(folder + "/store", 2), rank, 2,
    device=torch.device("cpu"), say=lambda *_: None,
)
print(json.dumps([len(done.times), done.verified, done.wrong]))
"""


def test_when_it_is_late_for_one_rank_all_end_with_the_same_iteration_and_it_is_timed(
    tmp_path: Path,
) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), when, str(tmp_path)],
            env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, when in enumerate(["early", "late"])
    ]
    assert [json.loads(one.communicate(timeout=100)[0]) for one in ranks] == [[1, 2, 0]] * 2
