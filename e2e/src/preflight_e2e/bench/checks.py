"""How soon a check gets to its tool: from the start of its process to that of the tool, on a
healthy node of stand-ins; how large its image is; and what checks add to a pod's start on a cluster
(:mod:`.start_delay`).

NVML is the one in C of ``fakes/nvml``, with the GPUs of a healthy node. The tool is a script that
leaves a file and fails: when it started is the time of that file. A check is ended there, so
nothing is measured of what it does afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from preflight_testing.fakes import NVML, NvmlError, build_nvml
from preflight_testing.matrix.facts import node_json, uuids

from ..images import COMPONENTS
from . import start_delay
from .bars import Bar, BenchMeasurement, below
from .load import BenchError

MOST_MS: Final = 400.0
MOST_S: Final = 4.0
WITHIN: Final = 30.0
"""Seconds after which a check that has not started its tool never will."""
TOOL: Final = '#!/bin/sh\n: > "$0.started"\nexit 1\n'


class CheckStart(NamedTuple):
    """One start, in milliseconds: by the clock, and what the check itself computed until then."""

    ms: float
    cpu_ms: float


class MeasuredCheck(NamedTuple):
    """A check whose start is measured: its program, the tool it starts, and the variables that make
    it.
    """

    program: str
    tool: str
    environ: Mapping[str, str]


CHECKS: Final = {
    # Nobody listens there, and nobody is asked: the stand-in fails by itself.
    "dcgm": MeasuredCheck(
        "check-dcgm", "dcgmi", {"DCGM_HOSTENGINE_ADDR": "127.0.0.1:5555", "DCGMI": "dcgmi"}
    ),
    "loopback": MeasuredCheck("check-nccl-loopback", "all_reduce_perf", {}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs",
        type=int,
        default=15,
        help="of each check, of which the median counts (%(default)s)",
    )
    parser.add_argument(
        "--programs",
        type=Path,
        default=Path(sys.executable).parents[1].parent,
        metavar="FOLDER",
        help="where the environments of the checks are, FOLDER/<program>/bin/<program>",
    )
    parser.add_argument(
        "--images", type=Path, metavar="FILE", help="what `nox -s images -- --json FILE` wrote"
    )
    parser.add_argument(
        "--pods",
        type=int,
        default=10,
        help="with checks, and as many without, on the cluster of KUBECONFIG (%(default)s)",
    )
    parser.add_argument(
        "--load-images",
        metavar="CMD",
        help="brings an archive to its nodes, e.g. 'load-image {archive}'; else the e2e's images are there",
    )


def run(args: argparse.Namespace) -> BenchMeasurement:
    figures: dict[str, Any] = {}
    for name, check in CHECKS.items():
        program = args.programs / check.program / "bin" / check.program
        starts = starts_of(program, check, args.runs)
        times = [start.ms for start in starts]
        median = figures[f"{name}_start_ms"] = round(statistics.median(times), 1)
        cpu = figures[f"{name}_start_cpu_ms"] = round(
            statistics.median(start.cpu_ms for start in starts), 1
        )
        print(
            f"{name}: {check.tool} starts after {median:.0f} ms ({min(times):.0f} to {max(times):.0f}), "
            f"of which the check computes {cpu:.0f} ms"
        )
    figures["image_mb"] = image_sizes(args.images) if args.images else {}
    if not args.images:
        print("image_mb: left out; --images FILE names what `nox -s images -- --json FILE` wrote")
    for image, size in figures["image_mb"].items():
        print(f"{image}: {size:.0f} MB")
    figures |= _start_delay(args)
    return BenchMeasurement({"checks": figures}, bars(figures), ".3g", shown=False)


def _start_delay(args: argparse.Namespace) -> Mapping[str, Any]:
    if not os.environ.get("KUBECONFIG"):
        print("start_delay_s: left out; KUBECONFIG names no cluster")
        return {}
    checked, plain = start_delay.measure(args.load_images, args.pods, print)
    figures = start_delay.delays(checked, plain)
    tools = statistics.median(pod.tools for pod in checked)
    print(
        f"start_delay_s: {figures['start_delay_s']:.2f} s, the median of {len(checked)} pods with checks, less their tools ({tools:.2f} s) "
        f"and less that of {len(plain)} pods without ({statistics.median(pod.seconds for pod in plain):.2f} s)"
    )
    for what, seconds in figures["start_delay_shares_s"].items():
        print(f"  {seconds:5.2f} s  {what}")
    return figures


def starts_of(program: Path, check: MeasuredCheck, runs: int) -> list[CheckStart]:
    """From the process's start to the tool's, in each of ``runs``. Raises :class:`BenchError`."""
    if not program.exists():
        raise BenchError(f"{program} is not there; `nox -s bench -- checks` installs it.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = _node(folder, check)
        once(program, check, environ, folder / "first")  # files come from the disk
        return [once(program, check, environ, folder / str(number)) for number in range(runs)]


def once(
    program: Path, check: MeasuredCheck, environ: Mapping[str, str], folder: Path
) -> CheckStart:
    """One run, with a tool of its own in ``folder``. Raises :class:`BenchError`."""
    folder.mkdir()
    tool = folder / check.tool
    tool.write_text(TOOL)
    tool.chmod(0o755)
    started = folder / f"{check.tool}.started"
    environ = {**environ, "PATH": os.pathsep.join([str(folder), os.defpath])}
    with (folder / "log").open("w+") as log:
        begun = time.time()
        process = subprocess.Popen(
            [program], env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            while not started.exists():
                ended = (
                    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    is not None
                )
                if (ended and not started.exists()) or time.time() - begun > WITHIN:
                    log.seek(0)
                    words = "; ".join(log.read().splitlines()[-2:]) or "nothing"
                    raise BenchError(
                        f"{check.program} did not start {check.tool} within {WITHIN:g} s; it said: {words}"
                    )
                time.sleep(0.005)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            _, process.returncode, used = os.wait4(process.pid, 0)
    return CheckStart(
        (started.stat().st_mtime - begun) * 1000, (used.ru_utime + used.ru_stime) * 1000
    )


def _node(folder: Path, check: MeasuredCheck) -> dict[str, str]:
    """A healthy node in ``folder``, its facts and its driver; the environment of a check there, but
    for its tool.
    """
    (folder / "node.json").write_text(json.dumps(node_json("bench", {"serials": True})))
    (folder / "lib").mkdir()
    try:
        build_nvml(NVML, folder / "lib" / "libnvidia-ml.so.1")
    except NvmlError as error:
        raise BenchError(str(error)) from None
    return {
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "FAKE_NODE_JSON": str(folder / "node.json"),
        "NVIDIA_VISIBLE_DEVICES": ",".join(uuids("bench")),
        "EXPECTED_GPUS": str(len(uuids("bench"))),
        "NODE_NAME": "bench",
        "PREFLIGHT_RESULT_PATH": str(folder / "result"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **check.environ,
    }


def image_sizes(file: Path) -> dict[str, float]:
    """MB of the checks' archives, by image, as the build's ``--json`` names them. Raises
    :class:`BenchError`.
    """
    checks = {component.image for component in COMPONENTS if component.is_check}
    try:
        built = {
            image["reference"].partition(":")[0]: Path(image["archive"])
            for image in json.loads(file.read_text())
        }
        return {
            image: round(path.stat().st_size / 1e6, 1)
            for image, path in built.items()
            if image in checks
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BenchError(
            f"--images {file}: {error}; give what `nox -s images -- --json FILE` wrote."
        ) from None


def bars(figures: Mapping[str, Any]) -> Iterator[Bar]:
    for name, check in CHECKS.items():
        yield below(
            f"ms from the start of {check.program} to that of {check.tool}",
            figures[f"{name}_start_ms"],
            MOST_MS,
        )
    if "start_delay_s" in figures:
        yield below(
            "s that three checks add to a pod's start beyond their tools",
            figures["start_delay_s"],
            MOST_S,
        )
