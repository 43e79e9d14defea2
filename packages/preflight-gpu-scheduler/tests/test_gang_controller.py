"""What the leader remembers of gangs and pods that wait, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import msgspec
import pytest
from mirrors import Mirrors
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.allocation import (
    GangStart,
    Reserved,
    binding_annotations,
    written,
)
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.controller.apply import Executor
from preflight_gpu_scheduler.controller.controller import CLAIM_PATIENCE
from preflight_gpu_scheduler.controller.gang_controller import GangController
from preflight_gpu_scheduler.core.protocol import (
    DeleteLease,
    RaiseReclaimed,
    ReadPod,
    Steps,
    Stored,
)
from shapes import lease, node, pod


class Stores:
    """An executor of which every gang is told at once."""

    async def run(self, steps: Steps[Any], budget: float) -> Any:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value
        return ""


class Leader(Mirrors):
    def __init__(self) -> None:
        super().__init__(count_resource="")
        self.show("node", node("a"))
        self.status("a", *({"id": n} for n in range(4)))
        self.leader, _ = self.leads()

    def member(self, name: str, need: int, gpu: int) -> None:
        """A pod of the gang ``job`` with the lease of a GPU."""
        start = written(GangStart(start="job", need=need))
        said = {names.CLAIM_ANNOTATION: "job", names.GANG_SIZE_ANNOTATION: "2"}
        self.show("pod", pod(name, annotations={**said, names.RESERVED_ANNOTATION: start}))
        self.show("lease", lease("a", gpu, f"uid-{name}", name=name))

    def seconds_waited(self) -> float:
        return self.registry.get_sample_value("gpu_scheduler_gang_wait_seconds_sum") or 0.0


def test_a_gang_that_lost_a_member_waits_from_then_on_and_not_from_its_first_start() -> None:
    seen = Leader()
    seen.claim("job", 1, gang="job")
    for gpu, name in enumerate(("g-0", "g-1")):
        seen.member(name, 2, gpu)
    metrics, told = seen.leader._metrics, lambda *_, **__: True
    gangs = GangController(seen.state, metrics, cast(Executor, Stores()), told)
    anyio.run(gangs._round)
    start = written(GangStart(start="job", need=2))
    runs = binding_annotations("a", (0,), {})
    said = {names.CLAIM_ANNOTATION: "job", names.GANG_SIZE_ANNOTATION: "2"}
    annotations = {**said, **runs, names.RESERVED_ANNOTATION: start}
    seen.show("pod", pod("g-0", annotations=annotations, node_name="a"))
    seen.show("pod", pod("g-1"), deleted=True)
    seen.now += 3600
    seen.member("g-2", 1, 2)
    anyio.run(gangs._round)
    assert seen.registry.get_sample_value("gpu_scheduler_gang_wait_seconds_count") == 2
    assert seen.seconds_waited() < CLAIM_PATIENCE


def test_of_a_pod_that_went_while_it_waited_for_its_claim_nothing_is_kept() -> None:
    seen = Leader()
    leader = seen.leader
    seen.state.listeners.append(leader._changed)
    waits = pod("p", gated=True, annotations={names.CLAIM_ANNOTATION: "absent"})
    seen.show("pod", waits)
    assert anyio.run(leader._reconcile_pod, waits.key) is not None
    seen.show("pod", waits, deleted=True)
    assert leader._since._since == {}


class Answers:
    """An executor to which everything is answered; ``sent``: the kinds of requests; ``first``: the
    pod that is read.
    """

    def __init__(self) -> None:
        self.sent: list[type] = []
        self.first: Pod | None = None

    async def run(self, steps: Steps[Any], budget: float) -> Any:
        try:
            batch = next(steps)
            while True:
                self.sent += map(type, batch)
                reads = (isinstance(request, ReadPod) for request in batch)
                batch = steps.send(tuple(Stored(self.first if read else None) for read in reads))
        except StopIteration as ended:
            return ended.value


def gpus_of_b(seen: Leader, *uuids: str) -> None:
    devices = ({"id": n, "uuid": uuid} for n, uuid in enumerate(uuids))
    seen.status("b", *devices, observed=f"{uuids}")


@pytest.mark.parametrize(
    "goes",
    [
        lambda seen: seen.show("node", node("b"), deleted=True),
        lambda seen: gpus_of_b(seen, "GPU-y", "GPU-x"),
        lambda seen: seen.status("b", {"id": 1, "uuid": "GPU-y"}),
    ],
    ids=["the node", "its id", "the gpu"],
)
def test_a_member_whose_gpu_went_after_its_gang_had_begun_is_placed_anew_and_no_other(
    goes: Callable[[Leader], None],
) -> None:
    seen, ours = Leader(), Answers()
    seen.show("node", node("b"))
    gpus_of_b(seen, "GPU-x", "GPU-y")
    for n, where in enumerate("ab"):
        share = Reserved(
            number=1, node=where, ids=(0,), plan="x", members=2, first="g-0", first_uid="uid-g-0"
        )
        reserved = {names.CLAIM_ANNOTATION: "job", names.RESERVED_ANNOTATION: written(share)}
        runs = binding_annotations("a", (0,), {}) if where == "a" else {}
        member = pod(f"g-{n}", annotations={**reserved, **runs}, node_name=where if runs else "")
        seen.show("pod", member)
        ours.first = ours.first or member
        held = lease(where, 0, f"uid-g-{n}", name=f"g-{n}")
        about = {**(held.metadata.annotations or {}), names.UUID_ANNOTATION: "GPU-x"}
        named = msgspec.structs.replace(held.metadata, annotations=about)
        seen.show("lease", msgspec.structs.replace(held, metadata=named))
    leader = seen.leader
    leader._executor = cast(Executor, ours)

    def requests() -> list[type]:
        anyio.run(leader._reconcile_lease, ("team", names.lease_name("b", 0)))
        seen.now += 100
        return ours.sent

    requests()
    assert requests() == [ReadPod], "it will be bound"
    goes(seen)
    assert requests() == [ReadPod, ReadPod, RaiseReclaimed, DeleteLease]
