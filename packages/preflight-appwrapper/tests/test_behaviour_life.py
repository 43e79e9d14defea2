"""A wrapper's life on a real control plane: created, run, reset, moved, suspended,
ended, and gone.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import anyio
import pytest
from lab import Lab, condition
from leading import leads
from player import bare_pod, job, service
from preflight_appwrapper.api.names import FINALIZER, LABEL
from versions import Seen

pytestmark = pytest.mark.anyio

FAST: dict[str, Any] = {"failureGracePeriodDuration": "0s", "retryPausePeriodDuration": "0s"}


def count(wrapper: dict[str, Any]) -> int:
    return int(wrapper["status"].get("resettingCount", 0))


async def test_a_job_is_created_runs_and_succeeds_and_its_objects_go_after_the_ttl(
    lab: Lab,
) -> None:
    async with leads(lab.target, lab.namespace):
        await lab.wrap(service(), job(completions=2), successTTLDuration="1s")
        await lab.phase("Running")
        await lab.condition("PodsReady", "True")
        for pod in await lab.running(2):
            await lab.ends(pod, code=0)
        found = await lab.phase("Succeeded")
        assert condition(found, "QuotaReserved")["status"] == "False"
        found = await lab.condition("ResourcesDeployed", "False")
        assert condition(found, "ResourcesDeployed")["reason"] == "Succeeded"
        assert await lab.get(lab.path("batch/v1", "jobs", "train")) is None


async def test_every_object_and_pod_carries_the_label_and_the_wrapper_owns_its_components(
    lab: Lab,
) -> None:
    async with leads(lab.target, lab.namespace):
        await lab.wrap(service(), job(), bare_pod())
        found = await lab.phase("Running")
        assert found["metadata"]["finalizers"] == [FINALIZER]
        known = found["status"]["componentStatus"]
        assert [one["kind"] for one in known] == ["Service", "Job", "Pod"]
        assert known[2]["name"].startswith("probe-")
        for path in (lab.path("", "services", "train"), lab.path("", "pods", known[2]["name"])):
            made = await lab.get(path)
            assert made is not None
            assert made["metadata"]["labels"][LABEL] == "w"
            assert made["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
        assert {one["metadata"]["labels"][LABEL] for one in await lab.running(3)} == {"w"}


async def test_a_failed_pod_resets_the_workload_until_no_reset_is_left(lab: Lab) -> None:
    async with leads(lab.target, lab.namespace) as leading:
        await lab.wrap(job(), retryLimit="1", **FAST)
        first = await lab.running(2)
        await lab.ends(first[0], code=3)

        second = await lab.anew(first, 2)
        assert count(await lab.phase("Running")) == 1
        await lab.ends(second[0], code=3)
        found = await lab.phase("Failed")
        assert count(found) == 1
        found = await lab.condition("ResourcesDeployed", "False")
        assert condition(found, "QuotaReserved")["reason"] == "Failed"
        assert condition(found, "Unhealthy")["reason"] == "FoundFailedPods"
        counted = {
            one.labels["reason"]: one.value for one in leading.samples("appwrapper_resets_total")
        }
        assert counted == {"FoundFailedPods": 1}
        transitions = {
            "Resuming": 2,
            "Running": 2,
            "FoundFailedPods": 2,
            "Resetting": 1,
            "Failed": 1,
        }

        async def told() -> Any:
            ours = await lab.events()
            reasons = Counter(one["reason"] for one in ours)
            return {it["reason"]: it["message"] for it in ours} if reasons == transitions else None

        said = await lab.until(told, "an Event for each transition")
        name = first[0]["metadata"]["name"]
        assert said["Resetting"] == (
            f"reset 1 of 1: 1 failed pod, {name} on node-a exited with 3; "
            "created again in 0s, once everything is deleted"
        )


async def test_a_terminal_exit_code_is_final(lab: Lab) -> None:
    async with leads(lab.target, lab.namespace):
        await lab.wrap(job(), terminalExitCodes="3, 10", **FAST)
        await lab.ends((await lab.running(2))[0], code=10)
        assert count(await lab.phase("Failed")) == 0


async def test_a_label_on_a_node_moves_the_workload_and_counts_nothing(lab: Lab) -> None:
    lab.node = f"bad-{lab.namespace}"
    await lab.client.create("/api/v1/nodes", {"metadata": {"name": lab.node, "labels": {"x": "y"}}})
    async with leads(lab.target, lab.namespace):
        await lab.wrap(job(), **FAST)
        before = await lab.running(2)
        bad, lab.node = lab.node, "node-b"
        await lab.client.merge_patch(
            f"/api/v1/nodes/{bad}",
            {"metadata": {"labels": {"autopilot.ibm.com/gpuhealth": "EVICT"}}},
        )

        assert {one["spec"]["nodeName"] for one in await lab.anew(before, 2)} == {"node-b"}
        found = await lab.phase("Running")
        assert count(found) == 0
        assert found["status"]["migrationCount"] == 1


async def test_a_component_that_somebody_deletes_fails_the_wrapper_whatever_the_limit(
    lab: Lab,
) -> None:
    async with leads(lab.target, lab.namespace):
        await lab.wrap(service(), job(), **FAST)
        await lab.running(2)
        await lab.client.delete(lab.path("", "services", "train"))
        found = await lab.phase("Failed")
        assert condition(found, "Unhealthy")["reason"] == "MissingComponent"
        assert count(found) == 0


@pytest.mark.parametrize("seconds", [0, 1])
async def test_a_job_that_is_removed_after_it_has_completed_has_succeeded(
    lab: Lab, seconds: int
) -> None:
    async with leads(lab.target, lab.namespace):
        await lab.wrap(job(completions=2, ttlSecondsAfterFinished=seconds), **FAST)
        for pod in await lab.running(2):
            await lab.ends(pod, code=0)
        await lab.phase("Succeeded")


async def test_a_job_with_more_completions_than_pods_succeeds_only_when_it_is_complete(
    lab: Lab,
) -> None:
    async with leads(lab.target, lab.namespace):
        await lab.wrap(job(parallelism=2, completions=10), **FAST)
        for _ in range(5):
            for pod in await lab.running(2):
                assert (await lab.wrapper())["status"]["phase"] == "Running"
                await lab.ends(pod, code=0)
        await lab.phase("Succeeded")
        found = await lab.get(lab.path("batch/v1", "jobs", "train"))
        assert found is not None
        assert found["status"]["succeeded"] == 10


async def test_a_pod_that_its_job_replaces_is_no_reason_for_a_reset(lab: Lab) -> None:
    async with leads(lab.target, lab.namespace):
        await lab.wrap(job(backoffLimit=3, completions=2), failureGracePeriodDuration="30s")
        first = await lab.running(2)
        await lab.ends(first[0], code=1)
        await lab.condition("Unhealthy", "True")
        await lab.running(2)  # the Job waits ten seconds before it does so
        await lab.condition("Unhealthy", "False")
        for pod in await lab.running(2):
            await lab.ends(pod, code=0)
        assert count(await lab.phase("Succeeded")) == 0


async def test_a_pod_without_a_kubelet_is_deleted_by_force(lab: Lab, *, timed: bool) -> None:
    """ForcefulDeletionGracePeriod is three seconds; nothing is left within ten."""
    lab.silent = {"node-a"}
    async with leads(lab.target, lab.namespace):
        await lab.wrap(job(), forcefulDeletionGracePeriodDuration="3s")
        await lab.running(2)
        began = time.time()
        await lab.suspend(True)
        await lab.phase("Suspended")
        assert not lab.pods()
        took = await lab.first("wrappers", undeployed) - began
        print(f"from the suspension to ResourcesDeployed=False, by force: {took:.1f} s")
        assert took >= 3
        if timed:
            assert took < 10
        assert await lab.first("pods", lambda one: one.type == "DELETED") - began >= 3

        await lab.until(lambda: lab.events("DeletionForced"), "the Event")


def undeployed(one: Seen) -> bool:
    return bool(condition(one.object, "ResourcesDeployed").get("status") == "False")


async def test_what_force_cannot_remove_is_named_and_keeps_the_quota_until_it_is_removed_by_hand(
    lab: Lab, *, timed: bool
) -> None:
    held = service("held")
    held["metadata"]["finalizers"] = ["example.com/nobody"]
    async with leads(lab.target, lab.namespace) as leading:
        await lab.wrap(held, job(), forcefulDeletionGracePeriodDuration="1s")
        await lab.running(2)
        await lab.suspend(True)

        async def blocked() -> Any:
            said = condition(await lab.wrapper(), "DeletingResources").get("message", "")
            return "Service held" in said and "example.com/nobody" in said

        await lab.until(blocked, "the name of what blocks")

        async def told() -> Any:
            said = [one["message"] for one in await lab.events("DeletionBlocked")]
            return [it for it in said if "Service held (finalizer example.com/nobody)" in it]

        # A pod that is slow to end may be in the way, too: then there is an Event of both.
        await lab.until(told, "an Event DeletionBlocked that names the Service")
        found = await lab.wrapper()
        assert condition(found, "ResourcesDeployed")["status"] == "True"
        assert condition(found, "QuotaReserved")["status"] == "True"
        assert leading.counted("appwrapper_deletion_blocked") == 1
        removed = time.time()
        await lab.client.merge_patch(
            lab.path("", "services", "held"), {"metadata": {"finalizers": None}}
        )
        await lab.phase("Suspended")
        took = await lab.first("wrappers", undeployed) - removed
        print(f"from a finalizer that is removed by hand to ResourcesDeployed=False: {took:.1f} s")
        if timed:
            assert took < 2
        assert leading.counted("appwrapper_deletion_blocked") == 0


async def test_an_object_of_somebody_else_is_never_taken_nor_deleted(lab: Lab) -> None:
    await lab.client.create(
        lab.path("", "services"), {"apiVersion": "v1", "kind": "Service", **service()}
    )
    before = await lab.get(lab.path("", "services", "train"))
    assert before is not None
    async with leads(lab.target, lab.namespace):
        await lab.wrap(service(), job())
        found = await lab.phase("Failed")
        assert (
            "Service train exists and belongs to nobody" in condition(found, "Unhealthy")["message"]
        )
        await lab.condition("ResourcesDeployed", "False")
        await lab.delete()
        await lab.gone(lab.wrappers("w"))
        after = await lab.get(lab.path("", "services", "train"))
        assert after is not None
        assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_a_kind_that_is_not_served_and_an_invalid_one_fail_at_once_with_their_cause(
    lab: Lab,
) -> None:
    unknown = {
        "apiVersion": "example.com/v1",
        "kind": "Robot",
        "metadata": {"name": "r"},
        "spec": {},
    }
    invalid = job("broken")
    invalid["spec"]["template"]["spec"]["containers"][0]["image"] = ""
    async with leads(lab.target, lab.namespace):
        await lab.wrap(unknown, job(), name="unserved")
        await lab.wrap(invalid, name="invalid")
        found = await lab.phase("Failed", "unserved")
        assert "does not serve example.com/v1 Robot" in condition(found, "Unhealthy")["message"]
        found = await lab.phase("Failed", "invalid")
        assert "image: Required value" in condition(found, "Unhealthy")["message"]


async def test_nothing_is_written_and_nothing_is_asked_while_nothing_happens(lab: Lab) -> None:
    async with leads(lab.target, lab.namespace) as leading:
        await lab.wrap(job())
        await lab.running(2)
        await lab.condition("PodsReady", "True")

        async def quiet() -> bool:
            before = leading.client.requests.count.total()
            await anyio.sleep(1.5)
            return leading.client.requests.count.total() == before

        await lab.until(quiet, "a second and a half without a request")
