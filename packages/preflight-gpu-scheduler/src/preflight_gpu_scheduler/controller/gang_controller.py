"""Gangs at work: who is whole may start, and every member that has its GPUs is told so. One round
at a time, by whoever leads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
from preflight_kube.logs import get_logger

from preflight_gpu_scheduler.api.allocation import GangStart
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.controller.apply import Executor
from preflight_gpu_scheduler.core import gang_plan
from preflight_gpu_scheduler.core.gang_plan import Gang, Member
from preflight_gpu_scheduler.core.gang_reserve import Assignment, tell
from preflight_gpu_scheduler.core.lease_state import Sightings
from preflight_gpu_scheduler.core.node_view import own_ids
from preflight_gpu_scheduler.core.protocol import Lost, Refused, ReservePod, only
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot
from preflight_gpu_scheduler.metrics import GpuControllerMetrics

__all__ = ["GangController"]

log = get_logger(__name__)

_GATHERED: Final = 0.2
"""Seconds from a change to the look at all gangs, as members come one after the other."""
_LOOK: Final = 5.0
_BUDGET: Final = 60.0
Say = Callable[[Pod, str, str, bool], Awaitable[None]]


class GangController:
    """``say``: writes an Event of a pod, as :meth:`.events.GpuEventRecorder.of_pod`."""

    def __init__(
        self,
        seen: GpuSnapshot,
        metrics: GpuControllerMetrics,
        executor: Executor,
        say: Say,
    ) -> None:
        self._seen, self._metrics = seen, metrics
        self._executor, self._say = executor, say
        self._whole = Sightings()
        self._woken = anyio.Event()
        self._told: dict[tuple[str, str, str], str] = {}

    def look(self) -> None:
        """Something changed that gangs may have waited for."""
        self._woken.set()

    async def run(self) -> None:
        """A round at each change, and every few seconds, until cancelled."""
        while True:
            with anyio.move_on_after(_LOOK):
                await self._woken.wait()
                await anyio.sleep(_GATHERED)
            self._woken = anyio.Event()
            await self._round()

    async def _round(self) -> None:
        seen = self._seen
        claims = seen.gang_claims()
        pods = (pod for pod in seen.pods_of(claims) if not seen.miscount(pod))
        gangs = gang_plan.gather(pods, claims, seen.groups())
        waits = {key: gang for key, gang in gangs.items() if gang.open}
        self._metrics.gangs.labels("waiting").set(len(waits))
        reserved = (
            any(m.pod.reserved and not m.pod.bound for m in g.members) for g in gangs.values()
        )
        self._metrics.gangs.labels("reserved").set(sum(reserved))
        for gone in self._told.keys() - waits.keys():
            del self._told[gone]
        for key, gang in waits.items():
            found = gang_plan.start(gang)
            if isinstance(found, str):
                self._whole.forget("/".join(key))
                await self._waits(gang, found)
                continue
            self._whole.note("/".join(key), True, seen.now())
            await self._start(gang, found)
            await self._finish(gang, found)

    async def _start(self, gang: Gang, start: GangStart) -> None:
        """Those that may start together know it, and are not gated any more."""
        for member in gang.open:
            pod, known = member.pod, member.pod.start
            if known is not None and (known.start, known.need) == (start.start, start.need):
                continue
            # Where it changed meanwhile it is looked at again.
            answer = await self._executor.run(only(ReservePod(pod=pod, reserved=start)), _BUDGET)
            if isinstance(answer, Refused | Lost):
                why = answer.why if isinstance(answer, Refused) else "no answer"
                log.warning("a member is not started", pod="/".join(pod.key), error=why)

    async def _finish(self, gang: Gang, start: GangStart) -> None:
        """Where as many as are needed have their leases they are told; then they may be bound."""
        made = [found for one in gang.open if (found := self._assigned(one, start)) is not None]
        if len(made) < start.need:
            return
        leases = [one for a in made for one in self._seen.held_by(a.pod.metadata.uid)]
        result = await self._executor.run(tell(made, leases), _BUDGET)
        if result.why:
            await self._waits(gang, result.why)
            return
        self._metrics.gang_wait.observe(
            self._whole.note("/".join(gang.key), True, self._seen.now())
        )
        log.info("gang reserved", plan=result.plan, gang="/".join(gang.key), members=len(made))
        self._told.pop(gang.key, None)
        await self._shown([one.pod for one in made])
        first = min(made, key=lambda one: one.pod.metadata.name)
        ids = ",".join(map(str, first.ids))
        said = f"gang {gang.key[1]} is reserved whole, {len(made)} members; GPUs {first.node}:{ids}"
        await self._say(first.pod, "GangReserved", said, True)

    def _assigned(self, member: Member, start: GangStart) -> Assignment | None:
        pod, leases = member.pod, self._seen.held_by(member.pod.metadata.uid)
        own = own_ids(leases, pod)
        if pod.start is None or (pod.start.start, pod.start.need) != (start.start, start.need):
            return None
        if len(own) != 1:
            return None
        ((node, ids),) = own.items()
        if len(ids) != member.claim.spec.devices.count:
            return None
        return Assignment(pod=pod, node=node, ids=ids)

    async def _shown(self, pods: Sequence[Pod]) -> None:
        """Wait until the mirror shows what was written: of an older view the same gang would be
        told again.
        """
        with anyio.move_on_after(_LOOK):
            # One look for many pods.
            while any(self._seen.pods.get(one.key) == one for one in pods):  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def _waits(self, gang: Gang, why: str) -> None:
        """Said once of each reason, on one member: the first that waits."""
        if self._told.get(gang.key) == why:
            return
        self._told[gang.key] = why
        log.info("gang waits", gang="/".join(gang.key), why=why)
        await self._say(gang.open[0].pod, "GangWaiting", f"gang {gang.key[1]} waits: {why}", False)
