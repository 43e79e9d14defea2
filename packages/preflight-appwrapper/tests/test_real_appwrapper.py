"""The Go controller beside ours: each scenario on two API servers, and what became of the wrapper
on either.

PREFLIGHT_APPWRAPPER names its program (`nox -s real-appwrapper -- PROGRAM`).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from lab import Lab, condition, lab
from leading import leads
from player import bare_pod, job, service
from preflight_appwrapper.api.names import INDEX
from preflight_appwrapper.api.rules import Autopilot, LabelTaint, WrapperRules
from preflight_kube.client.client import NotFound
from preflight_testing.apiserver import ApiServer, assets

PROGRAM: Final = Path(os.environ.get("PREFLIGHT_APPWRAPPER", "/nowhere"))
pytestmark = [
    pytest.mark.skipif(not PROGRAM.exists(), reason="PREFLIGHT_APPWRAPPER names no controller"),
    pytest.mark.anyio,
    pytest.mark.timeout(300),
]
THEIR_TAINTS: Final = (
    ("WARN", "PreferNoSchedule"),
    ("TESTING", "NoSchedule"),
    ("EVICT", "NoExecute"),
)
RULES: Final = WrapperRules(
    autopilot=Autopilot(
        taints={
            "nvidia.com/gpu": tuple(
                LabelTaint("autopilot.ibm.com/gpuhealth", *it) for it in THEIR_TAINTS
            )
        }
    )
)
ELSEWHEN: Final = {"PodsReady False InsufficientPodsReady", "ResourcesDeployed False Resetting"}
HEALTHY: Final = {
    f"Unhealthy False {reason}": "healthy" for reason in ("Resuming", "FoundNoFailedPods")
}
DIFFERENT: Final[dict[str, str]] = {
    "has a component whose name is taken": "services",
    "has a finished part that is cleaned up": "QuotaReserved ResourcesDeployed Unhealthy phases",
    "has no pods": "PodsReady QuotaReserved ResourcesDeployed phases",
    "is deleted in the pause of a reset": "DeletingResources phases",
    "is suspended in the pause of a reset": "DeletingResources",
    "is refused what its queue adds": "DeletingResources",
}
"""By scenario: what is another story, each for a reason that is among the differences."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    from control_plane import control_plane

    folder = assets()
    if folder is None or not (folder / "kube-controller-manager").exists():
        pytest.skip("KUBEBUILDER_ASSETS names no control plane")
    home = tmp_path_factory.mktemp("theirs")
    with control_plane(home, folder) as server:
        nowhere = {"bindAddress": "0"}
        settings = {
            "webhooksEnabled": False,
            "controllerManager": {"metrics": nowhere, "health": nowhere},
        }
        about = {"name": "appwrapper-operator-config", "namespace": "default"}
        body = {"metadata": about, "data": {"config.yaml": json.dumps(settings)}}
        server.call("POST", "/api/v1/namespaces/default/configmaps", body)
        kubeconfig = server.kubeconfig(home / "kubeconfig-of-theirs")
        environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "NAMESPACE": "default"}
        with (home / "theirs.log").open("ab") as log:
            process = subprocess.Popen([str(PROGRAM)], stdout=log, stderr=log, env=environ)
        try:
            yield server
        finally:
            process.kill()
            process.wait()


def story(lab: Lab) -> dict[str, list[str]]:
    """What was seen, each without repetitions: phases, of each condition status and reason, and
    what came and went of each kind of object.

    Left out is what differs everywhere (docs/appwrapper-differences.md): when a pause and
    readiness end, and which of two reasons says that a wrapper is healthy.
    """
    told: dict[str, list[str]] = {}

    def tell(key: str, what: str) -> None:
        if told.setdefault(key, [""])[-1] != what:
            told[key].append(what)

    for one in sorted(lab.history, key=lambda it: it.version):
        name, status = one.object["metadata"]["name"], one.object.get("status", {})
        if one.what != "wrappers":
            if sign := {"ADDED": "+", "DELETED": "-"}.get(one.type):
                tell(one.what, sign + (name if one.what != "pods" else ""))
        elif name == "w":
            now = f"{status.get('phase', '')} {status.get('resettingCount', 0)}"
            tell("phases", "gone" if one.type == "DELETED" else now)
            for it in status.get("conditions", []):
                said = f"{it['type']} {it['status']} {it['reason']}"
                if said not in ELSEWHEN:
                    tell(it["type"], HEALTHY.get(said, said))
    return told


NOW: Final = {"failureGracePeriodDuration": "0s", "retryPausePeriodDuration": "0s"}
ONCE: Final = {**NOW, "retryLimit": "0"}
PAUSE: Final = {**NOW, "retryPausePeriodDuration": "1h"}
UNKNOWN: Final = {"apiVersion": "example.com/v1", "kind": "Robot", "metadata": {"name": "r"}}
ZONED: Final = {**job()["spec"]["template"], "metadata": {"labels": {"zone": "a"}}}
CLASH: Final = {"template": job(template=ZONED), "podSetInfos": [{"labels": {"zone": "b"}}]}
INVALID: Final = job("invalid", completionMode="None")
FINISHED: Final = "run 4; end 0 0; end 1 0"
FAILED: Final = "is Failed; is ResourcesDeployed=False"
FORCE: Final = {"forcefulDeletionGracePeriodDuration": "2s"}
NEGATIVE: Final = {"failureGracePeriodDuration": "-5s", "retryPausePeriodDuration": "-1h"}
ODD: Final = {**NEGATIVE, "retryLimit": "+1", "admissionGracePeriodDuration": "soon"}
SHORT: Final = {**ONCE, "warmupGracePeriodDuration": "3s", "admissionGracePeriodDuration": "2s"}
KEPT: Final = {**ONCE, "deletionOnFailureGracePeriodDuration": "1h"}
SLOW: Final = {"retryLimit": "0", "failureGracePeriodDuration": "1h"}
J2: Final = job(completions=2)
PARTS: Final = (job("a", completions=2), job("b", completions=2))
CLEANED: Final = (job("a", completions=2, ttlSecondsAfterFinished=0), PARTS[1])
TTL: Final = {"successTTLDuration": "1s"}
WAITS: Final = "is Resetting; is ResourcesDeployed=False"
Scenario = tuple[tuple[dict[str, Any], ...], Mapping[str, Any], str]
# fmt: off
SCENARIOS: Final[dict[str, Scenario]] = {
    "succeeds": ((service(), J2), TTL, "run 2; end 0 0; end 1 0; is Succeeded; is ResourcesDeployed=False"),
    "is reset until no reset is left": ((job(),), {**NOW, "retryLimit": "1"}, f"run 2; end 0 1; run 2; end 0 1; {FAILED}"),
    "fails with a terminal exit code": ((job(),), {**NOW, "terminalExitCodes": "x,3,10"}, f"run 2; end 1 10; {FAILED}"),
    "fails with a code that is not retryable": ((job(),), {**NOW, "retryableExitCodes": "3"}, f"run 2; end 1 4; {FAILED}"),
    "is reset for a retryable code": ((job(),), {**NOW, "retryableExitCodes": "3"}, "run 2; end 1 3; run 2"),
    "has an invalid component": ((service(), INVALID), {}, FAILED),
    "has a component of an unknown kind": ((job(), UNKNOWN), {}, FAILED),
    "has a component whose name is taken": ((job(), service()), {}, f"taken; wrap; {FAILED}"),
    "is refused what its queue adds": ((CLASH,), {}, FAILED),
    "is deleted while it runs": ((service(), job(), bare_pod()), {}, "run 3; delete"),
    "is deleted while it is suspended": ((job(),), {"suspend": True}, "is Suspended; delete"),
    "is deleted in the pause of a reset": ((job(),), PAUSE, f"run 2; end 0 1; {WAITS}; delete"),
    "is suspended and resumed": ((service(), job()), {}, "run 2; suspend; is Suspended; resume; run 2"),
    "is suspended in the pause of a reset": ((job(),), PAUSE, f"run 2; end 0 1; {WAITS}; suspend; is Suspended"),
    "is suspended while it is kept for debugging": ((job(),), KEPT, "run 2; end 0 1; is Failed; is DeletingResources=False; suspend; is ResourcesDeployed=False"),
    "has pods that do not start": ((job(),), SHORT, f"held; wrap; {FAILED}"),
    "has odd annotations": ((job(),), ODD, f"run 2; end 0 1; run 2; end 0 1; {FAILED}"),
    "has a finished part beside a running one": (PARTS, {}, f"{FINISHED}; complete; end 2 0; end 3 0; is Succeeded"),
    "has a finished part that is cleaned up": (CLEANED, {}, f"{FINISHED}; gone jobs a; end 2 0; end 3 0; ended; delete"),
    "loses a pod that its job replaces": ((job(),), {}, "run 2; lose pods 0; run 1"),
    "loses a bare pod": ((bare_pod(), service()), {}, f"run 1; lose pods 0; {FAILED}"),
    "loses a component": ((service(), job()), {}, f"run 2; lose services train; {FAILED}"),
    "has a job that fails": ((service(), job(backoffLimit=0)), SLOW, f"run 2; end 0 1; {FAILED}"),
    "is on a node that is marked": ((job(),), NOW, "bad; wrap; run 2; mark; run 2"),
    "is on a marked node when no reset is left": ((job(),), ONCE, f"bad; wrap; run 2; mark; {FAILED}"),
    "has pods that only force removes": ((service(), job()), FORCE, "silent; wrap; run 2; suspend; is Suspended"),
    "has no pods": ((service(),), {}, "ended"),
}
# fmt: on
"""Components, annotations, and what happens: see :func:`happens`."""


async def happens(lab: Lab, scenario: Scenario) -> None:
    templates, annotations, text = scenario
    steps, pods, known, bad = text.split("; "), list[Any](), set[str](), f"bad-{lab.namespace}"

    async def running() -> list[Any]:
        now = [one for one in lab.pods() if one["status"].get("phase") == "Running"]
        fresh = [one for one in now if one["metadata"]["uid"] not in known]
        return (
            sorted(fresh, key=lambda it: str(it["metadata"]["name"])) if len(fresh) == count else []
        )

    async def ended() -> bool:
        found = await lab.wrapper()
        ready = condition(found, "PodsReady").get("status") == "True" and not lab.pods()
        return ready or found.get("status", {}).get("phase") in {"Succeeded", "Failed"}

    async def complete() -> bool:
        found = await lab.get(lab.path("batch/v1", "jobs", "a")) or {}
        return bool(found["status"].get("succeeded") == 2)

    for step in steps if "wrap" in steps else ["wrap", *steps]:
        match step.split():
            case ["wrap"]:
                await lab.wrap(*templates, **annotations)
            case ["run", number]:
                count = int(number)
                pods = await lab.until(running, step)
                known |= {one["metadata"]["uid"] for one in pods}
                await lab.condition("PodsReady", "True")
            case ["end", index, code]:
                with suppress(NotFound):  # of a wrapper that has failed
                    await lab.ends(pods[int(index)], code=int(code))
            case ["is", what]:
                type_, _, status = what.partition("=")
                await (lab.condition(type_, status) if status else lab.phase(what))
            case ["suspend" | "resume"]:
                await lab.suspend(step == "suspend")
            case ["delete"]:
                await lab.delete()
                await lab.gone(lab.wrappers("w"))
            case ["lose", plural, name]:
                name = pods[0]["metadata"]["name"] if plural == "pods" else name
                uid = ((await lab.get(path := lab.path("", plural, name))) or {})["metadata"]["uid"]
                await lab.client.delete(path, uid=uid)
                await lab.gone(path)
            case ["gone", plural, name]:
                await lab.gone(lab.path("batch/v1", plural, name))
            case ["complete" | "ended"]:
                await lab.until(complete if step == "complete" else ended, step)
            case ["taken"]:
                await lab.client.create(lab.path("", "services"), service())
            case ["held"]:
                lab.holds = lambda _: True
            case ["silent"]:
                lab.silent = {"node-a"}
            case ["bad"]:
                lab.node = bad
                await lab.client.create("/api/v1/nodes", {"metadata": {"name": bad, "labels": {}}})
            case ["mark"]:
                lab.node = "node-b"
                await lab.label_node(bad, autopilot_ibm_com__gpuhealth="EVICT")
            case _:
                raise AssertionError(f"{step} is no step")


@asynccontextmanager
async def looking(lab: Lab) -> AsyncIterator[None]:
    """Have the Go controller look at the wrapper now: otherwise it does so once a minute."""

    async def poke() -> None:
        for i in range(10_000):
            look = {"metadata": {"annotations": {"look": str(i)}}}
            with suppress(NotFound):
                await lab.client.merge_patch(lab.wrappers("w"), look)
            await anyio.sleep(0.5)

    async with anyio.create_task_group() as group:
        group.start_soon(poke)
        yield
        group.cancel_scope.cancel()


async def played(
    server: ApiServer, home: Path, scenario: Callable[[Lab], Awaitable[None]], *, ours: bool
) -> dict[str, list[str]]:
    home.mkdir()
    async with lab(server, home) as made:
        made.judged = ours
        leading = leads(made.target, made.namespace, rules=RULES) if ours else looking(made)
        async with leading:
            await scenario(made)
            # Each watch has told of everything once it tells of what is made last.
            for path, body in (
                (made.path("", "pods"), bare_pod("last-")),
                (made.path("", "services"), service("last")),
            ):
                await made.client.create(path, body)
            for what in ("pods", "services"):
                await made.first(
                    what, lambda one: one.object["metadata"]["name"].startswith("last")
                )
        return story(made)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_both_controllers_make_the_same_of_a_wrapper_that(
    name: str, control_plane: ApiServer, theirs: ApiServer, tmp_path: Path
) -> None:
    told: dict[str, dict[str, list[str]]] = {}

    async def play(who: str, server: ApiServer) -> None:
        told[who] = await played(
            server, tmp_path / who, partial(happens, scenario=SCENARIOS[name]), ours=who == "ours"
        )

    async with anyio.create_task_group() as group:
        group.start_soon(play, "ours", control_plane)
        group.start_soon(play, "theirs", theirs)
    ours, other = told["ours"], told["theirs"]
    found = {it: (ours.get(it), other.get(it)) for it in ours.keys() | other.keys()}
    differ = {key: both for key, both in found.items() if both[0] != both[1]}
    assert differ.keys() == set(DIFFERENT.get(name, "").split()), differ


def jobs_of_all_kinds() -> list[dict[str, Any]]:
    """Components that differ in what is added to their pods."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
    weighed = [{"weight": 3, "preference": term}]
    affinities: dict[str, Any] = {
        "none": None,
        "empty": {"nodeAffinity": {}},
        "one": {"nodeAffinity": {required: {"nodeSelectorTerms": [term]}}},
        "two": {"nodeAffinity": {required: {"nodeSelectorTerms": [term, fields]}}},
        "void": {"nodeAffinity": {required: {"nodeSelectorTerms": [term, {}]}}},
        "prefers": {"nodeAffinity": {required.replace("required", "preferred"): weighed}},
        "pods": {"podAntiAffinity": {}},
    }
    found = []
    for name, affinity in affinities.items():
        spec = (made := job(name))["spec"]["template"]["spec"]
        found.append({"template": made})
        if affinity:
            spec["affinity"] = affinity
    (zero := job("zero"))["spec"]["template"]["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/gpu": "0"}
    }
    spec = (init := job("init"))["spec"]["template"]["spec"]
    spec["initContainers"] = [{**spec["containers"][0], "name": "first"}]
    spec["containers"][0]["resources"] = {}
    info = {
        "annotations": {"a": "b"},
        "labels": {"l": "m"},
        "nodeSelector": {"flavor": "x"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "schedulingGates": [{"name": "g/1"}, {"name": "g/2"}],
    }
    template = (gated := job("gated"))["spec"]["template"]
    template["spec"] |= {"schedulingGates": [{"name": "g/1"}], "nodeSelector": {"n": "o"}}
    template["spec"]["tolerations"] = [{"key": "mine", "operator": "Exists"}]
    template["metadata"] = {"labels": {"l": "m"}, "annotations": {"c": "d"}}
    queued = [{"template": one, "podSetInfos": [info]} for one in (gated, job("queued"))]
    return [*found, {"template": zero}, {"template": init}, *queued]


async def test_both_controllers_create_the_same_objects(
    control_plane: ApiServer, theirs: ApiServer, tmp_path: Path
) -> None:
    made: dict[bool, dict[str, Any]] = {}

    async def creates(lab: Lab) -> None:
        lab.holds = lambda _: True
        await lab.wrap(*jobs_of_all_kinds())
        await lab.phase("Running")
        listed = await lab.get(lab.path("batch/v1", "jobs")) or {}
        made[lab.judged] = {it["metadata"]["name"]: essence(it) for it in listed["items"]}

    await played(control_plane, tmp_path / "ours", creates, ours=True)
    await played(theirs, tmp_path / "theirs", creates, ours=False)
    differ = {name for name, one in made[True].items() if one != made[False][name]}
    assert differ == {"void"}  # a term that matches no node


def essence(made: dict[str, Any]) -> str:
    """What a controller sends of a Job, and no uid."""
    metadata, template = made["metadata"], made["spec"]["template"]
    annotations = template["metadata"].get("annotations", {})
    annotations.pop(INDEX, None)  # ours alone
    template["metadata"]["annotations"] = annotations
    kept = [metadata["labels"], metadata["ownerReferences"], template]
    found = json.dumps(kept, sort_keys=True).replace(metadata["uid"], "")
    return found.replace(metadata["ownerReferences"][0]["uid"], "")
