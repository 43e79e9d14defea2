"""Tools that do not end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from preflight_proto.check import child

pytestmark = pytest.mark.anyio


class Unkillable:
    """A process that takes signals and stays, as one does in a driver call that does not return."""

    stdout = stderr = returncode = None
    pid = 1 << 30  # nobody's

    async def wait(self) -> int:
        await anyio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("in_kernel", [True, False])
async def test_a_tool_that_sigkill_does_not_end_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    async def opened(*_: Any, **__: Any) -> Unkillable:
        return Unkillable()

    monkeypatch.setattr(anyio, "open_process", opened)
    monkeypatch.setattr(child, "LAST_WAIT", 0.05)
    monkeypatch.setattr(child, "_uninterruptible", lambda pid: in_kernel)
    with anyio.fail_after(600):
        done = await child.run([sys.executable], timeout=0.05, terminate=signal.SIGKILL)
    assert (done.timed_out, done.stuck, done.returncode) == (True, in_kernel, -signal.SIGKILL)


async def test_a_tool_that_sigkill_ends_is_not_stuck() -> None:
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
    done = await child.run([sys.executable, "-c", ignore], timeout=1, terminate=signal.SIGKILL)
    assert (done.timed_out, done.stuck, done.stdout) == (True, False, "up\n")


@pytest.mark.parametrize("text", ["no program of this machine", "#!/no/such/interpreter"])
async def test_a_file_that_the_kernel_does_not_start_is_no_tool(tmp_path: Path, text: str) -> None:
    tool = tmp_path / "tool"
    tool.write_text(text)
    tool.chmod(0o755)
    with pytest.raises(child.ToolMissing, match="tool cannot be started"):
        await child.run([str(tool)])


def test_this_process_does_not_hang_in_the_kernel() -> None:
    import os

    assert not child._uninterruptible(os.getpid())
    assert not child._uninterruptible(Unkillable.pid)


UNDOES = """
import os, signal, sys, time
def undo(*_):
    open(sys.argv[1], "w").write("undone")
    os._exit(0)
signal.signal(signal.SIGTERM, undo)
open(sys.argv[1], "w").write("begun")
time.sleep(60)
"""


@pytest.mark.parametrize(("first", "left"), [(signal.SIGTERM, "undone"), (signal.SIGKILL, "begun")])
async def test_a_cancelled_tool_gets_the_signal_that_the_caller_chooses_first(
    tmp_path: Path, first: signal.Signals, left: str
) -> None:
    file = tmp_path / "state"
    asked: list[float] = []

    def choose(elapsed: float) -> signal.Signals:
        asked.append(elapsed)
        return first

    async with anyio.create_task_group() as group:

        async def begin() -> None:
            await child.run([sys.executable, "-c", UNDOES, str(file)], terminate=choose)

        group.start_soon(begin)
        with anyio.fail_after(600):
            while not file.exists() or not file.read_text():
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert file.read_text() == left
    assert len(asked) == 1
