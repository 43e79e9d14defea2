"""The simulated kubelets: containers one after the other, statuses, volumes that are swapped, ends
that leave nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from preflight_e2e.simcluster import nodes
from preflight_e2e.simcluster.nodes import Kubelets, SimulatedNode, unimplemented
from preflight_e2e.simcluster.scheduler import REQUIRED, fit, schedule
from preflight_e2e.simcluster.volumes import project
from preflight_testing.apidouble import RESOURCES
from preflight_testing.apidouble.store import Object, Store

SERVED = {resource.plural: resource for resource in RESOURCES}
GPUS = [f"GPU-{number}" for number in range(4)]


class Cluster:
    """One node, its kubelet, and the scheduler."""

    def __init__(self, root: Path) -> None:
        self.store, self.root = Store(), root
        (root / "logs").mkdir()
        self.node = SimulatedNode(
            "node-a", "127.9.9.9", root / "node-a", {"PATH": "/usr/bin:/bin"}, GPUS
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        names = {"node-a": self.node}
        kubelets = Kubelets(
            self.store, SERVED, names, {}, self.root / "logs", lambda: "127.9.9.100"
        )
        tasks = [asyncio.create_task(kubelets.run())]
        tasks += [asyncio.create_task(schedule(self.store, SERVED["nodes"], SERVED["pods"]))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def create(self, spec: dict[str, Any], **meta: Any) -> None:
        body = {"metadata": {"name": "pod", **meta}, "spec": {"restartPolicy": "Never", **spec}}
        self.store.create(SERVED["pods"], "ns", body)

    @property
    def pod(self) -> Object:
        return self.store.get(SERVED["pods"], "ns", "pod")

    async def until(self, holds: Callable[[Object], Any]) -> Object:
        async with asyncio.timeout(20):
            while not holds(self.pod):
                await asyncio.sleep(0.01)
        return self.pod


def container(name: str, script: str = "true", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "none", "command": ["sh", "-c", script], **more}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def ended(pod: Object) -> bool:
    return pod["status"]["phase"] in {"Succeeded", "Failed"}


def test_init_containers_run_in_order_before_the_pods_own(cluster: Cluster, tmp_path: Path) -> None:
    async def work() -> None:
        said = f"echo $0 >> {tmp_path}/order"
        inits = [
            container(name, f"sleep 0.1; {said.replace('$0', name)}") for name in ("one", "two")
        ]
        cluster.create(
            {"initContainers": inits, "containers": [container("main", said.replace("$0", "main"))]}
        )
        async with cluster.running():
            pod = await cluster.until(ended)
        assert (tmp_path / "order").read_text().split() == ["one", "two", "main"]
        assert pod["status"]["phase"] == "Succeeded"

    run(work())


def test_a_failing_init_container_holds_the_pod_back_and_leaves_its_message(
    cluster: Cluster,
) -> None:
    async def work() -> None:
        inits = [
            container("check", 'echo "{}" > $PREFLIGHT_RESULT_PATH; exit 3'),
            container("later"),
        ]
        cluster.create({"initContainers": inits, "containers": [container("main")]})
        async with cluster.running():
            pod = await cluster.until(ended)
        check, later = pod["status"]["initContainerStatuses"]
        assert (pod["status"]["phase"], later["state"]) == (
            "Failed",
            {"waiting": {"reason": "PodInitializing"}},
        )
        assert (
            check["state"]["terminated"]["exitCode"],
            check["state"]["terminated"]["message"],
        ) == (3, "{}\n")

    run(work())


def test_a_crashed_container_waits_and_is_started_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "CRASH_BACKOFF", (0.1, 0.1))

    async def work() -> None:
        once = "test -e $TMPDIR/seen || { touch $TMPDIR/seen; exit 1; }"
        cluster.create(
            {
                "restartPolicy": "OnFailure",
                "initContainers": [container("c", once)],
                "containers": [],
            }
        )
        async with cluster.running():
            await cluster.until(ended)
        states = [
            step.after["status"]
            for step in cluster.store.since(1)
            if step.after and "status" in step.after
        ]
        statuses = [
            status["initContainerStatuses"][0]
            for status in states
            if "initContainerStatuses" in status
        ]
        first = next(status for status in statuses if "lastState" in status)
        assert first["state"] == {"waiting": {"reason": "CrashLoopBackOff"}}
        assert first["lastState"]["terminated"]["exitCode"] == 1
        last = statuses[-1]
        assert (last["restartCount"], last["state"]["terminated"]["exitCode"]) == (1, 0)

    run(work())


def test_a_container_gets_its_pods_fields_gpus_and_folders(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def work() -> None:
        field = {"fieldRef": {"fieldPath": "status.podIP"}}
        env = [
            {"name": "IP", "valueFrom": field},
            {"name": "URL", "value": "$(IP):80 $(NOT_SET)"},
            {"name": "SOCKET", "value": "unix:///var/run/x/s"},
            {"name": "STATE", "value": "/state"},
        ]
        mounts = [
            {"name": "run", "mountPath": "/var/run/x"},
            {"name": "state", "mountPath": "/state"},
        ]
        show = f"{sys.executable} -c 'import os, json; print(json.dumps(dict(os.environ)))'"
        limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
        volumes = [
            {"name": "run", "hostPath": {"path": "/var/run/x"}},
            {"name": "state", "emptyDir": {}},
        ]
        cluster.create(
            {
                "containers": [container("c", show, env=env, volumeMounts=mounts, **limits)],
                "volumes": volumes,
            }
        )
        async with cluster.running():
            await cluster.until(ended)
        seen = json.loads((tmp_path / "logs" / "pod.c.0.log").read_text())
        assert (seen["IP"], seen["URL"]) == ("127.9.9.100", "127.9.9.100:80 $(NOT_SET)")
        assert seen["SOCKET"] == f"unix://{tmp_path}/node-a/var/run/x/s"
        assert seen["STATE"] == f"{tmp_path}/node-a/pods/pod/state"
        assert seen["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"

    run(work())


@pytest.mark.parametrize("start", [0.0, 0.2])
def test_a_deleted_pods_process_is_told_to_end_and_its_gpus_are_given_back(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: float
) -> None:
    """Also where it goes while the process is just being started."""
    create = asyncio.create_subprocess_exec

    async def slowly(*argv: str, **options: Any) -> asyncio.subprocess.Process:
        process = await create(*argv, **options)
        await asyncio.sleep(start)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)

    async def work() -> None:
        script = f"trap 'touch {tmp_path}/told; exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
        limits = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}
        cluster.create({"containers": [container("c", script, **limits)]})
        async with cluster.running():
            async with asyncio.timeout(20):
                while not (tmp_path / "up").exists():
                    await asyncio.sleep(0.01)
            assert len(cluster.node.held) == 4
            cluster.store.delete(SERVED["pods"], cluster.pod, {})
            async with asyncio.timeout(20):
                while ("ns", "pod") in cluster.store.objects[SERVED["pods"]]:
                    await asyncio.sleep(0.01)
        assert (tmp_path / "told").exists()
        assert not cluster.node.held

    run(work())


ROSTER = {
    "downwardAPI": {
        "items": [{"path": "roster", "fieldRef": {"fieldPath": "metadata.annotations['r']"}}]
    }
}
VOLUME = {
    "name": "v",
    "projected": {"sources": [{"configMap": {"name": "map", "optional": True}}, ROSTER]},
}


def test_a_projected_volume_follows_the_pods_annotation_at_once_and_a_configmap_later(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "REFRESH", (3600.0, 3600.0))
    folder = tmp_path / "node-a" / "pods" / "pod" / "v"

    async def work() -> None:
        cluster.create(
            {"containers": [container("c", "sleep 60")], "volumes": [VOLUME]}, annotations={"r": ""}
        )
        async with cluster.running():
            running = await cluster.until(  # the volume is projected before its container starts
                lambda p: "running" in str(p["status"].get("containerStatuses"))
            )
            cluster.store.create(
                SERVED["configmaps"], "ns", {"metadata": {"name": "map"}, "data": {"peers": "all"}}
            )
            await asyncio.sleep(2 * nodes.AT_ONCE)
            assert not (folder / "peers").exists()
            noted = running["metadata"] | {"annotations": {"r": "sealed"}}
            noted["resourceVersion"] = cluster.pod["metadata"]["resourceVersion"]
            cluster.store.update(SERVED["pods"], cluster.pod, cluster.pod | {"metadata": noted})
            async with asyncio.timeout(20):
                while (folder / "roster").read_text() != "sealed":
                    await asyncio.sleep(0.01)
            assert (folder / "peers").read_text() == "all"

    run(work())


def test_files_of_a_projected_volume_are_swapped_together_and_old_ones_go(tmp_path: Path) -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {"r": "1"}},
        "spec": {},
        "status": {},
    }
    project(VOLUME, tmp_path, pod, lambda _: {"data": {"peers": "a", "roster": "loses"}})
    before = (tmp_path / "..data").resolve()
    assert {name: (tmp_path / name).read_text() for name in ("peers", "roster")} == {
        "peers": "a",
        "roster": "1",
    }
    project(VOLUME, tmp_path, pod, lambda _: None)
    assert (tmp_path / "..data").resolve() != before
    assert not before.exists()
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("..")) == [
        "roster"
    ]


def test_what_a_node_does_not_do_is_named() -> None:
    spec = {
        "containers": [
            {
                "name": "c",
                "image": "unknown",
                "livenessProbe": {},
                "env": [{"valueFrom": {"secretKeyRef": {}}}],
            }
        ],
        "initContainers": [container("i", restartPolicy="Always")],
        "volumes": [
            {"name": "v", "nfs": {}},
            {"name": "p", "projected": {"sources": [{"secret": {}}]}},
        ],
        "tolerations": [],
        "affinity": {"nodeAffinity": {}, "podAffinity": {}},
    }
    assert unimplemented({"spec": spec}, images={"known"}) == [
        "spec.tolerations",
        "spec.affinity.podAffinity",
        "spec.initContainers[i].restartPolicy",
        "spec.containers[c].livenessProbe",
        "spec.containers[c].image unknown",
        "spec.containers[c].env.valueFrom.secretKeyRef",
        "spec.volumes[v].nfs",
        "spec.volumes[p].projected.secret",
    ]


def gpu_pod(count: int, node: str = "", **spec: Any) -> Object:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(count)}}}
    return {
        "spec": {"containers": [limits], **({"nodeName": node} if node else {}), **spec},
        "status": {"phase": "Pending"},
    }


@pytest.fixture
def two_nodes(tmp_path: Path) -> list[Object]:
    return [SimulatedNode(name, "", tmp_path, {}, GPUS).as_object() for name in ("a", "b")]


def test_a_pod_goes_to_the_first_node_with_enough_gpus_left(two_nodes: list[Object]) -> None:
    assert fit(gpu_pod(2), two_nodes, [gpu_pod(2, "a")]) == "a"
    assert fit(gpu_pod(3), two_nodes, [gpu_pod(2, "a")]) == "b"
    assert fit(gpu_pod(5), two_nodes, []) is None


def test_a_pod_that_has_ended_holds_no_gpus(two_nodes: list[Object]) -> None:
    over = gpu_pod(4, "a") | {"status": {"phase": "Failed"}}
    assert fit(gpu_pod(4), two_nodes, [over]) == "a"


def test_a_node_selector_is_obeyed(two_nodes: list[Object]) -> None:
    assert fit(gpu_pod(1, nodeSelector={"kubernetes.io/hostname": "b"}), two_nodes, []) == "b"


@pytest.mark.parametrize(
    ("operator", "values", "node"),
    [
        ("In", ["b"], "b"),
        ("NotIn", ["a"], "b"),
        ("NotIn", ["c"], "a"),
        ("Exists", [], "a"),
        ("DoesNotExist", [], None),
    ],
)
def test_a_node_affinity_that_is_required_is_obeyed(
    two_nodes: list[Object], operator: str, values: list[str], node: str | None
) -> None:
    one = {"key": "kubernetes.io/hostname", "operator": operator, "values": values}
    required = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [one]}]}}
    assert fit(gpu_pod(1, affinity={"nodeAffinity": required}), two_nodes, []) == node


def test_init_containers_reserve_the_most_that_one_of_them_asks_for(
    two_nodes: list[Object],
) -> None:
    greedy = gpu_pod(1)
    greedy["spec"]["initContainers"] = [
        gpu_pod(3)["spec"]["containers"][0],
        gpu_pod(4)["spec"]["containers"][0],
    ]
    assert fit(greedy, two_nodes, [gpu_pod(1, "a")]) == "b"
