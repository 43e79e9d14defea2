"""AppWrappers that run, on the API double: what a leader finds of workloads that somebody has
created before it.
"""

from __future__ import annotations

import ssl
from typing import Any

from preflight_appwrapper.api.names import LABEL
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_testing.apidouble import RESOURCES, ApiAnswer, ApiDouble, ApiRequest, Resource
from preflight_testing.apidouble.patches import merge_patch

APPWRAPPERS = Resource(
    "workload.codeflare.dev/v1beta2", "appwrappers", "AppWrapper", status=True, custom=True
)
SINCE = "2026-01-01T00:00:00Z"


def double(*more: Resource) -> ApiDouble:
    made = ApiDouble((*RESOURCES, APPWRAPPERS, *more))
    made.fault = core
    return made


def core(request: ApiRequest) -> ApiAnswer | None:
    """What the double does not know: the kinds of the core group."""
    if request.path != "/api/v1":
        return None
    pods = {"name": "pods", "kind": "Pod", "namespaced": True}
    return ApiAnswer(200, {"kind": "APIResourceList", "resources": [pods]})


def client(api: ApiDouble) -> Client:
    return Client(Connection(api.url, ssl.create_default_context()), agent="tests")


def condition(type_: str, status: str, reason: str = "Resuming") -> dict[str, Any]:
    return {"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": SINCE}  # fmt: skip


def running(
    api: ApiDouble, name: str, *, node: str = "node-0", namespace: str = "default", **more: Any
) -> None:
    """A wrapper of one bare pod, which runs on ``node``; ``more``: of the pod's status."""
    spec = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": spec,
    }
    wrapper = api.create(
        "appwrappers",
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "finalizers": ["workload.codeflare.dev/finalizer"],
            },
            "spec": {"suspend": False, "components": [{"template": template}]},
        },
    )
    owner = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "name": name}
    made = api.create(
        "pods",
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {LABEL: name},
                "ownerReferences": [
                    {**owner, "uid": wrapper["metadata"]["uid"], "controller": True}
                ],
            },
            "spec": {**spec, "nodeName": node},
        },
    )
    write_status(api, "pods", namespace, name, {"phase": "Running", **more})
    status = {
        "phase": "Running",
        "conditions": [
            condition("QuotaReserved", "True"),
            condition("ResourcesDeployed", "True"),
            condition("PodsReady", "True", "SufficientPodsReady"),
        ],
        "componentStatus": [
            {
                "name": name,
                "kind": "Pod",
                "apiVersion": "v1",
                "podSets": [{"path": "template", "replicas": 1}],
                "conditions": [condition("ResourcesDeployed", "True", "ComponentCreatedSuccessfully")],
                "uid": made["metadata"]["uid"],
            }
        ],
    }  # fmt: skip
    write_status(api, "appwrappers", namespace, name, status)


def served(api: ApiDouble, plural: str) -> Resource:
    return next(one for one in api.api.served if one.plural == plural)


def change(api: ApiDouble, plural: str, name: str, patch: dict[str, Any]) -> None:
    """Merge ``patch`` into the object of that name, in ``default`` if it is of a namespace."""
    resource = served(api, plural)
    before = api.store.get(resource, "default" if resource.namespaced else "", name)
    api.store.update(resource, before, merge_patch(before, patch))


def write_status(
    api: ApiDouble, plural: str, namespace: str, name: str, status: dict[str, Any]
) -> None:
    resource = served(api, plural)
    before = api.store.get(resource, namespace, name)
    api.store.update(resource, before, {**before, "status": status}, status=True)


def objects(api: ApiDouble, plural: str) -> list[dict[str, Any]]:
    return list(api.store.objects.get(served(api, plural), {}).values())


def has(raw: dict[str, Any], type_: str) -> dict[str, Any]:
    found = [it for it in raw.get("status", {}).get("conditions", []) if it["type"] == type_]
    return found[0] if found else {}
