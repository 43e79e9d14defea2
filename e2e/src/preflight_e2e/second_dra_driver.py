"""Another vendor's DRA driver on one node, as one for GPUs is, beside that of ComputeDomains: pods
may have claims of both.

The driver is the fake nodes' (``fakes/node/dra_driver.py``, with Google's stubs) under a name of
its own; its device is a variable in the container.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from kubernetes import client

from .images import FAKE_NODE
from .imex_channels import RESOURCE, ChannelNamespace
from .installed_release import until

OTHER: Final = "gpu.example.com"
OTHER_VARIABLE: Final = "BESIDE_GPU"
_SERVES = f"""
import asyncio, os, pathlib
from types import SimpleNamespace
from dra_driver import Driver
from kube import api, found
node = SimpleNamespace(name=os.environ["NODE_NAME"])
def offers(node):
    return {{"gpu-0": "GPU-beside"}}
def edits(node, device, ident, config):
    return {{"env": ["{OTHER_VARIABLE}=" + ident]}}
def tell(**said):
    print(said, flush=True)
    if said.get("registered"):
        pathlib.Path("/tmp/registered").touch()
asyncio.run(Driver("{OTHER}", node, tell, api, found, offers, edits).run())
"""
_RULES: Final = [
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "create", "update", "delete"],
    },
]


@contextmanager
def beside(place: ChannelNamespace, node: str) -> Iterator[str]:
    """The driver serves on ``node``; the name of a template in ``place`` that asks
    for its device.
    """
    name, api = f"beside-{place.namespace}", place.channels.api
    api_class: Any = client.RbacAuthorizationV1Api
    rbac: Any = api_class()
    custom = place.channels.custom
    folders = {
        "plugins": "/var/lib/kubelet/plugins",
        "registry": "/var/lib/kubelet/plugins_registry",
        "cdi": "/etc/cdi",
    }
    container = {
        "name": "driver",
        "image": FAKE_NODE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", _SERVES],
        "env": [{"name": "NODE_NAME", "value": node}],
        "readinessProbe": {
            "exec": {"command": ["test", "-f", "/tmp/registered"]},
            "periodSeconds": 1,
        },
        "volumeMounts": [{"name": key, "mountPath": path} for key, path in folders.items()],
    }
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "serviceAccountName": "beside",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": key, "hostPath": {"path": path}} for key, path in folders.items()],
    }
    subject = {"kind": "ServiceAccount", "name": "beside", "namespace": place.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    kinds = {"apiVersion": "/".join(RESOURCE), "kind": "DeviceClass"}
    chosen = {"selectors": [{"cel": {"expression": f"device.driver == '{OTHER}'"}}]}
    asked = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": name}}]}
    try:
        api.create_namespaced_service_account(place.namespace, {"metadata": {"name": "beside"}})
        rbac.create_cluster_role({"metadata": {"name": name}, "rules": _RULES})
        rbac.create_cluster_role_binding(
            {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        )
        custom.create_cluster_custom_object(
            *RESOURCE, "deviceclasses", {**kinds, "metadata": {"name": name}, "spec": chosen}
        )
        place.create(
            "ResourceClaimTemplate",
            "resourceclaimtemplates",
            {"metadata": {"name": "gpu"}, "spec": {"spec": {"devices": asked}}},
        )
        api.create_namespaced_pod(place.namespace, {"metadata": {"name": "driver"}, "spec": spec})

        def serves() -> bool:
            statuses = place.read("driver").status.container_statuses or []
            return bool(statuses) and all(status.ready for status in statuses)

        until(serves, f"the driver {OTHER} is registered on {node}")
        yield "gpu"
    finally:
        place.delete(*(pod.metadata.name for pod in place.pods() if pod.metadata.name != "driver"))
        place.delete("driver")  # the kubelet has asked it to unprepare by now
        for remove in (rbac.delete_cluster_role, rbac.delete_cluster_role_binding):
            with suppress(client.ApiException):
                remove(name)
        for plural, object_name in (
            ("deviceclasses", name),
            ("resourceslices", f"{node}-{OTHER}"),
        ):
            with suppress(client.ApiException):
                custom.delete_cluster_custom_object(*RESOURCE, plural, object_name)
