"""Any history in which somebody deletes or changes leases, claims and nodes, or the namespace of
all locks, statuses are lost and dealt anew, and the cluster is restored from an old backup: no GPU
is two pods', and what was lost is made again.

One extender at a time, with what it keeps in memory, over mirrors that are behind; a controller
over others. When the extender dies its requests have arrived, or never will.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from actors import Actor, Fate, arrived, explained
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mirrors import Kind, Mirrors
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.gpu_node_status import InventoryStatus, RawStatus
from preflight_gpu_scheduler.api.types import Metadata
from preflight_gpu_scheduler.core.filter_prioritize import own_ids
from preflight_gpu_scheduler.core.gangs import Assignment, acquire, tell
from preflight_gpu_scheduler.core.ledger import LeaseState, judge
from preflight_gpu_scheduler.core.protocol import Request, Steps, collect, relock
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot
from preflight_gpu_scheduler.node.status import Facts, status
from shapes import claim, node
from world import World

NODES = ("a", "b")
GPUS = ("A", "B", "C")
SINGLE = {"one": 1, "two": 2, "more": 1}
GANG = {"g-0": "a", "g-1": "b"}
PODS = [*SINGLE, *GANG]
WATCHED: tuple[Kind, ...] = ("pod", "lease", "status")
fates = st.sampled_from([Fate.DONE] * 6 + [Fate.ANSWER_LOST, Fate.LOST, Fate.LATE])


class Losses(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(lawless=True)
        self.world.events["status"] = []
        self.statuses = dict.fromkeys(NODES, InventoryStatus())
        self.containers: dict[tuple[str, str], str] = {}  # by node and UUID, uids of pods
        self.unlocked: set[str] = set()  # uids of pods whose lease was lost
        self.forgotten: set[str] = set()  # uids that nobody of ours has seen since they vanished
        self.backups: list[tuple[Any, Any]] = []
        self.claims = {name: SINGLE.get(name, 1) for name in PODS}
        self.late: list[Request] = []
        self.seen: dict[tuple[str, str], int] = {}
        self.extender, self.controller = self._started("extender"), self._started("controller")
        self.binds: list[Actor] = []
        self.others: list[Actor] = []

    @initialize()
    def pods_are_there_and_one_gpu_of_each_node_is_not(self) -> None:
        for name in PODS:
            self.world.create_pod(name, gated=name in GANG)
        for where in NODES:
            self._report(where, GPUS[1:], pods=True)

    def _report(self, where: str, listed: tuple[str, ...], *, pods: bool) -> None:
        """The node's agent writes what it sees. ``listed``: GPUs in the order of the bus."""
        found = [
            Facts(
                uuid=(uuid := f"GPU-{where}-{gpu}"),
                pci_bus_id=f"0000:{n:02x}:00.0",
                processes=int((where, uuid) in self.containers),
            )
            for n, gpu in enumerate(listed)
        ]
        shown = self.world.pods.values() if pods else ()
        leases = {n: self.world.leases.get(names.lease_name(where, n)) for n in range(64)}
        told = status(
            self.statuses[where],
            found,
            {},
            shown,
            where,
            holders={n: lease.holder for n, lease in leases.items() if lease is not None},
            observed=f"t{len(self.world.events['status'])}",
        )
        self.statuses[where] = told
        raw = RawStatus(
            metadata=Metadata(name=where), status=msgspec.Raw(msgspec.json.encode(told))
        )
        self.world.events["status"].append((raw, False))

    def _started(self, who: str) -> Mirrors:
        """A process that has listed everything."""
        made, world = Mirrors(count_resource=""), self.world
        made.show("node", *(node(name) for name in NODES))
        made.show("lease", *world.leases.values())
        made.show("pod", *world.pods.values())
        newest = {raw.metadata.name: raw for raw, _ in world.events["status"]}
        made.show("status", *newest.values())
        self.seen |= {(who, kind): len(world.events[kind]) for kind in WATCHED}
        return made

    def _deliver(self, who: str, kind: Kind, most: int) -> None:
        mirrors: Mirrors = getattr(self, who)
        first = self.seen[who, kind]
        events = self.world.events[kind][first : first + most]
        for found, deleted in events:
            mirrors.show(kind, found, deleted=deleted)
        self.seen[who, kind] = first + len(events)

    def _start(self, steps: Any, mirrors: Mirrors) -> None:
        actor = Actor(steps, self.late, told=mirrors.state.record)
        if not actor.finished:
            (self.binds if mirrors is self.extender else self.others).append(actor)

    # what our processes do

    @rule(name=st.sampled_from(PODS), where=st.sampled_from(NODES))
    def the_scheduler_asks_for_a_bind(self, name: str, where: str) -> None:
        state = self.extender.state
        pod = state.pod(("team", name))
        if pod is None or len(self.binds) > 4:
            return
        gang = name in GANG
        if gang and (pod.reserved is None or not arrived(pod, list(state.pods.store.values()))):
            return
        if self.claims[name] == 0:
            return  # deleted
        wanted = claim(self.claims[name], gang="g" if gang else "")
        self._start(self.extender.extender.placing(pod, where, wanted), self.extender)

    @rule(name=st.sampled_from(PODS), where=st.sampled_from(NODES), starts=st.booleans())
    def a_pod_is_bound_at_once(self, name: str, where: str, starts: bool) -> None:
        before = list(self.binds)
        self._deliver("extender", "pod", 1000)
        self.the_scheduler_asks_for_a_bind(name, where)
        for actor in self.binds:
            if actor not in before:
                actor.finish(self.world)
        self._done()
        if starts:
            self.a_pod_changes(name, "start")

    @rule()
    def the_gang_is_reserved_at_once(self) -> None:
        for who, step in (
            ("extender", self.the_extender_locks_what_the_gang_is_to_have),
            ("controller", self.the_controller_tells_the_gang),
        ):
            before = [*self.binds, *self.others]
            for kind in WATCHED:
                self._deliver(who, kind, 1000)
            step()
            for actor in (*self.binds, *self.others):
                if actor not in before:
                    actor.finish(self.world)
            self._done()

    @rule()
    def the_extender_locks_what_the_gang_is_to_have(self) -> None:
        state = self.extender.state
        plan = []
        for name, where in GANG.items():
            pod, free = state.pod(("team", name)), self.extender.free(where)
            if pod is None or not pod.open or not free or state.held_by(pod.metadata.uid):
                return
            ids = (min(free),)
            known = state.uuids(where)
            plan.append(Assignment(pod=pod, node=where, ids=ids, uuids=known))
        for one in plan:
            state.hold(one.node, one.ids, one.pod)
        self._start(self._locking(plan, state), self.extender)

    def _locking(self, plan: list[Assignment], state: GpuSnapshot) -> Steps[str]:
        try:
            return (yield from acquire(plan, state.look))
        finally:
            for one in plan:
                state.let_go(one.node, one.pod)

    @rule()
    def the_controller_tells_the_gang(self) -> None:
        state = self.controller.state
        plan = []
        for name in GANG:
            pod = state.pod(("team", name))
            held = state.held_by(pod.metadata.uid) if pod is not None else []
            own = own_ids(held, pod) if pod is not None else {}
            if pod is None or not pod.open or len(own) != 1:
                return
            ((where, ids),) = own.items()
            plan.append(Assignment(pod=pod, node=where, ids=ids))
        self._start(tell(plan), self.controller)

    @rule(data=st.data(), over=st.booleans())
    def the_controller_looks_at_a_lease(self, data: st.DataObject, over: bool) -> None:
        state = self.controller.state
        if state.leases.store and len(self.others) < 5:
            self._collect(data.draw(st.sampled_from(_names(state))), over)

    def _collect(self, name: str, over: bool) -> None:
        state = self.controller.state
        lease = state.lease(name)
        assert lease is not None
        found = judge(lease, state.look(lease.pod or ("", "")), over=over)
        if found not in {LeaseState.HELD, LeaseState.LINGERING}:
            self._start(collect(lease, state.look, over=over), self.controller)

    @rule(where=st.sampled_from(NODES))
    def the_controller_makes_lost_leases_again(self, where: str) -> None:
        state = self.controller.state
        for pod, *_ in list(state.unlocked(where)):
            if len(self.others) < 5:
                self._start(relock(pod, state.look), self.controller)

    @precondition(lambda self: self.binds or self.others)
    @rule(n=st.integers(0, 9), which=st.integers(0, 3), fate=fates, steps=st.integers(1, 6))
    def somebody_goes_on(self, n: int, which: int, fate: Fate, steps: int) -> None:
        every = [*self.binds, *self.others]
        actor = every[n % len(every)]
        for number in range(steps):
            if not actor.finished:
                actor.step(self.world, which, Fate.DONE if number else fate)
        self._done()

    def _done(self) -> None:
        self.binds = [one for one in self.binds if not one.finished]
        self.others = [one for one in self.others if not one.finished]

    @precondition(lambda self: self.late)
    @rule(n=st.integers(0, 9))
    def a_late_request_arrives(self, n: int) -> None:
        self.world.perform(self.late.pop(n % len(self.late)))

    @rule(
        who=st.sampled_from(["extender", "extender", "controller"]),
        kinds=st.sets(st.sampled_from(WATCHED), min_size=1),
        most=st.sampled_from([1, 3, 1000, 1000]),
    )
    def watches_tell(self, who: str, kinds: set[Kind], most: int) -> None:
        for kind in sorted(kinds):
            self._deliver(who, kind, most)

    @rule(arrive=st.booleans())
    def another_extender_takes_over(self, arrive: bool) -> None:
        for actor in self.binds:
            self.late += [actor.pending[n] for n in actor.open]
        for request in self.late if arrive else ():
            self.world.perform(request)
        self.binds, self.late[:] = [], []
        self.extender = self._started("extender")
        self.forgotten |= set(self.containers.values()) - self._bound()

    # what befalls them

    @precondition(lambda self: self.world.leases)
    @rule(data=st.data())
    def somebody_deletes_a_lease(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.leases)))
        self.unlocked.add(self.world.leases[name].holder)
        self.world.lose_lease(name)

    @rule()
    def somebody_deletes_the_namespace_of_the_locks(self) -> None:
        self.unlocked |= {lease.holder for lease in self.world.leases.values()}
        self.world.lose_locks()

    @rule()
    def the_namespace_of_the_locks_is_made_again(self) -> None:
        self.world.there = True

    @precondition(lambda self: self.world.leases)
    @rule(data=st.data(), what=st.sampled_from(["holder", "another holder", "number", "time"]))
    def somebody_changes_a_lease(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.leases)))
        self.unlocked.add(self.world.leases[name].holder)
        holders = sorted(pod.metadata.uid for pod in self.world.pods.values())
        specs: dict[str, dict[str, Any]] = {
            "holder": {"holder_identity": ""},
            "another holder": {"holder_identity": holders[-1] if holders else "nobody"},
            "number": {"lease_transitions": 7},
            "time": {"renew_time": "2020-01-01T00:00:00.000000Z"},
        }
        self.world.change_lease(name, **specs[what])

    @rule(name=st.sampled_from(PODS), count=st.integers(0, 2))
    def somebody_deletes_a_claim_or_makes_it_again_for_another_number(
        self, name: str, count: int
    ) -> None:
        self.claims[name] = count

    @rule(where=st.sampled_from(NODES), who=st.sampled_from(["extender", "controller"]))
    def a_node_is_deleted_and_registers_again(self, where: str, who: str) -> None:
        mirrors: Mirrors = getattr(self, who)
        mirrors.show("node", node(where), deleted=where in mirrors.state.nodes.store)

    @rule()
    def somebody_makes_a_backup(self) -> None:
        self.backups.append((dict(self.world.pods), dict(self.world.leases)))

    @precondition(lambda self: self.backups)
    @rule(n=st.integers(0, 9), leases=st.booleans())
    def the_cluster_is_restored_from_an_old_backup(self, n: int, leases: bool) -> None:
        """``leases``: whether these are in the backup. Requests under way have failed; kubelets
        end what runs where a restored pod belongs, and the rest when they come to it.
        """
        pods, locks = self.backups[n % len(self.backups)]
        self.binds, self.others, self.late[:] = [], [], []
        self.unlocked |= {lease.holder for lease in self.world.leases.values()}
        self.world.restore(pods, locks if leases else {})
        for pod in self.world.running():
            self.unlocked.add(pod.metadata.uid)
            for uuid in pod.uuids:
                if self.containers.get((pod.spec.node_name, uuid)) != pod.metadata.uid:
                    self.containers.pop((pod.spec.node_name, uuid), None)

    @rule(where=st.sampled_from(NODES), listed=st.permutations(GPUS), remembers=st.booleans())
    def a_status_is_lost_and_the_node_boots_in_another_order(
        self, where: str, listed: list[str], remembers: bool
    ) -> None:
        """``remembers``: whether the agent takes its ids from pods, as it does."""
        self.statuses[where] = InventoryStatus()
        self._report(where, tuple(listed), pods=remembers)

    @rule(where=st.sampled_from(NODES))
    def an_agent_reports(self, where: str) -> None:
        listed = [one.uuid[-1] for one in self.statuses[where].devices]
        self._report(where, tuple(listed), pods=True)

    @rule(
        name=st.sampled_from(PODS),
        what=st.sampled_from(["start", "start", "delete", "deleting", "end", "recreate"]),
    )
    def a_pod_changes(self, name: str, what: str) -> None:
        key, world = ("team", name), self.world
        pod = world.pods.get(key)
        match what:
            case "start":
                world.start_pod(key)
                if pod is not None and pod.bound and not pod.ended:
                    for uuid in pod.uuids:
                        self.containers[pod.spec.node_name, uuid] = pod.metadata.uid
            case "delete":
                world.delete_pod(key)  # by force: its containers run on
            case "deleting":
                world.mark_deleting(key)
            case "end":
                if pod is not None:
                    self._stop(pod.metadata.uid)
                world.end_pod(key)
            case _:
                world.delete_pod(key)
                world.create_pod(name, gated=name in GANG)

    def _stop(self, uid: str) -> None:
        self.containers = {place: who for place, who in self.containers.items() if who != uid}

    @rule()
    def kubelets_end_containers_of_pods_that_are_gone(self) -> None:
        for uid in set(self.containers.values()) - self._bound():
            self._stop(uid)

    def _bound(self) -> set[str]:
        return {pod.metadata.uid for pod in self.world.pods.values() if pod.bound}

    # what must hold

    @invariant()
    def no_gpu_is_two_pods(self) -> None:
        self.world.check()
        for pod in self.world.running():
            for uuid in pod.uuids:
                user = self.containers.get((pod.spec.node_name, uuid), pod.metadata.uid)
                forgotten = user in self.unlocked & self.forgotten
                assert user == pod.metadata.uid or forgotten, f"{user} runs on {uuid}"

    def teardown(self) -> None:
        """The rest is fair: everything ends, arrives, is told and reported."""
        world, state = self.world, self.controller.state
        world.there = True
        self.kubelets_end_containers_of_pods_that_are_gone()
        for actor in (*self.binds, *self.others):
            actor.finish(world)
        for request in self.late:
            world.perform(request)
        for where in NODES:
            self.an_agent_reports(where)
        for turn in range(6):  # from the fourth on reservations are over
            self.controller.now += 30
            for kind in WATCHED:
                self._deliver("controller", kind, len(world.events[kind]))
            self.others = []
            for name in _names(state):
                self._collect(name, over=turn > 2)
            for where in NODES:
                for pod, *_ in list(state.unlocked(where)):
                    self._start(relock(pod, state.look), self.controller)
            for actor in self.others:
                actor.finish(world)
        assert not explained(world), "a lease outlives its pod, or its reservation"
        for pod in world.running():
            assert pod.allocated is not None
            for gpu in pod.allocated.ids:
                lease = world.leases.get(names.lease_name(pod.allocated.node, gpu))
                assert lease is not None, "a lost lease is not made again"
                # A plan that was under way when the locks were lost may have locked it meanwhile:
                # nobody is bound by that, and it is collected when the other one is bound elsewhere
                # or its reservation is over, neither of which comes here.
                others = {one.metadata.uid: one for one in world.pods.values()}
                assert lease.holder == pod.metadata.uid or not others[lease.holder].bound


def _names(state: GpuSnapshot) -> list[str]:
    return sorted({lease.metadata.name for lease in state.leases.store.values()})


Losses.TestCase.settings = settings(
    stateful_step_count=80,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
pytestmark = pytest.mark.component  # computes for seconds
TestLosses = pytest.mark.timeout(600)(Losses.TestCase)
