"""Beside the real Kueue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hooks import serving
from lab import Lab, lab
from leading import leads
from player import job, service
from preflight_appwrapper.api.rules import WrapperRules
from preflight_testing.apiserver import ApiServer, assets
from real_kueue import FLAVOR, PROGRAM, RealKueue, running

pytestmark = [
    pytest.mark.skipif(
        not PROGRAM.exists(), reason="PREFLIGHT_KUEUE does not name a compiled Kueue"
    ),
    pytest.mark.anyio,
    pytest.mark.timeout(300),
]
RULES = WrapperRules(mark_key=b"k" * 64, default_queue="team")
FAST: dict[str, Any] = {"failureGracePeriodDuration": "0s", "retryPausePeriodDuration": "0s"}


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    from control_plane import control_plane

    folder = assets()
    if folder is None or not (folder / "kube-controller-manager").exists():
        pytest.skip("KUBEBUILDER_ASSETS names no control plane")
    home = tmp_path_factory.mktemp("beside")
    with control_plane(home, folder) as server, running(server, home / "kueue"):
        yield server


@pytest.fixture
async def lab_beside(beside: ApiServer, tmp_path: Path) -> AsyncIterator[Lab]:
    async with lab(beside, tmp_path) as made:
        yield made


@asynccontextmanager
async def everything(lab: Lab, home: Path) -> AsyncIterator[RealKueue]:
    """Our webhook and controller, and a queue of two pods."""
    async with (
        serving(lab, home / "tls", RULES),
        leads(lab.target, lab.namespace, rules=RULES),
        RealKueue(lab) as kueue,
    ):
        yield kueue


async def left(lab: Lab) -> list[Any]:
    paths = (lab.path("batch/v1", "jobs"), lab.path("", "services"), lab.path("", "pods"))
    return [one for path in paths for one in (await lab.get(path) or {})["items"]]


async def test_what_kueue_admits_runs_where_it_says_and_gives_its_quota_back_when_nothing_is_left(
    lab_beside: Lab, tmp_path: Path
) -> None:
    lab = lab_beside
    async with everything(lab, tmp_path) as kueue:
        await lab.wrap(service(), job(completions=2), **FAST)
        assert (await lab.wrapper())["spec"]["suspend"] is True
        for stop in ("deactivated", "drained"):
            await kueue.says("Admitted", "True")
            made = await kueue.workload()
            [sets] = made["spec"]["podSets"]
            known = (await lab.wrapper())["status"]["componentStatus"][1]["podSets"]
            assert [sets["count"]] == [one["replicas"] for one in known]
            for pod in await lab.running(2):
                assert pod["spec"]["nodeSelector"] == FLAVOR["nodeLabels"]
                assert FLAVOR["tolerations"][0] in pod["spec"]["tolerations"]
                assert pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "w-0"
            if stop == "deactivated":
                await kueue.active(False)
            else:
                await kueue.stopped("HoldAndDrain")
            await kueue.says("QuotaReserved", "False")
            assert not await left(lab)
            component = (await lab.phase("Suspended"))["spec"]["components"][1]
            assert "podSetInfos" not in component
            if stop == "deactivated":
                await kueue.active(True)
            else:
                await kueue.stopped("None")
        await kueue.says("Admitted", "True")
        for pod in await lab.running(2):
            await lab.ends(pod, code=0)
        finished = await kueue.says("Finished", "True")
        assert finished["reason"] == "Succeeded"
        path = kueue.workloads((await kueue.workload())["metadata"]["name"])
        await lab.delete()
        await lab.gone(lab.wrappers("w"))
        # No garbage collector finds kinds that were defined after its start at once.
        await lab.client.delete(path)
        await lab.gone(path)


async def test_a_reset_keeps_its_admission_and_a_failure_ends_the_workload(
    lab_beside: Lab, tmp_path: Path
) -> None:
    lab = lab_beside
    async with everything(lab, tmp_path) as kueue:
        await lab.wrap(job(), retryLimit="1", **FAST)
        first = await lab.running(2)
        await lab.ends(lab.pods()[0], code=1)

        await lab.anew(first, 2)
        said = (await kueue.workload())["status"]["conditions"]
        assert {one["type"] for one in said} >= {"Admitted"}
        assert "Evicted" not in {one["type"] for one in said}
        await lab.ends(lab.pods()[0], code=1)
        finished = await kueue.says("Finished", "True")
        assert (finished["reason"], finished["message"]) == ("Failed", "AppWrapper failed")
        assert not await left(lab)


async def test_a_higher_priority_takes_the_quota_once_the_lower_has_left_it(
    lab_beside: Lab, tmp_path: Path
) -> None:
    lab = lab_beside
    async with everything(lab, tmp_path) as kueue:
        await lab.wrap(job("low"), name="low", **FAST)
        await lab.running(2)
        await kueue.urgent("high", job("high"))
        await kueue.says("Admitted", "True", "high")
        await kueue.says("Preempted", "True", "low")
        await lab.phase("Suspended", "low")
        for pod in await lab.running(2):
            assert pod["metadata"]["name"].startswith("high")
            await lab.ends(pod, code=0)
        await kueue.says("Finished", "True", "high")
        await kueue.says("Admitted", "True", "low")


async def test_of_a_field_that_kueue_does_not_know_there_is_no_workload(
    lab_beside: Lab, tmp_path: Path
) -> None:
    lab = lab_beside
    unknown = job("unknown")
    unknown["spec"]["template"]["spec"]["noSuchField"] = 1
    async with everything(lab, tmp_path) as kueue:
        await lab.wrap(job("known"), unknown, name="half", **FAST)
        finished = await kueue.says("Finished", "True", "half")
        assert finished["reason"] == "FailedToStart"
        assert finished["message"] == "invalid podset infos: expecting 2 podsets, got 1"
        assert (await lab.phase("Suspended", "half"))["spec"]["suspend"] is True
