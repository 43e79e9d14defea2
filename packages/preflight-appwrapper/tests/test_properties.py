"""What holds for every history: of a cluster that does as it likes, and of wrappers that somebody
has edited by hand.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from player import Player, bare_pod, job, playing, service, wrapper
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import PHASES, Pod, lenient, wrapper_from, written
from preflight_appwrapper.core.component_status import ComponentVerdict
from preflight_appwrapper.core.decode import ComponentObject
from preflight_appwrapper.core.plan import (
    CreateComponent,
    DeleteObject,
    Finalizer,
)
from preflight_appwrapper.core.reconcile import reconcile
from preflight_appwrapper.core.snapshot import Attempt, SeenComponent, WrapperSnapshot
from preflight_appwrapper.report.explain import explain, plan, plan_text, text

QUICK = {
    "admissionGracePeriodDuration": "4s",
    "warmupGracePeriodDuration": "8s",
    "failureGracePeriodDuration": "3s",
    "retryPausePeriodDuration": "3s",
    "forcefulDeletionGracePeriodDuration": "6s",
    "successTTLDuration": "20s",
}
COUNTED = {
    "FoundFailedPods",
    "FailedComponent",
    "InsufficientPodsReady",
    "CreateFailed",
    "PreflightFailed",
}


class Histories(RuleBasedStateMachine):
    """A cluster that fails, mends, loses answers and kills controllers; :meth:`World.check` holds
    at each version of it.
    """

    @initialize(limit=st.integers(-1, 3), delay=st.sampled_from(["0s", "5s"]))
    def begin(self, limit: int, delay: str) -> None:
        annotations = {
            **QUICK,
            "retryLimit": str(limit),
            "deletionOnFailureGracePeriodDuration": delay,
        }
        self.player = Player(wrapper(service(), job(), bare_pod(), annotations=annotations))
        self.limit = limit
        self.count, self.phase = 0, ""
        self.times: dict[str, str] = {}
        self.ended = ""
        self.suspended = False
        self.made = 0

    def alive(self) -> bool:
        return self.player.world.wrapper is not None

    def played(self) -> None:
        if not self.alive():
            return
        before = self.player.world.read()
        made = self.player.look()
        for action in made.actions:
            if isinstance(action, DeleteObject | CreateComponent):
                assert action.uid, "an action without the uid that it is meant for"
        if before.spec.suspend and before.status.phase in {"Running", "Resuming", "Suspended"}:
            assert not any(isinstance(one, CreateComponent) for one in made.actions)

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 2.0, 5.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.player.world.sleep(seconds)
        self.played()

    @rule()
    def a_few_looks(self) -> None:
        for _ in range(4):
            self.played()

    @rule(
        phase=st.sampled_from(["Running", "Failed", "Succeeded", "Pending"]),
        which=st.integers(0, 5),
    )
    def a_pod_changes(self, phase: str, which: int) -> None:
        pods = list(self.player.world.pods.values())
        if pods:
            one = pods[which % len(pods)]
            if one["status"]["phase"] not in {"Failed", "Succeeded"}:
                one["status"]["phase"] = phase

    @rule()
    def all_pods_run(self) -> None:
        for one in self.player.world.pods.values():
            if one["status"]["phase"] == "Pending":
                one["status"]["phase"] = "Running"

    @precondition(lambda self: ("batch/v1", "Job", "train") in self.player.world.objects)
    @rule(type_=st.sampled_from(["Complete", "Failed"]))
    def the_job_ends(self, type_: str) -> None:
        self.player.object()["status"] = {"conditions": [{"type": type_, "status": "True"}]}

    @rule()
    def all_ends_well(self) -> None:
        for one in self.player.world.pods.values():
            one["status"]["phase"] = "Succeeded"
        if ("batch/v1", "Job", "train") in self.player.world.objects:
            self.the_job_ends(type_="Complete")

    @rule(sick=st.booleans())
    def a_node_is_marked(self, sick: bool) -> None:
        self.player.world.nodes = {"node-a": frozenset({"nvidia.com/gpu"})} if sick else {}

    @rule(value=st.booleans())
    def it_is_suspended_or_not(self, value: bool) -> None:
        if self.alive():
            self.player.suspend(value)

    @rule(refused=st.booleans(), fatal=st.booleans())
    def creating_is_refused(self, refused: bool, fatal: bool) -> None:
        one = Attempt(error="refused", at=self.player.world.now, fatal=fatal)
        self.player.world.refuse = {"train": one} if refused else {}

    @rule(number=st.integers(1, 4), fault=st.sampled_from(["lost", "answer lost"]))
    def a_request_goes_wrong(self, number: int, fault: str) -> None:
        at = self.player.world.requests + number
        self.player.world.faults = lambda n: fault if n == at else ""

    @rule(skew=st.sampled_from([-600, -5, 0, 5, 600]))
    def another_leads(self, skew: float) -> None:
        self.player.world.restart(skew)

    @rule()
    def a_pod_hangs(self) -> None:
        self.player.world.held |= {
            one["metadata"]["uid"] for one in list(self.player.world.pods.values())[:1]
        }

    @precondition(lambda self: self.player.world.objects)
    @rule(which=st.integers(0, 5))
    def somebody_deletes_a_component(self, which: int) -> None:
        keys = sorted(self.player.world.objects)
        del self.player.world.objects[keys[which % len(keys)]]
        self.player.world.collect()

    @rule()
    def it_is_deleted(self) -> None:
        if self.alive():
            self.player.delete()

    @invariant()
    def counts_phases_and_times_never_go_back(self) -> None:
        if not hasattr(self, "player") or not self.alive():
            return
        raw = self.player.world.wrapper
        assert raw is not None
        status = raw.get("status", {})
        count, phase = status.get("resettingCount", 0), status.get("phase", "")
        assert self.count <= count <= max(self.limit, 0)
        if count > self.count:
            assert self.player.world.condition("Unhealthy")["reason"] in COUNTED
            assert count == self.count + 1
        if self.ended:
            assert phase in {self.ended, "Terminating"}, "nothing revives what has ended"
        self.ended = phase if phase in {"Succeeded", "Failed"} else self.ended
        for one in status.get("conditions", []):
            if self.player.world.skewed and one["type"] in {"DeletingResources", "EvacuationHeld"}:
                continue  # they go, and come anew by another clock
            assert one["lastTransitionTime"] >= self.times.get(one["type"], "")
            self.times[one["type"]] = one["lastTransitionTime"]
        if self.player.world.condition("QuotaReserved").get("status") == "False":
            assert phase in {"Suspended", "Succeeded", "Failed", "Terminating"} or status == {}
        self.count, self.phase = count, phase

    def teardown(self) -> None:
        """Every fair history ends: nobody disturbs any more, the wrapper is deleted, and everything
        is gone.
        """
        if not hasattr(self, "player") or not self.alive():
            return
        self.player.world.faults = lambda _: ""
        self.player.delete()
        for _ in range(200):
            if not self.alive():
                break
            self.played()
            self.player.world.sleep(1)
        assert not self.alive(), self.player.last
        assert not self.player.world.objects_of_ours()


Histories.TestCase.settings = settings(
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestHistories = pytest.mark.timeout(900)(Histories.TestCase)


NOW = datetime(2026, 1, 1, tzinfo=UTC)
TYPES = [
    "QuotaReserved",
    "ResourcesDeployed",
    "PodsReady",
    "Unhealthy",
    "DeletingResources",
    "Other",
]
TIMES = st.sampled_from(
    [NOW - timedelta(days=1), NOW - timedelta(seconds=5), NOW, NOW + timedelta(seconds=9)]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=6),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=6), below, max_size=3)
    ),
    max_leaves=12,
)


def a_condition(types: list[str] = TYPES) -> st.SearchStrategy[Any]:
    times = st.sampled_from(
        [
            "2026-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "0001-01-01T00:00:00Z",
            "soon",
            "2026-01-01T00:00:00",
        ]
    )
    return st.fixed_dictionaries(
        {"type": st.sampled_from(types)},
        optional={"status": st.sampled_from(["True", "False", "Unknown"]), "reason": st.text(max_size=5), "lastTransitionTime": times},
    )  # fmt: skip


def a_status() -> st.SearchStrategy[Any]:
    component = st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["train", "", "other"]), "kind": st.just("Job"), "apiVersion": st.just("batch/v1"),
            "uid": st.sampled_from(["", "uid-1"]), "podSets": st.just([{"path": "template.spec.template", "replicas": 2}]),
            "conditions": st.lists(a_condition(["ResourcesDeployed", "Finished"]), max_size=2),
        },
    )  # fmt: skip
    return st.fixed_dictionaries(
        {"phase": st.sampled_from([*PHASES, "Nonsense"])},
        optional={
            "conditions": st.lists(a_condition(), max_size=6), "componentStatus": st.lists(component, max_size=3),
            "resettingCount": st.integers(-5, 10), "migrationCount": st.integers(-5, 200),
        },
    )  # fmt: skip


def a_wrapper() -> st.SearchStrategy[Any]:
    metadata = st.fixed_dictionaries(
        {"name": st.just("w"), "uid": st.just("wrapper-uid")},
        optional={"finalizers": st.just(["workload.codeflare.dev/finalizer"]), "deletionTimestamp": st.just("2026-01-01T00:00:00Z")},
    )  # fmt: skip
    components = st.lists(
        st.sampled_from([{"template": job()}, {"template": service()}, {"template": 3}]), max_size=3
    )
    return st.fixed_dictionaries(
        {"metadata": metadata, "spec": st.fixed_dictionaries({"components": components}, optional={"suspend": st.booleans()})},
        optional={"status": a_status() | JSON},
    )  # fmt: skip


def a_view() -> st.SearchStrategy[WrapperSnapshot]:
    says = st.builds(
        ComponentVerdict,
        says=st.sampled_from(["nothing", "failed", "finished", "more"]),
        suspended=st.booleans(),
    )
    component = st.builds(
        SeenComponent,
        state=st.sampled_from(["unknown", "absent", "present", "going"]), uid=st.sampled_from(["uid-1", "uid-2"]),
        confirmed=st.booleans(), ours=st.booleans(), verdict=says,
        attempt=st.none() | st.builds(Attempt, error=st.just("no"), at=TIMES, fatal=st.booleans(), unclear=st.booleans()),
    )  # fmt: skip
    pod = st.builds(
        lambda phase, name: lenient(Pod, {"metadata": {"name": name, "uid": name}, "status": {"phase": phase}}),
        st.sampled_from(["Pending", "Running", "Failed", "Succeeded", "Odd"]), st.sampled_from(["a", "b", "c"]),
    )  # fmt: skip
    stray = st.builds(
        ComponentObject,
        kind=st.just(("", "v1", "Pod")),
        namespace=st.just("ns"),
        version=st.just(1),
        name=st.just("s"),
        uid=st.just("s"),
    )
    return st.builds(
        WrapperSnapshot,
        complete=st.booleans() | st.just(True), components=st.lists(component, max_size=3).map(tuple),
        pods=st.lists(pod, max_size=4).map(tuple), strays=st.lists(stray, max_size=1).map(tuple),
        empty=st.lists(TIMES, max_size=3).map(lambda it: tuple(sorted(it))),
    )  # fmt: skip


@given(a_wrapper(), a_view())
def test_no_wrapper_makes_it_raise_and_a_second_look_at_the_same_instant_writes_nothing(
    raw: Any, seen: WrapperSnapshot
) -> None:
    given_ = wrapper_from(raw)
    made = reconcile(given_, seen, WrapperRules(), NOW)
    text(explain(given_, seen, made, NOW))
    known = written(made.status)
    for part in (known, *known["componentStatus"]) if made.status != given_.status else ():
        for condition in part["conditions"]:
            assert condition["lastTransitionTime"], "an API server refuses a time that is null"
    for _ in range(8):
        given_ = replace(given_, status=made.status)
        again = reconcile(given_, seen, WrapperRules(), NOW)
        if again.status == made.status:
            break
        assert again.row or made.row, "a second write in the same phase at the same instant"
        made = again
    else:
        # Only a view that stands still while everything is deleted and made can go in circles.
        assert seen.components or seen.strays or len(seen.empty) > 1


@given(a_wrapper(), a_view())
def test_what_has_not_ended_has_something_next_or_waits_for_something_that_is_watched(
    raw: Any, seen: WrapperSnapshot
) -> None:
    given_ = wrapper_from(raw)
    made = reconcile(given_, seen, WrapperRules(), NOW)
    ended = made.status.phase in {"Succeeded", "Failed"}
    leaving = given_.metadata.deletion_timestamp is not None and not given_.metadata.finalizers
    if not ended and not leaving:
        assert made.next is not None
    if made.next is not None:
        assert made.next.at is not None or made.next.waits
        assert set(made.next.waits) <= {"wrapper", "pods", "components", "nodes", "mirrors"}


@given(a_wrapper(), a_view())
def test_nothing_is_said_to_be_gone_while_something_may_be_left(
    raw: Any, seen: WrapperSnapshot
) -> None:
    given_ = wrapper_from(raw)
    made = reconcile(given_, seen, WrapperRules(), NOW)
    was = next(
        (one.status for one in given_.status.conditions if one.type == "ResourcesDeployed"), ""
    )
    says = next(
        (one.status for one in made.status.conditions if one.type == "ResourcesDeployed"), ""
    )
    if was != "False" and says == "False":
        assert not seen.pods
        assert not seen.strays
        assert len(seen.empty) >= 2
        assert seen.empty[-1] - seen.empty[0] >= timedelta(seconds=1)
        for i, known in enumerate(made.status.component_status):
            one = seen.component(i)
            assert not known.name or one.state == "absent" or not one.ours
    if Finalizer(wanted=False) in made.actions:
        assert not seen.pods
        assert not seen.strays


@given(JSON)
def test_no_template_makes_a_plan_raise(template: Any) -> None:
    raw = {
        "metadata": {"name": "w", "namespace": "ns"},
        "spec": {"components": [{"template": template}]},
    }
    assert plan_text(plan(wrapper_from(raw), WrapperRules()))


def test_an_incomplete_view_decides_nothing() -> None:
    player = playing()
    made = reconcile(player.world.read(), WrapperSnapshot(complete=False), WrapperRules(), NOW)
    assert made.status == player.world.read().status
    assert made.actions == ()
    assert made.next is not None
    assert made.next.waits == ("mirrors",)
