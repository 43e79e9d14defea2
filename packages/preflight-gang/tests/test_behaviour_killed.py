"""A leader that is killed at any step of sealing: whoever leads next finishes it, and nobody joins
anything twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from leading import leads
from played import Cluster
from preflight_kube.auth.connection import Connection
from preflight_testing.waiting import until
from replica import Replica, replica
from wire import Sent

pytestmark = pytest.mark.anyio

PODS = ("pod-0", "pod-1", "pod-2")
STEPS = range(1 + len(PODS))
"""The writes of sealing: the record, then a roster for each member."""


class Kill:
    """Lets the first ``step`` writes through; the next one does not arrive (or, ``late``, arrives
    and is never answered).
    """

    def __init__(self, one: Replica, namespace: str, step: int, late: bool) -> None:
        self.wire, self.namespace, self.left, self.late = (
            one.wire,
            f"/namespaces/{namespace}/",
            step,
            late,
        )
        self.last: Sent | None = None
        self.wire.holds = self._holds
        self.wire.swallows = lambda sent: sent is self.last

    def _holds(self, sent: Sent) -> bool:
        if self.namespace not in sent.path or not (sent.is_record or sent.is_roster):
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
        mine = [
            one
            for one in self.wire.sent
            if self.namespace in one.path and (one.is_record or one.is_roster)
        ]
        open_ = [one for one in mine if not one.status and one not in self.wire.held]
        return bool(self.wire.swallowed if self.late else self.wire.held) and not open_


async def three_members(cluster: Cluster) -> None:
    for i, name in enumerate(PODS):
        await cluster.admit(name, size=3)
        await cluster.address(name, f"10.0.0.{i + 1}")


def rosters(cluster: Cluster, generation: int) -> dict[str, list[int | None]]:
    """The ranks that each member was ever given of a generation."""
    uids = {name: cluster.pods[name]["metadata"]["uid"] for name in PODS}
    return {
        name: [
            r.rank
            for r in cluster.rosters[uid]
            if r.answer == "sealed" and r.generation == generation
        ]
        for name, uid in uids.items()
    }


def tokens(cluster: Cluster, generation: int) -> set[str | None]:
    every = [r for said in cluster.rosters.values() for r in said]
    return {r.token for r in every if r.answer == "sealed" and r.generation == generation}


def written(cluster: Cluster) -> list[str]:
    return [
        one["data"]["generation"] for one in cluster.records if "generation" in one.get("data", {})
    ]


@pytest.mark.parametrize("late", [False, True], ids=["before it arrives", "before its answer"])
@pytest.mark.parametrize("step", STEPS)
async def test_the_first_generation_is_finished_by_the_next_leader(
    step: int, late: bool, cluster: Cluster, target: Connection, tmp_path: Path
) -> None:
    async with replica(target, cluster.namespace, tmp_path / "one") as one:
        await until(lambda: one.leads, "it leads")
        kill = Kill(one, cluster.namespace, step, late)
        await three_members(cluster)
        await until(lambda: kill.reached, f"step {step}")
        await one.kill()
        async with leads(target, epoch=2):
            await cluster.answered("sealed", *PODS, generation=1)
    assert rosters(cluster, 1) == {"pod-0": [0], "pod-1": [1], "pod-2": [2]}
    assert len(tokens(cluster, 1)) == 1
    assert written(cluster) == ["1"]


@pytest.mark.parametrize("late", [False, True], ids=["before it arrives", "before its answer"])
@pytest.mark.parametrize("step", STEPS)
async def test_the_generation_after_a_replacement_is_finished_by_the_next_leader(
    step: int, late: bool, cluster: Cluster, target: Connection, tmp_path: Path
) -> None:
    async with replica(target, cluster.namespace, tmp_path / "one") as one:
        await three_members(cluster)
        await cluster.answered("sealed", *PODS, generation=1)
        kill = Kill(one, cluster.namespace, step, late)
        await cluster.delete("pod-2")
        await cluster.admit("pod-2", size=3)
        await cluster.address("pod-2", "10.0.0.4")
        await until(lambda: kill.reached, f"step {step}")
        await one.kill()
        async with leads(target, epoch=2):
            await cluster.answered("sealed", *PODS, generation=2)
    assert rosters(cluster, 2) == {"pod-0": [0], "pod-1": [1], "pod-2": [2]}
    assert len(tokens(cluster, 2)) == 1
    assert written(cluster) == ["1", "2"]
