"""Conditions: the time moves with the status alone, and what others wrote stays."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from preflight_kube.api.conditions import Condition, find, merge

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
TYPES = st.sampled_from(["Ready", "Healthy", "Deleting", "Other"])
STATUS = st.sampled_from(["True", "False", "Unknown"])


def condition(
    type_: str, status: Any = "True", reason: str = "R", message: str = "", generation: int = 0
) -> Condition:
    return Condition(
        type=type_, status=status, reason=reason, message=message, observed_generation=generation
    )


EXISTING = st.lists(
    st.builds(
        lambda type_, status, reason, more: {
            "type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": THEN, **more
        },
        TYPES, STATUS, st.sampled_from(["R", "S"]), st.sampled_from([{}, {"lastProbeTime": THEN}]),
    ),
    unique_by=lambda one: str(one["type"]),
)  # fmt: skip
WANTED = st.lists(
    st.builds(
        condition,
        TYPES,
        STATUS,
        st.sampled_from(["R", "S"]),
        st.sampled_from(["", "m"]),
        st.integers(0, 2),
    ),
    unique_by=lambda one: one.type,
)


@given(EXISTING, WANTED)
def test_times_move_with_the_status_and_others_stay_as_they_were(
    existing: list[dict[str, Any]], wanted: list[Condition]
) -> None:
    merged = merge(existing, wanted, NOW)
    before = {one["type"]: one for one in existing}
    asked = {one.type: one for one in wanted}
    assert [one["type"] for one in merged] == [
        *before,
        *(type_ for type_ in asked if type_ not in before),
    ]
    for one in merged:
        type_ = one["type"]
        if type_ not in asked:
            assert one == before[type_]
            continue
        found = find(merged, type_)
        assert found is not None
        assert (found.status, found.reason, found.message) == (
            asked[type_].status, asked[type_].reason, asked[type_].message
        )  # fmt: skip
        same = type_ in before and before[type_]["status"] == found.status
        assert found.last_transition_time == (THEN if same else NOW)


@given(EXISTING, WANTED)
def test_what_was_merged_once_is_not_written_again(
    existing: list[dict[str, Any]], wanted: list[Condition]
) -> None:
    once = merge(existing, wanted, THEN)
    assert merge(once, wanted, NOW) == once


def test_one_that_cannot_be_read_is_none_and_gets_a_time_when_it_is_written() -> None:
    broken: list[dict[str, Any]] = [
        {"type": "Ready", "status": 5},
        {"type": "Old", "status": "True"},
    ]
    assert find(broken, "Ready") is None
    assert find(broken, "Absent") is None
    merged = merge(broken, [condition("Ready"), condition("Old")], NOW)
    assert [one["lastTransitionTime"] for one in merged] == [NOW, NOW]
