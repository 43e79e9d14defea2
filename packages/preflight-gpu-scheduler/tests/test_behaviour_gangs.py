"""Gangs by a real kube-scheduler: all that it asks of a node counts for a gang, all or none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest
from plane import Plane, having
from preflight_gpu_scheduler.api import messages

pytestmark = [pytest.mark.timeout(400), pytest.mark.anyio]
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
OURS = {"matchLabels": {"of": "g"}}


def _node_affinity(key: str, value: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    return {"nodeSelectorTerms": [term]}


SPECS: dict[str, dict[str, Any]] = {
    "required affinity": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": _node_affinity("disk", "fast")
            }
        }
    },
    "zone": {"nodeSelector": {ZONE: "z2"}},
    "CPU full": {},
    "anti-affinity": {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": HOST, "labelSelector": OURS}
                ]
            }
        }
    },
    "spread": {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "minDomains": 3,
                "topologyKey": HOST,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": OURS,
            }
        ]
    },
    "host port": {},
    "volume zone": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
    "taint": {},
}
APART = {"anti-affinity", "spread", "host port"}
"""Where a node takes one of the members."""


async def _volume(world: Plane) -> None:
    """A volume that only nodes of the zone z2 reach."""
    name = f"pv-{world.namespace}"
    amount = {"storage": "1Gi"}
    modes = ["ReadWriteMany"]
    await world.client.create(
        "/api/v1/persistentvolumes",
        {
            "metadata": {"name": name},
            "spec": {
                "capacity": amount,
                "accessModes": modes,
                "storageClassName": "",
                "hostPath": {"path": "/data"},
                "nodeAffinity": {"required": _node_affinity(ZONE, "z2")},
                "claimRef": {"namespace": world.namespace, "name": "data"},
            },
        },
    )
    world.cleanup.append(f"/api/v1/persistentvolumes/{name}")
    await world.client.create(
        f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims",
        {
            "metadata": {
                "name": "data",
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
            },
            "spec": {
                "accessModes": modes,
                "resources": {"requests": amount},
                "storageClassName": "",
                "volumeName": name,
            },
        },
    )


async def _refused(world: Plane, names: list[str]) -> bool:
    """Whether the scheduler has looked at each, and at one at least in vain."""
    found = [await world.raw(f"/api/v1/namespaces/{world.namespace}/pods/{one}") for one in names]
    said = [one for pod in found for one in pod["status"].get("conditions", [])]
    return any(one.get("reason") == "Unschedulable" for one in said)


def _bound(world: Plane, start: str) -> Callable[[], int]:
    return lambda: sum(
        one.bound for one in world.watcher.pods.values() if one.metadata.name.startswith(start)
    )


@pytest.mark.parametrize("what", SPECS)
async def test_a_gang_starts_on_the_first_nodes_that_the_scheduler_would_have_it_on_and_holds_none_before(
    world: Plane, what: str
) -> None:
    await world.node("a", 4, cpu="2" if what == "CPU full" else "64")
    if what == "taint":
        taints = [{"key": "kept", "value": "x", "effect": "NoSchedule"}]
        await world.client.merge_patch("/api/v1/nodes/a", {"spec": {"taints": taints}})
    if what == "volume zone":
        await _volume(world)
    spec = dict(SPECS[what])
    await world.services()
    await world.claim("g", 1, gang="g")
    pods = [f"g-{n}" for n in range(3)]
    for name in pods:
        cpu = "16" if what == "CPU full" else "10m"
        port = 8080 if what == "host port" else 0
        await world.pod(name, "g", cpu=cpu, port=port, spec=spec, gang_size="3")
    await world.until("the scheduler has no node", lambda: _refused(world, pods))
    assert world.watcher.given == {}
    await world.locked(0)
    assert not any(one.reclaimed for one in world.watcher.pods.values())
    labels = {"disk": "fast", ZONE: "z2"}
    for name in ("b", "c") if what in APART else ("b",):
        await world.node(name, 4, labels=labels)
    await world.until("all of them run", lambda: _bound(world, "g-")() == 3)
    nodes = {node for node, _ in world.watcher.given}
    assert nodes == ({"a", "b", "c"} if what in APART else {"b"})
    assert not any(one.reclaimed for one in world.watcher.pods.values())
    await world.explained()


async def test_a_gang_of_one_zone_leaves_others_the_gpus_of_zones_that_cannot_take_all_of_it(
    world: Plane,
) -> None:
    term = {"topologyKey": ZONE, "labelSelector": OURS}
    together = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for name, zone in (("a", "z1"), ("b", "z2"), ("c", "z3")):
        await world.node(name, 2, labels={ZONE: zone})
    await world.services()
    await world.claim("one", 1)
    await world.claim("g", 1, gang="g")
    pods = [f"g-{n}" for n in range(4)]
    for name in pods:
        await world.pod(name, "g", spec={"affinity": together}, gang_size="4")
    await world.told("FailedScheduling", "g-", messages.GANG_TOO_FEW)
    await world.pod("s", "one")
    await world.bound("s")
    assert _bound(world, "g-")() == 0
    await world.explained()
    await world.node("d", 3, labels={ZONE: "z2"})
    await world.until("all of them run", lambda: _bound(world, "g-")() == 4)
    given = world.watcher.given.items()
    assert {node for (node, _), pod in given if pod in pods} <= {"b", "d"}
    await world.explained()


def _gone(world: Plane, name: str) -> bool:
    return name not in world.watcher.given.values()


async def _priorities(world: Plane) -> None:
    for name, value in (("low", 1), ("high", 1000)):
        made = {"metadata": {"name": f"{name}-{world.namespace}"}, "value": value}
        await world.client.create("/apis/scheduling.k8s.io/v1/priorityclasses", made)
        world.cleanup.append(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}-{world.namespace}")


async def test_of_two_gangs_that_wait_the_one_of_higher_priority_starts_first(world: Plane) -> None:
    await world.node("a", 2)
    await _priorities(world)
    await world.services()
    for name in ("low", "high"):
        await world.claim(name, 1, gang=name)
        spec = {"priorityClassName": f"{name}-{world.namespace}"}
        for n in range(3):
            await world.pod(f"{name}-{n}", name, gang_size="3", spec=spec)
        await world.told("FailedScheduling", f"{name}-0")
    await world.node("b", 2)
    await world.until("a gang runs", lambda: len(world.watcher.given) == 3)
    assert {one.split("-")[0] for one in world.watcher.given.values()} == {"high"}


async def test_the_second_job_of_one_claim_is_a_gang_of_its_own(world: Plane) -> None:
    await world.node("a", 6)
    await world.services()
    await world.claim("g", 1, gang="g")
    for n in range(4):
        await world.pod(f"first-{n}", "g", gang_size="4", owner="first")
    await world.until("it runs", lambda: _bound(world, "first-")() == 4)
    for n in range(4):
        await world.pod(f"second-{n}", "g", gang_size="4", owner="second")

        async def told(name: str = f"second-{n}") -> bool:
            waits = await world.said("GangWaiting")
            return bool(waits) or not (await world.read_pod(name)).gated

        await world.until("the services have seen it", told)
    await world.told("FailedScheduling", "second-3")
    assert _bound(world, "second-")() == 0
    for n in range(2):
        await world.delete_pod(f"first-{n}")
    await world.until("both run", lambda: _bound(world, "second-")() == 4)
    await world.pod("first-4", "g", gang_size="4", owner="first")
    await world.node("b", 2)
    await world.pod("first-5", "g", gang_size="4", owner="first")
    await world.until("who was replaced runs", lambda: _bound(world, "first-")() == 4)
    await world.explained()


async def test_an_elastic_gang_starts_with_as_many_as_it_needs_and_the_others_come(
    world: Plane,
) -> None:
    await world.node("a", 4)
    await world.services()
    await world.claim("g", 1, gang="g")
    for n in range(6):
        await world.pod(f"g-{n}", "g", gang_size="4")
    await world.until("four run", lambda: _bound(world, "g-")() == 4)
    await world.node("b", 1)
    await world.until("five run", lambda: _bound(world, "g-")() == 5)
    await world.node("c", 1)
    await world.until("all of them run", lambda: _bound(world, "g-")() == 6)
    await world.explained()


@having(gang_max_wait="0s")
async def test_small_pods_never_starve_a_gang_that_has_waited_long_enough(world: Plane) -> None:
    await world.node("a", 4)
    await world.node("small", 1)
    await world.services()
    await world.claim("one", 1)
    await world.claim("g", 1, gang="g")
    for n in range(5):
        await world.pod(f"s-{n}", "one")
    await world.until("all is full", lambda: len(world.watcher.given) == 5)
    for n in range(4):
        await world.pod(f"g-{n}", "g", gang_size="4")
    await world.told("FailedScheduling", "g-3")
    for n in range(5, 12):
        await world.pod(f"s-{n}", "one")
    await world.told("FailedScheduling", "s-11")
    on_a = [pod for (node, _), pod in world.watcher.given.items() if node == "a"]
    for name in on_a:
        await world.delete_pod(name)
        await world.until("its GPU is free", partial(_gone, world, name))
    await world.until("the gang runs", lambda: _bound(world, "g-")() == 4)
    assert {pod[0] for (node, _), pod in world.watcher.given.items() if node == "a"} == {"g"}
    await world.explained()


@having(gang_max_wait="0s")
async def test_what_becomes_free_is_kept_for_a_gang_that_the_scheduler_found_no_room_for_anywhere(
    world: Plane,
) -> None:
    await world.node("a", 4)
    extender = await world.extender()
    scheduler = world.scheduler(extender.port)
    await world.controller()
    await world.claim("one", 1)
    await world.claim("g", 1, gang="g")
    for n in range(4):
        await world.pod(f"s-{n}", "one")
    await world.until("all is full", lambda: len(world.watcher.given) == 4)
    for n in range(4):
        await world.pod(f"g-{n}", "g", gang_size="4")
    await world.told("FailedScheduling", "g-3")
    scheduler.kill()  # so that it asks about nobody when a GPU is free
    await world.pod("s-4", "one")
    await world.delete_pod("s-0")
    path = f"/api/v1/namespaces/{world.namespace}/pods/s-4"
    call = {"Pod": await world.raw(path), "NodeNames": ["a"]}

    async def answered() -> str:
        async with httpx.AsyncClient(timeout=30) as http:
            url = f"http://127.0.0.1:{extender.port}/filter"
            answer = (await http.post(url, json=call)).json()
        why = str(answer["FailedNodes"].get("a", "it passes"))
        return "" if why == messages.TOO_FEW else why

    assert await world.until("the GPU is free", answered) == messages.KEPT
