"""Run a tool that may hang, flood its output or leave children behind.

The tool gets a session of its own; when its time is up, or the check is cancelled, the whole session is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio
from anyio.abc import ByteReceiveStream

__all__ = ["MAX_OUTPUT", "Completed", "ToolMissing", "run"]

MAX_OUTPUT = 8 * 1024 * 1024
GRACE = 5.0
"""Seconds between the first signal and SIGKILL."""
LAST_WAIT = 10.0
"""Seconds after SIGKILL. What is there then sits in a system call that does not return, as in the driver of a lost GPU: left behind."""


class ToolMissing(Exception):
    """The tool is not on PATH (or is not executable)."""

    def __init__(self, tool: str) -> None:
        super().__init__(f"{tool} is not on PATH")
        self.tool = tool


@dataclass(frozen=True, slots=True)
class Completed:
    """How a tool ended. ``returncode`` is negative for a signal; ``duration`` is in seconds.

    ``stuck``: not even SIGKILL ended it, since a thread of it sleeps uninterruptibly in the kernel.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool
    duration: float
    stuck: bool = False


async def run(
    argv: Sequence[str],
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    max_output: int = MAX_OUTPUT,
    terminate: signal.Signals = signal.SIGTERM,
) -> Completed:
    """Run ``argv`` to its end; never raises for what the tool does.

    After ``timeout`` seconds the session gets ``terminate``, and SIGKILL five seconds later (at once where ``terminate`` is
    SIGKILL); a tool that is there ten seconds after that is left behind. Of stdout and stderr, the first ``max_output`` bytes
    each are kept and the rest is read and dropped. Raises :class:`ToolMissing`.
    """
    environ = dict(os.environ if env is None else env)
    if shutil.which(argv[0], path=environ.get("PATH")) is None:
        raise ToolMissing(argv[0])
    start = anyio.current_time()
    process = await anyio.open_process(
        argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environ, start_new_session=True
    )
    outputs: dict[str, bytes] = {}
    truncated = timed_out = False

    async def collect(name: str, stream: ByteReceiveStream | None) -> None:
        nonlocal truncated
        kept = bytearray()
        outputs[name] = b""
        if stream is None:
            return
        async for chunk in stream:
            room = max_output - len(kept)
            kept += chunk[:room]
            truncated = truncated or len(chunk) > room
            outputs[name] = bytes(kept) if room > 0 else outputs[name]

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(collect, "stdout", process.stdout)
            group.start_soon(collect, "stderr", process.stderr)
            with anyio.move_on_after(timeout) as scope:
                await process.wait()
            if scope.cancelled_caught:
                timed_out = True
                await _end(process, terminate)
            # A grandchild may still hold the pipes open: its session ends with the tool.
            _signal(process.pid, signal.SIGKILL)
            if process.returncode is None:
                group.cancel_scope.cancel()  # it holds them too, and never ends
    finally:
        _signal(process.pid, signal.SIGKILL)
        with anyio.move_on_after(LAST_WAIT if process.returncode is None and not timed_out else 0, shield=True):
            await process.wait()
        stuck = process.returncode is None and _uninterruptible(process.pid)
        if process.returncode is not None:
            with anyio.CancelScope(shield=True):
                await process.aclose()
    return Completed(
        tuple(argv),
        process.returncode if process.returncode is not None else -signal.SIGKILL,
        outputs["stdout"].decode(errors="replace"),
        outputs["stderr"].decode(errors="replace"),
        timed_out,
        truncated,
        anyio.current_time() - start,
        stuck,
    )


async def _end(process: anyio.abc.Process, first: signal.Signals) -> None:
    _signal(process.pid, first)
    with anyio.move_on_after(GRACE if first is not signal.SIGKILL else 0):
        await process.wait()
    _signal(process.pid, signal.SIGKILL)
    with anyio.move_on_after(LAST_WAIT):
        await process.wait()


def _uninterruptible(pid: int) -> bool:
    """Whether a thread of the process is in state D, by /proc."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return "D" in states


def _signal(session: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, what)
