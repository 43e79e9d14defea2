"""What anybody may send to the extender's port, and what a person sees of the cluster."""

from __future__ import annotations

import subprocess
from typing import Any

import anyio
import httpx
import pytest
from plane import Plane
from preflight_gpu_scheduler.api import names

pytestmark = [pytest.mark.timeout(240), pytest.mark.anyio]


async def test_a_call_that_makes_no_sense_is_answered_with_an_error_and_the_next_one_works(
    world: Plane,
) -> None:
    await world.node("a", 2)
    await world.claim("one", 1)
    extender = await world.extender()
    await world.pod("p", "one")
    raw = await world.raw(f"/api/v1/namespaces/{world.namespace}/pods/p")
    await world.until("the pod is seen", lambda: extender.sees((world.namespace, "p")))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{extender.port}", timeout=30) as http:

        async def said(verb: str, content: bytes) -> Any:
            answer = await http.post(f"/{verb}", content=content)
            assert answer.status_code == 200
            return answer.json()

        assert "is not an ExtenderArgs" in (await said("filter", b"{"))["Error"]
        assert "more than" in (await said("filter", b" " * 5_000_000))["Error"]
        assert "nodeCacheCapable" in (await said("filter", b'{"Pod": {"metadata": {}}}'))["Error"]
        assert await said("prioritize", b"[]") == []
        assert await said("preempt", b"{") == {"NodeNameToMetaVictims": {}}
        assert "is not an ExtenderBindingArgs" in (await said("bind", b"nothing"))["Error"]
        assert "is none of" in (await said("elsewhere", b"{}"))["Error"]
        answer = (
            await http.post("/filter", json={"Pod": raw, "NodeNames": ["a", "nowhere"]})
        ).json()
        assert answer["Error"] == ""
        assert answer["NodeNames"] == ["a"]
        assert answer["FailedAndUnresolvableNodes"] == {"nowhere": "node is not known"}
        gone = {"PodName": "x", "PodNamespace": world.namespace, "PodUID": "u", "Node": "a"}
        assert (await http.post("/bind", json=gone)).json()["Error"] == "pod is gone"


async def test_a_lease_that_somebody_made_by_hand_is_busy_and_named_by_show(world: Plane) -> None:
    await world.node("a", 2)
    await world.claim("one", 1)
    name = names.lease_name("a", 0)
    where = f"/apis/coordination.k8s.io/v1/namespaces/{world.config.lock_namespace}/leases"
    await world.client.create(where, {"metadata": {"name": name}, "spec": {"holderIdentity": "me"}})
    await world.services()
    await world.pod("p", "one")
    pod = await world.bound("p")
    assert pod.allocated is not None
    assert pod.allocated.ids == (1,)
    shown = await _shown(world)
    assert f"0:somebody else's Lease {name}" in shown
    assert f"1:{world.namespace}/p" in shown
    assert "has       a:1" in await _shown(world, "p", "-n", world.namespace)
    assert name in {one.metadata.name for one in (await world.leases()).values()}


async def _shown(world: Plane, *arguments: str) -> str:
    process: subprocess.Popen[bytes] = world.command(
        "show", *arguments, name=f"show-{len(arguments)}"
    )
    assert await anyio.to_thread.run_sync(process.wait) == 0, world.log(f"show-{len(arguments)}")
    return world.log(f"show-{len(arguments)}")
