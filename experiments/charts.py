"""Shared code for the figures of all claims: size, type, colours, and a title that states the result."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.5  # inches, of a page
LINE = 86  # characters per line of the title
DPI = 160
STYLE: Any = {
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
}
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""Distinct for the colour-blind too (Okabe and Ito 2008); this is the most lines that a panel can have."""
OURS, THEIRS, EACH = COLORS[0], COLORS[1], COLORS[6]


def draw_into(path: Path, draw: Callable[[Figure], None]) -> str:
    """Draw a figure of a page's width into a PNG file, atomically. Return its title."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from PIL import Image

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 4), layout="constrained")
        draw(figure)
        beside = path.with_name(f".{path.name}")
        figure.savefig(beside, dpi=DPI, format="png")
    Image.open(beside).convert("RGB").quantize(128).save(beside, format="png", optimize=True)
    os.replace(beside, path)
    return " ".join(figure.get_suptitle().split())


def entitle(figure: Figure, message: str) -> None:
    """Put a title above a figure, wrapped to its width."""
    lines = "\n".join(textwrap.wrap(message, LINE))
    figure.suptitle(lines, x=0.01, ha="left", fontsize=10, fontweight="bold", linespacing=1.3)
    figure.set_figheight(figure.get_figheight() + 0.18 * lines.count("\n"))


def panels(figure: Figure, n_rows: int, n_columns: int, height: float) -> list[Axes]:
    """Divide a figure into panels, each `height` inches high. Return them row by row."""
    figure.set_figheight(height * n_rows + 0.5)
    return list(figure.subplots(n_rows, n_columns, squeeze=False).flat)


def use_log(axes: Axes, *directions: Literal["x", "y"]) -> None:
    """Make scales logarithmic, with ticks labelled in plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set(**{f"{direction}scale": "log" for direction in directions})
    for direction in directions:
        axis = axes.xaxis if direction == "x" else axes.yaxis
        low, high = axes.get_xlim() if direction == "x" else axes.get_ylim()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,), numticks=12))
        axis.set_major_formatter("{x:,.10g}")
        axis.set_minor_locator(NullLocator())


def legend_below(figure: Figure, axes: Axes, n_columns: int = 4) -> None:
    """Put one legend, that of a panel, below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(n_columns, len(labels)))


def whiskers(values: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> list[list[float]]:
    """Return the lengths of error bars from the ends of a range."""
    down = [max(0.0, value - low) for value, low in zip(values, lows, strict=True)]
    return [down, [max(0.0, high - value) for value, high in zip(values, highs, strict=True)]]
