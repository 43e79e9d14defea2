"""What happens to the API server and between leaders: watches that are too old, a restart, and a
lease that runs out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from lab import Lab
from leading import leads
from player import bare_pod, job, service
from preflight_kube.client.client import KubeError

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

FAST: dict[str, Any] = {"failureGracePeriodDuration": "0s", "retryPausePeriodDuration": "0s"}


async def test_a_restart_of_the_api_server_in_the_middle_of_everything_changes_nothing(
    lab: Lab,
) -> None:
    async with leads(lab.target, lab.namespace), anyio.create_task_group() as group:

        async def restarts() -> None:
            for _ in range(2):
                await anyio.to_thread.run_sync(lab.server.restart)
                await anyio.sleep(2)

        await patiently(lab, lambda: group.start_soon(restarts))


async def patiently(lab: Lab, once_it_runs: Callable[[], object]) -> None:
    """The same life, by a user who asks again where nobody answers."""
    await lab.wrap(
        service(), job(completions=2), bare_pod(), successTTLDuration="1s", retryLimit="0", **FAST
    )
    await lab.running(3)
    once_it_runs()
    done: set[str] = set()
    while len(done) < 3:
        for pod in lab.pods():
            with suppress(KubeError):
                if pod["metadata"]["uid"] not in done:
                    await lab.ends(pod, code=0)
                    done.add(pod["metadata"]["uid"])
        await anyio.sleep(0.1)

    async def over() -> Any:
        with suppress(KubeError):
            found = await lab.wrapper()
            gone = [
                one for one in found["status"]["conditions"] if one["type"] == "ResourcesDeployed"
            ]
            return found if gone[0]["status"] == "False" else None

    found = await lab.until(over, "the end")
    assert found["status"]["phase"] == "Succeeded"
    assert "resettingCount" not in found["status"]


@contextmanager
def replica(lab: Lab, home: Path, name: str) -> Any:
    """`preflight-appwrapper run` as a process."""
    (home / "config.yaml").write_text("leaseDuration: 3s\n")
    kubeconfig = lab.server.kubeconfig(home / f"of-{name}")
    command = [sys.executable, "-m", "preflight_appwrapper", "run"]
    command += [
        "--config",
        str(home / "config.yaml"),
        "--namespace",
        lab.namespace,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    with (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": name},
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()


async def holder(lab: Lab) -> str:
    found = await lab.get(lab.path("coordination.k8s.io/v1", "leases", "preflight-appwrapper"))
    return str(found["spec"].get("holderIdentity") or "") if found else ""


async def test_a_leader_that_is_held_up_until_its_lease_is_over_writes_nothing_when_it_goes_on(
    lab: Lab, tmp_path: Path
) -> None:
    with replica(lab, tmp_path, "one") as first:

        async def led() -> str:
            return await holder(lab)

        before = await lab.until(led, "a leader")
        with replica(lab, tmp_path, "two"):
            await lab.wrap(
                service(), job(), bare_pod(), successTTLDuration="1s", retryLimit="1", **FAST
            )
            old = await lab.running(3)
            first.send_signal(signal.SIGSTOP)
            await lab.ends(lab.probe(), code=3)

            async def another() -> bool:
                return await holder(lab) not in {"", before}

            await lab.until(another, "another leader")

            first.send_signal(signal.SIGCONT)
            await lab.anew(old, 3)
            found = await lab.condition("PodsReady", "True")
            assert found["status"]["resettingCount"] == 1
            log = tmp_path / "one.log"

            async def stepped_down() -> bool:
                return "no longer leading" in log.read_text() or "lost the lease" in log.read_text()

            await lab.until(stepped_down, "the word of the first one that it no longer leads")
            assert '"transition":"reset"' not in log.read_text()
            made = Counter(
                one.what
                for one in lab.history
                if one.type == "ADDED" and one.what in {"services", "jobs"}
            )
            assert made == {"services": 2, "jobs": 2}
            await lab.delete()
            await lab.gone(lab.wrappers("w"))
