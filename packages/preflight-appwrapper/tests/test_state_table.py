"""Each row of the state table is taken by a wrapper in a small cluster, and README shows the table
with the phases that the code has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from player import Player, job, playing, wrapper
from preflight_appwrapper.api.types import PHASES
from preflight_appwrapper.core.phase_context import ROWS
from preflight_appwrapper.core.snapshot import Attempt

SECOND = {"failureGracePeriodDuration": "1s", "retryPausePeriodDuration": "1s"}


def started(player: Player) -> Player:
    player.settle()
    assert player.phase == "Running"
    player.world.run()
    player.settle()
    return player


def failing(player: Player) -> Player:
    started(player)
    next(iter(player.world.pods.values()))["status"]["phase"] = "Failed"
    player.settle()
    return player


def seen() -> Player:
    player = Player(wrapper(suspend=True))
    player.settle()
    assert player.phase == "Suspended"
    assert player.world.created == []
    return player


def leftover() -> Player:
    player = started(playing())
    player.world.wrapper["status"]["phase"] = "Suspended"  # type: ignore[index]
    player.until("Running")
    assert len(player.world.created) == 2
    return player


def resume() -> Player:
    player = seen()
    player.suspend(False)
    player.settle()
    assert player.world.condition("QuotaReserved")["status"] == "True"
    return player


def resuming_suspend() -> Player:
    player = playing()
    player.world.refuse["train"] = Attempt(error="exceeded quota", at=player.world.now)
    player.settle()
    assert player.phase == "Resuming"
    player.suspend(True)
    player.until("Suspended")
    return player


def created() -> Player:
    return started(playing())


def create_fatal() -> Player:
    player = playing()
    player.world.refuse["train"] = Attempt(
        error="spec.parallelism: Invalid value", at=player.world.now, fatal=True
    )
    player.settle()
    assert player.phase == "Failed"
    assert player.world.condition("Unhealthy")["reason"] == "CreateFailed"
    assert (
        "spec.components[0].template: Job train was refused"
        in player.world.condition("Unhealthy")["message"]
    )
    return player


def create_late() -> Player:
    player = playing()
    player.world.refuse["train"] = Attempt(error="exceeded quota", at=player.world.now)
    player.until("Resetting")
    assert player.count == 1
    player.world.refuse.clear()
    player.until("Running")
    return player


def create_last() -> Player:
    player = playing(retryLimit="0")
    player.world.refuse["train"] = Attempt(error="exceeded quota", at=player.world.now)
    player.until("Failed")
    assert player.count == 0
    return player


def running_suspend() -> Player:
    player = started(playing())
    player.suspend(True)
    player.until("Suspended")
    assert not player.world.pods
    return player


def succeeded() -> Player:
    player = started(playing())
    player.complete()
    player.settle()
    assert player.phase == "Succeeded"
    assert player.world.condition("QuotaReserved")["status"] == "False"
    assert player.world.condition("ResourcesDeployed")["status"] == "True"
    return player


def reset() -> Player:
    player = failing(playing(**SECOND))
    player.until("Resetting")
    assert player.count == 1
    player.until("Running")
    return player


def evacuate() -> Player:
    player = started(playing(**SECOND))
    player.world.nodes = {"node-a": frozenset({"nvidia.com/gpu"})}
    player.settle()
    assert player.phase == "Resetting"
    assert player.count == 0
    return player


def failed() -> Player:
    player = failing(playing(**SECOND, retryLimit="0"))
    player.until("Failed")
    return player


def suspended() -> Player:
    player = started(playing())
    player.suspend(True)
    player.settle()
    player.suspend(False)  # too late: what is begun is brought to its end
    player.until("Running")
    assert "suspended" in player.rows
    return player


def resetting_suspend() -> Player:
    player = failing(playing(failureGracePeriodDuration="1s", retryPausePeriodDuration="1h"))
    player.until("Resetting")
    player.suspend(True)
    player.until("Suspended")
    return player


def retry() -> Player:
    player = reset()
    assert player.world.condition("Unhealthy")["status"] == "False"
    assert player.world.condition("DeletingResources") == {}
    return player


def failed_delete() -> Player:
    player = failing(playing(**SECOND, retryLimit="0", deletionOnFailureGracePeriodDuration="1h"))
    player.until("Failed")
    assert player.world.condition("DeletingResources")["reason"] == "DeletionPaused"
    player.wait(3600 - 2)
    assert player.world.pods
    player.wait(10)
    assert player.world.condition("ResourcesDeployed")["status"] == "False"
    return player


def failed_deleted() -> Player:
    player = failed()
    player.wait(10)
    assert player.world.condition("ResourcesDeployed")["reason"] == "Failed"
    assert player.world.condition("QuotaReserved")["reason"] == "Failed"
    assert player.last is not None
    assert player.last.next is None
    return player


def succeeded_delete() -> Player:
    player = succeeded()
    player.wait(7 * 86_400 + 10)
    assert not player.world.objects
    assert player.world.condition("ResourcesDeployed")["reason"] == "Succeeded"
    return player


def terminating() -> Player:
    player = started(playing())
    player.delete()
    player.wait(10)
    assert player.world.wrapper is None
    return player


SCENARIOS: dict[str, Callable[[], Player]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        *(
            seen,
            leftover,
            resume,
            resuming_suspend,
            created,
            create_fatal,
            create_late,
            create_last,
        ),
        *(running_suspend, succeeded, reset, evacuate, failed, suspended, resetting_suspend, retry),
        *(failed_delete, failed_deleted, succeeded_delete, terminating),
    )
} | {"reset-deleted": reset, "succeeded-deleted": succeeded_delete, "gone": terminating}


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_table_is_taken(row: str) -> None:
    player = SCENARIOS[row]()
    assert row in player.rows, player.rows


def test_the_readme_shows_the_table_of_the_code() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    table = re.findall(
        r"^\| `([a-z-]+)` \| [^|]+ \| [^|]+ \| ([A-Z][a-z]+) \|", readme, re.MULTILINE
    )
    assert dict(table) == ROWS
    assert len(table) == len(ROWS)


def test_every_phase_is_led_to() -> None:
    assert set(ROWS.values()) == set(PHASES) - {""}


@pytest.mark.parametrize(("limit", "resets"), [("-1", 0), ("0", 0), ("1", 1), ("3", 3)])
def test_exactly_as_many_resets_are_counted_as_the_limit_says(limit: str, resets: int) -> None:
    player = playing(**SECOND, retryLimit=limit)
    for _ in range(resets):
        failing(player)
        player.until("Resetting")
        player.until("Running")
    failing(player)
    player.until("Failed")
    assert player.count == resets


def test_evacuations_double_their_pauses_and_are_few_when_the_label_is_everywhere() -> None:
    player = playing(retryPausePeriodDuration="10s", retryLimit="3")
    player.settle()
    player.world.nodes = {"node-a": frozenset({"nvidia.com/gpu"})}
    start = player.world.now
    while (player.world.now - start).total_seconds() < 100 * 10:
        player.world.run()
        made = player.settle()
        assert made.next is not None
        if made.next.at is not None:
            player.world.now = max(made.next.at, player.world.now)
    assert player.rows.count("evacuate") <= 6
    assert player.count == 0


def test_an_evacuation_at_the_limit_fails() -> None:
    player = started(playing(retryLimit="0"))
    player.world.nodes = {"node-a": frozenset({"nvidia.com/gpu"})}
    player.settle()
    assert player.phase == "Failed"
    assert player.world.condition("Unhealthy")["reason"] == "AutopilotNoExecute"


def test_from_creation_to_readiness_takes_at_most_nine_requests_events_included() -> None:
    player = started(playing())
    assert player.world.requests + len(player.world.events) <= 9


def test_a_reset_is_said_with_its_number_its_cause_and_when_all_is_created_again() -> None:
    player = playing(failureGracePeriodDuration="0s", retryLimit="3")
    for number in (1, 2):
        started(player)
        name = next(iter(player.world.pods))
        player.world.pods[name]["spec"]["nodeName"] = "node-b"
        player.world.pods[name]["status"] = {
            "phase": "Failed",
            "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 137}}}],
        }
        player.settle()
        assert player.world.events[-1] == (
            f"Resetting: reset {number} of 3: 1 failed pod, {name} on node-b exited with 137; "
            "created again in 1m30s, once everything is deleted"
        )
        player.until("Running")


def test_the_pause_runs_from_the_end_of_deletion() -> None:
    player = started(playing(failureGracePeriodDuration="0s", retryPausePeriodDuration="5s"))
    player.world.held |= {one["metadata"]["uid"] for one in player.world.pods.values()}
    player.world.run("Failed")
    player.settle()
    assert player.phase == "Resetting"
    begun = player.world.now
    player.wait(10)
    player.world.pods.clear()
    player.until("Running")
    assert (player.world.now - begun).total_seconds() >= 15


def test_the_second_failure_has_a_whole_grace_again() -> None:
    player = failing(playing(failureGracePeriodDuration="10s", retryPausePeriodDuration="1s"))
    player.until("Resetting")
    player.until("Running")
    player.wait(60)
    player.world.run("Failed")
    made = player.settle()
    assert player.phase == "Running"
    assert made.next is not None
    assert made.next.at is not None
    assert (made.next.at - player.world.now).total_seconds() >= 10


def test_a_workload_that_mends_itself_in_its_grace_is_not_reset() -> None:
    player = failing(playing())
    assert player.world.condition("Unhealthy")["status"] == "True"
    uid = player.object()["metadata"]["uid"]
    player.world.pod(uid, "Running")
    player.wait(1000)
    assert player.phase == "Running"
    assert player.count == 0
    assert player.world.condition("Unhealthy")["status"] == "False"


def test_success_is_kept_for_its_time_from_success_however_long_it_ran() -> None:
    player = started(playing(successTTLDuration="5s"))
    player.wait(8 * 86_400)
    player.complete()
    player.settle()
    player.wait(4)
    assert player.world.objects
    player.wait(10)
    assert not player.world.objects


def test_a_job_that_is_gone_after_its_end_is_not_missing() -> None:
    player = playing(job("a"), job("b"))
    started(player)
    player.complete("a")
    for one in player.world.pods.values():
        owner = one["metadata"]["ownerReferences"][0]["uid"]
        one["status"]["phase"] = (
            "Succeeded" if owner == player.object("a")["metadata"]["uid"] else "Running"
        )
    player.settle()
    del player.world.objects["batch/v1", "Job", "a"]
    player.world.collect()
    player.wait(1000)
    assert player.phase == "Running"
    player.complete("b")
    player.settle()
    assert player.phase == "Succeeded"


def comes_late(player: Player, name: str) -> None:
    """A create that was lost is done after all."""
    late = job(name)
    owner = {"kind": "AppWrapper", "name": "w", "uid": "wrapper-uid", "controller": True}
    late["metadata"] |= {"uid": "late", "ownerReferences": [owner]}
    player.world.objects["batch/v1", "Job", name] = late


@pytest.mark.parametrize("phase", ["Resetting", "Failed"])
def test_what_comes_late_is_deleted_before_anything_is_created_or_said_to_be_gone(
    phase: str,
) -> None:
    periods = {**SECOND, "retryPausePeriodDuration": "1h"}
    limit = {"retryLimit": "0"} if phase == "Failed" else {}
    player = failing(playing(**periods, **limit))
    player.wait(30)
    assert player.phase == phase
    assert player.world.condition("ResourcesDeployed")["status"] == "False"
    comes_late(player, "late")
    player.wait(30)
    assert player.phase == phase
    assert player.world.objects == {}
    assert player.world.condition("ResourcesDeployed")["status"] == "False"


def test_quota_is_held_for_what_is_there_although_all_was_said_to_be_gone() -> None:
    player = started(playing())
    player.suspend(True)
    player.until("Suspended")
    assert player.world.condition("QuotaReserved")["status"] == "False"
    comes_late(player, "train")
    player.world.held.add(player.world.pods[player.world.pod("late")]["metadata"]["uid"])
    player.settle()
    assert player.phase == "Suspending"
    for type_ in ("QuotaReserved", "ResourcesDeployed"):
        assert player.world.condition(type_)["status"] == "True"
    player.world.pods.clear()
    player.until("Suspended")
    assert player.world.condition("QuotaReserved")["status"] == "False"


def test_a_failed_workload_holds_its_quota_until_nothing_is_left() -> None:
    player = started(playing(**SECOND, retryLimit="0"))
    player.world.held |= {pod["metadata"]["uid"] for pod in player.world.pods.values()}
    player.world.run("Failed")
    player.until("Failed")
    assert player.world.condition("QuotaReserved")["status"] == "True"
    player.world.pods.clear()
    player.wait(10)
    assert player.world.condition("QuotaReserved")["status"] == "False"


@pytest.mark.parametrize("phase", ["Nonsense", "Terminating", "x" * 5000])
def test_a_phase_that_nobody_knows_ends_in_a_clean_start(phase: str) -> None:
    player = started(playing())
    player.world.wrapper["status"]["phase"] = phase  # type: ignore[index]
    player.until("Running")
    assert len(player.world.created) == 2


def test_a_wrapper_of_another_manager_is_not_touched() -> None:
    raw = wrapper()
    raw["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    player = Player(raw)
    assert player.settle().next is None
    assert player.world.requests == 0


def test_a_wrapper_that_is_deleted_in_the_pause_of_a_reset_gives_its_quota_back_before_it_goes() -> (
    None
):
    player = failing(playing(failureGracePeriodDuration="1s", retryPausePeriodDuration="1h"))
    player.wait(30)
    assert player.world.condition("ResourcesDeployed")["reason"] == "Resetting"
    player.delete()
    player.wait(30)
    assert player.world.wrapper is None
    assert player.rows[-1] == "gone"


def test_who_runs_is_not_unhealthy_and_each_phase_is_one_event() -> None:
    player = started(playing())
    assert player.world.condition("Unhealthy")["status"] == "False"
    assert [event.partition(":")[0] for event in player.world.events] == ["Resuming", "Running"]
    player.complete()
    player.settle()
    assert player.world.events[-1].startswith("Succeeded")
