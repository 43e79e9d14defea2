"""Deletion by itself: what is deleted when, how often, and when nothing is believed to be left."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from doubled import client, core, double, has, objects, running
from leading import leads
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import (
    AppWrapper,
    AppWrapperStatus,
    ComponentStatus,
    Condition,
    Pod,
    lenient,
)
from preflight_appwrapper.controller.apply import WrapperApplier
from preflight_appwrapper.core.deletion import DeletionProgress, progress
from preflight_appwrapper.core.phase_context import PhaseContext
from preflight_appwrapper.core.plan import Confirm, DeleteObject, List, WrapperAction
from preflight_appwrapper.core.snapshot import LeaderState, SeenComponent, State, WrapperSnapshot
from preflight_appwrapper.metrics import Metrics
from preflight_kube.api.kinds import Kind, RESTMapping
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, KubeError
from preflight_kube.runtime.discovery import RESTMapper
from preflight_testing.apidouble import ApiAnswer, ApiRequest
from preflight_testing.waiting import until

START = datetime(2026, 1, 1, tzinfo=UTC)


def going_on(seen: WrapperSnapshot, after: float = 0) -> DeletionProgress:
    deleting = Condition(type="DeletingResources", status="True", last_transition_time=START)
    known = ComponentStatus(name="train", kind="Job", api_version="batch/v1", uid="uid-1")
    status = AppWrapperStatus(conditions=(deleting,), component_status=(known,))
    now = START + timedelta(seconds=after)
    context = PhaseContext.of(AppWrapper(status=status), seen, WrapperRules(), now)
    return progress(context, status)


def component(state: State = "present", *, ours: bool = True, uid: str = "uid-1") -> SeenComponent:
    return SeenComponent(state=state, ours=ours, uid=uid)


def pods(count: int) -> tuple[Pod, ...]:
    return tuple(
        lenient(Pod, {"metadata": {"name": f"p{i:03}", "uid": f"u{i}"}}) for i in range(count)
    )


GONE = component("absent")
DELETE = DeleteObject("batch/v1", "Job", "train", "uid-1")


@pytest.mark.parametrize(("after", "again"), [(0, True), (9, False), (10, True)])
def test_a_delete_is_repeated_after_ten_seconds_only(after: float, again: bool) -> None:
    attempts: dict[WrapperAction, datetime] = {} if after == 0 else {DELETE: START}
    found = going_on(WrapperSnapshot(components=(component(),), attempts=attempts), after)
    assert found.actions == ((DELETE,) if again else ())


def test_what_is_going_is_not_deleted_again() -> None:
    found = going_on(WrapperSnapshot(components=(component("going"),)), 100)
    assert found.actions == ()
    assert found.next is not None
    assert found.next.at == START + timedelta(seconds=601)


def test_an_object_of_somebody_else_counts_as_gone_and_is_not_touched() -> None:
    found = going_on(WrapperSnapshot(components=(component(ours=False, uid="theirs"),)))
    assert found.actions == (List(),)


def test_an_object_of_ours_with_another_uid_is_deleted_under_that_uid() -> None:
    found = going_on(WrapperSnapshot(components=(component(uid="uid-2"),)))
    assert found.actions == (DeleteObject("batch/v1", "Job", "train", "uid-2"),)


def test_a_component_that_nobody_has_seen_is_asked_for() -> None:
    assert going_on(WrapperSnapshot(components=(component("unknown"),))).actions == (Confirm(0),)
    assert going_on(WrapperSnapshot()).actions == (Confirm(0),)


def test_force_begins_a_second_after_its_period_with_32_pods_at_a_time_and_objects_last() -> None:
    seen = WrapperSnapshot(
        components=(component(),),
        pods=pods(40),
        attempts={
            DELETE: START + timedelta(seconds=595),
            List(): START + timedelta(seconds=600),
        },
    )
    assert going_on(seen, 600.9).actions == ()
    found = going_on(seen, 601)
    assert found.forced
    assert len(found.actions) == 32
    assert all(isinstance(it, DeleteObject) and it.kind == "Pod" for it in found.actions)
    assert going_on(WrapperSnapshot(components=(component("going"),)), 601).actions == (
        DeleteObject("batch/v1", "Job", "train", "uid-1", force=True),
    )


@pytest.mark.parametrize(
    ("empty", "after", "done", "listed"),
    [
        ([], 5, False, True),
        ([5], 5.5, False, False),
        ([5], 6, False, True),
        ([5, 5.5], 5.6, False, False),
        ([5, 6], 6, True, False),
    ],
)
def test_only_two_reads_a_second_apart_that_found_nothing_are_believed(
    empty: list[float], after: float, done: bool, listed: bool
) -> None:
    seen = WrapperSnapshot(
        components=(GONE,), empty=tuple(START + timedelta(seconds=at) for at in empty)
    )
    found = going_on(seen, after)
    assert found.done is done
    assert (found.actions == (List(),)) is listed


def test_a_pod_that_is_going_is_waited_for() -> None:
    one = lenient(
        Pod, {"metadata": {"name": "a", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    )
    seen = WrapperSnapshot(
        components=(GONE,), pods=(one,), empty=(START, START + timedelta(seconds=1))
    )
    assert not going_on(seen, 5).done


def test_pods_are_read_before_the_first_of_them_goes_by_force() -> None:
    seen = WrapperSnapshot(components=(GONE,), pods=pods(2))
    assert going_on(seen, 601).actions == (List(),)
    seen = WrapperSnapshot(components=(GONE,), pods=pods(2), attempts={List(): START})
    assert going_on(seen, 601).actions == (List(),)
    read: dict[WrapperAction, datetime] = {List(): START + timedelta(seconds=601)}
    seen = WrapperSnapshot(components=(GONE,), pods=pods(2), attempts=read)
    deletes = going_on(seen, 602).actions
    assert [it.kind for it in deletes if isinstance(it, DeleteObject)] == ["Pod", "Pod"]


@pytest.mark.parametrize("after", [601, 602])
def test_what_makes_pods_is_deleted_before_they_go_by_force(after: float) -> None:
    """With a period of 0 nothing has deleted it by then, and it makes each pod anew."""
    read: dict[WrapperAction, datetime] = {List(): START + timedelta(seconds=601.5)}
    seen = WrapperSnapshot(
        components=(component(),), pods=pods(2), attempts=read if after == 602 else {}
    )
    assert DELETE in going_on(seen, after).actions
    asked: dict[WrapperAction, datetime] = {DELETE: START + timedelta(seconds=600)}
    seen = WrapperSnapshot(components=(component(),), pods=pods(2), attempts={**asked, **read})
    assert DELETE not in going_on(seen, after).actions


@pytest.mark.anyio
async def test_a_deletion_that_a_webhook_refuses_even_by_force_says_in_whose_words() -> None:
    words = 'admission webhook "keep.example.com" denied the request: it is kept'

    def kept(request: ApiRequest) -> ApiAnswer | None:
        if request.method != "DELETE" or "/pods/" not in request.path:
            return core(request)
        status = {"kind": "Status", "apiVersion": "v1", "reason": "Forbidden", "code": 403}
        return ApiAnswer(403, {**status, "status": "Failure", "message": words})

    rules = WrapperRules(forceful_deletion=0)
    async with double() as api, client(api) as ours, leads(client=ours, rules=rules):
        running(api, "w")
        api.fault = kept
        await ours.delete("/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers/w")

        def message() -> str:
            return str(has(objects(api, "appwrappers")[0], "DeletingResources").get("message"))

        await until(lambda: words in message(), "the condition has them", 30)
        api.fault = core
        await until(lambda: not objects(api, "appwrappers"), "it goes once nobody keeps it", 30)


class Served(RESTMapper):
    """Every kind is served, under its own name."""

    async def find(self, kind: Kind) -> RESTMapping:
        return RESTMapping(kind[2].lower() + "s", namespaced=True)


class Deletes(Client):
    """Records what is deleted; what is read is there, whatever its path leads to."""

    def __init__(self) -> None:
        super().__init__(Connection("https://127.0.0.1:1", ssl.create_default_context()), agent="t")
        self.propagations: list[str | None] = []
        self.refusal: KubeError | None = None

    async def delete(self, *_: Any, propagation: str | None = None, **__: Any) -> bytes:
        self.propagations.append(propagation)
        if self.refusal is not None:
            raise self.refusal
        return b"{}"

    async def get(self, path: str, *_: Any, **__: Any) -> Any:
        raise KubeError(f"{path}: 301", 301)


@pytest.mark.anyio
async def test_what_a_ray_job_owns_goes_before_it_for_its_submitter_has_no_label() -> None:
    client = Deletes()
    applier = WrapperApplier(client, Served(client), WrapperRules(), Metrics())
    for version, kind in (("ray.io/v1", "RayJob"), ("batch/v1", "Job")):
        one = DeleteObject(version, kind, "train", "uid-1")
        await applier.delete("ns", one, LeaderState(uid="w"))
    assert client.propagations == ["Foreground", "Background"]


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "kept"), [(403, True), (500, True), (429, False)])
async def test_the_words_of_a_refused_delete_are_kept_until_it_is_done(
    status: int, kept: bool
) -> None:
    client, memory = Deletes(), LeaderState(uid="w")
    applier = WrapperApplier(client, Served(client), WrapperRules(), Metrics())
    client.refusal = KubeError("keep.example.com denied it.", status)
    await applier.delete("ns", DELETE, memory)
    assert memory.refused == ({"uid-1": "keep.example.com denied it"} if kept else {})
    client.refusal = None
    await applier.delete("ns", DELETE, memory)
    assert memory.refused == {}


@pytest.mark.anyio
@pytest.mark.parametrize("name", [".", "..", "a/b", "%2e", "n" * 254, "", "a\x00"])
async def test_a_component_whose_name_no_object_can_have_is_absent_and_not_asked_for(
    name: str,
) -> None:
    client, memory = Deletes(), LeaderState(uid="w")
    applier = WrapperApplier(client, Served(client), WrapperRules(), Metrics())
    assert await applier.look("ns", (("batch", "v1", "Job"), name), memory) is None
    with pytest.raises(KubeError):
        await applier.look("ns", (("batch", "v1", "Job"), "train"), memory)
