"""Limits and periods on a real control plane: as many resets as the limit says, and nothing before
its period is over.

A condition's times have whole seconds, and so have the differences that are compared here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

import anyio
import pytest
from lab import Lab, condition
from leading import leads
from player import PREFIX, job, service
from preflight_kube.client import KubeError

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

PERIOD = 3
NOW: dict[str, Any] = {"failureGracePeriodDuration": "0s", "retryPausePeriodDuration": "0s"}


def seconds(lab: Lab, name: str, start: tuple[str, str], end: tuple[str, str]) -> float:
    """From when a condition (type, status) began to when another one first began after that."""
    began: datetime | None = None
    for one in sorted(lab.history, key=lambda it: it.version):
        if one.what != "wrappers" or one.object["metadata"]["name"] != name:
            continue
        last = condition(one.object, end[0])
        if began is not None and last.get("status") == end[1]:
            ended = datetime.fromisoformat(last["lastTransitionTime"])
            if ended >= began and (start[0] != end[0] or ended > began):
                return (ended - began).total_seconds()
        first = condition(one.object, start[0])
        if began is None and first.get("status") == start[1] and first.get("reason") != "Suspended":
            began = datetime.fromisoformat(first["lastTransitionTime"])
    raise AssertionError(f"{name}: no {end} after {start}")


@asynccontextmanager
async def ending(lab: Lab, prefix: str, code: int) -> AsyncIterator[None]:
    """Whatever runs and has a name that begins so ends with this code."""

    async def end() -> None:
        while True:
            for pod in lab.pods():
                if (
                    pod["metadata"]["name"].startswith(prefix)
                    and pod["status"].get("phase") == "Running"
                ):
                    with suppress(KubeError):  # it is gone by now
                        await lab.ends(pod, code=code)
            await anyio.sleep(0.05)

    async with anyio.create_task_group() as group:
        group.start_soon(end)
        yield
        group.cancel_scope.cancel()


async def test_exactly_as_many_resets_are_counted_and_made_as_the_limit_says(lab: Lab) -> None:
    limits = {"w-1": -1, "w0": 0, "w1": 1, "w3": 3}
    async with leads(lab.target, lab.namespace), ending(lab, "train-", 1):
        for name, limit in limits.items():
            await lab.wrap(
                job(f"train-{name}", parallelism=1), name=name, retryLimit=str(limit), **NOW
            )
        for name, limit in limits.items():
            found = await lab.phase("Failed", name)
            assert found["status"].get("resettingCount", 0) == max(limit, 0)
            await lab.condition("ResourcesDeployed", "False", name)
    made = Counter(
        one.object["metadata"]["name"]
        for one in lab.history
        if (one.what, one.type) == ("jobs", "ADDED")
    )
    assert made == {f"train-{name}": max(limit, 0) + 1 for name, limit in limits.items()}


async def test_nothing_comes_before_its_period_is_over(lab: Lab) -> None:
    lab.holds = lambda pod: str(pod["metadata"]["name"]).startswith("slow-")
    last: dict[str, Any] = {**NOW, "retryLimit": "0"}
    three = f"{PERIOD}s"
    waves = job("few", parallelism=1)
    async with leads(lab.target, lab.namespace), ending(lab, "bad-", 1), ending(lab, "good-", 0):
        few = {
            "apiVersion": "workload.codeflare.dev/v1beta2",
            "kind": "AppWrapper",
            "metadata": {
                "name": "few",
                "annotations": {PREFIX + key: one for key, one in last.items()},
            },
            "spec": {"components": [{"template": waves}]},
        }
        few["metadata"]["annotations"][f"{PREFIX}admissionGracePeriodDuration"] = three  # type: ignore[index]
        few["spec"]["components"][0]["podSets"] = [  # type: ignore[index]
            {"path": "template.spec.template", "replicas": 3}
        ]
        await lab.client.create(lab.wrappers(), few)
        await lab.wrap(
            job("slow"),
            name="slow",
            **last,
            admissionGracePeriodDuration="1s",
            warmupGracePeriodDuration=three,
        )
        await lab.wrap(
            job("bad-grace"), name="grace", retryLimit="0", failureGracePeriodDuration=three
        )
        await lab.wrap(
            job("bad-kept"), name="kept", **last, deletionOnFailureGracePeriodDuration=three
        )
        await lab.wrap(job("good-ttl", completions=2), name="ttl", successTTLDuration=three)
        await lab.wrap(
            job("bad-pause"),
            name="pause",
            retryLimit="1",
            failureGracePeriodDuration="0s",
            retryPausePeriodDuration=three,
        )
        for name in ("few", "slow", "grace", "kept", "pause"):
            await lab.phase("Failed", name)
        for name in ("few", "slow", "grace", "kept", "ttl", "pause"):
            await lab.condition("ResourcesDeployed", "False", name)
    deleting = ("DeletingResources", "True")
    assert seconds(lab, "few", ("ResourcesDeployed", "True"), ("Unhealthy", "True")) >= PERIOD
    assert seconds(lab, "slow", ("ResourcesDeployed", "True"), ("Unhealthy", "True")) >= PERIOD
    assert seconds(lab, "grace", ("Unhealthy", "True"), deleting) >= PERIOD
    assert seconds(lab, "kept", ("Unhealthy", "True"), deleting) >= PERIOD
    assert seconds(lab, "ttl", ("ResourcesDeployed", "True"), deleting) >= PERIOD
    assert resumed_after_deletion(lab, "pause") >= PERIOD


def resumed_after_deletion(lab: Lab, name: str, since: str = "ResourcesDeployed") -> float:
    """From the end of a reset's deletion, or from its beginning, to the second creation."""
    began: datetime | None = None
    for one in sorted(lab.history, key=lambda it: it.version):
        if one.what != "wrappers" or one.object["metadata"]["name"] != name:
            continue
        deployed, deleting = (
            condition(one.object, "ResourcesDeployed"),
            condition(one.object, "DeletingResources"),
        )
        if since == "ResourcesDeployed" and deployed.get("reason") == "Resetting" and began is None:
            began = datetime.fromisoformat(deployed["lastTransitionTime"])
        if since == "DeletingResources" and deleting.get("status") == "True" and began is None:
            began = datetime.fromisoformat(deleting["lastTransitionTime"])
        if (
            began is not None
            and deployed.get("status") == "True"
            and deployed.get("reason") == "Resuming"
        ):
            again = datetime.fromisoformat(deployed["lastTransitionTime"])
            if again > began:
                return (again - began).total_seconds()
    raise AssertionError(f"{name} does not come back")


async def test_the_pause_begins_when_nothing_is_left_however_long_that_takes(lab: Lab) -> None:
    held = service("held")
    held["metadata"]["finalizers"] = ["example.com/slow"]
    async with leads(lab.target, lab.namespace), anyio.create_task_group() as group:

        async def let_go() -> None:
            """As if something took four seconds to end."""

            async def going() -> Any:
                found = await lab.get(lab.path("", "services", "held"))
                return found and "deletionTimestamp" in found["metadata"]

            await lab.until(going, "the deletion of a Service")
            await anyio.sleep(4)
            await lab.client.merge_patch(
                lab.path("", "services", "held"), {"metadata": {"finalizers": None}}
            )

        await lab.wrap(
            held,
            job("once"),
            retryLimit="1",
            failureGracePeriodDuration="0s",
            retryPausePeriodDuration="2s",
        )
        await lab.ends((await lab.running(2))[0], code=1)
        group.start_soon(let_go)

        async def again() -> bool:
            jobs = [one for one in lab.history if (one.what, one.type) == ("jobs", "ADDED")]
            return len(jobs) == 2

        await lab.until(again, "a second Job")
        assert resumed_after_deletion(lab, "w", "DeletingResources") >= 6
        assert resumed_after_deletion(lab, "w") >= 2
        await lab.client.merge_patch(
            lab.path("", "services", "held"), {"metadata": {"finalizers": None}}
        )
        await lab.delete()
        await lab.gone(lab.wrappers("w"))
