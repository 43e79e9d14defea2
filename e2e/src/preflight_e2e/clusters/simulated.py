"""A cluster where there is none: the API double with scheduler and kubelets, and Preflight's own
processes around it.

Real: webhook over TLS, gang controller, AppWrapper's controller and labeler, checks, torchrun.
Doubles: API server, scheduler, kubelet, and what ``fakes/`` has.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trustme
from kubernetes import client, config
from preflight_testing.apidouble import RESOURCES, ApiDouble, Resource, write_kubeconfig
from preflight_testing.fakes import FAKES, NVML, NvmlError, build_nvml
from preflight_testing.helm import UMBRELLA, render
from preflight_testing.matrix.facts import node_json, uuids

from ..images import ROOT
from ..lab import GANG_VALUES, OPTED_IN, Lab, LabError, injector_values, until
from ..simcluster.admission import SimulatedAdmission
from ..simcluster.nodes import Kubelets, SimulatedNode, unimplemented
from ..simcluster.scheduler import schedule

COMMANDS = {
    "preflight-webhook": "preflight-webhook",
    "preflight-gang": "preflight-gang",
    "preflight-appwrapper": "preflight-appwrapper",
    "preflight-dcgm-diag": "check-dcgm",
    "preflight-nccl-loopback": "check-nccl-loopback",
    "preflight-nccl-allreduce": "check-nccl-allreduce",
}
"""Image: the program that is its entry point, in an environment of its own of the same name."""

WRAPPERS = Resource(
    "workload.codeflare.dev/v1beta2", "appwrappers", "AppWrapper", status=True, custom=True
)
WRAPPER_VALUES: dict[str, Any] = {
    "enabled": True,
    "leaseDuration": "5s",
    "labeler": {"enabled": True},
    "faultTolerance": {"retryPausePeriod": "2s"},
    "evacuationBrake": {"percent": 100},
}
"""Instead of 90 s: a person watches; and more than one of ten nodes is sick, as it is wanted."""
PROTO = ROOT / "packages/preflight-proto/proto/health_event.proto"
START_SECONDS = 120.0
"""For a process to be there: ten nodes took 57 at once on two cores with a load of 29."""
STOP_SECONDS = 5.0
LABELS = {"network.topology.nvidia.com/leaf": "leaf-1"}
"""Of every node: they share one machine's network."""
LEAST_DISK = 50e6
"""Bytes; a run of the demo was seen to write 1 MB."""
LONGEST_FOLDER = 24
"""Linux takes 107 bytes for a socket's name, of which the deepest one below needs 80."""


class SimulatedLab(Lab):
    """A :class:`Lab` on local processes. ``environments``: folder with one Python environment for
    each program of :data:`COMMANDS`.

    Everything is in ``root``, a folder that :meth:`close` removes, and on loopback addresses that
    no other run has.
    """

    def __init__(
        self, nodes: Sequence[str], environments: Path, say: Callable[[str], None]
    ) -> None:
        self.say, self.nodes, self.environments = say, list(nodes), environments
        if missing := [
            str(self._program(image)) for image in COMMANDS if not self._program(image).is_file()
        ]:
            raise LabError(
                f"{', '.join(missing)}: not there; run `nox -s demo`, which installs them."
            )
        _room(Path(tempfile.gettempdir()))
        self._values: dict[str, Any] | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._exit = contextlib.ExitStack()
        self._network = self._exit.enter_context(_network())
        self._engine_port = _free_port(f"{self._network}.1")
        self.root = Path(tempfile.mkdtemp(prefix="preflight-"))
        self._exit.callback(shutil.rmtree, self.root, ignore_errors=True)
        self._exit.callback(self._end_processes)
        self.logs = self.root / "logs"
        self.logs.mkdir()
        self.history: list[tuple[float, dict[str, Any]]] = []
        """Every state of every pod, with the time (seconds since the epoch) at which it was
        written.
        """
        self.seen: Callable[[float, dict[str, Any]], None] = lambda *_: None
        """Hears of each of them."""
        self._addressed: dict[str, dict[str, float]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._wanted: dict[str, int] = {}

    # --- the cluster

    def start(self) -> None:
        """The API double, its nodes and their fakes. Raises :class:`LabError`."""
        self.double = self._exit.enter_context(
            ApiDouble([*RESOURCES, WRAPPERS])
        )  # its end, the first, is that of the kubelets, who end their pods
        self.kubeconfig = write_kubeconfig(self.root / "kubeconfig", self.double.url)
        config.load_kube_config(str(self.kubeconfig))  # type: ignore[no-untyped-call]
        self.api: Any = client.CoreV1Api()
        self.double.within(
            lambda: self.double.create("namespaces", {"metadata": {"name": "preflight"}})
        )
        environ, stubs = self._environ(), self._stubs()
        nodes = {name: self._node(name, environ) for name in self.nodes}
        for node in nodes.values():
            self._fake_node(node, stubs)
        for name in self.nodes:
            self.configure(name, {}, wait=False)
        for name in self.nodes:
            self.configured(name)
        served, store = {r.plural: r for r in self.double.api.served}, self.double.store
        entry_points = {image: [str(self._program(image))] for image in COMMANDS}
        self.images = {
            f"{image}:{tag}": argv for image, argv in entry_points.items() for tag in ("dev", "e2e")
        }
        addresses = (f"{self._network}.{number}" for number in range(100, 255))
        kubelets = Kubelets(store, served, nodes, self.images, self.logs, lambda: next(addresses))
        self._background("observer", self._observe(served["pods"]))
        self._background("kubelets", kubelets.run())
        self._background("scheduler", schedule(store, served["nodes"], served["pods"]))

    def close(self) -> None:
        """End every process, then remove every file."""
        self._exit.close()

    def _end_processes(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _background(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()):
                self.say(f"the simulated {what} ended: {error!r}")

        def begin() -> None:
            task = asyncio.create_task(work)
            task.add_done_callback(ended)
            self._tasks.append(task)  # the loop itself keeps no reference

        self.double.within(begin)

    # --- processes

    def _program(self, image: str) -> Path:
        program = COMMANDS[image]
        return self.environments / program / "bin" / program

    def _environ(self) -> dict[str, str]:
        """What a process on any node finds."""
        path = [
            str(FAKES / "bin"),
            str(Path(sys.executable).parent),
            os.environ.get("PATH", os.defpath),
        ]
        environ = {"PATH": os.pathsep.join(path), "HOME": str(self.root), "LANG": "C.UTF-8"}
        environ["PYTHONPATH"] = str(FAKES / "net")
        library = self.root / "lib" / "libnvidia-ml.so.1"
        library.parent.mkdir()
        try:
            build_nvml(NVML, library)
        except NvmlError as error:
            self.say(f"{error} Until then the checks ask the fake nvidia-smi instead.")
            return environ
        return environ | {"LD_LIBRARY_PATH": str(library.parent)}

    def _stubs(self) -> Path:
        """The connector's gRPC stubs, from the proto file of preflight-proto."""
        folder = self.root / "stubs"
        folder.mkdir()
        into = [
            f"-I{PROTO.parent}",
            f"--python_out={folder}",
            f"--grpc_python_out={folder}",
            PROTO.name,
        ]
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *into],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise LabError(
                f"{PROTO}: protoc ended with status {done.returncode} ({done.stderr.strip()[-200:]}); correct the file."
            )
        return folder

    def _node(self, name: str, environ: Mapping[str, str]) -> SimulatedNode:
        root = self.root / name
        for folder in ("var/run/nvsentinel", "pods"):
            (root / folder).mkdir(parents=True)
        address = f"{self._network}.{2 + self.nodes.index(name)}"
        environ = {**environ, "FAKE_NODE_JSON": str(root / "node.json")}
        return SimulatedNode(name, address, root, environ, uuids(name), labels=LABELS)

    def _fake_node(self, node: SimulatedNode, stubs: Path) -> None:
        environ = {
            "NODE_NAME": node.name,
            "HOST_IP": node.address,
            "FAKE_NODE_STDIN": "1",
            "FAKE_NODE_ENGINE_PORT": str(self._engine_port),
            "FAKE_NODE_LOCAL": str(node.root),
            "FAKE_NODE_SOCKET": str(node.root / "var/run/nvsentinel/nvsentinel.sock"),
            "PYTHONPATH": str(stubs),
        }
        self._start(node.name, [sys.executable, str(FAKES / "node" / "fake_node.py")], environ)

    def _start(
        self, name: str, argv: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> None:
        with (self.logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                argv,
                env={**os.environ, **(environ or {})},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us alone: we end them in order
            )

    def _lines(self, name: str) -> list[dict[str, Any]]:
        """The JSON lines that a process has logged. Raises :class:`LabError` where it has ended."""
        text = (self.logs / f"{name}.log").read_text()
        if (status := self._processes[name].poll()) is not None:
            last_line = text.strip().splitlines()[-1:] or ["it said nothing"]
            raise LabError(f"{name} ended with status {status}: {last_line[0][-300:]}")
        lines = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
        return [line for line in lines if isinstance(line, dict)]

    # --- what a scenario asks of a lab

    def values(self, changes: dict[str, Any]) -> None:
        """Webhook and controller run with the configuration that the charts make
        of these values.
        """
        engine = {
            **injector_values({})["dcgm"],
            "hostengineAddr": f"$(NODE_IP):{self._engine_port}",
        }
        wanted = {
            "preflight-injector": injector_values({"dcgm": engine, **changes}),
            "preflight-gang": GANG_VALUES,
        }
        if wanted == self._values:
            return
        if self._values is not None:
            raise LabError(
                "the simulated cluster takes one set of values; run the scenario on a cluster of its own."
            )
        self._values = wanted
        self._configure_programs(wanted)
        folder, authority = self.root / "tls", trustme.CA()
        folder.mkdir()
        certificate = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(folder / "ca.crt")
        certificate.private_key_pem.write_to_path(folder / "tls.key")
        (folder / "tls.crt").write_bytes(
            b"".join(pem.bytes() for pem in certificate.cert_chain_pems)
        )
        ports = ["--host", "127.0.0.1", "--port", "0"]
        webhook, gang = "preflight-webhook", "preflight-gang"
        arguments = [
            "--config",
            str(self.root / "preflight-injector.yaml"),
            "--cert-dir",
            str(folder),
            "--plain-port",
            "0",
        ]
        cluster = {"KUBECONFIG": str(self.kubeconfig)}
        self._start(webhook, [str(self._program(webhook)), "serve", *arguments, *ports], cluster)
        arguments = ["--config", str(self.root / "preflight-gang.yaml")]
        self._start(gang, [str(self._program(gang)), "run", *arguments, *ports], cluster)
        serving = until(
            "the webhook serves",
            lambda: [x["port"] for x in self._lines(webhook) if x.get("msg") == "serving"],
            START_SECONDS,
        )
        url = f"https://127.0.0.1:{serving[0]}/mutate-pod"
        self.double.admit = SimulatedAdmission(
            self.double.api, url, folder / "ca.crt", lambda pod: unimplemented(pod, self.images)
        )
        leads = "the gang controller leads"
        until(
            leads,
            lambda: [x for x in self._lines(gang) if "lead" in x.get("msg", "")],
            START_SECONDS,
        )

    def _configure_programs(self, values: dict[str, Any]) -> None:
        """The files of configuration that the charts make of these values."""
        for manifest in render(UMBRELLA, values):
            if manifest["kind"] == "ConfigMap" and "config.yaml" in manifest["data"]:
                place = self.root / f"{manifest['metadata']['name']}.yaml"
                place.write_text(manifest["data"]["config.yaml"])

    def wrappers(self) -> None:
        """Start AppWrapper's controller and its labeler; returns when both lead."""
        program = "preflight-appwrapper"
        self._configure_programs({program: WRAPPER_VALUES})
        options = ["--config", str(self.root / f"{program}.yaml"), "--host", "127.0.0.1"]
        commands = ("run", "label-nodes")
        for command in commands:
            self._start(
                f"{program}-{command}",
                [str(self._program(program)), command, *options, "--port", "0"],
                {"KUBECONFIG": str(self.kubeconfig)},
            )
        for command in commands:
            leads = partial(self._leads, f"{program}-{command}")
            until(f"{program} {command} leads", leads, START_SECONDS)

    def _leads(self, name: str) -> bool:
        return any(line.get("msg") == "leading" for line in self._lines(name))

    def configure(self, node: str, changes: dict[str, Any], *, wait: bool = True) -> None:
        stdin = self._processes[node].stdin
        assert stdin is not None
        self._wanted[node] = self._wanted.get(node, 0) + 1
        stdin.write(json.dumps(node_json(node, changes)).encode() + b"\n")
        stdin.flush()
        if wait:
            self.configured(node)

    def configured(self, node: str) -> None:
        def applied() -> bool:
            return sum("configured" in line for line in self._lines(node)) == self._wanted[node]

        until(f"the fake node {node} takes over its facts", applied, START_SECONDS)

    def node_log(self, node: str) -> list[dict[str, Any]]:
        return self._lines(node)

    def log(self, namespace: str, pod: str, container: str, *, previous: bool = False) -> str:
        logs = sorted(
            self.logs.glob(f"{pod}.{container}.*.log"), key=lambda path: int(path.suffixes[-2][1:])
        )
        wanted = logs[:-1] if previous else logs
        return wanted[-1].read_text(errors="replace") if wanted else ""

    def execute(self, namespace: str, pod: str, container: str, command: list[str]) -> None:
        raise LabError(
            f"{pod}: the simulated cluster runs no command in a container; use a real cluster."
        )

    @contextlib.contextmanager
    def addresses(self, namespace: str) -> Iterator[dict[str, float]]:
        yield self._addressed.setdefault(namespace, {})

    async def _observe(self, pods: Resource) -> None:
        version, store = self.double.store.version, self.double.store
        while True:
            news = store.news
            for step in store.since(version):
                version = step.version
                if step.resource == pods and step.after is not None:
                    when, meta = time.time(), step.after["metadata"]
                    self.history.append((when, step.after))
                    self.seen(when, step.after)
                    if step.after["status"].get("podIP"):
                        self._addressed.setdefault(meta["namespace"], {}).setdefault(
                            meta["name"], when
                        )
            await news.wait()

    def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        # With a name of its own, so that ports which follow from it are this run's alone.
        name = f"{name}-{secrets.token_hex(3)}"
        self.api.create_namespace(
            {"metadata": {"name": name, "labels": {**OPTED_IN, **(labels or {})}}}
        )
        return name

    def remove_namespace(self, name: str) -> None:
        def pods() -> list[Any]:
            return list(self.api.list_namespaced_pod(name).items)

        for pod in pods():
            self.api.delete_namespaced_pod(pod.metadata.name, name)
        until(f"the pods of namespace {name} are gone", lambda: not pods())
        self.api.delete_namespace(name)


def _room(folder: Path) -> None:
    """Raises :class:`LabError` where ``folder`` cannot hold what a run writes, or names in it are
    too long for sockets.
    """
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK:
        raise LabError(
            f"{folder}: {free / 1e6:.0f} MB are free, {LEAST_DISK / 1e6:.0f} are needed; free some, or set TMPDIR to another folder."
        )
    if len(str(folder)) > LONGEST_FOLDER:
        raise LabError(
            f"{folder}: too long for the names of sockets in it; set TMPDIR to a folder with at most {LONGEST_FOLDER} letters."
        )


@contextlib.contextmanager
def _network() -> Iterator[str]:
    """The first three numbers of 254 loopback addresses that no other run uses: a socket's name
    (Linux) stands for them.
    """
    while True:
        network = f"127.{64 + secrets.randbelow(128)}.{secrets.randbelow(256)}"
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0preflight-{network}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise LabError(
                        f"{network}: {error.strerror}; the simulated cluster needs Linux."
                    ) from None
                continue
            yield network
            return


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
