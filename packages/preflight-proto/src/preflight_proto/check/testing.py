"""For the tests of a check: a platform connector on a socket of its own, and the check run as a
process.

with FakeConnector(tmp_path / "connector.sock") as connector:
    ran = run_check([sys.executable, "-m", "my_check"], connector, tmp_path, {"MY_VARIABLE": "1"},
    check="mine")
assert (ran.exit_code, ran.result.code) == (0, "OK")
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from grpclib import GRPCError, Status
from grpclib.events import RecvRequest, listen
from grpclib.server import Server

from .. import names, wire
from .._generated.google.protobuf import Empty
from ..result import Result, from_termination
from ..roster import FILE, Roster, encode_roster

Mode = Literal["ok", "refuse", "hang"]
_FILES = (FILE, names.TOPOLOGY_FILE)


class FakeConnector(wire.PlatformConnectorBase):
    """A platform connector in a thread of its own.

    ``mode`` may change at any time: ``ok`` takes batches, ``refuse`` answers UNAVAILABLE, ``hang``
    never answers. ``batches`` holds what was taken, ``attempts`` counts every call, ``tokens`` has
    the authorization of each (None without one).
    """

    def __init__(self, path: Path, mode: Mode = "ok") -> None:
        self.path, self.mode = path, mode
        self.batches: list[wire.HealthEvents] = []
        self.tokens: list[str | None] = []
        self.attempts = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._up = threading.Event()

    @property
    def events(self) -> list[wire.HealthEvent]:
        """All events of all batches."""
        return [event for batch in self.batches for event in batch.events]

    async def health_event_occurred_v_1(self, message: wire.HealthEvents) -> Empty:
        """The connector's one call, answered as ``mode`` says."""
        self.attempts += 1
        if self.mode == "refuse":
            raise GRPCError(Status.UNAVAILABLE, "set to refuse")
        if self.mode == "hang":
            await asyncio.Event().wait()
        self.batches.append(message)
        return Empty()

    def __enter__(self) -> FakeConnector:
        self._thread.start()
        self._up.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _request(self, event: RecvRequest) -> None:
        token = event.metadata.get("authorization")
        self.tokens.append(str(token) if token is not None else None)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = Server([self])
        listen(server, RecvRequest, self._request)
        self.path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self.path))
        self._loop.run_until_complete(server.start(sock=listening))
        self._up.set()
        self._loop.run_forever()
        # Neither asyncio nor grpclib closes connections that a server has accepted as it closes:
        # two turns give each its transport.
        self._loop.remove_reader(listening.fileno())
        for _ in range(2):
            self._loop.run_until_complete(asyncio.sleep(0))
        for transport in list(self._loop._transports.values()):  # type: ignore[attr-defined]
            transport.abort()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(server.wait_closed())
        self._loop.run_until_complete(asyncio.sleep(0))  # transports close in the turn after
        self._loop.close()


class RosterFolder:
    """The folder ``GANG_CONFIG_DIR`` as the kubelet keeps it: each answer swaps the whole folder
    behind ``..data``.

    ``topology``: the labels of the pod's node, which come with the next answer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.topology: dict[str, str] = {}
        self._swaps = 0
        path.mkdir()
        self._swap("")
        for file in _FILES:
            (path / file).symlink_to(f"..data/{file}")

    def answer(self, roster: Roster | str) -> None:
        """Put this answer (or this raw text) in the place of the last one."""
        self._swap(roster if isinstance(roster, str) else encode_roster(roster))

    def _swap(self, text: str) -> None:
        self._swaps += 1
        new, link, temporary = (
            self.path / f"..{self._swaps}",
            self.path / "..data",
            self.path / "..data_tmp",
        )
        new.mkdir()
        (new / FILE).write_text(text)
        (new / names.TOPOLOGY_FILE).write_text(json.dumps(self.topology))
        old = link.readlink() if link.is_symlink() else None
        temporary.symlink_to(new.name)
        temporary.replace(link)
        if old is not None:
            for file in _FILES:
                (self.path / old / file).unlink()
            (self.path / old).rmdir()


@dataclass(frozen=True)
class CheckRun:
    """How a check's process ended: what `kubectl logs` and the container's status would show."""

    exit_code: int
    lines: list[str]
    stderr: str
    result: Result
    termination: str


def environment(
    connector: FakeConnector | Path, folder: Path, variables: Mapping[str, str]
) -> dict[str, str]:
    """The variables that the webhook gives to every check, and ``variables``."""
    socket = connector.path if isinstance(connector, FakeConnector) else connector
    return {
        "PATH": os.environ.get("PATH", ""),
        names.ENV_CONNECTOR_SOCKET: f"unix://{socket}",
        names.ENV_NODE_NAME: "node-a",
        names.ENV_POD_NAME: "pod-a",
        names.ENV_POD_UID: "uid-a",
        names.ENV_RESULT_PATH: str(folder / "termination-log"),
        **variables,
    }


def run_check(
    argv: Sequence[str],
    connector: FakeConnector | Path,
    folder: Path,
    variables: Mapping[str, str],
    *,
    check: str,
    timeout: float = 50.0,
) -> CheckRun:
    """Run the check named ``check`` as the kubelet would; a variable set to the empty string is
    passed on as such.
    """
    done = subprocess.run(
        argv,
        env=environment(connector, folder, variables),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    log = folder / "termination-log"
    text = log.read_text() if log.exists() else ""
    return CheckRun(
        done.returncode,
        done.stdout.splitlines(),
        done.stderr,
        from_termination(check, text, done.returncode),
        text,
    )
