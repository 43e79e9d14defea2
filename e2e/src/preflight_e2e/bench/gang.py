"""How fast the real `preflight-gang run` tells a gang: from the last member's address to the last
member's roster.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from preflight_testing.apidouble import ApiDouble, write_kubeconfig
from preflight_testing.apiserver import ASSETS, ApiServer, assets

from .bars import BenchMeasurement
from .cluster import BenchServer, RosterWatch, addressed, member
from .load import BenchError, resident_mb, until
from .served import ReviewServer, service

SIZES = (2, 16, 64, 256, 512, 1000, 2000, 4000)
WATCHED, HELD = 10_000, 100_000
"""Stamped pods that the controller mirrors, of all pods that the double holds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default=SIZES,
        metavar="N,N…",
        help=f"gang sizes ({','.join(map(str, SIZES))})",
    )
    parser.add_argument(
        "--no-memory", dest="memory", action="store_false", help=f"leave out the {HELD:,} pods"
    )
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="draw time against gang size into FOLDER"
    )
    parser.add_argument(
        "--plot-format", choices=("svg", "png"), default="svg", help="of the picture (%(default)s)"
    )


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def run(args: argparse.Namespace) -> BenchMeasurement:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures: dict[str, Any] = {"sizes": {}}
        with api_server(folder) as server, controller(server, folder) as running:
            for size in args.sizes:
                measured = one_gang(server, running, size)
                figures["sizes"][str(size)] = measured
                print(
                    f"{size:5} pods: {measured['seconds']:7.3f} s  {measured['configmap_writes']} ConfigMap write(s)"
                    f"  {measured['bytes_sent']:,} bytes sent"
                    f"  {measured['cpu_seconds']:.2f} s of CPU",
                    flush=True,
                )
            figures["hundred_gangs_of_16_seconds"] = many_gangs(server, 100, 16)
            print(f"100 gangs of 16: {figures['hundred_gangs_of_16_seconds']:.3f} s", flush=True)
        if args.memory:
            figures["rss_mb_10000_pods"] = memory(folder)
            print(
                f"{WATCHED:,} stamped pods of {HELD:,}: {figures['rss_mb_10000_pods']} MB at most",
                flush=True,
            )
    if args.plots:
        from .gang_plots import draw  # matplotlib: not for those who only want figures

        print(draw(figures, args.plots, args.plot_format))
    return BenchMeasurement({"gang": figures})


def one_gang(server: BenchServer, running: ReviewServer, size: int) -> dict[str, Any]:
    """All members of one gang get their addresses in a burst."""
    namespace = f"bench-{size}"
    pods = created(server, namespace, [(f"gang-{size}", size)])
    before, cpu = readings(running), running.cpu_seconds()
    watch = RosterWatch(server, namespace)
    try:
        last = address(server, namespace, pods)
        watch.wait(lambda rosters: _sealed(rosters) == size, 120)
    finally:
        watch.close()
    ranks = {json.loads(roster)["rank"] for roster in watch.rosters.values()}
    if ranks != set(range(size)):
        raise BenchError(f"{size} pods have {len(ranks)} different ranks; nothing was measured.")
    after = quiet(running)
    removed(server, namespace)
    written = 'preflight_gang_writes_total{kind="configmap",result="written"}'
    return {
        "seconds": round(max(watch.at.values()) - last, 3),
        "configmap_writes": int(after.get(written, 0) - before.get(written, 0)),
        "cpu_seconds": round(running.cpu_seconds() - cpu, 2),
        "bytes_sent": int(sum(_sent(after).values()) - sum(_sent(before).values())),
    }


def quiet(running: ReviewServer) -> dict[str, float]:
    """Its metrics when it has nothing more to write: what is told is seen before its answer is
    counted.
    """
    before = readings(running)
    while True:
        time.sleep(0.5)
        after = readings(running)
        if _sent(after) == _sent(before):
            return after
        before = after


def many_gangs(server: BenchServer, gangs: int, size: int) -> float:
    namespace = f"bench-{gangs}x{size}"
    pods = created(server, namespace, [(f"gang-{i}", size) for i in range(gangs)])
    watch = RosterWatch(server, namespace)
    try:
        last = address(server, namespace, pods)
        watch.wait(lambda rosters: _sealed(rosters) == gangs * size, 120)
    finally:
        watch.close()
    removed(server, namespace)
    return round(max(watch.at.values()) - last, 3)


def memory(folder: Path) -> float:
    """The controller's memory at its peak, when it has mirrored what is stamped of
    a large cluster.
    """
    with ApiDouble() as double:
        double.within(lambda: double.create("namespaces", {"metadata": {"name": "many"}}))
        size = 16
        for start in range(0, HELD, 1000):

            def create(start: int = start) -> None:
                for number in range(start, start + 1000):
                    pod = member("many", f"gang-{number // size}", size, f"pod-{number}")
                    if number >= WATCHED:
                        del pod["metadata"]["labels"], pod["metadata"]["annotations"]
                    double.create("pods", pod)

            double.within(create)
            double.within(double.compact)
        server = BenchServer(double.url)
        with controller(server, folder) as running:
            for number in range(100):  # it is awake and at work
                server.call("GET", f"/api/v1/namespaces/many/pods/pod-{number}")
            assert running.pid is not None
            return resident_mb(running.pid, "VmHWM")


def created(server: BenchServer, namespace: str, gangs: list[tuple[str, int]]) -> list[str]:
    server.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    pods = [
        member(namespace, gang, size, f"{gang}-{i}") for gang, size in gangs for i in range(size)
    ]
    server.burst("POST", ((f"/api/v1/namespaces/{namespace}/pods", pod) for pod in pods))
    return [pod["metadata"]["name"] for pod in pods]


def address(server: BenchServer, namespace: str, pods: list[str]) -> float:
    """Give each pod its address, as fast as the API server takes them; when the last was taken."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    writes = ((f"{path}/{name}/status", addressed(number)) for number, name in enumerate(pods, 1))
    return server.burst("PATCH", writes, "application/merge-patch+json")


def removed(server: BenchServer, namespace: str) -> None:
    """Nothing of it may cost the next measurement anything."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    names = [item["metadata"]["name"] for item in server.call("GET", path)["items"]]
    server.burst("DELETE", ((f"{path}/{name}", {"gracePeriodSeconds": 0}) for name in names))
    time.sleep(1)  # the controller hears of it


def _sealed(rosters: dict[str, str]) -> int:
    return sum('"answer":"sealed"' in roster for roster in list(rosters.values()))


def _sent(metrics: dict[str, float]) -> dict[str, float]:
    """By verb; not what renews the lease."""
    verbs = {
        verb: f'preflight_gang_sent_bytes_total{{verb="{verb}"}}' for verb in ("create", "patch")
    }
    return {verb: metrics.get(name, 0.0) for verb, name in verbs.items()}


@contextmanager
def api_server(folder: Path) -> Iterator[BenchServer]:
    """A real one where its binaries are, else the double; says which."""
    binaries = assets()
    if binaries is None:
        print(
            f"{ASSETS} is not set: measured against the API double, which is not an API server's speed",
            flush=True,
        )
        with ApiDouble() as double:
            yield BenchServer(double.url)
        return
    home = folder / "apiserver"
    home.mkdir()
    with ApiServer(home, binaries) as real:
        print(
            f"measured against kube-apiserver of {binaries}, etcd without fsync, all on this machine",
            flush=True,
        )
        yield BenchServer.of(real)


def readings(running: ReviewServer) -> dict[str, float]:
    """Its metrics by name and labels."""
    rows = (
        row.rpartition(" ") for row in running.metrics().splitlines() if not row.startswith("#")
    )
    return {name: float(value) for name, _, value in rows}


@contextmanager
def controller(server: BenchServer, folder: Path) -> Iterator[ReviewServer]:
    """One replica as it runs in a cluster, at its default configuration, leading."""
    program = shutil.which("preflight-gang")
    if program is None:
        raise BenchError("preflight-gang is not on PATH; run this with `nox -s bench`.")
    user = {"token": server.token} if server.token else {}
    kubeconfig = write_kubeconfig(
        folder / "kubeconfig", server.url, ca=Path(server.ca) if server.ca else None, user=user
    )
    command = [program, "run", "--namespace", "default"]
    environ = {"KUBECONFIG": str(kubeconfig)}
    with service(command, folder / "controller.log", environ) as running:
        until(lambda: running.metric("preflight_gang_leader") == 1, "preflight-gang leads", 120)
        yield running
