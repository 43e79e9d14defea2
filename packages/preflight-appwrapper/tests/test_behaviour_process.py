"""The commands as processes: the certificate's keeper, and explain."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path

import anyio
import pytest
from lab import Lab, condition
from leading import leads
from player import job
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.service import explained

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


def program(lab: Lab, home: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    kubeconfig = lab.server.kubeconfig(home / "of-a-process")
    return [sys.executable, "-m", "preflight_appwrapper", *arguments], {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
    }


async def test_the_certificate_is_published_to_both_configurations(
    lab: Lab, tmp_path: Path
) -> None:
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
        await lab.client.create(
            f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations", body
        )
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
    assert len(base64.b64decode(secret["data"]["mark.key"])) == 64
    for kind in ("mutating", "validating"):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{name}"
        found = await lab.get(path)
        assert found is not None
        bundle = found["webhooks"][0]["clientConfig"]["caBundle"]
        assert base64.b64decode(bundle).startswith(b"-----BEGIN CERTIFICATE-----")
        await lab.client.delete(path)


async def test_what_explain_says_comes_next_is_what_happens_and_not_before(
    lab: Lab, tmp_path: Path
) -> None:
    async with leads(lab.target, lab.namespace):
        await lab.wrap(job(), failureGracePeriodDuration="4s", retryLimit="0")
        await lab.ends((await lab.running(2))[0], code=137)
        await lab.condition("Unhealthy", "True")
        found = await explained(lab.client, lab.namespace, "w", WrapperRules())
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
    assert (
        done.stderr.decode()
        == f"no AppWrapper none in namespace {lab.namespace}; `-n` names another one.\n"
    )
