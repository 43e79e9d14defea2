"""Beside a stand-in for Kueue, and without any, on a real control plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hooks import serving
from kueue import QUEUE, Kueue
from lab import Lab, condition
from leading import leads
from player import PREFIX, job, service
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.service import explained

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

FAST: dict[str, Any] = {"failureGracePeriodDuration": "0s", "retryPausePeriodDuration": "0s"}
INFOS = {"labels": {"kueue": "admitted"}, "nodeSelector": {"flavor": "a100"}, "schedulingGates": []}


async def left(lab: Lab) -> list[str]:
    found = []
    for group, plural in (("", "services"), ("batch/v1", "jobs"), ("", "pods")):
        listed = await lab.get(lab.path(group, plural))
        found += (
            [f"{plural}/{one['metadata']['name']}" for one in listed["items"]] if listed else []
        )
    return found


async def test_kueue_admits_preempts_in_every_phase_and_admits_again(
    lab: Lab, tmp_path: Path
) -> None:
    kueue = Kueue(lab)
    rules = WrapperRules(default_queue="team-a")
    async with (
        serving(lab, tmp_path / "tls", rules, [kueue.hook]),
        leads(lab.target, lab.namespace, rules=rules),
    ):
        await lab.wrap(service(), job(completions=2), successTTLDuration="1s", **FAST)
        assert kueue.queues["w"] == "team-a", "our webhook comes first"
        found = await lab.phase("Suspended")
        assert found["spec"]["suspend"] is True
        sets = kueue.pod_sets(found)
        for phase in ("Resuming", "Running", "Unhealthy", "Resetting", "paused"):
            await kueue.admit("w", INFOS)
            await brought_to(lab, phase)
            await kueue.preempt("w")
            assert not await left(lab), phase
            found = await lab.phase("Suspended")
            assert kueue.pod_sets(found) == sets
            await lab.client.merge_patch(
                lab.wrappers("w"),
                {"metadata": {"annotations": {PREFIX + key: it for key, it in FAST.items()}}},
            )
        await kueue.admit("w", INFOS)
        for pod in await lab.running(2):
            assert pod["metadata"]["labels"]["kueue"] == "admitted"
            assert pod["spec"]["nodeSelector"] == {"flavor": "a100"}
            assert not kueue.finished(await lab.wrapper())
            await lab.ends(pod, code=0)
        found = await lab.phase("Succeeded")
        assert kueue.finished(found)
        assert not kueue.active(found)
        await lab.condition("ResourcesDeployed", "False")
        assert not kueue.changed_while_admitted("w")


async def brought_to(lab: Lab, phase: str) -> None:
    """The wrapper is in this phase, and stays there."""
    if (
        phase == "Resuming"
    ):  # a namespace that may have no Job: its creation is tried again and again
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}}
        await lab.client.create(lab.path("", "resourcequotas"), quota)
        await lab.phase("Resuming")
        await lab.client.delete(lab.path("", "resourcequotas", "none"))
        return
    await lab.running(2)
    await lab.condition("PodsReady", "True")
    if phase == "Running":
        return
    wait = {"Unhealthy": "failureGracePeriodDuration", "paused": "retryPausePeriodDuration"}
    if phase in wait:
        await lab.annotate(**{wait[phase]: "1h"})
    if phase == "Resetting":
        lab.silent = {lab.node}
        await lab.annotate(forcefulDeletionGracePeriodDuration="1h")
    await lab.ends(lab.pods()[0], code=1)
    if phase == "Unhealthy":
        await lab.condition("Unhealthy", "True")
    else:
        found = await lab.phase("Resetting")
        assert condition(found, "QuotaReserved")["status"] == "True", (
            "the quota is kept while it is reset"
        )
    if phase == "paused":
        await lab.condition("ResourcesDeployed", "False")
    lab.silent = set()


async def test_the_clock_of_admission_stands_still_while_a_wrapped_job_queues_by_itself(
    lab: Lab,
) -> None:
    few = {"admissionGracePeriodDuration": "1s", "retryLimit": "0", **FAST}
    async with leads(lab.target, lab.namespace):
        # As Kueue leaves every new Job where manageJobsWithoutQueueName is set: one of ours, and
        # its queue is not.
        await lab.wrap(job("queued", suspend=True), name="queued", **few)
        await lab.phase("Running", "queued")
        # One that came later, whose third pod never comes, has failed by the same periods.
        sets = [{"path": "template.spec.template", "replicas": 3}]
        await lab.wrap({"template": job("short"), "podSets": sets}, name="short", **few)
        await lab.phase("Failed", "short")
        found = await explained(lab.client, lab.namespace, "queued", WrapperRules())
        assert found is not None
        assert found.phase == "Running"
        assert "suspended" in str(found), "explain says what it waits for"
        # Its pods may take longer than a second to come.
        longer = {"metadata": {"annotations": {f"{PREFIX}admissionGracePeriodDuration": "5m"}}}
        await lab.client.merge_patch(lab.wrappers("queued"), longer)
        await lab.client.merge_patch(
            lab.path("batch/v1", "jobs", "queued"), {"spec": {"suspend": False}}
        )
        await lab.condition("PodsReady", "True", "queued")
        assert QUEUE not in (await lab.wrapper("queued"))["metadata"].get("labels", {})
