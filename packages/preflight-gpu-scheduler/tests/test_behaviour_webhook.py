"""Pods and claims through a real API server that asks our webhook, a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from doors import admitting
from plane import Plane, plane
from preflight_gpu_scheduler.api import names
from preflight_kube.client.client import KubeError
from preflight_testing.apiserver import ApiServer

pytestmark = [pytest.mark.timeout(400), pytest.mark.anyio]


@pytest.fixture
async def world(real_api_server: ApiServer) -> AsyncIterator[Plane]:
    """With our webhook, and a claim for two GPUs."""
    async with plane(real_api_server) as made:
        await admitting(made)
        await made.claim("two", 2)
        yield made


async def test_a_pod_with_a_claim_gets_variables_in_every_container_and_what_the_scheduler_counts(
    world: Plane,
) -> None:
    made = await world.try_pod("p", claim="two", init=True)
    spec = made["spec"]
    wanted = {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
    for container in (*spec["containers"], *spec["initContainers"]):
        assert {one["name"] for one in container["env"]} == wanted
    assert spec["containers"][0]["resources"]["limits"][names.COUNT_RESOURCE] == "2"
    assert spec["schedulerName"] == world.config.scheduler_name
    assert "schedulingGates" not in spec
    assert any(one.get("key") == names.MANAGED_TAINT for one in spec["tolerations"])


GPUS = "gpu.nvidia.com"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a claim name that is none": ({"claim": "Not A Name"}, "is not the name of a GpuClaim"),
    "another scheduler": ({"claim": "two", "schedulerName": "volcano"}, "spec.schedulerName"),
    "a node of its own": ({"claim": "two", "nodeName": "a"}, "spec.nodeName"),
    "a device plugin's GPUs beside it": (
        {"claim": "two", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
        "nvidia.com/gpu",
    ),
    "a claim of a driver's GPUs beside it": (
        {
            "claim": "two",
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "gpus"}],
        },
        '"gpus" asks for GPUs beside a GpuClaim',
    ),
    "a driver's GPUs by their class": (
        {
            "claim": "two",
            "resources": {"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}},
        },
        GPUS,
    ),
    "another count": (
        {"claim": "two", "resources": {"limits": {names.COUNT_RESOURCE: "3"}}},
        "is for 2",
    ),
}


async def test_what_cannot_be_is_refused_in_one_sentence(world: Plane) -> None:
    devices = {"requests": [{"name": "g", "exactly": {"deviceClassName": GPUS}}]}
    await world.client.create(
        f"/apis/resource.k8s.io/v1/namespaces/{world.namespace}/resourceclaimtemplates",
        {"metadata": {"name": "gpus"}, "spec": {"spec": {"devices": devices}}},
    )
    for what, (pod, sentence) in REFUSED.items():
        with pytest.raises(KubeError) as error:
            await world.try_pod(f"p-{list(REFUSED).index(what)}", **pod)
        assert sentence in str(error.value), what


async def test_forged_annotations_are_taken_away_and_own_variables_are_replaced(
    world: Plane,
) -> None:
    own = [{"name": "CUDA_VISIBLE_DEVICES", "value": "7"}]
    made = await world.try_pod(
        "p", claim="two", env=own, annotations={names.ALLOCATED_ANNOTATION: "a:7"}
    )
    assert names.ALLOCATED_ANNOTATION not in made["metadata"]["annotations"]
    values = [
        one for one in made["spec"]["containers"][0]["env"] if one["name"] == "CUDA_VISIBLE_DEVICES"
    ]
    assert [one["valueFrom"]["fieldRef"]["fieldPath"] for one in values] == [
        f"metadata.annotations['{names.CUDA_ANNOTATION}']"
    ]


CLAIMS: dict[str, tuple[dict[str, Any], str]] = {
    "0": ({"devices": {"count": 0}}, "spec.devices.count"),
    "-1": ({"devices": {"count": -1}}, "spec.devices.count"),
    "65": ({"devices": {"count": 65}}, "spec.devices.count"),
    "a text": ({"devices": {"count": "2"}}, "spec.devices.count"),
    "MIG": ({"devices": {"exclusivity": "MIG"}}, "spec.devices.exclusivity"),
    "shared": ({"devices": {"exclusivity": "Shared"}}, "spec.devices.exclusivity"),
    "a policy that is none": ({"devices": {"policy": "random"}}, "spec.devices.policy"),
    "ids without their policy": (
        {"devices": {"preferIds": [1]}},
        "is read with policy preferIds only",
    ),
    "a policy without its ids": (
        {"devices": {"policy": "preferIds"}},
        "is empty with policy preferIds",
    ),
    "a label's value that no node has": (
        {"selector": {"matchLabels": {"a": "v" * 64}}},
        "spec.selector.matchLabels.a",
    ),
    "a label's key that no node has": (
        {"selector": {"matchLabels": {"k" * 318: "v"}}},
        "spec.selector.matchLabels: has a key of more than 317 characters",
    ),
    "bandwidth without Required": (
        {"topology": {"minBandwidthGBps": 5}},
        "is read with mode Required only",
    ),
}


async def test_a_claim_that_cannot_be_honored_is_refused_by_the_api_server(world: Plane) -> None:
    path = f"/apis/{names.API_VERSION}/namespaces/{world.namespace}/gpuclaims"
    for what, (spec, sentence) in CLAIMS.items():
        raw = {"kind": "GpuClaim", "metadata": {"name": "c"}, "spec": spec}
        raw["apiVersion"] = names.API_VERSION
        with pytest.raises(KubeError) as error:
            await world.client.create(path, raw)
        assert sentence in str(error.value), what
    with pytest.raises(KubeError, match="cannot be changed"):
        await world.client.merge_patch(f"{path}/two", {"spec": {"devices": {"count": 3}}})
