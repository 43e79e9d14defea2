"""The load generator, and how Go programs are compiled: once, and kept outside the checkout."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from preflight_testing.apiserver import ASSETS, assets
from preflight_testing.cores import started

SOURCE = Path(__file__).resolve().parents[3] / "bench" / "load"


class BenchError(Exception):
    """The measurement cannot be made. One sentence."""


def binaries(*more: str) -> Path:
    """The folder with etcd, kube-apiserver and ``more``. Raises :class:`BenchError`."""
    folder = assets()
    if folder is None or not all((folder / name).exists() for name in more):
        names = ", ".join(("etcd", "kube-apiserver", *more))
        raise BenchError(f"{ASSETS} does not name a folder with {names}; set it.")
    return folder


def audited(home: Path, rules: list[dict[str, Any]]) -> tuple[list[str], Path]:
    """Arguments by which an API server notes what ``rules`` of an audit policy say, and where."""
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
    text = json.dumps(policy | {"omitStages": ["RequestReceived"]})
    (home / "policy.json").write_text(text)
    log = home / "audit.log"
    return [f"--audit-policy-file={home}/policy.json", f"--audit-log-path={log}"], log


def until(true: Callable[[], Any], what: str, seconds: float = 300.0, pause: float = 0.05) -> Any:
    """What ``true`` says once it is something. Raises :class:`BenchError` when
    that takes longer.
    """
    end = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > end:
            raise BenchError(f"after {seconds:.0f} s it does not hold that {what}.")
        time.sleep(pause)
    return value


def resident_mb(pid: int, what: str = "VmRSS", file: str = "status") -> float:
    """A process's memory now, in MiB; VmHWM: when it had most; Anonymous, of smaps_rollup:
    without files, which others may map too.
    """
    rows = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return round(int(next(row for row in rows if row.startswith(what)).split()[1]) / 1024, 1)


def built(source: Path, name: str) -> Path:
    """The Go program in ``source``, compiled once for what stands there. Raises :class:`BenchError`
    where it cannot be.
    """
    digest = hashlib.sha256(
        b"".join(path.read_bytes() for path in sorted(source.iterdir()))
    ).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "preflight" / "bench"
    binary = cache / f"{name}-{digest}"
    if binary.exists():
        return binary
    if shutil.which("go") is None:
        raise BenchError(
            f"{name} is written in Go, and go is not on PATH; install what {source / 'go.mod'} asks for."
        )
    cache.mkdir(parents=True, exist_ok=True)
    part = binary.with_suffix(".part")
    done = subprocess.run(
        ["go", "build", "-o", str(part), "."],
        cwd=source,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise BenchError(
            f"go build ended with status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        )
    part.replace(binary)
    return binary


@contextmanager
def server_of_nothing(cpu: int) -> Iterator[str]:
    """Where a server listens that answers at once, pinned to ``cpu``: what is measured of it is the
    machine's and the load generator's own.
    """
    with _load(cpu, "-serve", "-address", "127.0.0.1:0", stderr=None) as process:
        try:
            assert process.stdout is not None
            if not (address := process.stdout.readline().strip()):
                raise BenchError("the server that does nothing did not start; its words are above.")
            yield address
        finally:
            process.kill()


def _load(cpu: int | None, *options: str, stderr: int | None) -> subprocess.Popen[str]:
    """The program in :data:`SOURCE`, on ``cpu``; None: anywhere."""
    command = [str(built(SOURCE, "load")), *options]
    environ = {**os.environ, **({} if cpu is None else {"GOMAXPROCS": "1"})}
    return started(command, cpu, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ)


def drive(
    address: str,
    body: Path,
    *,
    connections: int,
    seconds: float,
    path: str = "/mutate-pod",
    rate: float = 0.0,
    cpu: int | None = None,
    vary: str = "",
    first: int = 1,
) -> dict[str, Any]:
    """Drive ``address`` (host:port) with ``body``; keys requests, served (those of the warm-up
    too), failed, per_s, p50_ms, p99_ms, max_ms, answer. ``cpu``: pinned to it. ``vary``: a text in
    the body that becomes a different number in every request, ``first`` in the first one."""
    options = [
        *("-address", address, "-path", path, "-body", str(body)),
        "-connections",
        str(connections),
        "-seconds",
        str(seconds),
        "-rate",
        str(rate),
        "-vary",
        vary,
        "-first",
        str(first),
    ]
    with _load(cpu, *options, stderr=subprocess.PIPE) as process:
        stdout, stderr = process.communicate()
    if process.returncode != 0:
        raise BenchError(
            f"the load generator ended with status {process.returncode}: {stderr.strip()[:200]}"
        )
    return dict(json.loads(stdout))
