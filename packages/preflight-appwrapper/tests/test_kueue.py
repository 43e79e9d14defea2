"""Kueue's side of the contract: what it reads and writes on a wrapper, in every phase."""

from __future__ import annotations

import pytest
from player import Player, job, wrapper
from preflight_appwrapper.api.names import LABEL

INFOS = [{"labels": {"kueue": "admitted"}, "nodeSelector": {"flavor": "a100"}}]


class Kueue:
    """Only what the integration does: it starts, it stops, and it asks four questions."""

    def __init__(self, player: Player) -> None:
        self.player = player

    def admit(self) -> None:
        assert self.player.world.wrapper is not None
        self.player.world.wrapper["spec"]["components"][0]["podSetInfos"] = INFOS
        self.player.suspend(False)

    def stop(self) -> None:
        assert self.player.world.wrapper is not None
        self.player.world.wrapper["spec"]["components"][0].pop("podSetInfos", None)
        self.player.suspend(True)

    def active(self) -> bool:
        return bool(self.player.world.condition("QuotaReserved").get("status") == "True")

    def finished(self) -> bool:
        deployed = self.player.world.condition("ResourcesDeployed").get("status") == "True"
        return self.player.phase == "Succeeded" or (self.player.phase == "Failed" and not deployed)

    def ready(self) -> bool:
        return bool(self.player.world.condition("PodsReady").get("status") == "True")

    def pod_sets(self) -> object:
        assert self.player.world.wrapper is not None
        status = self.player.world.wrapper.get("status", {}).get("componentStatus", [])
        return [one["podSets"] for one in status]


@pytest.fixture
def kueue() -> Kueue:
    annotations = {"failureGracePeriodDuration": "2s", "retryPausePeriodDuration": "30s"}
    return Kueue(Player(wrapper(job(), suspend=True, annotations=annotations)))


def test_its_pods_carry_what_kueue_has_decided(kueue: Kueue) -> None:
    kueue.player.settle()
    assert not kueue.active()
    kueue.admit()
    kueue.player.settle()
    made = kueue.player.object()["spec"]["template"]
    assert made["metadata"]["labels"] == {"kueue": "admitted", LABEL: "w"}
    assert made["spec"]["nodeSelector"] == {"flavor": "a100"}
    assert kueue.active()
    assert not kueue.ready()
    kueue.player.world.run()
    kueue.player.settle()
    assert kueue.ready()
    assert not kueue.finished()


@pytest.mark.parametrize("phase", ["Resuming", "Running", "Resetting", "paused"])
def test_it_can_be_preempted_in_every_phase_and_admitted_again(kueue: Kueue, phase: str) -> None:
    player = kueue.player
    player.settle()
    sets = kueue.pod_sets()
    kueue.admit()
    if phase == "Resuming":
        while player.phase != "Resuming":
            player.look()
    else:
        player.settle()
    if phase in {"Resetting", "paused"}:
        player.world.run("Failed")
        player.until("Resetting")
        if phase == "paused":
            player.wait(5)
            assert player.world.condition("ResourcesDeployed")["reason"] == "Resetting"
        assert kueue.active(), "the quota is kept while it is reset"
    kueue.stop()
    while kueue.active():
        assert player.phase != "Suspended"
        player.look()
        player.world.sleep(0.5)
    assert player.phase == "Suspended"
    assert not player.world.objects
    assert not player.world.pods
    assert kueue.pod_sets() == sets
    kueue.admit()
    player.until("Running")
    assert kueue.pod_sets() == sets
    assert kueue.active()


def test_success_gives_the_quota_back_at_once_and_failure_only_when_nothing_is_left(
    kueue: Kueue,
) -> None:
    player = kueue.player
    kueue.admit()
    player.settle()
    player.world.run()
    player.settle()
    player.complete()
    player.settle()
    assert kueue.finished()
    assert not kueue.active()
    other = Player(wrapper(annotations={"retryLimit": "0", "failureGracePeriodDuration": "0s"}))
    other.settle()
    other.world.held |= {one["metadata"]["uid"] for one in other.world.pods.values()}
    other.world.run("Failed")
    other.settle()
    assert other.phase == "Failed"
    assert Kueue(other).active()
    assert not Kueue(other).finished()
    other.world.pods.clear()
    other.wait(5)
    assert not Kueue(other).active()
    assert Kueue(other).finished()
