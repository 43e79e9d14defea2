"""A gang's members in their binds: who is woken by what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import anyio
import pytest
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.allocation import Reserved, written
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.core.gangs import may_bind
from preflight_gpu_scheduler.webhook.gang_barrier import GangBarrier, Rung
from shapes import pod

MEMBERS = 4


def planned(name: str, *, plan: str = "x", node_name: str = "") -> tuple[Pod, Reserved]:
    reserved = Reserved(
        number=1, node="n", ids=(0,), plan=plan, members=MEMBERS, first="m0", first_uid="uid-m0"
    )
    said = {names.RESERVED_ANNOTATION: written(reserved)}
    return pod(name, annotations=said, node_name=node_name), reserved


class Room:
    """A barrier, and who waits before it."""

    def __init__(self) -> None:
        self.barrier = GangBarrier()
        self._here: list[tuple[Pod, Rung]] = []

    @contextmanager
    def joined(self, name: str, plan: str = "x") -> Iterator[None]:
        member, reserved = planned(name, plan=plan)
        with self.barrier.joined(plan, member.uid, reserved) as rung:
            place = member, rung
            self._here.append(place)
            try:
                yield
            finally:
                self._here.remove(place)

    def may(self, first: Pod | None = None) -> list[str]:
        here, begun = len(self.barrier.uids("x")), first is not None and first.bound
        members = (member for member, _ in self._here)
        return [member.name for member in members if may_bind(member, here, begun)]

    async def rung(self) -> list[str]:
        """Who was woken since the last look."""
        return [member.metadata.name for member, rung in self._here if await rung(0)]


@pytest.mark.parametrize("last", ["m0", "m3"])
def test_each_member_is_woken_once_however_many_there_are(last: str) -> None:
    async def body() -> None:
        room, first = Room(), planned("m0", node_name="n")[0]
        with ExitStack() as stack:
            members = sorted((f"m{n}" for n in range(MEMBERS)), key=lambda name: name == last)
            for name in members:
                assert room.may() == []
                assert await room.rung() == []
                stack.enter_context(room.joined(name))
            assert room.may() == ["m0"]
            assert await room.rung() == ["m0"]
            room.barrier.changed(first)
            assert sorted(await room.rung()) == sorted(members)
            assert sorted(room.may(first)) == sorted(members)
            room.barrier.changed(planned("m1", node_name="n")[0])
            assert await room.rung() == []

    anyio.run(body)


def test_a_first_member_that_another_extender_bound_wakes_the_others_here() -> None:
    async def body() -> None:
        room, first = Room(), planned("m0", node_name="n")[0]
        with room.joined("m1"), room.joined("m2"):
            assert room.may(first) == ["m1", "m2"]
            room.barrier.changed(first)
            assert await room.rung() == ["m1", "m2"]

    anyio.run(body)


def test_members_of_another_plan_and_those_that_left_are_not_counted() -> None:
    room = Room()
    with room.joined("m0"), room.joined("m1"), room.joined("m2"):
        with room.joined("m3", plan="y"):
            assert len(room.barrier.uids("x")) == 3
        with room.joined("m3"):
            assert room.may() == ["m0"]
        assert room.may() == []


def test_a_plan_that_nobody_waits_for_any_more_is_forgotten() -> None:
    room = Room()
    with room.joined("m0"), room.joined("m1"), room.joined("m2"):
        pass
    with room.joined("m3"):
        assert room.may() == []


def test_a_member_whose_bind_is_asked_for_twice_counts_once() -> None:
    room = Room()
    with room.joined("m0"), room.joined("m1"), room.joined("m2"), room.joined("m2"):
        assert room.may() == []
        with room.joined("m3"):
            assert room.may() == ["m0"]
