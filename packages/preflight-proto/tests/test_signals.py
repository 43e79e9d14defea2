"""SIGTERM at any moment of a check's life, as process 1 of its container too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from preflight_proto.check.testing import FakeConnector, environment
from preflight_proto.result import from_termination

PROGRAM = [sys.executable, str(Path(__file__).parent / "early_stranger.py")]
NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
BLOCKED = ["env", "--block-signal=TERM"]
"""How our images start a check."""


def can(*command: str) -> bool:
    return (
        shutil.which(command[0]) is not None
        and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    )


def terminate(process: subprocess.Popen[bytes], pid: int) -> tuple[int, float]:
    """Send SIGTERM; the exit status, and the seconds until it was there."""
    started = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    try:
        return process.wait(timeout=60), time.monotonic() - started
    finally:
        process.kill()


def child_of(pid: int) -> int:
    """The only child of a process, once it has one."""
    while True:
        if children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(children[0])
        time.sleep(0.0005)


@pytest.mark.skipif(
    not can(*NAMESPACE), reason="a PID namespace cannot be made here (unshare --user --pid)"
)
@pytest.mark.skipif(
    not can(*BLOCKED), reason="env of this machine knows no --block-signal (GNU coreutils 8.31)"
)
@pytest.mark.parametrize("after", [0.0, 0.1, 2.0])
def test_process_1_ends_within_two_seconds_of_sigterm_and_says_terminated(
    connector: FakeConnector, tmp_path: Path, after: float, *, timed: bool
) -> None:
    variables = {"GO": "hang", "PID_FILE": str(tmp_path / "pid")}
    process = subprocess.Popen(
        [*NAMESPACE, *BLOCKED, *PROGRAM],
        env=environment(connector, tmp_path, variables),
        stdout=subprocess.DEVNULL,
    )
    inside = child_of(process.pid)
    while (
        not blocks_sigterm(inside) and process.poll() is None
    ):  # `env` has run: about a millisecond
        time.sleep(0.0005)
    time.sleep(after)
    status, seconds = terminate(process, inside)
    assert (
        from_termination("tmp-space", (tmp_path / "termination-log").read_text(), status).code
        == "TERMINATED"
    )
    assert status == 1
    if timed:
        assert seconds < 2


@pytest.mark.parametrize(("after", "mode"), [(0.1, "ok"), (0.5, "hang")])
def test_a_connector_that_hangs_does_not_hold_back_what_is_told_to_stop(
    connector: FakeConnector, tmp_path: Path, mode: str, after: float, *, timed: bool
) -> None:
    connector.mode = "hang" if mode == "hang" else "ok"
    env = environment(connector, tmp_path, {"GO": "hang", "PID_FILE": str(tmp_path / "pid")})
    process = subprocess.Popen([*BLOCKED, *PROGRAM], env=env, stdout=subprocess.DEVNULL)
    while not blocks_sigterm(process.pid) and process.poll() is None:
        time.sleep(0.0005)
    time.sleep(after)
    status, seconds = terminate(process, process.pid)
    assert status == 1
    if timed:
        assert seconds < 2.5
    assert (
        from_termination("tmp-space", (tmp_path / "termination-log").read_text(), 1).code
        == "TERMINATED"
    )


def test_sigterm_during_the_report_hurries_it_and_changes_no_verdict(
    connector: FakeConnector, tmp_path: Path, *, timed: bool
) -> None:
    connector.mode = "hang"
    env = environment(connector, tmp_path, {})
    process = subprocess.Popen(PROGRAM, env=env, stdout=subprocess.DEVNULL)
    while connector.attempts == 0 and process.poll() is None:
        time.sleep(0.01)
    status, seconds = terminate(process, process.pid)
    assert status == 0
    if timed:
        assert seconds < 2
    assert (
        from_termination("tmp-space", (tmp_path / "termination-log").read_text(), 0).outcome
        == "passed"
    )


def test_the_first_import_of_a_program_is_small() -> None:
    code = "import sys; before = set(sys.modules); import preflight_proto.sigterm; print(*set(sys.modules) - before)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert not {"anyio", "asyncio", "msgspec", "preflight_proto.check"} & set(loaded)


def blocks_sigterm(pid: int) -> bool:
    try:
        rows = dict(
            row.split(":\t", 1)
            for row in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":\t" in row
        )
    except OSError:
        return False
    taken = int(rows["SigBlk"], 16) | int(rows["SigCgt"], 16)
    # unshare's own child blocks it too, for a moment, and forgets then what came.
    return rows["Name"] != "unshare" and bool(taken >> (signal.SIGTERM - 1) & 1)
