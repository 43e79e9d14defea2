"""Gangs of real check processes on loopback addresses, each with a roster folder as its kubelet
would keep it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from preflight_proto.check.testing import FakeConnector, RosterFolder, environment
from preflight_proto.result import Result, from_termination
from preflight_proto.roster import Roster
from preflight_testing.apiserver import free_port

from . import preloaded

CHECK = "from check_nccl_allreduce.check import main; main()"
DEFECTIVE = (
    "from check_nccl_allreduce import launch; launch.AGENT = 'allreduce_testing.gangs.mutants'; "
)
MUTANTS = DEFECTIVE + CHECK
"""The check with a defective agent; see ``mutants``."""
TOKEN = "the-gangs-own-token"
WITHIN = 80.0


@dataclass
class MemberEnd:
    """How one member ended."""

    exit_code: int
    result: Result
    output: str


@dataclass
class MemberProcess:
    """One member's process, with its folders. ``lines`` grows while it runs, and ``heard`` by when
    each was read (monotonic).
    """

    rank: int
    home: Path
    folder: RosterFolder
    connector: FakeConnector
    popen: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    heard: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.heard.append(time.monotonic())
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        """Its log so far."""
        return "\n".join(self.lines)

    def said(self, text: str, within: float = WITHIN) -> str:
        """Wait for a line that contains ``text``."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            line_ = next((line for line in list(self.lines) if text in line), None)
            if line_ is not None:
                return line_
            if self.popen.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.02)
        raise AssertionError(f"rank {self.rank} never said {text!r}; it said:\n{self.output}")

    def ended(self, within: float = WITHIN) -> MemberEnd:
        """Wait for its end, at most ``within`` seconds. Raises TimeoutExpired."""
        code = self.popen.wait(within)
        self._reader.join(10)
        assert "Traceback" not in "\n".join(
            line for line in self.lines if not line.startswith("|")
        ), self.output
        log = self.home / "termination-log"
        text = log.read_text() if log.exists() else ""
        return MemberEnd(code, from_termination("nccl-allreduce", text, code), self.output)

    def stop(self) -> None:
        """Freeze the check itself, not its children."""
        self.popen.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """After its end: everything that it said is read."""
        self._reader.join(10)
        assert self.popen.stdout is not None
        self.popen.stdout.close()

    def children(self) -> list[int]:
        """Process ids of everything that this member has started, by its mark in
        their environment.
        """
        return [pid for pid, mark in marked() if mark == str(self.home)]


def marked() -> Iterator[tuple[int, str]]:
    """(pid, home) of every process that descends from a member, whoever its parent is by now."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            # Of those that were forked from the loaded process.
            where = str((entry / "cwd").readlink())
        except OSError:
            continue
        marks = [
            variable.removeprefix(b"TEST_HOME=").decode()
            for variable in variables
            if variable.startswith(b"TEST_HOME=")
        ]
        if state != "Z":
            yield from ((int(entry.name), mark) for mark in marks or [where])


class GangUnderTest:
    """A gang under test. :meth:`start` members, :meth:`seal` their rosters; leaving proves that no
    process is left.

    ``preloaded``: its agents come from a process that has torch loaded, and so cost next to
    nothing; see ``preloaded``.
    """

    def __init__(self, home: Path, *, preloaded: bool = False) -> None:
        self.home = home
        self.preloaded = preloaded
        self.members: dict[int, MemberProcess] = {}
        self.connectors: list[FakeConnector] = []
        self.control_port, self.master_port = free_port(), free_port()
        self.size = 2
        # pytest's own folders can be too long for a socket's path; what a killed check leaves goes
        # with this one.
        self.sockets = tempfile.TemporaryDirectory()

    def __enter__(self) -> GangUnderTest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self.members.values():
            if member.popen.poll() is None:
                member.popen.kill()
            member.popen.wait()
            member.close()
        left = self.left_behind()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for connector in self.connectors:
            connector.__exit__(None, None, None)
        self.sockets.cleanup()
        if error is None:
            assert not left, f"processes left behind: {left}"

    def left_behind(self, within: float = 10.0) -> list[int]:
        """What still runs of this gang after ``within`` seconds at most."""
        end = time.monotonic() + within
        while True:
            mine = [pid for pid, home in marked() if home.startswith(str(self.home))]
            if not mine or time.monotonic() > end:
                return mine
            time.sleep(0.05)

    @contextmanager
    def listener(self, port: int) -> Iterator[socket.socket]:
        """Somebody else's socket on a port of rank 0."""
        with socket.socket() as listener:
            listener.bind(("0.0.0.0", port))
            listener.listen()
            yield listener

    def address(self, rank: int) -> str:
        """Where a member listens."""
        return f"127.0.0.{rank + 1}"

    def command(self, rank: int, code: str) -> list[str]:
        """How a member's check is started."""
        return [sys.executable, "-c", code]

    def start(self, *ranks: int, code: str = CHECK, **variables: str) -> list[MemberProcess]:
        """Start the checks of these members, ``variables`` over those that every member has. A
        member that has ended is started anew in its folders.
        """
        return [self._start(rank, code, variables) for rank in ranks]

    def _start(self, rank: int, code: str, variables: dict[str, str]) -> MemberProcess:
        home = self.home / f"rank-{rank}"
        old = self.members.get(rank)
        if old is None:
            (home / "state").mkdir(parents=True)
            folder = RosterFolder(home / "gang")
            connector = FakeConnector(Path(self.sockets.name) / f"{rank}.sock")
            connector.__enter__()
            self.connectors.append(connector)
        else:
            folder, connector = old.folder, old.connector
            old.close()
        given = {
            "MY_POD_NAME": f"pod-{rank}",
            "NODE_NAME": f"node-{rank}",
            "POD_UID": f"uid-{rank}",
            "POD_IP": self.address(rank),
            "GANG_CONFIG_DIR": str(folder.path),
            "PREFLIGHT_STATE_DIR": str(home / "state"),
            "NCCL_ALLREDUCE_BACKEND": "gloo",
            "NCCL_ALLREDUCE_SIZE": "1Mi",
            "NCCL_ALLREDUCE_ITERATIONS": "3",
            "NCCL_ALLREDUCE_WARMUP": "1",
            "GANG_TIMEOUT": "40s",
            "CHECK_TIMEOUT": "50s",
            "TEST_HOME": str(home),
            "TMPDIR": self.sockets.name,
            **variables,
        }
        if self.preloaded:
            given[preloaded.PLACE] = preloaded.place()
            code = f"from check_nccl_allreduce import launch; launch.AGENT = '{preloaded.__name__}'; {code.replace(DEFECTIVE, '')}"
        popen = subprocess.Popen(
            self.command(rank, code),
            env=environment(connector, home, given),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.members[rank] = MemberProcess(rank, home, folder, connector, popen)
        return self.members[rank]

    def sealed(self, rank: int, generation: int = 1) -> Roster:
        """The roster by which a member takes part."""
        return Roster(
            v=1,
            pod_uid=f"uid-{rank}",
            generation=generation,
            epoch=1,
            answer="sealed",
            rank=rank,
            nnodes=self.size,
            master_addr=self.address(0),
            master_port=self.master_port,
            control_port=self.control_port,
            token=TOKEN,
            successors=tuple((rank, self.address(rank)) for rank in range(1, self.size)),
        )

    def seal(self, *ranks: int, generation: int = 1) -> None:
        """Give these members their sealed rosters; none named: all that were started."""
        for rank in ranks or self.members:
            self.members[rank].folder.answer(self.sealed(rank, generation))

    def fail(self, cause: str, *ranks: int, generation: int = 1) -> None:
        """Answer these members that the gang fails; none named: all that were started."""
        for rank in ranks or self.members:
            answer = Roster(
                v=1,
                pod_uid=f"uid-{rank}",
                generation=generation,
                epoch=1,
                answer="fail",
                reason=cause,
            )
            self.members[rank].folder.answer(answer)

    def outputs(self) -> str:
        """The logs of all members, one after the other."""
        return "\n".join(
            f"--- member {rank}\n{member.output}" for rank, member in sorted(self.members.items())
        )

    def all_ended(self, *ranks: int, within: float = WITHIN) -> list[MemberEnd]:
        """Wait for the end of these members, ``within`` seconds each; none named: of all."""
        return [self.members[rank].ended(within) for rank in ranks or sorted(self.members)]
