"""The check's whole way: what this pod brings → its roster → the parents' channel → torchrun → one verdict for all.

Rank 0's parent also leads: see :mod:`.control.leader`. What decides is in :mod:`.judge`; this process never loads torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import anyio
from preflight_proto.check import Check, Gpu, Inconclusive, Run, Verdict, nccl, node, run_main
from preflight_proto.check.topology import find_topology
from preflight_proto.roster import Roster

from . import blame, domains, judge, network
from .budget import Budget
from .control.leader import Leader, Rounds
from .control.member import Member
from .control.messages import Hello, Start, Trouble, VerdictMessage
from .control.rounds import Probes, Round
from .ranks import TOPOLOGY_FILE, Ranks
from .settings import Settings

__all__ = ["CHECK", "main"]

LEAST_PATIENCE: Final = 30.0
"""Seconds that the members have to find each other even when the roster came at the last moment."""


@dataclass
class Equipment:
    """What this pod brings. With ``trouble`` it cannot take part, and the gang is told."""

    backend: str = "gloo"
    workers: int = 1
    gpus: tuple[Gpu, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the workers get besides the environment."""
    topology_file: str = ""
    """As the gang is told of it; see :class:`.control.messages.Hello`."""
    trouble: Trouble | None = None


async def probe(run: Run[Settings]) -> Verdict:
    """One gang, one verdict. Joins again when the gang changes before its run has begun."""
    environ, unusual = _environment(os.environ, run.gang.settings.pod_ip)
    async with Ranks(environ, run.gang.settings.pod_ip, run.progress) as ranks:
        while True:
            ended = await _once(run, ranks, tuple(unusual))
            if ended is not None:
                return ended
            run.progress("the gang changed before its run began; waiting for the new one")


async def _once(run: Run[Settings], ranks: Ranks, unusual: tuple[str, ...]) -> Verdict | None:
    """Join one generation; None when it ended before its run began."""
    roster, equipment = await _gather(run)
    assert roster.rank is not None
    hello = Hello(
        rank=roster.rank,
        pod=run.kit.pod_name,
        node=run.kit.node_name,
        backend=equipment.backend,
        workers=equipment.workers,
        model=equipment.gpus[0].name if equipment.gpus else "",
        fabric=run.settings.fabric,
        unusual=unusual,
        topology=domains.kept(await node.topology(run.gang.settings.folder), run.settings.domain_label),
        topology_file=equipment.topology_file,
        trouble=equipment.trouble,
    )
    ranks.join(roster, equipment.workers, equipment.variables, equipment.gpus)
    member = Member(roster, hello, run.gang.settings.pod_ip, run.progress)
    verdict = await _take_part(run, roster, member, ranks)
    run.progress(f"memory of this process, which holds no torch: {_peak():.1f} MB at most")
    return None if verdict is None else blame.verdict_of(verdict, roster.rank)


def _peak() -> float:
    """The most memory that this process has held, in MB (10^6 bytes); 0 where the kernel does not say."""
    try:
        rows = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(row.split()[1]) * 1024 / 1e6 for row in rows if row.startswith("VmHWM:")), 0.0)


async def _gather(run: Run[Settings]) -> tuple[Roster, Equipment]:
    """The roster to join, and what this pod brings: found while the gang is awaited."""
    equipment = Equipment()

    async def look() -> None:
        nonlocal equipment
        equipment = await _equipment(run)

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        roster = await run.roster()
    return roster, equipment


async def _equipment(run: Run[Settings]) -> Equipment:
    """Trouble in finding the GPUs is told to the gang, which then ends together instead of waiting for this pod."""
    wanted = run.settings.backend
    if wanted == "gloo" or (wanted == "auto" and run.kit.expected_gpus == 0):
        run.progress("backend gloo, one worker: this run says nothing about GPUs")
        return Equipment()
    try:
        gpus = await run.gpus()
        chosen = await find_topology(run.settings, os.environ)
    except Inconclusive as error:
        return Equipment("nccl", trouble=Trouble("local", error.code, error.reason.rstrip(".")))
    run.progress(f"topology: {chosen.why}")
    variables = {TOPOLOGY_FILE: chosen.path} if chosen.path is not None else {}
    mig = [gpu for gpu in gpus if gpu.mig]
    trouble = Trouble("local", "MIG", f"NCCL does not span MIG devices, and this pod has {len(mig)}") if mig else None
    return Equipment("nccl", len(gpus), gpus, variables, chosen.why if variables else "", trouble)


async def _take_part(run: Run[Settings], roster: Roster, member: Member, ranks: Ranks) -> VerdictMessage | None:
    """Member, and leader where this is rank 0, until the verdict; None when the roster changed before the run began."""
    allowed = run.kit.check_timeout or run.check.timeout
    patience = max(run.gang.patience, LEAST_PATIENCE)
    run.restart_deadline(patience + 2 * LEAST_PATIENCE + allowed)
    verdict: VerdictMessage | None = None
    async with anyio.create_task_group() as helpers:
        helpers.start_soon(_start_clock, run, member, allowed)
        watching = anyio.CancelScope()
        async with anyio.create_task_group() as group:
            if roster.rank == 0:
                group.start_soon(_lead, run, roster, patience, allowed)
            group.start_soon(_watch_roster, run, roster, member, group.cancel_scope, watching)
            verdict = await member.take_part(patience + LEAST_PATIENCE, ranks.obey)
            watching.cancel()  # the verdict stands; the leader stays until all have it
        helpers.cancel_scope.cancel()
    return verdict


async def _start_clock(run: Run[Settings], member: Member, allowed: float) -> None:
    await member.begun.wait()
    run.restart_deadline(allowed)


async def _watch_roster(
    run: Run[Settings], roster: Roster, member: Member, all_of_it: anyio.CancelScope, watching: anyio.CancelScope
) -> None:
    with watching:
        now = await run.roster_changed(roster)
        code, reason = (
            "GANG_CHANGED",
            f"generation {roster.generation} no longer holds: the controller says {now.answer}",
        )
        if now.answer == "fail":
            code, reason = "PEER_FAILED", now.reason or "another member failed"
        elif not member.begun.is_set():
            all_of_it.cancel()
            return
        reason = reason.rstrip(".") + "."
        await member.leave(code, reason)
        raise Inconclusive(code, reason)


async def _lead(run: Run[Settings], roster: Roster, patience: float, allowed: float) -> None:
    address = run.gang.settings.pod_ip
    assert roster.master_port is not None
    master_port = roster.master_port
    budget = Budget(allowed)
    begun: float | None = None
    launched = 0.0
    probing: float | None = None

    def spent() -> float:
        """Seconds since the first launch."""
        nonlocal begun
        begun = begun or anyio.current_time()
        return anyio.current_time() - begun

    def left(rounds: Rounds) -> float:
        """Seconds for what comes next: once a launch has ended, that may be probes."""
        nonlocal probing
        if not rounds:
            return budget.left(spent())
        probing = spent() if probing is None or isinstance(rounds[-1], Round) else probing
        return budget.probes(spent(), probing)

    def say(text: str) -> None:
        run.progress(f"leader: {text}")

    def step(hellos: Mapping[int, Hello], rounds: Rounds) -> Start | Probes | VerdictMessage:
        ports = (master_port, *([network.free_port(address)] if rounds else []))
        may_retry = budget.left(spent()) > budget.launch
        spare = budget.spare(spent(), spent() - launched)
        plan = judge.Plan(run.settings, ports, left(rounds), may_retry, spare, seed=roster.generation, say=say)
        what = judge.next_step(plan, hellos, rounds)
        if isinstance(what, Start) and not rounds:
            for line in judge.remarks(run.settings, hellos, what):
                say(line)
        return what

    def launch_within(what: Start) -> tuple[float, float]:
        """The first launch may take the gang's share, a second one all but what the report needs, and one without topology files its own."""
        nonlocal launched
        launched = spent()
        if what.without_topology_file:
            return min(budget.launch, what.timeout), what.timeout
        return budget.launch, budget.launch if what.round == 1 else budget.left(launched)

    await Leader(roster, address, say).lead(patience, launch_within, step)


def _environment(environ: Mapping[str, str], address: str) -> tuple[dict[str, str], list[str]]:
    """The workers' environment, and the workload's variables that may bend the measurement."""
    name = network.interface_of(address)
    ours = {"GLOO_SOCKET_IFNAME": name} if name else {}
    if name and not environ.get("NCCL_SOCKET_IFNAME"):
        ours["NCCL_SOCKET_IFNAME"] = f"={name}"  # "=": this name and no other that begins so
    return nccl.environment(environ, **ours), nccl.unusual_variables(environ)


CHECK: Final = Check(
    name="nccl-allreduce",
    condition="NCCLAllReduceTest",
    component="Node",
    settings=Settings,
    probe=probe,
    gang=True,
    on_inconclusive="block",  # ADR-026: a gang that does not form fails its init containers
    about="all-reduce over the whole gang: every element verified, bus bandwidth against a floor.",
)


def main() -> NoReturn:
    run_main(CHECK)
