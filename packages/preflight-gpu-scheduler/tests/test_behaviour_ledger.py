"""Leases that somebody deletes, and claims that come later than their pods, with a real scheduler
and a real API server.
"""

from __future__ import annotations

import anyio
import pytest
from plane import Plane, plane
from preflight_gpu_scheduler.api import names
from preflight_testing.apiserver import ApiServer
from test_behaviour_collecting import managing

pytestmark = [pytest.mark.timeout(300), pytest.mark.anyio]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


@pytest.mark.parametrize("counted", [names.COUNT_RESOURCE, ""])
def test_a_lease_that_somebody_deletes_gives_nobody_the_gpu_and_is_made_again(
    real_api_server: ApiServer, counted: str
) -> None:
    async def body() -> None:
        async with plane(real_api_server, count_resource=counted) as world:
            first = await world.placed("first", claim="one", count=1, gpus=8)
            (name,) = await world.leases()
            await world.client.delete(f"{LEASES.format(world.config.lock_namespace)}/{name}")
            await world.pod("second", "one")
            second = await world.bound("second")
            assert first.allocated is not None
            assert second.allocated is not None
            assert first.allocated.ids != second.allocated.ids
            await world.explained()
            told = await world.told("GpusLockedAgain")
            assert told == f"somebody deleted Lease {name}, which locks its GPU; it is made again"

    anyio.run(body)


async def test_without_the_namespace_of_the_locks_nothing_is_bound_and_with_it_all_is_as_before(
    world: Plane,
) -> None:
    await world.placed("first", claim="one", count=1, gpus=8)
    path = f"/api/v1/namespaces/{world.config.lock_namespace}"
    with managing(world):
        await world.client.delete(path)
        await world.locked(0)

        async def gone() -> bool:
            return await world.client.get_or_none(path, dict) is None

        await world.until("the namespace has gone", gone)
        await world.pod("second", "one")
        told = await world.told("GpusNotLocked")
        assert told.startswith("the Lease of a GPU that it has of a is lost")

        await world.told("FailedScheduling", words="is lost; it is made again first")
        assert not (await world.read_pod("second")).bound
        await world.client.create(
            "/api/v1/namespaces", {"metadata": {"name": world.config.lock_namespace}}
        )
        await world.bound("second")
        await world.explained()


async def test_a_pod_that_was_counted_before_its_claim_was_there_is_told_to_come_again(
    world: Plane,
) -> None:
    await world.node("a", 8)
    await world.services()
    await world.pod("early", "two")
    await world.claim("two", 2)
    told = await world.told("GpuCountDiffers")
    assert told == (
        "it asks for 0 of gpu.scheduling/gpu, and GpuClaim two is for 2: it is never "
        "bound; delete it and create it again"
    )
    assert (await world.read_pod("early")).gated
    await world.delete_pod("early")
    await world.pod("early", "two")
    await world.bound("early")
