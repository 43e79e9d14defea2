"""Evacuation beside the real kube-scheduler: which nodes are left, and which ones are avoided
afterwards.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import Lab
from leading import leads
from player import job
from preflight_appwrapper.api.rules import BrakeRules, WrapperRules
from preflight_testing.apiserver import ASSETS, ApiServer, assets

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

SCHEDULER = "real-scheduler"
GPUS = "nvidia.com/gpu"
SICK = {"metadata": {"labels": {"autopilot.ibm.com/gpuhealth": "EVICT"}}}
FAST: dict[str, Any] = {"failureGracePeriodDuration": "0s", "retryPausePeriodDuration": "1s"}


@pytest.fixture
def scheduler(control_plane: ApiServer, tmp_path: Path) -> Iterator[None]:
    """kube-scheduler, for pods that name it: all others are bound by the stand-in for kubelets."""
    folder = assets()
    if folder is None or not (folder / "kube-scheduler").exists():
        pytest.skip(f"{ASSETS} has no kube-scheduler")
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(control_plane.kubeconfig(tmp_path / "scheduler"))},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": SCHEDULER}],
    }
    (tmp_path / "scheduler.yaml").write_text(yaml.safe_dump(config))
    command = [
        str(folder / "kube-scheduler"),
        f"--config={tmp_path / 'scheduler.yaml'}",
        "--secure-port=0",
    ]
    with (tmp_path / "scheduler.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def nodes(lab: Lab, *names: str) -> list[str]:
    """Nodes of this test alone, with eight GPUs each; they last no longer than the namespace is
    used.
    """
    made = []
    for name in names:
        node = f"{name}-{lab.namespace}"
        await lab.client.create(
            "/api/v1/nodes", {"metadata": {"name": node, "labels": {"test": lab.namespace}}}
        )
        room = {"cpu": "64", "memory": "64Gi", "pods": "110", GPUS: "8"}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"capacity": room, "allocatable": room, "conditions": ready}
        await lab.client.merge_patch(f"/api/v1/nodes/{node}/status", {"status": status})
        await lab.client.merge_patch(
            f"/api/v1/nodes/{node}", {"spec": {"taints": None}}
        )  # of a node that is new
        made.append(node)
    return made


def gang(lab: Lab, name: str, pods: int, gpus: int) -> dict[str, Any]:
    made = job(name, parallelism=pods, completions=pods)
    spec = made["spec"]["template"]["spec"]
    spec |= {"schedulerName": SCHEDULER, "nodeSelector": {"test": lab.namespace}}
    spec["containers"][0]["resources"] = {"limits": {GPUS: str(gpus)}}
    return made


async def on(lab: Lab, count: int, name: str = "") -> Counter[str]:
    """How many pods run on each node, once that many do."""
    found = [one for one in await lab.running(count) if one["metadata"]["name"].startswith(name)]
    return Counter(one["spec"]["nodeName"] for one in found)


async def test_a_gang_leaves_a_node_that_is_marked_and_runs_on_others(
    lab: Lab, scheduler: None, *, timed: bool
) -> None:
    first = await nodes(lab, "a", "b")
    async with leads(lab.target, lab.namespace):
        await lab.wrap(gang(lab, "train", 8, 2), **FAST)
        assert await on(lab, 8) == dict.fromkeys(first, 4)
        await lab.condition("PodsReady", "True")
        before = lab.pods()
        others = await nodes(lab, "c")
        marked = time.time()
        await lab.client.merge_patch(f"/api/v1/nodes/{first[0]}", SICK)

        await lab.anew(before, 8)
        assert await on(lab, 8) == {first[1]: 4, others[0]: 4}
        found = await lab.condition("PodsReady", "True")
        assert "resettingCount" not in found["status"]
        assert found["status"]["migrationCount"] == 1
        going = await lab.first("pods", lambda one: "deletionTimestamp" in one.object["metadata"])
        print(f"from the label on a node to the first deleted pod: {going - marked:.2f} s")
        if timed:
            assert going - marked < 1


async def test_pods_that_ask_for_no_gpu_stay_on_a_marked_node_and_others_never_come_to_it(
    lab: Lab, scheduler: None
) -> None:
    [one] = await nodes(lab, "a")
    async with leads(lab.target, lab.namespace):
        plain = gang(lab, "plain", 2, 0)
        plain["spec"]["template"]["spec"]["containers"][0].pop("resources")
        await lab.wrap(plain, name="plain", **FAST)
        assert await on(lab, 2) == {one: 2}
        await lab.client.merge_patch(f"/api/v1/nodes/{one}", SICK)
        await lab.wrap(gang(lab, "gpus", 1, 1), name="gpus", **FAST)

        async def refused() -> Any:
            found = [pod for pod in lab.pods() if pod["metadata"]["name"].startswith("gpus-")]
            said = [
                it
                for pod in found
                for it in pod["status"].get("conditions", [])
                if it["type"] == "PodScheduled"
            ]
            return said and said[0]["status"] == "False" and "affinity" in said[0]["message"]

        await lab.until(refused, "the scheduler's word")
        [healthy] = await nodes(lab, "b")
        await on(lab, 3)
        assert (await on(lab, 3, "gpus-")) == {healthy: 1}
        assert "migrationCount" not in (await lab.wrapper("plain"))["status"]


async def test_sixty_four_wrappers_of_one_node_all_leave_it(lab: Lab, scheduler: None) -> None:
    """How soon is a figure of the bench `appwrapper`."""
    [sick] = await nodes(lab, "a")
    room = {"cpu": "64", "memory": "64Gi", "pods": "110", GPUS: "64"}
    await lab.client.merge_patch(
        f"/api/v1/nodes/{sick}/status", {"status": {"capacity": room, "allocatable": room}}
    )
    rules = WrapperRules(brake=BrakeRules(percent=100))
    async with leads(lab.target, lab.namespace, rules=rules) as leading:
        names = [f"w{i:02}" for i in range(64)]
        for name in names:
            await lab.wrap(
                gang(lab, name, 1, 1), name=name, **{**FAST, "retryPausePeriodDuration": "1h"}
            )
        assert await on(lab, 64) == {sick: 64}
        await lab.client.merge_patch(f"/api/v1/nodes/{sick}", SICK)

        async def all_gone() -> bool:
            found = await lab.get(lab.wrappers())
            assert found is not None
            return all(one["status"]["phase"] == "Resetting" for one in found["items"])

        await lab.until(all_gone, "all to be Resetting")
        assert (
            leading.counted("appwrapper_resets_total", reason="AutopilotNoExecute", counted="false")
            == 64
        )
        await lab.client.delete(lab.wrappers())
