"""Each write of a scenario is once kept from arriving and once robbed of its answer, the controller
dies, and another leads: the end is that of the undisturbed run, with no object twice, none
orphaned, and nothing of somebody else touched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from dying import Fault, Writes, dies
from lab import Lab, condition, lab
from player import bare_pod, job, service
from preflight_appwrapper.objects import LABEL
from preflight_testing.apiserver import ApiServer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

AT_ONCE = 6
FAST: dict[str, Any] = {
    "failureGracePeriodDuration": "0s",
    "retryPausePeriodDuration": "0s",
    "successTTLDuration": "1s",
}


async def created(one: Lab) -> None:
    await one.wrap(service(), job(), bare_pod(), **FAST)
    await one.phase("Running")
    await one.running(3)
    await one.condition("PodsReady", "True")


def workers(one: Lab) -> list[dict[str, Any]]:
    return [pod for pod in one.pods() if pod["metadata"]["name"].startswith("train-")]


async def again(one: Lab, before: set[str]) -> None:
    async def anew() -> bool:
        found = [pod for pod in one.pods() if pod["status"].get("phase") == "Running"]
        return len(found) == 3 and not before & {pod["metadata"]["uid"] for pod in found}

    await one.until(anew, "a second generation of pods")
    await one.condition("PodsReady", "True")


async def creation(one: Lab) -> None:
    await created(one)


async def reset(one: Lab) -> None:
    await created(one)
    before = {pod["metadata"]["uid"] for pod in one.pods()}
    await one.ends(next(pod for pod in one.pods() if pod not in workers(one)), code=1)
    await again(one, before)


async def evacuation(one: Lab) -> None:
    name = one.node = f"sick-{one.namespace}"
    await one.client.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"x": "y"}}})
    await created(one)
    before = {pod["metadata"]["uid"] for pod in one.pods()}
    one.node = "node-b"
    sick = {"metadata": {"labels": {"autopilot.ibm.com/gpuhealth": "EVICT"}}}
    await one.client.merge_patch(f"/api/v1/nodes/{name}", sick)
    await again(one, before)


async def suspension(one: Lab) -> None:
    await created(one)
    await one.suspend(True)
    await one.phase("Suspended")


async def failure(one: Lab) -> None:
    await created(one)
    await one.client.delete(one.path("", "services", "train"))
    await one.phase("Failed")
    await one.condition("ResourcesDeployed", "False")


async def success(one: Lab) -> None:
    await created(one)
    for pod in one.pods():
        await one.ends(pod, code=0)
    await one.phase("Succeeded")
    await one.condition("ResourcesDeployed", "False")


async def deletion(one: Lab) -> None:
    await created(one)
    await one.delete()
    await one.gone(one.wrappers("w"))


Scenario = Callable[[Lab], Awaitable[None]]
SCENARIOS: list[Scenario] = [creation, reset, evacuation, suspension, failure, success, deletion]


async def end_state(one: Lab) -> tuple[Any, ...]:
    wrapper = await one.wrapper()
    uid = wrapper.get("metadata", {}).get("uid", "")
    status = wrapper.get("status", {})
    found = []
    for group, plural in (("", "services"), ("batch/v1", "jobs"), ("", "pods")):
        listed = await one.get(one.path(group, plural))
        for item in listed["items"] if listed else []:
            metadata = item["metadata"]
            owner: dict[str, Any] = next(
                (it for it in metadata.get("ownerReferences", []) if it.get("controller")), {}
            )
            if metadata.get("labels", {}).get(LABEL) == "w":
                found.append((plural, metadata["name"].rpartition("-")[0], owner.get("uid") == uid))
    said = [
        condition(wrapper, it).get("status")
        for it in ("QuotaReserved", "ResourcesDeployed", "PodsReady", "Unhealthy")
    ]
    return status.get("phase"), status.get("resettingCount", 0), sorted(found), said


async def played(
    server: ApiServer, home: Path, scenario: Scenario, writes: Writes
) -> tuple[Any, ...]:
    home.mkdir(parents=True)
    async with lab(server, home) as one, dies(one.target, one.namespace, writes):
        try:
            await scenario(one)
        except AssertionError as error:
            raise AssertionError(
                f"write {writes.at} ({writes.log[writes.at - 1 :][:1]}) {writes.fault}: {error}"
            ) from error
        return await end_state(one)


@pytest.mark.parametrize("fault", ["lost", "answer lost"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
async def test_a_controller_that_dies_at_any_write_changes_nothing_of_the_end(
    control_plane: ApiServer, tmp_path: Path, scenario: Scenario, fault: Fault
) -> None:
    undisturbed = Writes(0, "")
    wanted = await played(control_plane, tmp_path / "undisturbed", scenario, undisturbed)
    assert undisturbed.sent > 5
    slots = anyio.Semaphore(AT_ONCE)
    wrong: list[str] = []

    async def one(at: int) -> None:
        async with slots:
            writes = Writes(at, fault)
            found = await played(control_plane, tmp_path / str(at), scenario, writes)
            if found != wanted:
                wrong.append(
                    f"write {at} of {undisturbed.sent} ({writes.log[at - 1 : at]}): {found}"
                )

    async with anyio.create_task_group() as group:
        for at in range(1, undisturbed.sent + 1):
            group.start_soon(one, at)
    assert not wrong, (wanted, wrong)
