"""A large pod on a kubelet that reserves memory by NUMA node: what we ask for there has to be whole
bytes.

Needs the lab's fake nodes, the images of webhook and dcgm-diag on them, and a kubelet with
`memoryManagerPolicy: Static`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.utils import parse_quantity
from preflight_e2e.installed_release import Installed, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.fakes]

GIB = 2**30
FRACTION = "9223372036854m"
"""Bytes with a fraction: the most that nanounits hold in 64 bits, which an amount of 9 GiB or more
is not to become.
"""


@pytest.fixture
def node() -> Iterator[Any]:
    """A node whose kubelet has the static memory manager."""
    if not (kubeconfig := os.environ.get("KUBECONFIG")):
        pytest.skip("KUBECONFIG is not set: no cluster")
    config.load_kube_config(str(Path(kubeconfig)))  # type: ignore[no-untyped-call]
    api: Any = client.CoreV1Api()
    policies = {}
    for one in api.list_node().items:
        answer = api.connect_get_node_proxy_with_path(
            one.metadata.name, "configz", _preload_content=False
        )
        policies[one.metadata.name] = json.loads(answer.data)["kubeletconfig"].get(
            "memoryManagerPolicy", "None"
        )
        if policies[one.metadata.name] == "Static":
            yield one
            return
    pytest.skip(f"no kubelet has memoryManagerPolicy Static; here are {policies}")


def pod(node: str, memory: str, gpus: int) -> dict[str, Any]:
    """Guaranteed, since of others the memory manager keeps no account."""
    limits = {"cpu": "500m", "memory": memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    main = {
        "name": "main",
        "image": "preflight-dcgm-diag:e2e",
        "command": ["true"],
        "resources": {"limits": limits},
    }
    return {
        "metadata": {"name": "large"},
        "spec": {"nodeName": node, "restartPolicy": "Never", "containers": [main]},
    }


def ended(api: Any, namespace: str) -> Any:
    found: list[Any] = []

    def holds() -> bool:
        seen = api.read_namespaced_pod("large", namespace)
        found[:] = [seen] if seen.status.phase in {"Succeeded", "Failed"} else []
        return bool(found)

    until(holds, f"the end of pod large in {namespace}")
    return found[0].status


def test_a_large_pod_is_admitted_and_one_with_a_fraction_of_a_byte_is_not(
    node: Any, fresh: Installed
) -> None:
    name, room = node.metadata.name, int(parse_quantity(node.status.allocatable["memory"]))  # type: ignore[no-untyped-call]
    size = min(64, room // GIB - 2)
    if size * GIB * 1000 < int(FRACTION[:-1]):
        pytest.skip(f"{name} has {room} bytes of memory: too little for a pod of more than 9 GiB")
    checks = [{"name": "dcgm-diag", "image": "preflight-dcgm-diag:e2e"}]
    fresh.release.install(fresh.with_values(checks=checks))
    until(fresh.published, "the CA bundle")
    plain, checked = fresh.namespace(), fresh.opted_in()
    fresh.api.create_namespaced_pod(plain, pod(name, FRACTION, 0))
    refused = ended(fresh.api, plain)
    assert (refused.phase, "int64" in refused.message) == ("Failed", True), refused.message
    fresh.api.create_namespaced_pod(checked, pod(name, f"{size}Gi", 1))
    admitted = ended(fresh.api, checked)
    assert admitted.phase == "Succeeded", admitted
    assert [one.name for one in admitted.init_container_statuses] == ["preflight-dcgm-diag"]
