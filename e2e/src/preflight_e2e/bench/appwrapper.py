"""AppWrappers on a real API server: what a thousand of them cost, and how soon a failed pod and a
sick node are acted on.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from preflight_testing.apiserver import ApiServer, free_port

from . import served
from .admission import histogram, quantile
from .appwrapper_world import EVICTED, FAILED, WrapperWorld, api_server
from .bars import Bar, BenchMeasurement, at_most, below
from .load import BenchError, until

PROGRAM = "preflight-appwrapper"
CONFIG = """
evacuationBrake: {percent: 100}
faultTolerance:
  admissionGracePeriod: 1h
  warmupGracePeriod: 1h
  failureGracePeriod: 30s
  retryPausePeriod: 5s
"""
"""Pods come as fast as the bench makes them, which is not a fault; a failure's grace and a pause
are long enough to be told apart.
"""
SETTLE = 20.0
"""Seconds from the last change to the beginning of the idle time."""
BEAT = 10.0
"""Seconds between two heartbeats of a node."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wrappers", type=int, default=1000, help="of 16 pods each; 264 at least (%(default)s)"
    )
    parser.add_argument("--pods", type=int, default=16, help="of each wrapper (%(default)s)")
    parser.add_argument(
        "--idle", type=float, default=600.0, help="seconds in which nothing happens (%(default)s)"
    )
    parser.add_argument(
        "--program",
        type=served.program,
        default=PROGRAM,
        help="the preflight-appwrapper to measure; `nox -s bench` gives one that is installed as in its image (%(default)s)",
    )


def run(args: argparse.Namespace) -> BenchMeasurement:
    if args.wrappers < EVICTED + FAILED:
        raise BenchError(f"--wrappers: {args.wrappers} is less than {EVICTED + FAILED}; give more.")
    with (
        tempfile.TemporaryDirectory() as name,
        api_server(args.program, Path(name) / "api") as server,
        WrapperWorld(server, args.wrappers, args.pods) as world,
        controller(args.program, server, Path(name), CONFIG) as server_,
    ):
        figures = _measured(world, server_, args.idle)
    return BenchMeasurement({"appwrapper": figures}, _bars(figures), ".3g")


def _bars(figures: dict[str, Any]) -> list[Bar]:
    return [
        at_most(
            "requests of a wrapper from its creation to PodsReady",
            figures["requests_per_wrapper"],
            9,
        ),
        at_most("writes while nothing happens", figures["idle_writes"], 0),
        below("failed pod to Unhealthy, the median in ms", figures["failed_pod_p50_ms"], 100),
        below("failed pod to Unhealthy, the 99th of 100 in ms", figures["failed_pod_p99_ms"], 1000),
        below("seconds until 64 wrappers of one node are Resetting", figures["evict_64_s"], 3),
        below(
            "from a period's end to its write, the 99th of 100 in s", figures["lateness_p99_s"], 2
        ),
        below("a look, the 99th of 100 in ms", figures["look_p99_ms"], 1),
        below("memory of the controller in MB", figures["rss_mb"], 150),
    ]


def _measured(world: WrapperWorld, server_: served.ReviewServer, idle: float) -> dict[str, Any]:
    before = _requests(server_)
    world.wrap()
    until(lambda: world.in_phase("Suspended") == world.wrappers, "all wrappers are seen")
    created = world.resume()
    until(lambda: len(world.made) == world.wrappers, "all components are created")
    all_created = max(world.made.values()) - created
    world.make_pods()
    until(lambda: world.ready == world.wrappers, "all wrappers are ready")
    until(lambda: _settled(server_), "nothing is left to say")
    asked = _requests(server_) - before
    print(
        f"created in {all_created:.1f} s; {asked / world.wrappers:.2f} requests each, Events included",
        flush=True,
    )
    rss = server_.resident_mb()
    time.sleep(SETTLE)
    writes, requests, began = _writes(server_), _requests(server_), time.monotonic()
    with _heartbeats(world):
        time.sleep(idle)
    idle_writes, idle_requests = _writes(server_) - writes, _requests(server_) - requests
    seconds = time.monotonic() - began
    looks = histogram(_metrics(server_), "appwrapper_look_seconds")
    failed = sorted(world.fail())
    evicted = world.evict()
    until(lambda: world.came_back >= EVICTED + FAILED, "all that were reset are created again")
    metrics = _metrics(server_)
    return {
        "wrappers": world.wrappers,
        "pods": world.wrappers * world.each,
        "requests_per_wrapper": round(asked / world.wrappers, 2),
        "all_created_s": round(all_created, 2),
        "idle_writes": int(idle_writes),
        "idle_requests_per_s": round(idle_requests / seconds, 3),
        "failed_pod_p50_ms": round(failed[len(failed) // 2] * 1e3, 1),
        "failed_pod_p99_ms": round(failed[min(len(failed) - 1, int(len(failed) * 0.99))] * 1e3, 1),
        "evict_64_s": round(evicted, 3),
        "lateness_p99_s": round(
            quantile(0.99, histogram(metrics, "appwrapper_lateness_seconds")), 3
        ),
        "look_p99_ms": round(quantile(0.99, looks) * 1e3, 3),
        "rss_mb": max(rss, server_.resident_mb()),
    }


def _metrics(server: served.ReviewServer) -> str:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.plain}/metrics", timeout=30
        ) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def _sum(server: served.ReviewServer, name: str) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in _metrics(server).splitlines()
        if line.startswith(f"{name}{{")
    )


def _requests(server: served.ReviewServer) -> float:
    """All that it has sent, its watches and its lease included."""
    return _sum(server, "rest_client_requests_total")


def _writes(server: served.ReviewServer) -> float:
    """Of wrappers, components, pods and Events; the lease is renewed whatever happens."""
    return _sum(server, "appwrapper_writes_total")


def _settled(server: served.ReviewServer) -> bool:
    """Nothing was written for two seconds: Events are said beside the work."""
    before = _writes(server)
    time.sleep(2)
    return _writes(server) == before


@contextmanager
def controller(
    program: str, server: ApiServer, folder: Path, config: str
) -> Iterator[served.ReviewServer]:
    """A replica that leads."""
    (folder / "config.yaml").write_text(config)
    port, log = free_port(), folder / "controller.log"
    command = [program, "run", "--config", str(folder / "config.yaml"), "--namespace", "default"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environ = {"KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig"))}
    with served.pinned(command, None, log, environ, stderr=subprocess.STDOUT) as process:
        server_ = served.ReviewServer(f"127.0.0.1:{port}", pid=process.pid, plain=port)
        until(lambda: "appwrapper_leader 1.0" in _metrics(server_), "the controller leads")
        yield server_


@contextmanager
def _heartbeats(world: WrapperWorld) -> Iterator[None]:
    """Each node says that it lives, as its kubelet does."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            world.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
