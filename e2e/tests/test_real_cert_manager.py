"""The webhooks' certificates by the real cert-manager, as docs/platforms.md has it, on a real API
server with all parts installed. Nothing runs pods here.

PREFLIGHT_CERT_MANAGER names what `nox -s real-cert-manager` compiled.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml
from preflight_e2e.lab import until
from preflight_e2e.real_cert_manager import PROGRAMS
from preflight_kube.admission.tls import Certificate
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.helm import CHARTS, Release

OUT = Path(os.environ.get("PREFLIGHT_CERT_MANAGER") or "/nonexistent")
pytestmark = [
    pytest.mark.skipif(
        not OUT.exists(), reason="PREFLIGHT_CERT_MANAGER does not name a compiled cert-manager"
    ),
    pytest.mark.timeout(300),
]
PAGE = (CHARTS.parent / "docs" / "platforms.md").read_text()
RECIPE = yaml.safe_load((CHARTS / "recipes" / "cert-manager.yaml").read_text())
NAMESPACE = "preflight"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
LISTENS = {"controller": "127.0.0.1:0", "cainjector": "0"}
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/preflight-webhooks"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With cert-manager beside it, and every part with a webhook installed by the recipe."""
    if (folder := assets()) is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    home = tmp_path_factory.mktemp("cert-manager")
    with ApiServer(home, folder) as running, ExitStack() as programs:
        for definition in sorted((OUT / "crds").glob("*.yaml")):
            running.define(yaml.safe_load(definition.read_text()))
        running.call(
            "POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": NAMESPACE}}
        )
        kubeconfig = running.kubeconfig(home / "kubeconfig")
        started = {}
        for name in PROGRAMS:
            log = programs.enter_context((home / f"{name}.log").open("wb"))
            words = [str(OUT / name), "--leader-elect=false", f"--kubeconfig={kubeconfig}"]
            words.append(f"--metrics-listen-address={LISTENS[name]}")
            process = subprocess.Popen(
                words, stdout=log, stderr=log, env={"KUBECONFIG": str(kubeconfig)}
            )
            started[name] = process
            programs.callback(process.wait)
            programs.callback(process.kill)
        for document in _of_the_page():
            path = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/{document['kind'].lower()}s"
            running.call("POST", path, document)
        parts = {
            name: {**said, "enabled": True} for name, said in RECIPE.items() if name != "global"
        }
        parts["preflight-gpu-scheduler"]["kubeScheduler"] = {"image": "kube-scheduler:1"}
        release = Release(NAMESPACE, kubeconfig)
        release.install({"global": RECIPE["global"], **parts}, wait=False)
        for name, process in started.items():
            assert process.poll() is None, (home / f"{name}.log").read_text()[-1000:]
        yield running


def _of_the_page() -> list[dict[str, Any]]:
    section = PAGE.split("## cert-manager")[1]
    [block] = re.findall(r"```yaml\n(.*?)```", section, flags=re.DOTALL)
    return list(yaml.safe_load_all(block))


def _pair(server: ApiServer, folder: Path, unlike: bytes = b"") -> bytes | None:
    """The Secret's pair, written to ``folder`` as a kubelet does, unless it is still ``unlike``."""
    try:
        data = server.call("GET", SECRET)["data"]
    except HTTPError as error:
        error.close()
        return None
    pair = {name: base64.b64decode(data[name]) for name in ("tls.crt", "tls.key")}
    if pair["tls.crt"] == unlike:
        return None
    for name, content in pair.items():
        (folder / name).write_bytes(content)
    return pair["tls.crt"]


def _clients(server: ApiServer) -> dict[str, str] | None:
    """By Service, the bundle that the API server trusts there, once all entries have one."""
    bundles = {}
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        for configuration in server.call("GET", f"{WEBHOOKS}/{plural}")["items"]:
            for entry in configuration["webhooks"]:
                client = entry["clientConfig"]
                if not client.get("caBundle"):
                    return None
                service = client["service"]
                host = f"{service['name']}.{service['namespace']}.svc"
                bundles[host] = base64.b64decode(client["caBundle"]).decode()
    return bundles


def _trusts(bundle: str, host: str, served: ssl.SSLContext) -> None:
    """A handshake as the API server makes it, in memory. Raises ssl.SSLError."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cadata=bundle)
    client = context.wrap_bio(to_client, to_server, server_hostname=host)
    serving = served.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.getpeercert()


def test_every_webhook_serves_what_its_bundle_trusts_also_after_a_renewal(
    server: ApiServer, tmp_path: Path
) -> None:
    first = until("a pair", lambda: _pair(server, tmp_path))
    certificate = Certificate(tmp_path, "cert-manager")
    old = certificate.context
    bundles = until("bundles", lambda: _clients(server))
    assert sorted(bundles) == [
        "preflight-appwrapper-webhook.preflight.svc",
        "preflight-gpu-scheduler.preflight.svc",
        "preflight-injector.preflight.svc",
        "preflight-mnnvl-webhook.preflight.svc",
    ]
    for host, bundle in bundles.items():
        _trusts(bundle, host, old)
    server.call("DELETE", SECRET)
    until("another pair", lambda: _pair(server, tmp_path, unlike=first))
    assert certificate.refresh()
    assert _clients(server) == bundles
    for host, bundle in bundles.items():
        _trusts(bundle, host, old)  # what a kubelet has not brought yet
        _trusts(bundle, host, certificate.context)
