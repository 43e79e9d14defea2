"""A gang check as a process, with a roster folder that is swapped the way the kubelet swaps it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from preflight_proto.check.testing import CheckRun, FakeConnector, RosterFolder, environment
from preflight_proto.result import from_termination
from preflight_proto.roster import Roster

STRANGER = [sys.executable, str(Path(__file__).parent / "gang_stranger.py")]
UID = "uid-a"


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


class Process:
    """The stranger's check, running; lines are read as they come."""

    def __init__(self, connector: FakeConnector, home: Path, variables: dict[str, str]) -> None:
        self.home = home
        self.popen = subprocess.Popen(
            STRANGER,
            env=environment(connector, home, variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def line(self, containing: str) -> str:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if containing in line:
                return line
        raise AssertionError(f"the check ended without a line with {containing!r}")

    def ended(self) -> CheckRun:
        out, _ = self.popen.communicate(timeout=30)
        assert "Traceback" not in out
        text = (self.home / "termination-log").read_text()
        code = self.popen.returncode
        return CheckRun(code, out.splitlines(), "", from_termination("my-gang", text, code), text)


Start = Callable[..., Process]


@pytest.fixture
def connector(tmp_path: Path) -> Iterator[FakeConnector]:
    with FakeConnector(tmp_path / "connector.sock") as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> RosterFolder:
    return RosterFolder(tmp_path / "gang")


@pytest.fixture
def start(connector: FakeConnector, folder: RosterFolder, tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "state").mkdir()
    processes = []

    def go(**variables: str) -> Process:
        given = {
            "GANG_CONFIG_DIR": str(folder.path),
            "PREFLIGHT_STATE_DIR": str(tmp_path / "state"),
        }
        process = Process(
            connector, tmp_path, {**given, "POD_IP": "10.0.0.2", "GANG_TIMEOUT": "20s", **variables}
        )
        processes.append(process.popen)
        return process

    yield go
    for popen in processes:
        popen.kill()
        popen.wait()
        assert popen.stdout is not None
        popen.stdout.close()


def test_a_check_waits_says_who_is_missing_when_that_changes_and_joins(
    start: Start, folder: RosterFolder
) -> None:
    process = start()
    process.line("waiting for the gang: no answer from the gang controller yet")
    folder.answer(wait("pod-b (no IP yet)", "pod-c (not created)"))
    process.line("waiting for the gang: pod-b (no IP yet), pod-c (not created)")
    folder.answer(wait("pod-c (not created)"))
    process.line("waiting for the gang: pod-c (not created)")
    folder.answer(sealed(3))
    line = process.line("roster: generation 3, rank 1 of 2, read ")
    assert line.split(" at ")[1].strip().endswith("Z")
    ran = process.ended()
    assert (ran.exit_code, ran.result.code) == (0, "OK")


def test_the_same_answer_is_said_once(start: Start, folder: RosterFolder) -> None:
    folder.answer(wait("pod-b (no IP yet)"))
    ran = start(GANG_TIMEOUT="1s").ended()
    assert sum("waiting for the gang" in line for line in ran.lines) == 1


def test_the_joined_generation_is_on_disk_when_the_check_goes_on(
    start: Start, folder: RosterFolder, tmp_path: Path
) -> None:
    folder.answer(sealed(7))
    start(GO="hold").line("joined 7")
    assert (tmp_path / "state" / "generation").read_text() == "7\n"


def test_a_check_restarted_in_place_never_joins_the_old_generation(
    start: Start, folder: RosterFolder
) -> None:
    folder.answer(sealed(7))
    first = start(GO="hold")
    first.line("joined 7")
    first.popen.kill()
    first.popen.wait()
    second = start()
    second.line("generation 7 was joined by this pod before it restarted; waiting for a newer one")
    folder.answer(sealed(8))
    assert second.ended().result.reason == "joined generation 8."


@pytest.mark.parametrize("answer", ["skip", "fail"])
def test_what_is_said_of_a_generation_joined_before_the_restart_is_said_to_no_one_any_more(
    start: Start, folder: RosterFolder, tmp_path: Path, answer: str
) -> None:
    (tmp_path / "state" / "generation").write_text("7\n")
    folder.answer(end(answer, "about the run before", generation=7))
    second = start()
    second.line("waiting for a newer one")
    folder.answer(end(answer, "about this run", generation=8))
    assert second.ended().result.reason == "about this run."


def test_an_older_generation_is_not_joined_either(
    start: Start, folder: RosterFolder, tmp_path: Path
) -> None:
    (tmp_path / "state" / "generation").write_text("9\n")
    folder.answer(sealed(8))
    assert start(GANG_TIMEOUT="1s").ended().result.code == "GANG_TIMEOUT"


def test_a_roster_for_another_pod_is_no_answer(start: Start, folder: RosterFolder) -> None:
    folder.answer(sealed(uid="uid-of-an-earlier-pod"))
    ran = start(GANG_TIMEOUT="1s").ended()
    assert (ran.exit_code, ran.result.code) == (1, "GANG_TIMEOUT")
    assert "no answer from the gang controller yet; is preflight-gang running" in ran.result.reason


def test_a_gang_that_does_not_come_is_inconclusive_and_says_who_is_missing_and_why(
    start: Start, folder: RosterFolder, connector: FakeConnector
) -> None:
    folder.answer(wait("pod-b (Unschedulable: 0/2 nodes)"))
    ran = start(GANG_TIMEOUT="1s").ended()
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (
        1,
        "inconclusive",
        "GANG_TIMEOUT",
    )
    assert "pod-b (Unschedulable: 0/2 nodes)" in ran.result.reason
    [event] = connector.events
    assert (event.is_fatal, event.is_healthy, event.error_code) == (False, False, ["GANG_TIMEOUT"])


def test_skip_lets_the_pod_start_with_the_reason(
    start: Start, folder: RosterFolder, connector: FakeConnector
) -> None:
    folder.answer(end("skip", "the gang has fewer than two participants"))
    ran = start().ended()
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (0, "skipped", "GANG_SKIPPED")
    assert "fewer than two" in ran.result.reason
    assert connector.attempts == 0


def test_a_failed_peer_ends_the_wait_with_its_cause(start: Start, folder: RosterFolder) -> None:
    process = start()
    process.line("waiting")
    folder.answer(end("fail", "pod-b: dcgm-diag failed with DCGM_FR_FAULTY_MEMORY"))
    ran = process.ended()
    assert (ran.exit_code, ran.result.code) == (1, "PEER_FAILED")
    assert ran.result.reason == "pod-b: dcgm-diag failed with DCGM_FR_FAULTY_MEMORY."


@pytest.mark.parametrize(
    ("text", "what"),
    [("{", "not readable"), ('{"v":99}', "version 99"), ('{"v":1,"answer":"sealed"}', "missing")],
)
def test_an_unreadable_roster_is_inconclusive_and_names_the_file(
    start: Start, folder: RosterFolder, text: str, what: str
) -> None:
    folder.answer(text)
    ran = start().ended()
    assert ran.result.code == "ROSTER_UNREADABLE"
    assert what in ran.result.reason
    assert str(folder.path / "roster") in ran.result.reason


@pytest.mark.parametrize(
    "change", [wait("pod-b (restarted)", generation=1), sealed(2), end("fail", "pod-b died")]
)
def test_a_roster_that_no_longer_holds_is_noticed(
    start: Start, folder: RosterFolder, change: Roster
) -> None:
    folder.answer(sealed(1))
    process = start(GO="hold")
    process.line("joined 1")
    folder.answer(change)
    process.line(f"changed to {change.answer} of generation {change.generation}")


def test_a_hundred_swaps_are_read_whole(start: Start, folder: RosterFolder) -> None:
    folder.answer(sealed(1))
    process = start(GO="hold")
    process.line("joined 1")
    for _ in range(100):
        folder.answer(sealed(1))
    folder.answer(sealed(2))
    assert process.ended().result.reason == "joined generation 2."


def test_a_state_folder_that_cannot_be_written_is_inconclusive(
    start: Start, folder: RosterFolder
) -> None:
    folder.answer(sealed(1))
    ran = start(PREFLIGHT_STATE_DIR="/nowhere").ended()
    assert ran.result.code == "STATE_UNUSABLE"
    assert "/nowhere/generation" in ran.result.reason


def test_a_gang_check_needs_the_pods_uid_and_address(start: Start) -> None:
    ran = start(POD_UID="", POD_IP="").ended()
    assert (ran.exit_code, ran.result.outcome) == (2, "misconfigured")
    assert "POD_UID: not set" in ran.result.reason
    assert "POD_IP: not set" in ran.result.reason


def test_an_address_that_is_none_is_misconfigured(start: Start) -> None:
    ran = start(POD_IP="pod-a.example").ended()
    assert (ran.exit_code, ran.result.reason.split(";")[0]) == (
        2,
        'POD_IP: "pod-a.example" is not an IP address',
    )
    ran = start(POD_IP="pod-a.example", NODE_NAME="").ended()
    assert [line.split(":")[1] for line in ran.lines[:-1]] == [" NODE_NAME", " POD_IP"]


def test_the_manual_of_a_gang_check_has_the_gangs_variables() -> None:
    done = subprocess.run([*STRANGER, "--help"], capture_output=True, text=True, check=True)
    assert all(
        name in done.stdout for name in ("GANG_TIMEOUT", "GANG_CONFIG_DIR", "PREFLIGHT_STATE_DIR")
    )
    assert done.stdout.count("  POD_IP\n") == 1
