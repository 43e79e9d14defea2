"""Mutating webhooks in front of a test's API server: ours, and preflight's beside it, as processes
of their own.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme
from plane import Plane
from preflight_kube.client.client import KubeError
from preflight_testing.apiserver import free_port

PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


async def admitting(
    world: Plane, name: str = "", *, environment: dict[str, str] | None = None
) -> None:
    """Start our webhook, and have the API server ask it for pods of the test's namespace, by a
    configuration called ``name``.
    """
    authority, port, health = trustme.CA(), free_port(), free_port()
    folder = world.home / "certificates"
    _issue(authority, folder)
    (folder / "ca.crt").write_bytes(authority.cert_pem.bytes())
    world.command(
        *("webhook", "--certificates", str(folder), "--admission-port", str(port)),
        *("--host", "127.0.0.1", "--port", str(health)),
        name="webhook",
        environment=environment,
    )
    await world.serving(health)
    await _ask(
        world,
        name or f"{world.namespace}.gpu.scheduling",
        f"https://127.0.0.1:{port}/mutate-pods",
        authority,
    )

    async def asked() -> bool:
        try:
            made = await world.try_pod("probe", claim="none-yet")
        except KubeError:
            return False
        return bool(made["spec"].get("schedulingGates"))

    await world.until("the API server asks the webhook", asked)


@contextmanager
def _serving(world: Plane, authority: trustme.CA, config: dict[str, Any]) -> Iterator[int]:
    folder = world.home / "preflight"
    _issue(authority, folder)
    (folder / "config.yaml").write_text(json.dumps(config))
    command = [
        sys.executable,
        "-m",
        "preflight_webhook",
        "serve",
        "--config",
        str(folder / "config.yaml"),
    ]
    command += [
        "--cert-dir",
        str(folder),
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--plain-port",
        "0",
    ]
    log = (world.home / "preflight.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    log.close()
    try:
        while (
            not (told := (world.home / "preflight.log").read_text()).endswith("\n")
            or '"serving"' not in told
        ):
            assert process.poll() is None, told
        lines = map(json.loads, told.splitlines())
        yield next(int(line["port"]) for line in lines if line["msg"] == "serving")
    finally:
        process.kill()
        process.wait()


@contextmanager
def preflight(world: Plane, config: dict[str, Any]) -> Iterator[tuple[int, trustme.CA]]:
    """Preflight's own webhook with ``config``: its port, and its authority for
    :func:`ask_preflight`.
    """
    authority = trustme.CA()
    with _serving(world, authority, config) as port:
        yield port, authority


async def ask_preflight(world: Plane, name: str, port: int, authority: trustme.CA) -> None:
    """Have the API server ask it by a configuration called ``name``, once it does."""
    await _ask(world, name, f"https://127.0.0.1:{port}/mutate-pod", authority)


def _issue(authority: trustme.CA, folder: Path) -> None:
    folder.mkdir()
    issued = authority.issue_cert("127.0.0.1")
    (folder / "tls.key").write_bytes(issued.private_key_pem.bytes())
    (folder / "tls.crt").write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))


async def _ask(world: Plane, name: str, url: str, authority: trustme.CA) -> None:
    entry = {
        "name": f"{name.split('.', maxsplit=1)[0]}.gpu.scheduling",
        "clientConfig": {
            "url": url,
            "caBundle": base64.b64encode(authority.cert_pem.bytes()).decode(),
        },
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await world.client.create(PATH, {"metadata": {"name": name}, "webhooks": [entry]})
    world.cleanup.append(f"{PATH}/{name}")
