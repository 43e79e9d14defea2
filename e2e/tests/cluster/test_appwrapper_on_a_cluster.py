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
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from preflight_e2e.appwrappers import (
    IMAGE,
    VALUES,
    WRAPPED,
    WrappedRelease,
    asks,
    prefers,
    verdict,
    wrapped,
)
from preflight_e2e.lab import Lab, until
from preflight_testing.matrix.facts import GPUS

pytestmark = [pytest.mark.timeout(600), pytest.mark.fakes]

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


@pytest.fixture(scope="module")
def world(fake_nodes: Lab) -> Iterator[WrappedRelease]:
    with wrapped(fake_nodes, VALUES) as made:
        yield made


def marked(world: WrappedRelease, node: str) -> None:
    """A check has found the GPUs of the node faulty, and the node has the label of it."""
    if world.label(node) == "EVICT":
        return
    name = f"finds-{uuid.uuid4().hex[:6]}"
    world.lab.configure(node, FAULTY)
    world.wrap(name, asks(1, affinity=prefers(node)))
    until("the label", lambda: world.label(node) == "EVICT")
    world.remove(name)


def test_a_job_leaves_a_node_whose_gpus_fail_their_check_and_runs_elsewhere_without_anybodys_doing(
    world: WrappedRelease,
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


def passes(world: WrappedRelease, node: str) -> None:
    """A deep check of the whole node passes."""
    pinned = {
        "metadata": {"generateName": "deep-"},
        "spec": {"restartPolicy": "Never", "nodeName": node, **asks(GPUS)},
    }
    made = world.lab.api.create_namespaced_pod(world.namespace, pinned)
    until("the label is gone", lambda: world.label(node) == "", 120)
    world.lab.api.delete_namespaced_pod(made.metadata.name, world.namespace, grace_period_seconds=0)


def test_the_label_stays_through_a_restart_of_the_labeler_and_goes_when_a_deep_check_passes(
    world: WrappedRelease,
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
    world: WrappedRelease,
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
    world: WrappedRelease,
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
    world: WrappedRelease,
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
