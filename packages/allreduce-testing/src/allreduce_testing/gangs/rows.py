"""Runs a row of the fault matrix on real check processes, and compares."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from preflight_testing.matrix.fault import Act, Fault

from .gang import GangUnderTest, MemberProcess
from .links import SwitchedGang

LOADED_WITHIN = 120.0
"""Seconds for torch to be imported, several times at once on whatever machine this is; no row's own
time.
"""
IDLE = 0.2
"""Of the processors' time, at least, while links are measured: below it the machine is measured,
not the links.
"""
APART = 3.0
"""Seconds that stand for those in which somebody else's traffic ends: nobody else is on these
links, and time is all that it costs.
"""
GONE = ("kill", "stop")
"""What is done to a member whose own end says nothing."""


class Discarded(Exception):
    """What was measured does not count: the machine was too busy, or something else disturbed it.
    Says what shows it.
    """


def play_together(rows: Sequence[Fault], home: Callable[[Fault], Path]) -> dict[str, Future[None]]:
    """Play these at the same time, each sealed when torch is loaded in all of them; by row, how it
    ended.

    What is measured on shaped links takes next to no processor time; loading torch takes all that
    there is.
    """
    gate = threading.Barrier(len(rows))

    def one(row: Fault, folder: Path) -> None:
        def loaded() -> None:
            # Where another has failed already there is no reason to wait.
            with suppress(threading.BrokenBarrierError):
                gate.wait()

        try:
            play(row, folder, loaded)
        finally:
            gate.abort()

    with ThreadPoolExecutor(len(rows)) as pool:
        return {row.id: pool.submit(one, row, home(row)) for row in rows}


def play(row: Fault, home: Path, loaded: Callable[[], None] = lambda: None) -> None:
    """Raises AssertionError where the row does not hold, or :class:`Discarded`. Leaves neither
    process nor network behind.

    ``loaded`` is called once torch is, before the rosters are sealed.
    """
    with ExitStack() as stack:
        gang = stack.enter_context(
            (SwitchedGang if row.on_links else GangUnderTest)(home, preloaded=True)
        )
        gang.size = row.members
        if isinstance(gang, SwitchedGang):
            _shape(row, gang)
        if row.taken:
            port = gang.control_port if row.taken == "control" else gang.master_port
            stack.enter_context(gang.listener(port))
        code, variables = _code(row), _variables(row, gang)
        later = {act.member for act in row.acts if act.does == "start"}
        members = [rank for rank in range(row.members) if rank not in {*row.absent, *later}]
        gang.start(*members, code=code, **variables)
        for rank in row.deaf:
            gang.members[rank].connector.mode = "hang"
        for rank in members if row.patience is None else ():
            gang.members[rank].said("torch is loaded", LOADED_WITHIN)
        loaded()
        before = processors()
        gang.seal(*members)
        begun = time.monotonic()
        try:
            for act in row.acts:
                _wait(gang.members[act.of], act.when)
                if act.does == "start":
                    gang.start(act.member, code=code, **variables)
                    gang.seal(act.member)
                _do(gang.members[act.member], act)
            _compare(row, gang, begun)
        except AssertionError as error:
            if row.on_links and (idle := idle_share(before, processors())) < IDLE:
                raise Discarded(
                    f"the processors were idle for {idle:.0%} of the run, less than {IDLE:.0%}"
                ) from error
            raise


def processors() -> tuple[int, int]:
    """(idle, all) since the machine's start, in ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def idle_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Of the processors' time between two readings of :func:`processors`."""
    return (after[0] - before[0]) / max(after[1] - before[1], 1)


def _shape(row: Fault, gang: SwitchedGang) -> None:
    gang.join(row.members)
    for link in row.links:
        gang.shape(link.member, link.sends, link.receives, beyond=link.beyond)
    for lane in row.lanes:
        gang.shape_path(lane.sender, lane.receiver, lane.mbit)
    if row.uplink is not None:
        gang.share_uplink(row.uplink.members, row.uplink.mbit)


def _code(row: Fault) -> str:
    """The check, with a defective agent and other patience where the row says so."""
    changes = [
        "from check_nccl_allreduce import check",
        "from check_nccl_allreduce.localise import score",
    ]
    changes += [f"score.APART = {APART}"]
    changes += [f"check.LEAST_PATIENCE = {row.patience}"] if row.patience is not None else []
    if row.defect is not None and row.defect.what == "topology-file":
        changes += [
            "from allreduce_testing.gangs import doubles",
            "doubles.gloo_gets_a_topology_file()",
        ]
    return "; ".join([*changes, "check.main()"])


def _variables(row: Fault, gang: GangUnderTest) -> dict[str, str]:
    given = (
        {"NCCL_ALLREDUCE_THRESHOLD_GBPS": "0.015", "NCCL_ALLREDUCE_SIZE": "4Mi"}
        if row.on_links
        else {}
    )
    given |= {"CHECK_TIMEOUT": "90s"} if row.on_links else {}
    given["GANG_TIMEOUT"] = "150s"
    if row.patience is not None:
        given["GANG_TIMEOUT"] = "1s"
    if row.defect is not None:
        given |= {"MUTANT": row.defect.what, "MUTANT_RANK": str(row.defect.member)}
        given |= {"MUTANT_ONCE": str(gang.home / "once")} if row.defect.once else {}
        given |= {"MUTANT_IN": "probes"} if row.defect.probes else {}
    return {**given, **row.variables}


def _wait(member: MemberProcess, when: str) -> None:
    if when != "its report":
        member.said(when)
        return
    end = time.monotonic() + 50
    while member.connector.attempts == 0:
        assert time.monotonic() < end, member.output
        time.sleep(0.02)


def _do(member: MemberProcess, act: Act) -> None:
    if act.does == "kill":
        member.popen.kill()
    elif act.does == "stop":
        member.stop()
    elif act.does == "terminate":
        member.popen.terminate()


def _compare(row: Fault, gang: GangUnderTest, begun: float) -> None:
    gone = {act.member for act in row.acts if act.does in GONE}
    for rank, member in sorted(gang.members.items()):
        if rank in gone:
            continue
        end, expected = member.ended(row.within + 60), row.end_of(rank)
        assert expected is not None, f"the row does not say how member {rank} ends"
        ended = (end.exit_code, end.result.outcome, end.result.code)
        assert ended == (expected.exit_code, expected.outcome, expected.code), (
            f"member {rank}:\n{end.output}"
        )
        assert expected.says in end.output, f"member {rank}:\n{end.output}"
        if expected.measures is not None:
            least, most = expected.measures
            assert least < (end.result.measured or 0.0) < most, end.output
    took = time.monotonic() - begun
    assert took < row.within, f"{took:.1f} s"
    fatal = {
        (rank, code, event.recommended_action.name)
        for rank, member in gang.members.items()
        for event in member.connector.events
        for code in event.error_code
        if event.is_fatal
    }
    assert fatal == {(blame.member, blame.code, blame.action) for blame in row.blames}, (
        gang.outputs()
    )
    for rank, member in gang.members.items():
        assert {event.node_name for event in member.connector.events} <= {f"node-{rank}"}
        if rank not in gone and rank not in row.deaf:
            _told(member, row, rank)
    if 0 in gang.members:
        output = gang.members[0].output
        assert row.logs in output, output
        assert not row.silent or row.silent not in output, output
        if row.spread is not None:
            grid = re.findall(r"edges\| \d+ node-\d+·* (.*)", output)
            percents = [int(number) for line in grid for number in re.findall(r"\d+", line)]
            assert len(percents) >= row.members - 1, output
            if (apart := max(percents) - min(percents)) > 100 * row.spread:
                raise Discarded(f"equal pairs measured {apart} % apart")


def _told(member: MemberProcess, row: Fault, rank: int) -> None:
    """Each member tells its own node's connector once: that it is well, or what was found."""
    end = row.end_of(rank)
    assert end is not None
    assert len(member.connector.batches) == (end.outcome != "skipped"), member.output
    for event in member.connector.events:
        assert event.is_healthy == (end.outcome == "passed")
        assert event.is_fatal or event.recommended_action.name == "NONE"
