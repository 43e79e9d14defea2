"""ComputeDomains in figures, with the real programs on a real API server: a thousand at once, and
one node's claims; pods where there is a cluster.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from preflight_testing.apiserver import ApiServer

from .bars import Bar, BenchMeasurement, at_most, below
from .compute_domain_cluster import overhead
from .compute_domain_plugin import PLUGIN, plugin, requests_of
from .compute_domain_plugin import measured as measured_plugin
from .load import BenchError, audited, binaries, until
from .served import ReviewServer, service

PROGRAM, COMMAND = "compute-domain-controller", "preflight-computedomain"
DOMAINS = "/apis/resource.nvidia.com/v1beta1/namespaces/default/computedomains"
AT_ONCE = 16
"""Requests of the users that are under way at a time."""
PATIENCE = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--number", type=int, default=1000, metavar="N", help="ComputeDomains (%(default)s)"
    )
    parser.add_argument(
        "--claims",
        type=int,
        default=200,
        metavar="N",
        help="claims, one after the other (%(default)s)",
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="for which nobody asks the plugin (%(default)s)",
    )
    parser.add_argument(
        "--pods", type=int, default=20, metavar="N", help="with the claim, where KUBECONFIG is set"
    )
    parser.add_argument(
        "--programs",
        type=Path,
        default=Path(sys.executable).parent,
        metavar="FOLDER",
        help="where the programs are",
    )


def run(args: argparse.Namespace) -> BenchMeasurement:
    folder = binaries()
    if missing := [
        name for name in (PROGRAM, COMMAND, PLUGIN) if not (args.programs / name).exists()
    ]:
        raise BenchError(
            f"{args.programs}: no {', '.join(missing)}; run this by `nox -s bench -- compute-domain`."
        )
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="cd-") as name:
        home = Path(name)
        more, log = audited(home, [{"level": "Metadata", "omitStages": ["ResponseStarted"]}])
        with ApiServer(home, folder, more=more) as server:
            printed = subprocess.run(
                [args.programs / COMMAND, "crd"], stdout=subprocess.PIPE, check=True
            ).stdout
            server.define(yaml.safe_load(printed))
            with controller(server, home, str(args.programs / PROGRAM)) as running:
                figures |= measured(server, running, args.number, log)
            domain = server.call("POST", DOMAINS, _domain("claimed"))["metadata"]["uid"]
            node = home / "node"
            node.mkdir()
            with plugin(server, node, str(args.programs / PLUGIN)) as served:
                of_plugin = measured_plugin(server, served, domain, args.claims, args.idle, log)
            figures["rss_mb"]["plugin"] = of_plugin.pop("rss_mb")
            figures |= of_plugin
    if kubeconfig := os.environ.get("KUBECONFIG"):
        figures |= overhead(Path(kubeconfig), args.pods)
    else:
        print(
            "start_overhead_median_ms is left out: KUBECONFIG is not set, and it needs real kubelets."
        )
    return BenchMeasurement({"compute_domain": figures}, bars(figures))


def bars(figures: dict[str, Any]) -> list[Bar]:
    """What the figures are held against."""
    most = {
        "prepare_p50_ms": 20,
        "prepare_p99_ms": 100,
        "prepare_again_p50_ms": 3,
        "unprepare_p50_ms": 10,
        "start_overhead_median_ms": 150,
        "thousand_ready_s": 20,
        "thousand_gone_s": 20,
        "slice_back_s": 2,
    }
    bars = [below(name, figures[name], value) for name, value in most.items() if name in figures]
    bars += [
        at_most(f"requests for one {what}", each, 4)
        for what, each in figures["requests_per_object"].items()
    ]
    beside = sum(number for verb, number in figures["idle_requests"].items() if verb != "watch")
    return [
        *bars,
        below("the plugin's memory in MB", figures["rss_mb"]["plugin"], 60),
        at_most("requests of an idle plugin beside its watch", beside, 0),
    ]


@contextmanager
def controller(server: ApiServer, folder: Path, program: str) -> Iterator[ReviewServer]:
    """A replica that leads."""
    environ = {
        "FEATURE_GATES": "HostManagedIMEX=true",
        "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig")),
    }
    command = [program, "--namespace", "default"]
    with service(command, folder / "controller.log", environ) as running:
        until(
            lambda: running.metric("compute_domain_leader") == 1, "the controller leads", PATIENCE
        )
        yield running


def measured(server: ApiServer, running: ReviewServer, number: int, log: Path) -> dict[str, Any]:
    names = [f"train-{i:05}" for i in range(number)]
    before = _requests(log)
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as users:
        list(users.map(lambda name: server.call("POST", DOMAINS, _domain(name)), names))
        asked = time.monotonic() - began
        until(lambda: _ready(server) == number, "all are Ready", PATIENCE, 0.2)
        ready, created = time.monotonic() - began, _requests(log) - before
        rss = running.resident_mb()
        began = time.monotonic()
        list(users.map(lambda name: server.call("DELETE", f"{DOMAINS}/{name}"), names))
        until(
            lambda: not server.call("GET", f"{DOMAINS}?limit=1")["items"],
            "all are gone",
            PATIENCE,
            0.2,
        )
    gone, deleted = time.monotonic() - began, _requests(log) - before - created
    print(
        f"{number} ComputeDomains: asked for in {asked:.1f} s, Ready after {ready:.1f} s, gone after {gone:.1f} s; "
        f"{created / number:.2f} and {deleted / number:.2f} requests each; {rss} MB",
        flush=True,
    )
    return {
        "number": number,
        "thousand_ready_s": round(ready, 2),
        "thousand_gone_s": round(gone, 2),
        "requests_per_object": {
            "created": round(created / number, 2),
            "deleted": round(deleted / number, 2),
        },
        "rss_mb": {"controller": rss},
    }


def _requests(log: Path) -> int:
    """All that the controller has asked about single objects, by the audit log: not its mirrors'
    lists and watches, nor its Lease.
    """
    asked = requests_of(log, PROGRAM)
    return sum(
        entry["verb"] not in {"list", "watch"} and entry["objectRef"]["resource"] != "leases"
        for entry in asked
    )


def _domain(name: str) -> dict[str, Any]:
    channel = {"resourceClaimTemplate": {"name": f"{name}-channel"}}
    about = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name},
    }
    return {**about, "spec": {"numNodes": 0, "channel": channel}}


def _ready(server: ApiServer) -> int:
    domains = server.call("GET", DOMAINS)["items"]
    return sum(domain.get("status", {}).get("status") == "Ready" for domain in domains)
