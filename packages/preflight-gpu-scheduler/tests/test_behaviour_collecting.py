"""How a GPU comes back, whatever becomes of the pod, its node or its namespace: a waiting pod has
it, and nothing is left over.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
from plane import Plane, having
from preflight_testing.apiserver import ASSETS

pytestmark = [pytest.mark.timeout(300), pytest.mark.anyio]


async def _one_runs_and_one_waits(world: Plane, namespace: str = "") -> None:
    """Of one GPU: ``first`` has it, in ``namespace``, and ``second`` waits."""
    where = namespace or world.namespace
    await world.node("a", 1)
    for name in {where, world.namespace}:
        await world.claim("one", 1, namespace=name)
    await world.services()
    await world.pod("first", "one", namespace=where)
    await world.bound("first", namespace=where)
    await world.pod("second", "one")


async def test_the_gpu_of_an_evicted_pod_is_a_waiting_pods(world: Plane) -> None:
    await _one_runs_and_one_waits(world)
    path = f"/api/v1/namespaces/{world.namespace}/pods/first/eviction"
    evicted = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "first"}}
    await world.client.create(path, evicted)
    await world.bound("second")
    await world.explained()


@contextmanager
def managing(world: Plane) -> Iterator[None]:
    """A real kube-controller-manager, of which only what empties namespaces runs."""
    program = f"{os.environ[ASSETS]}/kube-controller-manager"
    words = [f"--kubeconfig={world.kubeconfig}", "--leader-elect=false", "--secure-port=0"]
    with (world.home / "manager.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *words, "--controllers=namespace-controller"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def test_the_gpu_of_a_pod_whose_namespace_is_deleted_is_a_waiting_pods(world: Plane) -> None:
    other = f"{world.namespace}-b"
    await world.client.create("/api/v1/namespaces", {"metadata": {"name": other}})
    await _one_runs_and_one_waits(world, other)
    with managing(world):
        await world.client.delete(f"/api/v1/namespaces/{other}")
        await world.bound("second")
        await world.explained()

        async def gone() -> bool:
            return await world.client.get_or_none(f"/api/v1/namespaces/{other}", dict) is None

        await world.until("the namespace has gone", gone)


@having(sweep="1s")
async def test_the_leases_of_a_deleted_node_go_with_its_pods_and_not_before(world: Plane) -> None:
    await _one_runs_and_one_waits(world)
    await world.client.delete("/api/v1/nodes/a")
    await world.node("b", 1)
    await world.bound("second")
    held = {one.gpu for one in (await world.leases()).values()}
    assert held == {("a", 0), ("b", 0)}
    await world.delete_pod("first")  # as Kubernetes does to pods of a node that is no more

    async def only_b() -> bool:
        return {one.gpu for one in (await world.leases()).values()} == {("b", 0)}

    await world.until("the deleted node's lease has gone", only_b)


async def test_a_pod_that_goes_away_between_filter_and_bind_leaves_no_lease(world: Plane) -> None:
    await world.node("a", 1)
    await world.claim("one", 1)
    extender = await world.extender()
    at_binding, gone = anyio.Event(), anyio.Event()

    async def hold(verb: str, path: str) -> None:
        if path.endswith("/first/binding"):
            at_binding.set()
            await gone.wait()

    extender.trap = hold
    world.scheduler(extender.port)
    await world.controller()
    await world.pod("first", "one")
    await at_binding.wait()
    await world.delete_pod("first")
    gone.set()
    await world.pod("second", "one")
    await world.bound("second")
    await world.explained()
