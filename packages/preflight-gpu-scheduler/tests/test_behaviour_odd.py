"""Objects at the edge of what the API server takes: long names, names with dots, statuses that
contradict themselves, odd environments.
"""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest
from doors import admitting
from plane import Plane
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.core.admission import REFERENCES

pytestmark = [pytest.mark.timeout(400), pytest.mark.anyio]
NODES = {
    "dots": "ip-10-0-0-1.ec2.internal",
    "250 characters": ".".join([*["n" * 49] * 4, "n" * 50]),
    "like a lease": "gpu-a-1",
}
LONG = ".".join(["p" * 63] * 3) + "." + "p" * 61


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
async def test_a_pod_with_a_name_of_253_characters_is_placed_on_a_node_of_any_name_and_leaves_nothing_there(
    world: Plane, node: str
) -> None:
    assert len(LONG) == 253
    await world.node(node, 2)
    await world.claim("two", 2)
    await world.services()
    await world.pod(LONG, "two")
    pod = await world.bound(LONG)
    assert pod.allocated is not None
    assert (pod.allocated.node, pod.allocated.ids) == (node, (0, 1))
    await world.explained()
    await world.delete_pod(LONG)

    await world.locked(0)


STATUSES: dict[str, tuple[dict[str, Any], str, str]] = {
    "two devices of one id": (
        {"total": 2, "devices": [{"id": 0}, {"id": 0}]},
        "GpuNodeStatus is not valid",
        "not valid: status.devices: the id 0 is there more than once; each GPU has its own.",
    ),
    "two devices of one UUID": (
        {"total": 2, "devices": [{"id": 0, "uuid": "GPU-x"}, {"id": 1, "uuid": "GPU-x"}]},
        "GpuNodeStatus is not valid",
        "not valid: status.devices: the uuid GPU-x is there more than once; each GPU has its own.",
    ),
    "no devices": ({"total": 0, "devices": []}, "node has too few usable GPUs", "no devices"),
}
"""What the API server takes; why the extender gives no GPU of it, and what `show` says of it."""


async def test_a_status_that_contradicts_itself_or_is_of_no_node_gives_no_gpu_and_says_so(
    world: Plane,
) -> None:
    await world.claim("one", 1)
    extender = await world.extender()
    await world.pod("p", "one")
    raw = await world.raw(f"/api/v1/namespaces/{world.namespace}/pods/p")
    await world.until("the pod is seen", lambda: extender.sees((world.namespace, "p")))
    path = f"/apis/{names.API_VERSION}/gpunodestatuses"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{extender.port}", timeout=30) as http:

        async def refused(node: str) -> str | None:
            answer = (await http.post("/filter", json={"Pod": raw, "NodeNames": [node]})).json()
            assert answer["Error"] == ""
            said = {
                **(answer["FailedNodes"] or {}),
                **(answer["FailedAndUnresolvableNodes"] or {}),
            }
            found = said.get(node)
            return str(found) if found else None

        for number, (what, (status, why, _)) in enumerate(STATUSES.items()):
            node = f"odd-{number}"
            await world.node(node, 2)
            await world.status_of(node, status)  # the API server takes it

            async def told(node: str = node, why: str = why) -> bool:
                return await refused(node) == why

            await world.until(f"a status with {what} is refused", told)
        await world.status_of("ghost", {"total": 1, "devices": [{"id": 0}]})
        world.cleanup.append(f"{path}/ghost")
        assert await refused("ghost") == "node is not known"
        show = world.command("show", name="show")
        assert await anyio.to_thread.run_sync(show.wait) == 0, world.log("show")
        rows = dict(line.split(maxsplit=1) for line in world.log("show").splitlines())
        for number, (_, _, told_of_it) in enumerate(STATUSES.values()):
            assert rows[f"odd-{number}"].startswith(told_of_it)


OWN: dict[str, list[dict[str, Any]]] = {
    "a value": [
        {"name": "CUDA_VISIBLE_DEVICES", "value": "7"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    ],
    "a reference": [
        {
            "name": "CUDA_VISIBLE_DEVICES",
            "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}},
        },
        {
            "name": "NVIDIA_VISIBLE_DEVICES",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
        },
    ],
    "twice": [
        {"name": "CUDA_VISIBLE_DEVICES", "value": "7"},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "6"},
    ],
}


async def test_whatever_a_pod_says_of_its_devices_itself_its_own_gpus_are_what_counts(
    world: Plane,
) -> None:
    """Of envFrom, which nobody reads at admission, an entry of the same name in env is the one that
    holds.
    """

    await admitting(world)
    await world.claim("two", 2)
    wanted = {one["name"]: one for one in REFERENCES}
    source = [{"configMapRef": {"name": "devices", "optional": True}}]
    for number, (what, env) in enumerate(OWN.items()):
        made = await world.try_pod(f"p-{number}", claim="two", env=env, envFrom=source)
        container = made["spec"]["containers"][0]
        devices = [one for one in container["env"] if one["name"] in wanted]
        assert sorted(one["name"] for one in devices) == sorted(wanted), what
        assert {one["name"]: one for one in devices} == wanted, what
        assert container["envFrom"] == source


async def test_a_claim_of_another_namespace_is_none_and_the_pod_waits(world: Plane) -> None:
    other = await world.make_namespace(f"{world.namespace}-b")
    await world.node("a", 2)
    await world.claim("theirs", 1, namespace=other)
    await world.services()
    await world.pod("p", "theirs")

    await world.told("GpuClaimMissing", words="there is no GpuClaim theirs in this namespace")
    assert not (await world.read_pod("p")).bound
