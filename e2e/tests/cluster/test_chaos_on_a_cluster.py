"""A bad day, in short: every component of ours is killed on real kubelets, alone and in pairs,
under a load of pods, gangs and wrappers, beside one sick node.

Needs the lab's fake GPU nodes, four of them, and no release of the charts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.appwrappers import ALL_REDUCE, VALUES, WrappedRelease, asks, wrapped
from preflight_e2e.lab import BASE_VALUES, Lab, until

pytestmark = [pytest.mark.timeout(600), pytest.mark.fakes]

PATIENT = {"name": "DCGM_QUEUE_TIMEOUT", "value": "120s"}
"""Pods share nodes here, and an engine runs one diagnostic at a time."""
CHECKS = [{**BASE_VALUES["checks"][0], "env": [PATIENT]}, ALL_REDUCE]
DEAD_GPUS: list[dict[str, Any]] = [
    {
        "gpu": gpu,
        "test": "memory",
        "error_id": 52,
        "severity": 2,
        "category": 10,
        "text": "Memtest: 14 bit errors",
    }
    for gpu in range(8)
]
PARTS = {
    "injector": "app.kubernetes.io/name=preflight-injector,app.kubernetes.io/component=webhook",
    "gang": "app.kubernetes.io/name=preflight-gang,app.kubernetes.io/component=controller",
    "wrappers": "app.kubernetes.io/name=preflight-appwrapper,app.kubernetes.io/component=controller",
    "reviews": "app.kubernetes.io/name=preflight-appwrapper,app.kubernetes.io/component=webhook",
    "labeler": "app.kubernetes.io/name=preflight-appwrapper,app.kubernetes.io/component=labeler",
}
KILLED = [*((part,) for part in PARTS), ("injector", "gang"), ("wrappers", "labeler")]
DEADLINE = 300
"""Seconds from the last kill until every pod runs, or is held."""


@pytest.fixture(scope="module")
def world(fake_nodes: Lab) -> Iterator[WrappedRelease]:
    if len(fake_nodes.nodes) < 4:
        pytest.skip(f"needs four nodes, there are {len(fake_nodes.nodes)}")
    values = {**VALUES, "preflight-injector": {**VALUES["preflight-injector"], "checks": CHECKS}}
    with wrapped(fake_nodes, values) as made:
        yield made


def accepted(create: Callable[[], Any]) -> None:
    """Create something; what a webhook refuses that is being replaced is asked again, and nothing
    else is refused.
    """

    def created() -> bool:
        try:
            create()
        except client.ApiException as error:
            assert "failed calling webhook" in str(error.body), error
            return False
        return True

    until("what is created is accepted", created)


def kill(world: WrappedRelease, parts: tuple[str, ...]) -> None:
    """End all replicas of these components at once, as a machine that is lost does."""
    for part in parts:
        pods = world.lab.api.list_namespaced_pod("preflight", label_selector=PARTS[part]).items
        assert pods, part
        for pod in pods:
            world.lab.api.delete_namespaced_pod(
                pod.metadata.name, "preflight", grace_period_seconds=0
            )


def held(pod: Any) -> str:
    """The check that holds the pod, if one has ended and failed."""
    ends = [(c.name, c.state.terminated) for c in pod.status.init_container_statuses or []]
    return next((name for name, end in ends if end is not None and end.exit_code), "")


def test_whatever_is_killed_every_pod_runs_or_is_held_for_a_stated_reason_and_nothing_is_left(
    world: WrappedRelease,
) -> None:
    lab, sick, began = world.lab, world.lab.nodes[-1], time.monotonic()
    lab.configure(sick, {"engine": {"faults": DEAD_GPUS}})
    sizes: dict[str, int] = {}
    for i, parts in enumerate(KILLED):
        kill(world, parts)
        alone = {
            "metadata": {"name": f"alone-{i}"},
            "spec": {"restartPolicy": "Never", **asks(1)},
        }
        accepted(lambda body=alone: lab.api.create_namespaced_pod(world.namespace, body))  # type: ignore[misc]
        name, size = (f"gang-{i}", 2) if "gang" in parts else (f"single-{i}", 1)
        accepted(lambda name=name, size=size: world.wrap(name, asks(1), size, gang=size > 1))  # type: ignore[misc]
        sizes[name] = size
        print(f"{time.monotonic() - began:5.1f} s  killed: {', '.join(parts)}", flush=True)

    def pods() -> list[Any]:
        every = lab.api.list_namespaced_pod(world.namespace).items
        return [pod for pod in every if pod.metadata.name.startswith("alone-")]

    def waiting() -> list[str]:
        alone = [p.metadata.name for p in pods() if p.status.phase != "Running" and not held(p)]
        return alone + [name for name in sizes if len(world.running(name)) != sizes[name]]

    end = time.monotonic() + DEADLINE
    while left := waiting():
        assert time.monotonic() < end, f"neither running nor held: {', '.join(left)}"
        time.sleep(1)
    print(f"{time.monotonic() - began:5.1f} s  every pod runs, or is held", flush=True)
    assert len(pods()) == len(KILLED)
    # Held is who came to the sick node, by the check that found it, and nobody else.
    on_it = {pod.metadata.name for pod in pods() if pod.spec.node_name == sick}
    assert {pod.metadata.name: held(pod) for pod in pods() if held(pod)} == dict.fromkeys(
        on_it, "preflight-dcgm-diag"
    )
    for name in sizes:
        until(f"{name} is ready", lambda name=name: world.condition(name, "PodsReady") == "True")  # type: ignore[misc]
        status = world.status(name)
        assert (status["phase"], status.get("resettingCount", 0)) == ("Running", 0), name
        assert sick not in {pod.spec.node_name for pod in world.running(name)}
    reported = Counter(
        (event["metadata"].get("pod"), event["checkName"], entity["entityValue"])
        for node in lab.nodes
        for line in lab.node_log(node)
        if (event := line.get("event")) and event["isFatal"]
        for entity in event["entitiesImpacted"]
    )
    assert [report for report, times in reported.items() if times > 1] == []
    assert {node for node in lab.nodes if world.label(node)} <= {sick}
    for name in sizes:
        world.remove(name)
    lab.api.delete_collection_namespaced_pod(world.namespace, grace_period_seconds=0)
    until("no pod is left", lambda: not lab.api.list_namespaced_pod(world.namespace).items)

    def rosters() -> list[str]:
        found = lab.api.list_namespaced_config_map(world.namespace).items
        return [m.metadata.name for m in found if m.metadata.name != "kube-root-ca.crt"]

    until("no roster is left", lambda: not rosters())
    print(f"{time.monotonic() - began:5.1f} s  nothing is left", flush=True)
