"""One controller as a process: its log, its end, and an API server that goes away
and comes back.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from played import Cluster
from preflight_kube.auth.connection import Connection
from preflight_testing.waiting import until
from replica import replica

pytestmark = pytest.mark.anyio


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
        shown = await one.metrics()
        assert shown[("preflight_config_errors_total", "stamp")] == 1
        assert shown[("preflight_gang_leader",)] == 1
        waited = {key for key in shown if key[0] == "preflight_gang_wait_seconds_count"}
        assert waited == {("preflight_gang_wait_seconds_count", "labels")}
