"""A process that stood still: an extender that is stopped between lease and Binding, and a watch
that tells nothing any more.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import anyio
import pytest
from plane import Blow, Plane, bind, having
from preflight_gpu_scheduler.api.names import lease_name
from preflight_testing.apiserver import free_port
from wire import Sent, wired

pytestmark = [pytest.mark.timeout(300), pytest.mark.anyio]


def _creates_lease(one: Sent) -> bool:
    return one.method == "POST" and one.path.endswith("/leases")


@pytest.mark.parametrize(
    "woken", ["after another pod has its gpu", "before its leases are deleted"]
)
@having(reservation_seconds=5, gang_bind="3s", bind_budget="300s")
async def test_an_extender_process_that_was_stopped_between_lease_and_binding_binds_nothing_when_it_goes_on(
    world: Plane, woken: str
) -> None:
    async with wired(world.target) as wire:
        await world.node("a", 1)
        await world.claim("one", 1)
        deletes, told = anyio.Event(), anyio.Event()

        async def hold(verb: str, path: str) -> Blow | None:
            if verb == "delete" and "/leases" in path:
                deletes.set()
                if woken == "before its leases are deleted":
                    await told.wait()
            return None

        port, health = free_port(), free_port()
        environment = {"KUBECONFIG": str(wire.kubeconfig(world.home / "wire"))}
        words = (
            "--extender-port",
            str(port),
            "--host",
            "127.0.0.1",
            "--port",
            str(health),
        )
        process = world.command("extender", *words, environment=environment)
        await world.serving(health)
        await world.pod("p", "one")
        wire.keeps = _creates_lease
        answers = list[bool]()

        async def ask() -> None:
            answers.append(await bind(world, port, "p", seconds=200))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await world.until("the lease is stored, and nobody knows", lambda: wire.kept)
            process.send_signal(signal.SIGSTOP)
            wire.release()
            await world.controller(trap=hold)
            await deletes.wait()
            if woken == "after another pod has its gpu":
                await world.pod("q", "one")
                other = await world.extender()
                await world.until("q has the GPU", partial(bind, world, other.port, "q"))
            process.send_signal(signal.SIGCONT)
            await world.until(
                "its Binding is answered", lambda: _statuses(wire.saw("POST", "/p/binding"))
            )
            told.set()
        assert [one.status for one in wire.saw("POST", "/p/binding")] == [409]
        assert answers == [False]
        assert not (await world.read_pod("p")).bound
        assert set(world.watcher.given.values()) == (
            {"q"} if woken == "after another pod has its gpu" else set()
        )
        await world.explained()


def _statuses(found: list[Sent]) -> bool:
    return bool(found) and all(one.status for one in found)


def _of_pods(one: Sent) -> bool:
    return one.path.startswith("/api/v1/pods?")


@having(sweep="1s")
async def test_a_watch_of_pods_that_stands_still_frees_nothing_of_a_pod_that_came_meanwhile(
    world: Plane,
) -> None:
    """The pod was deleted and came again under its name; a controller that has not heard of it sees
    a lease of a pod with another uid.
    """
    async with wired(world.target) as wire:
        first = await _running(world)
        await world.controller(target=wire.target)
        wire.stalls = _of_pods
        await world.delete_pod("p")
        await world.pod("p", "one")
        second = await world.bound("p")
        assert second.metadata.uid != first.metadata.uid
        await world.pod("q", "one")
        await world.until(
            "the controller asks for the pod",
            lambda: wire.saw("GET", f"/{world.namespace}/pods/p"),
        )
        asked = len(wire.saw("GET", f"/{world.namespace}/pods/p"))
        await world.until(
            "and asks again", lambda: len(wire.saw("GET", f"/{world.namespace}/pods/p")) > asked
        )
        leases = await world.leases()
        assert {name: one.holder for name, one in leases.items()} == {
            lease_name("a", 0): second.metadata.uid
        }
        assert not (await world.read_pod("q")).bound
        wire.release()
        await world.delete_pod("p")
        await world.bound("q")
        await world.explained()


async def test_an_extender_whose_watch_of_pods_stands_still_gives_no_gpu_of_a_pod_it_has_not_heard_of(
    world: Plane,
) -> None:
    async with wired(world.target) as wire:
        await world.node("a", 1)
        await world.claim("one", 1)
        await world.pod("q", "one")
        blind, seeing = await world.extender(target=wire.target), await world.extender()
        await world.until("the pod is seen", lambda: blind.sees((world.namespace, "q")))
        wire.stalls = _of_pods
        await world.pod("p", "one")
        assert await bind(world, seeing.port, "p")
        for _ in range(3):
            assert not await bind(world, blind.port, "q")
        assert set(world.watcher.given.values()) <= {"p"}
        assert (await world.read_pod("p")).bound
        await world.explained()


async def _running(world: Plane) -> Any:
    """A pod that has the only GPU, by a scheduler; no controller yet."""
    await world.node("a", 1)
    await world.claim("one", 1)
    extender = await world.extender()
    world.scheduler(extender.port)
    await world.pod("p", "one")
    return await world.bound("p")
