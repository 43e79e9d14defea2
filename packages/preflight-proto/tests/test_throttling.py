"""The kernel's count of periods in which a container had no CPU left."""

from __future__ import annotations

from pathlib import Path

import pytest
from preflight_proto.check.throttling import Periods, part, read

V2 = "usage_usec 5\nuser_usec 3\nsystem_usec 2\nnr_periods 200\nnr_throttled 50\nthrottled_usec 900\n"
V1 = "nr_periods 200\nnr_throttled 50\nthrottled_time 900\n"


@pytest.mark.parametrize("text", [V2, V1])
def test_the_count_is_read_of_either_version(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert read([tmp_path / "absent", tmp_path]) == Periods(200, 50)


def test_a_group_without_the_count_is_passed_over(tmp_path: Path) -> None:
    for name, text in (("root", "usage_usec 5\n"), ("cpu", V1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpu.stat").write_text(text)
    assert read([tmp_path / "root", tmp_path / "cpu"]) == Periods(200, 50)


@pytest.mark.parametrize(
    "text", ["", "nr_periods\n", "nr_periods -1\nnr_throttled x\n", "nr_periods " + "9" * 50]
)
def test_what_is_no_count_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert read([tmp_path]) == Periods()


@pytest.mark.parametrize(
    ("before", "after", "of_the_time"),
    [
        (Periods(100, 10), Periods(200, 60), 0.5),
        (Periods(100, 10), Periods(100, 10), 0.0),  # no limit, or no time
        (Periods(200, 60), Periods(100, 10), 0.0),  # another group
        (Periods(0, 0), Periods(10, 12), 1.0),
    ],
)
def test_what_counts_is_what_came_between_two_reads(
    before: Periods, after: Periods, of_the_time: float
) -> None:
    assert part(before, after) == of_the_time
