"""Two hours of life for all services at once, as their charts install them on a real API server:
their memory stays flat, and while nothing happens nobody asks what nobody needs.

Real clocks would mostly be waited for: periods of the values are :data:`SCALE` times shorter, but
for leases, which a busy machine would lose.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import yaml
from preflight_testing.rights import lines

from ..all_charts import ON_NODES, PORTS, PROCESSES, attacked, missing, started
from ..attack_requests import HOME, Attacked
from . import gpu_health
from .bars import Bar, BenchMeasurement, at_most
from .compute_domain_plugin import Plugin, node_of_files
from .load import BenchError, audited, binaries, resident_mb
from .soak_life import SoakLife

SCALE: Final = 8
MOST_MB, MOST_SHARE = 2.0, 0.03
"""What a process may have more at the end: two of the megabytes in which Python's allocator and
malloc take memory from the system and rarely give it back, or as much as 3 % of a larger one."""
SETTLE: Final = 20.0
"""Seconds from the last change to the idle time: more than any pause of the values below."""
LEASE: Final = 5
VALUES: Final = """
preflight-injector: {skipNcclWithoutNetwork: false}
preflight-gang: {leaseDuration: 5s, auditInterval: 37.5s}
preflight-mnnvl: {leaseSeconds: 5}
preflight-computedomain: {leaseSeconds: 5}
preflight-gpu-scheduler: {heartbeat: 3.75s, sweep: 3.75s, staleAfter: 11.25s,
  reservationSeconds: 7, gangBind: 2.5s, gangMaxWait: 37.5s}
preflight-appwrapper:
  leaseDuration: 5s
  evacuationBrake: {percent: 100}
  faultTolerance: {admissionGracePeriod: 7.5s, warmupGracePeriod: 37.5s, failureGracePeriod: 7.5s,
    retryPausePeriod: 11.25s, forcefulDeletionGracePeriod: 75s, successTTL: 2s}
"""
AGENT, PLUGIN = ON_NODES
AUDITED: Final[list[dict[str, Any]]] = [
    {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{HOME}"]},
    {"level": "None"},
]
Memory = dict[str, list[float]]
Asked = dict[str, Counter[str]]
"""By process, how often it has asked what: ``VERB PATH``."""


class Periodic(NamedTuple):
    """What a process may ask again and again although nothing has changed: ``asks`` (a pattern of
    what :func:`requests` finds) once in ``every`` seconds."""

    who: str
    asks: str
    every: float


COUNTED: Final = (
    *("get /apis", "get /apis/resource.k8s.io/v1", "list /apis/resource.k8s.io/v1/deviceclasses"),
    "list /api/v1/namespaces/*/pods[?]labelSelector=*",
)
"""What the gang controller asks when it counts pods that run unchecked."""
PERIODIC: Final = (
    Periodic("*", "watch *", 120),
    Periodic("*", f"update /apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/*", LEASE / 5),
    *(Periodic("preflight-gang", asks, 300 / SCALE) for asks in COUNTED),
    Periodic(AGENT, "patch /apis/gpu.scheduling/v1/gpunodestatuses/n1/status", 30 / SCALE),
    # Kinds that this cluster does not serve yet.
    Periodic("preflight-gpu-scheduler-controller", "list /apis/scheduling*/podgroups", 36),
    # Short, so that a proxy between that ends silently is noticed.
    Periodic("preflight-injector", "watch /apis/*/preflightconfigs", 60),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--minutes",
        type=float,
        default=120 / SCALE,
        help=f"of rounds, {SCALE} times as long by the services' clocks (%(default)g)",
    )
    parser.add_argument("--rounds", type=int, help="so many, however long they take")
    parser.add_argument(
        "--idle", type=float, default=150.0, help="seconds in which nothing happens (%(default)g)"
    )
    parser.add_argument(
        "--files", type=Path, metavar="FOLDER", help="an empty one, where logs are kept"
    )


def run(args: argparse.Namespace) -> BenchMeasurement:
    folder = binaries()
    if absent := missing():
        raise BenchError(f"no {', '.join(absent)} beside this interpreter; use nox -s bench.")
    with ExitStack() as stack:
        home = args.files or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home.mkdir(exist_ok=True)
        more, log = audited(home, AUDITED)
        cluster = stack.enter_context(
            attacked(home, folder, values=yaml.safe_load(VALUES), more=more)
        )
        pids, life = _started(cluster, stack, home)
        memory = _lived(life, pids, args)
        time.sleep(SETTLE)
        began = _now()
        time.sleep(args.idle)
        asked = requests(lines(log), began, _now())
        if ended := [name for name, pid in pids.items() if not Path(f"/proc/{pid}/maps").exists()]:
            raise BenchError(f"{', '.join(ended)} ended meanwhile.")
    return _judged(memory, asked, args.idle)


def _started(cluster: Attacked, stack: ExitStack, home: Path) -> tuple[dict[str, int], SoakLife]:
    """All processes that do not run yet, and the life that goes on among them."""
    node = home / "n1"
    around = {AGENT: gpu_health.driver(home / "nvml"), PLUGIN: node_of_files(node)}
    processes = {
        name: started(cluster, stack, home / name, name, around=around.get(name))[0]
        for name in (PROCESSES | ON_NODES)
        if name not in PORTS
    }
    words: Any = processes["preflight-gpu-scheduler-scheduler"].args
    port = int(words[words.index("--extender-port") + 1])
    pids = {name: cluster.memory[name][0] for name in PORTS}
    pids |= {name: process.pid for name, process in processes.items()}
    return pids, SoakLife(cluster, port, Plugin(processes[PLUGIN], node))


def _lived(life: SoakLife, pids: Mapping[str, int], args: argparse.Namespace) -> Memory:
    """What each process has after each round, without code that others map, too."""
    memory: Memory = {name: [] for name in pids}
    life.clear()
    began = time.monotonic()
    while True:
        number, minutes = len(memory[AGENT]), (time.monotonic() - began) / 60
        if number >= args.rounds if args.rounds else minutes >= args.minutes:
            return memory
        life.play(number)
        for name, pid in pids.items():
            memory[name].append(resident_mb(pid, "Anonymous", "smaps_rollup"))
        whole = sum(samples[-1] for samples in memory.values())
        seconds = time.monotonic() - began - minutes * 60
        print(f"round {number + 1}: {seconds:.1f} s, {whole:.1f} MB", flush=True)


def _judged(memory: Memory, asked: Asked, seconds: float) -> BenchMeasurement:
    figures, bars = {}, []
    print(f"{'':42}{'first':>8}{'last':>8} MB{'leases':>9}{'watches':>9}{'others':>8}")
    for name, samples in sorted(memory.items()):
        first, last = growth(samples)
        idle = asked.get(name, Counter())
        kinds = Counter[str]()
        for what, number in idle.items():
            kinds[what.partition(" ")[0] if "/leases/" not in what else "lease"] += number
        others = kinds.total() - kinds["lease"] - kinds["watch"]
        numbers = f"{kinds['lease']:9}{kinds['watch']:9}{others:8}"
        print(f"{name:42}{first:8.1f}{last:8.1f}   {numbers}")
        most = max(MOST_MB, MOST_SHARE * first)
        bars.append(at_most(f"MB that {name} has more", round(last - first, 2), most))
        wrong = needless(name, idle, seconds)
        about = f": {'; '.join(wrong)}" if wrong else ""
        bars.append(Bar(f"requests of {name} that nobody needs{about}", len(wrong), not wrong))
        figures[name] = {"first_mb": first, "last_mb": last, "mb": samples, "idle": dict(idle)}
    rounds = len(next(iter(memory.values())))
    return BenchMeasurement({"soak": {"rounds": rounds, "processes": figures}}, bars, "g", False)


def growth(samples: Sequence[float]) -> tuple[float, float]:
    """The medians of the first and of the last quarter, after a fifth in which all is still
    new.
    """
    steady = samples[math.ceil(len(samples) / 5) :] or samples
    quarter = math.ceil(len(steady) / 4)
    return statistics.median(steady[:quarter]), statistics.median(steady[-quarter:])


def requests(log: Iterable[str], began: str, ended: str) -> Asked:
    """By our accounts, how often each thing was asked between two moments; ``log``: an audit log,
    in which a watch stands when it has been opened, too.
    """
    by_process: Asked = {}
    account = f"system:serviceaccount:{HOME}:"
    for line in log:
        if not line.endswith("\n"):  # being written
            continue
        event = json.loads(line)
        opened = event["stage"] == "ResponseStarted"
        user = event["user"]["username"]
        if opened is not (event["verb"] == "watch") or not user.startswith(account):
            continue
        if began <= event["requestReceivedTimestamp"] < ended:
            asked = by_process.setdefault(user.removeprefix(account), Counter())
            asked[f"{event['verb']} {place_of(event['requestURI'])}"] += 1
    return by_process


def place_of(uri: str) -> str:
    """What is asked about: the path, and by which selectors."""
    url = urlsplit(uri)
    selects = [(k, v) for k, v in parse_qsl(url.query) if k.endswith("Selector")]
    return f"{url.path}?{urlencode(selects)}".rstrip("?")


def needless(who: str, asked: Mapping[str, int], seconds: float) -> list[str]:
    """What ``who`` has asked in so many idle seconds, and how often, that is not :data:`PERIODIC`
    or more often than it should be.
    """
    wrong = []
    for what, number in sorted(asked.items()):
        every = [p.every for p in PERIODIC if fnmatchcase(who, p.who) and fnmatchcase(what, p.asks)]
        # Pauses are spread by a fifth, so that replicas do not ask at once.
        if number > sum(math.floor(seconds / (period * 0.8)) + 1 for period in every):
            wrong.append(f"{number} x {what}")
    return wrong


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
