"""The charts' last release is upgraded to these and rolled back on real kubelets, while 20 pods a
second are created and gangs form.

Needs the lab's fake GPU nodes, two of them, and no release of the charts. These charts and images
stand for the last release, unless PREFLIGHT_LAST_RELEASE names the charts' tag (charts/v0.2.0) and
the images of the webhook and the gang controller of that version are on the nodes.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.appwrappers import ALL_REDUCE, asks
from preflight_e2e.installed_release import GPU_POD, earlier
from preflight_e2e.lab import BASE_VALUES, GANG_VALUES, Lab, until
from preflight_testing.helm import INJECTOR, UMBRELLA, version

pytestmark = [pytest.mark.timeout(1200), pytest.mark.fakes]

RATE = 20
"""Pods created in a second, at most."""
DCGM, GANG = "preflight-dcgm-diag", "preflight-nccl-allreduce"
PATIENT = {"name": "DCGM_QUEUE_TIMEOUT", "value": "120s"}
"""Members of a gang may share a node, and its engine runs one diagnostic at a time."""
VALUES: dict[str, Any] = {
    "preflight-injector": {
        **BASE_VALUES,
        "replicas": 2,
        "checks": [{**BASE_VALUES["checks"][0], "env": [PATIENT]}, ALL_REDUCE],
    },
    # The default: of two replicas on a busy machine one may not renew in five seconds.
    "preflight-gang": {**GANG_VALUES, "replicas": 2, "leaseDuration": "15s"},
}
HELD: dict[str, Any] = json.loads(json.dumps(GPU_POD))
HELD["spec"]["schedulingGates"] = [{"name": "example.com/held"}]
"""Stored and watched by everybody as any pod is, and run by no kubelet."""


class Load:
    """Work that goes on while a release is replaced, in threads until ``over`` is set."""

    def __init__(self, lab: Lab, namespace: str) -> None:
        self.lab, self.namespace, self.over = lab, namespace, threading.Event()
        self.answers: Counter[str] = Counter()
        """Checks that a created pod was given, or why it was refused."""
        self.gangs: list[str] = []
        """Those whose pods all ran."""
        self.trusted: Counter[bool] = Counter()
        """Looks at the registration by whether each entry trusts what the Secret holds."""

    def pods(self) -> None:
        api: Any = client.CoreV1Api(client.ApiClient())
        due = time.monotonic()
        while not self.over.wait(max(0.0, due - time.monotonic())):
            due = max(due + 1 / RATE, time.monotonic())
            try:
                pod = api.create_namespaced_pod(self.namespace, HELD)
                answer = ", ".join(each.name for each in pod.spec.init_containers or [])
                name = pod.metadata.name
                api.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)
            except client.ApiException as error:
                answer = str(json.loads(error.body or "{}").get("message"))
            self.answers[answer] += 1

    def gangs_of_two(self) -> None:
        api: Any = client.CoreV1Api(client.ApiClient())
        for number in itertools.count():
            if self.over.is_set():
                return
            gang = f"gang-{number}"
            labels = {"app.kubernetes.io/gang-id": gang, "app.kubernetes.io/gang-size": "2"}
            for rank in range(2):
                body = {"metadata": {"name": f"{gang}-{rank}", "labels": labels}}
                spec = {"restartPolicy": "Never", **asks(1)}
                api.create_namespaced_pod(self.namespace, {**body, "spec": spec})

            def phases(chosen: str = f"app.kubernetes.io/gang-id={gang}") -> list[str]:
                pods = api.list_namespaced_pod(self.namespace, label_selector=chosen).items
                return [pod.status.phase for pod in pods]

            until(
                f"{gang} runs",
                lambda: set(phases()) & {"Failed"} or phases() == ["Running"] * 2,
                300,
            )
            assert phases() == ["Running"] * 2, gang
            self.gangs.append(gang)
            for rank in range(2):
                api.delete_namespaced_pod(f"{gang}-{rank}", self.namespace, grace_period_seconds=0)

    def certificates(self) -> None:
        api = client.CoreV1Api(client.ApiClient())
        registrations: Any = client.AdmissionregistrationV1Api(client.ApiClient())
        while not self.over.wait(0.2):
            read: Any = api.read_namespaced_secret("preflight-injector-tls", "preflight")
            entries = registrations.read_mutating_webhook_configuration(INJECTOR.name).webhooks
            bundles = {entry.client_config.ca_bundle for entry in entries}
            trusted = base64.b64decode(read.data["ca.crt"])
            self.trusted[all(b and base64.b64decode(b) == trusted for b in bundles)] += 1


def running(lab: Lab) -> dict[str, list[str]]:
    """Names of our pods by the version that they are of; no entry where one is not ready."""
    pods = lab.api.list_namespaced_pod(
        "preflight", label_selector="app.kubernetes.io/component in (webhook, controller)"
    ).items
    by_version: dict[str, list[str]] = {}
    for pod in pods:
        ready = all(each.ready for each in pod.status.container_statuses or [])
        if not ready or pod.metadata.deletion_timestamp:
            return {}
        of = pod.metadata.labels["app.kubernetes.io/version"]
        by_version.setdefault(of, []).append(pod.metadata.name)
    return by_version


@pytest.fixture
def load(fake_nodes: Lab, tmp_path: Path) -> Iterator[Load]:
    """The last release with two replicas of each part, and a namespace that it checks."""
    lab = fake_nodes
    if len(lab.nodes) < 2:
        pytest.skip(f"needs two nodes, there are {len(lab.nodes)}")
    lab.without_chart()
    tag = os.environ.get("PREFLIGHT_LAST_RELEASE", "")
    lab.release.chart = earlier(tmp_path, tag)
    values = json.loads(json.dumps(VALUES))
    for part in values.values() if tag else ():
        part["image"]["tag"] = tag.rpartition("/v")[2]
    namespace = ""
    try:
        lab.release.install(values)
        namespace = lab.namespace(f"upgrade-{uuid.uuid4().hex[:6]}")
        yield Load(lab, namespace)
    finally:
        if namespace:
            lab.remove_namespace(namespace)
        lab.release.chart = UMBRELLA
        lab.without_chart()


def test_no_pod_and_no_gang_notices_that_the_last_release_is_upgraded_and_rolled_back(
    load: Load,
) -> None:
    lab, new, began = load.lab, version(INJECTOR), time.monotonic()

    def more_gangs() -> None:
        before = len(load.gangs)

        def more() -> bool:
            for each in going:
                if each.done():
                    each.result()  # raises: none ends by itself
            return len(load.gangs) >= before + 2

        until("two more gangs run", more, 300)

    def replaced(by: Callable[[str], bool], what: str) -> None:
        def so() -> bool:
            names = running(lab)
            return len(names) == 1 and by(next(iter(names))) and len(*names.values()) == 4

        until(what, so, 180)
        more_gangs()
        print(f"{time.monotonic() - began:5.1f} s  {what}; gangs so far: {len(load.gangs)}")

    jobs = (load.pods, load.certificates, load.gangs_of_two)
    with ThreadPoolExecutor(len(jobs)) as threads:
        going = [threads.submit(job) for job in jobs]
        try:
            replaced(lambda of: of != new, "the last release runs")
            lab.release.chart = UMBRELLA
            lab.release.upgrade(VALUES)
            replaced(lambda of: of == new, "upgraded")
            lab.release.rollback()
            replaced(lambda of: of != new, "rolled back")
        finally:
            load.over.set()
        seconds = time.monotonic() - began
        for each in going:
            each.result()
    print(f"{load.answers.total() / seconds:.1f} pods/s for {seconds:.0f} s, {load.gangs=}")
    assert list(load.answers) == [DCGM], load.answers
    assert set(load.trusted) == {True}, load.trusted
