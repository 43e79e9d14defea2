"""A leader that dies at any step of sealing: whoever leads next finishes it, and nobody joins
anything twice.
"""

from __future__ import annotations

import pytest
from leading import Leading, leads
from played import Cluster
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import PreconditionFailed
from preflight_testing.waiting import until
from wire import Sent

pytestmark = pytest.mark.anyio

PODS = ("pod-0", "pod-1", "pod-2")
STEPS = range(1 + len(PODS))
"""The writes of sealing: the record, then a roster for each member."""


class Kill:
    """Lets the first ``step`` writes through; the next one does not arrive (or, ``late``, arrives
    and is never answered).
    """

    def __init__(self, leading: Leading, step: int, late: bool) -> None:
        self.wire, self.left, self.late = leading.wire, step, late
        self.last: Sent | None = None
        self.wire.holds = self._holds
        self.wire.swallows = lambda sent: sent is self.last

    def _holds(self, sent: Sent) -> bool:
        if not (sent.is_record or sent.is_roster):
            return False
        if self.left:
            self.left -= 1
            return False
        if self.late and self.last is None:
            self.last = sent
            return False
        return True

    @property
    def reached(self) -> bool:
        """Whether the step has come, and all before it are done."""
        writes = [sent for sent in self.wire.sent if sent.is_record or sent.is_roster]
        pending = [sent for sent in writes if not sent.status and sent not in self.wire.held]
        return bool(self.wire.swallowed if self.late else self.wire.held) and not pending


@pytest.mark.parametrize("late", [False, True], ids=["before it arrives", "before its answer"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("generation", [1, 2], ids=["the first", "after a replacement"])
async def test_a_generation_is_finished_by_the_next_leader(
    generation: int, step: int, late: bool, cluster: Cluster, target: Connection
) -> None:
    for i, name in enumerate(PODS):
        await cluster.admit(name, size=3)
        if generation == 2 or name != "pod-2":
            await cluster.address(name, f"10.0.0.{i + 1}")
    async with leads(target) as leading:
        if generation == 2:
            await cluster.answered("sealed", *PODS, generation=1)
            await leading.wire.answered(cluster.namespace)
        kill = Kill(leading, step, late)
        if generation == 2:
            await cluster.delete("pod-2")
            await cluster.admit("pod-2", size=3)
        await cluster.address("pod-2", "10.0.0.4")
        await until(lambda: kill.reached, f"step {step}")
    async with leads(target, epoch=2):
        await cluster.answered("sealed", *PODS, generation=generation)
    every = [
        roster
        for rosters in cluster.rosters.values()
        for roster in rosters
        if roster.answer == "sealed" and roster.generation == generation
    ]
    assert sorted((roster.pod_uid, roster.rank) for roster in every) == sorted(
        (cluster.pods[name]["metadata"]["uid"], rank) for rank, name in enumerate(PODS)
    )
    assert len({roster.token for roster in every}) == 1
    told = [roster for rosters in cluster.rosters.values() for roster in rosters]
    assert len({roster.token for roster in told if roster.answer == "sealed"}) == generation
    written = [
        record["data"]["generation"]
        for record in cluster.records
        if "generation" in record.get("data", {})
    ]
    assert written == ["1", "2"][:generation]


async def test_what_a_former_leader_had_on_the_wire_is_refused_when_it_arrives_late(
    cluster: Cluster, target: Connection
) -> None:
    """As when it was stopped for longer than its lease: rosters are patched where they are still
    what it has seen, and in a pod that is still the same.
    """
    async with leads(target) as former:
        former.wire.holds = lambda sent: sent.is_roster
        for i, name in enumerate(PODS):
            await cluster.admit(name, size=3)
            await cluster.address(name, f"10.0.0.{i + 1}")
        await until(lambda: len(former.wire.held) == 3, "all rosters are on the wire")
    async with leads(target, epoch=2) as leading:
        rosters = await cluster.answered("sealed", *PODS)
        assert {roster.epoch for roster in rosters} == {2}
        await leading.wire.answered(cluster.namespace)
        before = cluster.versions()
        for late in former.wire.held:
            with pytest.raises(PreconditionFailed):
                await cluster.client.json_patch(late.path, late.json())
        assert cluster.versions() == before
