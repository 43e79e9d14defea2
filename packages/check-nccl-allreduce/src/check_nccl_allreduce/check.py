"""The check's whole way: what this pod brings → its roster → the parents' channel → torchrun → one
verdict for all.

Rank 0's parent also leads: see :mod:`.control.leader`. What decides is in :mod:`.judge`; this
process never loads torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

import anyio
import msgspec
from preflight_proto.check import (
    Check,
    Failed,
    Gpu,
    Inconclusive,
    Run,
    Skipped,
    Verdict,
    counters,
    nccl,
    node,
    run_main,
)
from preflight_proto.check.topology import find_topology
from preflight_proto.durations import format_duration, gang_run
from preflight_proto.roster import Roster

from . import blame, domains, judge, nics, ports, sysfs, tuning
from .budget import Budget
from .control.leader import Leader, Rounds
from .control.member import MemberSession
from .control.messages import Failure, Hello, LaunchOrder, VerdictMessage
from .control.rounds import LaunchRound, Probes
from .launch import DEATH_WITHIN
from .ranks import TOPOLOGY_FILE, Ranks
from .settings import Settings

MAX_TOPOLOGY_FILE: Final = 1024 * 1024
"""Bytes of a topology file that are compared; published ones have some ten thousand."""
NARRATION: Final = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
"""NCCL names its network at this level alone; :mod:`.failures` takes that, and drops the rest."""
LEAST_PATIENCE: Final = 30.0
"""Seconds that the members have to find each other even when the roster came at the last moment."""


@dataclass
class Equipment:
    """What this pod brings. With ``trouble`` it cannot take part, and the gang hears of it."""

    backend: str = "gloo"
    workers: int = 1
    gpus: tuple[Gpu, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the workers get besides the environment."""
    topology_file: str = ""
    """As the gang hears of it; see :class:`.control.messages.Hello`."""
    topology_content: bytes | None = None
    trouble: Failure | None = None
    nvlink: str = ""
    """The NVLink domain that the driver says these GPUs are in."""
    own: Verdict | None = None
    """What this member knows of itself, whatever the gang concludes: a GPU is missing."""


async def probe(run: Run[Settings]) -> Verdict:
    """One gang, one verdict. Joins again when the gang changes before its run has begun."""
    address = run.gang.settings.pod_ip
    interface = sysfs.interface_of(address)
    environ, chosen = _environment(os.environ, interface)
    if transport := nccl.transport_variables(environ):
        run.progress(f"variables for the network: {', '.join(transport)}")
    async with Ranks(environ, address, run.progress) as ranks:
        while True:
            ended = await _once(run, ranks, interface, environ, chosen)
            if ended is not None:
                # It stands: a rank that sits in the kernel is waited for, and takes nothing back.
                run.restart_deadline(max(run.deadline - anyio.current_time(), 2 * DEATH_WITHIN))
                return ended
            run.progress("the gang changed before its run began; waiting for the new one")


async def _once(
    run: Run[Settings], ranks: Ranks, interface: str | None, environ: Mapping[str, str], chosen: str
) -> Verdict | None:
    """Join one generation; None when it ended before its run began. ``interface``: of the pod's
    address; ``environ``: the workers'; ``chosen``: NCCL_SOCKET_IFNAME where it is ours.
    """
    roster, equipment = await _gather(run)
    assert roster.rank is not None
    labels = await node.topology(run.gang.settings.folder)
    tree = sysfs.snapshot()  # a port may have come up while the gang was awaited
    adapters = _adapters(run, tree)
    # NCCL may reach other nodes by NVLink, as the pod has a channel, and it is not off.
    reaches = nics.reaches(tree) and os.environ.get("NCCL_MNNVL_ENABLE") != "0"
    hello = Hello(
        rank=roster.rank,
        pod=run.kit.pod_name,
        node=run.kit.node_name,
        backend=equipment.backend,
        workers=equipment.workers,
        model=equipment.gpus[0].name if equipment.gpus else "",
        fabric=adapters.fabric,
        nic=adapters.nic,
        imex=adapters.imex,
        rdma=adapters.rdma and not tuning.goes_by_tcp(environ),
        adapters=adapters.findings[: ports.MOST],
        ports=adapters.faults,
        listed=adapters.listed,
        unusual=tuple(nccl.unusual_variables(os.environ, nics.kind_of(adapters.fabric))),
        variables=tuning.digest(environ, chosen),
        nvlink=equipment.nvlink if reaches else "",
        topology=domains.kept(labels, run.settings.domain_label),
        topology_file=equipment.topology_file,
        topology_content=tuning.short(equipment.topology_content or b""),
        trouble=equipment.trouble,
    )
    watched = adapters.watched if run.settings.backend != "gloo" else ()
    # What moves by TCP passes the interface of the pod's address.
    counters = sysfs.Counters(watched or sysfs.interface(interface))
    ranks.join(roster, equipment.workers, equipment.variables, equipment.gpus, counters)
    await ranks.listen()
    member = MemberSession(roster, hello, run.gang.settings.pod_ip, run.progress)
    verdict = await _take_part(run, roster, member, ranks)
    run.progress(f"memory of this process, which holds no torch: {_peak():.1f} MB at most")
    if verdict is None:
        return None
    return equipment.own or blame.verdict_of(verdict, roster.rank)


def _adapters(run: Run[Settings], tree: Mapping[str, str]) -> nics.Adapters:
    """What the node brings; what the operator says of the fabric stands before what was found."""
    recognized = nics.recognize(tree, os.environ.get("NCCL_IB_HCA", ""))
    run.progress(f"network adapters: {recognized.nic or 'none that this pod may use for RDMA'}")
    for finding in recognized.findings:
        run.progress(f"network adapter {finding}")
    if run.settings.fabric:
        run.progress(
            f"fabric {run.settings.fabric}, from NCCL_ALLREDUCE_FABRIC; found: {recognized.fabric or 'unknown'}"
        )
        return replace(recognized, fabric=run.settings.fabric, imex=False)
    channel = ", with a channel to GPUs of other nodes" if recognized.imex else ""
    run.progress(f"fabric {recognized.fabric or 'unknown'}{channel}")
    return recognized


def _peak() -> float:
    """The most memory that this process has held, in MB (10^6 bytes); 0 where it is not known."""
    try:
        rows = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(row.split()[1]) * 1024 / 1e6 for row in rows if row.startswith("VmHWM:")), 0.0)


async def _gather(run: Run[Settings]) -> tuple[Roster, Equipment]:
    """The roster to join, and what this pod brings: found while the gang is awaited."""
    equipment = Equipment()

    async def poll() -> None:
        nonlocal equipment
        equipment = await _equipment(run)

    async with anyio.create_task_group() as group:
        group.start_soon(poll)
        roster = await run.roster()
    return roster, equipment


async def _equipment(run: Run[Settings]) -> Equipment:
    """Trouble in finding GPUs is told to the gang, which ends instead of waiting for this pod."""
    wanted = run.settings.backend
    if wanted == "gloo" or (wanted == "auto" and run.kit.expected_gpus == 0):
        run.progress("backend gloo, one worker: this run says nothing about GPUs")
        return Equipment()
    try:
        gpus = await run.gpus()
        chosen = await find_topology(run.settings, os.environ)
    except (Inconclusive, Skipped) as error:
        return Equipment("nccl", trouble=Failure("local", error.code, error.reason.rstrip(".")))
    except Failed as error:
        verdict = error.verdict
        return Equipment(
            "nccl", trouble=Failure("local", verdict.code, verdict.reason.rstrip(".")), own=verdict
        )
    run.progress(f"topology: {chosen.why}")
    variables = {TOPOLOGY_FILE: chosen.path} if chosen.path is not None else {}
    trouble = None
    if mig := [gpu for gpu in gpus if gpu.mig]:
        why = f"NCCL does not span MIG devices, and this pod has {len(mig)}"
        trouble = Failure("local", "MIG", why)
    content = await _content(chosen.path) if chosen.path is not None else None
    if nvlink := await counters.nvlink_domain(gpus):
        run.progress(f"NVLink domain {nvlink}, by the driver")
    why = chosen.why if variables else ""
    return Equipment("nccl", len(gpus), gpus, variables, why, content, trouble, nvlink)


async def _content(path: str) -> bytes | None:
    """The beginning of a topology file, or None: what is wrong with a file NCCL itself says."""
    try:
        async with await anyio.open_file(path, "rb") as file:
            return await file.read(MAX_TOPOLOGY_FILE)
    except OSError:
        return None


async def _take_part(
    run: Run[Settings], roster: Roster, member: MemberSession, ranks: Ranks
) -> VerdictMessage | None:
    """Member, and leader where this is rank 0 or rank 0 is lost, until the verdict; None when the
    roster changed before the run began.
    """
    assert roster.nnodes is not None
    given = run.kit.check_timeout
    allowed = given or gang_run(roster.nnodes * member.hello.workers)
    patience = max(run.gang.patience, LEAST_PATIENCE)
    run.restart_deadline(patience + 2 * LEAST_PATIENCE + allowed)
    verdict: VerdictMessage | None = None
    async with anyio.create_task_group() as helpers:
        helpers.start_soon(_start_clock, run, member, allowed, given is None)
        watching = anyio.CancelScope()
        async with anyio.create_task_group() as group:
            if roster.rank == 0:
                group.start_soon(_lead, run, roster, patience, given)
            member.lead = lambda place: group.start_soon(_lead_in_place, run, roster, given, place)
            group.start_soon(_watch_roster, run, roster, member, group.cancel_scope, watching)
            verdict = await member.take_part(patience + LEAST_PATIENCE, ranks.execute)
            watching.cancel()  # the verdict stands; the leader stays until all have it
        helpers.cancel_scope.cancel()
    return verdict


async def _start_clock(
    run: Run[Settings], member: MemberSession, allowed: float, grows: bool
) -> None:
    """``grows``: the leader knows what the gang's size allows; members may differ in GPUs."""
    await member.begun.wait()
    run.restart_deadline(max(allowed, member.allowed) if grows else allowed)


async def _watch_roster(
    run: Run[Settings],
    roster: Roster,
    member: MemberSession,
    all_of_it: anyio.CancelScope,
    watching: anyio.CancelScope,
) -> None:
    with watching:
        now = await run.roster_changed(roster)
        why = f"generation {roster.generation} is no longer valid"
        code, reason = "GANG_CHANGED", f"{why}: the controller says {now.answer}"
        if now.answer == "fail":
            code, reason = "PEER_FAILED", now.reason or "another member failed"
        elif not member.begun.is_set():
            all_of_it.cancel()
            return
        reason = reason.rstrip(".") + "."
        await member.leave(code, reason)
        raise Inconclusive(code, reason)


async def _lead_in_place(
    run: Run[Settings], roster: Roster, given: float | None, place: int
) -> None:
    """Rank 0's parent is lost, and this one follows it; where it cannot, the next one does."""
    try:
        await _lead(run, roster, max(run.gang.patience, LEAST_PATIENCE), given, place)
    except Inconclusive as error:
        run.progress(f"this pod cannot lead: {error.reason}")


async def _lead(
    run: Run[Settings], roster: Roster, patience: float, given: float | None, place: int = 0
) -> None:
    """``given``: CHECK_TIMEOUT, None where it grows. ``place``: among those who may lead."""
    address = run.gang.settings.pod_ip
    assert roster.master_port is not None
    master_port = roster.master_port
    budget = Budget(given or gang_run(0))
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
        probing = spent() if probing is None or isinstance(rounds[-1], LaunchRound) else probing
        return budget.probes(spent(), probing)

    def report(text: str) -> None:
        run.progress(f"leader: {text}")

    def step(hellos: Mapping[int, Hello], rounds: Rounds) -> LaunchOrder | Probes | VerdictMessage:
        nonlocal budget, launched
        if not rounds:
            budget = Budget(given or gang_run(sum(hello.workers for hello in hellos.values())))
        plan = judge.JudgePlan(
            run.settings,
            (master_port, *([sysfs.free_port(address)] if rounds else [])),
            left(rounds),
            may_retry=budget.left(spent()) > budget.launch,
            spare=budget.spare(spent(), spent() - launched),
            seed=roster.generation,
            now=anyio.current_time(),
            say=report,
        )
        what = judge.next_step(plan, hellos, rounds)
        if not isinstance(what, LaunchOrder):
            return what
        for line in judge.warnings(run.settings, hellos, what) if not rounds else ():
            report(line)
        # The first launch may take the gang's share, a second one all but what the report needs,
        # and one without topology files its own.
        launched = spent()
        within = budget.left(launched) if rounds else budget.launch
        within = what.timeout if what.without_topology_file else within
        return msgspec.structs.replace(what, allowed=budget.allowed, within=within)

    await Leader(roster, address, report, place=place).lead(patience, step)


def _environment(environ: Mapping[str, str], interface: str | None) -> tuple[dict[str, str], str]:
    """The workers' environment, and NCCL_SOCKET_IFNAME where it is ours."""
    ours = dict(NARRATION)
    ours |= {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    if interface and not environ.get("NCCL_SOCKET_IFNAME"):
        ours["NCCL_SOCKET_IFNAME"] = f"={interface}"  # "=": no other name that begins so
    return nccl.environment(environ, **ours), ours.get("NCCL_SOCKET_IFNAME", "")


CHECK: Final = Check(
    name="nccl-allreduce",
    condition="NCCLAllReduceTest",
    component="Node",
    settings=Settings,
    probe=probe,
    gang=True,
    timeout=gang_run(0),
    timeout_said=f"{format_duration(gang_run(0))}, and {gang_run(513) - gang_run(512):.1f} s for each rank beyond 512",
    on_inconclusive="block",  # ADR-026: a gang that does not form fails its init containers
    tool_variables=("^NCCL_(?!LOOPBACK_|ALLREDUCE_)", "^(UCX|FI|GLOO|TORCH|PYTORCH|TORCHELASTIC)_"),
    about="all-reduce over the whole gang: every element verified, bus bandwidth against a floor.",
)


def main() -> NoReturn:
    """The program."""
    run_main(CHECK)
