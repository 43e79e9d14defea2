"""Gangs at work: whole ones may start, members with GPUs are told; one round at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio
from preflight_kube.logs import get_logger

from preflight_gpu_scheduler.api.allocation import Allocation, GangStart
from preflight_gpu_scheduler.controller.apply import Executor
from preflight_gpu_scheduler.controller.cache import GpuCache
from preflight_gpu_scheduler.core import gangs
from preflight_gpu_scheduler.core.filter_prioritize import own_ids
from preflight_gpu_scheduler.core.gangs import Assignment, Gang, Member
from preflight_gpu_scheduler.core.protocol import Lost, Refused, ReservePod, together
from preflight_gpu_scheduler.core.snapshot import Key
from preflight_gpu_scheduler.metrics import GpuControllerMetrics

log = get_logger(__name__)

_GATHERED: Final = 0.2
"""Seconds from a change to the round, as members come one after the other."""
_ROUND: Final = 5.0
_BUDGET: Final = 60.0


class GangController:
    """``event``: records an Event of a pod, and says whether it is new."""

    def __init__(
        self,
        seen: GpuCache,
        metrics: GpuControllerMetrics,
        executor: Executor,
        event: Callable[..., Any],
    ) -> None:
        self._seen, self._metrics, self._executor, self._event = seen, metrics, executor, event
        self._whole: dict[tuple[str, str, str], float] = {}  # since when, of those that wait

    async def reconcile(self, _: Key) -> float:
        """Do a round once members that come together have come; the seconds until the next."""
        await anyio.sleep(_GATHERED)
        await self._round()
        return _ROUND

    async def _round(self) -> None:
        seen, claims = self._seen, self._seen.gang_claims()
        named = [(claim.gang, pod) for key, claim in claims.items() for pod in seen.pods_of(key)]
        # Of gangs that run as a whole, which are most of them, nothing is to be done.
        unbound = {gang for gang, pod in named if not pod.bound}
        pods = (pod for gang, pod in named if gang in unbound and not seen.miscount(pod))
        every = gangs.gather(pods, claims, seen.groups()).values()
        waits = [gang for gang in every if gang.open]
        self._metrics.gangs.labels("waiting").set(len(waits))
        self._metrics.gangs.labels("reserved").set(sum(gang.reserved for gang in every))
        starts = [(gang, gangs.start(gang)) for gang in waits]
        self._whole = {
            gang.key: self._whole.get(gang.key, seen.now())
            for gang, start in starts
            if not isinstance(start, str)
        }
        for gang, start in starts:
            if isinstance(start, str):
                self._waits(gang, start)
                continue
            await self._start(gang, start)
            await self._finish(gang, start)

    async def _start(self, gang: Gang, start: GangStart) -> None:
        """Those that may start together know it, and are not gated any more."""
        pods = [member.pod for member in gang.open if start != member.pod.start]
        writes = tuple(ReservePod(pod=pod, reserved=start) for pod in pods)
        answers = await self._executor.run(together(writes), _BUDGET)
        for pod, answer in zip(pods, answers, strict=True):
            # Where it changed meanwhile it is looked at again.
            if isinstance(answer, Refused | Lost):
                why = answer.why if isinstance(answer, Refused) else "no answer"
                log.warning("gang member not started", pod="/".join(pod.key), error=why)

    async def _finish(self, gang: Gang, start: GangStart) -> None:
        """Where as many as are needed have their leases they are told; then they may be bound."""
        plan = [given for member in gang.open if (given := self._assigned(member, start))]
        if len(plan) < start.need:
            return
        if why := await self._executor.run(gangs.tell(plan), _BUDGET):
            self._waits(gang, why)
            return
        self._metrics.gang_wait.observe(self._seen.now() - self._whole.pop(gang.key))
        name = gangs.plan_name(plan)
        log.info("gang reserved", plan=name, gang="/".join(gang.key), members=len(plan))
        first = min(plan, key=lambda assignment: assignment.pod.name)
        gpus = Allocation(first.node, first.ids)
        message = f"gang {gang.key[1]} is reserved whole, {len(plan)} members; GPUs {gpus}"
        self._event(first.pod, "GangReserved", message, good=True)

    def _assigned(self, member: Member, start: GangStart) -> Assignment | None:
        pod = member.pod
        own = list(own_ids(self._seen.held_by(pod.uid), pod).items())
        if len(own) != 1 or len(own[0][1]) != member.claim.count or start != pod.start:
            return None
        return Assignment(pod=pod, node=own[0][0], ids=own[0][1])

    def _waits(self, gang: Gang, why: str) -> None:
        """Said once of each reason, on one member: the first that waits."""
        pod, message = gang.open[0].pod, f"gang {gang.key[1]} waits: {why}"
        if self._event(pod, "GangWaiting", message):
            log.info("gang waits", gang="/".join(gang.key), why=why)
