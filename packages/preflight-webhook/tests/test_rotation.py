"""A rotation of certificate and authority, in front of a real API server, refuses no pod at any of its steps."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from preflight_e2e.apiserver import ApiServer, assets
from preflight_webhook import certs
from preflight_webhook.certificates import Material
from preflight_webhook.kube import Client, Connection

pytestmark = pytest.mark.timeout(180)  # the server looks for a new certificate every few seconds
TARGET = certs.Target("preflight", "preflight-injector-tls", "preflight-injector", "preflight-injector")
AGED = timedelta(days=61)
"""Of the 90 that a certificate lives: due, and trusted still."""
POD = {
    "metadata": {"generateName": "gpu-"},
    "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if (folder := assets()) is None:
        pytest.skip("KUBEBUILDER_ASSETS is not set: no real kube-apiserver")
    with ApiServer(tmp_path_factory.mktemp("apiserver"), folder) as server:
        yield server


class Replica:
    """The webhook, with the Secret's pair in its folder as a kubelet brings it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "config.yaml").write_text("checks: [{name: dcgm-diag, image: d}]")

    def __enter__(self) -> Replica:
        command = [sys.executable, "-m", "preflight_webhook", "serve", "--config", str(self.folder / "config.yaml")]
        command += ["--cert-dir", str(self.folder), "--host", "127.0.0.1", "--port", "0", "--plain-port", "0"]
        with (self.folder / "told").open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out)
        wait_until(lambda: bool((self.folder / "told").read_text().splitlines()), self.process)
        self.port = int(json.loads((self.folder / "told").read_text().splitlines()[0])["ports"][0])
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def bring(self, material: Material) -> None:
        (self.folder / "tls.crt").write_bytes(material.certificate)
        (self.folder / "tls.key").write_bytes(material.key)

    def serves(self, material: Material) -> bool:
        served = ssl.get_server_certificate(("127.0.0.1", self.port)).encode()
        return served.strip() == material.certificate.strip()


class Writers:
    """Users who create pods, each on a connection of its own, until :meth:`stop`."""

    def __init__(self, api: ApiServer) -> None:
        self.api, self.over = api, threading.Event()
        self.created: list[int] = []
        self.refusals: list[str] = []
        self.threads: list[threading.Thread] = []

    def more(self, number: int) -> None:
        """The API server needs new connections to the webhook for these."""
        for _ in range(number):
            self.created.append(0)
            self.threads.append(threading.Thread(target=self._write, args=(len(self.created) - 1,)))
            self.threads[-1].start()

    def each_gets_on(self) -> None:
        before = list(self.created)
        wait_until(lambda: all(now > then + 5 for now, then in zip(self.created, before, strict=True)))

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _write(self, me: int) -> None:
        headers = {"Authorization": f"Bearer {self.api.token}"}
        trust = ssl.create_default_context(cafile=str(self.api.ca))
        with httpx.Client(
            base_url=self.api.server, headers=headers, verify=trust, timeout=20, trust_env=False
        ) as client:
            while not self.over.is_set():
                answer = client.post("/api/v1/namespaces/ml/pods", json=POD, params={"dryRun": "All"})
                if "preflight-dcgm-diag" not in answer.text:
                    self.refusals.append(answer.text)
                self.created[me] += 1


def wait_until(done: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + 40
    while not done():
        assert time.monotonic() < end
        assert process is None or process.poll() is None
        time.sleep(0.05)


def configuration(port: int) -> dict[str, Any]:
    service = {"name": TARGET.service, "namespace": TARGET.namespace, "path": "/mutate-pod", "port": port}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": TARGET.webhook_configuration},
        "webhooks": [
            {
                "name": "by-label.nvsentinel.nvidia.com",
                "clientConfig": {"service": service},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


def test_every_step_of_a_rotation_admits_every_pod(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for namespace in ("preflight", "ml"):
        api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    # The API server calls what the Service names, under the Service's name.
    outside = {"metadata": {"name": TARGET.service}, "spec": {"type": "ExternalName", "externalName": "localhost"}}
    api.call("POST", "/api/v1/namespaces/preflight/services", outside)
    trust = ssl.create_default_context(cafile=str(api.ca))
    writers, replica = Writers(api), Replica(tmp_path)
    set_bundles, write = certs._set_bundles, certs._write
    steps: list[str] = []

    def and_then_on(*args: Any) -> bool:
        done = set_bundles(*args)
        steps.append("bundle")
        writers.each_gets_on()
        return done

    def and_served(client: Client, target: certs.Target, secret: Any, material: Material, owner: Any) -> None:
        write(client, target, secret, material, owner)
        steps.append("leaf")
        replica.bring(material)
        wait_until(lambda: replica.serves(material))
        writers.more(8)
        writers.each_gets_on()

    with Client(Connection(api.server, trust, api.token)) as client:
        old = certs.keep(client, TARGET, now=datetime.now(UTC) - AGED)
        replica.bring(old)
        with replica:
            api.call("POST", TARGET.configuration_path.rpartition("/")[0], configuration(replica.port))
            certs.publish(client, TARGET, old)
            path = "/api/v1/namespaces/ml/pods?dryRun=All"
            wait_until(lambda: "initContainers" in api.call("POST", path, POD)["spec"])
            writers.more(4)
            try:
                writers.each_gets_on()
                with monkeypatch.context() as patched:
                    patched.setattr(certs, "_set_bundles", and_then_on)
                    patched.setattr(certs, "_write", and_served)
                    new = certs.keep(client, TARGET)
                    certs.publish(client, TARGET, new)
            finally:
                writers.stop()
    assert writers.refusals == []
    assert steps == ["bundle", "leaf", "bundle"]
    assert new.certificate != old.certificate
