"""How fast the real `compute-domain-controller` makes a thousand ComputeDomains ready and lets them go, on a real API server."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from preflight_testing.apiserver import ASSETS, ApiServer, assets, free_port

from .load import BenchError

__all__ = ["add_arguments", "run"]

PROGRAM, COMMAND = "compute-domain-controller", "preflight-computedomain"
DOMAINS = "/apis/resource.nvidia.com/v1beta1/namespaces/default/computedomains"
AT_ONCE = 16
"""Requests of the users that are under way at a time."""
PATIENCE = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, default=1000, metavar="N", help="ComputeDomains (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    folder = assets()
    if folder is None:
        raise BenchError(
            f"{ASSETS} is not set: no real kube-apiserver; set it to the folder with etcd and kube-apiserver."
        )
    if shutil.which(PROGRAM) is None or shutil.which(COMMAND) is None:
        raise BenchError(f"{PROGRAM} is not installed here; run it by `nox -s bench -- compute-domain`.")
    with tempfile.TemporaryDirectory() as name, ApiServer(Path(name), folder) as server:
        printed = subprocess.run([COMMAND, "crd"], stdout=subprocess.PIPE, check=True).stdout
        server.define(yaml.safe_load(printed))
        with controller(server, Path(name)) as running:
            figures = measured(server, running, args.number)
    print(json.dumps({"compute_domain": figures}))
    if args.json:
        args.json.write_text(json.dumps({"compute_domain": figures}, indent=1) + "\n")
    return 0


@dataclass
class Controller:
    """A replica that leads."""

    process: subprocess.Popen[bytes]
    port: int

    def metrics(self) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def requests(self) -> float:
        """All that it has sent, but for watches and its lease's share, which the caller bounds."""
        found = re.findall(r'compute_domain_requests_total\{verb="(\w+)"\} ([0-9.e+]+)', self.metrics())
        return sum(float(count) for verb, count in found if verb in {"create", "patch", "delete"})

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return round(int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024, 1)


@contextmanager
def controller(server: ApiServer, folder: Path) -> Iterator[Controller]:
    port = free_port()
    environ = {
        **os.environ,
        "FEATURE_GATES": "HostManagedIMEX=true",
        "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig")),
    }
    words = [PROGRAM, "--namespace", "default", "--port", str(port)]
    with (folder / "controller.log").open("wb") as log:
        process = subprocess.Popen(words, env=environ, stdout=log, stderr=log)
    running = Controller(process, port)
    try:
        _until(lambda: "compute_domain_leader 1.0" in running.metrics(), "the controller leads")
        yield running
    finally:
        process.terminate()
        process.wait(timeout=60)


def measured(server: ApiServer, running: Controller, number: int) -> dict[str, Any]:
    names = [f"train-{i:05}" for i in range(number)]
    before = running.requests()
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as users:
        list(users.map(lambda name: server.call("POST", DOMAINS, _domain(name)), names))
        asked = time.monotonic() - began
        _until(lambda: _ready(server) == number, "all are Ready")
        ready, created = time.monotonic() - began, running.requests() - before
        rss = running.rss_mb()
        began = time.monotonic()
        list(users.map(lambda name: server.call("DELETE", f"{DOMAINS}/{name}"), names))
        _until(lambda: not server.call("GET", f"{DOMAINS}?limit=1")["items"], "all are gone")
    gone, deleted = time.monotonic() - began, running.requests() - before - created
    figures = {
        "number": number,
        "asked_s": round(asked, 2),
        "thousand_ready_s": round(ready, 2),
        "thousand_gone_s": round(gone, 2),
        "writes_per_object": {"created": round(created / number, 2), "deleted": round(deleted / number, 2)},
        "rss_mb": {"controller": rss},
    }
    print(
        f"{number} ComputeDomains: asked for in {asked:.1f} s, Ready after {ready:.1f} s, gone after {gone:.1f} s; {created / number:.2f} and "
        f"{deleted / number:.2f} writes each; {rss} MB",
        flush=True,
    )
    return figures


def _domain(name: str) -> dict[str, Any]:
    channel = {"resourceClaimTemplate": {"name": f"{name}-channel"}}
    about = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": name}}
    return {**about, "spec": {"numNodes": 0, "channel": channel}}


def _ready(server: ApiServer) -> int:
    found = server.call("GET", DOMAINS)["items"]
    return sum(one.get("status", {}).get("status") == "Ready" for one in found)


def _until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise BenchError(f"after {PATIENCE:.0f} s it does not hold that {what}; its log says why.")
        time.sleep(0.2)
