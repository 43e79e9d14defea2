"""Preflight's own webhook in front of the same API server: it refuses pods whose claim template is
not there yet, and they come up all the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import DRIVER, ON, clique, pcs
from live import Space, leading, space_of
from preflight_kube.client.client import KubeError
from preflight_testing.apiserver import ApiServer
from preflight_testing.grove import pods
from preflight_testing.waiting import until
from registered import certified, registered

pytestmark = pytest.mark.anyio

HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
CONFIG: dict[str, Any] = {
    "checks": [{"name": "nccl-loopback", "image": "l"}],
    "unresolvedClaims": "deny",
    "mirrorClaims": ["compute-domain-default-channel.nvidia.com"],
    "preflightConfigs": {"enabled": False},
}


@asynccontextmanager
async def preflight(space: Space, folder: Path) -> AsyncIterator[None]:
    """Preflight's webhook as a process, asked for the pods of the namespace."""
    bundle, _ = certified(folder)
    (folder / "config.yaml").write_text(json.dumps(CONFIG))
    command = [sys.executable, "-m", "preflight_webhook", "serve", "--host", "127.0.0.1"]
    command += ["--config", str(folder / "config.yaml"), "--cert-dir", str(folder)]
    command += ["--port", "0", "--plain-port", "0"]
    access = space.server.kubeconfig(folder / "kubeconfig")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "KUBECONFIG": str(access)},
        )

    def serving() -> list[int]:
        lines = (folder / "log").read_text().splitlines(keepends=True)
        assert process.poll() is None, lines
        logged = [json.loads(line) for line in lines if line.endswith("\n")]
        return [line["port"] for line in logged if line["msg"] == "serving"]

    name = f"preflight-{space.namespace}"
    try:
        await until(serving, "it starts")
        entry = {
            "name": "preflight.nvsentinel.nvidia.com",
            "clientConfig": {
                "url": f"https://127.0.0.1:{serving()[0]}/mutate-pod",
                "caBundle": bundle,
            },
            "rules": [RULE],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        await space.client.create(HOOKS, {"metadata": {"name": name}, "webhooks": [entry]})
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await space.client.delete(f"{HOOKS}/{name}")
        process.kill()
        process.wait()


async def test_t17_pods_that_preflight_refuses_for_want_of_their_template_come_up_once_it_is_there(
    server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        leading(space.target, DRIVER),
        registered(space, DRIVER, tmp_path / "tls"),
        preflight(space, tmp_path / "preflight"),
        anyio.create_task_group() as tasks,
    ):
        await space.grove.apply(pcs("t", [clique("w", 1, replicas=2)], annotations=ON))
        await space.turned(1)
        await space.settled(space.names, ["t-0-cd"])  # before there is any pod of it
        (stored,) = (await space.grove.all("podcliques")).values()
        path = f"/api/v1/namespaces/{space.namespace}/pods"
        left = {one["metadata"]["name"]: one for one in pods(stored)}

        async def refused() -> bool:
            said = await _refusals(space, f"{path}?dryRun=All", left)
            return len(said) == 2 and all("what mnnvl asks for is not known" in one for one in said)

        await space.happens(refused, "preflight refuses both pods", 60)
        assert await space.all(path) == {}
        tasks.start_soon(space.driver.run)

        async def stored_all() -> bool:
            for one in await _refusals(space, path, left):
                assert "what mnnvl asks for is not known" in one
            return not left

        await space.happens(stored_all, "Grove's next tries are admitted", 60)
        for pod in (await space.all(path)).values():
            everybody = [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]
            assert [one["name"] for one in everybody] == ["preflight-nccl-loopback", "main"]
            assert [one["resources"]["claims"] for one in everybody] == [[{"name": "mnnvl"}]] * 2
        await space.client.delete(f"{path}?gracePeriodSeconds=0")
        tasks.cancel_scope.cancel()


async def _refusals(space: Space, path: str, left: dict[str, dict[str, Any]]) -> list[str]:
    """Try to create the pods ``left``, as Grove does again and again; those that are stored leave
    it. What is said of the others.
    """
    said = []
    for name, one in list(left.items()):
        try:
            await space.client.create(path, one)
        except KubeError as error:
            said.append(str(error))
        else:
            if "dryRun" not in path:
                del left[name]
    return said
