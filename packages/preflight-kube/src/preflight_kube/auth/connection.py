"""Where the API server is and how it is asked: by a kubeconfig, or as the pod's ServiceAccount."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from preflight_kube.auth import credentials
from preflight_kube.auth.kubeconfig import KubeconfigError
from preflight_kube.errors import BadAccess, NoCluster
from preflight_kube.files import yaml_document as document

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and the cluster's authority."""


@dataclass(frozen=True)
class Connection:
    """Where the API server is, how it proves itself, and how we do."""

    server: str
    verify: ssl.SSLContext
    token: str | None = None
    token_file: Path | None = None
    """Read again while we run: the kubelet replaces a ServiceAccount's token before its hour is
    over.
    """
    files: tuple[Path, ...] = ()
    """Certificates and keys that ``verify`` was made of; what they hold may be replaced, too."""
    again: Callable[[], Connection] | None = None
    """Make all of it anew; may take its time. Raises KubeError."""
    expires: float | None = None
    """When (seconds since the epoch) what a plug-in said is no longer good."""
    plugin: bool = False
    """Whether a plug-in said who we are; it may be asked again when the server does
    not believe it.
    """

    def contents(self) -> tuple[bytes, ...]:
        """What is in ``files`` now. Raises OSError."""
        return tuple(path.read_bytes() for path in self.files)


def connection(
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
    home: Path | None = None,
) -> Connection:
    """By ``KUBECONFIG`` when that is set, else as the pod's ServiceAccount, else by kubectl's own
    kubeconfig below ``home``.

    People's commands give ``home``; a service uses only what it is given.

    Raises:
        NoCluster: none of them is there.
        BadAccess: what is there cannot be used; one sentence for a person.
    """
    if listed := environ.get("KUBECONFIG"):
        return _from_kubeconfig(listed, environ, "KUBECONFIG")
    host, port = (
        environ.get("KUBERNETES_SERVICE_HOST"),
        environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host:
        if home is not None and (own := home / credentials.DEFAULT).exists():
            return _from_kubeconfig(str(own), environ, "the default")
        beside = "" if home is None else f", there is no {home / credentials.DEFAULT},"
        raise NoCluster(
            f"KUBECONFIG is not set{beside} and this is not a pod; set KUBECONFIG to a kubeconfig file."
        )
    token_file = service_account / "token"
    try:
        token = token_file.read_text().strip()
        verify = ssl.create_default_context(cafile=str(service_account / "ca.crt"))
    except (OSError, ValueError) as error:
        raise BadAccess(
            f"{service_account}: token or ca.crt cannot be read ({getattr(error, 'strerror', None) or error}); "
            "let the pod mount its ServiceAccount's token."
        ) from error
    return Connection(
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        verify,
        token,
        token_file,
        (service_account / "ca.crt",),
        partial(connection, environ, service_account),
    )


def _from_kubeconfig(listed: str, environ: Mapping[str, str], named: str) -> Connection:
    try:
        found = credentials.access(listed, _yaml, environ, named=named)
    except KubeconfigError as error:
        raise BadAccess(str(error)) from None
    again = partial(_from_kubeconfig, listed, environ, named)
    return Connection(
        found.server,
        found.verify,
        found.token,
        found.token_file,
        found.files,
        again,
        found.expires,
        found.plugin,
    )


def _yaml(text: str) -> Any:
    try:
        return document.read(text, document.MANIFEST)
    except document.DocumentError as error:
        raise ValueError(" ".join(error.problems).rstrip(".")) from None
