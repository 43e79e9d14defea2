"""One picture of the gang bench: time to the last member's roster against the size of the gang."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

BLUE, ORANGE, GRAY = "#1f5fa8", "#d95f02", "#777777"
BARS: Final = {2: 0.3, 1000: 5.0}
"""Seconds that a gang of so many may take."""


def draw(figures: dict[str, Any], folder: Path, suffix: str) -> Path:
    """Draw what the bench has measured into ``folder``; the file, whose bytes depend on the figures
    alone.
    """
    rows = figures["sizes"]
    sizes = [int(size) for size in rows]
    path = folder / f"gang-size.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"svg.hashsalt": path.stem, "font.size": 10})
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    for key, style, color, label in (
        ("seconds", "o-", BLUE, "seconds"),
        ("cpu_seconds", "s:", GRAY, "CPU of the controller in all"),
    ):
        axes.plot(sizes, [row[key] for row in rows.values()], style, ms=4, color=color, label=label)
    bars = list(BARS), list(BARS.values())
    axes.scatter(*bars, marker="v", color=ORANGE, zorder=3, label="the most it may be")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.legend(frameon=False, loc="upper left")
    axes.set_title("From the last address to the last member's roster", loc="left")
    axes.set_xlabel("pods in the gang")
    axes.set_ylabel("seconds")
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
