"""A real API server with the charts' admission policies in force, and what users ask of it.

No webhook answers and nothing runs: pods are written as the webhook leaves them. Whoever asks is
impersonated by the administrator.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from preflight_testing.apiserver import ApiServer
from preflight_testing.fields import Impersonator
from preflight_testing.helm import Object, Release, Values

from .impersonation import CHECKED, GANG, RECORD, ROSTER

RELEASE = "preflight"
INJECTOR, GANG_CHART = "preflight-injector", "preflight-gang"
BOTH = (INJECTOR, GANG_CHART)
TENANT = "tenant"
CONTROLLER = f"system:serviceaccount:{RELEASE}:preflight-gang"
CERTS = f"system:serviceaccount:{RELEASE}:preflight-injector-certs"
TRAINING, LISTED, WEB, OFF, SYSTEM = "training", "listed", "web", "off", "kube-system"
"""Namespaces: labelled to be checked, listed, of nobody's interest, switched off, the cluster's
own.
"""
OPT_IN = "nvsentinel.nvidia.com/preflight"
LABELS: Mapping[str, dict[str, str]] = {
    TRAINING: {OPT_IN: "enabled"},
    LISTED: {},
    WEB: {},
    OFF: {OPT_IN: "disabled"},
    SYSTEM: {OPT_IN: "enabled"},
}
SOCKET = {
    "name": "preflight-connector-socket",
    "hostPath": {"path": "/var/run/nvsentinel", "type": "DirectoryOrCreate"},
}


def checked_pod(name: str = "member", **spec: Any) -> Object:
    """A member of a gang as the webhook leaves it."""
    check = {
        "name": "preflight-dcgm-diag",
        "image": "preflight-dcgm-diag:1",
        "env": [{"name": "GATE", "value": "enforce"}],
        "volumeMounts": [
            {
                "name": "preflight-connector-socket",
                "mountPath": "/var/run/nvsentinel",
                "readOnly": True,
            }
        ],
    }
    return {
        "metadata": {
            "name": name,
            "labels": {"app": "train", CHECKED: "true", GANG: "0123456789abcdef"},
            "annotations": {"team": "vision", GANG: "{}", ROSTER: ""},
        },
        "spec": {
            "initContainers": [{"name": "fetch", "image": "fetch:1"}, check],
            "containers": [{"name": "train", "image": "train:1"}],
            "volumes": [SOCKET, {"name": "data", "emptyDir": {}}],
            **spec,
        },
    }


class PolicyServer:
    """``charts``: the keys of the umbrella that are switched on. ``server`` must let everybody do
    everything.
    """

    def __init__(self, server: ApiServer, home: Path, *charts: str, **more: Any) -> None:
        self.server, self.charts = server, charts
        self.release = Release(RELEASE, server.kubeconfig(home / "kubeconfig"))
        self.values: Values = {chart: {"enabled": True, **more.get(chart, {})} for chart in charts}
        if "preflight-injector" in self.values:
            self.values["preflight-injector"] |= {"namespaces": [LISTED]}
        self._numbers = 0

    def open(self) -> None:
        """Install, without anybody who would answer for the webhook, and wait until every policy is
        in force. Raises ChartError.
        """
        self.release.install(self.values, wait=False)
        self.ask(
            "DELETE",
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/preflight-injector",
            user="",
        )
        for name, labels in LABELS.items():
            body = {"metadata": {"name": name, "labels": labels}}
            if self.ask("POST", "/api/v1/namespaces", body, user=""):
                self.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}}, user="")
        for policy, attempt in self._attempts().items():
            self.until(partial(_refuses, f"-{policy}'", attempt), f"policy {policy} is in force")

    def close(self) -> None:
        """Uninstall, and wait until nothing is refused any more."""
        self.release.uninstall(wait=False)
        for policy, attempt in self._attempts().items():
            self.until(
                lambda attempt=attempt: "ValidatingAdmissionPolicy" not in attempt(),  # type: ignore[misc]
                f"policy {policy} is gone",
            )

    def until(self, holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
            time.sleep(0.1)

    # --- what people ask for; each answers what the API server said against it, or nothing

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = TENANT,
        groups: tuple[str, ...] = (),
        dry_run: bool = False,
    ) -> str:
        query = ("&" if "?" in path else "?") + "dryRun=All" if dry_run else ""
        kubelets = ("system:nodes",) if user.startswith("system:node:") else ()
        who: Any = {"user": user, "groups": (*groups, *kubelets)}
        answer = Impersonator(self.server).ask(method, path + query, body, **who)
        return answer.words or (f"status {answer.status}" if answer.status >= 400 else "")

    def create(self, namespace: str, pod: Object, **options: Any) -> str:
        """Try to create a pod; nothing is stored."""
        return self.ask(
            "POST", f"/api/v1/namespaces/{namespace}/pods", pod, dry_run=True, **options
        )

    def stored(self, namespace: str = TRAINING, pod: Object | None = None) -> str:
        """The path of a new pod (or of the one given, under a new name)."""
        self._numbers += 1
        body = pod or checked_pod()
        name = f"{body['metadata']['name']}-{self._numbers}-{int(time.time() * 1000)}"
        message = self.ask(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods",
            {**body, "metadata": {**body["metadata"], "name": name}},
        )
        assert message == "", message
        return f"/api/v1/namespaces/{namespace}/pods/{name}"

    def patch(self, path: str, patch: Any, **options: Any) -> str:
        """A list is a JSON patch, a map a strategic one."""
        return self.ask("PATCH", path, patch, **options)

    def debug(self, pod: str, container: Mapping[str, Any], **options: Any) -> str:
        """Add an ephemeral container."""
        body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "x", **container}]}}
        return self.patch(f"{pod}/ephemeralcontainers", body, **options)

    def enter(self, pod: str, verb: str = "exec", **query: str) -> str:
        """Exec or attach; beyond admission there is no node to connect to, and the API server says
        so.
        """
        return self.ask(
            "GET",
            f"{pod}/{verb}?" + urllib.parse.urlencode({"command": "sh", "stdout": "true", **query}),
        )

    def configmap(self, namespace: str, body: Object, **options: Any) -> str:
        return self.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", body, **options)

    def _attempts(self) -> dict[str, Callable[[], str]]:
        """One thing that each policy refuses."""
        forged = {"metadata": {"name": "forged", "labels": RECORD}}
        attempts: dict[str, Callable[[], str]] = {}
        if "preflight-injector" in self.charts:
            pod = f"/api/v1/namespaces/{TRAINING}/pods/probe"
            self.ask("POST", f"/api/v1/namespaces/{TRAINING}/pods", checked_pod("probe"), user="")
            sidecar = {"name": "side", "image": "x", "restartPolicy": "Always"}
            check = {"name": "preflight-dcgm-diag", "image": "x"}
            beside = checked_pod(shareProcessNamespace=True, initContainers=[sidecar, check])
            secrets = f"/api/v1/namespaces/{RELEASE}/secrets"
            configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
            attempts |= {
                "stamps": lambda: self.create(WEB, checked_pod()),
                "connector-folder": lambda: self.create(TRAINING, mounting("/")),
                "reserved": lambda: self.patch(
                    pod, {"metadata": {"labels": {CHECKED: "false"}}}, dry_run=True
                ),
                "exec": lambda: self.enter(pod, container="preflight-dcgm-diag"),
                "sidecars": lambda: self.create(TRAINING, beside),
                "certs-secrets": lambda: self.ask(
                    "POST", secrets, {"metadata": {"name": "x"}}, user=CERTS, dry_run=True
                ),
                "certs-mutatingwebhookconfigurations": lambda: self.ask(
                    "POST", configurations, {"metadata": {"name": "x"}}, user=CERTS, dry_run=True
                ),
            }
        if "preflight-gang" in self.charts:
            foreign = {"metadata": {"name": "x"}}
            pods = f"/api/v1/namespaces/{WEB}/pods"
            self.ask(
                "POST",
                pods,
                {
                    "metadata": {"name": "probe"},
                    "spec": {"containers": [{"name": "a", "image": "x"}]},
                },
                user="",
            )
            attempts |= {
                "records": lambda: self.configmap(WEB, forged, dry_run=True),
                "controller-configmaps": lambda: self.configmap(
                    WEB, foreign, user=CONTROLLER, dry_run=True
                ),
                "controller-pods": lambda: self.patch(
                    f"{pods}/probe",
                    {"metadata": {"labels": {"x": "y"}}},
                    user=CONTROLLER,
                    dry_run=True,
                ),
            }
        return attempts


def _refuses(policy: str, attempt: Callable[[], str]) -> bool:
    return policy in attempt()


def plain_pod(
    labels: Object | None = None, annotations: Object | None = None, **spec: Any
) -> Object:
    """A pod that no webhook has seen."""
    return {
        "metadata": {"name": "plain", "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "train", "image": "train:1"}], **spec},
    }


def mounting(path: str, **metadata: Any) -> Object:
    """A pod with a hostPath volume."""
    return {
        "metadata": {"name": "mounts", **metadata},
        "spec": {
            "containers": [{"name": "a", "image": "x"}],
            "volumes": [{"name": "host", "hostPath": {"path": path}}],
        },
    }
