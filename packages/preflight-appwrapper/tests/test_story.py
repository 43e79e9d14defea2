"""The life of one AppWrapper, from `kubectl apply` to its deletion: a training Job that waits for
quota, loses a pod, leaves a sick node, and succeeds.
"""

from __future__ import annotations

from player import Player, job, wrapper

PERIODS = {
    "failureGracePeriodDuration": "30s",
    "retryPausePeriodDuration": "60s",
    "successTTLDuration": "1h",
}


def conditions(player: Player) -> dict[str, str]:
    names = ("QuotaReserved", "ResourcesDeployed", "PodsReady", "Unhealthy")
    return {name: player.world.condition(name).get("status", "") for name in names}


def events(player: Player) -> list[str]:
    """Reasons of the Events since the last call."""
    reasons = [event.partition(":")[0] for event in player.world.events]
    player.world.events.clear()
    return reasons


def test_the_life_of_an_appwrapper() -> None:
    # A user applies it, and Kueue's webhook suspends it: nothing exists until there is quota.
    player = Player(wrapper(job("train", parallelism=2), suspend=True, annotations=PERIODS))
    player.settle()
    assert player.phase == "Suspended"
    assert player.world.objects == {}

    # Kueue admits it. The controller takes the quota, creates the Job, and its pods are scheduled.
    player.suspend(False)
    player.settle()
    assert player.phase == "Running"
    assert [name for name, _ in player.world.created] == ["train"]
    assert len(player.world.pods) == 2
    assert player.world.condition("PodsReady")["status"] == "False"

    # The kubelets start the pods: the workload is ready.
    player.world.run()
    player.settle()
    assert conditions(player) == {
        "QuotaReserved": "True",
        "ResourcesDeployed": "True",
        "PodsReady": "True",
        "Unhealthy": "False",
    }
    assert events(player) == ["Resuming", "Running"]

    # A pod fails, and the Job's controller does not replace it. That is unhealthy, and has a grace.
    next(iter(player.world.pods.values()))["status"]["phase"] = "Failed"
    player.settle()
    assert player.phase == "Running"
    assert player.world.condition("Unhealthy")["reason"] == "FoundFailedPods"

    # The grace is over: all of it is deleted, and the quota kept. This reset counts.
    player.wait(40)
    assert player.phase == "Resetting"
    assert player.count == 1
    assert player.world.objects == {}
    assert conditions(player)["QuotaReserved"] == "True"
    assert conditions(player)["ResourcesDeployed"] == "False"

    # After the pause it is created anew, and runs.
    player.until("Running")
    player.world.run()
    player.settle()
    assert conditions(player)["Unhealthy"] == "False"
    assert events(player) == ["FoundFailedPods", "Resetting", "Resuming", "Running"]

    # A health check marks the node of its pods: they leave it at once, and nobody counts that.
    player.world.nodes = {"node-a": frozenset({"nvidia.com/gpu"})}
    player.settle()
    assert player.phase == "Resetting"
    assert player.world.condition("Unhealthy")["reason"] == "AutopilotNoExecute"
    assert player.count == 1

    # The next pods are scheduled elsewhere, run, and end well.
    player.world.nodes = {}
    player.until("Running")
    player.world.run()
    player.settle()
    player.complete()
    player.settle()
    assert player.phase == "Succeeded"
    assert conditions(player)["QuotaReserved"] == "False"
    assert conditions(player)["ResourcesDeployed"] == "True", "logs can still be read"
    assert events(player)[-1] == "Succeeded"

    # What has succeeded is deleted an hour later; the AppWrapper itself is its user's to delete.
    player.wait(3700)
    assert player.phase == "Succeeded"
    assert player.world.objects == {}
    assert conditions(player)["ResourcesDeployed"] == "False"
    player.delete()
    player.wait(10)
    assert player.world.wrapper is None
