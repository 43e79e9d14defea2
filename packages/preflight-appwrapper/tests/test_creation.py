"""Creating by itself: the name is written ahead, nothing is assumed without an answer, and refusals
are tried again, less and less often.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from doubled import change, client, core, double, has, objects, running, write_status
from leading import leads
from msgspec.structs import replace
from player import Player, bare_pod, job, playing, service, wrapper
from preflight_appwrapper.api.names import CLAIMED, INDEX
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, lenient
from preflight_appwrapper.controller.apply import WrapperApplier, is_final
from preflight_appwrapper.core.plan import Confirm, CreateComponent, WrapperAction, WrapperEvent
from preflight_appwrapper.core.reconcile import reconcile
from preflight_appwrapper.core.snapshot import (
    Attempt,
    LeaderState,
    SeenComponent,
    WrapperSnapshot,
)
from preflight_appwrapper.metrics import Metrics
from preflight_kube.client.client import KubeError
from preflight_kube.runtime.discovery import RESTMapper
from preflight_proto.devices import GROUP, VERSIONS, request_in
from preflight_testing.apidouble import ApiAnswer, ApiRequest, Resource
from preflight_testing.waiting import until
from world import START


def resuming(
    one: SeenComponent, *, after: float = 0
) -> tuple[tuple[WrapperAction, ...], float | None, str]:
    player = playing()
    player.world.refuse["train"] = Attempt(error="exceeded quota", at=START)
    player.settle()
    of = player.world.read()
    assert of.status.phase == "Resuming"
    assert of.status.component_status[0].name == "train"
    made = reconcile(
        of, WrapperSnapshot(components=(one,)), WrapperRules(), START + timedelta(seconds=after)
    )
    at = made.next.at if made.next else None
    return made.actions, (at - START).total_seconds() if at else None, made.status.phase


CREATE = CreateComponent(0, "train", "wrapper-uid")


def refused(**more: object) -> SeenComponent:
    attempt = replace(Attempt(error="exceeded quota", at=START), **more)
    return SeenComponent(state="absent", confirmed=not attempt.unclear, attempt=attempt)


def test_a_create_without_an_answer_is_asked_for_before_it_is_sent_again() -> None:
    assert resuming(refused(unclear=True), after=5)[0] == (Confirm(0),)
    asked = replace(refused(unclear=True), confirmed=True)
    assert resuming(asked, after=5)[0] == (CREATE,)
    there = replace(asked, state="present", ours=True, uid="uid-9")
    assert resuming(there, after=5)[2] == "Running"


def test_a_watch_that_still_shows_an_object_of_an_earlier_life_does_not_stand_for_the_new_one() -> (
    None
):
    stale = SeenComponent(state="present", ours=True, uid="old", confirmed=False)
    assert resuming(stale)[0] == (Confirm(0),)
    assert resuming(SeenComponent(state="absent", confirmed=True))[0] == (CREATE,)


def test_a_predecessor_that_is_going_is_waited_for() -> None:
    going = SeenComponent(state="going", ours=True, uid="old", confirmed=True)
    actions, _, phase = resuming(going)
    assert (actions, phase) == ((), "Resuming")


@pytest.mark.parametrize(("tries", "pause"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (50, 10)])
def test_a_refused_create_is_tried_again_after_1_2_4_to_10_seconds(
    tries: int, pause: float
) -> None:
    assert resuming(refused(tries=tries), after=0.5)[:2] == ((), pause)
    assert resuming(refused(tries=tries), after=pause)[0] == (CREATE,)


def test_refusals_for_longer_than_the_admission_period_reset_it() -> None:
    assert resuming(refused(tries=9), after=60.9)[2] == "Resuming"
    assert resuming(refused(tries=9), after=61)[2] == "Resetting"


def test_the_name_stands_in_the_status_when_the_create_is_sent_and_is_new_in_each_life() -> None:
    player = playing(service(), job(), bare_pod(), retryPausePeriodDuration="0s")
    names = []
    for _ in range(12):
        made = player.look()
        for action in made.actions:
            if isinstance(action, CreateComponent):
                known = made.status.component_status[action.index]
                assert known.name == action.name
                assert known.conditions[0].reason == "ComponentCreationInitiated"
    player.settle()
    names += [name for name, _ in player.world.created if name.startswith("probe-")]
    player.world.nodes = {"node-a": frozenset({"nvidia.com/gpu"})}
    player.world.run()
    player.wait(3)
    player.world.nodes = {}
    player.wait(5)
    names += [
        name for name, _ in player.world.created if name.startswith("probe-") and name not in names
    ]
    assert len(names) == 2


@pytest.mark.parametrize(("components", "writes"), [(1, 3), (16, 3), (17, 4), (40, 5)])
def test_statuses_are_written_once_for_sixteen_components(components: int, writes: int) -> None:
    player = Player(wrapper(*(service(f"s-{i}") for i in range(components - 1)), job()))
    player.settle()
    assert (player.phase, player.world.writes) == ("Running", writes)
    assert [name for name, _ in player.world.created] == [
        *(f"s-{i}" for i in range(components - 1)),
        "train",
    ]


def test_two_names_of_one_prefix_have_random_characters_each() -> None:
    player = Player(wrapper(bare_pod(), bare_pod()))
    player.settle()
    names = [name for name, _ in player.world.created]
    assert len(set(names)) == 2


@pytest.mark.parametrize(("more", "after"), [({"fatal": True}, 0.0), ({"tries": 9}, 61.0)])
def test_the_component_that_could_not_be_created_says_so(
    more: dict[str, object], after: float
) -> None:
    player = playing()
    player.world.refuse["train"] = Attempt(error="exceeded quota", at=START)
    player.settle()
    view = WrapperSnapshot(components=(refused(**more),))
    made = reconcile(player.world.read(), view, WrapperRules(), START + timedelta(seconds=after))
    [condition] = made.status.component_status[0].conditions
    assert made.status.phase in {"Failed", "Resetting"}
    assert (condition.status, condition.reason) == ("False", "ComponentCreationErrored")
    assert condition.message == "exceeded quota"


def edited(**fields: object) -> Player:
    """Its second component is begun, and somebody writes ``fields`` into what is said of it."""
    player = Player(wrapper(service("svc"), job()))
    player.world.refuse["train"] = Attempt(error="exceeded quota", at=START)
    player.settle()
    assert player.world.wrapper is not None
    player.world.wrapper["status"]["componentStatus"][1].update(fields)
    player.world.refuse.clear()
    return player


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "another"},
        {"name": "svc", "kind": "Service", "apiVersion": "v1"},
        {"apiVersion": "batch/v2"},
        {"name": "", "kind": "", "apiVersion": ""},
    ],
)
def test_a_component_that_somebody_calls_otherwise_while_it_is_created_ends_in_a_clean_start(
    fields: dict[str, object],
) -> None:
    player = edited(**fields)
    player.until("Running")
    assert "leftover" in player.rows
    assert sorted(name for _, _, name in player.world.objects) == ["svc", "train"]


@pytest.mark.anyio
async def test_a_fault_of_ours_in_one_wrapper_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faulty(of: AppWrapper, *args: Any) -> Any:
        if of.metadata.name == "bad":
            raise IndexError("list index out of range")
        return reconcile(of, *args)

    monkeypatch.setattr("preflight_appwrapper.controller.controller.reconcile", faulty)
    async with double() as api, client(api) as ours, leads(client=ours):
        for name in ("bad", "good"):
            running(api, name)
            write_status(api, "pods", "default", name, {"phase": "Succeeded"})
        await until(
            lambda: objects(api, "appwrappers")[1]["status"]["phase"] == "Succeeded", "it goes on"
        )
        assert objects(api, "appwrappers")[0]["status"]["phase"] == "Running"


@pytest.mark.parametrize(
    ("message", "final"),
    [
        (
            'configmaps is forbidden: User "x" cannot create resource "configmaps" in API group "" '
            'in the namespace "ns"',
            True,
        ),
        ('pods "train" is forbidden: exceeded quota: compute, requested: cpu=1', False),
        ('pods "train" is forbidden: violates PodSecurity "restricted:latest"', False),
    ],
)
def test_only_a_right_that_is_missing_makes_a_403_final(message: str, final: bool) -> None:
    error = KubeError(message, 403, "Forbidden")
    assert (is_final(error, 3), is_final(error, 4)) == (False, final)


@pytest.mark.anyio
async def test_a_right_is_missing_after_five_refusals_in_a_row_whatever_came_before() -> None:
    words = 'pods is forbidden: User "x" cannot create resource "pods" in API group ""'
    failed = {"kind": "Status", "status": "Failure"}
    quota, right = (
        ApiAnswer(403, {**failed, "reason": "Forbidden", "code": 403, "message": message})
        for message in ("exceeded quota: q", words)
    )
    answers = [quota, *[right] * 4, quota, *[right] * 5]
    memory, fatal = LeaderState(uid="w"), []
    async with double() as api, client(api) as ours:
        api.fault = lambda request: answers[0] if request.method == "POST" else core(request)
        applier = WrapperApplier(ours, RESTMapper(ours), WrapperRules(), Metrics())
        named = lenient(AppWrapper, wrapper(bare_pod()))
        while answers:
            await applier.create(named, CreateComponent(0, "w-0", "wrapper-uid"), memory)
            fatal.append(memory.creates[0].fatal)
            answers.pop(0)
    assert fatal == [False] * 10 + [True]


@pytest.mark.parametrize(
    ("message", "status", "final"),
    [
        ('Job in version "v1" cannot be handled as a Job: json: cannot unmarshal', 400, True),
        ('admission webhook "validate.kyverno.svc" denied the request: not now', 400, False),
        ('admission webhook "v.example.com" denied the request: no such image', 404, False),
        ('admission webhook "v.example.com" denied the request: spec.x: Invalid', 422, True),
        ("the server could not find the requested resource", 404, True),
    ],
)
def test_a_webhooks_denial_is_tried_again_but_for_one_that_says_invalid(
    message: str, status: int, final: bool
) -> None:
    assert is_final(KubeError(message, status), 0) is final


@pytest.mark.anyio
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_pod_with_gpus_by_a_claim_keeps_off_marked_nodes_and_leaves_one_that_is_marked(
    version: str,
) -> None:
    templates = Resource(f"{GROUP}/{version}", "resourceclaimtemplates", "ResourceClaimTemplate")
    request = request_in(version, "g", {"deviceClassName": "gpu.nvidia.com"})
    entries = [{"name": "gpus", "resourceClaimTemplateName": "gpus"}]
    spec = {"containers": [{"name": "main"}], "resourceClaims": entries}
    template = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    async with double(templates) as api:
        place = {"name": "gpus", "namespace": "default"}
        devices = {"devices": {"requests": [request]}}
        api.create(templates.plural, {"metadata": place, "spec": {"spec": devices}})
        api.create("nodes", {"metadata": {"name": "node-0", "labels": {"x": "y"}}})
        about = {"name": "w", "namespace": "default"}
        made = {"suspend": False, "components": [{"template": template}]}
        api.create("appwrappers", {"metadata": about, "spec": made})
        async with client(api) as ours, leads(client=ours):
            await until(lambda: objects(api, "pods"), "the pod is created")
            (pod,) = objects(api, "pods")
            assert pod["metadata"]["annotations"] == {CLAIMED: "gpu.nvidia.com", INDEX: "0"}
            assert "nodeAffinity" in pod["spec"]["affinity"]
            change(api, "pods", "p", {"spec": {"nodeName": "node-0"}})
            write_status(api, "pods", "default", "p", {"phase": "Running"})
            labels = {"autopilot.ibm.com/gpuhealth": "EVICT"}
            change(api, "nodes", "node-0", {"metadata": {"labels": labels}})
            await until(
                lambda: objects(api, "appwrappers")[0]["status"].get("migrationCount") == 1,
                "it is moved",
            )


@pytest.mark.anyio
async def test_a_wrapper_says_that_a_kind_of_its_components_may_not_be_read_any_more() -> None:
    forbidden = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403}
    barred = True

    def fault(request: ApiRequest) -> ApiAnswer | None:
        if barred and request.path.endswith("/jobs"):
            return ApiAnswer(403, {**forbidden, "message": "jobs.batch is forbidden"})
        return core(request)

    async with double() as api, client(api) as ours:
        running(api, "w")
        status = objects(api, "appwrappers")[0]["status"]
        (pod,) = status["componentStatus"]
        job_ = {**pod, "kind": "Job", "apiVersion": "batch/v1", "podSets": [], "uid": ""}
        status = {**status, "componentStatus": [{**job_, "name": "j"}]}
        write_status(api, "appwrappers", "default", "w", status)
        api.fault = fault

        def says() -> dict[str, Any]:
            return has(objects(api, "appwrappers")[0], "ComponentsForbidden")

        async with leads(client=ours):
            await until(lambda: says().get("status") == "True", "the condition")
            assert "batch/v1 Job may not be read" in says()["message"]
            assert "wrappedKinds" in says()["message"]
            await until(
                lambda: [e["reason"] for e in objects(api, "events")] == ["KindNotWrapped"],
                "an Event",
            )
            barred = False
            await until(lambda: not says(), "the condition goes")


def test_a_kind_that_may_not_be_read_is_said_before_anything_that_fails_for_it() -> None:
    player = playing(job())
    player.until("Running")
    player.world.nodes = {"node-a": frozenset({"nvidia.com/gpu"})}
    player.world.run()
    seen = replace(player.world.seen(), forbidden=(("batch", "v1", "Job"),))
    of = player.world.read()
    first = reconcile(of, seen, WrapperRules(), player.world.now)
    assert (first.row, first.say[0].reason) == ("", "KindNotWrapped")
    again = reconcile(replace(of, status=first.status), seen, WrapperRules(), player.world.now)
    assert again.row == "evacuate"
    assert any(known.type == "ComponentsForbidden" for known in again.status.conditions)
    seen = replace(seen, forbidden=(), nodes={})
    cleared = reconcile(replace(of, status=first.status), seen, WrapperRules(), player.world.now)
    assert all(known.type != "ComponentsForbidden" for known in cleared.status.conditions)


def test_an_event_is_made_once_whatever_became_of_it() -> None:
    state = LeaderState(uid="w")
    one, other = (WrapperEvent("BadAnnotation", "x is no number", key) for key in "ab")
    assert [state.record(event) for event in (one, one, other, one)] == [True, False, True, False]
