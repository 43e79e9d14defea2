"""Where the API server is and how it is asked: by a kubeconfig, or as the pod's ServiceAccount."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .errors import KubeError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and the cluster's authority."""


@dataclass(frozen=True)
class Connection:
    """Where the API server is, how it proves itself, and how we do."""

    server: str
    verify: ssl.SSLContext
    token: str | None = None
    token_file: Path | None = None
    """Read again while we run: the kubelet replaces a ServiceAccount's token before its hour is over."""


def connection(environ: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT) -> Connection:
    """By ``KUBECONFIG`` when that is set, else as the pod's ServiceAccount.

    Raises:
        KubeError: when neither is there or what is there cannot be used; one sentence for a person.
    """
    if path := environ.get("KUBECONFIG"):
        return _from_kubeconfig(Path(path))
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubeError("KUBECONFIG is not set and this is not a pod; set KUBECONFIG to a kubeconfig file.")
    token_file = service_account / "token"
    try:
        token = token_file.read_text().strip()
        verify = ssl.create_default_context(cafile=str(service_account / "ca.crt"))
    except OSError as error:
        raise KubeError(
            f"{service_account}: token or ca.crt cannot be read ({error.strerror or error}); "
            "let the pod mount its ServiceAccount's token."
        ) from error
    return Connection(f"https://{f'[{host}]' if ':' in host else host}:{port}", verify, token, token_file)


def _from_kubeconfig(path: Path) -> Connection:
    def bad(what: str) -> KubeError:
        return KubeError(f"{path} (KUBECONFIG): {what}.")

    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        server = str(cluster["server"])
    except OSError as error:
        raise bad(f"cannot be read ({error.strerror or error}); set it to one kubeconfig file") from error
    except (yaml.YAMLError, KeyError, TypeError, StopIteration) as error:
        raise bad("is not a kubeconfig whose current-context names a cluster and a user; mend it") from error
    if "exec" in user or "auth-provider" in user:
        raise bad("its user logs in by a plug-in, which is not supported; use a token or a client certificate")
    try:
        verify = ssl.create_default_context(
            cafile=cluster.get("certificate-authority"),
            cadata=_decoded(cluster.get("certificate-authority-data")),
        )
        if cluster.get("insecure-skip-tls-verify"):
            verify.check_hostname, verify.verify_mode = False, ssl.CERT_NONE
        _load_client_certificate(verify, user)
        token_file = Path(user["tokenFile"]) if "tokenFile" in user and "token" not in user else None
        token = token_file.read_text().strip() if token_file else user.get("token")
    except (OSError, ValueError, binascii.Error) as error:
        raise bad(f"a certificate, key or token in it cannot be used ({error}); mend it") from error
    return Connection(server, verify, token, token_file)


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in items if item["name"] == name)


def _decoded(data: str | None) -> str | None:
    return base64.b64decode(data).decode() if data else None


def _load_client_certificate(context: ssl.SSLContext, user: dict[str, Any]) -> None:
    if "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user.get("client-key"))
    elif data := _decoded(user.get("client-certificate-data")):
        # ssl reads client certificates from files alone.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(data + "\n" + (_decoded(user.get("client-key-data")) or ""))
            file.flush()
            context.load_cert_chain(file.name)
