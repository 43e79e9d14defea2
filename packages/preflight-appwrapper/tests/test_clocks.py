"""Leaders whose clocks differ: what one has written is a time of its own, and costs the next
nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from doubled import change, client, condition, double, has, objects, running, served, write_status
from leading import leads
from player import job, playing, wrapper
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import PHASES, wrapper_from
from preflight_appwrapper.controller import controller
from preflight_appwrapper.core.reconcile import reconcile
from preflight_appwrapper.core.snapshot import LeaderState, Mirrored, WrapperSnapshot, observe
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOTHING = Mirrored(
    complete=True,
    things={},
    departed={},
    pods={},
    nodes={},
    version=lambda _: 0,
)
SKEWS = [-600, -5, 0, 5, 600]


def skewed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The wall clock of the controller is so far ahead of the one that wrote the status."""

    class Skewed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(seconds=seconds)

    monkeypatch.setattr(controller, "datetime", Skewed)


@pytest.mark.parametrize("seconds", SKEWS)
async def test_a_deletion_costs_the_next_leader_the_same_requests_whatever_its_clock_says(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    skewed(monkeypatch, seconds)
    async with double() as api:
        running(api, "w")
        [raw] = objects(api, "appwrappers")
        api.store.delete(served(api, "pods"), objects(api, "pods")[0], {"gracePeriodSeconds": 0})
        began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        deleting = {**condition("DeletingResources", "True", "DeletionInitiated"), "lastTransitionTime": began}  # fmt: skip
        status = {**raw["status"], "phase": "Suspending"}
        status["conditions"] = [*status["conditions"], deleting]
        write_status(api, "appwrappers", "default", "w", status)
        change(api, "appwrappers", "w", {"spec": {"suspend": True}})
        async with client(api) as ours, leads(client=ours):
            await until(lambda: objects(api, "appwrappers")[0]["status"]["phase"] == "Suspended", "it ends")  # fmt: skip
        asked = [one.path for one in api.requests if "/default/" in one.path]
        assert asked.count("/api/v1/namespaces/default/pods") == 2
        assert (
            len([one for one in asked if one.endswith("/status")]) == 2
        )  # observedGeneration, and the end
        assert has(objects(api, "appwrappers")[0], "ResourcesDeployed")["status"] == "False"


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase])
@pytest.mark.parametrize("seconds", [-600, -5, 600])
def test_nothing_is_written_because_a_time_is_still_to_come(phase: str, seconds: float) -> None:
    at = (NOW - timedelta(seconds=seconds)).isoformat()
    player = playing(job())
    player.until("Running")
    player.world.run()
    player.settle()
    raw: Any = player.world.wrapper
    raw["status"]["phase"] = phase
    raw["spec"]["suspend"] = phase in {"Suspended", "Suspending"}
    for one in raw["status"]["conditions"]:
        one["lastTransitionTime"] = at
        if phase == "Suspended":
            one["status"] = "False"
    if phase in {"Suspended", "Succeeded"}:
        player.world.objects.clear()
        player.world.pods.clear()
    before = player.world.read()
    memory = LeaderState(uid=before.metadata.uid)
    seen = player.world.seen()
    ahead = observe(before, NOTHING, memory, suffix="x", now=NOW, clock=5.0).first_seen
    same = reconcile(before, _with(seen, {}), WrapperRules(), NOW + timedelta(days=1))
    made = reconcile(before, _with(seen, ahead), WrapperRules(), NOW)
    if same.status == before.status:
        assert made.status == before.status
    for old in before.status.conditions:
        for new in made.status.conditions:
            if new.type == old.type:
                assert new.last_transition_time is not None
                assert old.last_transition_time is not None
                assert new.last_transition_time >= old.last_transition_time


def _with(view: WrapperSnapshot, ahead: Any) -> WrapperSnapshot:
    import msgspec

    return msgspec.structs.replace(view, first_seen=ahead)


def test_a_period_of_a_clock_that_is_ahead_begins_when_this_leader_first_sees_it() -> None:
    raw = wrapper(job(), annotations={"retryPausePeriodDuration": "30s"})
    raw["metadata"]["finalizers"] = ["workload.codeflare.dev/finalizer"]
    ahead = (NOW + timedelta(minutes=10)).isoformat()
    deployed = {**condition("ResourcesDeployed", "False", "Resetting"), "lastTransitionTime": ahead}
    raw["status"] = {
        "phase": "Resetting",
        "conditions": [condition("QuotaReserved", "True"), deployed],
        "componentStatus": [{"name": "", "kind": "", "apiVersion": "", "podSets": []}],
    }
    before, memory = wrapper_from(raw), LeaderState(uid="wrapper-uid")

    def look(seconds: float) -> Any:
        now = NOW + timedelta(seconds=seconds)
        seen = observe(before, NOTHING, memory, suffix="x", now=now, clock=7 + seconds)
        return reconcile(before, seen, WrapperRules(), now)

    first = look(0)
    assert first.status == before.status
    assert first.next.at == NOW + timedelta(seconds=31)
    assert look(20).next.at == NOW + timedelta(seconds=31)
    assert look(31).row == "retry"
    assert look(700).row == "retry"
