"""This pod's ranks, round after round: each launch is a torchrun of its own, and the last one stays
until the verdict is there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from statistics import median
from types import TracebackType
from typing import Final

import anyio
import msgspec
from preflight_proto.check import Gpu, alive, counters
from preflight_proto.check import gpus as devices
from preflight_proto.check.scan import CounterSample, DeviceFacts, load
from preflight_proto.roster import Roster

from . import equipment, failures, ports, tuning
from .control.messages import (
    Failure,
    LaunchOrder,
    Opened,
    Order,
    ProbeOrder,
    RankReport,
    RankStage,
    StoreOrder,
)
from .launch import LaunchAgent
from .settings import show_size
from .sysfs import Counters
from .tuning import HAIRPIN

TOPOLOGY_FILE: Final = "NCCL_TOPO_FILE"
NVML_WITHIN: Final = 5.0
"""Seconds that the driver has to report a lost GPU: others wait to hear how this member fared."""
REPORT: Final = 1.0
"""And those for the answer to reach the leader."""
SAMPLE_WITHIN: Final = 2.0
"""And those to say why clocks are slow: after a round that went well it answers in milliseconds."""
UNEXPLAINED: Final = "HW_SLOWDOWN"
"""Clocks that the hardware slows down, neither for heat nor for the power supply."""
LEAST_SILENCE: Final = 1.0
"""Seconds without anything of the gang's from which on the adapters' bytes are somebody else's: of
less, the last packets of the round before are too great a part.
"""


class Ranks:
    """``async with Ranks(...)`` loads torch, so that its seconds pass while the gang is awaited;
    leaving ends all.
    """

    def __init__(
        self, environ: Mapping[str, str], address: str, say: Callable[[str], None]
    ) -> None:
        self._environ, self._address, self._say = environ, address, say
        self._counters = Counters(())
        self._group = anyio.create_task_group()
        self._agent: LaunchAgent | None = None
        self._roster: Roster | None = None
        self._count = 0
        self._joined = 0.0
        self._variables: Mapping[str, str] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._renewed = 0
        self._looped = False
        self._quiet: tuple[ports.Reading, float, str] | None = None
        """What the counters said when ours was done, when, and what processor time was spent; None
        where it may go on.
        """
        self._stirred: tuple[ports.Reading, float, str] | None = None
        """Reading, time and spent when a store's order (new workers) ended that silence."""
        self._sample: tuple[CounterSample, ...] = ()
        self._slowed: frozenset[str] = frozenset()
        """Which GPUs said at the last look that the hardware slows them down, and not why."""
        self._counting = False
        """Whether the byte counters have been seen to count a round of ours."""

    async def __aenter__(self) -> Ranks:
        await self._group.__aenter__()
        try:
            await self._loaded()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._agent is not None:
            await self._agent.end()
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(kind, error, trace)

    def join(
        self,
        roster: Roster,
        count: int,
        variables: Mapping[str, str],
        gpus: tuple[Gpu, ...],
        counters: Counters,
    ) -> None:
        """Be ``count`` ranks, with these ``variables`` too, on these ``gpus``, of this roster's
        member, which has just been read; ``counters``: of the ports that the node has by now.
        """
        self._roster, self._count, self._joined = roster, count, anyio.current_time()
        self._variables, self._gpus = variables, gpus
        self._counters, self._counting = counters, False

    async def listen(self) -> None:
        """Nothing of the gang sends here until the next order: what passes is somebody else's. But
        torch is still being loaded, here and by other members on this node.
        """
        await self._faults_of_gpus(SAMPLE_WITHIN)
        reading, now, _ = await self._read()
        self._quiet, self._stirred = (reading, now, ""), None

    async def execute(
        self, order: Order, changed: Callable[[RankStage], None]
    ) -> RankReport | Opened:
        """Do what the leader orders."""
        match order:
            case LaunchOrder():
                return await self._watched(order, self.measure(order, changed))
            case StoreOrder():
                if self._stirred is None:
                    self._stirred = await self._read()
                agent = await self._probers(
                    order.round, fresh=order.fresh, looped=order.hairpin, time=order.within
                )
                opened = await agent.open(order.round, self._address, store=order.store)
                trouble = await self._diagnosed(opened.trouble)
                return msgspec.structs.replace(opened, trouble=trouble)
            case ProbeOrder():
                return await self._watched(order, self._probe(order, changed))

    async def _watched(
        self, order: LaunchOrder | ProbeOrder, work: Coroutine[None, None, RankReport]
    ) -> RankReport:
        """What the work reports, with the error counters of this node's ports that grew meanwhile,
        and what they carried, and others took of its processors, in the silence before.
        """
        quiet, self._quiet = self._quiet, None
        stirred, self._stirred = self._stirred, None
        try:
            before, since, spent = await self._read()
        except BaseException:
            work.close()
            raise
        over, until, spent = stirred or (before, since, spent)
        result = await work
        after, now, spent_now = await self._read()
        seconds = now - since
        # Workers in trouble, and those that are late with a part, may go on.
        if result.trouble is None and (
            isinstance(order, LaunchOrder) or not order.detail or result.detail is not None
        ):
            self._quiet = after, now, spent_now
            # A report that comes too late would be a hang.
            faults = await self._faults_of_gpus(min(SAMPLE_WITHIN, (order.timeout - seconds) / 4))
            for fault in faults:
                self._say(f"round {result.round}: {fault.port} says: {fault.found}")
            result = msgspec.structs.replace(result, devices=faults)
        if quiet is not None and until - quiet[1] < LEAST_SILENCE:
            quiet = None
        if quiet is not None:
            result = msgspec.structs.replace(result, load=ports.taken(quiet[2], spent))
        if not before or not after:
            return result
        # Where they do not count what is ours, they would not count what is others' either.
        self._counting = self._counting or (ports.carried(before, after) or 0) >= order.size
        where = f"round {result.round}:"
        if quiet is not None and self._counting:
            silence, strange = until - quiet[1], ports.carried(quiet[0], over)
            if strange is not None:
                gbps = strange / silence / 1e9
                self._say(
                    f"{where} in {silence:.1f} s before it, without anything of the gang's, others moved {gbps:.3g} GB/s"
                )
                whole = silence if self._counters.whole else 0.0
                result = msgspec.structs.replace(result, silence=whole, foreign=gbps)
        errors = ports.grown(before, after, seconds)
        for e in errors:
            self._say(f"{where} port {e.port} counted {e.count} {e.counter} in {seconds:.1f} s")
        return msgspec.structs.replace(result, errors=errors, watched=max(seconds, 1e-3))

    async def _read(self) -> tuple[ports.Reading, float, str]:
        """The counters, the second, and the kernel's account of processor time."""
        return await self._counters.read(), anyio.current_time(), self._counters.processors()

    async def _faults_of_gpus(self, within: float) -> tuple[ports.PortFault, ...]:
        """Why the driver or the hardware slows their clocks down now, and what PCIe has repeated
        since they were last asked. Not asked under load, nor where something is wrong: a driver
        that hangs must have no other question when it is to say which GPU is lost.
        """
        was, self._sample = self._sample, ()
        if self._gpus and within > 0:
            self._sample = await counters.sample(self._gpus, within)
        before, after = (
            [DeviceFacts(device.uuid, pcie_replays=device.pcie_replays) for device in sample]
            for sample in (was, self._sample)
        )
        signs = load(before, after, self._sample)
        # So a driver calls a mere change of clocks as well (nvml.h), such as the end of a round
        # makes: it counts from the second look in a row.
        slowed = frozenset(sign.uuid for sign in signs if sign.code == UNEXPLAINED)
        passing, self._slowed = slowed - self._slowed, slowed
        faults = []
        for sign in signs:
            kind = equipment.GPUS.get(sign.source)
            if kind is not None and not (sign.code == UNEXPLAINED and sign.uuid in passing):
                text = f"{sign.says} ({sign.reading})" if sign.reading else sign.says
                faults.append(ports.PortFault(sign.uuid, kind, text, ""))
        return tuple(faults[: ports.MOST])

    async def measure(self, start: LaunchOrder, changed: Callable[[RankStage], None]) -> RankReport:
        """One round; ``changed`` hears how far the slowest of these ranks is. Its processes stay
        until the next or the end.
        """
        roster = self._roster
        assert roster is not None
        self._say(
            f"round {start.round}: {self._count} of {start.world} ranks here, {start.backend}, {show_size(start.size)} per rank, {start.warmup}+{start.iterations} iterations, rendezvous {roster.master_addr}:{start.master_port}{', without a topology file' if start.without_topology_file else ''}"
        )
        agent = await self._loaded()
        ready_said = False

        def notify(stage: RankStage) -> None:
            nonlocal ready_said
            changed(stage)
            if stage.name == "ready" and not ready_said:
                ready_said = True
                self._say("the communicator works")

        self._looped = False
        variables: dict[str, str | None] = {**self._variables}
        if start.without_topology_file:
            variables[TOPOLOGY_FILE] = None
        result = await agent.run(
            start, roster, self._address, self._count, notify, variables=variables
        )
        result = await self._explained(result)
        self._report("here", result)
        if result.trouble is not None:
            for line in agent.output.splitlines()[-20:]:
                self._say(f"| {line}")
        if result.networks:
            self._say(f"NCCL's network here: {', '.join(result.networks)}")
        if (began := agent.began) is not None:
            whole, torchrun = began[0] - self._joined, began[1]
            self._say(
                f"from the roster to the first timed iteration: {whole:.3f} s; torchrun's own start: {torchrun:.3f} s; without it: {whole - torchrun:.3f} s"
            )
        return result

    async def _probe(self, probe: ProbeOrder, changed: Callable[[RankStage], None]) -> RankReport:
        assert self._roster is not None
        agent = await self._probers(
            probe.round, fresh=probe.fresh, looped=probe.hairpin, time=probe.init
        )
        count = probe.hairpin or self._count
        result = await self._explained(await agent.probe(probe, self._roster, count, changed))
        what = "hairpin" if probe.hairpin else "probe"
        where = f"{what} {probe.index + 1} of round {probe.round}, {probe.world} ranks"
        self._report(f"here: {where}", result)
        return result

    def _report(self, what: str, result: RankReport) -> None:
        if result.trouble is not None:
            self._say(f"{what}: {result.trouble.code}: {result.trouble.text}")
            return
        middle, least, most = (of(result.times) * 1e3 for of in (median, min, max))
        self._say(
            f"{what}: median {middle:.3f} ms, {least:.3f} to {most:.3f} ms; {result.wrong} wrong element(s) in {result.verified} verified iterations"
        )

    async def _probers(
        self, number: int, *, fresh: bool, looped: int, time: float = 0.0
    ) -> LaunchAgent:
        """Whose workers serve probes: the last launch's own, which have all loaded already, or new
        ones where these may hang.

        ``looped``: so many that speak to each other over the node's NICs, which takes workers of
        their own. ``time``: seconds until they must have found each other; whether the old ones are
        gone has to be reported before.
        """
        agent, roster = self._agent, self._roster
        assert agent is not None
        assert roster is not None
        if (fresh or bool(looped) is not self._looped) and self._renewed != number:
            self._renewed, self._looped = number, bool(looped)
            usual = {**self._environ, **self._variables}
            own = {name: HAIRPIN[name] if looped else usual.get(name) for name in HAIRPIN}
            within = max(time / 2, time - NVML_WITHIN - REPORT)
            first, count = (roster.rank or 0) * self._count, looped or self._count
            await agent.fork(count, first, self._count, {**own, **tuning.FRESH}, within)
        return agent

    async def _loaded(self) -> LaunchAgent:
        """The process that holds torch; another one where it has ended."""
        if self._agent is None or self._agent.ended:
            if self._agent is not None:
                await self._agent.end()
            self._agent = agent = LaunchAgent({**self._environ, **self._variables}, self._group)
            await agent.load()
            self._group.start_soon(self._report_loaded, agent, anyio.current_time())
        return self._agent

    async def _explained(self, result: RankReport) -> RankReport:
        """A failure's cause: a GPU that the driver has lost explains whatever else was said."""
        trouble = await self._diagnosed(result.trouble)
        return result if trouble == result.trouble else RankReport(result.round, trouble=trouble)

    async def _diagnosed(self, trouble: Failure | None) -> Failure | None:
        """What the driver makes of it: a GPU that is lost, or that answers nobody."""
        if trouble is None or not self._gpus:
            return trouble
        if trouble.code == "RANK_STUCK":
            if self._agent is None or not self._agent.asleep:
                return trouble
            silent = await alive.silent(self._gpus, NVML_WITHIN)
            return failures.unresponsive(silent) if silent else trouble
        lost: dict[str, str] = {}
        with anyio.move_on_after(NVML_WITHIN):
            lost = await devices.lost(self._gpus)
        if not lost:
            return trouble
        faults = "; ".join(f"{uuid}: {words}" for uuid, words in sorted(lost.items()))
        return Failure("device", "GPU_LOST", f"the driver has lost {faults}")

    async def _report_loaded(self, agent: LaunchAgent, since: float) -> None:
        await agent.loaded.wait()
        self._say(f"torch is loaded after {anyio.current_time() - since:.1f} s")
