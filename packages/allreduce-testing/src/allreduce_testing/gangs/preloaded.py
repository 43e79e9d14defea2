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
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from check_nccl_allreduce.worker.process import end_with_parent

PLACE = "PRELOADED_AT"
"""Variable: path of the socket at which the loaded process listens."""
MUTANTS = "allreduce_testing.gangs.mutants"
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
        answer = link.recv(1)
    return answer[0] if answer else 1


# --- the loaded process


def serve(path: str) -> None:
    """Fork a guard for each stand-in, until this process's input ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps guards
        print("loaded", flush=True)
        while listener.fileno() in select.select([0, listener.fileno()], [], [])[0]:
            link, _ = listener.accept()
            with link:
                if os.fork() == 0:
                    listener.close()
                    guard(link)


def guard(link: socket.socket) -> NoReturn:
    """Fork the agent, kill it when its stand-in is gone, and tell the stand-in how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_with_parent()
    head, files, _, _ = socket.recv_fds(link, 4, 4)
    text = link.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    try:
        asked = json.loads(text)
    except ValueError:  # a stand-in that was killed while it asked
        os._exit(0)
    if (agent := os.fork()) == 0:
        link.close()
        be_agent(files, asked)
    with suppress(OSError):
        os.setpgid(agent, agent)

    def follow() -> None:
        link.recv(1)  # a stand-in never says anything: it is gone
        kill(agent)

    threading.Thread(target=follow, daemon=True).start()
    _, status = os.waitpid(agent, 0)
    kill(agent)  # what it has forked
    with suppress(OSError):
        link.sendall(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
    os._exit(0)


def be_agent(files: list[int], asked: dict[str, Any]) -> NoReturn:
    """Run the agent's module with the stand-in's files, network, environment and folder."""
    status = 1
    try:
        os.setpgid(0, 0)
        for number in range(3):
            os.dup2(files[number], number)
        with Path("/proc/self/ns/net").open() as here:
            if not os.path.sameopenfile(files[3], here.fileno()):
                enter(files[3])
        os.closerange(3, 1024)
        os.environ.clear()
        os.environ.update(asked["environ"])
        os.chdir(asked["cwd"])
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

    serve(sys.argv[1])


if __name__ == "__main__":
    main()
