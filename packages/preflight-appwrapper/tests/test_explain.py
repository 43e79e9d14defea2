"""What people read is what happens: the same step, and its next time comes true."""

from __future__ import annotations

import pytest
from player import Player, job, playing, wrapper
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import wrapper_from
from preflight_appwrapper.core.reconcile import reconcile
from preflight_appwrapper.report.explain import Explanation, explain, plan, text


def explained(player: Player) -> Explanation:
    of, seen = player.world.read(), player.world.seen()
    return explain(of, seen, reconcile(of, seen, player.rules, player.world.now), player.world.now)


def test_a_failing_workload_is_explained_with_its_rule_its_pods_and_what_comes_when() -> None:
    player = playing(failureGracePeriodDuration="5m", retryLimit="x")
    player.settle()
    player.world.run()
    name = next(iter(player.world.pods))
    player.world.pods[name]["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 137}}}],
    }
    player.settle()
    found = explained(player)
    assert (found.phase, found.rule) == ("Running", 6)
    assert found.because.startswith(
        f"1 failed pod, {name} on node-a exited with 137 (expected 2: 0 pending, 1 running"
    )
    assert found.next is not None
    assert (found.next.what, found.next.within) == ("Resetting", "5m1s")
    assert f"{name}: Failed on node-a; main exited with 137" in found.pods
    sources = {one.name: one.source for one in found.parameters}
    assert sources["FailureGracePeriod"] == "annotation"
    assert sources["RetryLimit"] == "malformed"
    said = text(found)
    assert "next: Resetting in 5m1s" in said
    assert 'RetryLimit = 3 (malformed, written "x")' in said


def test_what_is_said_to_come_next_then_comes_at_that_time() -> None:
    player = playing(failureGracePeriodDuration="5m")
    player.settle()
    player.world.run("Failed")
    player.settle()
    while player.phase in {"Running", "Resetting"}:
        made = player.last
        assert made is not None
        assert made.next is not None
        assert made.next.at is not None
        before, wanted = player.phase, made.next.what
        player.world.now = max(made.next.at, player.world.now)
        player.settle()
        if wanted in {"Resetting", "Resuming"}:
            assert player.phase != before
        if "retry" in player.rows:
            return
    raise AssertionError(player.rows)


def test_a_job_that_queues_by_itself_is_named() -> None:
    player = playing(job(suspend=True))
    player.world.makes_pods = False
    player.settle()
    player.wait(3600)
    assert player.phase == "Running"
    found = explained(player)
    assert "Job train is suspended by itself" in found.because
    assert found.next is not None
    assert found.next.at == ""


def test_what_blocks_a_deletion_is_named() -> None:
    template = job()
    template["metadata"]["finalizers"] = ["example.com/held"]
    player = playing(template, forcefulDeletionGracePeriodDuration="3s")
    player.settle()
    player.suspend(True)
    player.settle()
    player.world.pods.clear()
    player.wait(30)
    assert explained(player).blocked == ("Job train (finalizer example.com/held)",)
    assert "cannot be deleted: Job train" in text(explained(player))


def test_what_the_leader_was_refused_is_shown_to_who_has_tried_nothing() -> None:
    player = playing(forcefulDeletionGracePeriodDuration="3s")
    player.settle()
    player.suspend(True)
    player.look()
    assert player.world.wrapper is not None
    words = "cannot be removed even by force: Job train (keep.example.com denied it)"
    for raw in player.world.wrapper["status"]["conditions"]:
        if raw["type"] == "DeletingResources":
            raw["message"] = words
    assert explained(player).because == words


def test_a_wrapper_of_another_manager_is_said_to_be_one() -> None:
    raw = wrapper()
    raw["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    assert "it is managed by kueue.x-k8s.io/multikueue" in explained(Player(raw)).because


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_what_has_ended_says_so(phase: str) -> None:
    player = playing(retryLimit="0", failureGracePeriodDuration="0s", successTTLDuration="1s")
    player.settle()
    player.world.run()
    player.settle()
    if phase == "Succeeded":
        player.complete()
    else:
        player.world.run("Failed")
    player.settle()
    player.wait(30)
    found = explained(player)
    assert found.phase == phase
    assert "next: nothing" in text(found)
    assert found.because.startswith("FoundFailedPods: 2 failed pods" if phase == "Failed" else "")
    assert bool(found.because) == (phase == "Failed")


def test_the_same_problem_is_said_once() -> None:
    raw = wrapper()
    raw["spec"]["components"][0]["podSets"] = [{"path": "template..spec"}]
    found = plan(wrapper_from(raw), WrapperRules())
    assert [one for one in found.problems if "is not a path" in one] == [
        'spec.components[0].podSets[0].path: "template..spec" is not a path; '
        "write template, then .field or [index], e.g. template.spec.template."
    ]


def test_the_same_problem_of_two_components_is_said_of_each() -> None:
    raw = wrapper()
    raw["spec"]["components"][0]["podSets"] = [{"path": "template..spec"}]
    raw["spec"]["components"].append(raw["spec"]["components"][0])
    found = plan(wrapper_from(raw), WrapperRules())
    assert [one.partition(".pod")[0] for one in found.problems if "is not a path" in one] == [
        "spec.components[0]",
        "spec.components[1]",
    ]
