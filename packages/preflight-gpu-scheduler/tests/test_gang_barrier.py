"""A gang's members in their binds: who is woken by what."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import pytest
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.allocation import Reserved, written
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.webhook.gang_start import GangBarrier, Waiting
from shapes import pod

MEMBERS = 4


def told(name: str, *, plan: str = "x", node_name: str = "") -> tuple[Pod, Reserved]:
    reserved = Reserved(
        number=1, node="n", ids=(0,), plan=plan, members=MEMBERS, first="m0", first_uid="uid-m0"
    )
    said = {names.RESERVED_ANNOTATION: written(reserved)}
    return pod(name, annotations=said, node_name=node_name), reserved


def rung(waiting: list[Waiting]) -> list[str]:
    """Who was woken since the last look."""
    found = [one for one in waiting if one.bell.is_set()]
    for one in found:
        one.bell = anyio.Event()
    return [one.pod.metadata.name for one in found]


def may(barrier: GangBarrier, waiting: list[Waiting], first: Pod | None = None) -> list[str]:
    return [one.pod.metadata.name for one in waiting if barrier.may_bind(one, first)]


@pytest.mark.parametrize("last", ["m0", "m3"])
def test_each_member_is_woken_once_however_many_there_are(last: str) -> None:
    async def body() -> None:
        barrier = GangBarrier()
        with ExitStack() as stack:
            waiting: list[Waiting] = []
            names_ = sorted((f"m{n}" for n in range(MEMBERS)), key=lambda one: one == last)
            for name in names_:
                assert may(barrier, waiting) == []
                assert rung(waiting) == []
                waiting.append(stack.enter_context(barrier.joined(*told(name))))
            assert may(barrier, waiting) == ["m0"]
            assert rung(waiting) == ["m0"]
            (first,) = (one for one in waiting if one.pod.metadata.name == "m0")
            barrier.bound(first)
            assert sorted(rung(waiting)) == sorted(names_)
            assert sorted(may(barrier, waiting)) == sorted(names_)
            barrier.bound(next(one for one in waiting if one is not first))
            assert rung(waiting) == []

    anyio.run(body)


def test_a_first_member_that_another_extender_bound_wakes_the_others_here() -> None:
    async def body() -> None:
        barrier = GangBarrier()
        with barrier.joined(*told("m1")) as one, barrier.joined(*told("m2")) as two:
            first, _ = told("m0", node_name="n")
            assert may(barrier, [one, two], first) == ["m1", "m2"]
            barrier.changed(first.key, first)
            assert rung([one, two]) == ["m1", "m2"]
            barrier.changed(two.pod.key, two.pod)
            assert rung([one, two]) == ["m2"]

    anyio.run(body)


def test_members_of_another_plan_and_those_that_left_are_not_counted() -> None:
    async def body() -> None:
        barrier = GangBarrier()
        with ExitStack() as stack:
            waiting = [stack.enter_context(barrier.joined(*told(f"m{n}"))) for n in range(3)]
            with barrier.joined(*told("m3", plan="y")):
                assert may(barrier, waiting) == []
            with barrier.joined(*told("m3")):
                assert may(barrier, waiting) == ["m0"]
            assert may(barrier, waiting) == []

    anyio.run(body)


def test_a_plan_that_nobody_waits_for_any_more_is_forgotten() -> None:
    async def body() -> None:
        barrier = GangBarrier()
        with barrier.joined(*told("m0")) as first:
            barrier.bound(first)
            assert may(barrier, [first]) == ["m0"]
        with barrier.joined(*told("m1")) as other:
            assert may(barrier, [other]) == []

    anyio.run(body)


def test_a_member_whose_bind_is_asked_for_twice_counts_once() -> None:
    async def body() -> None:
        barrier = GangBarrier()
        with ExitStack() as stack:
            waiting = [stack.enter_context(barrier.joined(*told(f"m{n}"))) for n in range(3)]
            with barrier.joined(*told("m2")):
                assert may(barrier, waiting) == []
                again = stack.enter_context(barrier.joined(*told("m3")))
                assert may(barrier, [*waiting, again]) == ["m0"]

    anyio.run(body)
