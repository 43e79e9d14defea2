"""The cost invariant where it counts: a real API server says what 500 pods cost with and without
injection.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from kubernetes.utils import parse_quantity
from preflight_e2e.installed_release import Installed

pytestmark = pytest.mark.timeout(240)

PODS = 500
GPU = "nvidia.com/gpu"
CHOICES = {
    "cpu": ["1", "4", "250m", "1500m"],
    "memory": ["64Mi", "1Gi", "200M", "1G"],
    "ephemeral-storage": ["1Gi", "500M"],
}


def generated(chance: random.Random, number: int) -> dict[str, Any]:
    """A pod that the API server takes: sidecars, init containers, every QoS class, lists there or
    not.
    """
    guaranteed = chance.random() < 0.25

    def container(name: str) -> dict[str, Any]:
        requests: dict[str, str] = {}
        limits: dict[str, str] = {}
        for resource, values in CHOICES.items():
            kind = (
                "equal"
                if guaranteed and resource != "ephemeral-storage"
                else chance.choice(["none", "none", "request", "limit", "equal", "both"])
            )
            low, high = sorted(chance.choices(values, k=2), key=parse_quantity)
            if kind in {"request", "both"}:
                requests[resource] = low
            if kind in {"limit", "both"}:
                limits[resource] = high
            if kind == "equal":
                requests[resource] = limits[resource] = low
        if chance.random() < 0.7:
            limits[GPU] = str(chance.randint(1, 8))
        return {"name": name, "image": "x", "resources": {"requests": requests, "limits": limits}}

    init = [container(f"init-{i}") for i in range(chance.randint(0, 3))]
    for one in init:
        if chance.random() < 0.4:
            one["restartPolicy"] = "Always"
    spec: dict[str, Any] = {
        "containers": [container(f"main-{i}") for i in range(chance.randint(1, 3))]
    }
    if init:
        spec["initContainers"] = init
    if chance.random() < 0.5:
        spec["volumes"] = [{"name": "data", "emptyDir": {}}]
        spec["containers"][0]["volumeMounts"] = [
            {"name": "data", "mountPath": chance.choice(["/data", "/tmp", "/var/run/nvsentinel"])}
        ]
    if chance.random() < 0.3:
        spec["securityContext"] = {"runAsUser": 0, "fsGroup": 1000}
    if chance.random() < 0.2:
        spec["hostNetwork"] = True
    return {"metadata": {"name": f"pod-{number}"}, "spec": spec}


def cost(pod: Any, resource: str, of: Callable[[Any, str], Decimal]) -> Decimal:
    """What the pod counts for, as the documentation of sidecar containers has it."""
    together, peak = Decimal(0), Decimal(0)
    for container in pod.spec.init_containers or []:
        amount = of(container, resource)
        if container.restart_policy == "Always":
            together += amount
            peak = max(peak, together)
        else:
            peak = max(peak, together + amount)
    return max(peak, together + sum((of(c, resource) for c in pod.spec.containers), Decimal(0)))


def requested(container: Any, resource: str) -> Decimal:
    return Decimal(parse_quantity((container.resources.requests or {}).get(resource, "0")))  # type: ignore[no-untyped-call]


def test_500_pods_cost_the_same_with_and_without_injection_and_none_is_refused(
    installed: Installed,
) -> None:
    chance = random.Random(26)
    plain, injected = installed.namespace(), installed.opted_in()
    counted = {"injected": 0, "Guaranteed": 0, "Burstable": 0, "BestEffort": 0}
    for number in range(PODS):
        pod = generated(chance, number)
        before = installed.api.create_namespaced_pod(plain, pod, dry_run="All")
        after = installed.api.create_namespaced_pod(injected, pod, dry_run="All")
        assert after.status.qos_class == before.status.qos_class, pod
        for resource in [*CHOICES, GPU]:
            assert cost(after, resource, requested) == cost(before, resource, requested), (
                resource,
                pod,
            )
        names = [c.name for c in after.spec.init_containers or []]
        assert ("preflight-dcgm-diag" in names) == (cost(before, GPU, requested) > 0)
        counted["injected"] += "preflight-dcgm-diag" in names
        counted[after.status.qos_class] += 1
    print(counted)
    assert min(counted.values()) > 0, "the generator has missed a class"
