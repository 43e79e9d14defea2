"""What the pictures of the benches have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GRAY = "#1f5fa8", "#d95f02", "#777777"


@contextmanager
def picture(path: Path, title: str, x: str, y: str) -> Iterator[Axes]:
    """Axes to draw on, then a file whose bytes depend on the figures alone. ``x`` and ``y`` label
    the axes; the file's ending says its format, svg or png.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"svg.hashsalt": path.stem, "font.size": 10})
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    yield axes
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
