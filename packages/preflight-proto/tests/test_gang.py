"""A gang check, with a roster folder that is swapped the way the kubelet swaps it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from preflight_proto.check import Check, Outcome, Run, Verdict, log, one_of, setting
from preflight_proto.check.runner import conduct, help_text
from preflight_proto.check.testing import CheckRun, FakeConnector, RosterFolder, environment
from preflight_proto.roster import Roster
from preflight_testing.waiting import until
from strangers import ended

pytestmark = pytest.mark.anyio
UID = "uid-a"


@dataclass(frozen=True)
class Settings:
    hold: str = setting("HOLD", one_of("no", "changed"), default="no", help="what to wait for")


async def probe(run: Run[Settings]) -> Verdict:
    roster = await run.roster()
    run.progress(f"joined {roster.generation} as {roster.rank}")
    if run.settings.hold == "changed":
        now = await run.roster_changed(roster)
        run.progress(f"changed to {now.answer} of generation {now.generation}")
        roster = await run.roster()
    return Verdict(Outcome.PASSED, "OK", f"joined generation {roster.generation}.")


CHECK = Check(
    name="my-gang",
    condition="MyGang",
    component="Node",
    settings=Settings,
    probe=probe,
    timeout=20,
    gang=True,
)


def wait(*missing: str, generation: int = 0) -> Roster:
    return Roster(v=1, pod_uid=UID, generation=generation, epoch=1, answer="wait", missing=missing)


def end(answer: str, reason: str, generation: int = 1) -> Roster:
    assert answer in {"skip", "fail"}
    return Roster(v=1, pod_uid=UID, generation=generation, epoch=1, answer=answer, reason=reason)  # type: ignore[arg-type]


def sealed(generation: int = 1, uid: str = UID) -> Roster:
    return Roster(
        v=1,
        pod_uid=uid,
        generation=generation,
        epoch=1,
        answer="sealed",
        rank=1,
        nnodes=2,
        master_addr="10.0.0.1",
        master_port=29500,
        control_port=29501,
        token="t",
    )


class Running:
    """The check under way; lines are read as they come."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder, self._environ = folder, environ
        self.lines: list[str] = []
        self._read = 0
        self._status: int | None = None

    async def run(self) -> None:
        self._status = await conduct(CHECK, self._environ)

    async def line(self, containing: str) -> str:
        while True:
            await until(
                lambda: len(self.lines) > self._read or self._status is not None, containing
            )
            line, self._read = self.lines[self._read], self._read + 1
            if containing in line:
                return line

    async def ended(self) -> CheckRun:
        await until(lambda: self._status is not None, "the check ends")
        assert self._status is not None
        return ended(CHECK.name, self._status, self.lines, self._folder)


Start = Callable[..., Running]


@pytest.fixture
def folder(tmp_path: Path) -> RosterFolder:
    return RosterFolder(tmp_path / "gang")


@pytest.fixture
async def start(
    connector: FakeConnector, folder: RosterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Start]:
    (tmp_path / "state").mkdir()
    async with anyio.create_task_group() as group:

        def go(**variables: str) -> Running:
            given = {
                "GANG_CONFIG_DIR": str(folder.path),
                "PREFLIGHT_STATE_DIR": str(tmp_path / "state"),
                "POD_IP": "10.0.0.2",
                "GANG_TIMEOUT": "20s",
            }
            made = Running(tmp_path, environment(connector, tmp_path, {**given, **variables}))
            monkeypatch.setattr(log, "write", lambda _, text: made.lines.extend(text.splitlines()))
            group.start_soon(made.run)
            return made

        yield go
        group.cancel_scope.cancel()


async def test_a_check_waits_says_who_is_missing_when_that_changes_and_joins(
    start: Start, folder: RosterFolder
) -> None:
    check = start()
    await check.line("waiting for the gang: no answer from the gang controller yet")
    folder.answer(wait("pod-b (no IP yet)", "pod-c (not created)"))
    await check.line("waiting for the gang: pod-b (no IP yet), pod-c (not created)")
    folder.answer(wait("pod-c (not created)"))
    await check.line("waiting for the gang: pod-c (not created)")
    folder.answer(sealed(3))
    line = await check.line("roster: generation 3, rank 1 of 2, read ")
    assert line.split(" at ")[1].endswith("Z")
    ran = await check.ended()
    assert (ran.exit_code, ran.result.code) == (0, "OK")


async def test_the_joined_generation_is_on_disk_when_the_check_goes_on(
    start: Start, folder: RosterFolder, tmp_path: Path
) -> None:
    folder.answer(sealed(7))
    await start(HOLD="changed").line("joined 7")
    assert (tmp_path / "state" / "generation").read_text() == "7\n"


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        pytest.param(sealed(7), sealed(8), "joined generation 8.", id="its roster"),
        pytest.param(sealed(6), sealed(8), "joined generation 8.", id="an older roster"),
        *(
            pytest.param(
                end(answer, "about the run before", 7),
                end(answer, "about this run", 8),
                "about this run.",
                id=answer,
            )
            for answer in ("skip", "fail")
        ),
    ],
)
async def test_what_is_said_of_a_generation_joined_before_the_restart_is_said_to_no_one_any_more(
    start: Start, folder: RosterFolder, tmp_path: Path, before: Roster, now: Roster, reason: str
) -> None:
    (tmp_path / "state" / "generation").write_text("7\n")
    folder.answer(before)
    check = start()
    await check.line(
        f"generation {before.generation} was joined by this pod before it restarted; waiting for a newer one"
    )
    folder.answer(now)
    assert (await check.ended()).result.reason == reason


async def test_a_roster_for_another_pod_is_no_answer(start: Start, folder: RosterFolder) -> None:
    folder.answer(sealed(uid="uid-of-an-earlier-pod"))
    ran = await start(GANG_TIMEOUT="1s").ended()
    assert (ran.exit_code, ran.result.code) == (1, "GANG_TIMEOUT")
    assert "no answer from the gang controller yet; is preflight-gang running" in ran.result.reason


async def test_a_gang_that_does_not_come_is_inconclusive_and_says_once_who_is_missing_and_why(
    start: Start, folder: RosterFolder, connector: FakeConnector
) -> None:
    folder.answer(wait("pod-b (Unschedulable: 0/2 nodes)"))
    ran = await start(GANG_TIMEOUT="1s").ended()
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (
        1,
        "inconclusive",
        "GANG_TIMEOUT",
    )
    assert "pod-b (Unschedulable: 0/2 nodes)" in ran.result.reason
    assert sum("waiting for the gang" in line for line in ran.lines) == 1
    [event] = connector.events
    assert (event.is_fatal, event.is_healthy, event.error_code) == (False, False, ["GANG_TIMEOUT"])


async def test_skip_lets_the_pod_start_with_the_reason(
    start: Start, folder: RosterFolder, connector: FakeConnector
) -> None:
    folder.answer(end("skip", "the gang has fewer than two participants"))
    ran = await start().ended()
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (0, "skipped", "GANG_SKIPPED")
    assert "fewer than two" in ran.result.reason
    assert connector.attempts == 0


async def test_a_failed_peer_ends_the_wait_with_its_cause(
    start: Start, folder: RosterFolder
) -> None:
    check = start()
    await check.line("waiting")
    folder.answer(end("fail", "pod-b: dcgm-diag failed with DCGM_FR_FAULTY_MEMORY"))
    ran = await check.ended()
    assert (ran.exit_code, ran.result.code) == (1, "PEER_FAILED")
    assert ran.result.reason == "pod-b: dcgm-diag failed with DCGM_FR_FAULTY_MEMORY."


@pytest.mark.parametrize(
    ("text", "what"),
    [("{", "not readable"), ('{"v":99}', "version 99"), ('{"v":1,"answer":"sealed"}', "missing")],
)
async def test_an_unreadable_roster_is_inconclusive_and_names_the_file(
    start: Start, folder: RosterFolder, text: str, what: str
) -> None:
    folder.answer(text)
    ran = await start().ended()
    assert ran.result.code == "ROSTER_UNREADABLE"
    assert what in ran.result.reason
    assert str(folder.path / "roster") in ran.result.reason


@pytest.mark.parametrize(
    "change", [wait("pod-b (restarted)", generation=1), sealed(2), end("fail", "pod-b died")]
)
async def test_a_roster_that_no_longer_holds_is_noticed(
    start: Start, folder: RosterFolder, change: Roster
) -> None:
    folder.answer(sealed(1))
    check = start(HOLD="changed")
    await check.line("joined 1")
    folder.answer(change)
    await check.line(f"changed to {change.answer} of generation {change.generation}")


async def test_a_hundred_swaps_are_read_whole(start: Start, folder: RosterFolder) -> None:
    def swap() -> None:
        for _ in range(100):
            folder.answer(sealed(1))
        folder.answer(sealed(2))

    folder.answer(sealed(1))
    check = start(HOLD="changed")
    await check.line("joined 1")
    await anyio.to_thread.run_sync(swap)  # the check reads meanwhile
    assert (await check.ended()).result.reason == "joined generation 2."


async def test_a_state_folder_that_cannot_be_written_is_inconclusive(
    start: Start, folder: RosterFolder
) -> None:
    folder.answer(sealed(1))
    ran = await start(PREFLIGHT_STATE_DIR="/nowhere").ended()
    assert ran.result.code == "STATE_UNUSABLE"
    assert "/nowhere/generation" in ran.result.reason


@pytest.mark.parametrize(
    ("variables", "problems"),
    [
        ({"POD_UID": "", "POD_IP": ""}, ["POD_UID: not set", "POD_IP: not set"]),
        ({"POD_IP": "pod-a.example"}, ['POD_IP: "pod-a.example" is not an IP address']),
        ({"POD_IP": "a", "NODE_NAME": ""}, ["NODE_NAME: not set", 'POD_IP: "a" is not an IP']),
    ],
    ids=["neither uid nor address", "a name for an address", "no name of the node either"],
)
async def test_a_gang_check_needs_the_pods_uid_and_address(
    start: Start, variables: dict[str, str], problems: list[str]
) -> None:
    ran = await start(**variables).ended()
    assert (ran.exit_code, ran.result.outcome) == (2, "misconfigured")
    assert len(ran.lines) == len(problems) + 1
    for line, problem in zip(ran.lines, problems, strict=False):
        assert line.startswith(f"misconfigured: {problem}")


def test_the_manual_of_a_gang_check_has_the_gangs_variables() -> None:
    text = help_text(CHECK)
    assert all(name in text for name in ("GANG_TIMEOUT", "GANG_CONFIG_DIR", "PREFLIGHT_STATE_DIR"))
    assert text.count("  POD_IP\n") == 1
