"""One controller as a process: its log, its end, and an API server that goes away
and comes back.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from played import Cluster
from preflight_kube.auth.connection import Connection
from preflight_testing.waiting import until
from replica import replica

pytestmark = pytest.mark.anyio


async def test_a_signal_ends_it_with_status_zero_and_leaves_no_process(
    cluster: Cluster, target: Connection, tmp_path: Path
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        async with replica(target, cluster.namespace, tmp_path / number.name) as one:
            await until(lambda one=one: one.leads, "it leads")  # type: ignore[misc]
            one.send(number)
            with anyio.fail_after(600):
                assert await one.process.wait() == 0
            assert [line["msg"] for line in one.lines()][-1] == "stopped"
            assert one.said("released the lease")


async def test_it_stops_while_its_writes_hang(
    cluster: Cluster, target: Connection, tmp_path: Path
) -> None:
    async with replica(target, cluster.namespace, tmp_path / "one") as one:
        one.wire.holds = lambda sent: sent.is_roster
        await cluster.pair()
        await until(lambda: len(one.wire.held) == 2, "its writes hang")
        with anyio.fail_after(600):
            assert await one.stop() == 0


async def test_its_log_says_of_which_gang_it_speaks_and_of_which_pod(
    cluster: Cluster, target: Connection, tmp_path: Path
) -> None:
    async with replica(target, cluster.namespace, tmp_path / "one") as one:
        uid = await cluster.admit("forged", stamp="me too")
        await cluster.pair()
        await cluster.answered("sealed", "pod-0", "pod-1")
        (sealed,) = [
            line for line in one.said("gang sealed") if line["gang"].startswith(cluster.namespace)
        ]
        assert sealed["gang"] == f"{cluster.namespace}/labels:job-1"
        (ignored,) = one.said("invalid gang stamp ignored")
        assert (ignored["level"], ignored["uid"]) == ("warning", uid)
        assert (await one.metrics())[("preflight_config_errors_total", "stamp")] == 1
        waited = {
            key: value
            for key, value in (await one.metrics()).items()
            if key[0] == "preflight_gang_wait_seconds_count"
        }
        assert waited == {("preflight_gang_wait_seconds_count", "labels"): 1}


async def test_a_lease_that_is_too_short_is_refused_at_the_start(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("leaseDuration: 100ms\n")
    command = [sys.executable, "-m", "preflight_gang", "run", "--config", str(config)]
    done = await anyio.run_process(
        command, check=False, env={**os.environ, "KUBECONFIG": "/nowhere"}
    )
    assert done.returncode == 2
    assert b"leaseDuration" in done.stderr
    assert b"Traceback" not in done.stderr
