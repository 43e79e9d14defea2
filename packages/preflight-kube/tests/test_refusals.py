"""What the API server refuses is tried ever later, and its cause is known as soon
as it is certain.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_kube.errors import Conflict, Invalid, KubeError, PreconditionFailed
from preflight_kube.runtime.retry import Obstructed, Refusals

FORBIDDEN = KubeError(
    "create: the API server answered 403 (exceeded quota: none).", 403, "Forbidden"
)
INTERNAL = KubeError("patch: the API server answered 500 (failed calling webhook).", 500)


def tries(refusals: Refusals[str], error: KubeError, seconds: float) -> list[float]:
    """When it is tried, if each try comes as soon as it may."""
    now, at = 0.0, []
    while now < seconds:
        at.append(now)
        now += refusals.refused("one", error, now)
    return at


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_after_ten_tries_what_is_refused_for_good_is_tried_once_a_minute_at_most(
    jitter: float,
) -> None:
    at = tries(Refusals(lambda: jitter), FORBIDDEN, 3600)
    assert [at[1] < 2, at[2] < 4]
    assert all(later - sooner >= 60 for sooner, later in pairwise(at[9:]))
    assert all(later - sooner <= 75 for sooner, later in pairwise(at))


@pytest.mark.parametrize("error", [KubeError("no answer"), INTERNAL, KubeError("later", 429)])
def test_a_server_that_is_back_is_found_out_within_twenty_seconds_however_long_it_was_away(
    error: KubeError,
) -> None:
    at = tries(Refusals(lambda: 1.0), error, 3600)
    assert all(later - sooner <= 20 for sooner, later in pairwise(at))


@pytest.mark.parametrize(
    "error", [FORBIDDEN, Invalid("not valid", 422), Obstructed("somebody's", 409)]
)
def test_the_cause_of_what_is_refused_for_good_is_known_at_once(error: KubeError) -> None:
    refusals: Refusals[str] = Refusals(lambda: 0.0)
    refusals.refused("one", error, 0.0)
    assert refusals.cause("one")
    assert not refusals.cause("another")


@pytest.mark.parametrize(
    "error", [INTERNAL, Conflict("written", 409), PreconditionFailed("told", 422)]
)
def test_a_fault_that_may_pass_is_a_cause_when_it_has_not_passed_for_ten_tries(
    error: KubeError,
) -> None:
    refusals: Refusals[str] = Refusals(lambda: 0.0)
    for _ in range(9):
        refusals.refused("one", error, 0.0)
        assert not refusals.cause("one")
    refusals.refused("one", error, 0.0)
    assert refusals.cause("one")


@pytest.mark.parametrize("status", [0, 429, 503, 504])
def test_a_server_that_is_silent_or_asks_for_time_is_never_the_cause(status: int) -> None:
    refusals: Refusals[str] = Refusals(lambda: 0.0)
    for _ in range(100):
        refusals.refused("one", KubeError("later", status), 0.0)
    assert not refusals.cause("one")


def test_a_conflict_is_tried_again_at_once() -> None:
    assert Refusals[str](lambda: 1.0).refused("one", Conflict("written", 409), 0.0) < 0.2


def test_what_is_written_at_last_begins_anew() -> None:
    refusals: Refusals[str] = Refusals(lambda: 0.0)
    for _ in range(8):
        refusals.refused("one", FORBIDDEN, 0.0)
    assert refusals.left("one", 0.0) == 60
    refusals.done("one")
    assert (refusals.left("one", 0.0), refusals.cause("one"), len(refusals)) == (0, "", 0)
    assert refusals.refused("one", FORBIDDEN, 0.0) == 1


@given(st.text(max_size=3000))
def test_a_cause_is_short_and_printable_whatever_a_policy_says(said: str) -> None:
    refusals: Refusals[str] = Refusals(lambda: 0.0)
    refusals.refused("one", KubeError(said, 403), 0.0)
    assert len(refusals.cause("one")) <= 300
    assert refusals.cause("one").isprintable()
