"""The webhook behind HTTPS, registered at a real API server for the namespace of one test."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import trustme
from live import Space, followed
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.server import HttpServer
from preflight_kube.admission.tls import Certificate
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.informers import AdmissionInformers
from preflight_mnnvl.metrics import Metrics
from preflight_mnnvl.webhook.handler import PODCLIQUES, SETS, Webhook


class Registered:
    """``client``: the webhook's own, which counts what it asks. ``url`` and ``trusted``: where it
    answers, and how it is believed.
    """

    def __init__(
        self,
        webhook: Webhook,
        informers: AdmissionInformers,
        metrics: Metrics,
        client: Client,
        url: str,
        trusted: ssl.SSLContext,
    ) -> None:
        self.webhook, self.informers = webhook, informers
        self.metrics, self.client, self.url, self.trusted = metrics, client, url, trusted

    def counted(self, kind: str, result: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "mnnvl_admission_total", {"kind": kind, "result": result}
            )
            or 0.0
        )


@asynccontextmanager
async def registered(
    space: Space, config: Config, folder: Path, target: Connection | None = None
) -> AsyncIterator[Registered]:
    """A webhook that has read the cluster, and both its configurations."""
    bundle, trusted = certified(folder)
    metrics = Metrics()
    counted = AdmissionMetrics("mnnvl", metrics.registry)
    async with Client(target or space.target, agent="preflight-mnnvl") as client:
        informers = AdmissionInformers(client, config)
        webhook = Webhook(client, config, metrics, informers)
        reviews = webhook.reviews(counted, 5.0)
        server = HttpServer(
            "admission", reviews, counted, Certificate(folder, "tests"), host="127.0.0.1", port=0
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            await followed(tasks, informers)
            while server.unready():
                await anyio.sleep(0.02)
            url = f"https://127.0.0.1:{server.port}"

            async def called(kind: str) -> float:
                return _counted(metrics, kind)

            try:
                async with configured(space, url, bundle, called):
                    yield Registered(webhook, informers, metrics, client, url, trusted)
            finally:
                tasks.cancel_scope.cancel()


def certified(folder: Path) -> tuple[str, ssl.SSLContext]:
    """A new pair in ``folder``: its authority as a configuration names it, and who trusts it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    folder.mkdir()
    (folder / "tls.key").write_bytes(issued.private_key_pem.bytes())
    (folder / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    return base64.b64encode(authority.cert_pem.bytes()).decode(), trusted


@asynccontextmanager
async def configured(
    space: Space,
    url: str,
    bundle: str,
    called: Callable[[str], Awaitable[float]],
) -> AsyncIterator[None]:
    """Both configurations of a webhook at ``url`` in force; ``called``: how often it has been asked
    about a kind.
    """
    bodies = [
        _configuration("Mutating", "podcliques", PODCLIQUES, ["CREATE", "UPDATE"]),
        _configuration("Validating", "podcliquesets", SETS, ["CREATE", "UPDATE"]),
    ]
    made = []
    for body in bodies:
        (one,) = body["webhooks"]
        one["clientConfig"] = {"url": url + one.pop("path"), "caBundle": bundle}
        one["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": space.namespace}}
        body["metadata"] = {"name": f"{body['kind'].lower()}-{space.namespace}"}
        path = f"/apis/admissionregistration.k8s.io/v1/{body['kind'].lower()}s"
        await space.client.create(path, body)
        made.append(f"{path}/{body['metadata']['name']}")
    try:
        await _in_force(space, called)
        yield
    finally:
        with anyio.CancelScope(shield=True):
            for path in made:
                await space.client.delete(path)


def _configuration(kind: str, plural: str, path: str, operations: list[str]) -> dict[str, Any]:
    hook = {
        "name": f"{plural}.mnnvl.nvsentinel.nvidia.com",
        "path": path,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "failurePolicy": "Fail",
        "rules": [
            {
                "apiGroups": ["grove.io"],
                "apiVersions": ["v1alpha1"],
                "operations": operations,
                "resources": [plural],
            }
        ],
    }
    if kind == "Mutating":
        hook["reinvocationPolicy"] = "IfNeeded"
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "webhooks": [hook],
    }


async def _in_force(space: Space, called: Callable[[str], Awaitable[float]]) -> None:
    """An API server takes a moment to follow a configuration: wait until both are called."""
    pod = {"containers": [{"name": "a", "image": "x"}]}
    set_ = {
        "apiVersion": "grove.io/v1alpha1",
        "kind": "PodCliqueSet",
        "metadata": {"name": "probe"},
        "spec": {"replicas": 1, "template": {"cliques": [{"name": "w", "spec": {"podSpec": pod}}]}},
    }
    clique = {
        "apiVersion": "grove.io/v1alpha1",
        "kind": "PodClique",
        "metadata": {"name": "probe"},
        "spec": {"podSpec": pod},
    }
    for plural, body in (("podcliquesets", set_), ("podcliques", clique)):
        while not await called(str(body["kind"])):
            await space.dry_run(plural, body)
            await anyio.sleep(0.05)


def _counted(metrics: Metrics, kind: str) -> float:
    return sum(
        one.value
        for found in metrics.admissions.collect()
        for one in found.samples
        if one.labels["kind"] == kind
    )
