"""What a person reads: the scheduler's sentence about a pod that waits, and the columns of claims
and nodes.
"""

from __future__ import annotations

import itertools
import json
import ssl
import urllib.request
from typing import Any

import anyio
import pytest
from plane import Plane, having
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.types import Pod
from preflight_testing.apiserver import ApiServer

pytestmark = [pytest.mark.timeout(240), pytest.mark.anyio]
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@having(count_resource="", stale_after="2s")
async def test_the_scheduler_counts_up_why_no_node_will_do(world: Plane) -> None:
    for node in ("full-0", "full-1"):
        await world.node(node, 1)
    await world.claim("one", 1)
    extender = await world.extender()
    world.scheduler(extender.port)
    for name in ("p", "q"):
        await world.pod(name, "one")
        await world.bound(name)
    await world.node("silent", 1, observed="2026-01-01T00:00:00Z")

    def stale() -> bool:
        return extender.state is not None and extender.state.stale() == 1

    await world.until("the silent node is stale", stale)
    await world.pod("waits", "one")

    sentence = "0/3 nodes are available: 1 GpuNodeStatus is stale, 2 too few free GPUs."
    await world.told("FailedScheduling", "waits", sentence)
    assert not (await world.read_pod("waits")).bound
    await world.controller()
    seconds = itertools.count(30)

    async def reported() -> Pod | None:
        """What its agent reports stays fresh until the scheduler has tried again."""
        if stale():
            devices = [{"id": 0, "uuid": "GPU-silent-0"}]
            now = f"2026-01-01T00:00:{next(seconds) % 60:02}Z"
            status = {"total": 1, "devices": devices, "observedTime": now}
            await world.status_of("silent", status)
        pod = await world.read_pod("waits")
        return pod if pod.bound else None

    pod = await world.until("waits is bound", reported)
    assert isinstance(pod, Pod)
    assert pod.spec.node_name == "silent"


async def test_the_columns_of_claims_and_nodes_say_who_has_what(world: Plane) -> None:
    await world.placed("p", claim="two", count=2, gpus=4)
    await world.status_of("a", {"usable": 4, "observedTime": "2026-01-01T00:00:00Z"})
    base = f"/apis/{names.API_VERSION}"
    claims = f"{base}/namespaces/{world.namespace}/gpuclaims"

    async def bound() -> dict[str, Any]:
        found = await anyio.to_thread.run_sync(_table, world.server, claims)
        return found if found["two"]["Phase"] == "Bound" else {}

    row = (await world.until("the claim is bound", bound))["two"]
    assert [*row][:5] == ["Name", "Req", "Policy", "Phase", "Allocated"]
    assert [*row.values()][:5] == ["two", 2, "contiguous", "Bound", "a:0,1"]
    nodes = await anyio.to_thread.run_sync(_table, world.server, f"{base}/gpunodestatuses")
    assert [*nodes["a"]] == ["Name", "Node", "Devices", "Usable", "Heartbeat"]
    assert [*nodes["a"].values()][:4] == ["a", "a", 4, 4]
    kinds = await world.raw(base)
    short = {one["kind"]: one["shortNames"] for one in kinds["resources"] if "shortNames" in one}
    assert short == {"GpuClaim": ["gclaim"], "GpuNodeStatus": ["gns"]}


def _table(server: ApiServer, path: str) -> dict[str, dict[str, Any]]:
    """As kubectl asks for it: by name, the columns that are shown without `-o wide`."""
    head = {"Authorization": f"Bearer {server.token}", "Accept": TABLE}
    asked = urllib.request.Request(server.server + path, headers=head)
    trusted = ssl.create_default_context(cafile=str(server.ca))
    with urllib.request.urlopen(asked, context=trusted) as answer:
        table = json.loads(answer.read())
    shown = [
        (n, one["name"]) for n, one in enumerate(table["columnDefinitions"]) if not one["priority"]
    ]
    return {row["cells"][0]: {name: row["cells"][n] for n, name in shown} for row in table["rows"]}
