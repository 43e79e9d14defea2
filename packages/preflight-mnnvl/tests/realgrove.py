"""Grove's own operator beside a real API server, with its webhooks; PREFLIGHT_REAL_GROVE names the
folder of what `nox -s real-grove` compiled.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from preflight_testing.apiserver import ApiServer, free_port
from registered import certified

OUT = Path(os.environ.get("PREFLIGHT_REAL_GROVE") or "/nonexistent")
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
READY_SECONDS = 120.0


def kinds() -> list[dict[str, Any]]:
    """Grove's kinds as Grove defines them."""
    return [yaml.safe_load(path.read_text()) for path in sorted((OUT / "crds").glob("*.yaml"))]


@contextmanager
def operator(server: ApiServer, folder: Path) -> Iterator[None]:
    """Running, and asked about sets, from when it is ready."""
    bundle, _ = certified(folder)
    hooks, probes, metrics = free_port(), free_port(), free_port()

    def at(port: int, **more: Any) -> dict[str, Any]:
        return {"bindAddress": "127.0.0.1", "port": port, **more}

    syncs = {"concurrentSyncs": 3}
    config = {
        "apiVersion": "operator.config.grove.io/v1alpha1",
        "kind": "OperatorConfiguration",
        "leaderElection": {"enabled": False},
        "server": {
            "webhooks": at(hooks, serverCertDir=str(folder), certProvisionMode="manual"),
            "healthProbes": at(probes),
            "metrics": at(metrics),
        },
        "controllers": dict.fromkeys(("podCliqueSet", "podClique", "podCliqueScalingGroup"), syncs),
        "scheduler": {"profiles": [{"name": "default-scheduler"}]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(OUT / "grove-operator"), f"--config={folder}/config.yaml"],
            stdout=log,
            stderr=log,
            env={"PATH": "", "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig"))},
        )
    made = []
    try:
        _ready(process, f"http://127.0.0.1:{probes}/readyz", folder / "log")
        for kind, path in (("Mutating", "default"), ("Validating", "validate")):
            body = _asks(kind, f"https://127.0.0.1:{hooks}/webhooks/{path}-podcliqueset", bundle)
            plural = f"{CONFIGURATIONS}/{kind.lower()}webhookconfigurations"
            server.call("POST", plural, body)
            made.append(f"{plural}/{body['metadata']['name']}")
        yield
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
    finally:
        for one in made:
            server.call("DELETE", one)
        process.kill()
        process.wait()


def _ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + READY_SECONDS
    while True:
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < end, log.read_text()[-2000:]
        try:
            urllib.request.urlopen(url).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            pass
        time.sleep(0.1)


def _asks(kind: str, url: str, bundle: str) -> dict[str, Any]:
    rule = {
        "apiGroups": ["grove.io"],
        "apiVersions": ["v1alpha1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["podcliquesets"],
    }
    hook = {
        "name": f"pcs.{kind.lower()}.webhooks.grove.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": url, "caBundle": bundle},
        "rules": [rule],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": f"grove-{kind.lower()}"},
        "webhooks": [hook],
    }
