"""A rotation of certificate and authority, in front of a real API server, refuses no pod at any of
its steps.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from pods import GPU_POD
from preflight_kube.admission import certs
from preflight_kube.admission.certificates import Material
from preflight_kube.admission.certs import Configuration
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_testing.apiserver import ApiServer
from served import api_server, client_of, entry, wait_until, webhook

pytestmark = pytest.mark.timeout(180)  # the server looks for a new certificate every few seconds
T = TypeVar("T")
NAME = "preflight-injector"
HOOKS = Configuration("MutatingWebhookConfiguration", NAME)
TARGET = certs.CertificateTarget(
    namespace="preflight",
    service=NAME,
    secret=f"{NAME}-tls",
    configurations=(HOOKS,),
    manager="preflight-webhook-certs",
)
AGED = timedelta(days=61)
"""Of the 90 that a certificate lives: due, and trusted still."""
POD = {**GPU_POD, "metadata": {"generateName": "gpu-"}}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


def bring(folder: Path, material: Material) -> None:
    """The Secret's pair into a replica's folder, as a kubelet brings it."""
    (folder / "tls.crt").write_bytes(material.certificate)
    (folder / "tls.key").write_bytes(material.key)


def serves(port: int, material: Material) -> bool:
    served = ssl.get_server_certificate(("127.0.0.1", port)).encode()
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
        wait_until(
            lambda: all(now > then + 5 for now, then in zip(self.created, before, strict=True))
        )

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _write(self, me: int) -> None:
        with client_of(self.api) as client:
            while not self.over.is_set():
                answer = client.post(
                    "/api/v1/namespaces/ml/pods", json=POD, params={"dryRun": "All"}
                )
                if "preflight-dcgm-diag" not in answer.text:
                    self.refusals.append(answer.text)
                self.created[me] += 1


def configuration(port: int) -> dict[str, Any]:
    service = {
        "name": TARGET.service,
        "namespace": TARGET.namespace,
        "path": "/mutate-pod",
        "port": port,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": HOOKS.name},
        "webhooks": [entry({"service": service}, "by-label")],
    }


def test_every_step_of_a_rotation_admits_every_pod(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for namespace in ("preflight", "ml"):
        api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    # The API server calls what the Service names, under the Service's name.
    outside = {
        "metadata": {"name": TARGET.service},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    api.call("POST", "/api/v1/namespaces/preflight/services", outside)
    trust = ssl.create_default_context(cafile=str(api.ca))
    writers, port = Writers(api), 0
    set_bundles, write = certs._set_bundles, certs._write
    steps: list[str] = []

    async def and_then_on(*args: Any) -> bool:
        done = await set_bundles(*args)
        steps.append("bundle")
        writers.each_gets_on()
        return done

    async def and_served(
        client: Client, target: certs.CertificateTarget, secret: Any, material: Material, owner: Any
    ) -> None:
        await write(client, target, secret, material, owner)
        steps.append("leaf")
        bring(tmp_path, material)
        wait_until(lambda: serves(port, material))
        writers.more(8)
        writers.each_gets_on()

    def run(work: Callable[[Client], Awaitable[T]]) -> T:
        async def asked() -> T:
            async with Client(Connection(api.server, trust, api.token), agent="tests") as client:
                return await work(client)

        return anyio.run(asked)

    async def renewed(client: Client) -> Material:
        new = await certs.keep(client, TARGET)
        await certs.publish(client, TARGET, new)
        return new

    old = run(lambda client: certs.keep(client, TARGET, now=datetime.now(UTC) - AGED))
    bring(tmp_path, old)
    with webhook(tmp_path, "checks: [{name: dcgm-diag, image: d}]") as replica:
        port = replica.port
        api.call("POST", HOOKS.path.rpartition("/")[0], configuration(replica.port))
        run(lambda client: certs.publish(client, TARGET, old))
        path = "/api/v1/namespaces/ml/pods?dryRun=All"
        wait_until(lambda: "initContainers" in api.call("POST", path, POD)["spec"])
        writers.more(4)
        try:
            writers.each_gets_on()
            with monkeypatch.context() as patched:
                patched.setattr(certs, "_set_bundles", and_then_on)
                patched.setattr(certs, "_write", and_served)
                new = run(renewed)
        finally:
            writers.stop()
    assert writers.refusals == []
    assert steps == ["bundle", "leaf", "bundle"]
    assert new.certificate != old.certificate
