"""A release of the chart under names of its own, and the few questions that tests ask about it."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubernetes import client
from preflight_testing.helm import UMBRELLA, Release, Values

from .images import ROOT

DEFINITIONS = (
    "nodehealths.preflight.nvsentinel.nvidia.com",
    "preflightconfigs.preflight.nvsentinel.nvidia.com",
)
GPU_POD = {
    "metadata": {"generateName": "gpu-"},
    "spec": {
        "containers": [
            {"name": "train", "image": "train", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        ],
    },
}


class Installed:
    """A release with names of its own, and the few questions that tests ask about it."""

    def __init__(self, kubeconfig: Path) -> None:
        self.name = f"pf-{uuid.uuid4().hex[:6]}"
        self.release = Release(self.name, kubeconfig)
        # The client's stubs know neither plain dicts as bodies nor that the server fills in what it
        # has stored.
        self.api: Any = client.CoreV1Api()
        self.batch: Any = client.BatchV1Api()
        self.admission: Any = client.AdmissionregistrationV1Api()
        self.rbac: Any = client.RbacAuthorizationV1Api()
        self.namespaces: list[str] = []
        repository, _, tag = os.environ.get(
            "PREFLIGHT_WEBHOOK_IMAGE", "preflight-webhook:dev"
        ).rpartition(":")
        self.gang = f"{self.name}-gang"
        ours = {"key": "preflight-e2e", "operator": "In", "values": [self.name]}
        # One cluster has one release; tests have several, each with namespaces of its own.
        self._apart = {"namespaceSelector": {"matchExpressions": [ours]}}
        self.values = {
            "enabled": True,
            "fullnameOverride": self.name,
            "allowSecondRelease": True,
            "protection": {
                **self._apart,
                "controller": f"system:serviceaccount:{self.name}:{self.gang}",
            },
            "image": {"repository": repository, "tag": tag},
        }

    def with_values(self, **values: Any) -> Values:
        return {"preflight-injector": {**self.values, **values}}

    def gang_values(self, **values: Any) -> Values:
        """The gang controller's rights and policies without a replica, for :meth:`shielded`
        namespaces only.

        Without the definition of PreflightConfig, too: there is one on a cluster, and it would go
        with this release.
        """
        own = {
            "enabled": True,
            "fullnameOverride": self.gang,
            "allowSecondRelease": True,
            "replicas": 0,
            "crd": {"install": False},
            "protection": dict(self._apart),
        }
        return {"preflight-gang": {**own, **values}}

    def namespace(self, **labels: str) -> str:
        """A new namespace; the webhooks' own cache of namespaces has to see it before it counts."""
        name = f"{self.name}-{len(self.namespaces)}"
        self.api.create_namespace({"metadata": {"name": name, "labels": labels}})
        self.namespaces.append(name)
        return name

    def shielded(self) -> str:
        """A namespace that this release protects, and no other release on the cluster."""
        return self.namespace(
            **{"preflight-e2e": self.name, "nvsentinel.nvidia.com/preflight": "disabled"}
        )

    def opted_in(self) -> str:
        """A namespace in which pods are injected by now."""
        name = self.namespace(
            **{"preflight-e2e": self.name, "nvsentinel.nvidia.com/preflight": "enabled"}
        )
        until(lambda: self.created(name) == ["preflight-dcgm-diag"], f"injection in {name}")
        return name

    def created(self, namespace: str) -> list[str] | str:
        """Names of the init containers that a GPU pod would get, or why it is refused."""
        try:
            pod = self.api.create_namespaced_pod(namespace, GPU_POD, dry_run="All")
        except client.ApiException as error:
            return str(json.loads(error.body or "{}").get("message"))
        return [container.name for container in pod.spec.init_containers or []]

    def secret(self) -> dict[str, bytes]:
        data = self.api.read_namespaced_secret(f"{self.name}-tls", self.name).data
        return {key: base64.b64decode(value) for key, value in data.items()}

    def bundles(self) -> list[bytes]:
        configuration = self.admission.read_mutating_webhook_configuration(self.name)
        return [base64.b64decode(w.client_config.ca_bundle or "") for w in configuration.webhooks]

    def published(self) -> bool:
        """Every entry trusts exactly what the Secret says."""
        return set(self.bundles()) == {self.secret()["ca.crt"]}

    def metrics(self) -> str:
        """What the release's one gang controller counts."""
        [pod] = self.api.list_namespaced_pod(
            self.name, label_selector="app.kubernetes.io/component=controller"
        ).items
        path = self.api.connect_get_namespaced_pod_proxy_with_path
        return str(
            path(
                f"{pod.metadata.name}:8080", self.name, "metrics", _preload_content=False
            ).data.decode()
        )

    def remove(self) -> None:
        """Take away the release and its namespaces. Nobody waits for its pods, which have nothing
        to answer any more.
        """
        self.release.uninstall(wait=False)
        for name in [self.name, *self.namespaces]:
            with suppress(client.ApiException):
                self.api.delete_namespace(name)
        for definition in DEFINITIONS:
            until(lambda: not self._leaving(definition), f"the end of {definition}")  # noqa: B023

    def _leaving(self, definition: str) -> bool:
        """A definition on its way out is in the way of the next release that brings it."""
        api: Any = client.ApiextensionsV1Api()
        with suppress(client.ApiException):
            return bool(api.read_custom_resource_definition(definition).metadata.deletion_timestamp)
        return False


class UsersNamespace:
    """A namespace in which somebody runs pods; ``grace``: seconds that a deleted one has, where it
    is not its own.
    """

    grace: int | None = None

    def __init__(self, api: Any, namespace: str) -> None:
        self.api, self.namespace = api, namespace

    def read(self, name: str) -> Any:
        return self.api.read_namespaced_pod(name, self.namespace)

    def phase(self, name: str) -> str:
        return str(self.read(name).status.phase)

    def runs(self, *names: str) -> None:
        """Wait until the pods run."""
        for name in names:
            until(
                lambda name=name: self.phase(name) == "Running",  # type: ignore[misc]
                f"pod {self.namespace}/{name} runs",
            )

    def bind(self, name: str, node: str) -> None:
        """Put a pod on ``node`` past the scheduler."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"metadata": {"name": name}, "target": target}
        self.api.create_namespaced_pod_binding(name, self.namespace, body, _preload_content=False)

    def pods(self) -> list[Any]:
        return list(self.api.list_namespaced_pod(self.namespace).items)

    def events(self, of: str = "") -> list[Any]:
        events = self.api.list_namespaced_event(self.namespace).items
        return [event for event in events if of in {"", event.involved_object.name}]

    def delete(self, *names: str) -> None:
        """Delete pods, and return when they are gone."""
        how = {} if self.grace is None else {"grace_period_seconds": self.grace}
        for name in names:
            with suppress(client.ApiException):
                self.api.delete_namespaced_pod(name, self.namespace, **how)
        until(
            lambda: not {*names} & {pod.metadata.name for pod in self.pods()},
            f"the end of {', '.join(names)}",
        )


def until(holds: Callable[[], bool], what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)


def last_tag() -> str:
    """The tag of the charts' last release, which may be of the version that they still have;
    empty: there is none in this clone."""
    listed = subprocess.run(["git", "-C", str(ROOT), "tag", "--list", "charts/v*", "--sort=-v:refname"], capture_output=True, text=True, check=True)  # fmt: skip
    return next(iter(listed.stdout.split()), "")


def earlier(folder: Path, tag: str) -> Path:
    """The umbrella chart of that tag, where it is empty of this tree, copied into ``folder``; its
    version there is 0.0.1, as it stays in this tree what it was until the next release.
    """
    chart = folder / "charts" / "preflight"
    if tag:
        archive = folder / "charts.tar"
        subprocess.run(["git", "-C", str(ROOT), "archive", "-o", str(archive), tag, "charts/preflight"], check=True)  # fmt: skip
        with tarfile.open(archive) as read:
            read.extractall(folder, filter="data")
    else:
        shutil.copytree(UMBRELLA, chart)
    for file in chart.rglob("Chart.yaml"):
        pattern = r'(?m)^( *(?:version|appVersion): "?)[\d.]+'
        file.write_text(re.sub(pattern, r"\g<1>0.0.1", file.read_text()))
    return chart
