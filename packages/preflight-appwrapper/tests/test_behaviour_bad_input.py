"""What is wrong with a wrapper, in one sentence each, as a user reads it from a real API server;
and what comes of what was let through.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from hooks import serving
from lab import Lab, condition
from lab import appwrapper as wrapper
from leading import leads
from player import bare_pod, job, service
from preflight_kube.client.client import KubeError
from preflight_testing.grove_kinds import crd

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

TOO_LARGE = 1_400_000
Json = dict[str, Any]


def of(template: Any) -> Json:
    return {"template": template}


LARGE = job()
LARGE["spec"]["template"]["spec"]["containers"][0]["args"] = ["x" * TOO_LARGE]
KEPT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
OPEN = {"type": "object", "properties": {"spec": KEPT}}
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}
ROBOT = {"apiVersion": "example.com/v1", "kind": "Robot", "metadata": {"name": "r"}}
DENIED: dict[str, tuple[Json, str]] = {
    "no components": (wrapper(), "spec.components: is empty; wrap at least one resource that makes pods."),
    "a list": (wrapper(of([])), "spec.components[0].template"),
    "a string": (wrapper(of("Job")), "spec.components[0].template"),
    "too large": (wrapper(of(LARGE)), "can be stored beside a status; put large data into a ConfigMap or an image."),
    "a kind of the whole cluster": (wrapper(of(job()), of(NAMESPACE)), "v1 Namespace belongs to the whole cluster"),
    "a kind that is not served": (wrapper(of(job()), of(ROBOT)), "the API server does not serve example.com/v1 Robot"),
    "the same twice": (wrapper(of(job()), of(job())), "spec.components[1].template: is Job train, as spec.components[0] is"),
    "a long name": (wrapper(of(job()), name="n" * 64), "metadata.name: has 64 characters"),
    "a component's long name": (wrapper(of(job("n" * 254))), "metadata.name: has 254 characters, and a name can have 253"),
    "65 components": (
        wrapper(*(of(service(f"s{i}")) for i in range(64)), of(job())),
        "spec.components: has 65 entries, more than the 64 that a webhook goes through; use fewer.",
    ),
}  # fmt: skip


async def test_each_thing_that_is_wrong_is_denied_in_a_sentence_that_says_where_and_what_to_do(
    lab: Lab, tmp_path: Path
) -> None:
    unsaid: dict[str, str] = {}
    async with serving(lab, tmp_path / "tls"):
        for what, (body, said) in DENIED.items():
            try:
                await lab.client.create(lab.wrappers(), body)
                unsaid[what] = "was let through"
            except KubeError as error:
                if said not in str(error) or "Traceback" in str(error):
                    unsaid[what] = str(error)[-400:]
        everything = wrapper(of(job()), of(job()), of(NAMESPACE), of(ROBOT), name="n" * 64)
        with pytest.raises(KubeError) as all_at_once:
            await lab.client.create(lab.wrappers(), everything)
    assert not unsaid
    for said in (
        "has 64 characters",
        "as spec.components[0] is",
        "whole cluster",
        "does not serve",
    ):
        assert said in str(all_at_once.value)


async def test_what_is_wrong_with_annotations_is_said_once_in_an_event_and_the_default_holds(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    bad = {
        "admissionGracePeriodDuration": "222badTime",
        "warmupGracePeriodDuration": "10",
        "failureGracePeriodDuration": "7d",
        "retryPausePeriodDuration": "1h 30m",
        "forcefulDeletionGracePeriodDuration": "",
        "successTTLDuration": "9999999h",
        "retryLimit": "99999999999",
        "terminalExitCodes": "3,10,abc,42",
        "retryableExitCodes": "x",
    }
    bounded = {"deletionOnFailureGracePeriodDuration": "-10m", "preflightAllowanceDuration": "48h"}
    async with leads(lab.target, lab.namespace):
        await lab.wrap(job(), **bad, **bounded)
        await lab.condition("PodsReady", "True")

        async def said() -> Any:
            told = [one["message"] for one in await lab.events("BadAnnotation")]
            return told if all(any(key in one for one in told) for key in bad) else None

        told = await lab.until(said, "an Event for each annotation")
        assert len(told) == len(set(told))
        assert any("abc" in one for one in told), told
        logged = [vars(one)["about"] for one in caplog.records if "annotation" in one.getMessage()]
        assert sorted(one["why"] for one in logged) == sorted(told)
        assert {(one["namespace"], one["name"]) for one in logged} == {(lab.namespace, "w")}


async def test_pod_set_infos_that_contradict_the_template_fail_it_with_the_key_and_both_values(
    lab: Lab,
) -> None:
    made = job()
    made["spec"]["template"]["spec"]["nodeSelector"] = {"flavor": "a100"}
    body = wrapper(of(made))
    body["spec"]["components"][0]["podSetInfos"] = [{"nodeSelector": {"flavor": "h100"}}]
    async with leads(lab.target, lab.namespace):
        await lab.client.create(lab.wrappers(), body)
        found = await lab.phase("Failed")
        unhealthy = condition(found, "Unhealthy")
        assert unhealthy["reason"] == "CreateFailed"
        for part in ("spec.components[0]", "flavor", "a100", "h100"):
            assert part in unhealthy["message"]


async def test_a_kind_that_vanishes_while_it_is_wrapped_fails_the_wrapper_and_is_not_asked_for_again(
    lab: Lab,
) -> None:
    lab.server.define(crd("vanish.example.com", "Ghost", "ghosts", {"v1": OPEN}))
    ghost = {"apiVersion": "vanish.example.com/v1", "kind": "Ghost", "metadata": {"name": "g"}}
    ghost["spec"] = {}
    async with leads(lab.target, lab.namespace) as leading:
        await lab.client.create(lab.wrappers(), wrapper(of(ghost), of(bare_pod())))
        await lab.phase("Running")
        await lab.running(1)
        await lab.client.delete(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ghosts.vanish.example.com"
        )
        found = await lab.phase("Failed")
        assert condition(found, "Unhealthy")["reason"] == "MissingComponent"
        await lab.condition("ResourcesDeployed", "False")
        assert (
            leading.counted("appwrapper_resets_total", reason="MissingComponent", counted="true")
            == 0
        )
        assert not lab.pods()


INITIATED = {
    "type": "ResourcesDeployed",
    "status": "Unknown",
    "reason": "ComponentCreationInitiated",
    "message": "",
    "lastTransitionTime": "0000-01-01T00:00:00Z",
}
NAMELESS = {"name": "", "kind": "", "apiVersion": "", "podSets": [], "conditions": [INITIATED]}


async def test_a_version_that_its_definition_drops_fails_nothing_and_leaves_nothing(
    lab: Lab,
) -> None:
    lab.server.define(crd("drop.example.com", "Drop", "drops", {"v1": OPEN, "v2": OPEN}))
    drop = {"apiVersion": "drop.example.com/v1", "kind": "Drop", "metadata": {"name": "d"}}
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/drops.drop.example.com"
    newer = f"/apis/drop.example.com/v2/namespaces/{lab.namespace}/drops/d"
    async with leads(lab.target, lab.namespace):
        await lab.client.create(lab.wrappers(), wrapper(of({**drop, "spec": {}}), of(bare_pod())))
        await lab.phase("Running")
        await lab.running(1)
        known = await lab.get(definition)
        assert known is not None
        versions = [{**each, "served": each["name"] == "v2"} for each in known["spec"]["versions"]]
        await lab.client.merge_patch(definition, {"spec": {"versions": versions}})

        async def dropped() -> bool:
            return await lab.get(newer.replace("v2", "v1")) is None

        await lab.until(dropped, "the end of v1")
        await anyio.sleep(3)
        assert (await lab.wrapper())["status"]["phase"] == "Running"
    async with leads(lab.target, lab.namespace) as leading:
        await lab.until(
            lambda: _true(leading.counted("appwrapper_look_seconds_count") >= 2), "two looks"
        )
        await anyio.sleep(2)
        assert (await lab.wrapper())["status"]["phase"] == "Running"
        assert len(lab.pods()) == 1
        await lab.delete()
        await lab.gone(lab.wrappers("w"))
        assert await lab.get(newer) is None
        assert not leading.counted(
            "appwrapper_phase_total", namespace=lab.namespace, phase="Failed"
        )


async def _true(value: bool) -> bool:
    return value


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Succeeded"},
        {"phase": "Running", "componentStatus": []},
        {"phase": "Suspended", "conditions": [], "componentStatus": []},
        {"phase": "Nonsense", "resettingCount": 2_000_000_000},
        {"phase": "Resetting", "conditions": []},
        {"phase": "Terminating"},
        {"phase": "Resuming", "componentStatus": [NAMELESS, NAMELESS]},
    ],
    ids=lambda one: str(one["phase"]),
)
async def test_a_status_that_somebody_writes_in_mid_flight_breaks_nothing_and_leaves_no_orphan(
    lab: Lab, status: Json
) -> None:
    async with leads(lab.target, lab.namespace):
        await lab.wrap(service(), job(), retryPausePeriodDuration="0s", successTTLDuration="1s")
        await lab.running(2)
        at_hand = (await lab.wrapper())["status"]
        # What somebody writes by hand may say what it likes; what is left is looked at below.
        lab.history.clear()
        body = {"status": {**dict.fromkeys(at_hand), **status}}
        await lab.client.merge_patch(lab.wrappers("w") + "/status", body)
        await lab.delete()
        await lab.gone(lab.wrappers("w"))
        assert not lab.pods()
        for group, plural in (("batch/v1", "jobs"), ("", "services")):
            found = await lab.get(lab.path(group, plural))
            assert found is not None
            assert not found["items"]
        lab.history.clear()


@pytest.mark.parametrize("length", [300, 70_000])
async def test_a_name_that_no_object_can_have_is_the_end_of_a_wrapper_which_can_be_deleted(
    lab: Lab, length: int
) -> None:
    """Where no webhook has denied it."""
    async with leads(lab.target, lab.namespace):
        named = bare_pod()
        named["metadata"] = {"name": "p" * length}
        await lab.wrap(named)
        await lab.phase("Failed")
        await lab.condition("ResourcesDeployed", "False")
        await lab.delete()
        await lab.gone(lab.wrappers("w"))
