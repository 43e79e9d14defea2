"""Servers as the bench runs them: processes pinned to a core, what they cost, and the claims that
the webhook asks for.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import trustme
import yaml
from preflight_testing.cores import started
from preflight_testing.reviews import CLASS

from ..json_server import JsonHandler
from .load import BenchError, resident_mb, until

PATIENCE = 60.0
"""Seconds for a server to listen."""


@dataclass(frozen=True)
class ReviewServer:
    """A server that answers reviews at ``address`` + ``path``; ``pid`` and ``plain`` (port of its
    metrics) where it is ours to look at.
    """

    address: str
    path: str = "/mutate-pod"
    pid: int | None = None
    plain: int | None = None

    def cpu_seconds(self) -> float:
        """What it has taken since its start, user and system; 0 where it is not ours."""
        if self.pid is None:
            return 0.0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """Its memory in MiB; 0 where it is not ours."""
        return 0.0 if self.pid is None else resident_mb(self.pid)

    def metrics(self) -> str:
        """Prometheus' text."""
        with urlopen(f"http://127.0.0.1:{self.plain}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, name: str) -> float:
        """The value of one of its metrics; 0 where it has none yet."""
        lines = (line.rpartition(" ") for line in self.metrics().splitlines())
        return next((float(value) for label, _, value in lines if label == name), 0.0)

    def ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.plain}/readyz", timeout=10):
                return True
        except OSError:
            return False


def add_server(parser: argparse.ArgumentParser) -> None:
    """The option that says which webhook is measured."""
    parser.add_argument(
        "--server",
        metavar="PROGRAM",
        type=program,
        default="preflight-webhook",
        help="the preflight-webhook to measure; `nox -s bench` gives one that is installed as in its image (%(default)s)",
    )


def program(name: str) -> str:
    """An argument's type: where a program is that can be run."""
    program = shutil.which(name)
    if program is None:
        raise argparse.ArgumentTypeError(
            f"{name} is not a program here; run this with `nox -s bench`"
        )
    return program


@contextmanager
def webhook(
    program: str, folder: Path, core: int | None, config: str, environ: Mapping[str, str]
) -> Iterator[ReviewServer]:
    """`preflight-webhook serve` as it runs in a cluster, at its default log level. ``folder``: its
    certificate is there; ``core``: see :func:`pinned`."""
    (folder / "config.yaml").write_text(config)
    command = [program, "serve", "--config", str(folder / "config.yaml"), "--cert-dir", str(folder)]
    command += ["--host", "127.0.0.1", "--port", "0", "--plain-port", "0"]
    log = folder / "log"
    with pinned(command, core, log, environ) as process:
        port, plain = (_port(process, log, event) for event in ("serving", "started"))
        yield ReviewServer(f"127.0.0.1:{port}", pid=process.pid, plain=plain)


@contextmanager
def service(
    command: list[str],
    log: Path,
    environ: Mapping[str, str],
    core: int | None = None,
    path: str = "",
) -> Iterator[ReviewServer]:
    """One of our services on ports of its own choice, once it is ready; ``path``: where it serves
    reviews, if it does. Raises :class:`BenchError` where it ends."""
    command = [*command, "--host", "127.0.0.1", "--port", "0"]
    with pinned(command, core, log, environ) as process:
        plain = _port(process, log, "started")
        port = _port(process, log, "serving") if path else 0
        server = ReviewServer(f"127.0.0.1:{port}", path, process.pid, plain)
        until(server.ready, f"{command[0]} is ready")
        yield server


def _port(process: subprocess.Popen[bytes], log: Path, message: str) -> int:
    """The port in the log's first line with this message, waited for."""

    def logged() -> Any:
        if process.poll() is not None:
            raise BenchError(f"{process.args!r} has ended: {log.read_text()[-300:]}")
        lines = (line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n"))
        return next((line for line in map(json.loads, lines) if line["msg"] == message), None)

    return int(
        until(logged, f'{process.args!r} logs "{message}" (see {log})', PATIENCE, 0.02)["port"]
    )


@contextmanager
def pinned(
    command: list[str],
    core: int | None,
    log: Path,
    environ: Mapping[str, str],
    *,
    stderr: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that :func:`~.cores.started` has started; ``log``: its output."""
    with log.open("wb") as out:
        environ = {**os.environ, **environ}
        process = started(command, core, stdout=out, stderr=stderr, env=environ)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def paused(pids: Iterable[int]) -> Iterator[None]:
    """These processes stand still meanwhile: what nobody asks does not take part in
    what is measured.
    """
    pids = list(pids)
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


class _Claims(JsonHandler):
    server: _ClaimServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        device = {
            "name": "nic",
            "exactly": {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 8},
        }
        answer: object = {
            "metadata": {"name": self.path},
            "spec": {"spec": {"devices": {"requests": [device]}}},
        }
        if self.path == "/apis/resource.k8s.io":
            answer = {"versions": [{"groupVersion": "resource.k8s.io/v1", "version": "v1"}]}
        elif (
            "watch=true" in self.path
        ):  # of PreflightConfigs, of which there are none: nothing happens until the end
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.flush()
            self.server.ended.wait()
            return
        elif "preflightconfigs" in self.path:
            answer = {"metadata": {"resourceVersion": "1"}, "items": []}
        self.answer(answer)


class _ClaimServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Claims)
        self.ended = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the webhook hangs up at its end


@contextmanager
def claims(folder: Path) -> Iterator[dict[str, str]]:
    """What stands in for an API server that knows every ResourceClaimTemplate; gives the
    environment to find it by.
    """
    server, authority = _ClaimServer(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    cluster = {
        "server": f"https://127.0.0.1:{server.server_port}",
        "certificate-authority-data": base64.b64encode(authority.cert_pem.bytes()).decode(),
    }
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": cluster}],
        "users": [{"name": "x", "user": {}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    try:
        yield {"KUBECONFIG": str(folder / "kubeconfig")}
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
