"""Where the API server is and how it is asked: by a kubeconfig, or as the pod's ServiceAccount.

A kubeconfig's user proves who he is by certificates, a token, or what a plug-in of his says
(client.authentication.k8s.io). A plug-in's own words go where ours go, to standard error; what it
answers is one ExecCredential on its standard output.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from preflight_kube.auth.kubeconfig import KubeconfigContext, KubeconfigError, chosen
from preflight_kube.errors import BadAccess, NoCluster
from preflight_kube.files import yaml_document as document
from preflight_kube.text import one_line

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and the cluster's authority."""
DEFAULT: Final = Path(".kube", "config")
"""Below the home: kubectl's own, for people's commands where nothing is set."""
VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
PATIENCE: Final = 60.0
"""Seconds that a plug-in may take which asks nobody anything."""
EARLY: Final = 10.0
"""Seconds before its end in which a credential is not used any more: a request takes some time to
arrive.
"""
_EXTENSION: Final = "client.authentication.k8s.io/exec"


@dataclass(frozen=True)
class Connection:
    """Where the API server is, how it proves itself, and how we do."""

    server: str
    verify: ssl.SSLContext
    token: str | None = None
    files: tuple[Path, ...] = ()
    """What of this was read from, and is read again when it has changed: a kubelet replaces a
    ServiceAccount's token before its hour is over.
    """
    again: Callable[[], Connection] | None = None
    """Make all of it anew, where files have changed or the server does not believe us; may take its
    time. Raises KubeError.
    """
    server_name: str | None = None
    """Whose certificate the server has to show, where not that of the host in ``server``."""
    expires: float | None = None
    """When (seconds since the epoch) what a plug-in said is no longer good."""

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
        return by_kubeconfig(listed, environ)
    host = environ.get("KUBERNETES_SERVICE_HOST")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        if home is not None and (own := home / DEFAULT).exists():
            return by_kubeconfig(str(own), environ, named="the default")
        beside = "" if home is None else f", there is no {home / DEFAULT},"
        raise NoCluster(
            f"KUBECONFIG is not set{beside} and this is not a pod; set KUBECONFIG to a kubeconfig file."
        )
    files = service_account / "token", service_account / "ca.crt"
    try:
        token = files[0].read_text().strip()
        verify = _trusting(cafile=str(files[1]))
    except (OSError, ValueError) as error:
        raise BadAccess(
            f"{service_account}: token or ca.crt cannot be read ({getattr(error, 'strerror', None) or error}); "
            "let the pod mount its ServiceAccount's token."
        ) from error
    return Connection(
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        verify,
        token,
        files,
        partial(connection, environ, service_account),
    )


def _trusting(cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """Trust what Go's clients do: every certificate of a bundle, an intermediate authority's alone
    too, and authorities without key identifiers, as EKS has them (Python 3.13 wants some).
    """
    verify = ssl.create_default_context(cafile=cafile, cadata=cadata)
    verify.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    verify.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return verify


class _Credential(NamedTuple):
    token: str | None
    certificate: str | None
    key: str | None
    expires: float | None


def by_kubeconfig(
    listed: str, environ: Mapping[str, str], *, named: str = "KUBECONFIG"
) -> Connection:
    """What the kubeconfig files in ``listed`` (a path, or several as in ``KUBECONFIG``) say. Raises
    BadAccess, a sentence that begins with ``listed``.
    """
    try:
        context = chosen(_documents(listed))
        return _connection(context, environ, partial(by_kubeconfig, listed, environ, named=named))
    except KubeconfigError as error:
        raise BadAccess(f"{listed} ({named}): {error}.") from None


def _documents(listed: str) -> list[tuple[Path, Any]]:
    documents = []
    files = dict.fromkeys(Path(part) for part in listed.split(os.pathsep) if part)
    for path in files:
        try:
            documents.append((path, document.read(path.read_text(), document.MANIFEST)))
        except FileNotFoundError as error:  # of several files kubectl takes those that are there
            if len(files) == 1:
                raise KubeconfigError(
                    f"cannot be read ({error.strerror}); name a kubeconfig file"
                ) from None
        except OSError as error:
            raise KubeconfigError(
                f"{path} cannot be read ({error.strerror or error}); name kubeconfig files"
            ) from None
        except (document.DocumentError, UnicodeDecodeError) as error:
            why = " ".join(getattr(error, "problems", [str(error)])).rstrip(".")
            raise KubeconfigError(
                f"{path} is not YAML ({one_line(why, 200)}); correct it"
            ) from None
    if not documents:
        raise KubeconfigError("none of its files exists; name a kubeconfig file")
    return documents


def _connection(
    context: KubeconfigContext, environ: Mapping[str, str], again: Callable[[], Connection]
) -> Connection:
    cluster, user = context.cluster, context.user
    if "auth-provider" in user:
        raise KubeconfigError(
            "its user has an auth-provider, which is not known here; use exec, a token or a certificate"
        )
    if cluster.get("proxy-url"):
        raise KubeconfigError(
            "its cluster has a proxy-url, and no proxy is used here; use a context whose server is reached directly"
        )
    if any(key == "as" or key.startswith("as-") for key, value in user.items() if value):
        raise KubeconfigError(
            "its user acts as another (as), which is not known here; use a user with rights of its own"
        )
    server = str(cluster["server"])
    plugin = user.get("exec") if not user.get("token") and not user.get("tokenFile") else None
    credential = _asked(plugin, context, environ) if plugin is not None else None
    try:
        verify = _trusting(
            cafile=cluster.get("certificate-authority"),
            cadata=_decoded(cluster.get("certificate-authority-data")),
        )
        if cluster.get("insecure-skip-tls-verify"):
            verify.check_hostname, verify.verify_mode = False, ssl.CERT_NONE
        if credential is not None and credential.certificate:
            _load(verify, credential.certificate, credential.key)
        elif certificate := _pem(user, "client-certificate"):
            _load(verify, certificate, _pem(user, "client-key"))
        token = user.get("token") or None
        token_file = Path(user["tokenFile"]) if user.get("tokenFile") else None
        if token_file is not None and (token is None or token_file.exists()):
            token = token_file.read_text().strip()
    except (OSError, ValueError, TypeError, binascii.Error) as error:
        raise KubeconfigError(
            f"a certificate, key or token in it cannot be used ({error}); correct it"
        ) from None
    named = (
        cluster.get("certificate-authority"),
        *(user.get(name) for name in ("client-certificate", "client-key", "tokenFile")),
    )
    return Connection(
        server,
        verify,
        credential.token or token if credential is not None else token,
        tuple(Path(name) for name in named if name),
        again,
        cluster.get("tls-server-name") or None,
        credential.expires if credential is not None else None,
    )


def _decoded(data: str | None) -> str | None:
    return base64.b64decode(data).decode() if data else None


def _pem(user: Mapping[str, Any], name: str) -> str | None:
    """A certificate or key, which stands in the kubeconfig or in a file; each by itself."""
    if data := user.get(f"{name}-data"):
        return _decoded(data)
    return Path(user[name]).read_text() if user.get(name) else None


def _load(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    # ssl reads client certificates from files alone.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(certificate + "\n" + (key or ""))
        file.flush()
        context.load_cert_chain(file.name)


# --- plug-ins


def _asked(plugin: Any, context: KubeconfigContext, environ: Mapping[str, str]) -> _Credential:
    """What the user's plug-in answers. Raises :class:`~.kubeconfig.KubeconfigError`."""
    if (
        not isinstance(plugin, dict)
        or not isinstance(plugin.get("command"), str)
        or not plugin["command"]
    ):
        raise KubeconfigError("its user's exec has no command; set the plug-in's")
    version = plugin.get("apiVersion")
    if version not in VERSIONS:
        has = f"apiVersion {version!r}" if version else "no apiVersion"
        raise KubeconfigError(f"its user's exec has {has}; known are {' and '.join(VERSIONS)}")
    terminal = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
    talks = terminal and plugin.get("interactiveMode") != "Never"
    spec: dict[str, Any] = {"interactive": talks}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = _cluster(context.cluster)
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    own = {
        str(variable["name"]): str(variable.get("value", ""))
        for variable in plugin.get("env") or ()
        if isinstance(variable, dict)
    }
    argv = [
        _command(plugin, context.folder, environ),
        *[str(argument) for argument in plugin.get("args") or ()],
    ]
    try:
        done = subprocess.run(
            argv,
            stdin=None if talks else subprocess.DEVNULL,
            # Its standard error is this process's: what it says to people reaches them.
            stdout=subprocess.PIPE,
            env={**environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            timeout=None if talks else PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KubeconfigError(
            f"its plug-in {argv[0]} did not end within {PATIENCE:g} s; run it by hand to see why"
        ) from None
    except OSError as error:
        raise KubeconfigError(
            f"its plug-in {argv[0]} cannot be run ({error.strerror or error}){_hint(plugin)}"
        ) from None
    if done.returncode:
        output = one_line(done.stdout.decode(errors="replace"), 200)
        more = f' and printed "{output}"' if output else ""
        raise KubeconfigError(
            f"its plug-in {argv[0]} ended with exit status {done.returncode}{more}; what it said is above"
        )
    return _answer(argv[0], done.stdout, str(version))


def _command(plugin: Mapping[str, Any], folder: Path, environ: Mapping[str, str]) -> str:
    """A bare name is looked for on PATH; a path is relative to the kubeconfig, and made whole:
    without a folder in it, it would be looked for on PATH again.
    """
    command = str(plugin["command"])
    if os.sep in command:
        return str(folder.absolute() / command)
    executable = shutil.which(command, path=environ.get("PATH"))
    if executable is None:
        raise KubeconfigError(f"its plug-in {command} is not on PATH{_hint(plugin)}")
    return executable


def _hint(plugin: Mapping[str, Any]) -> str:
    hint = one_line(str(plugin.get("installHint") or ""), 400)
    return f"; {hint.rstrip('.')}" if hint else "; install it"


def _cluster(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """What a plug-in that asks for it gets about the cluster."""
    info = {
        key: cluster[key]
        for key in (
            "server",
            "tls-server-name",
            "insecure-skip-tls-verify",
            "certificate-authority-data",
        )
        if cluster.get(key)
    }
    if (file := cluster.get("certificate-authority")) and "certificate-authority-data" not in info:
        try:
            info["certificate-authority-data"] = base64.b64encode(Path(file).read_bytes()).decode()
        except OSError as error:
            raise KubeconfigError(
                f"{file} cannot be read ({error.strerror or error}); correct it"
            ) from None
    for extension in cluster.get("extensions") or ():
        if isinstance(extension, dict) and extension.get("name") == _EXTENSION:
            info["config"] = extension.get("extension")
    return info


def _answer(command: str, output: bytes, version: str) -> _Credential:
    def bad(why: str) -> KubeconfigError:
        return KubeconfigError(f"its plug-in {command} {why}")

    try:
        answer = json.loads(output)
    except ValueError:
        text = one_line(output.decode(errors="replace"), 120)
        raise bad(
            f'printed no ExecCredential as JSON but "{text}"; run it by hand to see why'
        ) from None
    if not isinstance(answer, dict) or answer.get("kind") != "ExecCredential":  # a token is in it
        raise bad("printed no ExecCredential; run it by hand to see why")
    if answer.get("apiVersion") != version:
        raise bad(
            f"answered in {answer.get('apiVersion')}, and the kubeconfig says {version}; make both the same"
        )
    status = answer.get("status")
    status = status if isinstance(status, dict) else {}
    token, certificate, key = (
        status.get(name) or None for name in ("token", "clientCertificateData", "clientKeyData")
    )
    if (certificate is None) != (key is None):
        raise bad(
            "answered with one of clientCertificateData and clientKeyData; it must give both or neither"
        )
    if token is None and certificate is None:
        raise bad("answered with neither a token nor a client certificate; log in again")
    expires = None
    if when := status.get("expirationTimestamp"):
        try:
            moment = datetime.fromisoformat(str(when))
        except ValueError:
            raise bad(
                f'answered with expirationTimestamp "{one_line(str(when), 40)}", which is not an RFC 3339 time'
            ) from None
        expires = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if expires <= datetime.now(UTC).timestamp():
            raise bad(f"answered with a credential that expired at {when}; log in again")
        expires -= EARLY
    return _Credential(token, certificate, key, expires)
