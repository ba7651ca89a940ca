"""Bars of all rates: a row of charts for every setting, one for each mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLORS = {"PyTorch": "tab:gray", "JAX": "tab:olive", "autobatch": "tab:blue"}


def draw(model: str, found: Mapping[Any, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """Draw rates, by setting, way and mode, into a PNG file."""
    from matplotlib.figure import Figure

    modes = list(next(iter(next(iter(found.values())).values())))
    n_ways = len(next(iter(found.values())))
    figure = Figure(figsize=(6.5 * len(modes), 0.6 + len(found) * (0.9 + 0.2 * n_ways)), layout="constrained")
    charts = figure.subplots(len(found), len(modes), squeeze=False)
    for row, (setting, rates) in zip(charts, found.items(), strict=True):
        names = list(rates)
        colors = [COLORS[name.replace(",", " ").split()[0]] for name in names]
        for axes, mode in zip(row, modes, strict=True):
            bars = axes.barh(names, [rates[name][mode] for name in names], color=colors)
            axes.bar_label(bars, fmt="{:,.0f}", fontsize="x-small", padding=2)
            axes.invert_yaxis()
            axes.tick_params(axis="y", labelsize="x-small")
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(f"{setting}: {mode}", fontsize="small", loc="left")
        for axes in row[1:]:
            axes.set_yticks([])
    figure.suptitle(f"{model}: instances per second", fontsize="medium")
    figure.savefig(path, dpi=100)
