"""Gangs of real checks: how soon a culprit is found (`verdict`), and thousands of members
(`gang-scale`).

Each is a program of ``preflight_e2e.gangs`` or ``allreduce_testing.gangs``, in a process of its
own; here its figures are held against the bars.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .bars import Bar, BenchMeasurement, at_most, below
from .load import BenchError

Figures = dict[str, Any]


class FabricBench(NamedTuple):
    """One of this module's."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], BenchMeasurement]


def add_verdict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--members", type=int, default=8, help="of each gang (%(default)s)")
    parser.add_argument(
        "--runs", type=int, default=5, help="of which the median counts (%(default)s)"
    )


def add_scale_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--members", type=int, default=4096, help="of the gang (%(default)s)")


def run_verdict(args: argparse.Namespace) -> BenchMeasurement:
    figures = _run(
        "preflight_e2e.gangs.verdict", "--members", str(args.members), "--runs", str(args.runs)
    )
    start = figures["start_up"]
    print(
        f"from the roster to the first timed iteration: {start['whole_s']:.3f} s, torchrun's own start {start['torchrun_s']:.3f} s, "
        f"without it {start['without_torchrun_s']:.3f} s; the check itself: {start['parent_mb']:.1f} MB at most"
    )
    return BenchMeasurement({"verdict": figures}, verdict_bars(figures), shown=False)


def run_scale(args: argparse.Namespace) -> BenchMeasurement:
    figures = _run("allreduce_testing.gangs.crowd", "--members", str(args.members))
    return BenchMeasurement({"gang_scale": figures}, scale_bars(figures), shown=False)


VERDICT = FabricBench(add_verdict_arguments, run_verdict)
SCALE = FabricBench(add_scale_arguments, run_scale)


def scale_bars(figures: Figures) -> Iterator[Bar]:
    leader, members = figures["leader"], figures["crowd"]
    yield at_most("members lost", leader["lost"], 0)
    yield at_most(
        "members that ended otherwise than the others",
        figures["members"] - max(members["ended"].values()),
        0,
    )
    yield at_most(
        "runs that named anybody but the culprit, or not it,",
        int({*members["named"], *members["blamed"]} != {figures["sick"]}),
        0,
    )
    yield below("memory of the leader: MB", leader["memory_mb"], 150)


def verdict_bars(figures: Figures) -> Iterator[Bar]:
    """Seconds are medians."""
    for path in ("slow", "hang"):
        members = f"{figures['members']} members, {path}: seconds to"
        if path == "slow":
            yield below(f"{members} the culprit's name", figures[path]["median_named"], 60)
        yield below(f"{members} the verdict", figures[path]["median_seconds"], 120)
        # Only a witness lets it be blamed, and links of network namespaces have none.
        wrong = sum(
            each["named"] != [3] or not {*each["blamed"]} <= {3} for each in figures[path]["runs"]
        )
        yield at_most(f"{path}: runs that named anybody but the culprit, or not it,", wrong, 0)
    start = figures["start_up"]["without_torchrun_s"]
    yield below("roster to first timed iteration without torchrun's start: seconds", start, 1)
    memory = max(
        figures["start_up"]["parent_mb"], *(row["parent_mb"] for row in figures["slow"]["runs"])
    )
    yield below("memory of the check itself: MB", memory, 60)


def _run(program: str, *options: str) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        done = subprocess.run(
            [sys.executable, "-m", program, "--json", str(out), *options],
            check=False,
        )
        if done.returncode != 0:
            raise BenchError(f"{program} ended with status {done.returncode}; see its words above.")
        return dict(json.loads(out.read_text()))
