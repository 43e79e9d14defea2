"""Agents that need not load torch: `-m allreduce_testing.gangs.preloaded` stands in the agent's
place and has it forked from a process that has torch loaded.

Loading torch takes two seconds of a processor, which is most of what a gang under test costs.
Everything after it is the product's: the agent's own code, torchrun, ranks, gloo. What the check's
child is, its session and its end, is this stand-in's: who is killed with it, and that nothing is
left, is tested with the agent itself (`Gang(…, preloaded=False)`).
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from pathlib import Path

from check_nccl_allreduce.worker.process import end_with_parent

PLACE = "PRELOADED_AT"
"""Variable: path of the socket at which the loaded process listens."""
MUTANTS = "allreduce_testing.gangs.mutants"
POLL = 0.02
"""Seconds between looks at who has ended."""
MAX_ENVIRONMENT = 1 << 20
CLONE_NEWNET = 0x40000000

_started: list[str] = []
_starting = threading.Lock()


def place() -> str:
    """Where this process's loaded one listens; started with the first question, and ended with this
    process.
    """
    with _starting:
        if not _started:
            _start()
        return _started[0]


def _start() -> None:
    folder = tempfile.TemporaryDirectory(prefix="pf")
    path = str(Path(folder.name) / "loaded")
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if process.stdout.readline() != b"loaded\n":
        raise AssertionError("the process that loads torch ended; see above")

    def end() -> None:
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    _started.append(path)


# --- in the agent's place


def stand_in() -> int:
    """Have the agent forked with this process's input, output, environment and network; end as it
    ends.
    """
    end_with_parent()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link,
        Path("/proc/self/ns/net").open() as network,
    ):
        link.connect(os.environ[PLACE])
        asked = json.dumps({"environ": dict(os.environ), "cwd": os.environ["TEST_HOME"]}).encode()
        socket.send_fds(link, [len(asked).to_bytes(4, "big")], [0, 1, 2, network.fileno()])
        link.sendall(asked)
        answer = link.recv(4, socket.MSG_WAITALL)
    return int.from_bytes(answer, "big") if len(answer) == 4 else 1


# --- the loaded process


class Loaded:
    """Forks agents, kills those whose stand-in is gone, and tells stand-ins how
    their agents ended.
    """

    def __init__(self, path: str) -> None:
        self._children: dict[int, socket.socket] = {}
        self._looking = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)
        self._looking.register(self._listener, selectors.EVENT_READ)
        self._looking.register(0, selectors.EVENT_READ)
        self._network = os.open("/proc/self/ns/net", os.O_RDONLY)

    def serve(self) -> None:
        """Until this process's input ends."""
        print("loaded", flush=True)
        while True:
            for key, _ in self._looking.select(POLL if self._children else None):
                if key.fd == 0:
                    for child in self._children:
                        kill(child)
                    return
                if key.fileobj is self._listener:
                    self._take(self._listener.accept()[0])
                else:  # nothing is ever said by a stand-in: it is gone
                    kill(key.data)
                    self._looking.unregister(key.fileobj)
            self._reap()

    def _take(self, link: socket.socket) -> None:
        head, files, _, _ = socket.recv_fds(link, 4, 4)
        size = int.from_bytes(head, "big")
        assert size < MAX_ENVIRONMENT
        text = link.recv(size, socket.MSG_WAITALL) if size else b""
        child = 0
        if text and len(text) == size and (child := os.fork()) == 0:
            self._be_agent(files, json.loads(text))
        for file in files:
            os.close(file)
        if not child:  # a stand-in that was killed while it asked
            link.close()
            return
        with suppress(ProcessLookupError):
            os.setpgid(child, child)
        self._children[child] = link
        self._looking.register(link, selectors.EVENT_READ, child)

    def _be_agent(self, files: list[int], asked: dict[str, object]) -> None:
        """Never returns."""
        status = 1
        try:
            os.setpgid(0, 0)
            self._looking.close()
            for number in range(3):
                os.dup2(files[number], number)
            if not os.path.sameopenfile(files[3], self._network):
                enter(files[3])
            os.closerange(3, 1024)
            environ = asked["environ"]
            assert isinstance(environ, dict)
            os.environ.clear()
            os.environ.update(environ)
            os.chdir(str(asked["cwd"]))
            random.seed()
            tempfile.tempdir = None
            sys.argv = ["agent"]
            module = MUTANTS if "MUTANT" in os.environ else "check_nccl_allreduce.worker.agent"
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        for child, link in list(self._children.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended == 0:
                continue
            kill(child)  # what it has forked
            del self._children[child]
            with suppress(KeyError):
                self._looking.unregister(link)
            with suppress(OSError):
                link.sendall((os.waitstatus_to_exitcode(status) & 0xFF).to_bytes(4, "big"))
            link.close()


def enter(network: int) -> None:
    """Go into this network namespace, for which one needs rights. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, CLONE_NEWNET) != 0:  # os.setns came with Python 3.12
        raise OSError(ctypes.get_errno(), "setns")


def kill(group: int) -> None:
    """End a process group that may have gone."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def main() -> None:
    """Serve, where a socket is named; else stand in for `torchrun`."""
    if len(sys.argv) == 1:
        sys.exit(stand_in())
    from check_nccl_allreduce.worker import agent, rank  # noqa: F401
    from torch.distributed import run  # noqa: F401
    from torch.distributed.launcher import api  # noqa: F401

    Loaded(sys.argv[1]).serve()


if __name__ == "__main__":
    main()
