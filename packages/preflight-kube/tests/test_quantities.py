from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_kube.api.quantities import (
    UNIT,
    fractional_cpu,
    parse_quantity,
    quantity_text,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("500m", Fraction(1, 2)), ("1Gi", 2**30), ("1.5Ki", 1536), ("1e3", 1000), ("1E3", 1000), ("2E", 2 * 10**18),
        ("-1", -1), ("+2", 2), (".5", Fraction(1, 2)), ("5.", 5), ("100n", Fraction(1, 10**7)), ("1e-3", Fraction(1, 1000)),
    ],
)  # fmt: skip
def test_reads_what_kubernetes_reads(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value * UNIT


@pytest.mark.parametrize("text", ["", "two", "1 Gi", "1gi", "0x1", "1e", "--1", "1Gi2", "１"])
def test_refuses_the_rest_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a quantity; write e\.g\. 8"):
        parse_quantity(text)


@given(st.integers(0, 10**18))
def test_whole_thousandths_survive_the_way_through_text(millis: int) -> None:
    assert parse_quantity(quantity_text(millis * UNIT // 1000)) == millis * UNIT // 1000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8, "8"),
        (Fraction(3, 2), "1500m"),
        (10**9, "1G"),
        (2**30, "1073741824"),
        (0, "0"),
        (1500, "1500"),
    ],
)
def test_writes_as_the_api_server_does(value: int, text: str) -> None:
    assert quantity_text(int(value * UNIT)) == text


@given(st.integers(0, 1000 * UNIT))
def test_a_fractional_cpu_is_never_whole_and_never_more(nanos: int) -> None:
    cut = fractional_cpu(nanos)
    assert cut <= nanos
    assert cut == 0 or cut % UNIT


def test_what_is_finer_than_nano_is_rounded_up() -> None:
    assert parse_quantity("0.1n") == 1


def test_no_amount_is_beyond_what_other_numbers_can_hold() -> None:
    most = (2**63 - 1) * UNIT
    assert (parse_quantity("1e400"), parse_quantity("-" + "9" * 30)) == (most, -most)
    assert parse_quantity("9223372036854775807") == most
