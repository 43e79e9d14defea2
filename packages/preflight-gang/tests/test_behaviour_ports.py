"""Gangs on the network of the host, whose hashes fall on the same ports."""

from __future__ import annotations

import pytest
from leading import Leading
from played import Cluster
from preflight_gang.core import plan as delivery

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _few_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many pairs as there are gangs."""
    monkeypatch.setattr(delivery, "_HOST_PORTS", range(20000, 20006, 2))


async def test_all_gangs_of_one_node_are_sealed_with_ports_of_their_own(
    cluster: Cluster, leading: Leading
) -> None:
    for gang in range(3):
        for i in range(2):
            await cluster.admit(
                f"pod-{gang}-{i}",
                gang=f"job-{gang}",
                node="shared" if i else f"own-{gang}",
                spec={"hostNetwork": True},
            )
    for gang in range(3):
        for i in range(2):
            await cluster.address(f"pod-{gang}-{i}", f"192.168.{gang}.{i + 1}")
    ports = set()
    for gang in range(3):
        for roster in await cluster.answered("sealed", f"pod-{gang}-0", f"pod-{gang}-1"):
            ports |= {roster.master_port, roster.control_port}
    assert ports == {20000, 20001, 20002, 20003, 20004, 20005}


async def test_the_next_generation_does_not_take_the_ports_of_the_last(
    cluster: Cluster, leading: Leading
) -> None:
    """Its processes may still be there."""
    await cluster.pair(spec={"hostNetwork": True})
    (first, _) = await cluster.answered("sealed", "pod-0", "pod-1", generation=1)
    await cluster.test("pod-1", restarts=1)
    (second, _) = await cluster.answered("sealed", "pod-0", "pod-1", generation=2)
    assert first.master_port != second.master_port
