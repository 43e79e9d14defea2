"""A control plane of one's own: etcd and kube-apiserver on free loopback ports, nothing else.

For tests that ask what a real API server says. The binaries are those of ``KUBEBUILDER_ASSETS``, as
envtest has them.
"""

from __future__ import annotations

import io
import json
import os
import random
import secrets
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from .apidouble import write_kubeconfig

ASSETS = "KUBEBUILDER_ASSETS"
"""Names the folder that holds etcd and kube-apiserver."""
READY_SECONDS = 120.0

GANG_APIS = {
    "1.35": (["GenericWorkload=true"], ["scheduling.k8s.io/v1alpha1=true"]),
    "1.36": (["GenericWorkload=true"], ["scheduling.k8s.io/v1alpha2=true"]),
}
"""Minor version: feature gates and API groups with which it serves the gang API."""


class ApiServer:
    """Use as a context manager; ``home`` is an empty folder that it may fill.

    ``assets``: the folder with the binaries; ``kube_apiserver``: another version of that one.
    ``authorization``: ``AlwaysAllow`` or ``RBAC``; the owner of ``token`` is an administrator under
    either. ``fsync``: whether etcd waits until what it stores is on the disk. ``more``: further
    arguments of kube-apiserver. ``server``, ``token`` and ``ca`` say how to reach it.
    """

    def __init__(
        self,
        home: Path,
        assets: Path,
        *,
        kube_apiserver: Path | None = None,
        authorization: str = "AlwaysAllow",
        feature_gates: Sequence[str] = (),
        runtime_config: Sequence[str] = (),
        fsync: bool = False,
        more: Sequence[str] = (),
    ) -> None:
        self.home, self.token = home, secrets.token_urlsafe(16)
        self.ca = home / "pki" / "apiserver.crt"
        self._etcd, self._port = f"http://127.0.0.1:{free_port()}", free_port()
        self.server = f"https://127.0.0.1:{self._port}"
        peer = f"http://127.0.0.1:{free_port()}"
        self._commands = {
            "etcd": [
                str(assets / "etcd"),
                f"--data-dir={home}/etcd",
                f"--listen-client-urls={self._etcd}",
                f"--advertise-client-urls={self._etcd}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                *(() if fsync else ["--unsafe-no-fsync"]),
            ],
            "kube-apiserver": [
                str(kube_apiserver or assets / "kube-apiserver"),
                f"--etcd-servers={self._etcd}",
                f"--cert-dir={home}/pki",
                "--bind-address=127.0.0.1",
                f"--secure-port={self._port}",
                f"--token-auth-file={home}/tokens.csv",
                f"--authorization-mode={authorization}",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={home}/sa.key",
                f"--service-account-signing-key-file={home}/sa.key",
                # Nobody here makes the accounts that it waits for.
                "--disable-admission-plugins=ServiceAccount",
                *([f"--feature-gates={','.join(feature_gates)}"] if feature_gates else []),
                *([f"--runtime-config={','.join(runtime_config)}"] if runtime_config else []),
                *more,
            ],
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._idle: list[HTTPSConnection] = []

    def __enter__(self) -> Self:
        (self.home / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        (self.home / "sa.key").write_bytes(key)
        try:
            for name in self._commands:
                self._start(name)
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self._kill(name)

    def forget(self) -> None:
        """Make all versions so far too old to watch from: etcd is compacted, kube-apiserver
        restarted.

        The restart empties its watch cache, which would answer for compacted versions.
        """
        status = self._etcd_call("maintenance/status", {})
        self._etcd_call(
            "kv/compaction", {"revision": status["header"]["revision"], "physical": True}
        )
        self.restart()

    def restart(self) -> None:
        """Kill kube-apiserver and start it again; etcd stays."""
        self._kill("kube-apiserver")
        self._start("kube-apiserver")
        self._wait_ready()

    @property
    def pids(self) -> list[int]:
        """Of etcd and kube-apiserver, as they run now."""
        return [process.pid for process in self._running.values()]

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One request as the administrator; decoded JSON, or text. Raises HTTPError."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = b"" if body is None else json.dumps(body).encode()
        answer, text = self.exchange(method, path, data, headers.items())
        if answer.status >= 300:
            url = self.server + path
            raise HTTPError(url, answer.status, answer.reason, answer.headers, io.BytesIO(text))
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def exchange(
        self, method: str, path: str, data: bytes, headers: Iterable[tuple[str, str]]
    ) -> tuple[HTTPResponse, bytes]:
        """Ask over a connection that is there already: to make one costs four times the request."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                context = ssl.create_default_context(cafile=str(self.ca))
                connection = HTTPSConnection("127.0.0.1", self._port, context=context)
            used = connection.sock is not None
            try:
                connection.putrequest(method, path)
                for header in (*headers, ("Content-Length", str(len(data)))):
                    connection.putheader(*header)
                connection.endheaders(data)
                answer = connection.getresponse()
                text = answer.read()
            except BaseException as error:
                connection.close()
                if used and isinstance(error, (ConnectionError, ssl.SSLError)):  # it was closed
                    continue
                raise
            self._idle.append(connection)  # where the answer closed it, it opens anew
            return answer, text

    def define(self, crd: Mapping[str, Any]) -> None:
        """Have a custom resource served, unless it is already."""
        group, names = crd["spec"]["group"], crd["spec"]["names"]
        path = f"/apis/{group}/{crd['spec']['versions'][0]['name']}/{names['plural']}"
        if self._served(path):
            return
        try:
            self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        except HTTPError as error:
            error.close()
            if error.code != 409:  # it is there, and not served again yet: after a restart
                raise
        self.served(path)

    def served(self, path: str) -> None:
        """Wait until a collection can be listed: a definition takes a moment."""
        end = time.monotonic() + READY_SECONDS
        while not self._served(path):
            assert time.monotonic() < end, f"{path} is not served"
            time.sleep(0.05)

    def _served(self, path: str) -> bool:
        try:
            self.call("GET", path)
        except HTTPError as error:
            error.close()
            if error.code not in {404, 429, 503}:  # 429 while its storage is made
                raise
            return False
        return True

    def kubeconfig(self, path: Path, token: str | None = None) -> Path:
        """Write a kubeconfig, the administrator's unless there is another ``token``."""
        return write_kubeconfig(path, self.server, ca=self.ca, user={"token": token or self.token})

    def token_of(self, namespace: str, account: str, node: str = "") -> str:
        """A token of a ServiceAccount, which must exist; bound to ``node`` as a kubelet's for a pod
        there is.
        """
        spec: dict[str, Any] = {}
        if node:
            uid = self.call("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
            bound = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
            spec = {"boundObjectRef": bound}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.call("POST", path, asked)["status"]["token"])

    def _start(self, name: str) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                self._commands[name], stdout=log, stderr=log, env={"GOGC": "400", **os.environ}
            )  # it lives for minutes, and the rarer collection saves a sixth of its CPU

    def _kill(self, name: str) -> None:
        while self._idle:
            self._idle.pop().close()
        process = self._running.pop(name)
        process.kill()  # nothing here is worth an orderly end, which takes kube-apiserver a minute
        process.wait()

    def _wait_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.call("GET", "/readyz")
                self.call("GET", "/api/v1/namespaces/default")
            except OSError as error:  # not listening, no certificate yet, or not ready
                ended = [
                    name for name, process in self._running.items() if process.poll() is not None
                ]
                if ended or time.monotonic() > end:
                    logs = {
                        name: (self.home / f"{name}.log").read_text()[-1500:]
                        for name in ended or self._running
                    }
                    raise AssertionError(
                        f"no kube-apiserver ({error}); ended: {ended}; {logs}"
                    ) from error
                time.sleep(0.1)
            else:
                return

    def _etcd_call(self, path: str, body: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(f"{self._etcd}/v3/{path}", data=json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


def assets() -> Path | None:
    """The folder of ``KUBEBUILDER_ASSETS``, None when it is not set."""
    folder = os.environ.get(ASSETS)
    return Path(folder) if folder else None


def version(kube_apiserver: Path) -> str:
    """Its minor version, such as ``1.36``."""
    output = subprocess.run(
        [kube_apiserver, "--version"], check=True, capture_output=True, text=True
    ).stdout
    return ".".join(output.split("v")[-1].split(".")[:2])


def free_port() -> int:
    """A port that nobody holds, below those that the kernel gives to outgoing connections: none
    takes it meanwhile.

    Raises OSError where a hundred of them are all in use.
    """
    for port in random.sample(range(15000, 30000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port
    raise OSError("no port below 30000 is free")
