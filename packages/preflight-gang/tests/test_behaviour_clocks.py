"""Clocks that jump: two replicas, each with one of its own, and both may believe to lead."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from played import Cluster
from preflight_gang.config import Config
from preflight_gang.controller.controller import Controller
from preflight_gang.metrics import Metrics
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.clock import Clock
from preflight_kube.runtime.lease import lead

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

PODS = ("pod-0", "pod-1", "pod-2")


class Jumping:
    """Leaps by up to an hour, forwards or backwards, at one reading in thirty; ``jumps`` times in
    all.
    """

    def __init__(self, seed: int, jumps: int, sign: int) -> None:
        self.random, self.left, self.sign, self.off = random.Random(seed), jumps, sign, 0.0

    def __call__(self) -> float:
        if self.left and self.random.random() < 1 / 30:
            self.left -= 1
            self.off += (
                self.sign * self.random.uniform(0, 3600)
                if self.sign
                else self.random.uniform(-3600, 3600)
            )
        return time.monotonic() + self.off


@asynccontextmanager
async def standing(
    target: Connection, namespace: str, identity: str, clock: Clock
) -> AsyncIterator[None]:
    """A replica that mirrors, stands for election and leads."""
    async with (
        Client(target, agent="tests", clock=clock) as client,
        anyio.create_task_group() as group,
    ):
        controller = Controller(client, Config(), Metrics())
        group.start_soon(controller.mirror)

        async def stand() -> None:
            await lead(
                client,
                namespace=namespace,
                name="one",
                identity=identity,
                duration=2,
                retry=0.2,
                body=controller.lead,
            )

        group.start_soon(stand)
        yield
        group.cancel_scope.cancel()


@pytest.mark.parametrize("sign", [1, -1, 0], ids=["forwards", "backwards", "both ways"])
async def test_whatever_clocks_do_each_generation_is_sealed_once_and_all_are_told_the_same(
    sign: int, cluster: Cluster, target: Connection
) -> None:
    clocks = [Jumping(seed, 40, sign) for seed in (1, 2)]
    async with (
        standing(target, cluster.namespace, "a", Clock(clocks[0])),
        standing(target, cluster.namespace, "b", Clock(clocks[1])),
    ):
        for i, name in enumerate(PODS):
            await cluster.admit(name, size=3)
            await cluster.address(name, f"10.0.0.{i + 1}")
        await cluster.answered("sealed", *PODS, generation=1, seconds=60)
        for name in PODS:
            await cluster.test(name)
        for name in PODS:
            await cluster.test(name, restarts=1)
        await cluster.answered("sealed", *PODS, generation=2, seconds=60)
        await cluster.delete("pod-1")
        await cluster.admit("pod-1", size=3)
        await cluster.address("pod-1", "10.0.0.9")
        for name in ("pod-0", "pod-2"):
            await cluster.test(name, restarts=2)
        await cluster.answered("sealed", *PODS, generation=3, seconds=60)
    assert any(clock.left < 40 for clock in clocks), "they did jump"
    published = [r for rosters in cluster.rosters.values() for r in rosters if r.answer == "sealed"]
    for generation in (1, 2, 3):
        mine = {(r.rank, r.pod_uid, r.token) for r in published if r.generation == generation}
        assert sorted(rank for rank, _, _ in mine if rank is not None) == [0, 1, 2]
        assert len({token for _, _, token in mine}) == 1
    written = [
        one["data"]["generation"] for one in cluster.records if "generation" in one.get("data", {})
    ]
    assert written == ["1", "2", "3"]


def test_a_clock_never_goes_back_and_goes_on_after_a_jump() -> None:
    readings = iter([10.0, 11.0, 5.0, 6.0, 100.0, 101.0])
    clock = Clock(lambda: next(readings))
    assert [clock() for _ in range(5)] == [11.0, 11.0, 12.0, 106.0, 107.0]
