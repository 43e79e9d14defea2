"""A scheduler and the extender beside it, and the namespace of the locks, as the chart has them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import GPU_SCHEDULER, REQUIRED, UMBRELLA, Release, render

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


@pytest.mark.kube
def test_a_later_release_of_any_name_takes_the_namespace_of_the_locks_as_it_is(
    real_api_server: ApiServer, tmp_path: Path
) -> None:
    server, kubeconfig = real_api_server, real_api_server.kubeconfig(tmp_path / "kubeconfig")
    values = {**REQUIRED[GPU_SCHEDULER], "lockNamespace": f"locks-{uuid.uuid4().hex[:8]}"}
    path = f"/api/v1/namespaces/{values['lockNamespace']}"
    places = [f"home-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    first, second = (
        Release(place, kubeconfig, name=place, chart=GPU_SCHEDULER) for place in places
    )
    first.install(values, wait=False)
    made = server.call("GET", path)["metadata"]
    first.uninstall(wait=False)
    try:
        second.install(values, wait=False)
        assert server.call("GET", path)["metadata"]["uid"] == made["uid"]
        second.upgrade(values, wait=False)
        kept = server.call("GET", path)["metadata"]
        assert kept["uid"] == made["uid"]
        assert kept["annotations"]["meta.helm.sh/release-name"] == first.name
    finally:
        second.uninstall(wait=False)
