"""What a wrapper with a Service, a Job and a pod of a made-up name may go through, and what there
is at the end, so that a disturbed run can be compared with one that nobody disturbed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from lab import Lab, condition, lab
from player import bare_pod, job, service
from preflight_appwrapper.api.names import LABEL
from preflight_testing.apiserver import ApiServer

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
    one.created()


def workers(one: Lab) -> list[dict[str, Any]]:
    return [pod for pod in one.pods() if pod["metadata"]["name"].startswith("train-")]


async def again(one: Lab, before: list[dict[str, Any]]) -> None:
    await one.anew(before, 3)
    await one.condition("PodsReady", "True")


async def creation(one: Lab) -> None:
    await created(one)


async def reset(one: Lab) -> None:
    await created(one)
    before = one.pods()
    await one.ends(next(pod for pod in one.pods() if pod not in workers(one)), code=1)
    await again(one, before)


async def evacuation(one: Lab) -> None:
    name = one.node = f"sick-{one.namespace}"
    await one.client.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"x": "y"}}})
    await created(one)
    before = one.pods()
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
    """Phase, count, what is left and whose it is, conditions, and how often each was made."""
    wrapper = await one.wrapper()
    uid = wrapper.get("metadata", {}).get("uid", "")
    status = wrapper.get("status", {})
    found = []
    for item in await objects(one):
        metadata = item["metadata"]
        owner: dict[str, Any] = next(
            (it for it in metadata.get("ownerReferences", []) if it.get("controller")), {}
        )
        if metadata.get("labels", {}).get(LABEL) == "w":
            name = metadata["name"].rpartition("-")[0]
            found.append((item["plural"], name, owner.get("uid") == uid))
    said = [
        condition(wrapper, it).get("status")
        for it in ("QuotaReserved", "ResourcesDeployed", "PodsReady", "Unhealthy")
    ]
    made = Counter(
        one.what
        for one in one.history
        if one.type == "ADDED"
        and (
            one.what in {"services", "jobs"} or one.object["metadata"]["name"].startswith("probe-")
        )
    )
    return status.get("phase"), status.get("resettingCount", 0), sorted(found), said, made


async def objects(one: Lab) -> list[dict[str, Any]]:
    """All of the kinds that the scenarios wrap, each with its ``plural``."""
    found = []
    for group, plural in (("", "services"), ("batch/v1", "jobs"), ("", "pods")):
        listed = await one.get(one.path(group, plural))
        found += [{**item, "plural": plural} for item in listed["items"]] if listed else []
    return found


async def foreign(one: Lab) -> dict[str, tuple[Any, ...]]:
    """What is not the wrapper's, and what somebody could have done to it."""
    made = {}
    for item in await objects(one):
        metadata = item["metadata"]
        if metadata["name"] == "bystander":
            kept = ("uid", "generation", "labels", "ownerReferences", "deletionTimestamp")
            made[item["plural"]] = tuple(metadata.get(key) for key in kept)
    return made


async def played(
    server: ApiServer,
    home: Path,
    scenario: Scenario,
    led: Callable[[Lab], AbstractAsyncContextManager[Any]],
) -> tuple[Any, ...]:
    """The end of a scenario under those who ``led`` has lead; nothing of anybody else may have
    changed.
    """
    home.mkdir(parents=True)
    async with lab(server, home) as one:
        await one.client.create(one.path("", "services"), service("bystander"))
        await one.client.create(one.path("batch/v1", "jobs"), job("bystander", suspend=True))
        before = await foreign(one)
        one.history.clear()
        async with led(one):
            await scenario(one)
            found = await end_state(one)
        assert len(before) == 2
        assert await foreign(one) == before
        return found
