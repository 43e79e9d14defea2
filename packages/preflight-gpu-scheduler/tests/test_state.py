"""What one process makes of what its mirrors tell."""

from __future__ import annotations

import msgspec
import pytest
from mirrors import Mirrors
from preflight_gpu_scheduler.api import messages, names
from shapes import lease, node, pod

replace = msgspec.structs.replace
FIRST, NEXT = "2026-01-01T00:00:00Z", "2026-01-01T00:00:30Z"


def reports(seen: Mirrors, observed: str | None) -> None:
    seen.status("a", *({"id": n, "uuid": f"GPU-{n}"} for n in range(8)), observed=observed)


def why(seen: Mirrors, after: float) -> str:
    """Why node ``a`` takes no pod, so many seconds later; empty where it takes some."""
    seen.now += after
    return seen.state.view("a").blocked


@pytest.fixture
def seen() -> Mirrors:
    found = Mirrors()
    found.show("node", node("a"))
    return found


def test_by_default_a_node_takes_no_pod_when_its_status_has_not_changed_for_ninety_seconds(
    seen: Mirrors,
) -> None:
    reports(seen, FIRST)
    assert why(seen, 0) == ""
    assert why(seen, 89) == ""
    assert why(seen, 2) == messages.STATUS_STALE
    assert seen.state.stale() == 1
    reports(seen, NEXT)
    assert why(seen, 0) == ""
    assert seen.state.stale() == 0


def test_a_lease_of_an_ended_or_vanished_pod_is_not_busy_and_one_made_by_hand_is(
    seen: Mirrors,
) -> None:
    reports(seen, FIRST)
    seen.show("pod", pod(phase="Failed"), pod("q"))
    seen.show("lease", lease("a", 0), lease("a", 1, "uid-q", name="q"))
    seen.show("lease", lease("a", 2, "uid-r", name="r"), lease("a", 3, "someone", number=0))
    assert seen.state.busy("a") == {1, 2, 3}
    seen.status("a", *({"id": n, "processes": 0} for n in range(8)), observed=NEXT)
    assert seen.state.busy("a") == {1, 3}, "the agent has seen that nothing runs there"


def test_a_status_that_says_no_time_as_one_written_by_hand_is_never_stale(
    seen: Mirrors,
) -> None:
    reports(seen, None)
    assert why(seen, 10_000) == ""
    seen.show("node", node("a"), deleted=True)
    seen.show("node", node("a"))
    assert (why(seen, 0), seen.state.stale()) == ("", 0)


def test_the_time_that_a_status_says_is_compared_with_no_clock(seen: Mirrors) -> None:
    reports(seen, "1999-01-01T00:00:00Z")
    assert why(seen, 60) == ""
    reports(seen, "1999-01-01T00:00:30Z")
    assert why(seen, 60) == ""


def test_a_pod_is_refused_for_a_claim_that_is_not_there_or_not_valid() -> None:
    seen = Mirrors()
    waiting = pod(annotations={names.CLAIM_ANNOTATION: "one"})
    assert seen.state.refusal_of(waiting) == messages.CLAIM_NOT_FOUND
    seen.claim("one", 0)
    assert seen.state.refusal_of(waiting) == messages.CLAIM_NOT_VALID
    seen.claim("one", 1)
    assert seen.state.refusal_of(waiting) == messages.COUNT_DIFFERS
    uncounted = Mirrors(count_resource="")
    uncounted.claim("one", 1)
    assert uncounted.state.refusal_of(waiting) == ""


def test_a_machine_that_comes_under_the_name_of_another_takes_no_pod_on_the_word_of_that_one(
    seen: Mirrors,
) -> None:
    reports(seen, FIRST)
    seen.show("node", node("a"), deleted=True)
    seen.show("node", node("a"))
    assert why(seen, 0) == messages.STATUS_STALE
    assert seen.state.stale() == 1
    reports(seen, NEXT)
    assert why(seen, 0) == ""


def test_a_node_whose_object_was_replaced_while_no_watch_saw_it_is_another_one(
    seen: Mirrors,
) -> None:
    reports(seen, FIRST)
    before = node("a")
    after = replace(before, metadata=replace(before.metadata, uid="another"))
    seen.show("node", after)
    assert why(seen, 0) == messages.STATUS_STALE
    reports(seen, NEXT)
    assert why(seen, 0) == ""


def test_a_node_without_a_status_that_is_assumed_to_have_sixteen_gpus_is_seen_so_by_all() -> None:
    seen = Mirrors(missing_node_status="assume16")
    assert seen.state.inventory("a") is None, "of a node that is not there nothing is assumed"
    seen.show("node", node("a"))
    assert len(seen.free("a")) == 16
    inventory = seen.state.inventory("a")
    assert inventory is not None
    assert len(inventory.devices) == 16
