"""Gangs on the network of the host."""

from __future__ import annotations

import pytest
from leading import Leading
from played import Cluster

pytestmark = pytest.mark.anyio


async def test_the_next_generation_does_not_take_the_ports_of_the_last(
    cluster: Cluster, leading: Leading
) -> None:
    """Its processes may still be there."""
    await cluster.pair(spec={"hostNetwork": True})
    (first, _) = await cluster.answered("sealed", "pod-0", "pod-1", generation=1)
    await cluster.test("pod-1", restarts=1)
    (second, _) = await cluster.answered("sealed", "pod-0", "pod-1", generation=2)
    assert first.master_port != second.master_port
