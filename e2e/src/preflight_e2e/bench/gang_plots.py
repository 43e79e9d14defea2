"""One picture of the gang bench: time to the last member's roster against the size of the gang."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from matplotlib.ticker import FuncFormatter, NullFormatter

from .plots import BLUE, GRAY, ORANGE, picture

BARS: Final = {2: 0.3, 1000: 5.0}
"""Seconds that a gang of so many may take."""


def draw(figures: dict[str, Any], folder: Path, suffix: str) -> Path:
    """Draw what the bench has measured into ``folder``; the file."""
    rows = figures["sizes"]
    sizes = [int(size) for size in rows]
    path = folder / f"gang-size.{suffix}"
    title = "From the last address to the last member's roster"
    with picture(path, title, "pods in the gang", "seconds") as axes:
        for key, style, color, label in (
            ("seconds", "o-", BLUE, "seconds"),
            ("cpu_seconds", "s:", GRAY, "CPU of the controller in all"),
        ):
            axes.plot(
                sizes, [row[key] for row in rows.values()], style, ms=4, color=color, label=label
            )
        bars = list(BARS), list(BARS.values())
        axes.scatter(*bars, marker="v", color=ORANGE, zorder=3, label="the most it may be")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(sizes)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.legend(frameon=False, loc="upper left")
    return path
