"""A webhook on this machine, as a real API server asks it: its certificate,
and its registration.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import trustme
from preflight_testing.apiserver import ApiServer


def write_certificate(folder: Path) -> str:
    """tls.crt and tls.key for 127.0.0.1 into ``folder``; the CA bundle as a clientConfig has it."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(folder / "tls.key")
    leaf.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    return base64.b64encode(authority.cert_pem.bytes()).decode()


def register(server: ApiServer, name: str, url: str, bundle: str, **more: Any) -> None:
    """As the chart registers it: asked about every new pod, Fail, ten seconds."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["pods"],
        "operations": ["CREATE"],
    }
    entry = {
        "name": f"{name}.nvsentinel.nvidia.com",
        "clientConfig": {"url": url, "caBundle": bundle},
        "rules": [rule],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "admissionReviewVersions": ["v1"],
        "reinvocationPolicy": "IfNeeded",
        "timeoutSeconds": 10,
        **more,
    }
    api = "admissionregistration.k8s.io/v1"
    configuration = {
        "apiVersion": api,
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
    }
    server.call(
        "POST", f"/apis/{api}/mutatingwebhookconfigurations", configuration | {"webhooks": [entry]}
    )
