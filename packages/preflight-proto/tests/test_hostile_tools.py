"""Tools that daemonise, and tools that write anything at all."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preflight_proto.check import child
from preflight_proto.check.testing import FakeConnector
from strangers import run, run_within


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("go", "said"),
    [("daemon", ["said 'before\\n' status 3 timed out False"]), ("quiet daemon", [])],
    ids=["it keeps the pipes", "it keeps none"],
)
def test_a_child_with_a_session_of_its_own_is_not_waited_for_and_does_not_outlive_the_check(
    connector: FakeConnector, tmp_path: Path, go: str, said: list[str]
) -> None:
    ran = run(connector, tmp_path, GO=go, PID_FILE=str(tmp_path / "pid"), CHECK_TIMEOUT="15s")
    pid = int((tmp_path / "pid").read_text())
    lives = alive(pid)
    if lives:
        os.kill(pid, signal.SIGKILL)
    assert not lives
    assert ran.result.outcome == "passed"
    assert [line for line in ran.lines if line.startswith("said")] == said


@pytest.mark.anyio
async def test_a_tool_that_daemonizes_returns_within_the_grace_and_keeps_its_output(
    tmp_path: Path,
) -> None:
    # The child leaves the session, and its environment is empty: nothing marks it but the pipes.
    own = tmp_path / "pid"
    lives_on = f"env -i setsid sh -c 'echo $$ > {own}; exec sleep 600'"
    daemon = f"echo out; echo err >&2; {lives_on} & wait $!"
    done = await child.run(["sh", "-c", daemon], timeout=0.5)
    os.kill(int(own.read_text()), signal.SIGKILL)  # it is there still: nobody waited for it
    assert (done.stdout, done.stderr, done.timed_out) == ("out\n", "err\n", True)


@pytest.mark.anyio
async def test_what_was_written_before_the_end_is_read_whole() -> None:
    done = await child.run(
        ["sh", "-c", "yes | head -c 300000; setsid sleep 60 & exit 0"], timeout=30
    )
    assert (len(done.stdout), done.truncated) == (300000, False)


NASTY = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [
                b"\x1b[2J",
                b"\x1b]0;x\x07",
                b"\x00",
                "\u202e\u2028\u0085".encode(),
                b"\r\n",
                b"NaN",
                b"1e999",
                b"\\",
                b'"',
            ]
        ),
    ),
    max_size=12,
).map(b"".join)


@given(said=NASTY)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_tool_writes_the_log_is_printable_and_ends_with_one_verdict(
    connector: FakeConnector, tmp_path: Path, said: bytes
) -> None:
    connector.batches.clear()
    (tmp_path / "said").write_bytes(said)
    ran = run_within(connector, tmp_path, GO="says", SAID=str(tmp_path / "said"))
    assert all(line.isprintable() for line in ran.lines)
    assert [line for line in ran.lines if line.startswith("tmp-space: failed SAID")] == ran.lines[
        -1:
    ]
    assert (ran.exit_code, ran.result.code, ran.result.measured, ran.result.expected) == (
        1,
        "SAID",
        None,
        None,
    )
    assert ran.result.reason.isprintable()
    assert json.loads(ran.termination)["duration"] >= 0
    [event] = connector.events
    assert event.message.isprintable()
    assert event.metadata["text"].isprintable()
