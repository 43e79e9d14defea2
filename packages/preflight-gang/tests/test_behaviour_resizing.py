"""A gang whose size changes, and members that come back at another address."""

from __future__ import annotations

from typing import Any

import pytest
from leading import Leading
from played import GANG, Cluster
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

JOBS = "/apis/batch/v1/namespaces/{}/jobs"


async def create_job(cluster: Cluster, pods: int) -> None:
    """An Indexed Job, which can be resized; nobody makes its pods here."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "train", "image": "x"}]}}
    body: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": pods,
            "completions": pods,
            "template": template,
        },
    }
    await cluster.client.create(JOBS.format(cluster.namespace), body)


async def resize(cluster: Cluster, pods: int) -> None:
    body = {"spec": {"parallelism": pods, "completions": pods}}
    await cluster.client.merge_patch(f"{JOBS.format(cluster.namespace)}/train", body)


async def member(cluster: Cluster, index: int) -> None:
    await cluster.admit(f"pod-{index}", source="job", about="train", size=None)
    await cluster.address(f"pod-{index}", f"10.0.0.{index + 1}")


def participants(cluster: Cluster, leading: Leading) -> int | None:
    """With how many the controller would seal the gang now."""
    gang = leading.controller.gang((cluster.namespace, f"job:{GANG}"))
    return gang.sized.participants if gang is not None else None


async def test_a_gang_that_grows_before_it_is_sealed_waits_for_all(
    cluster: Cluster, leading: Leading
) -> None:
    await create_job(cluster, 2)
    await member(cluster, 0)
    await cluster.test("pod-0")
    await cluster.answered("wait", "pod-0", missing=("1 of 2 members: no such pod yet",))
    await resize(cluster, 3)
    await cluster.answered("wait", "pod-0", missing=("2 of 3 members: no such pod yet",))
    for i in (1, 2):
        await member(cluster, i)
    await cluster.answered("sealed", "pod-0", "pod-1", "pod-2", nnodes=3)


async def test_what_a_gang_was_resized_to_holds_for_its_next_generation(
    cluster: Cluster, leading: Leading
) -> None:
    await create_job(cluster, 2)
    for i in (0, 1):
        await member(cluster, i)
    await cluster.answered("sealed", "pod-0", "pod-1", generation=1)
    await resize(cluster, 3)
    await member(cluster, 2)
    (roster,) = await cluster.answered("skip", "pod-2")
    assert "the 2 members it needs" in roster.reason
    await until(lambda: participants(cluster, leading) == 3, "the watch has brought the new size")
    await cluster.test("pod-1", restarts=1)  # the first generation is over
    await cluster.answered("sealed", "pod-0", "pod-1", "pod-2", generation=2, nnodes=3)
