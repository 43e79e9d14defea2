"""Gangs at work: who is whole gets a plan, and every member's GPUs or none. One round at a time, by
whoever leads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
from preflight_kube.logs import get_logger

from . import plan as planning
from .config import Config
from .gangs import reserve
from .holding import Sightings
from .meters import ControllerMeters
from .objects import Pod
from .performing import Performer
from .plan import Gang, PlanNode, Turn
from .state import Key, State

__all__ = ["Ganging"]

log = get_logger(__name__)

_AT_ONCE: Final = 16
"""Leases of a plan that are created side by side, in sorted order: only one plan is carried out at
a time.
"""
_GATHERED: Final = 0.2
"""Seconds from a change to the look at all gangs, as members come one after the other."""
_LOOK: Final = 5.0
_BUDGET: Final = 60.0
Say = Callable[[Pod, str, str, bool], Awaitable[None]]


class Ganging:
    """``say``: writes an Event of a pod, as :meth:`.words.Words.of_pod`."""

    def __init__(
        self, config: Config, seen: State, meters: ControllerMeters, performer: Performer, say: Say
    ) -> None:
        self._config, self._seen, self._meters, self._performer, self._say = (
            config,
            seen,
            meters,
            performer,
            say,
        )
        self._whole = Sightings()
        self._woken = anyio.Event()
        self._told: dict[Key, str] = {}

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
        gangs = planning.gather(pods, claims, seen.groups())
        waits = {key: gang for key, gang in gangs.items() if gang.open}
        now = seen.now()
        waited = {}
        for key, gang in gangs.items():
            if gang.open and not planning.missing(gang):
                waited[key] = self._whole.note("/".join(key), True, now)
            else:
                self._whole.forget("/".join(key))
        self._meters.gangs.labels("waiting").set(len(waits))
        self._meters.gangs.labels("reserved").set(sum(bool(one.reserved) for one in gangs.values()))
        for gone in self._told.keys() - waits.keys():
            del self._told[gone]
        if not waits:
            return
        nodes = {
            name: PlanNode(node=seen.nodes[name], view=view, uuids=seen.uuids(name))
            for name, view in seen.views().items()
            if name in seen.nodes
        }
        for turn in planning.turns(
            waits.values(), nodes, waited, self._config.seconds("gang_patience")
        ):
            await self._turn(turn, waited.get(turn.gang.key, 0.0))

    async def _turn(self, turn: Turn, waited: float) -> None:
        gang = turn.gang
        about = {"gang": "/".join(gang.key), "members": len(gang.members)}
        why = turn.why
        if not why:
            steps = reserve(turn.assignments, self._seen.look, at_once=_AT_ONCE)
            made = await self._performer.run(steps, budget=_BUDGET)
            why = made.why
        if why:
            await self._waits(gang, why)
            return
        self._meters.gang_wait.observe(waited)
        log.info("gang reserved", plan=made.plan, **about)
        self._told.pop(gang.key, None)
        await self._shown([one.pod for one in turn.assignments])
        for one in turn.assignments:
            ids = ",".join(map(str, one.ids))
            await self._say(
                one.pod,
                "GangReserved",
                f"gang {gang.key[1]} is reserved whole; GPUs {one.node}:{ids}",
                True,
            )

    async def _shown(self, pods: Sequence[Pod]) -> None:
        """Wait until the mirror shows what was written: of an older view the same gang would be
        planned again.
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
