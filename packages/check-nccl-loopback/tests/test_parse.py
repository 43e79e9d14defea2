"""Every era of nccl-tests is read alike, and nothing that it could print makes the
reader stumble.
"""

from __future__ import annotations

from dataclasses import replace

import documents
import pytest
from check_nccl_loopback.measurement import read
from check_nccl_loopback.parse import parse
from documents import GIB, MIB
from hypothesis import given
from hypothesis import strategies as st

SIZES = {"oldest": 128 * MIB}
SPEEDS = {"oldest": 202.11}


@pytest.mark.parametrize("era", documents.EVERY_ERA)
def test_the_row_is_found_in_every_era(era: str) -> None:
    size = SIZES.get(era, 8 * GIB)
    result = read(documents.EVERY_ERA[era], "", 0, size)
    assert (result.busbw, result.wrong, result.right) == (SPEEDS.get(era, 479.28), 0, True)


def test_the_version_is_told_where_the_era_tells_it() -> None:
    assert parse(documents.NEWEST).version == "2.17.6"
    assert parse(documents.OLDEST).version == ""


@pytest.mark.parametrize("status", [1, 7])
def test_wrong_elements_are_counted_whatever_the_exit_status_of_the_era(status: int) -> None:
    result = read(documents.WRONG, "", status, 8 * GIB)
    assert (result.wrong, result.right, result.busbw) == (12, False, 479.28)


def test_the_oldest_era_tells_wrong_elements_in_its_tail_only() -> None:
    assert read(documents.OLDEST_WRONG, "", 1, 128 * MIB).wrong == 3
    assert read(documents.OLDEST_CHECKED, "", 0, 128 * MIB).wrong == 0


def test_what_was_not_compared_is_not_right() -> None:
    result = read(documents.NOT_COMPARED, "", 0, 8 * GIB)
    assert (result.wrong, result.right) == (None, False)


def test_the_average_over_sizes_is_never_the_measurement() -> None:
    sweep = documents.SINCE_2_13.replace("479.115", "52.9753")
    assert read(sweep, "", 0, 8 * GIB).busbw == 479.28


def test_a_size_that_was_not_run_has_no_result() -> None:
    result = read(documents.SINCE_2_13, "", 0, GIB)
    assert (result.busbw, result.error, result.too_big) == (None, None, False)


def test_a_reduced_size_is_too_big_even_where_the_reduced_one_ran() -> None:
    assert read(documents.REDUCED, "", 0, 64 * GIB).too_big


def test_a_failing_status_spoils_a_row_without_wrong_elements() -> None:
    output = (
        documents.SINCE_2_13
        + "HCA-28: Test NCCL failure common.cu:1204 'unhandled cuda error (run with …) / '\n"
    )
    result = read(output, "", 3, 8 * GIB)
    assert result.busbw is None
    assert result.error is not None
    assert result.error.code == "NCCL_CUDA_ERROR"


def test_a_tool_that_hung_has_shown_nothing() -> None:
    result = read(documents.SINCE_2_13, "", -9, 8 * GIB, timed_out=True)
    assert (result.timed_out, result.busbw) == (True, None)


words = st.sampled_from(
    [
        *documents.ROW_13.split(),
        "N/A",
        "nan",
        "inf",
        "-1",
        "1e999",
        "2025-10-17",
        "09:12:44",
        "#",
        "0:",
        "[1,0]<stdout>:",
        "\n",
    ]
)


@given(
    st.one_of(st.text(), st.lists(words, max_size=60).map(" ".join)),
    st.integers(-15, 255),
    st.booleans(),
)
def test_no_output_makes_the_reader_raise(output: str, status: int, timed_out: bool) -> None:
    result = read(output, output, status, 8 * GIB, timed_out=timed_out)
    assert result.busbw is None or result.busbw >= 0


@given(st.data())
def test_lines_of_nccl_between_the_tool_s_own_change_nothing(data: st.DataObject) -> None:
    lines = documents.SINCE_2_13.splitlines()
    noise = st.sampled_from(
        ["NCCL version 2.29.3+cuda13.1", "gpu47:1:2 [0] NCCL INFO Channel 00/16 : 0 1 2 3", ""]
    )
    for _ in range(data.draw(st.integers(0, 5))):
        lines.insert(data.draw(st.integers(0, len(lines))), data.draw(noise))
    assert replace(parse("\n".join(lines)), library="") == parse(documents.SINCE_2_13)
