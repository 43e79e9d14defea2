"""One HTTPS connection to the API server, from inside the cluster or by a kubeconfig. Knows nothing of Preflight.

Small on purpose: commands that read and write single objects need neither a cache nor the official client's 190 MB, and what is
followed (:mod:`.policies`) or asked for (:mod:`.lookups`) while admissions wait has rules of its own.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and the cluster's authority."""

Object = dict[str, Any]
"""A Kubernetes object as it travels: decoded JSON."""


class KubeError(Exception):
    """The cluster cannot be reached or refuses; the message is one sentence for a person."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NoCluster(KubeError):
    """There is no API server to ask: this is no pod, and no kubeconfig is named."""


class Conflict(KubeError):
    """Somebody else wrote the object first: read it again."""


@dataclass(frozen=True)
class Connection:
    """Where the API server is and how it is asked."""

    server: str
    verify: ssl.SSLContext
    token: str | None = None


def connection(environ: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT) -> Connection:
    """By ``KUBECONFIG`` when that is set, else as the pod's ServiceAccount.

    Raises:
        NoCluster: when neither is there.
        KubeError: when what is there cannot be used.
    """
    if path := environ.get("KUBECONFIG"):
        return _from_kubeconfig(Path(path))
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise NoCluster("KUBECONFIG is not set and this is not a pod; set KUBECONFIG to a kubeconfig file.")
    try:
        token = (service_account / "token").read_text().strip()
        verify = ssl.create_default_context(cafile=str(service_account / "ca.crt"))
    except OSError as error:
        raise KubeError(
            f"{service_account}: token or ca.crt cannot be read ({error.strerror or error}); "
            "let the pod mount its ServiceAccount's token."
        ) from error
    return Connection(f"https://{f'[{host}]' if ':' in host else host}:{port}", verify, token)


class Client:
    """Reads and writes single objects by path. Use as a context manager; not shared between threads."""

    def __init__(self, target: Connection, *, timeout: float = 10) -> None:
        headers = {"User-Agent": "preflight-webhook"}  # the name under which the API server records our writes
        if target.token:
            headers["Authorization"] = f"Bearer {target.token}"
        self.target = target
        # Proxies of the environment are for the world outside, not for the cluster's own API server.
        self._http = httpx.Client(
            base_url=target.server, verify=target.verify, headers=headers, timeout=timeout, trust_env=False
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str) -> Object | None:
        """The object at ``path``, or None where there is none."""
        try:
            return self._send("GET", path)
        except KubeError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def create(self, path: str, body: Object) -> Object:
        """Create ``body`` in the collection ``path``; Conflict where it exists already."""
        return self._send("POST", path, body)

    def replace(self, path: str, body: Object) -> Object:
        """Replace the object at ``path``; Conflict where its resourceVersion is no longer the one in ``body``."""
        return self._send("PUT", path, body)

    def merge(self, path: str, body: Object) -> Object:
        """Strategic merge patch: lists with names merge by name. A resourceVersion in ``body`` must still hold."""
        return self._send("PATCH", path, body, "application/strategic-merge-patch+json")

    def _send(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        try:
            answer = self._http.request(method, path, json=body, headers={"Content-Type": kind} if body else {})
        except httpx.HTTPError as error:
            raise KubeError(
                f"{self.target.server}: no answer to {method} {path} ({error}); is it reachable?"
            ) from error
        if answer.is_success:
            return cast(Object, answer.json())
        try:
            said = str(answer.json()["message"])
        except (ValueError, KeyError, TypeError):
            said = answer.text[:200]
        sentence = f"{method} {path}: the API server answered {answer.status_code} ({said})"
        if answer.status_code == httpx.codes.CONFLICT:
            raise Conflict(f"{sentence}.", answer.status_code)
        raise KubeError(f"{sentence}.", answer.status_code)


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
        token = user.get("token") or (Path(user["tokenFile"]).read_text().strip() if "tokenFile" in user else None)
    except (OSError, ValueError, binascii.Error) as error:
        raise bad(f"a certificate, key or token in it cannot be used ({error}); mend it") from error
    return Connection(server, verify, token)


def _named(items: list[Object], name: str) -> Object:
    return next(item for item in items if item["name"] == name)


def _decoded(data: str | None) -> str | None:
    return base64.b64decode(data).decode() if data else None


def _load_client_certificate(context: ssl.SSLContext, user: Object) -> None:
    if "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user.get("client-key"))
    elif data := _decoded(user.get("client-certificate-data")):
        # ssl reads client certificates from files alone.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(data + "\n" + (_decoded(user.get("client-key-data")) or ""))
            file.flush()
            context.load_cert_chain(file.name)
