"""What the chart makes of a scheduler and the extender beside it."""

from __future__ import annotations

import pytest
from preflight_testing.helm import UMBRELLA, render

pytestmark = pytest.mark.component  # renders charts
NAME = "preflight-gpu-scheduler"


def test_a_kube_scheduler_whose_extender_is_not_ready_ends_and_so_does_not_lead_for_long() -> None:
    values = {NAME: {"enabled": True, "kubeScheduler": {"image": "x"}}}
    made = {
        one["metadata"]["name"]: one
        for one in render(UMBRELLA, values)
        if one["kind"] == "Deployment"
    }
    pod = made[f"{NAME}-scheduler"]["spec"]["template"]["spec"]
    scheduler, extender = (
        next(one for one in pod["containers"] if one["name"] == name)
        for name in ("kube-scheduler", "extender")
    )
    ports = {one["name"]: one["containerPort"] for one in extender["ports"]}
    ready = extender["readinessProbe"]["httpGet"]
    wanted = {"path": ready["path"], "port": ports[ready["port"]]}
    assert scheduler["livenessProbe"]["httpGet"] == wanted
    assert scheduler["startupProbe"]["httpGet"] == wanted
