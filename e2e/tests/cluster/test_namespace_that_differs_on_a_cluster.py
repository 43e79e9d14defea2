"""A PreflightConfig end to end: the real controller accepts it, the real webhook follows it, a pod
is admitted by it.

Needs KUBECONFIG and the images of webhook and gang controller (`preflight-gang:dev` unless
PREFLIGHT_GANG_IMAGE is set) on the nodes.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.installed_release import GPU_POD, Installed, until

pytestmark = pytest.mark.timeout(240)

GROUP, VERSION, PLURAL = "preflight.nvsentinel.nvidia.com", "v1alpha1", "preflightconfigs"
GANG = f"{GROUP}/gang"
POD = {**GPU_POD, "metadata": {"generateName": "gpu-", "labels": {"example.com/job": "run-7"}}}
SPEC = {
    "enforcement": "observe",
    "gangDiscovery": {"method": "labels", "labels": {"gangIdLabel": "example.com/job"}},
}


def admitted(installed: Installed, namespace: str) -> tuple[str, str | None]:
    """Whether its check holds it back, and its gang."""
    pod: Any = installed.api.create_namespaced_pod(namespace, POD, dry_run="All")
    gate = next(e.value for e in pod.spec.init_containers[0].env if e.name == "GATE")
    stamp = (pod.metadata.annotations or {}).get(GANG)
    return gate, json.loads(stamp)["id"] if stamp else None


def test_a_namespace_differs_while_its_preflight_config_is_in_force(fresh: Installed) -> None:
    repository, _, tag = os.environ.get("PREFLIGHT_GANG_IMAGE", "preflight-gang:dev").rpartition(
        ":"
    )
    gang = fresh.gang_values(
        replicas=1,
        image={"repository": repository, "tag": tag},
        crd={"keep": False},
    )
    fresh.release.install({**fresh.with_values(), **gang})
    until(fresh.published, "the CA bundle")
    own, other = fresh.opted_in(), fresh.opted_in()
    assert admitted(fresh, own) == ("enforce", None)
    configs: Any = client.CustomObjectsApi()
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "PreflightConfig",
        "metadata": {"name": "mine"},
        "spec": SPEC,
    }
    configs.create_namespaced_custom_object(GROUP, VERSION, own, PLURAL, body)
    until(lambda: admitted(fresh, own) == ("observe", "run-7"), "it is in force")
    assert admitted(fresh, other) == ("enforce", None)
    [condition] = configs.get_namespaced_custom_object(GROUP, VERSION, own, PLURAL, "mine")[
        "status"
    ]["conditions"]
    assert (condition["status"], condition["reason"]) == ("True", "InForce")
    configs.delete_namespaced_custom_object(GROUP, VERSION, own, PLURAL, "mine")
    until(lambda: admitted(fresh, own) == ("enforce", None), "it is out of force")
