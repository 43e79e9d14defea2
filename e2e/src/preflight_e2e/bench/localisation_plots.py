"""Three pictures of localisation: recall against severity, blame against noise, rounds against
size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

__all__ = ["draw"]

Figures = dict[str, Any]
BLUE, ORANGE, GREY = "#1f5fa8", "#d95f02", "#777777"
BAD_BELOW, GOOD_FROM = 0.80, 0.88


def draw(figures: Figures, folder: Path, suffix: str) -> Iterator[Path]:
    """Draw every picture into ``folder``; yields the files."""
    folder.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"svg.hashsalt": "localisation", "font.size": 10})
    pictures: dict[str, Callable[[Axes, Figures], None]] = {
        "recall-severity": recall_against_severity,
        "blame-noise": blame_against_noise,
        "rounds-size": rounds_against_size,
    }
    for name, picture in pictures.items():
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        picture(axes, figures)
        path = folder / f"localisation-{name}.{suffix}"
        figure.savefig(path, dpi=110, metadata={"Date": None} if suffix == "svg" else None)
        yield path


def recall_against_severity(axes: Axes, figures: Figures) -> None:
    rows = figures["severity"]
    x = [float(f) for f in rows]
    axes.axvspan(BAD_BELOW, GOOD_FROM, color="#eeeeee", zorder=0)
    axes.text(
        (BAD_BELOW + GOOD_FROM) / 2,
        0.5,
        "grey zone",
        rotation=90,
        ha="center",
        va="center",
        color=GREY,
    )
    for key, says, colour in (("recall_named", "named", ORANGE), ("recall_blamed", "blamed", BLUE)):
        y = [one[key] for one in rows.values()]
        axes.plot(x, y, marker="o", markersize=4, color=colour, label=says)
    axes.set_title("Bad nodes found, by how slow they are", loc="left")
    axes.set_xlabel("bandwidth of the bad nodes, share of normal")
    axes.set_ylabel("share of bad nodes")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(-0.03, 1.05)
    axes.legend(frameon=False, loc="lower left")


def blame_against_noise(axes: Axes, figures: Figures) -> None:
    rows = figures["noise"]
    x = [float(k) for k in rows]
    healthy = [(one["gangs"], one["gangs_healthy_blamed"]) for one in rows.values()]
    measured = [count / gangs for gangs, count in healthy]
    # Of n gangs without a case, a share of 3 / n is the most that 95 % confidence leaves open.
    bound = [max(count / gangs, 3 / gangs) for gangs, count in healthy]
    axes.fill_between(
        x, 0, bound, color=BLUE, alpha=0.12, linewidth=0, label="95 % bound where none was seen"
    )
    axes.plot(
        x, measured, marker="o", markersize=4, color=BLUE, label="gangs with a healthy node blamed"
    )
    missed = [1 - one["recall_blamed"] for one in rows.values()]
    axes.plot(
        x,
        missed,
        marker="s",
        markersize=4,
        color=ORANGE,
        linestyle="--",
        label="bad nodes not blamed",
    )
    axes.set_title("Noise costs recall, not healthy nodes", loc="left")
    axes.set_xlabel("noise, multiples of 2 % per edge and per trial")
    axes.set_ylabel("share")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(bottom=-0.01)
    axes.legend(frameon=False, loc="upper left")


def rounds_against_size(axes: Axes, figures: Figures) -> None:
    rows = figures["labels"]["rounds_by_size"]
    x = [int(n) for n in rows]
    axes.plot(
        x,
        [one["max"] for one in rows.values()],
        marker="_",
        color=GREY,
        linestyle=":",
        label="most",
    )
    axes.plot(
        x,
        [one["mean"] for one in rows.values()],
        marker="o",
        markersize=4,
        color=BLUE,
        label="mean",
    )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_title("Rounds until the verdict do not grow with the gang", loc="left")
    axes.set_xlabel("nodes in the gang (from this number to twice of it)")
    axes.set_ylabel("rounds, the gang's own included")
    axes.set_ylim(0, 8.6)
    axes.legend(frameon=False, loc="lower right")
