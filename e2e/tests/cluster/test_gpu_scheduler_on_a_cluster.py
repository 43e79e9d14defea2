"""GPUs by claims where pods run: every container sees those of its pod's Leases and no others, a
sick GPU is out by itself, and a node without its agent takes no pods.

Needs the lab's fake nodes, four of them, the images of both services, of dcgm-diag with the fakes
and of the cluster's own kube-scheduler, and no release of the charts. Fake is the hardware: NVML,
DCGM, and the platform connector, whose conditions this writes on the node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from preflight_e2e import kube_scheduler
from preflight_e2e.gpu_claims import CHECKS, DCGM, LOOK, GpuClaimsRelease, GpuPlace
from preflight_e2e.installed_release import until
from preflight_e2e.lab import Lab
from preflight_testing.matrix.facts import GPUS, uuids

pytestmark = [pytest.mark.timeout(420), pytest.mark.fakes]

CONDITION = "DcgmDiagnosticMemory"
FAULT = {
    "gpu": 0,
    "test": "memory",
    "error_id": 52,
    "severity": 2,
    "category": 10,
    "text": "GPU 0 Memtest: 14 bit errors",
}
ABSENT = {"plugin": "absent"}
PLUGIN = "a device plugin hands out the same GPUs"


@pytest.fixture(scope="module")
def claims(fake_nodes: Lab) -> Iterator[GpuClaimsRelease]:
    if why := os.environ.get(kube_scheduler.MISSING):
        pytest.skip(why)
    if len(fake_nodes.nodes) < 4:
        pytest.skip(f"needs four nodes, there are {len(fake_nodes.nodes)}")
    made = GpuClaimsRelease(fake_nodes, Path(os.environ["KUBECONFIG"]))
    try:
        made.install()
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def everywhere(claims: GpuClaimsRelease) -> GpuPlace:
    made = claims.place()
    for count in (1, 2, GPUS):
        made.claim(f"claim-{count}", count)
    made.claim("nowhere", 1, selector={"matchLabels": {"no-node": "has-this"}})
    made.claim("first", 1, devices={"policy": "preferIds", "preferIds": [0]})
    return made


@pytest.fixture
def place(everywhere: GpuPlace) -> Iterator[GpuPlace]:
    yield everywhere
    everywhere.leave()


@pytest.mark.parametrize("order", ["ours first", "ours last"])
def test_every_container_and_check_of_a_pod_sees_the_gpus_of_its_leases_in_either_order_of_webhooks(
    place: GpuPlace, order: str
) -> None:
    node = place.claims.nodes[0]
    if order == "ours last":
        with place.claims.called_last():
            until(lambda: '"z-last.gpu.scheduling"' in place.refused_by(), "the order is changed")
            until(lambda: place.created() == list(CHECKS), "both webhooks are called")
            place.pod("one", "claim-2", node)
            place.pod("other", "claim-2", node)
    else:
        place.pod("one", "claim-2", node)
        place.pod("other", "claim-2", node)
    place.runs("one", "other")
    for name in ("one", "other"):
        mine = place.locked(name)
        assert len(mine) == 2
        assert set(mine) <= set(uuids(node))
        said = place.gpus_by_container(name)
        assert set(said) == {LOOK, "prepare", "sidecar", "train", "beside"}
        assert said == {container: [mine, mine, mine] for container in said}
    assert not set(place.locked("one")) & set(place.locked("other"))


def test_the_check_of_a_pod_tests_as_many_gpus_as_its_claim_has(place: GpuPlace) -> None:
    place.pod("two", "claim-2")
    place.runs("two")
    log = place.claims.lab.log(place.namespace, "two", DCGM)
    assert "NVML lists 2 GPU(s)" in log


def test_a_pod_that_nobody_allocated_sees_no_gpu_and_is_told_so(place: GpuPlace) -> None:
    place.pod("past", "nowhere", initContainers=[])
    place.waits("past", "labels")
    place.bind("past", place.claims.nodes[0])
    place.await_event("past", "GpusNotAllocated")
    assert place.locked("past") == []
    assert place.sees("past", LOOK) == [[], [], []]


def test_a_fatal_health_event_takes_exactly_its_gpu_out_until_its_condition_is_cleared(
    place: GpuPlace,
) -> None:
    claims, node = place.claims, place.claims.nodes[1]
    sick, *well = uuids(node)
    claims.lab.configure(node, {**ABSENT, "engine": {"faults": [FAULT]}})
    try:
        place.pod("sick", "first", node)
        until(
            lambda: f"GPU_UUID:{sick} " in "".join(claims.messages(node, CONDITION)),
            "the check's HealthEvent",
        )
        assert place.locked("sick") == [sick]
        began = time.monotonic()
        claims.condition(node, CONDITION, claims.messages(node, CONDITION))
        until(lambda: sick not in claims.usable(node), "the GPU is out")
        out = time.monotonic() - began
        assert sorted(claims.usable(node)) == sorted(well)
        place.delete("sick")
        place.pod("next", "first", node)  # it would rather have that one
        place.pod("all", f"claim-{GPUS}", node)
        place.runs("next")
        assert sick not in place.locked("next")
        until(lambda: bool(place.why("all")), "one that needs all GPUs waits")
        claims.lab.configure(node, ABSENT)
        began = time.monotonic()
        claims.condition(node, CONDITION, [])
        until(lambda: sick in claims.usable(node), "the GPU is back")
        print(f"out after {out:.1f} s, back after {time.monotonic() - began:.1f} s")
        place.delete("next")
        place.runs("all")
        assert place.locked("all") == sorted([sick, *well])
    finally:
        claims.condition(node, CONDITION, [])
        claims.lab.configure(node, ABSENT)


def test_a_node_whose_agent_is_stopped_takes_no_new_pod_after_its_time_and_keeps_those_it_has(
    place: GpuPlace,
) -> None:
    claims, node = place.claims, place.claims.nodes[2]
    place.pod("there", "claim-1", node)
    place.runs("there")
    mine = place.locked("there")
    claims.agents_off(node)
    try:
        until(lambda: not claims.agent(node), f"the agent of {node} is gone")
        until(lambda: "GpuNodeStatus is stale" in refused(place, node), f"{node} is stale")
        place.pod("late", "claim-1", node)
        place.waits("late", "GpuNodeStatus is stale")
        assert place.phase("there") == "Running"
        assert place.locked("there") == mine
    finally:
        claims.agents_off(None)
    place.runs("late")


def refused(place: GpuPlace, node: str) -> str:
    """What is said of ``node`` to a pod that no node suits: first what is wrong with the node."""
    place.pod("asks", "nowhere", node)
    until(lambda: bool(place.why("asks")), "the scheduler's word")
    said = place.why("asks")
    place.delete("asks")
    return said


def test_a_node_on_which_a_device_plugin_starts_takes_no_pod_until_it_is_gone(
    place: GpuPlace,
) -> None:
    claims, node = place.claims, place.claims.nodes[3]
    claims.lab.configure(node, {})
    try:
        until(lambda: PLUGIN in refused(place, node), f"the scheduler knows of it on {node}")
        assert allocatable(claims, node) == GPUS
        place.pod("beside", "claim-1", node)
        until(lambda: bool(place.why("beside")), "one that would fit waits")
    finally:
        claims.lab.configure(node, ABSENT)
    until(lambda: allocatable(claims, node) == 0, "the device plugin's GPUs are gone")
    place.runs("beside")


def allocatable(claims: GpuClaimsRelease, node: str) -> int:
    found = claims.api.read_node(node).status.allocatable or {}
    return int(found.get("nvidia.com/gpu", "0"))


def test_after_a_reboot_with_the_gpus_in_another_order_ids_and_pods_keep_their_uuids(
    place: GpuPlace,
) -> None:
    claims, node = place.claims, place.claims.nodes[0]
    place.pod("before", "claim-2", node)
    place.runs("before")
    mine, known = place.locked("before"), claims.devices(node)
    claims.lab.configure(node, {**ABSENT, "reversed": True})
    try:
        claims.api.delete_namespaced_pod(
            claims.agent(node), claims.installed.name, grace_period_seconds=1
        )
        first = uuids(node)[0]
        until(
            lambda: claims.devices(node).get(first, {}).get("pciBusId") != known[first]["pciBusId"],
            "the new places are told",
        )
        ids = {uuid: one["id"] for uuid, one in claims.devices(node).items()}
        assert ids == {uuid: one["id"] for uuid, one in known.items()}
        place.pod("after", "claim-2", node)
        place.runs("after")
        assert place.locked("before") == mine
        assert not set(mine) & set(place.locked("after"))
        assert place.gpus_by_container("after")["train"] == [place.locked("after")] * 3
    finally:
        claims.lab.configure(node, ABSENT)
