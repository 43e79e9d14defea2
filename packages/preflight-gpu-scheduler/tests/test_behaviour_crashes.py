"""The extender, or the scheduler, dies at every point of a bind, or an answer is lost there: the
pod is bound once, and no lease is left over.

The points are those of the protocol: K0 when bind is asked for, K1 before the first lease, K2 among
the leases, K3 before the Binding, K4 after it was stored, K5 at the look at the pod after it was
refused because the pod had changed, K6 while leases are given back.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from plane import Blow, Plane, bind, having
from preflight_kube.client.client import KubeError

pytestmark = [pytest.mark.timeout(400), pytest.mark.anyio]
POINTS = ("K0", "K1", "K2", "K3", "K4", "K5", "K6")


class Fault:
    """Strikes once at one point; ``blow`` is what happens there."""

    def __init__(self, world: Plane, point: str, pod: str, blow: Blow) -> None:
        self.world, self.point, self.pod, self.blow, self.struck = world, point, pod, blow, False
        self._begun = False

    async def __call__(self, verb: str, path: str) -> Blow | None:
        lease, binding = "/leases" in path, path.endswith(f"/{self.pod}/binding")
        looked = path.endswith(f"/pods/{self.pod}")
        if self.struck or not (lease or binding or looked):
            return None
        if (self.point, verb) == ("K1", "create") and lease:
            await self._strike()
        if self.point == "K2" and verb == "create" and lease:
            return self._strike
        if self.point == "K3" and binding:
            await self._strike()
        if self.point == "K4" and binding:
            return self._strike
        if self.point == "K5" and binding and not self._begun:
            # Somebody changes the pod: the Binding is refused, and the next thing is a look at the
            # pod.
            self._begun = True
            where = f"/api/v1/namespaces/{self.world.namespace}/pods/{self.pod}"
            await self.world.client.merge_patch(where, {"metadata": {"labels": {"changed": "yes"}}})
        if self.point == "K5" and self._begun and verb == "get" and looked:
            await self._strike()
        if self.point == "K6" and binding and not self._begun:
            self._begun = True
            raise KubeError("create: the API server answered 403 (a policy).", 403)
        if self.point == "K6" and verb == "delete" and lease:
            await self._strike()
        return None

    async def called(self, pod: str) -> None:
        """Bind was asked for, and nothing is written yet."""
        if self.point == "K0" and pod == self.pod:
            await self._strike()

    def has_struck(self) -> bool:
        return self.struck

    async def _strike(self) -> None:
        if not self.struck:
            self.struck = True
            await self.blow()


async def _never(_: str, __: str) -> None:
    """Of a process that is dead nothing is sent any more."""
    await anyio.sleep_forever()


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("what", ["extender killed", "answer lost", "scheduler killed"])
@having(reservation_seconds=5, gang_bind="3s")
async def test_whatever_is_lost_at_any_point_of_a_bind_the_pod_is_bound_once(
    world: Plane, what: str, gpus: int
) -> None:
    await world.node("a", gpus)
    await world.claim("some", gpus)
    cast = SimpleNamespace(extender=await world.extender())
    port = cast.extender.port
    cast.scheduler = world.scheduler(port)
    await world.controller()

    async def blow() -> None:
        if what == "answer lost":
            raise KubeError("no answer", 0)
        if what == "scheduler killed":
            cast.scheduler.kill()
            return
        cast.extender.trap = _never
        cast.extender.scope.cancel()
        await anyio.sleep_forever()

    for point in (
        POINTS if what != "answer lost" else POINTS[1:]
    ):  # at K0 nothing has been asked yet
        name = f"p-{point.lower()}"
        fault = Fault(world, point, name, blow)
        cast.extender.trap = fault
        cast.extender.called = fault.called
        await world.pod(name, "some")
        await world.until(f"{point} is reached", fault.has_struck)
        if cast.extender.scope.cancel_called:
            await cast.extender.kill()
            cast.extender = await world.extender(port=port)
        if what == "scheduler killed":
            await anyio.to_thread.run_sync(cast.scheduler.wait)
            cast.scheduler = world.scheduler(port, f"scheduler-{point}")
        await world.bound(name)
        await world.explained()
        cast.extender.trap = cast.extender.called = None
        await world.delete_pod(name)
        await world.explained()


@pytest.mark.parametrize("when", ["after its leases were taken back", "before they are deleted"])
@having(reservation_seconds=5, gang_bind="3s", bind_budget="300s")
async def test_a_binding_that_comes_after_its_reservation_was_taken_back_is_refused(
    world: Plane, when: str
) -> None:
    """An extender that was stopped between lease and Binding, and goes on too late."""
    await world.node("a", 1)
    await world.claim("one", 1)
    stopped, go_on, refused, deletes = (
        anyio.Event(),
        anyio.Event(),
        anyio.Event(),
        anyio.Event(),
    )
    late = await world.extender()

    async def stop(verb: str, path: str) -> Blow | None:
        if path.endswith("/p/binding") and not stopped.is_set():
            stopped.set()
            await go_on.wait()
            late.trap = None
            with pytest.raises(KubeError) as error:
                await world.client.create(path, _late_binding(world, pod))
            assert error.value.status == 409
            refused.set()
        return None

    async def hold(verb: str, path: str) -> Blow | None:
        if verb == "delete" and "/leases" in path:
            deletes.set()
            if when == "before they are deleted":
                await refused.wait()
        return None

    late.trap = stop
    await world.controller(trap=hold)
    await world.pod("p", "one")
    pod = await world.read_pod("p")
    async with anyio.create_task_group() as group:
        group.start_soon(bind, world, late.port, "p")
        await stopped.wait()
        await deletes.wait()
        if when == "after its leases were taken back":
            await world.pod("q", "one")
            other = await world.extender()
            await world.until("q has the GPU", lambda: bind(world, other.port, "q"))
        go_on.set()
        await refused.wait()
        group.cancel_scope.cancel()
    assert (await world.read_pod("p")).bound is False
    assert set(world.watcher.given.values()) <= {"q"}


def _late_binding(world: Plane, pod: Any) -> dict[str, Any]:
    about = pod.metadata
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
            "resourceVersion": about.resource_version,
            "annotations": {"gpu.scheduling/allocated": "a:0"},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "a"},
    }
