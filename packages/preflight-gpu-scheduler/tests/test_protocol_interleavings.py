"""Small worlds, every interleaving, every place for one fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from actors import Actor, Fate, arrived, chooser, explained, own_leases, reserve, sweep, uuids
from explore import explore
from preflight_gpu_scheduler.api.allocation import Reserved, written
from preflight_gpu_scheduler.api.names import RESERVED_ANNOTATION, lease_name
from preflight_gpu_scheduler.core.bind import NOT_COMMITTED, BindJob, bind
from preflight_gpu_scheduler.core.gangs import Assignment, acquire, tell
from preflight_gpu_scheduler.core.protocol import Steps, collect
from world import Key, World

Start = Callable[[World], Callable[[], Steps[Any]] | None]
pytestmark = [pytest.mark.timeout(600), pytest.mark.component]  # computes for seconds
NODE = "node-a"


def key(name: str) -> Key:
    return ("team", name)


def binder(
    name: str, want: int, busy: frozenset[int] = frozenset(), back: int = 0, *, shown: bool = True
) -> Start:
    """An extender that binds ``name``; it may start at any time, and sees then what its mirror
    shows.
    """

    def start(world: World) -> Callable[[], Steps[Any]] | None:
        mirror = world.mirror(back)
        pod = mirror(key(name)).pod
        if pod is None or pod.bound:
            return None
        job = BindJob(
            pod=pod,
            node=NODE,
            own=own_leases(world.leases, pod, NODE) if shown else {},
            uuids=uuids(NODE),
        )
        return lambda: bind(job, chooser(want, busy), mirror)

    return start


def member(name: str) -> Start:
    def start(world: World) -> Callable[[], Steps[Any]] | None:
        mirror = world.mirror(0)
        shown = [pod for one in world.past if (pod := mirror(one).pod) is not None]
        pod = mirror(key(name)).pod
        if pod is None or pod.bound or not arrived(pod, shown):
            return None
        job = BindJob(
            pod=pod,
            node=NODE,
            own=own_leases(world.leases, pod, NODE),
            uuids=uuids(NODE),
            gang=True,
        )
        return lambda: bind(job, chooser(1, frozenset()), mirror)

    return start


def planner(wanted: dict[str, int], back: int = 0) -> Start:
    def start(world: World) -> Callable[[], Steps[Any]] | None:
        mirror = world.mirror(back)
        plan = []
        for name, gpu in wanted.items():
            pod = mirror(key(name)).pod
            if pod is None or pod.bound or pod.reserved is not None:
                return None
            plan.append(Assignment(pod=pod, node=NODE, ids=(gpu,)))
        return lambda: reserve(plan, mirror)

    return start


def collector(gpu: int, *, over: bool, back: int = 0, of: dict[Key, int] | None = None) -> Start:
    def start(world: World) -> Callable[[], Steps[Any]] | None:
        lease = world.leases.get(lease_name(NODE, gpu))
        if lease is None:
            return None
        mirror = world.mirror(back, of)
        return lambda: collect(lease, mirror, over=over)

    return start


def nothing_is_locked_for_nobody(world: World) -> None:
    sweep(world, over=False)
    assert not explained(world)
    sweep(world, over=True)
    running = {pod.metadata.uid for pod in world.running()}
    begun = {
        pod.metadata.uid
        for pod in world.pods.values()
        if (r := pod.reserved) is not None and r.first_uid in running
    }
    assert all(lease.holder in running | begun for lease in world.leases.values())


def test_a_member_that_another_controller_has_told_meanwhile_keeps_its_lease() -> None:
    """One is slow, and its writes on the second member conflict; the other tells both of the same
    plan, and they are bound before the first one gives up.
    """
    world = World()
    for name in ("g-0", "g-1"):
        world.create_pod(name)

    def plan() -> list[Assignment]:
        pods = (world.pods[key(f"g-{gpu}")] for gpu in range(2))
        return [Assignment(pod=pod, node=NODE, ids=(gpu,)) for gpu, pod in enumerate(pods)]

    Actor(acquire(plan(), world.mirror(0)), []).finish(world)
    slow = Actor(tell(plan()), [])
    slow.step(world, 0, Fate.DONE)
    while not slow.finished:
        world.touch_pod(key("g-1"))
        slow.step(world, 0, Fate.DONE)
    assert not Actor(tell(plan()), []).finish(world)
    for name in ("g-0", "g-1"):
        steps = member(name)(world)
        assert steps is not None
        assert not Actor(steps(), []).finish(world).error
    assert slow.result
    world.check()
    assert len(world.leases) == 2


def test_two_extenders_for_one_pod_bind_it_once_with_one_set() -> None:
    world = World()
    world.create_pod("p")
    found = explore(
        world,
        [binder("p", 2), binder("p", 2, shown=False)],
        faults=1,
        at_end=nothing_is_locked_for_nobody,
    )
    assert found.ends


def test_two_extenders_for_one_pod_with_other_choices_and_a_pod_that_wants_what_one_gives_back() -> (
    None
):
    world = World()
    world.create_pod("p")
    world.create_pod("q")
    starts = [binder("p", 1), binder("p", 2, shown=False), binder("q", 1)]
    assert explore(world, starts, at_end=nothing_is_locked_for_nobody).ends


def test_a_stopped_extender_that_wakes_up_binds_nothing_that_was_given_away() -> None:
    world = World()
    world.create_pod("p")
    world.create_pod("q")
    starts = [binder("p", 1), collector(0, over=True), binder("q", 1, frozenset({1}))]
    assert explore(world, starts, faults=1, at_end=nothing_is_locked_for_nobody).ends


def test_a_retry_beside_a_reclaim_by_two_controllers() -> None:
    world = World()
    world.create_pod("p")
    starts = [
        binder("p", 1),
        binder("p", 1, back=1),
        collector(0, over=True),
        collector(0, over=True, back=1),
    ]
    assert explore(world, starts, at_end=nothing_is_locked_for_nobody).ends


def test_a_lease_of_a_number_that_was_taken_back_is_used_by_nobody() -> None:
    world = World()
    world.create_pod("p")
    starts = [binder("p", 1), binder("p", 1), collector(0, over=True), collector(0, over=False)]
    assert explore(world, starts, at_end=nothing_is_locked_for_nobody).ends


def test_a_pod_that_comes_again_under_its_name_is_another_pod() -> None:
    world = World()
    world.create_pod("p")
    world.create_pod("q")

    def again(now: World) -> None:
        now.delete_pod(key("p"))
        now.create_pod("p")

    starts = [
        binder("p", 1),
        binder("p", 1, back=1),
        collector(0, over=False, back=1),
        binder("q", 1, frozenset({1})),
    ]
    assert explore(world, starts, [again], at_end=nothing_is_locked_for_nobody).ends


@pytest.mark.parametrize("change", ["end_pod", "mark_deleting", "touch_pod", "delete_pod"])
def test_a_pod_that_changes_at_any_moment_of_its_binding(change: str) -> None:
    world = World()
    world.create_pod("p")
    world.create_pod("q")
    starts = [binder("p", 1), collector(0, over=True, back=1), binder("q", 1, frozenset({1}))]
    acts = [lambda now: getattr(now, change)(key("p"))]
    assert explore(world, starts, acts, at_end=nothing_is_locked_for_nobody).ends


def test_a_pod_that_goes_while_a_request_about_it_is_lost_or_late() -> None:
    world = World()
    world.create_pod("p")
    world.create_pod("q")
    acts = [lambda now: now.delete_pod(key("p"))]
    starts = [binder("p", 1), binder("q", 1, frozenset({1}))]
    assert explore(world, starts, acts, faults=1, at_end=nothing_is_locked_for_nobody).ends


def test_a_gang_is_bound_whole_or_not_at_all_while_its_reservation_is_taken_back() -> None:
    world = World()
    for name in ("g0", "g1"):
        world.create_pod(name, gated=True)
    world.create_pod("q")
    starts = [
        planner({"g0": 0, "g1": 1}),
        member("g0"),
        member("g1"),
        collector(1, over=True),
        binder("q", 1, frozenset({0})),
    ]
    assert explore(world, starts, at_end=nothing_is_locked_for_nobody).ends


def test_a_mirror_that_is_behind_about_the_first_member_takes_nothing_back_from_the_others() -> (
    None
):
    world = World()
    for name in ("g0", "g1"):
        world.create_pod(name, gated=True)
    starts = [
        planner({"g0": 0, "g1": 1}),
        member("g0"),
        member("g1"),
        collector(1, over=True, of={key("g0"): 2}),
    ]
    assert explore(world, starts, at_end=nothing_is_locked_for_nobody).ends


def test_a_gang_that_does_not_fit_whole_gives_everything_back_at_once() -> None:
    world = World()
    for name in ("g0", "g1"):
        world.create_pod(name, gated=True)
    q = world.create_pod("q")
    assert (
        not Actor(
            bind(
                BindJob(pod=q, node=NODE, own={}, uuids=uuids(NODE)),
                chooser(1, frozenset({0})),
                world.mirror(0),
            ),
            [],
        )
        .finish(world)
        .error
    )
    steps = planner({"g0": 0, "g1": 1})(world)
    assert steps is not None
    assert Actor(steps(), []).finish(world)
    assert {lease.holder for lease in world.leases.values()} == {q.metadata.uid}
    assert all(pod.gated for pod in world.pods.values() if pod.metadata.name != "q")


def test_nobody_is_bound_before_the_first_member_whatever_the_extender_believes() -> None:
    world = World()
    for name in ("g0", "g1"):
        world.create_pod(name, gated=True)
    steps = planner({"g0": 0, "g1": 1})(world)
    assert steps is not None
    assert not Actor(steps(), []).finish(world)
    pod = world.pods[key("g1")]
    job = BindJob(
        pod=pod, node=NODE, own=own_leases(world.leases, pod, NODE), uuids=uuids(NODE), gang=True
    )
    assert (
        Actor(bind(job, chooser(1, frozenset()), world.mirror(0)), []).finish(world).error
        == NOT_COMMITTED
    )
    assert not world.running()


def test_a_forged_reservation_without_leases_binds_nothing() -> None:
    world = World()
    world.create_pod("p")
    forged = Reserved(
        number=1, node=NODE, ids=(0,), plan="mine", members=1, first="p", first_uid="uid p#1"
    )
    pod = world.pods[key("p")]
    about = msgspec.structs.replace(
        pod.metadata, annotations={RESERVED_ANNOTATION: written(forged)}
    )
    job = BindJob(
        pod=msgspec.structs.replace(pod, metadata=about),
        node=NODE,
        own={},
        uuids=uuids(NODE),
        gang=True,
    )
    assert Actor(bind(job, chooser(1, frozenset()), world.mirror(0)), []).finish(world).error
    assert not world.running()


def test_a_gang_that_dies_at_any_point_of_its_plan_leaves_nothing_behind() -> None:
    world = World()
    for name in ("g0", "g1"):
        world.create_pod(name, gated=True)
    starts = [
        planner({"g0": 0, "g1": 1}),
        member("g0"),
        member("g1"),
        collector(0, over=True),
        collector(1, over=True),
    ]
    assert explore(world, starts, faults=1, at_end=nothing_is_locked_for_nobody).ends


def test_two_gangs_that_want_the_same_gpus_never_hold_half_each_in_the_end() -> None:
    world = World()
    for name in ("g0", "g1", "h0", "h1"):
        world.create_pod(name, gated=True)
    plans = [planner({"g0": 0, "g1": 1}), planner({"h0": 1, "h1": 0})]

    def one_of_them_is_reserved(now: World) -> None:
        told = {pod.metadata.name[0] for pod in now.pods.values() if pod.reserved is not None}
        holders = {
            pod.metadata.name[0]
            for pod in now.pods.values()
            for one in now.leases.values()
            if one.holder == pod.metadata.uid
        }
        assert told == holders
        assert len(told) == bool(now.counts.keys() & {lease_name(NODE, 0), lease_name(NODE, 1)})

    assert explore(world, plans, at_end=one_of_them_is_reserved).ends
