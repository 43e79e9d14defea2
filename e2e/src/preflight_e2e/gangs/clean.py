"""Healthy gangs, over and over: `python -m preflight_e2e.gangs.clean --real 20 --scripted 1000
--json FILE` counts the fatal events, of which there must be none.

Every gang is sealed by a real gang controller. The real ones move their data by gloo, on shaped
links where this process may shape any; in the scripted ones the ranks are made up (see
``scripted``) and every second gang as a whole is slow, so that its pairs are measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

from allreduce_testing.gangs.gang import GangUnderTest
from allreduce_testing.gangs.links import SwitchedGang, may_shape
from preflight_proto.check.testing import FakeConnector, RosterFolder, environment
from preflight_proto.result import from_termination

from ..bench.cluster import BenchServer, RosterWatch, addressed, member
from ..bench.gang import api_server, controller

NAMESPACE = "clean"
FLOOR = "0.015"
AT_ONCE = 4
"""Scripted gangs that run side by side."""


@dataclass
class GangCounts:
    """What came of some gangs."""

    gangs: int = 0
    members: int = 0
    fatal_events: int = 0
    localized: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)

    def figures(self) -> dict[str, Any]:
        return {
            "gangs": self.gangs,
            "members": self.members,
            "fatal_events": self.fatal_events,
            "localised": self.localized,
            "outcomes": dict(self.outcomes.most_common()),
            "seconds": round(time.monotonic() - self.started, 1),
        }


class Controlled:
    """A real gang controller, and pods without a kubelet: what it tells them is handed to whoever
    asks.
    """

    def __init__(self, server: BenchServer, rosters: RosterWatch) -> None:
        self.server, self._told = server, rosters

    def gang(self, name: str, addresses: list[str]) -> list[str]:
        """Create a gang with these addresses; its members' uids."""
        uids = []
        for rank, _ in enumerate(addresses):
            pod = member(NAMESPACE, name, len(addresses), f"{name}-{rank}")
            pod["spec"]["nodeName"] = f"node-{rank}"
            created = self.server.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
            uids.append(created["metadata"]["uid"])
        statuses = []
        for rank, address in enumerate(addresses):
            body = addressed(1)
            body["status"] |= {"podIP": address, "podIPs": [{"ip": address}]}
            statuses.append((f"/api/v1/namespaces/{NAMESPACE}/pods/{name}-{rank}/status", body))
        self.server.burst("PATCH", statuses, "application/merge-patch+json")
        return uids

    def sealed(self, name: str, size: int) -> list[dict[str, Any]]:
        """The rosters of its members, once all are sealed, in the order of their pods."""
        names = [f"{name}-{rank}" for rank in range(size)]
        self._told.wait(
            lambda rosters: all('"answer":"sealed"' in rosters.get(pod, "") for pod in names), 60
        )
        return [json.loads(self._told.rosters[pod]) for pod in names]

    def forget(self, name: str, size: int) -> None:
        for rank in range(size):
            self.server.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}-{rank}")


@contextmanager
def controlled(folder: Path) -> Iterator[Controlled]:
    with api_server(folder) as server, controller(server, folder):
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        watch = RosterWatch(server, NAMESPACE)
        try:
            yield Controlled(server, watch)
        finally:
            watch.close()


# --- real ranks


def real(controller: Controlled, folder: Path, gangs: int) -> GangCounts:
    """Gangs of three, one after the other, each with its own torch."""
    counted, shaped = GangCounts(), may_shape()
    print(
        f"real gangs on {'shaped links' if shaped else 'loopback: this process may not shape links'}",
        flush=True,
    )
    for number in range(gangs):
        _real(controller, folder / f"real-{number}", f"real-{number}", counted, shaped=shaped)
    return counted


def _real(
    controller: Controlled, home: Path, name: str, counted: GangCounts, *, shaped: bool
) -> None:
    given = {"NCCL_ALLREDUCE_SIZE": "4Mi", "CHECK_TIMEOUT": "120s", "GANG_TIMEOUT": "120s"}
    given |= {"NCCL_ALLREDUCE_THRESHOLD_GBPS": FLOOR} if shaped else {}
    home.mkdir()
    with SwitchedGang(home) if shaped else GangUnderTest(home) as gang:
        gang.size = 3
        if isinstance(gang, SwitchedGang):
            gang.join(3)
        uids = controller.gang(name, [gang.address(rank) for rank in range(3)])
        for rank, uid in enumerate(uids):
            gang.start(rank, **given, POD_UID=uid, MY_POD_NAME=f"{name}-{rank}")
        for rank, roster in enumerate(controller.sealed(name, 3)):
            gang.members[rank].folder.answer(json.dumps(roster))
        for process in gang.members.values():
            end = process.ended(180)
            counted.members += 1
            counted.outcomes[f"{end.result.outcome} {end.result.code}"] += 1
            counted.fatal_events += sum(event.is_fatal for event in process.connector.events)
        counted.gangs += 1
        counted.localized += "of localisation" in gang.members[0].output
    controller.forget(name, 3)


# --- ranks made up


class Checks:
    """The process that forks checks; answers are handed to the thread that waits for them."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "allreduce_testing.gangs.scripted"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._waiting: dict[str, SimpleQueue[int]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, name: str, env: dict[str, str], log: Path) -> SimpleQueue[int]:
        """Run a check; its exit status comes by the queue."""
        assert self._process.stdin is not None
        queue: SimpleQueue[int] = SimpleQueue()
        with self._lock:
            self._waiting[name] = queue
            self._process.stdin.write(json.dumps({"id": name, "env": env, "log": str(log)}) + "\n")
            self._process.stdin.flush()
        return queue

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).put(answer["exit"])


def scripted(controller: Controlled, folder: Path, gangs: int) -> GangCounts:
    """Gangs of three to six, several side by side."""
    counted, lock, checks = GangCounts(), threading.Lock(), Checks()
    places: SimpleQueue[list[FakeConnector]] = SimpleQueue()
    with ExitStack() as stack:
        stack.callback(checks.close)
        for place in range(AT_ONCE):
            connectors = [FakeConnector(folder / f"{place}-{rank}.sock") for rank in range(6)]
            places.put([stack.enter_context(connector) for connector in connectors])

        def one(number: int) -> None:
            connectors = places.get()
            try:
                _scripted(controller, checks, folder, number, connectors, counted, lock)
            finally:
                places.put(connectors)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done, _ in enumerate(pool.map(one, range(gangs)), 1):
                if done % 100 == 0:
                    print(f"{done} scripted gangs: {counted.fatal_events} fatal events", flush=True)
    return counted


def _scripted(
    controller: Controlled,
    checks: Checks,
    folder: Path,
    number: int,
    connectors: list[FakeConnector],
    counted: GangCounts,
    lock: threading.Lock,
) -> None:
    name, chance = f"scripted-{number}", Random(f"clean {number}")
    size = chance.randint(3, 6)
    addresses = [f"127.{1 + number // 250}.{1 + number % 250}.{rank + 1}" for rank in range(size)]
    uids = controller.gang(name, addresses)
    exits, logs, terminations = [], [], []
    homes = [Path(tempfile.mkdtemp(dir=folder)) for _ in range(size)]
    rosters = controller.sealed(name, size)
    for rank, home in enumerate(homes):
        (home / "state").mkdir()
        roster = RosterFolder(home / "gang")
        roster.answer(json.dumps(rosters[rank]))
        connectors[rank].batches.clear()
        variables = {
            "MY_POD_NAME": f"{name}-{rank}",
            "NODE_NAME": f"node-{rank}",
            "POD_UID": uids[rank],
            "POD_IP": addresses[rank],
            "GANG_CONFIG_DIR": str(roster.path),
            "PREFLIGHT_STATE_DIR": str(home / "state"),
            "NCCL_ALLREDUCE_BACKEND": "gloo",
            "NCCL_ALLREDUCE_SIZE": "4Mi",
            "NCCL_ALLREDUCE_ITERATIONS": "5",
            "NCCL_ALLREDUCE_THRESHOLD_GBPS": FLOOR,
            "GANG_TIMEOUT": "120s",
            "CHECK_TIMEOUT": "120s",
            "SCRIPT_GANG": str(number),
            "SCRIPT_SHARE": "1" if number % 2 else "0.5",
        }
        logs.append(home / "log")
        terminations.append(home / "termination-log")
        exits.append(
            checks.start(f"{name}-{rank}", environment(connectors[rank], home, variables), logs[-1])
        )
    statuses = [exited.get() for exited in exits]
    results = [
        from_termination("nccl-allreduce", path.read_text() if path.exists() else "", status)
        for path, status in zip(terminations, statuses, strict=True)
    ]
    with lock:
        counted.gangs += 1
        counted.members += size
        counted.localized += "of localisation" in logs[0].read_text()
        counted.outcomes.update(f"{result.outcome} {result.code}" for result in results)
        counted.fatal_events += sum(
            event.is_fatal for connector in connectors[:size] for event in connector.events
        )
    controller.forget(name, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--real", type=int, default=20, help="gangs that move their data by gloo (%(default)s)"
    )
    parser.add_argument(
        "--scripted", type=int, default=1000, help="gangs with ranks made up (%(default)s)"
    )
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="pf") as name, controlled(Path(name)) as controller:
        if args.real:
            figures["real"] = real(controller, Path(name), args.real).figures()
        if args.scripted:
            figures["scripted"] = scripted(controller, Path(name), args.scripted).figures()
    args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
