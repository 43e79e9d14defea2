"""Any history of extenders, controllers, users and kubelets, with requests lost, late or unanswered
and actors that die at any point.
"""

from __future__ import annotations

import pytest
from actors import Actor, Fate, binder, collector, explained, free_gpus, member, planner, sweep
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from preflight_gpu_scheduler.api.types import Lease
from preflight_gpu_scheduler.core.protocol import Request
from world import Key, World

NODES = ("node-a", "node-b")
SINGLE: dict[str, int] = {"one": 1, "two": 2, "more": 1}
GANG: dict[Key, tuple[str, tuple[int, ...]]] = {
    ("team", "g-0"): ("node-a", (1,)),
    ("team", "g-1"): ("node-b", (0,)),
}
OTHER: dict[Key, tuple[str, tuple[int, ...]]] = {
    ("team", "h-0"): ("node-b", (0,)),
    ("team", "h-1"): ("node-a", (1,)),
}
NAMES = [*SINGLE, *(name for _, name in (*GANG, *OTHER))]

fates = st.sampled_from([Fate.DONE] * 6 + [Fate.ANSWER_LOST, Fate.LOST, Fate.LATE])
names_ = st.sampled_from(NAMES)
behind = st.sampled_from([0, 0, 0, 1, 2, 5])


class Protocol(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.actors: list[Actor] = []
        self.late: list[Request] = []
        self.kept: list[Lease] = []  # as a mirror that is behind may show them

    @initialize()
    def pods_are_there(self) -> None:
        for name in NAMES:
            self.world.create_pod(name, gated=name not in SINGLE)

    def _start(self, actor: Actor | None) -> None:
        if actor is not None and not actor.finished:
            self.actors.append(actor)

    @rule(
        name=st.sampled_from(list(SINGLE)),
        node=st.sampled_from(NODES),
        back=behind,
        shown=st.booleans(),
        busy=st.frozensets(st.integers(0, 1), max_size=1),
    )
    def the_scheduler_asks_for_a_bind(
        self, name: str, node: str, back: int, shown: bool, busy: frozenset[int]
    ) -> None:
        pod = self.world.mirror(back)(("team", name)).pod
        if pod is not None and len(self.actors) < 5:
            self._start(
                binder(
                    self.world,
                    self.late,
                    pod,
                    node,
                    SINGLE[name],
                    back=back,
                    shown=shown,
                    busy=busy,
                )
            )

    @rule(name=st.sampled_from([name for _, name in (*GANG, *OTHER)]), back=behind)
    def the_scheduler_asks_for_a_members_bind(self, name: str, back: int) -> None:
        pod = self.world.mirror(back)(("team", name)).pod
        if pod is not None and len(self.actors) < 5:
            self._start(member(self.world, self.late, pod, back))

    @rule(which=st.sampled_from([GANG, OTHER]), back=behind)
    def a_controller_plans_a_gang(
        self, which: dict[Key, tuple[str, tuple[int, ...]]], back: int
    ) -> None:
        if len(self.actors) < 5:
            self._start(planner(self.world, self.late, which, back=back))

    @precondition(lambda self: self.world.leases or self.kept)
    @rule(data=st.data(), back=behind, over=st.booleans())
    def a_controller_looks_at_a_lease(self, data: st.DataObject, back: int, over: bool) -> None:
        lease = data.draw(st.sampled_from([*self.world.leases.values(), *self.kept[-3:]]))
        self.kept.append(lease)
        if len(self.actors) < 5:
            self._start(collector(self.world, self.late, lease, back=back, over=over))

    @precondition(lambda self: self.actors)
    @rule(n=st.integers(0, 9), which=st.integers(0, 3), fate=fates, steps=st.integers(1, 6))
    def an_actor_goes_on(self, n: int, which: int, fate: Fate, steps: int) -> None:
        actor = self.actors[n % len(self.actors)]
        actor.step(self.world, which, fate)
        for _ in range(steps - 1):
            if not actor.finished:
                actor.step(self.world, which, Fate.DONE)
        if actor.finished:
            self.actors.remove(actor)

    @precondition(lambda self: self.actors)
    @rule(n=st.integers(0, 9), arrives=st.booleans())
    def an_actor_dies(self, n: int, arrives: bool) -> None:
        actor = self.actors.pop(n % len(self.actors))
        if arrives:
            self.late += [actor.pending[n] for n in actor.open]

    @precondition(lambda self: self.late)
    @rule(n=st.integers(0, 9))
    def a_late_request_arrives(self, n: int) -> None:
        self.world.perform(self.late.pop(n % len(self.late)))

    @rule(name=names_, what=st.sampled_from(["delete", "deleting", "end", "touch", "recreate"]))
    def a_pod_changes(self, name: str, what: str) -> None:
        key, world = ("team", name), self.world
        match what:
            case "delete":
                world.delete_pod(key)
            case "deleting":
                world.mark_deleting(key)
            case "end":
                world.end_pod(key)
            case "touch":
                world.touch_pod(key)
            case _:
                world.delete_pod(key)
                world.create_pod(name, gated=name not in SINGLE)

    @invariant()
    def no_gpu_is_two_pods(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """The rest of the history is fair: everybody finishes or is dead, the wire is empty, the
        controller sweeps.
        """
        world = self.world
        for running_one in self.actors:
            running_one.finish(world)
        for request in self.late:
            world.perform(request)
        sweep(world, over=False)
        assert not explained(world), "a lease outlives its pod"
        sweep(world, over=True)
        running = {pod.metadata.uid: pod for pod in world.running()}
        committed = {
            pod.metadata.uid
            for pod in world.pods.values()
            if (r := pod.reserved) is not None and r.first_uid in running
        }
        for lease in world.leases.values():
            pod, gpu = running.get(lease.holder), lease.gpu
            used = (
                pod is not None
                and pod.allocated is not None
                and gpu is not None
                and gpu[1] in pod.allocated.ids
            )
            assert used or lease.holder in committed, f"{lease.metadata.name} is locked for nobody"
        for pod in list(world.pods.values()):
            if (
                pod.metadata.uid in committed
                and not pod.bound
                and not pod.deleting
                and not pod.ended
            ):
                actor = member(world, [], pod, 0)
                assert actor is not None
                assert not actor.finish(world).error, "a member of a gang that runs cannot follow"
        for name, want in SINGLE.items():
            waiting = world.pods.get(("team", name))
            if waiting is None or waiting.bound or waiting.deleting or waiting.ended:
                continue
            for node in NODES:
                if free_gpus(world, (node,)) >= want:
                    assert not binder(world, [], waiting, node, want).finish(world).error, (
                        "a free GPU cannot be had"
                    )
                    break
        for gang in (GANG, OTHER):
            actor = planner(world, [], gang)
            if actor is not None and not actor.finish(world):
                for _ in range(len(gang)):
                    for key in gang:
                        told = member(world, [], world.pods[key], 0)
                        if told is not None:
                            told.finish(world)
                assert all(world.pods[key].bound for key in gang)


Protocol.TestCase.settings = settings(
    stateful_step_count=50, suppress_health_check=list(HealthCheck)
)
pytestmark = pytest.mark.component  # computes for seconds
TestHistories = pytest.mark.timeout(600)(Protocol.TestCase)
