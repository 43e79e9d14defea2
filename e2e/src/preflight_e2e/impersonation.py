"""Who writes to a cluster whose gang controller's policies are in force: the controller, with its
own token, and a tenant.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kubernetes import client

from .installed_release import Installed, until

OURS = "preflight.nvsentinel.nvidia.com/"
ROSTER, GANG, CHECKED = OURS + "roster", OURS + "gang", OURS + "checked"
LEASE = "preflight-gang"
MANAGED_BY = "app.kubernetes.io/managed-by"
RECORD = {MANAGED_BY: "preflight-gang"}
Patch = list[dict[str, Any]]


def _at(*keys: str) -> str:
    """A JSON pointer."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)


def annotation(key: str) -> str:
    return _at("metadata", "annotations", key)


def label(key: str) -> str:
    return _at("metadata", "labels", key)


def add(path: str, value: Any) -> Patch:
    return [{"op": "add", "path": path, "value": value}]


def remove(path: str) -> Patch:
    return [{"op": "remove", "path": path}]


@dataclass
class Actor:
    """Somebody with a token of his own. Each write answers what the API server said against it, or
    nothing.
    """

    api: Any
    coordination: Any

    def patch(self, pod: Any, patch: Patch, **options: str) -> str:
        return error_of(
            lambda: self.api.patch_namespaced_pod(
                pod.metadata.name, pod.metadata.namespace, patch, **options
            )
        )


def error_of(write: Callable[[], Any]) -> str:
    """What the API server had against a write; empty when nothing."""
    try:
        write()
    except client.ApiException as error:
        return str(json.loads(error.body or "{}").get("message"))
    return ""


@dataclass
class TenantNamespace:
    """A release with no replica, one namespace of a tenant, and the two who write there."""

    installed: Installed
    namespace: str
    controller: Actor
    tenant: Actor
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def pod(
        self, *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
    ) -> Any:
        """A member of a gang as the webhook leaves it, which no scheduler ever looks at."""
        body = {
            "metadata": {
                "name": f"member-{next(self._numbers)}",
                "labels": {"app": "train", CHECKED: "true", GANG: "0123456789abcdef"}
                if labels is None
                else labels,
                "annotations": {"team": "vision", GANG: "{}", ROSTER: "", **(annotations or {})},
            },
            "spec": {
                "schedulerName": "nobody",
                "initContainers": [
                    {"name": "fetch", "image": "fetch:1"},
                    {"name": "preflight-dcgm-diag", "image": "preflight-dcgm-diag:1"},
                ],
                "containers": [{"name": "train", "image": "train:1"}],
                "volumes": [
                    {"name": "preflight-state", "emptyDir": {}},
                    {"name": "data", "emptyDir": {}},
                ],
            },
        }
        return self.installed.api.create_namespaced_pod(self.namespace, body)

    def read(self, pod: Any) -> Any:
        return self.installed.api.read_namespaced_pod(pod.metadata.name, pod.metadata.namespace)

    def configmap(self, name: str, labels: dict[str, str]) -> dict[str, Any]:
        return {
            "metadata": {"name": f"{name}-{next(self._numbers)}", "labels": labels},
            "data": {"peers": ""},
        }


def prepared(installed: Installed) -> TenantNamespace:
    """Install the policies without a replica, and wait until they are in force."""
    installed.release.install(installed.gang_values())
    namespace = installed.shielded()
    until(
        lambda: (
            error_of(lambda: installed.api.read_namespaced_service_account("default", namespace))
            == ""
        ),
        "default account",
    )
    installed.api.create_namespaced_service_account(namespace, {"metadata": {"name": "tenant"}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
    subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}
    binding = {"metadata": {"name": "tenant"}, "roleRef": role, "subjects": [subject]}
    installed.rbac.create_namespaced_role_binding(namespace, binding)
    place = TenantNamespace(
        installed,
        namespace,
        _actor(installed, installed.name, installed.gang),
        _actor(installed, namespace, "tenant"),
    )
    _wait_for_policies(place)
    return place


def _actor(installed: Installed, namespace: str, name: str) -> Actor:
    """A client with the token of a ServiceAccount and nothing of the administrator's."""
    spec = {"spec": {"expirationSeconds": 3600}}
    token = installed.api.create_namespaced_service_account_token(
        name, namespace, spec
    ).status.token
    admin = client.Configuration.get_default_copy()
    settings = client.Configuration(host=admin.host, api_key={"authorization": f"Bearer {token}"})
    settings.ssl_ca_cert, settings.verify_ssl = admin.ssl_ca_cert, admin.verify_ssl
    api_client: Any = client.ApiClient(settings)
    reviews: Any = client.AuthenticationV1Api(api_client)
    user = reviews.create_self_subject_review({}).status.user_info.username
    assert user == f"system:serviceaccount:{namespace}:{name}", (
        "the admin's own credentials prove nothing"
    )
    return Actor(client.CoreV1Api(api_client), client.CoordinationV1Api(api_client))


def _wait_for_policies(place: TenantNamespace) -> None:
    """The API server loads policies and rights a moment after they are stored."""
    pod, foreign = place.pod(), place.configmap("foreign", {})
    forged = place.configmap("preflight-job", RECORD)
    create, tenant = (
        actor.api.create_namespaced_config_map for actor in (place.controller, place.tenant)
    )
    attempts = {
        "policy of the controller's pods": lambda: place.controller.patch(
            pod, add(label("x"), "x"), dry_run="All"
        ),
        "policy of its ConfigMaps": lambda: error_of(
            lambda: create(place.namespace, foreign, dry_run="All")
        ),
        "policy of records": lambda: error_of(
            lambda: tenant(place.namespace, forged, dry_run="All")
        ),
    }
    for what, attempt in attempts.items():
        until(lambda attempt=attempt: "ValidatingAdmissionPolicy" in attempt(), what)  # type: ignore[misc]
