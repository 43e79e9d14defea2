"""The real webhook as a process, and real API servers that ask it: what the tests of both share."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from pods import GPU_POD, review
from preflight_testing.apiserver import ASSETS, ApiServer, assets, version

ASSETS_135 = "PREFLIGHT_KUBEBUILDER_ASSETS_135"
"""Names a folder with the kube-apiserver of Kubernetes 1.35."""
PROGRAM = ("-m", "preflight_webhook")
LOOKING_OFTEN = (
    "-c",
    "from preflight_kube.admission import server\n"
    "from preflight_webhook import cli, service\n"
    "server.POLL_EVERY = service.POLL_EVERY = 0.05\n"
    "cli.main()",
)
"""The same, for tests of files that change: they are looked at as soon as they do."""
PATIENCE = 300.0
"""Seconds for what ought to happen at once; who waits so long waits for ever."""


@dataclass(frozen=True)
class Webhook:
    """``preflight-webhook serve``. ``bundle``: its authority, as a MutatingWebhookConfiguration
    holds it; ``told``: what it has written to stdout and stderr.
    """

    process: subprocess.Popen[bytes]
    port: int
    plain: str
    told: Path
    bundle: str = ""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/mutate-pod"

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=base64.b64decode(self.bundle).decode())

    def post(self, body: bytes | dict[str, Any], path: str = "") -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = {"content-type": "application/json"}
        return httpx.post(
            self.url + path, content=content, headers=head, verify=self.trust, timeout=120
        )

    def answered(self, pod: object = GPU_POD, **request: Any) -> dict[str, Any]:
        answer = self.post(review(pod, **request))
        assert answer.status_code == 200, answer.text
        response: dict[str, Any] = answer.json()["response"]
        return response

    def injected(self) -> list[str]:
        patch = json.loads(base64.b64decode(self.answered()["patch"]))
        return [container["name"] for container in patch[0]["value"]]

    def probed(self, path: str) -> httpx.Response:
        # Without authorities, which take a while to read.
        return httpx.get(self.plain + path, verify=False, trust_env=False, timeout=120)

    def metric(self, name: str) -> float:
        """Less than nothing where there is none: it may have another name by now."""
        lines = self.probed("/metrics").text.splitlines()
        values = [float(line.split()[-1]) for line in lines if line.startswith(name + " ")]
        return values[0] if values else -1.0

    def wait_for(self, name: str, value: float) -> None:
        wait_until(lambda: self.metric(name) == value, self.process)

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{what}:"))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.told.read_text().splitlines()]


def write_certificate(
    authority: trustme.CA, folder: Path, begins: float = -1, ends: float = 30
) -> trustme.LeafCert:
    """A leaf for this machine, as the server reads it, valid for days from now."""
    now = datetime.now(UTC)
    begin, end = now + timedelta(begins), now + timedelta(ends)
    leaf = authority.issue_cert("127.0.0.1", "localhost", not_before=begin, not_after=end)
    leaf.private_key_pem.write_to_path(folder / "tls.key")
    leaf.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    return leaf


def rewrite(file: Path, text: str) -> None:
    """Change a file at once: whoever reads it finds the old text or the new, and no half of it."""
    (new := file.with_name(f"{file.name}.new")).write_text(text)
    new.replace(file)


@contextmanager
def webhook(
    folder: Path,
    config: str,
    *options: str,
    authority: trustme.CA | None = None,
    kubeconfig: Path | None = None,
    program: Sequence[str] = PROGRAM,
) -> Iterator[Webhook]:
    """It serves from ``folder``, with a leaf of ``authority``, or with the pair that is there
    already. ``program``: or :data:`LOOKING_OFTEN`.
    """
    if authority is not None:
        write_certificate(authority, folder)
    file = folder / "config.yaml"
    if not file.exists():  # replicas may share a folder
        file.write_text(config)
    folders = ["--config", str(file), "--cert-dir", str(folder), "--host", "127.0.0.1"]
    command = [sys.executable, *program, "serve", *folders, "--port", "0", "--plain-port", "0"]
    environ = {**os.environ, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig is not None else {})}
    told = folder / f"told-{time.monotonic_ns()}"
    with told.open("wb") as out:  # no pipe: nobody reads it
        process = subprocess.Popen(
            [*command, *options], stdout=out, stderr=subprocess.STDOUT, env=environ
        )
    try:
        wait_until(lambda: bool(ports(told.read_text().splitlines(keepends=True))), process)
        port, plain = ports(told.read_text().splitlines(keepends=True))
        bundle = (
            base64.b64encode(authority.cert_pem.bytes()).decode() if authority is not None else ""
        )
        yield Webhook(process, port, f"http://127.0.0.1:{plain}", told, bundle)
    finally:
        process.kill()
        process.wait()


def ports(lines: Iterable[str]) -> list[int]:
    """Where it serves (admission, plain), once it says so; it may say something else before."""
    plain = 0
    for line in lines:
        log = json.loads(line) if line.endswith("\n") else {}
        match log.get("msg"):
            case "started":
                plain = log["port"]
            case "serving":
                return [log["port"], plain]
    return []


def wait_until(done: Callable[[], bool], process: subprocess.Popen[Any] | None = None) -> None:
    """Until ``done``, while ``process`` lives."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end
        assert process is None or process.poll() is None
        time.sleep(0.05)


def kube_apiserver(wanted: str) -> Path:
    """The one of Kubernetes ``wanted``; skips the test, visibly, where there is none."""
    if (now := assets()) is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    if wanted == "1.35":
        if not (folder := os.environ.get(ASSETS_135)):
            pytest.skip(f"{ASSETS_135} is not set: no kube-apiserver of Kubernetes 1.35")
        return Path(folder) / "kube-apiserver"
    found = now / "kube-apiserver"
    if (is_version := version(found)) != wanted:
        pytest.skip(f"KUBEBUILDER_ASSETS holds kube-apiserver {is_version}, not {wanted}")
    return found


@contextmanager
def api_server(home: Path, **how: Any) -> Iterator[ApiServer]:
    """A real API server; skips the test, visibly, where there are no binaries. ``how``: as
    :class:`ApiServer` has it.
    """
    if (folder := assets()) is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(home, folder, **how) as server:
        yield server


def client_of(server: ApiServer, *, connections: int = 100) -> httpx.Client:
    """A client with the rights of an administrator."""
    return httpx.Client(
        base_url=server.server,
        headers={"Authorization": f"Bearer {server.token}"},
        verify=ssl.create_default_context(cafile=str(server.ca)),
        timeout=60,
        trust_env=False,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
    )


def entry(client: dict[str, Any], name: str = "preflight", **more: Any) -> dict[str, Any]:
    """One webhook of a MutatingWebhookConfiguration, about every new pod. ``client``: its
    clientConfig.
    """
    return {
        "name": f"{name}.nvsentinel.nvidia.com",
        "clientConfig": client,
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "resources": ["pods"],
                "operations": ["CREATE"],
            }
        ],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "admissionReviewVersions": ["v1"],
        **more,
    }


def asking(
    api: httpx.Client, entries: Sequence[dict[str, Any]], pod: Callable[[], httpx.Response]
) -> None:
    """From now on the API server asks about pods. ``pod`` makes one that is to get a check."""
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    body = {**kind, "metadata": {"name": "preflight"}, "webhooks": list(entries)}
    made = api.post(f"/apis/{kind['apiVersion']}/mutatingwebhookconfigurations", json=body)
    assert made.status_code == 201, made.text
    wait_until(lambda: "initContainers" in pod().json().get("spec", {}))
