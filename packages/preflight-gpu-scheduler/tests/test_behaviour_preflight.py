"""Preflight's webhook beside ours, both real, called in either order: its checks see the GPUs of
the workload and no others.
"""

from __future__ import annotations

from typing import Any

import pytest
from doors import admitting, ask_preflight, preflight
from plane import Plane
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.core.admission import REFERENCES

pytestmark = [pytest.mark.timeout(400), pytest.mark.anyio]
CONFIG: dict[str, Any] = {
    "checks": [{"name": "dcgm-diag", "image": "d"}, {"name": "nccl-loopback", "image": "l"}],
    "gpuDetection": {"resourceNames": ["nvidia.com/gpu", names.COUNT_RESOURCE]},
    "deviceVariables": {"enabled": True},
    "preflightConfigs": {"enabled": False},
}
WANTED = {one["name"]: one for one in REFERENCES}


def _devices(container: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one for one in container["env"] if one["name"] in WANTED}


@pytest.mark.parametrize("first", ["preflight", "ours"])
async def test_checks_and_workload_have_the_same_gpus_in_either_order_of_the_two_webhooks(
    world: Plane, first: str
) -> None:
    marks = ("a", "b") if first == "ours" else ("b", "a")
    await world.claim("two", 2)
    with preflight(world, CONFIG) as (port, authority):
        await admitting(world, f"{marks[0]}-{world.namespace}")
        await ask_preflight(world, f"{marks[1]}-{world.namespace}", port, authority)
        tries = iter(range(10_000))

        async def both_asked() -> Any:
            made = await world.try_pod(f"p-{next(tries)}", claim="two", init=True)
            return made if len(made["spec"]["initContainers"]) > 1 else None

        spec = (await world.until("the API server asks both", both_asked))["spec"]
    everybody = [*spec["initContainers"], *spec["containers"]]
    assert {one["name"] for one in everybody} == {
        "preflight-dcgm-diag",
        "preflight-nccl-loopback",
        "i",
        "main",
    }
    assert [_devices(one) for one in everybody] == [WANTED] * len(everybody)
    checks = [one for one in everybody if one["name"].startswith("preflight-")]
    for one in checks:
        assert one["resources"]["limits"][names.COUNT_RESOURCE] == "2"
        assert {"name": "EXPECTED_GPUS", "value": "2"} in one["env"]
    assert spec["containers"][0]["resources"]["limits"][names.COUNT_RESOURCE] == "2"
