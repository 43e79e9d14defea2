"""Where the fuzzer plays: a real API server, the webhook registered with it, two gang controllers,
all of them processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from preflight_testing.apiserver import ApiServer, free_port
from preflight_testing.grove_kinds import crd
from preflight_testing.helm import GANG

from ..registered_webhook import register, write_certificate
from .shots import Shot, ShotSender
from .vectors import OPTED_IN, POLICY, STRAY, WORKLOADS, CustomKind

VICTIM, ORDINARY = "victim", "ordinary"
"""Namespaces of tenants who do nothing wrong; the webhook serves both."""
_LABEL = {"nvsentinel.nvidia.com/preflight": "enabled"}
_NAMESPACES = {
    OPTED_IN: _LABEL,
    VICTIM: _LABEL,
    ORDINARY: _LABEL,
    STRAY: {},
    f"{STRAY}-labels": {},
    "refused": {},
}
_READY = 60.0
_WEBHOOK_CONFIG = """
checks:
  - {name: dcgm-diag, image: d}
  - {name: nccl-loopback, image: l}
  - {name: nccl-allreduce, image: a}
gpuDetection: {deviceClasses: [gpu.nvidia.com]}
"""


class FuzzError(Exception):
    """The fuzzer itself cannot go on; one sentence."""


@dataclass
class Program:
    """One of the programs under test. ``limit`` is the memory, in MiB, that it must stay below."""

    name: str
    command: Sequence[str]
    plain: int
    limit: float
    log: Path
    environ: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    stopping: bool = False
    reported: set[str] = field(default_factory=set)
    """What was said of this very process already."""
    peak: float = field(default=0.0)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env={**os.environ, **self.environ}
            )
        self.starts, self.stopping, self.peak = self.starts + 1, False, 0.0
        self.reported.clear()

    def exit_status(self) -> int | None:
        assert self.process is not None
        return self.process.poll()

    def ready(self, timeout: float = 5.0) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.plain}/readyz", timeout=timeout):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def wait_ready(self, seconds: float = _READY) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.exit_status() is None:
            if self.ready():
                return True
            time.sleep(0.1)
        return False

    def memory(self) -> float:
        """Resident now, in MiB; 0 once it has ended. ``peak`` follows it."""
        assert self.process is not None
        try:
            rows = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        except OSError:
            return 0.0
        status = dict(row.split(":", 1) for row in rows if ":" in row)
        if "VmHWM" in status:
            self.peak = max(self.peak, int(status["VmHWM"].split()[0]) / 1024)
        return int(status.get("VmRSS", "0 kB").split()[0]) / 1024

    def last_words(self) -> str:
        """Its last line, the frame that an exception group draws around its own aside."""
        lines = [
            line.strip(" |+-") for line in self.log.read_text(errors="replace").splitlines()[-40:]
        ]
        words = [line for line in lines if line]
        return words[-1][-300:] if words else "it said nothing"

    def stop(self) -> None:
        self.stopping = True
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
            return
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class FuzzPlace:
    server: ApiServer
    programs: tuple[Program, ...]

    def wipe(self, client: ShotSender) -> None:
        """Remove what hostile tenants made, before programs are started again."""
        for namespace in (OPTED_IN, STRAY, "refused"):
            for path in (
                f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0",
                f"/api/v1/namespaces/{namespace}/configmaps",
                *(kind.path(namespace) for kind in (POLICY, *WORKLOADS)),
            ):
                client.send(Shot("wipe", "DELETE", path))


@contextmanager
def place(
    folder: Path, assets: Path, webhook: str, gang: str, limits: tuple[float, float]
) -> Iterator[FuzzPlace]:
    """Everything, running and ready. ``limits``: MiB of the webhook, and of each controller. Raises
    :class:`FuzzError`.
    """
    (folder / "apiserver").mkdir()
    with ApiServer(folder / "apiserver", assets) as server:
        _prepare(server)
        kubeconfig = {"KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig"))}
        port, plain = free_port(), free_port()
        bundle = write_certificate(folder)
        (folder / "webhook.yaml").write_text(_WEBHOOK_CONFIG)
        (folder / "gang.yaml").write_text("namespaces: []\nleaseDuration: 5s\n")
        files = [f"--config={folder}/webhook.yaml", f"--cert-dir={folder}"]
        at = ["--host=127.0.0.1", f"--port={port}", f"--plain-port={plain}"]
        command = [webhook, "serve", *files, *at, "--linger=0"]
        log = folder / "webhook.log"
        programs = [Program("webhook", command, plain, limits[0], log, kubeconfig)]
        for number in (1, 2):
            name, plain = f"gang-{number}", free_port()
            at = ["--host=127.0.0.1", f"--port={plain}"]
            command = [gang, "run", "--namespace=default", f"--config={folder}/gang.yaml", *at]
            who, log = kubeconfig | {"POD_NAME": name}, folder / f"{name}.log"
            programs.append(Program(name, command, plain, limits[1], log, who))
        try:
            for program in programs:
                program.start()
            for program in programs:
                if not program.wait_ready():
                    raise FuzzError(
                        f"{program.command[0]} does not become ready: {program.last_words()}"
                    )
            _register(server, f"https://127.0.0.1:{port}/mutate-pod", bundle)
            yield FuzzPlace(server, tuple(programs))
        finally:
            for program in programs:
                program.stop()


def _prepare(server: ApiServer) -> None:
    for name, labels in _NAMESPACES.items():
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    for kind in WORKLOADS:
        server.define(_definition(kind))
    server.define(next(yaml.safe_load_all((GANG / "generated/definitions.yaml").read_text())))
    device = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"},
    }
    server.call("POST", "/apis/resource.k8s.io/v1/deviceclasses", device | {"spec": {}})


def _definition(of: CustomKind) -> dict[str, Any]:
    """A custom resource that takes anything: what its owner's schema refuses is not for us to rely
    on.
    """
    group, version = of.api.split("/")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = crd(group, of.kind, of.plural, {version: anything})
    # Groups under k8s.io are approved ones, and say by whom.
    approved = {"api-approved.kubernetes.io": "unapproved, a fuzzer's"}
    definition["metadata"]["annotations"] = approved
    return definition


def _register(server: ApiServer, url: str, bundle: str) -> None:
    """For the labelled namespaces; returns once it is asked."""
    register(server, "fuzz", url, bundle, namespaceSelector={"matchLabels": _LABEL})
    gpu = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    probe = {"metadata": {"name": "probe"}, "spec": {"containers": [gpu]}}
    end = time.monotonic() + _READY
    while True:
        try:
            pod = server.call("POST", f"/api/v1/namespaces/{ORDINARY}/pods?dryRun=All", probe)
            if "initContainers" in pod["spec"]:
                return
        except urllib.error.HTTPError as error:
            message = json.loads(error.read() or b"{}").get("message", "")
            error.close()
            if time.monotonic() > end:
                raise FuzzError(f"the API server does not admit a GPU pod: {message}") from None
        if time.monotonic() > end:
            raise FuzzError(f"the API server does not call the webhook within {_READY:g} s.")
        time.sleep(0.1)
