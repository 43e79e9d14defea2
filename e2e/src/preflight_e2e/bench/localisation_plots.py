"""Three pictures of localisation: recall against severity, blame against noise, rounds against
size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from .plots import BLUE, GRAY, ORANGE, picture

Figures = dict[str, Any]
BAD_BELOW, GOOD_FROM = 0.80, 0.88
PICTURES = {
    "recall-severity": (
        "Bad nodes found, by how slow they are",
        "bandwidth of the bad nodes, share of normal",
        "share of bad nodes",
    ),
    "blame-noise": (
        "Noise costs recall, not healthy nodes",
        "noise, multiples of 2 % per edge and per trial",
        "share",
    ),
    "rounds-size": (
        "Rounds until the verdict do not grow with the gang",
        "nodes in the gang (from this number to twice of it)",
        "rounds, the gang's own included",
    ),
}
"""By name: title, and the labels of the axes."""


def draw(figures: Figures, folder: Path, suffix: str) -> Iterator[Path]:
    """Draw every picture into ``folder``; yields the files."""
    drawing = (recall_against_severity, blame_against_noise, rounds_against_size)
    for (name, words), fill in zip(PICTURES.items(), drawing, strict=True):
        path = folder / f"localisation-{name}.{suffix}"
        with picture(path, *words) as axes:
            fill(axes, figures)
        yield path


def recall_against_severity(axes: Axes, figures: Figures) -> None:
    rows = figures["severity"]
    x = [float(f) for f in rows]
    axes.axvspan(BAD_BELOW, GOOD_FROM, color="#eeeeee", zorder=0)
    middle = (BAD_BELOW + GOOD_FROM) / 2
    axes.text(middle, 0.5, "grey zone", rotation=90, ha="center", va="center", color=GRAY)
    for key, says, color in (("recall_named", "named", ORANGE), ("recall_blamed", "blamed", BLUE)):
        axes.plot(x, [row[key] for row in rows.values()], "o-", ms=4, color=color, label=says)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(-0.03, 1.05)
    axes.legend(frameon=False, loc="lower left")


def blame_against_noise(axes: Axes, figures: Figures) -> None:
    rows = figures["noise"]
    x = [float(k) for k in rows]
    healthy = [(row["gangs"], row["gangs_healthy_blamed"]) for row in rows.values()]
    measured = [count / gangs for gangs, count in healthy]
    # Of n gangs without a case, a share of 3 / n is the most that 95 % confidence leaves open.
    bound = [max(count / gangs, 3 / gangs) for gangs, count in healthy]
    says = "95 % bound where none was seen"
    axes.fill_between(x, 0, bound, color=BLUE, alpha=0.12, linewidth=0, label=says)
    axes.plot(x, measured, "o-", ms=4, color=BLUE, label="gangs with a healthy node blamed")
    missed = [1 - row["recall_blamed"] for row in rows.values()]
    axes.plot(x, missed, "s--", ms=4, color=ORANGE, label="bad nodes not blamed")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(bottom=-0.01)
    axes.legend(frameon=False, loc="upper left")


def rounds_against_size(axes: Axes, figures: Figures) -> None:
    rows = figures["labels"]["rounds_by_size"]
    x = [int(n) for n in rows]
    axes.plot(x, [row["max"] for row in rows.values()], "_:", color=GRAY, label="most")
    axes.plot(x, [row["mean"] for row in rows.values()], "o-", ms=4, color=BLUE, label="mean")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(0, 8.6)
    axes.legend(frameon=False, loc="lower right")
