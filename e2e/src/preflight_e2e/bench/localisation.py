"""Blame in worlds whose truth is known: runs the simulation of :mod:`.worlds` and holds it against
the bars.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .bars import Bar, BenchMeasurement, at_least, at_most
from .load import BenchError

__all__ = ["add_arguments", "bars", "run", "table", "worlds"]

Figures = dict[str, Any]

NAMED = {"behind NVLink": 0.95, "one of eight NICs": 0.95, "dead path": 0.95, "flapping": 0.80}
"""Of bad nodes that one gang's probes hardly prove, the share that is named at least."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the figures into FOLDER")
    parser.add_argument("--plot-format", choices=["svg", "png"], default="svg", help="%(default)s")
    parser.add_argument(
        "--jobs", type=int, default=2, help="processes that share the gangs (%(default)s)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the gangs to play (%(default)s)"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="keep there what was played; a run that was stopped goes on",
    )


def run(args: argparse.Namespace) -> BenchMeasurement:
    figures = simulated(args.jobs, args.scale, args.keep)
    print("\n".join(table(figures)))
    if args.plots:
        from .localisation_plots import draw  # matplotlib: not for those who only want figures

        for path in draw(figures, args.plots, args.plot_format):
            print(f"plot: {path}")
    told = {"localisation": {"worlds": worlds(figures), **figures}}
    return BenchMeasurement(told, bars(figures), shown=False)


def simulated(jobs: int, scale: float, keep: Path | None = None) -> Figures:
    """Run the simulation as the program it is. Raises :class:`BenchError` where it cannot run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [
            sys.executable,
            "-m",
            "allreduce_testing.worlds.simulation",
            "--json",
            str(out),
        ]
        command += [
            "--jobs",
            str(jobs),
            "--scale",
            str(scale),
            *(["--keep", str(keep)] if keep else []),
        ]
        done = subprocess.run(command, check=False)
        if done.returncode != 0:
            raise BenchError(
                f"allreduce_testing.worlds.simulation ended with status {done.returncode}; see its words above."
            )
        return dict(json.loads(out.read_text()))


def worlds(figures: Figures) -> Figures:
    """By the name of each world: what is promised of it, in figures."""
    flat = {name: entry for name, entry in figures.items() if "gangs" in entry}
    for group, entry in figures.items():
        flat |= {f"{group} {key}": one for key, one in entry.items() if "gangs" not in entry}
    wanted = (
        "gangs",
        "healthy_blamed",
        "bound_percent",
        "recall_blamed",
        "recall_named",
        "max_rounds",
    )
    return {
        name: {"bad_nodes": one["bad"]} | {key: one[key] for key in wanted}
        for name, one in flat.items()
    }


def bars(figures: Figures) -> Iterator[Bar]:
    """What localisation promises, each held against what was simulated."""
    for name, one in worlds(figures).items():
        yield at_most(f"{name}: healthy nodes blamed", one["healthy_blamed"], 0)
        yield at_most(f"{name}: rounds", one["max_rounds"], 8)
    labels = figures["labels"]
    yield at_least("labels: recall of blamed", labels["recall_blamed"], 0.97)
    yield at_least("labels: recall of named", labels["recall_named"], 0.99)
    for n, one in figures["small_n"].items():
        yield at_least(f"N = {n}: recall of blamed", one["recall_blamed"], 0.97)
        yield at_least(f"N = {n}: recall of named", one["recall_named"], 0.99)
    for key, one in figures.get("bad_nodes", {}).items():
        if key not in NAMED:
            yield at_least(f"{key}: recall of blamed", one["recall_blamed"], 0.97)
        yield at_least(f"{key}: recall of named", one["recall_named"], NAMED.get(key, 0.99))


def table(figures: Figures) -> Iterator[str]:
    """One line a world; shares of bad nodes in percent."""
    yield (
        f"{'world':40} {'gangs':>6} {'bad nodes':>9} {'blamed':>8} {'named':>8} {'healthy blamed':>20} "
        f"{'healthy named':>14} {'rounds':>12} {'probes/node':>11}  verdicts"
    )
    for name, entry in figures.items():
        if "gangs" in entry:
            yield _row(name, entry)
            continue
        yield f"-- {name.replace('_', ' ')}"
        for key, one in entry.items():
            yield _row(f"   {key}", one)


def _row(name: str, one: Figures) -> str:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.3f}%"

    blamed = (
        f"{one['healthy_blamed']} in {one['gangs_healthy_blamed']} (<{one['bound_percent']:.2g}%)"
    )
    rounds = f"{one['mean_rounds']:.2f} max {one['max_rounds']}"
    verdicts = ", ".join(f"{kind} {count}" for kind, count in one["kinds"].items())
    return (
        f"{name:40} {one['gangs']:>6} {one['bad']:>9} {share(one['recall_blamed']):>8} {share(one['recall_named']):>8} "
        f"{blamed:>20} {one['healthy_named']:>14} {rounds:>12} {one['probes_per_node']:>11.2f}  {verdicts}"
    )
