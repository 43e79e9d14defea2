"""Programs that need not import anything: a server that has imported a module forks them.

The command of ``ForkServer("check_x.check")`` runs ``check_x.check.main()`` as a new interpreter
would, with its environment, streams and exit status, and costs a fraction of it. What an
interpreter does before a program's first line, libraries that the loader finds by the environment,
and stand-ins that read a program's ``/proc/PID/environ`` are for tests that start a new one.
"""

# The client runs this file alone (`python -I -S`): only what is quick to import stands here.
import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class ForkServer:
    """Use as ``with``; ``folder`` is for its socket. ``code`` runs once in the module, as a part of
    it: tests set shorter waits so.
    """

    def __init__(self, module: str, folder: "Path | str", code: str = "") -> None:
        self.module, self._socket, self._code = module, f"{folder}/fork", code
        self.argv = [sys.executable, "-I", "-S", __file__, self._socket]
        """The command that runs ``main()`` of the module."""

    def __enter__(self) -> "ForkServer":
        import subprocess

        self._process = subprocess.Popen(
            [sys.executable, __file__, self._socket, self.module, self._code],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(
        self,
        kind: "type[BaseException] | None",
        error: "BaseException | None",
        traceback: "TracebackType | None",
    ) -> None:
        self._process.kill()
        self._process.communicate()


def serve(place: str, module: str, code: str) -> None:
    """Fork whoever asks at ``place``, one after another or side by side, until killed."""
    import importlib

    program = importlib.import_module(module)
    exec(code, vars(program))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen(64)
        print("ready", flush=True)
        while True:
            asked, _ = listening.accept()
            with asked:
                if os.fork() == 0:
                    listening.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _answer(asked, program.main)


def _answer(asked: socket.socket, main) -> None:  # type: ignore[no-untyped-def]
    text, streams, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    if (program := os.fork()) == 0:
        asked.close()
        _run(json.loads(text), streams, main)
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(program, 0)
    asked.sendall(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run(given, streams: list[int], main) -> None:  # type: ignore[no-untyped-def]
    import traceback

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environ"])
    sys.argv[1:] = []
    status = 1
    try:
        main()
        status = 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            status = ended.code or 0
        else:
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ask(place: str) -> int:
    """Have a program forked in the place of this one; its exit status."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        given = {"environ": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109 (quick)
        socket.send_fds(server, [json.dumps(given).encode()], [0, 1, 2])
        return int(server.recv(16))


if __name__ == "__main__":
    if sys.argv[2:]:
        serve(*sys.argv[1:])
    else:
        status = ask(sys.argv[1])
        if status < 0:
            os.kill(os.getpid(), -status)
        sys.exit(status)
