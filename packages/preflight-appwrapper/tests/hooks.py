"""Webhooks beside a real API server, for a test's own namespace."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import trustme
from lab import Lab
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.webhook.handler import MUTATE, VALIDATE, Reviewer
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.reviews import Application, Reviews
from preflight_kube.admission.server import HttpServer
from preflight_kube.admission.tls import Certificate
from preflight_kube.client.client import KubeError
from prometheus_client import CollectorRegistry

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@dataclass
class Hook:
    """``kind``: mutating or validating; ``name``: of its configuration, by which mutating ones are
    ordered.
    """

    kind: str
    name: str
    path: str
    application: Application
    operations: tuple[str, ...] = ("CREATE",)


@asynccontextmanager
async def hooked(lab: Lab, home: Path, hooks: Sequence[Hook]) -> AsyncIterator[None]:
    """Each of them is configured, but the API server takes that up some moments later."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    home.mkdir()
    issued.private_key_pem.write_to_path(home / "tls.key")
    for pem in issued.cert_chain_pems:
        pem.write_to_path(home / "tls.crt", append=True)
    metrics = AdmissionMetrics("appwrapper", CollectorRegistry())
    reviews = Reviews({one.path: one.application for one in hooks}, metrics)
    server = HttpServer(
        "admission", reviews, metrics, Certificate(home, "a test"), host="127.0.0.1", port=0
    )
    bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    made: list[str] = []
    async with anyio.create_task_group() as group:
        group.start_soon(server.run)
        while server.unready():
            await anyio.sleep(0.01)
        try:
            for one in hooks:
                kind = f"{one.kind.capitalize()}WebhookConfiguration"
                address = {"url": f"https://127.0.0.1:{server.port}{one.path}", "caBundle": bundle}
                body = _configuration(lab, kind, one, address)
                plural = f"{_ADMISSION}/{kind.lower()}s"
                await lab.client.create(plural, body)
                made.append(f"{plural}/{one.name}")
            yield
        finally:
            with anyio.CancelScope(shield=True):
                for path in made:
                    await lab.client.delete(path)
            group.cancel_scope.cancel()


def _configuration(lab: Lab, kind: str, hook: Hook, address: dict[str, str]) -> dict[str, Any]:
    rule = {
        "apiGroups": ["workload.codeflare.dev"],
        "apiVersions": ["v1beta2"],
        "resources": ["appwrappers"],
    }
    entry = {
        "name": "appwrapper.preflight.nvsentinel.nvidia.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "clientConfig": address,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": lab.namespace}},
        "rules": [{**rule, "operations": list(hook.operations)}],
        **({"reinvocationPolicy": "IfNeeded"} if hook.kind == "mutating" else {}),
    }
    about = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": hook.name},
    }
    return {**about, "webhooks": [entry]}


@asynccontextmanager
async def serving(
    lab: Lab, home: Path, rules: WrapperRules | None = None, more: Sequence[Hook] = ()
) -> AsyncIterator[Reviewer]:
    """Our webhooks, and ``more`` beside them, once they are called."""
    reviewer = Reviewer(lab.client, rules or WrapperRules())
    name = f"appwrapper-preflight-{lab.namespace}"
    ours = [
        Hook("mutating", name, MUTATE, reviewer.mutate, ("CREATE", "UPDATE")),
        Hook("validating", name, VALIDATE, reviewer.validate, ("CREATE", "UPDATE")),
    ]
    async with hooked(lab, home, [*more, *ours]):
        await denied(lab)
        yield reviewer


async def denied(lab: Lab) -> None:
    """Wait until a wrapper of nothing is denied, and its author written into it."""
    body = {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "probe"},
    }

    async def called() -> bool:
        try:
            await lab.client.create(
                f"{lab.wrappers()}?dryRun=All", {**body, "spec": {"components": []}}
            )
        except KubeError as error:
            return error.status == 403
        return False

    await lab.until(called, "the webhooks")
