"""AppWrappers on real kubelets, without Kueue: from a check's verdict to another node, and checks
that are not warm-up.

Needs the lab's fake GPU nodes, and no release of the charts. The fake platform connector says which
condition it holds; what the real one writes on the node is written here. With PREFLIGHT_STOP
("… {component}", on the machine that runs the nodes) and PREFLIGHT_RESTART a kubelet is stopped,
and started again.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.lab import BASE_VALUES, GANG_VALUES, Lab, until
from preflight_testing.matrix.facts import GPUS

pytestmark = [pytest.mark.timeout(600), pytest.mark.fakes]

LABEL = "preflight.nvsentinel.nvidia.com/gpu-health"
WRAPPED = "workload.codeflare.dev/appwrapper"
IMAGE = "preflight-webhook:dev"
GROUP, VERSION, PLURAL = "workload.codeflare.dev", "v1beta2", "appwrappers"
PREFIX = "workload.codeflare.dev.appwrapper/"
CONDITION = "DcgmDiagnosticMemory"
BROKEN = [
    {
        "gpu": gpu,
        "test": "memory",
        "error_id": 52,
        "severity": 2,
        "category": 10,
        "text": "Memtest: 14 bit errors",
    }
    for gpu in range(GPUS)
]
FAULTY: dict[str, Any] = {"engine": {"faults": BROKEN}}
SLOW: dict[str, Any] = {"engine": {"seconds": 12}}
STOP, RESTART = "PREFLIGHT_STOP", "PREFLIGHT_RESTART"
ALL_REDUCE = {
    "name": "nccl-allreduce",
    "image": "preflight-nccl-allreduce:e2e",
    "env": [{"name": "NCCL_ALLREDUCE_BACKEND", "value": "gloo"}],
}
VALUES: dict[str, Any] = {
    "preflight-injector": {**BASE_VALUES, "checks": [*BASE_VALUES["checks"], ALL_REDUCE]},
    "preflight-gang": GANG_VALUES,
    "preflight-appwrapper": {
        "enabled": True,
        "image": {"repository": "preflight-appwrapper", "tag": "dev"},
        "replicas": 1,
        "leaseDuration": "3s",
        "labeler": {"enabled": True},
        "crd": {"keep": False},
        # Of four nodes the brake lets one go in ten minutes, and each test here makes one sick.
        "evacuationBrake": {"percent": 100},
        "faultTolerance": {
            "failureGracePeriod": "1s",
            "retryPausePeriod": "2s",
            "forcefulDeletionGracePeriod": "20s",
        },
    },
}

Json = dict[str, Any]


class World:
    """A release of the charts on the lab, and a namespace in which pods are checked."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.namespace = lab, ""
        self.custom: Any = client.CustomObjectsApi()
        self.leases: Any = client.CoordinationV1Api()

    def wrap(
        self, name: str, spec: Json, pods: int = 1, *, gang: bool = False, **annotations: str
    ) -> None:
        """``gang``: its pods say that they are one."""
        labels = {"app.kubernetes.io/gang-id": name, "app.kubernetes.io/gang-size": str(pods)}
        template = {
            "metadata": {"labels": labels if gang else {}},
            "spec": {"restartPolicy": "Never", **spec},
        }
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
        job["spec"] = {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 20,
            "template": template,
        }
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "AppWrapper",
            "metadata": {
                "name": name,
                "annotations": {PREFIX + key: one for key, one in annotations.items()},
            },
            "spec": {"components": [{"template": job}]},
        }
        self.custom.create_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, body)

    def status(self, name: str) -> Json:
        found = self.custom.get_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, name
        )
        return dict(found.get("status", {}))

    def condition(self, name: str, type_: str) -> str:
        found = [one for one in self.status(name).get("conditions", []) if one["type"] == type_]
        return str(found[0]["status"]) if found else ""

    def pods(self, name: str) -> list[Any]:
        return list(
            self.lab.api.list_namespaced_pod(
                self.namespace, label_selector=f"{WRAPPED}={name}"
            ).items
        )

    def running(self, name: str) -> list[Any]:
        return [
            one
            for one in self.pods(name)
            if one.status.phase == "Running" and not one.metadata.deletion_timestamp
        ]

    def remove(self, name: str) -> None:
        """Returns when nothing of it is left."""
        self.custom.delete_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, name)

        def gone() -> bool:
            try:
                self.status(name)
            except client.ApiException as error:
                return bool(error.status == 404)
            return False

        until(f"the end of {name}", gone)
        assert not self.pods(name)

    def label(self, node: str) -> str:
        return str((self.lab.api.read_node(node).metadata.labels or {}).get(LABEL, ""))

    def leader_of_labels(self) -> str:
        return str(
            self.leases.read_namespaced_lease(
                "preflight-appwrapper-labeler", "preflight"
            ).spec.holder_identity
        )


def asks(gpus: int, **spec: Any) -> Json:
    """Pods that ask for so many GPUs, and then run until they are ended."""
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
    container = {"name": "main", "image": IMAGE, "command": ["sleep", "3600"], "resources": limits}
    return {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}


def prefers(node: str) -> Json:
    term = {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
    }
    return {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]
        }
    }


@contextmanager
def connector(lab: Lab) -> Iterator[None]:
    """What the platform connector makes of its conditions: one of the node each, True while it has
    messages.
    """
    over = threading.Event()
    told: dict[tuple[str, str], bool] = {}

    def follow() -> None:
        while not over.wait(0.5):
            for node in lab.nodes:
                said: dict[str, list[str]] = {}
                with suppress(client.ApiException, IndexError):
                    said = {
                        one["condition"]: one["messages"]
                        for one in lab.node_log(node)
                        if "condition" in one
                    }
                for name, messages in said.items():
                    if told.get((node, name)) != bool(messages):
                        told[node, name] = bool(messages)
                        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                        one = {
                            "type": name,
                            "status": str(bool(messages)),
                            "message": ";".join(messages),
                        }
                        one |= {
                            "reason": f"{name}Is{'Not' if messages else ''}Healthy",
                            "lastTransitionTime": now,
                        }
                        lab.api.patch_node_status(node, {"status": {"conditions": [one]}})

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def world(fake_nodes: Lab) -> Iterator[World]:
    made = World(fake_nodes)
    fake_nodes.release.uninstall()
    fake_nodes.fake_nodes()  # new ones: a sickness that a node has had already is not told again
    fake_nodes.release.install(VALUES)
    try:
        made.namespace = fake_nodes.namespace(f"aw-{uuid.uuid4().hex[:6]}")
        until("AppWrappers are judged", lambda: judged(made))
        with connector(fake_nodes):
            yield made
    finally:
        for node in fake_nodes.nodes:
            fake_nodes.api.patch_node(node, {"metadata": {"labels": {LABEL: None}}})
            calm = {"type": CONDITION, "status": "False", "reason": "Tested"}
            fake_nodes.api.patch_node_status(node, {"status": {"conditions": [calm]}})
        if made.namespace:
            left = made.custom.list_namespaced_custom_object(
                GROUP, VERSION, made.namespace, PLURAL
            )["items"]
            for one in left:
                made.remove(one["metadata"]["name"])
            fake_nodes.remove_namespace(made.namespace)
        fake_nodes.without_chart()


def judged(world: World) -> bool:
    """The webhooks are called: a wrapper without pods is denied, and by them."""
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "AppWrapper", "metadata": {"name": "probe"}}
    body["spec"] = {"components": []}
    try:
        world.custom.create_namespaced_custom_object(
            GROUP, VERSION, world.namespace, PLURAL, body, dry_run="All"
        )
    except client.ApiException as error:
        return error.status == 403 and "denied the request" in str(error.body)
    return False


def verdict(world: World, name: str, node: str) -> Callable[[], float]:
    """Seconds since the epoch at which a check of this wrapper has failed on the node; 0 so far."""

    def found() -> float:
        for pod in world.pods(name):
            for one in pod.status.init_container_statuses or []:
                ended = one.state.terminated
                if (
                    one.name == "preflight-dcgm-diag"
                    and ended
                    and ended.exit_code
                    and pod.spec.node_name == node
                ):
                    return float(ended.finished_at.timestamp())
        return 0.0

    return found


def marked(world: World, node: str) -> None:
    """A check has found the GPUs of the node faulty, and the node has the label of it."""
    if world.label(node) == "EVICT":
        return
    name = f"finds-{uuid.uuid4().hex[:6]}"
    world.lab.configure(node, FAULTY)
    world.wrap(name, asks(1, affinity=prefers(node)))
    until("the label", lambda: world.label(node) == "EVICT")
    world.remove(name)


def test_a_job_leaves_a_node_whose_gpus_fail_their_check_and_runs_elsewhere_without_anybodys_doing(
    world: World,
) -> None:
    lab = world.lab
    before = {
        one for one in lab.nodes if world.label(one)
    }  # what other tests left of a node's sickness
    bad = next(one for one in lab.nodes if one not in before)
    lab.configure(bad, FAULTY)
    world.wrap("moves", asks(1, affinity=prefers(bad)))
    failed = until("a verdict on the node that it prefers", verdict(world, "moves", bad))
    [pod] = until("the job runs", lambda: world.running("moves"), 120)
    seconds = time.time() - failed
    print(f"from the verdict on {bad} to running on {pod.spec.node_name}: {seconds:.1f} s")
    assert pod.spec.node_name != bad
    until("PodsReady", lambda: world.condition("moves", "PodsReady") == "True")
    status = world.status("moves")
    assert (status["phase"], status.get("resettingCount", 0)) == ("Running", 0)
    until("the label", lambda: world.label(bad) == "EVICT")
    assert {one for one in lab.nodes if world.label(one)} - before == {bad}
    world.remove("moves")
    lab.configure(bad, {})
    passes(world, bad)


def passes(world: World, node: str) -> None:
    """A deep check of the whole node passes."""
    pinned = {
        "metadata": {"generateName": "deep-"},
        "spec": {"restartPolicy": "Never", "nodeName": node, **asks(GPUS)},
    }
    made = world.lab.api.create_namespaced_pod(world.namespace, pinned)
    until("the label is gone", lambda: world.label(node) == "", 120)
    world.lab.api.delete_namespaced_pod(made.metadata.name, world.namespace, grace_period_seconds=0)


def test_the_label_stays_through_a_restart_of_the_labeler_and_goes_when_a_deep_check_passes(
    world: World,
) -> None:
    bad, lab = world.lab.nodes[2], world.lab
    marked(world, bad)
    before = world.leader_of_labels()
    labels = "app.kubernetes.io/component=labeler"
    lab.api.delete_collection_namespaced_pod(
        "preflight", label_selector=labels, grace_period_seconds=0
    )
    until("another labeler leads", lambda: world.leader_of_labels() not in {"", before})
    assert world.label(bad) == "EVICT"
    lab.configure(bad, {})
    passes(world, bad)


def test_the_time_of_a_check_is_no_warm_up_and_that_of_a_pods_own_container_is(
    world: World,
) -> None:
    slow, lab = world.lab.nodes[1], world.lab
    lab.configure(slow, SLOW)
    own = {"name": "own", "image": IMAGE, "command": ["sleep", "3600"]}
    fast: dict[str, Any] = {"warmupGracePeriodDuration": "4s", "admissionGracePeriodDuration": "4s"}
    world.wrap("checked", asks(1, nodeSelector={"kubernetes.io/hostname": slow}), **fast)
    world.wrap("hangs", asks(0, initContainers=[own]), retryLimit="1", **fast)
    until("the checked one runs", lambda: world.running("checked"), 120)
    until("the other has failed", lambda: world.status("hangs").get("phase") == "Failed", 120)
    assert world.status("hangs")["resettingCount"] == 1
    until("PodsReady", lambda: world.condition("checked", "PodsReady") == "True")
    status = world.status("checked")
    assert (status.get("resettingCount", 0), status.get("migrationCount", 0)) == (0, 0)
    [pod] = world.running("checked")
    ended = check(pod, "preflight-dcgm-diag")
    took = ended.state.terminated.finished_at - ended.state.terminated.started_at
    assert took.total_seconds() > 8, "the check itself takes longer than the warm-up may"
    world.remove("checked")
    world.remove("hangs")


def check(pod: Any, name: str) -> Any:
    """The status of a check's container; None where there is none yet."""
    found = [one for one in pod.status.init_container_statuses or [] if one.name == name]
    return found[0] if found else None


def test_a_gang_whose_last_member_comes_late_is_not_reset_while_the_first_one_waits_in_its_check(
    world: World,
) -> None:
    """WarmupGracePeriod is eight seconds; the last member comes when the first has waited for
    twelve.
    """
    lab, warmup, late = world.lab, 8.0, 12.0
    room, further = lab.nodes[0], lab.nodes[1]
    key = f"test/{uuid.uuid4().hex[:6]}"
    one_a_node = {
        "labelSelector": {"matchLabels": {WRAPPED: "gathers"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [one_a_node]}}
    try:
        lab.api.patch_node(room, {"metadata": {"labels": {key: "yes"}}})
        spec = asks(1, nodeSelector={key: "yes"}, affinity=apart)
        periods = {"warmupGracePeriodDuration": f"{warmup:g}s"}
        world.wrap("gathers", spec, 2, gang=True, admissionGracePeriodDuration="8s", **periods)

        def waited() -> float:
            for pod in world.pods("gathers"):
                found = check(pod, "preflight-nccl-allreduce")
                if found is not None and found.state.running:
                    began = found.state.running.started_at
                    return float((datetime.now(UTC) - began).total_seconds())
            return 0.0

        until("the first member waits in its check", lambda: waited() > late, 120)
        lab.api.patch_node(further, {"metadata": {"labels": {key: "yes"}}})
        until("both run", lambda: len(world.running("gathers")) == 2, 180)
        until("PodsReady", lambda: world.condition("gathers", "PodsReady") == "True")
        status = world.status("gathers")
        assert (status.get("resettingCount", 0), status.get("migrationCount", 0)) == (0, 0)
        assert {one.spec.node_name for one in world.running("gathers")} == {room, further}
        world.remove("gathers")
    finally:
        for node in (room, further):
            lab.api.patch_node(node, {"metadata": {"labels": {key: None}}})


def have(variable: str, component: str) -> None:
    """Have what the variable says done to a component."""
    words = [word.replace("{component}", component) for word in shlex.split(os.environ[variable])]
    subprocess.run(words, check=True, capture_output=True, timeout=120)


def test_pods_of_a_node_whose_kubelet_is_stopped_go_by_force_and_nothing_is_left(
    world: World,
) -> None:
    if missing := [one for one in (STOP, RESTART) if not os.environ.get(one)]:
        pytest.skip(f"{' and '.join(missing)} not set: nobody here can stop a kubelet")
    lab, node = world.lab, world.lab.nodes[-1]
    kubelet = f"kubelet-{node.rpartition('-')[2]}"
    spec = asks(0, nodeSelector={"kubernetes.io/hostname": node})
    world.wrap("forced", spec, 2, forcefulDeletionGracePeriodDuration="3s")
    until("both run", lambda: len(world.running("forced")) == 2)
    have(STOP, kubelet)
    try:
        began = time.monotonic()
        world.remove("forced")
        print(f"from the deletion to the end, by force: {time.monotonic() - began:.1f} s")

        def said() -> bool:
            events = lab.api.list_namespaced_event(world.namespace).items
            return any(one.reason == "DeletionForced" for one in events)

        until("an Event DeletionForced", said)
    finally:
        have(RESTART, kubelet)

        def ready() -> bool:
            conditions = lab.api.read_node(node).status.conditions
            return any((one.type, one.status) == ("Ready", "True") for one in conditions)

        until(f"{node} is ready again", ready, 120)
