"""The GPU scheduler with a real kube-scheduler, API server and etcd: calls of the extender, binds a
second, gangs, reuse, health, memory.

It is as a cluster has it: scheduler and controller by their own accounts, the policies that hold
them, the webhook asked about every pod, and etcd that waits for its disk. Beside it the stock
scheduler counts `nvidia.com/gpu` on the same nodes, in the same run.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme
import yaml
from preflight_testing.apiserver import ApiServer, free_port
from preflight_testing.helm import GPU_SCHEDULER, REQUIRED, render

from . import gpu_health, served
from .bars import Bar, BenchMeasurement, at_least, at_most, below
from .gpu_nodes import GPUS, NAMESPACE, SCHEDULER, STOCK, Nodes, ThreadedClient, Watching, pod
from .load import BenchError, binaries, until

Json = dict[str, Any]
AT_ONCE = 16
CALLS = 400
"""Of filter, and of prioritize."""
DIRECT = {1: 400, GPUS: 100}
"""Binds that are asked for without a scheduler, by how many GPUs."""
REUSED = 100
WAITING = 8
PARTS = ("calls", "binds", "health", "one", "reuse", "eight", "gang", "stock")
"""In this order; ``reuse`` needs the GPUs that ``one`` has given."""
MEMORY = {"extender": 120, "controller": 120, "agent": 40}
"""MiB, at most, of each service."""
RATIO = 0.4
"""Of what the stock scheduler does in the same run."""
STALLED = 120.0
"""Seconds without a bind after which a run is over."""
HOME, PART = "preflight", "preflight-gpu-scheduler"
ACCOUNTS = {"extender": "scheduler", SCHEDULER: "scheduler", "controller": "controller"}
"""By process, which of the chart's it has; all others are the administrator's."""
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PLACES = {
    "ServiceAccount": f"/api/v1/namespaces/{HOME}/serviceaccounts",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
    "MutatingWebhookConfiguration": f"{ADMISSION}/mutatingwebhookconfigurations",
}
"""Of the chart's objects, those that are made; nobody is authorized here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes", type=int, default=1000, metavar="N", help="of eight GPUs each (%(default)s)"
    )
    parser.add_argument(
        "--gang", type=int, default=128, metavar="N", help="members of eight GPUs (%(default)s)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=PARTS,
        metavar="PART",
        help=f"some of it: {', '.join(PARTS)}",
    )
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep what the processes said")
    served.add_server(parser)
    parser.set_defaults(server="preflight-gpu-scheduler")


def run(args: argparse.Namespace) -> BenchMeasurement:
    if "reuse" in args.only and "one" not in args.only:
        raise BenchError("--only: reuse needs the GPUs that one has given; name both.")
    folder = binaries("kube-scheduler")
    # Taints of nodes that no kubelet has reported are a controller's to take away, which does not
    # run here.
    more = ["--disable-admission-plugins=TaintNodesByCondition"]
    with (
        tempfile.TemporaryDirectory() as name,
        ApiServer(Path(name), folder, fsync=True, more=more) as server,
    ):
        printed = subprocess.run([args.server, "crd"], stdout=subprocess.PIPE, check=True).stdout
        for definition in yaml.safe_load_all(printed):
            server.define(definition)
        logs = args.logs or Path(name) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        bench = Bench(server, folder, logs, args.server)
        figures = bench.measured(args.nodes, args.gang, set(args.only))
    return BenchMeasurement({"gpu_scheduler": figures}, bars(figures), ".4g")


def bars(figures: Json) -> list[Bar]:
    """Those of 1,000 nodes; fewer make everything easier."""
    calls = [(verb, figures[verb]) for verb in ("filter", "prioritize") if verb in figures]
    bars = [
        *(below(f"p99 of {verb}, in ms,", row["p99_ms"], 5) for verb, row in calls),
        *(below(f"CPU of {verb}, in ms,", row["cpu_ms"], 1.5) for verb, row in calls),
    ]
    if bind := figures.get("bind"):
        bars += [
            below("p99 of a bind of one GPU, in ms,", bind["p99_ms_1"], 60),
            below("p99 of a bind of eight GPUs, in ms,", bind["p99_ms_8"], 150),
            at_most("requests of a bind of one GPU", bind["requests_1"], 2),
            at_most("requests of a bind of eight GPUs", bind["requests_8"], 9),
        ]
    if "ratio" in figures:
        bars.append(at_least("share of the stock scheduler's rate", figures["ratio"], RATIO))
    if "conflicts" in figures:
        bars.append(below("share of conflicts", figures["conflicts"], 0.01))
    if "reuse_p99_s" in figures:
        bars.append(below("p99 of a GPU's way to the next pod, in s,", figures["reuse_p99_s"], 2))
    if "gang_128_s" in figures:
        bars.append(below("a gang of 128, in s,", figures["gang_128_s"], 15))
    if "health_s" in figures:
        bars += [
            below("a node condition's way to the filter, in s,", figures["health_s"], 5),
            below("its clearing's, in s,", figures["well_again_s"], 5),
        ]
    return [
        *bars,
        at_most("GPUs given twice", figures["double_bookings"], 0),
        *(
            below(f"memory of the {name}, in MiB,", figure, MEMORY[name])
            for name, figure in figures.get("rss_mb", {}).items()
        ),
    ]


class Bench:
    """The processes, and what is asked of them."""

    def __init__(self, server: ApiServer, folder: Path, logs: Path, program: str) -> None:
        self._server, self._folder, self._logs, self._program = server, folder, logs, program
        self._kubeconfigs = {"": server.kubeconfig(logs.parent / "kubeconfig")}
        self._port = free_port()
        self.api = ThreadedClient(server)

    def measured(self, nodes: int, gang: int, parts: Set[str]) -> Json:
        figures: Json = {"nodes": nodes, "gpus": nodes * GPUS}
        with Nodes(self.api, nodes) as cluster:
            for name, count in (("one", 1), ("eight", GPUS)):
                cluster.claim(name, count)
            cluster.claim("gang", GPUS, gang="gang")
            watching = Watching(self.api)
            listen = ("--extender-port", str(self._port))
            with self._installed(), self._service("extender", *listen) as extender:
                if "calls" in parts:
                    figures |= self._calls(cluster, extender)
                if "binds" in parts:
                    figures["bind"] = self._binds(cluster)
                memory: Json = {}
                if "health" in parts:
                    figures |= self._health(cluster, memory)
                with self._service("controller", "--namespace", HOME) as controller:
                    _print_figures(figures)
                    cluster.clear()
                    rates: dict[str, float] = {}
                    if "one" in parts:
                        before = _metrics(extender)
                        rates["1"], taken = self._rate(
                            cluster, watching, "one", 1, (extender, controller)
                        )
                        memory |= taken
                        figures["conflicts"] = share(before, _metrics(extender))
                    if "reuse" in parts:
                        figures["reuse_p99_s"] = self._reuse(cluster, watching)
                    if "one" in parts:
                        cluster.clear()
                    if "eight" in parts:
                        rates["8"], _ = self._rate(cluster, watching, "eight", GPUS, ())
                        cluster.clear()
                    if "gang" in parts:
                        figures["gang_128_s"] = self._gang(cluster, watching, min(gang, nodes))
                        cluster.clear()
                    figures |= {"binds_per_s": rates, "rss_mb": memory}
                    figures["double_bookings"] = watching.doubles
                    watching.alive()
                    _print_figures(figures)
            if "stock" in parts:
                stock, _ = self._rate(cluster, watching, "", 1, ())
                figures["stock_binds_per_s"] = stock
                if "1" in rates:
                    figures["ratio"] = round(rates["1"] / stock, 3)
        return figures

    # --- calls of the extender, without a scheduler

    def _calls(self, cluster: Nodes, extender: served.ReviewServer) -> Json:
        (pod_,) = cluster.pods([pod("asked-about", "one", 1)])
        body = json.dumps({"Pod": pod_, "NodeNames": cluster.names}).encode()
        figures = {}
        until(
            lambda: (
                (answer := self._ask("filter", body))["NodeNames"] and not answer["FailedNodes"]
            ),
            "filter refuses no node",
        )
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        for verb in ("filter", "prioritize"):
            seconds, before = [], extender.cpu_seconds()
            for _ in range(CALLS):
                began = time.perf_counter()
                connection.request("POST", f"/{verb}", body)
                connection.getresponse().read()
                seconds.append(time.perf_counter() - began)
            cpu = (extender.cpu_seconds() - before) / CALLS
            figures[verb] = {
                "p50_ms": _ms(seconds, 0.5),
                "p99_ms": _ms(seconds, 0.99),
                "cpu_ms": round(cpu * 1e3, 3),
            }
        connection.close()
        cluster.delete("asked-about")
        return figures

    def _ask(self, verb: str, body: bytes) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{verb}", body) as answer:
            return json.loads(answer.read())

    def _binds(self, cluster: Nodes) -> Json:
        """As kube-scheduler asks for them, :data:`AT_ONCE` at a time,
        each on a node that has room.
        """
        figures: Json = {}
        free = list(cluster.names)
        for count, number in DIRECT.items():
            room = (len(cluster.names) // 2) * (GPUS // count)
            bodies = [
                pod(f"direct-{count}-{n}", "one" if count == 1 else "eight", count)
                for n in range(min(number, room))
            ]
            pods = cluster.pods(bodies)
            time.sleep(2)  # for the extender's mirror to have them
            nodes = [free.pop() for _ in range(-(-len(pods) * count // GPUS))]
            before = self.api.requests()
            with ThreadPoolExecutor(AT_ONCE) as pool:
                asked = [(pod_, nodes[n * count // GPUS]) for n, pod_ in enumerate(pods)]
                seconds = list(pool.map(lambda pod_: self._bind(*pod_), asked))
            figures[f"p50_ms_{count}"] = _ms(seconds, 0.5)
            figures[f"p99_ms_{count}"] = _ms(seconds, 0.99)
            figures[f"requests_{count}"] = round((self.api.requests() - before) / len(pods), 3)
        return figures

    def _bind(self, pod_: Json, node: str) -> float:
        about = pod_["metadata"]
        args = {
            "PodName": about["name"],
            "PodNamespace": about["namespace"],
            "PodUID": about["uid"],
            "Node": node,
        }
        body = json.dumps(args).encode()
        began = time.perf_counter()
        answer = self._ask("bind", body)
        if answer["Error"]:
            raise BenchError(f"{about['name']} was not bound to {node}: {answer['Error']}.")
        return time.perf_counter() - began

    # --- with an agent

    def _health(self, cluster: Nodes, memory: Json) -> Json:
        """``memory`` gets that of the agent, once it has seen all of its GPUs sick."""
        cluster.node(gpu_health.NODE, {})  # a device plugin's GPUs there would be a conflict
        asked = gpu_health.asked_about(cluster)

        def passes(pod_: Json) -> bool:
            answer = self._ask(
                "filter", json.dumps({"Pod": pod_, "NodeNames": [gpu_health.NODE]}).encode()
            )
            return bool(answer["NodeNames"])

        environ = gpu_health.driver(self._logs.parent / "nvml")
        with self._service("agent", "--node", gpu_health.NODE, environ=environ) as agent:
            turns = gpu_health.turns(self.api, passes, asked)
            memory["agent"] = agent.resident_mb()
        for pod_ in asked:
            cluster.delete(pod_["metadata"]["name"])
        cluster.forget(gpu_health.NODE)
        return turns

    # --- with a scheduler

    def _rate(
        self,
        cluster: Nodes,
        watching: Watching,
        claim: str,
        count: int,
        measured: Sequence[served.ReviewServer],
    ) -> tuple[float, Json]:
        """Pods bound a second from the first to the last that takes all GPUs; and the memory of the
        services at the end.
        """
        number = len(cluster.names) * GPUS // count
        scheduler = SCHEDULER if claim else STOCK
        cluster.pods(
            [
                pod(f"{claim or 'stock'}-{n}", claim, count, scheduler=scheduler)
                for n in range(number)
            ]
        )
        with self._scheduler(scheduler):
            self._all_bound(watching, number)
        times = sorted(watching.bound.values())
        rate = round((number - 1) / (times[-1] - times[0]), 1)
        print(f"{number} pods of {count} GPUs by {scheduler}: {rate} bound a second", flush=True)
        memory = {
            name: process.resident_mb()
            for name, process in zip(("extender", "controller"), measured, strict=False)
        }
        return rate, memory

    def _all_bound(self, watching: Watching, number: int) -> None:
        seen, since = -1, time.monotonic()
        while len(watching.bound) < number:
            watching.alive()
            if len(watching.bound) != seen:
                seen, since = len(watching.bound), time.monotonic()
            if time.monotonic() - since > STALLED:
                raise BenchError(
                    f"{seen} of {number} pods are bound, and for {STALLED:.0f} s no further one was."
                )
            time.sleep(0.05)

    def _reuse(self, cluster: Nodes, watching: Watching) -> float:
        """All GPUs are given and some pods wait: seconds from the deletion of one that has a GPU to
        the next bind; the 99th of 100.
        """
        seconds = []
        with self._scheduler(SCHEDULER):
            cluster.pods([pod(f"next-{n}", "one", 1) for n in range(WAITING)])
            time.sleep(5)  # they are tried, and rejected
            for n in range(REUSED):
                gone = f"one-{n}"
                there = set(watching.bound)
                began = time.monotonic()
                cluster.delete(gone)
                # The lambda is called at once.
                until(lambda: set(watching.bound) - there, "a pod that waits has the GPU")  # noqa: B023
                (name,) = set(watching.bound) - there
                seconds.append(watching.bound[name] - began)
                cluster.pods([pod(f"next-{WAITING + n}", "one", 1)])
        seconds.sort()
        return round(_quantile(seconds, 0.99), 3)

    def _gang(self, cluster: Nodes, watching: Watching, members: int) -> float:
        """Seconds from the creation of the last member to the last Binding."""
        with self._scheduler(SCHEDULER):
            cluster.pods([pod(f"member-{n}", "gang", GPUS, gang=members) for n in range(members)])
            began = time.monotonic()
            self._all_bound(watching, members)
        return round(max(watching.bound.values()) - began, 2)

    # --- processes

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """The accounts, the policies that hold them, and the webhook, once it is asked."""
        self._server.call("POST", "/api/v1/namespaces", {"metadata": {"name": HOME}})
        authority, port = trustme.CA(), free_port()
        folder, bundle = self._logs.parent / "certificates", authority.cert_pem.bytes()
        folder.mkdir(exist_ok=True)
        issued = authority.issue_cert("127.0.0.1")
        (folder / "tls.key").write_bytes(issued.private_key_pem.bytes())
        (folder / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        (folder / "ca.crt").write_bytes(bundle)
        options = ("--certificates", str(folder), "--admission-port", str(port))
        with self._service("webhook", *options):
            for item in render(GPU_SCHEDULER, REQUIRED[GPU_SCHEDULER], namespace=HOME):
                for entry in item.get("webhooks", ()):
                    path = entry["clientConfig"]["service"]["path"]
                    url = f"https://127.0.0.1:{port}{path}"
                    entry["clientConfig"] = {
                        "url": url,
                        "caBundle": base64.b64encode(bundle).decode(),
                    }
                if (place := PLACES.get(item["kind"])) is not None:
                    self._server.call("POST", place, item)
            for process, account in ACCOUNTS.items():
                token = self._server.token_of(HOME, f"{PART}-{account}")
                file = self._logs.parent / f"{process}.kubeconfig"
                self._kubeconfigs[process] = self._server.kubeconfig(file, token)
            until(self._admits, "the API server asks the webhook")
            yield

    def _admits(self) -> bool:
        about = {"name": "probe", "annotations": {"gpu.scheduling/claim": "one"}}
        spec = {"containers": [{"name": "main", "image": "none"}]}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
        pod_: Json = self._server.call("POST", path, {"metadata": about, "spec": spec})
        return bool(pod_["spec"].get("tolerations"))

    def _access(self, process: str) -> str:
        return str(self._kubeconfigs.get(process, self._kubeconfigs[""]))

    @contextmanager
    def _service(
        self, name: str, *options: str, environ: Mapping[str, str] | None = None
    ) -> Iterator[served.ReviewServer]:
        port = free_port()
        command = [self._program, name, *options, "--host", "127.0.0.1", "--port", str(port)]
        around = {"KUBECONFIG": self._access(name), **(environ or {})}
        with served.pinned(
            command, None, self._logs / f"{name}.log", around, stderr=subprocess.STDOUT
        ) as process:
            until(lambda: process.poll() is not None or _ready(port), f"the {name} is ready")
            if process.poll() is not None:
                raise BenchError(
                    f"the {name} has ended: {(self._logs / f'{name}.log').read_text()[-300:]}"
                )
            yield served.ReviewServer(f"127.0.0.1:{port}", pid=process.pid, plain=port)

    @contextmanager
    def _scheduler(self, name: str) -> Iterator[None]:
        """A real kube-scheduler: with our extender, or as it is but for its name and how much it
        may ask of the API server.
        """
        if name == STOCK:
            config: Json = {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "clientConnection": {
                    "qps": 500,
                    "burst": 1000,
                    "kubeconfig": self._access(name),
                },
                "leaderElection": {"leaderElect": False},
                "profiles": [{"schedulerName": STOCK}],
            }
        else:
            words = [
                self._program,
                "scheduler-config",
                "--kubeconfig",
                self._access(name),
            ]
            words += ["--extender-port", str(self._port)]
            config = yaml.safe_load(
                subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout
            )
            config["leaderElection"] = {"leaderElect": False}
        file = self._logs / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [str(self._folder / "kube-scheduler"), f"--config={file}", "--secure-port=0"]
        with served.pinned(
            command, None, self._logs / f"{name}.log", os.environ, stderr=subprocess.STDOUT
        ):
            yield


def share(before: str, after: str) -> float:
    """Of the writes for binds between two readings, the part that met somebody else's: leases that
    existed, Bindings that came too late.
    """
    results = _writes(after)
    results.subtract(_writes(before))
    met = sum(
        number for result, number in results.items() if result in {"exists", "conflict", "error"}
    )
    return round(met / results.total(), 5) if results.total() else 0.0


def _writes(metrics: str) -> Counter[str]:
    """By result."""
    results: Counter[str] = Counter()
    for line in metrics.splitlines():
        if line.startswith(("gpu_scheduler_lease_writes_total{", "gpu_scheduler_binds_total{")):
            results[line.partition('result="')[2].partition('"')[0]] += int(
                float(line.rpartition(" ")[2])
            )
    return results


def _metrics(server: served.ReviewServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.plain}/metrics") as answer:
        return str(answer.read().decode())


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            return bool(answer.status == http.client.OK)
    except OSError:
        return False


def _ms(seconds: Sequence[float], share_of: float) -> float:
    return round(_quantile(sorted(seconds), share_of) * 1e3, 2)


def _quantile(ordered: Sequence[float], share_of: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share_of))]


def _print_figures(figures: Json) -> None:
    print(json.dumps(figures), flush=True)
