"""The real Kueue, as a process beside a real API server: its own definitions, rights, webhooks and
certificates, from its own files.

PREFLIGHT_KUEUE names its program, with its folder ``config`` beside it (`nox -s real-kueue`
compiles both).
"""

from __future__ import annotations

import base64
import copy
import os
import subprocess
import time
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from lab import Lab
from preflight_testing.apiserver import ApiServer, free_port

PROGRAM: Final = Path(os.environ.get("PREFLIGHT_KUEUE", "/nowhere"))
FLAVOR: Final[Mapping[str, Any]] = {
    "nodeLabels": {"flavor": "a100"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
}
_API: Final = "/apis/kueue.x-k8s.io/v1beta2"
_SYSTEM: Final = "kueue-system"
_SERVICE: Final = "kueue-webhook-service"
_PARTS: Final = ("crd/bases", "rbac", "internalcert", "webhook")
_PATHS: Final = {
    "Secret": f"/api/v1/namespaces/{_SYSTEM}/secrets",
    "ServiceAccount": f"/api/v1/namespaces/{_SYSTEM}/serviceaccounts",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{_SYSTEM}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{_SYSTEM}/rolebindings",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
}


@contextmanager
def running(server: ApiServer, home: Path, **settings: Any) -> Iterator[None]:
    """Kueue answers, and works. ``settings``: of its configuration, beside its defaults."""
    config = PROGRAM.parent / "config/components"
    port, health = free_port(), free_port()
    server.call("POST", "/api/v1/namespaces", {"metadata": {"name": _SYSTEM}})
    # The API server reaches a service of this type without a network for pods.
    outside = {"type": "ExternalName", "externalName": "localhost"}
    path = f"/api/v1/namespaces/{_SYSTEM}/services"
    server.call("POST", path, {"metadata": {"name": _SERVICE}, "spec": outside})
    for part in _PARTS:
        for file in sorted((config / part).glob("*.yaml")):
            for body in yaml.safe_load_all(file.read_text()):
                if body and body.get("kind") in _PATHS:
                    patch = config / "crd/patches" / f"webhook_in_{file.stem.split('_')[-1]}.yaml"
                    if patch.exists():
                        body["spec"].update(yaml.safe_load(patch.read_text())["spec"])
                    server.call("POST", _PATHS[body["kind"]], _placed(body, port))
    made = yaml.safe_load((config / "manager/controller_manager_config.yaml").read_text())
    made |= {
        "namespace": _SYSTEM,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": port, "host": "127.0.0.1", "certDir": str(home / "certs")},
        "leaderElection": {"leaderElect": False},
        "featureGates": {"VisibilityOnDemand": False},
        **settings,
    }
    (home / "certs").mkdir(parents=True)
    (home / "config.yaml").write_text(yaml.safe_dump(made))
    kubeconfig = server.kubeconfig(
        home / "kubeconfig", server.token_of(_SYSTEM, "kueue-controller-manager")
    )
    command = [str(PROGRAM), f"--config={home / 'config.yaml'}", "--zap-log-level=3"]
    with (home / "kueue.log").open("ab") as log:
        environ = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
    try:
        _mount(server, home, process)
        yield
    finally:
        process.kill()
        process.wait()


def _mount(server: ApiServer, home: Path, process: subprocess.Popen[bytes]) -> None:
    """Do what a kubelet does with the Secret that Kueue fills, until its webhooks answer."""
    end, said = time.monotonic() + 120, ""
    while True:
        found = server.call("GET", f"{_PATHS['Secret']}/kueue-webhook-server-cert").get("data", {})
        for name, value in found.items():
            if not (home / "certs" / name).exists():
                (home / "certs" / name).write_bytes(base64.b64decode(value))
        try:
            about = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor"}
            body = {**about, "metadata": {"name": "probe"}}
            server.call("POST", f"{_API}/resourceflavors?dryRun=All", body)
            return
        except urllib.error.HTTPError as error:
            said = error.read().decode()
        said += (home / "kueue.log").read_text()[-2000:]
        assert process.poll() is None, said
        assert time.monotonic() < end, said
        time.sleep(0.2)


def _placed(body: dict[str, Any], port: int) -> dict[str, Any]:
    """The object as kustomize would place it, and its webhooks where Kueue is."""
    made = copy.deepcopy(body)
    if made["kind"] != "CustomResourceDefinition":
        made["metadata"]["name"] = f"kueue-{made['metadata']['name']}"
    for one in [made.get("roleRef", {}), *made.get("subjects", [])]:
        if one:
            one["name"] = f"kueue-{one['name']}"
            if one["kind"] == "ServiceAccount":
                one["namespace"] = _SYSTEM
    made["metadata"].pop("namespace", None)
    for one in [
        *made.get("webhooks", []),
        made.get("spec", {}).get("conversion", {}).get("webhook"),
    ]:
        if one:
            one["clientConfig"]["service"] |= {"name": _SERVICE, "namespace": _SYSTEM, "port": port}
    return made


class RealKueue:
    """What its administrator and its users do, and what it says, in the namespace of a lab."""

    def __init__(self, lab: Lab, quota: int = 16) -> None:
        self.lab, self.quota, self.name = lab, quota, f"q-{lab.namespace}"

    async def __aenter__(self) -> RealKueue:
        await self._made("ResourceFlavor", "resourceflavors", self.name, dict(FLAVOR))
        resources = [{"name": "nvidia.com/gpu", "nominalQuota": self.quota}]
        flavors = [{"name": self.name, "resources": resources}]
        spec = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}],
        }
        await self._made("ClusterQueue", "clusterqueues", self.name, spec)
        local = f"namespaces/{self.lab.namespace}/localqueues"
        await self._made("LocalQueue", local, "team", {"clusterQueue": self.name})
        return self

    async def _made(self, kind: str, path: str, name: str, spec: dict[str, Any]) -> None:
        about = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}}
        await self.lab.client.create(f"{_API}/{path}", {**about, "spec": spec})

    async def __aexit__(self, *_: object) -> None:
        await self.stopped("HoldAndDrain")

    async def stopped(self, policy: str) -> None:
        """Stop or start the ClusterQueue: Hold, HoldAndDrain, None."""
        path = f"{_API}/clusterqueues/{self.name}"
        await self.lab.client.merge_patch(path, {"spec": {"stopPolicy": policy}})

    def workloads(self, name: str = "") -> str:
        root = f"{_API}/namespaces/{self.lab.namespace}/workloads"
        return f"{root}/{name}" if name else root

    async def workload(self, wrapper: str = "w") -> dict[str, Any]:
        """The Workload of a wrapper, once there is one."""

        async def there() -> Any:
            listed = await self.lab.get(self.workloads())
            for one in listed["items"] if listed else []:
                if one["metadata"]["ownerReferences"][0]["name"] == wrapper:
                    return one
            return None

        found: dict[str, Any] = await self.lab.until(there, f"a Workload of {wrapper}")
        return found

    async def says(self, type_: str, status: str, wrapper: str = "w") -> dict[str, Any]:
        """The condition of a Workload, once it has this status."""

        async def there() -> Any:
            found = (await self.workload(wrapper)).get("status", {}).get("conditions", [])
            for one in found:
                if (one["type"], one["status"]) == (type_, status):
                    return one
            return None

        found: dict[str, Any] = await self.lab.until(there, f"{type_}={status} of the Workload")
        return found

    async def active(self, value: bool, wrapper: str = "w") -> None:
        """Have an administrator stop or start one Workload."""
        path = self.workloads((await self.workload(wrapper))["metadata"]["name"])
        await self.lab.client.merge_patch(path, {"spec": {"active": value}})

    async def urgent(self, name: str, template: dict[str, Any]) -> None:
        """A wrapper of a higher priority than others."""
        about = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
        body = {**about, "metadata": {"name": self.name}, "value": 100}
        await self.lab.client.create(f"{_API}/workloadpriorityclasses", body)
        labels = {"kueue.x-k8s.io/priority-class": self.name}
        about = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper"}
        spec = {"components": [{"template": template}]}
        wrapper = {**about, "metadata": {"name": name, "labels": labels}, "spec": spec}
        await self.lab.client.create(self.lab.wrappers(), wrapper)
