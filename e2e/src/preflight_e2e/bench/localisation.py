"""Blame in worlds whose truth is known: plays allreduce-testing's simulation and holds it against
the bars.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allreduce_testing.worlds import simulation

from .bars import Bar, BenchMeasurement, at_least, at_most
from .load import BenchError

Figures = dict[str, Any]

BLAMED = {"two nodes, sick, device tells": 0.95}
"""Where it is not 97 %, the share of those bad nodes that must be blamed that is, at least."""
NAMED = 0.99
"""Of bad nodes, the share that is named at least."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    try:
        figures = simulation.report(args.jobs, args.scale, args.keep)
    except ValueError as error:
        raise BenchError(str(error)) from error
    print("\n".join(table(figures)))
    return BenchMeasurement({"localisation": figures}, bars(figures), shown=False)


def bars(figures: Figures) -> Iterator[Bar]:
    """What localisation promises, each held against what was simulated."""
    for name, row in figures.items():
        yield at_most(f"{name}: healthy nodes blamed", row["healthy_blamed"], 0)
        yield at_most(f"{name}: rounds", row["max_rounds"], 8)
        if row["judged"]:
            least = BLAMED.get(name, 0.97)
            yield at_least(f"{name}: recall of blamed", row["recall_blamed"], least)
        if row["bad"]:
            yield at_least(f"{name}: recall of named", row["recall_named"], NAMED)


def table(figures: Figures) -> Iterator[str]:
    """One line a world: of bad nodes how many are named, of those that must be blamed how many are,
    in percent; healthy nodes blamed; gangs without a conclusion.
    """
    yield (
        f"{'world':54} {'gangs':>6} {'healthy blamed':>20} {'blamed':>8} {'of':>6} {'named':>8} "
        f"{'of':>6} {'inconclusive':>12} {'healthy named':>13} {'rounds':>12}  verdicts"
    )
    for name, row in figures.items():
        yield _row(name, row)


def _row(name: str, row: Figures) -> str:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.3f}%"

    blamed = (
        f"{row['healthy_blamed']} in {row['gangs_healthy_blamed']} (<{row['bound_percent']:.2g}%)"
    )
    rounds = f"{row['mean_rounds']:.2f} max {row['max_rounds']}"
    verdicts = ", ".join(f"{kind} {count}" for kind, count in row["kinds"].items())
    return (
        f"{name:54} {row['gangs']:>6} {blamed:>20} {share(row['recall_blamed']):>8} "
        f"{row['judged']:>6} {share(row['recall_named']):>8} {row['bad']:>6} "
        f"{row['inconclusive']:>12} {row['healthy_named']:>13} {rounds:>12}  {verdicts}"
    )
