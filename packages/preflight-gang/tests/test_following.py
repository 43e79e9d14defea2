"""What is kept of pods and nodes as they change, whether this replica leads or not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from gangs import NS, gang, pod, waiting
from preflight_gang.api.sources import BUILT_IN
from preflight_gang.api.types import Node, Pod
from preflight_gang.config import Config
from preflight_gang.controller.controller import Controller
from preflight_gang.controller.workload_watch import WorkloadWatch
from preflight_gang.core.overrides import StoredOverride
from preflight_gang.core.reconcile import MemberAnswer
from preflight_gang.metrics import Metrics
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, KubeError
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_testing.apidouble import write_kubeconfig

KEY = (NS, "labels:job-1")


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """To nobody."""
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    return Client(connection({"KUBECONFIG": str(kubeconfig)}), agent="tests")


def changed(controller: Controller, one: Pod, kind: str = "modified") -> None:
    controller._pod_changed(Change(kind, one.metadata.uid, one, one))  # type: ignore[arg-type]


def test_a_replica_that_does_not_lead_queues_nothing(client: Client) -> None:
    """Nobody would take it, and whoever begins to lead looks at everything."""
    controller = Controller(client, Config(), Metrics())
    one = pod("pod-0", ip="10.0.0.1")
    node = msgspec.convert({"metadata": {"name": "node-a", "uid": "u"}}, Node)
    for kind in ("added", "modified", "deleted"):
        changed(controller, one, kind)
        controller.reports._node_changed(Change(kind, "node-a", node, None))
    policy = msgspec.convert(
        {"metadata": {"name": "more", "namespace": NS, "uid": "u"}}, StoredOverride
    )
    reports, policies = controller.reports, controller._policies
    policies.reflector._put("u", policy)
    queues = (controller.gangs, reports.queue, reports.health.queue, policies.queue)
    assert [queue.depth for queue in queues] == [0, 0, 0, 0]


def test_a_wait_begins_anew_where_a_gang_that_was_sealed_forms_again(client: Client) -> None:
    """Else the next generation would have waited since the last one was sealed."""
    controller = Controller(client, Config(), Metrics())
    changed(controller, pod("pod-0", ip="10.0.0.1"))
    state, one = controller._gangs[KEY], waiting("pod-0", "10.0.0.1")
    for word, begun in (("wait", True), ("sealed", False), ("wait", True)):
        answers = {one.uid: MemberAnswer(answer=word, generation=1)}  # type: ignore[arg-type]
        controller._due_answers(KEY, gang(one), answers)
        assert (state.pace is not None) == begun


def test_an_object_that_cannot_be_read_is_waited_for_with_the_reason(client: Client) -> None:
    watch = WorkloadWatch(client, lambda *_: None, BUILT_IN)
    assert watch.find("job", NS, "train") == "cannot be read yet"
    (kind,) = BUILT_IN["job"]
    mirror = watch._mirrors[kind] = Reflector(client, "/apis/batch/v1/jobs", kind.type)
    mirror.problem = KubeError("list /apis/batch/v1/jobs: jobs.batch is forbidden", 403)
    assert "jobs.batch is forbidden" in str(watch.find("job", NS, "train"))
