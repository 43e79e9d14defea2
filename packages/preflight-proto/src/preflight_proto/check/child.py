"""Run a tool that may hang, flood its output or leave children behind.

The tool gets a session of its own; when its time is up, or the check is cancelled, the whole
session is killed. A child that has left the session and keeps the pipes open is given a moment,
killed, and not waited for.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

import anyio

from . import processes

MAX_OUTPUT = 8 * 1024 * 1024
GRACE = 5.0
"""Seconds between the first signal and SIGKILL."""
DRAIN = 1.0
"""Seconds that the pipes may stay open after the tool's end, once before what holds them is killed
and once after.
"""
UNDO = 1.0
"""Seconds that a cancelled tool has to undo what it began elsewhere."""
LAST_WAIT = 10.0
"""Seconds after SIGKILL. What is there then sits in a system call that does not return, as in the
driver of a lost GPU: left behind.
"""
_NO_PROGRAM = frozenset({errno.ENOENT, errno.ENOEXEC, errno.EACCES})
"""Errors of the kernel about a file that is there and is built for another machine, or whose
interpreter is not there.
"""
_CHUNK = 64 * 1024
_PIPE_CAPACITY = 1024 * 1024
"""Bytes that a pipe may hold unless an administrator allows more (fs.pipe-max-size)."""


class ToolMissing(Exception):
    """The tool is not on PATH (or is not executable), or is no program that starts here."""

    def __init__(self, tool: str, why: str = "is not on PATH") -> None:
        super().__init__(f"{tool} {why}")
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


class Spent:
    """``with spent:`` around each tool of a run. ``runs``: how many; ``seconds``: while at least
    one of them ran, by ``clock``.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.runs, self.seconds = 0, 0.0
        self._clock, self._now, self._since = clock, 0, 0.0

    def __enter__(self) -> None:
        if not self._now:
            self._since = self._clock()
        self._now += 1
        self.runs += 1

    def __exit__(self, *_: object) -> None:
        self._now -= 1
        if not self._now:
            self.seconds += self._clock() - self._since


async def run(
    argv: Sequence[str],
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    max_output: int = MAX_OUTPUT,
    terminate: signal.Signals | Callable[[float], signal.Signals] = signal.SIGTERM,
) -> Completed:
    """Run ``argv`` to its end; never raises for what the tool does.

    After ``timeout`` seconds the session gets ``terminate``, and SIGKILL five seconds later (at
    once where ``terminate`` is SIGKILL); a tool that is there ten seconds after that is left
    behind, and so is a child of its own that keeps the pipes and cannot be killed within two
    seconds of the tool's end. Of stdout and stderr, the first ``max_output`` bytes each are kept
    and the rest is read and dropped. Where ``terminate`` is a function of the seconds since the
    start, its signal comes first on cancellation too, and SIGKILL a second later, for a tool that
    has something to undo; else that is SIGKILL at once. Raises :class:`ToolMissing`.
    """
    environ = dict(os.environ if env is None else env)
    if shutil.which(argv[0], path=environ.get("PATH")) is None:
        raise ToolMissing(argv[0])
    start = anyio.current_time()
    out, err = _Pipe(max_output), _Pipe(max_output)
    process = await _opened(argv, environ, out, err)
    timed_out = False
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(out.read)
            group.start_soon(err.read)
            with anyio.move_on_after(timeout) as scope:
                await process.wait()
            if scope.cancelled_caught:
                timed_out = True
                await _end(
                    process,
                    terminate(anyio.current_time() - start) if callable(terminate) else terminate,
                )
            # A grandchild may still hold the pipes open: its session ends with the tool, and one
            # with a session of its own by itself.
            _signal(process.pid, signal.SIGKILL)
            if not await _drained(out, err):
                processes.kill(processes.holders({out.inode, err.inode}))
                await _drained(out, err)
            # What holds them now cannot be killed, and is not waited for.
            group.cancel_scope.cancel()
    except anyio.get_cancelled_exc_class():
        if callable(terminate):
            with anyio.CancelScope(shield=True):
                await _end(process, terminate(anyio.current_time() - start), UNDO)
        raise
    finally:
        _signal(process.pid, signal.SIGKILL)
        with anyio.move_on_after(
            LAST_WAIT if process.returncode is None and not timed_out else 0, shield=True
        ):
            await process.wait()
        if not (out.ended.is_set() and err.ended.is_set()):
            processes.kill(processes.holders({out.inode, err.inode}))
        out.close()
        err.close()
        stuck = process.returncode is None and _uninterruptible(process.pid)
        if process.returncode is not None:
            with anyio.CancelScope(shield=True):
                await process.aclose()
    return Completed(
        tuple(argv),
        process.returncode if process.returncode is not None else -signal.SIGKILL,
        out.kept.decode(errors="replace"),
        err.kept.decode(errors="replace"),
        timed_out,
        out.truncated or err.truncated,
        anyio.current_time() - start,
        stuck,
    )


async def _opened(
    argv: Sequence[str], environ: Mapping[str, str], out: _Pipe, err: _Pipe
) -> anyio.abc.Process:
    """The tool, started with its ends of the pipes. Raises :class:`ToolMissing`."""
    try:
        return await anyio.open_process(
            argv,
            stdin=DEVNULL,
            stdout=out.theirs,
            stderr=err.theirs,
            env=environ,
            start_new_session=True,
        )
    except BaseException as error:
        out.close()
        err.close()
        if isinstance(error, OSError) and error.errno in _NO_PROGRAM:
            raise ToolMissing(argv[0], f"cannot be started ({error.strerror})") from error
        raise
    finally:
        os.close(out.theirs)
        os.close(err.theirs)


class _Pipe:
    """One output of a tool: ``theirs`` is the end that it writes to, ``kept`` the first ``most``
    bytes that it wrote.
    """

    def __init__(self, most: int) -> None:
        self._ours, self.theirs = os.pipe()
        os.set_blocking(self._ours, False)
        self.inode = os.fstat(self._ours).st_ino
        self.kept, self.truncated = bytearray(), False
        self.ended = anyio.Event()
        self._most = most

    async def read(self) -> None:
        """Take what comes until nobody can write any more."""
        while True:
            await anyio.wait_readable(self._ours)
            if not self._take():
                break
        self.ended.set()

    def close(self) -> None:
        """Take what is there already, and no more."""
        for _ in range(_PIPE_CAPACITY // _CHUNK):
            if self.ended.is_set() or not self._take(again=False):
                break
        os.close(self._ours)

    def _take(self, *, again: bool = True) -> bool:
        try:
            chunk = os.read(self._ours, _CHUNK)
        except BlockingIOError:
            return again
        room = self._most - len(self.kept)
        self.kept += chunk[:room]
        self.truncated = self.truncated or len(chunk) > room
        return bool(chunk)


async def _drained(*pipes: _Pipe) -> bool:
    """Whether all have ended within :data:`DRAIN`."""
    with anyio.move_on_after(DRAIN):
        for pipe in pipes:
            await pipe.ended.wait()
        return True
    return False


async def _end(process: anyio.abc.Process, first: signal.Signals, grace: float = GRACE) -> None:
    _signal(process.pid, first)
    with anyio.move_on_after(grace if first is not signal.SIGKILL else 0):
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
