"""The commands as processes: two replicas of the controller of which one leads, the certificate's keeper, and explain."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from lab import Lab, condition
from leading import leads
from player import job
from preflight_appwrapper.live import look
from preflight_appwrapper.rules import Rules

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


def program(lab: Lab, home: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    kubeconfig = lab.server.kubeconfig(home / "of-a-process")
    return [sys.executable, "-m", "preflight_appwrapper", *arguments], {**os.environ, "KUBECONFIG": str(kubeconfig)}


@contextmanager
def replica(lab: Lab, home: Path, name: str, lease: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    (home / "config.yaml").write_text("leaseDuration: 2s\n")
    arguments = (
        "run",
        "--config",
        str(home / "config.yaml"),
        "--namespace",
        lease,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    )
    command, environment = program(lab, home, *arguments)
    log = home / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env={**environment, "POD_NAME": name}, stdout=out, stderr=out)
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


def said(log: Path, message: str) -> bool:
    return any(json.loads(line)["msg"] == message for line in log.read_text().splitlines() if line.endswith("}"))


async def test_another_replica_goes_on_when_the_one_that_leads_is_killed_and_ends_cleanly_when_it_is_told_to(
    lab: Lab, tmp_path: Path
) -> None:
    with (
        replica(lab, tmp_path, "one", lab.namespace) as (first, log),
        replica(lab, tmp_path, "two", lab.namespace) as (
            second,
            other,
        ),
    ):

        async def led() -> Any:
            return next((it for it in ((first, log), (second, other)) if said(it[1], "leading")), None)

        leader, _ = await lab.until(led, "a leader")
        await lab.wrap(job())
        await lab.running(2)
        leader.kill()
        left, its = (second, other) if leader is first else (first, log)

        async def leads_now() -> bool:
            return said(its, "leading")

        await lab.until(leads_now, "its successor")
        await lab.delete()
        await lab.gone(lab.wrappers("w"))
        left.send_signal(signal.SIGTERM)

        async def ended() -> bool:
            return left.poll() is not None

        await lab.until(ended, "its end")
        assert left.returncode == 0
        assert said(its, "stopped")


async def test_the_certificate_is_published_to_both_configurations(lab: Lab, tmp_path: Path) -> None:
    name = f"appwrapper-{lab.namespace}"
    for kind in ("mutating", "validating"):
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind.capitalize()}WebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": "a.example.com",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "clientConfig": {"service": {"name": "w", "namespace": lab.namespace}},
                }
            ],
        }
        await lab.client.create(f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations", body)
    arguments = (
        "--namespace",
        lab.namespace,
        "--service",
        "w",
        "--secret",
        "w-tls",
        "--mutating",
        name,
        "--validating",
        name,
    )
    command, environment = program(lab, tmp_path, "certs", *arguments, "--settle-seconds", "0")
    await lab.client.create(lab.path("", "serviceaccounts"), {"metadata": {"name": "default"}})
    done = await anyio.run_process(command, env=environment, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    secret = await lab.get(lab.path("", "secrets", "w-tls"))
    assert secret is not None
    for kind in ("mutating", "validating"):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{name}"
        found = await lab.get(path)
        assert found is not None
        bundle = found["webhooks"][0]["clientConfig"]["caBundle"]
        assert base64.b64decode(bundle).startswith(b"-----BEGIN CERTIFICATE-----")
        await lab.client.delete(path)


async def test_what_explain_says_comes_next_is_what_happens_and_not_before(lab: Lab, tmp_path: Path) -> None:
    async with leads(lab.target, lab.namespace):
        await lab.wrap(job(), failureGracePeriodDuration="4s", retryLimit="0")
        await lab.ends((await lab.running(2))[0], code=137)
        await lab.condition("Unhealthy", "True")
        found = await look(lab.client, lab.namespace, "w", Rules())
        assert found is not None
        assert found.next is not None
        assert (found.rule, found.next.what) == (6, "Failed")
        at = found.next.at
        ended = await lab.phase("Failed")
        assert condition(ended, "DeletingResources").get("lastTransitionTime", at) >= at
    command, environment = program(lab, tmp_path, "explain", "w", "-n", lab.namespace, "-o", "json")
    done = await anyio.run_process(command, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["phase"] == "Failed"
    command, environment = program(lab, tmp_path, "explain", "none", "-n", lab.namespace)
    done = await anyio.run_process(command, env=environment, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == f"no AppWrapper none in namespace {lab.namespace}; `-n` names another one.\n"
