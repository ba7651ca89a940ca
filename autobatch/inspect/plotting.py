"""Drawings of schedules: SVG in notebooks, and files drawn with Matplotlib.

A drawing has a lane per type, with a bar per batch whose height grows with its number of rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autobatch.errors import AutobatchError
from autobatch.release import pip_install
from autobatch.schedule.schedule import Schedule

LANE = 0.9  # height of a type's largest batch, as a fraction of the distance between lanes
SMALLEST = 0.06  # height of the smallest batches, as a fraction of the largest


def show_as_text(thing: object, printer: Any, cycle: bool) -> None:
    """Show an object in IPython as `str` formats it; classes use it as their `_repr_pretty_`."""
    printer.text(str(thing))


@dataclass(frozen=True, eq=False)
class Picture:
    """A drawing of a schedule.

    Attributes:
        title: text above the drawing.
        names: names of the types, by id.
    """

    title: str
    schedule: Schedule
    names: Sequence[str]

    def _repr_html_(self) -> str:
        from autobatch.display.html import write_lines

        return write_lines([self.title]) + self.draw()

    def draw(self) -> str:
        """Draw the batches as an SVG element."""
        return self.schedule.draw(self.names)


def plot_schedules(pictures: Sequence[Picture], path: str | os.PathLike[str]) -> None:
    """Draw schedules one below the other, with a common axis of batches, to a PNG, PDF or SVG file.

    Raises:
        AutobatchError: Matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise AutobatchError(f"cannot draw a schedule: matplotlib is not installed; {pip_install('plot')}.") from None
    lanes = [np.unique(picture.schedule.batch_type) for picture in pictures]
    figure = Figure(figsize=(10, sum(0.9 + 0.32 * len(lane) for lane in lanes)), layout="constrained")
    all_axes = figure.subplots(
        len(pictures), 1, squeeze=False, sharex=True, height_ratios=[1 + len(lane) for lane in lanes]
    )
    for axes, picture, lane in zip(all_axes[:, 0], pictures, lanes, strict=True):
        sizes = np.diff(picture.schedule.batch_ptr)
        for place, type_id in enumerate(lane):
            batches = np.flatnonzero(picture.schedule.batch_type == type_id)
            heights = LANE * np.maximum(sizes[batches] / sizes[batches].max(), SMALLEST)
            axes.bar(batches, heights, width=1.0, bottom=place - LANE / 2, align="edge", color=f"C{type_id % 10}")
        axes.set_yticks(range(len(lane)), [picture.names[type_id] for type_id in lane], parse_math=False)
        axes.set_title(picture.title, fontsize="medium", loc="left", parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[-1, 0].set_xlabel("batch")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise AutobatchError(f"cannot draw a schedule to {os.fspath(path)!r}: {error}") from error
