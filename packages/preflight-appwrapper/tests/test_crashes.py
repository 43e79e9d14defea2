"""Each request of a scenario is once kept from arriving, and once robbed of its answer; the
controller dies, and another goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from player import Player, bare_pod, job, playing, service

ANNOTATIONS = {
    "failureGracePeriodDuration": "1s",
    "retryPausePeriodDuration": "1s",
    "successTTLDuration": "5s",
}


def player(**annotations: str) -> Player:
    return playing(service(), job(), bare_pod(), **ANNOTATIONS, **annotations)


def running(one: Player) -> None:
    for _ in range(20):
        one.wait(1)
        if one.phase == "Running":
            break
    assert one.phase == "Running"
    one.world.run()
    one.wait(1)


def creation(one: Player) -> None:
    running(one)


def reset(one: Player) -> None:
    running(one)
    next(iter(one.world.pods.values()))["status"]["phase"] = "Failed"
    one.wait(20)
    running(one)


def evacuation(one: Player) -> None:
    running(one)
    one.world.nodes = {"node-a": frozenset({"nvidia.com/gpu"})}
    one.wait(3)
    one.world.nodes = {}
    one.wait(10)
    running(one)


def suspension(one: Player) -> None:
    running(one)
    one.suspend(True)
    one.wait(20)
    assert one.phase == "Suspended"
    one.suspend(False)
    running(one)


def failure(one: Player) -> None:
    running(one)
    del one.world.objects["batch/v1", "Job", "train"]
    one.world.collect()
    one.wait(30)


def success(one: Player) -> None:
    running(one)
    one.complete()
    one.wait(40)


def deletion(one: Player) -> None:
    running(one)
    one.delete()
    one.wait(30)


def deletion_in_a_reset(one: Player) -> None:
    running(one)
    next(iter(one.world.pods.values()))["status"]["phase"] = "Failed"
    one.wait(3)
    one.delete()
    one.wait(30)


SCENARIOS = [
    creation,
    reset,
    evacuation,
    suspension,
    failure,
    success,
    deletion,
    deletion_in_a_reset,
]


def end_state(one: Player) -> tuple[object, ...]:
    objects = sorted((kind, name.rstrip("0123456789")) for _, kind, name in one.world.objects)
    owners = sorted(it["metadata"]["uid"] for it in one.world.objects.values())
    orphans = [
        it
        for it in one.world.pods.values()
        if it["metadata"]["ownerReferences"][0]["uid"] not in owners
    ]
    status = [
        one.world.condition(it).get("status")
        for it in ("QuotaReserved", "ResourcesDeployed", "PodsReady", "Unhealthy")
    ]
    count = one.world.wrapper and one.world.wrapper["status"].get("resettingCount", 0)
    return one.phase, count, objects, len(one.world.pods), len(orphans), status


@pytest.mark.parametrize("fault", ["lost", "answer lost"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
def test_a_controller_that_dies_at_any_request_changes_nothing_of_the_end(
    scenario: Callable[[Player], None], fault: str
) -> None:
    undisturbed = player()
    scenario(undisturbed)
    wanted, total = end_state(undisturbed), undisturbed.world.requests
    assert total > 5
    for number in range(1, total + 1):
        one = player()
        one.world.faults = lambda at, number=number: fault if at == number else ""  # type: ignore[misc]
        scenario(one)
        assert end_state(one) == wanted, f"request {number} of {total} {fault}"


def test_a_controller_that_dies_after_every_third_request_still_comes_to_the_end() -> None:
    one = player()
    one.world.faults = lambda at: "answer lost" if at % 3 == 0 else ""
    deletion(one)
    assert one.world.wrapper is None
    assert not one.world.objects
