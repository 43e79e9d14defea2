"""FailureGracePeriod is for a workload to recover by itself, whichever of the three rules found it
unhealthy.
"""

from __future__ import annotations

import pytest
from player import playing


@pytest.mark.parametrize(("lost", "phase"), [(True, ""), (False, "Pending"), (False, "Failed")])
def test_what_was_unhealthy_by_rule_6_7_or_8_and_mends_itself_within_its_grace_is_not_reset(
    lost: bool, phase: str
) -> None:
    periods = {"admissionGracePeriodDuration": "3s", "warmupGracePeriodDuration": "5s"}
    player = playing(**periods, failureGracePeriodDuration="60s")
    player.settle()
    player.world.run()
    player.settle()
    uid = next(iter(player.world.pods))
    if lost:
        player.world.pods.pop(uid)
    else:
        player.world.pods[uid]["status"]["phase"] = phase
    player.wait(20)
    assert player.world.condition("Unhealthy")["status"] == "True"
    assert player.phase == "Running"
    player.world.pods.pop(uid, None)
    player.world.pod(player.object()["metadata"]["uid"], "Running")
    player.wait(1000)
    assert player.world.condition("Unhealthy")["status"] == "False"
    assert (player.phase, player.count) == ("Running", 0)
