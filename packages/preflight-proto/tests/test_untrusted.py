"""Documents from strangers: whatever their bytes are, a reader ends with a sentence."""

from __future__ import annotations

import pytest
from preflight_proto.result import from_termination
from preflight_proto.roster import decode_roster
from preflight_proto.stamp import ContractError, decode_stamp

LEVELS = (900, 1_100, 100_000)


def nested(levels: int, fields: str = '"v":1') -> str:
    return "{" + fields + ',"x":' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize("decode", [decode_stamp, decode_roster])
@pytest.mark.parametrize("levels", LEVELS)
def test_what_is_nested_is_refused_however_deep(decode: object, levels: int) -> None:
    with pytest.raises(ContractError):
        decode(nested(levels))  # type: ignore[operator]


@pytest.mark.parametrize("levels", LEVELS)
def test_a_result_that_is_nested_is_judged_by_the_exit_status_or_read(levels: int) -> None:
    result = from_termination("dcgm-diag", nested(levels), 1)
    assert (result.outcome, result.code) == ("failed", "EXIT_1")


@pytest.mark.parametrize(
    "text", ["x" * 300_000, '{"v":' + "9" * 5_000 + "}", '{"v":1e999}', "\ud800", "[]", "null", ""]
)
def test_what_is_too_long_or_no_document_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        decode_stamp(text)
