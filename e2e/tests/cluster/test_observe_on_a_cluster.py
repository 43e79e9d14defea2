"""A rollout that only observes, with every mistake of `matrix/observe.toml` at once: kubelets hold
no pod back, and each mistake is named.

Needs the lab's fake nodes, the images of the checks, and no release of the charts. First there is
no gang controller; then an upgrade brings it, and a configuration that the webhook refuses, with
the mistakes written out.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e import observe_rows
from preflight_e2e.lab import Lab, until
from preflight_e2e.runner import IMAGE
from preflight_testing.matrix.mistake import CHECKS, Mistake, written_out
from preflight_testing.matrix.scenario import load_mistakes

pytestmark = [pytest.mark.timeout(420), pytest.mark.fakes]

ROWS = load_mistakes()
PODS = [row for row in ROWS if observe_rows.as_pod(row)]
REFUSED = [row for row in ROWS if row.refused]
ALONE = "observe-no-controller"
"""The row that ends before the controller comes."""


@dataclass(frozen=True)
class Rollout:
    lab: Lab
    namespaces: dict[str, str]
    """By row."""
    pods: dict[str, Any]
    """By row, its pod when it has ended."""
    refusal: str
    """What the new replica of the webhook says at its end."""
    after: Any
    """A pod that was created then."""


@pytest.fixture(scope="module")
def rollout(fake_nodes: Lab) -> Iterator[Rollout]:
    lab, began = fake_nodes, time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {what}")

    def end_of(namespace: str, name: str) -> Any:
        return until(f"{name} in {namespace} ends", lambda: ended(lab, namespace, name), 120)

    namespaces: dict[str, str] = {}
    try:
        places = placed(lab)
        lab.release.install(observe_rows.values(CHECKS, replicas=0))
        say("installed")
        for row in sorted(PODS, key=lambda row: row.id != ALONE):
            if row.id in places:
                node = places[row.id]
                namespace = namespaces[row.id] = lab.namespace(
                    f"pf-{row.id}-{uuid.uuid4().hex[:4]}"
                )
                lab.api.create_namespaced_config_map(
                    namespace, observe_rows.settings(row, address(lab, node))
                )
                lab.api.create_namespaced_pod(namespace, observe_rows.pod(row, row.id, node, IMAGE))
        end_of(namespaces[ALONE], ALONE)
        say("the pod that asks for an absent controller has ended")
        written = [written_out(row) for row in REFUSED]
        lab.release.upgrade(observe_rows.values([*CHECKS, *written]), wait=False)
        pods = {row: end_of(namespace, row) for row, namespace in namespaces.items()}
        say("all pods have ended")
        refusal = until("the new webhook ends", lambda: refused(lab), 60)
        first = PODS[0]
        lab.api.create_namespaced_pod(
            namespaces[first.id], observe_rows.pod(first, "after", places[first.id], IMAGE)
        )
        after = end_of(namespaces[first.id], "after")
        say("a pod of later has ended")
        yield Rollout(lab, namespaces, pods, refusal, after)
    finally:
        for namespace in namespaces.values():
            lab.remove_namespace(namespace)
        lab.without_chart()
        say("gone")


def placed(lab: Lab) -> dict[str, str]:
    """By row, its node: on the first two all is well, each other one may be what a
    row says of it.
    """
    others, places = lab.nodes[2:], {}
    for number, row in enumerate(PODS):
        facts = {**row.node, **({} if row.socket else {"connector": {"mode": "absent"}})}
        if not facts:
            places[row.id] = lab.nodes[number % 2 % len(lab.nodes)]
        elif others:
            places[row.id] = others.pop()
            lab.configure(places[row.id], facts)
    return places


def address(lab: Lab, node: str) -> str:
    """Where the node's engine listens."""
    [found] = [
        one.address for one in lab.api.read_node(node).status.addresses if one.type == "InternalIP"
    ]
    return str(found)


def ended(lab: Lab, namespace: str, name: str) -> Any:
    pod = lab.api.read_namespaced_pod(name, namespace)
    return pod if pod.status.phase in {"Succeeded", "Failed"} else None


def refused(lab: Lab) -> str:
    """The log of the webhook's replica that has ended with an error; empty while there is none."""
    for pod in lab.api.list_namespaced_pod(
        "preflight", label_selector="app.kubernetes.io/component=webhook"
    ).items:
        for status in pod.status.container_statuses or []:
            if status.restart_count or (
                status.state.terminated and status.state.terminated.exit_code
            ):
                with suppress(client.ApiException):  # it is gone by now
                    read, before = lab.api.read_namespaced_pod_log, bool(status.restart_count)
                    said = read(
                        pod.metadata.name, "preflight", previous=before, _preload_content=False
                    ).data.decode()
                    if said and not said.startswith(
                        "unable to retrieve container logs"
                    ):  # gone, told with 200
                        return str(said)
    return ""


def told(rollout: Rollout, row: Mistake) -> dict[str, str]:
    """The Events about the row's check by their reason."""
    events = rollout.lab.api.list_namespaced_event(rollout.namespaces[row.id])
    mine = [
        one
        for one in events.items
        if one.involved_object.name == row.id and one.message.startswith(row.check)
    ]
    return {one.reason: one.message for one in mine}


def metrics(lab: Lab) -> str:
    """Of all replicas, of which one leads and counts."""
    pods = lab.api.list_namespaced_pod(
        "preflight", label_selector="app.kubernetes.io/component=controller"
    ).items
    path = lab.api.connect_get_namespaced_pod_proxy_with_path
    pages = []
    for pod in pods:
        with suppress(client.ApiException):  # not up yet
            answer = path(
                f"{pod.metadata.name}:8080", "preflight", "metrics", _preload_content=False
            )
            pages.append(answer.data.decode())
    return "".join(pages)


def counted(rollout: Rollout, row: Mistake) -> bool:
    """Whether a metric has the row: by its node and code, or as one that passed."""
    if row.outcome == "passed":
        return f'preflight_check_total{{check="{row.check}",result="passed"}}' in metrics(
            rollout.lab
        )
    node = rollout.pods[row.id].spec.node_name
    labels = (f'check="{row.check}"', f'error_code="{row.code}"', f'node="{node}"')
    lines = [
        line
        for line in metrics(rollout.lab).splitlines()
        if line.startswith("preflight_check_failures_total{")
    ]
    return any(all(label in line for label in labels) for line in lines)


@pytest.mark.parametrize("row", PODS, ids=lambda row: row.id)
def test_a_mistake_holds_no_pod_back_and_is_named_in_its_event_and_counted(
    row: Mistake, rollout: Rollout
) -> None:
    if row.id not in rollout.pods:
        pytest.skip(
            f"it needs a node of its own, beside two healthy ones; the cluster has {len(rollout.lab.nodes)}"
        )
    pod = rollout.pods[row.id]
    [check] = [
        one for one in pod.status.init_container_statuses if one.name == f"preflight-{row.check}"
    ]
    log = rollout.lab.log(rollout.namespaces[row.id], row.id, check.name)
    assert check.state.terminated.exit_code == 0, log
    assert (pod.status.phase, pod.status.container_statuses[0].state.terminated.exit_code) == (
        "Succeeded",
        0,
    )
    assert row.says in log
    reason = observe_rows.REASONS[row.outcome]
    event = until(f"{row.id} has an Event {reason}", lambda: told(rollout, row).get(reason), 60)
    assert row.says in event
    until(f"{row.id} is counted", lambda: counted(rollout, row), 60)


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.id)
def test_a_mistake_that_can_be_seen_beforehand_is_named_by_the_webhook_that_would_start_with_it(
    row: Mistake, rollout: Rollout
) -> None:
    assert row.refused.replace('"', '\\"') in rollout.refusal or row.refused in rollout.refusal


def test_the_webhook_that_is_there_goes_on_with_the_configuration_before(rollout: Rollout) -> None:
    names = [one.name for one in rollout.after.spec.init_containers]
    assert (names, rollout.after.status.phase) == ([f"preflight-{PODS[0].check}"], "Succeeded")
