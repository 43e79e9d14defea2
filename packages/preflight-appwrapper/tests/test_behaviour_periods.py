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
from player import job, service
from preflight_kube.client.client import KubeError

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

PERIOD = 3
LATE = 2
PODS = "template.spec.template"
NOW: dict[str, Any] = {"failureGracePeriodDuration": "0s", "retryPausePeriodDuration": "0s"}


def told(lab: Lab, name: str, type_: str) -> list[tuple[str, str, datetime]]:
    """The statuses, reasons and times of a condition, in their order."""
    found = []
    for one in sorted(lab.history, key=lambda it: it.version):
        known = condition(one.object, type_) if one.what == "wrappers" else {}
        if known and one.object["metadata"]["name"] == name:
            at = datetime.fromisoformat(known["lastTransitionTime"])
            found.append((known["status"], known["reason"], at))
    return found


def seconds(lab: Lab, name: str, start: tuple[str, str], end: tuple[str, str]) -> float:
    """From when a condition (type, status) began to when another one first began after that."""
    began = next(
        at
        for status, reason, at in told(lab, name, start[0])
        if status == start[1] and reason != "Suspended"
    )
    ended = (at for status, _, at in told(lab, name, end[0]) if status == end[1])
    return next(
        (at - began).total_seconds() for at in ended if at > began or (at == began and start != end)
    )


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


async def test_nothing_comes_before_its_period_is_over_nor_long_after_it(
    lab: Lab, *, timed: bool
) -> None:
    """Each period is three seconds; what follows comes at most two seconds later."""
    lab.holds = lambda pod: str(pod["metadata"]["name"]).startswith("slow-")
    lab.silent = {"no-kubelet"}
    last: dict[str, Any] = {**NOW, "retryLimit": "0"}
    three = f"{PERIOD}s"
    unreachable = job("force")
    unreachable["spec"]["template"]["spec"]["nodeName"] = "no-kubelet"
    few = {"template": job("few", parallelism=1), "podSets": [{"path": PODS, "replicas": 3}]}
    async with leads(lab.target, lab.namespace), ending(lab, "bad-", 1), ending(lab, "good-", 0):
        await lab.wrap(few, name="few", **last, admissionGracePeriodDuration=three)
        soon: dict[str, Any] = {"admissionGracePeriodDuration": "1s"}
        await lab.wrap(job("slow"), name="slow", **last, **soon, warmupGracePeriodDuration=three)
        grace: dict[str, Any] = {"retryLimit": "0", "failureGracePeriodDuration": three}
        await lab.wrap(job("bad-grace"), name="grace", **grace)
        kept: dict[str, Any] = {**last, "deletionOnFailureGracePeriodDuration": three}
        await lab.wrap(job("bad-kept"), name="kept", **kept)
        await lab.wrap(job("good-ttl", completions=2), name="ttl", successTTLDuration=three)
        pause: dict[str, Any] = {**NOW, "retryLimit": "1", "retryPausePeriodDuration": three}
        await lab.wrap(job("bad-pause"), name="pause", **pause)
        again: dict[str, Any] = {"retryLimit": "1", "retryPausePeriodDuration": "0s"}
        again["failureGracePeriodDuration"] = three
        await lab.wrap(job("bad-again"), name="again", **again)
        await lab.wrap(unreachable, name="force", forcefulDeletionGracePeriodDuration=three)
        await lab.condition("PodsReady", "True", "force")
        await lab.suspend(True, "force")
        ended = ("few", "slow", "grace", "kept", "pause", "again")
        for name in ended:
            await lab.phase("Failed", name)
        for name in (*ended, "ttl", "force"):
            await lab.condition("ResourcesDeployed", "False", name)
    created, deleting = ("ResourcesDeployed", "True"), ("DeletingResources", "True")
    unhealthy = ("Unhealthy", "True")
    took = {
        "AdmissionGracePeriod": seconds(lab, "few", created, unhealthy),
        "WarmupGracePeriod": seconds(lab, "slow", created, unhealthy),
        "FailureGracePeriod": seconds(lab, "grace", unhealthy, deleting),
        **{f"FailureGracePeriod, failure {i}": it for i, it in enumerate(graces(lab, "again"), 1)},
        "RetryPausePeriod": resumed_after(lab, "pause", *DELETED),
        "DeletionOnFailureGracePeriod": seconds(lab, "kept", unhealthy, deleting),
        "SuccessTTL": seconds(lab, "ttl", ("QuotaReserved", "False"), deleting),
        "ForcefulDeletionGracePeriod": forced(lab, "force"),
    }
    assert len(took) == 9
    print({name: round(it, 1) for name, it in took.items()})
    early = {name: it for name, it in took.items() if it < PERIOD}
    late = {name: it for name, it in took.items() if it > PERIOD + LATE}
    assert not early
    assert not (timed and late)


def graces(lab: Lab, name: str) -> list[float]:
    """From each beginning of Unhealthy to the deletion that follows it."""
    begins = dict.fromkeys(at for status, _, at in told(lab, name, "Unhealthy") if status == "True")
    ends = dict.fromkeys(at for s, _, at in told(lab, name, "DeletingResources") if s == "True")
    return [(end - start).total_seconds() for start, end in zip(begins, ends, strict=True)]


def forced(lab: Lab, name: str) -> float:
    """From the beginning of a deletion to the end of the first pod that no kubelet ends."""
    began = next(at for status, _, at in told(lab, name, "DeletingResources") if status == "True")
    ended = min(
        one.at
        for one in lab.history
        if (one.what, one.type) == ("pods", "DELETED")
        and one.object["spec"].get("nodeName") == "no-kubelet"
    )
    return ended - began.timestamp()


def resumed_after(lab: Lab, name: str, type_: str, reason: str) -> float:
    """From when a reset's deletion began, or ended, to the second creation."""
    began = next(at for _, why, at in told(lab, name, type_) if why == reason)
    created = (at for _, why, at in told(lab, name, "ResourcesDeployed") if why == "Resuming")
    return next((at - began).total_seconds() for at in created if at > began)


DELETED, DELETING = ("ResourcesDeployed", "Resetting"), ("DeletingResources", "DeletionInitiated")
"""Conditions and reasons by which a reset's deletion ends, and begins."""


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
        assert resumed_after(lab, "w", *DELETING) >= 6
        assert resumed_after(lab, "w", *DELETED) >= 2
        await lab.client.merge_patch(
            lab.path("", "services", "held"), {"metadata": {"finalizers": None}}
        )
        await lab.delete()
        await lab.gone(lab.wrappers("w"))
