"""Draw a schedule: a lane per type, with a column per batch whose height grows with its number of nodes.

In a small schedule each node is a box with its number. In a long one, a column stands for several batches and has the
height of the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.display.html import FONT, LETTER, colour_of, write_hint, write_label, write_picture

Ints = NDArray[np.integer[Any]]
MOST_NODES, MOST_BATCHES = 150, 30  # in a schedule drawn node by node
BOX_WIDTH, BOX_HEIGHT = 24, 14  # pixels per node
WIDTH, MOST_COLUMNS = 720, 360  # total width of the columns of a large schedule in pixels, and their maximum number
WIDEST, LOWEST = 24, 1.5  # largest width and smallest height of a column, in pixels
LANE, GAP = 30, 6  # height of a lane of a large schedule, and distance between lanes, in pixels
STEPS = (1, 2, 5)  # between numbered batches, times powers of ten
NUMBERS_APART = 40  # smallest distance between numbers, in pixels
MIDDLE, FAINT = 'text-anchor="middle"', 'opacity="0.7"'


class _Lane(NamedTuple):
    """The lane of a type: its name and colour, its base (pixels from the top), and the height of a node in pixels."""

    name: str
    colour: str
    base: float
    unit: float


class _Columns(NamedTuple):
    """The columns of a large schedule.

    Attributes:
        left: the left edge of the first, in pixels.
        width: the width of each, in pixels.
        n_batches, per_column: the number of batches, in all and per column.
    """

    left: float
    width: float
    n_batches: int
    per_column: int

    def __len__(self) -> int:
        return -(-self.n_batches // self.per_column)

    def x(self, column: float) -> float:
        """Return the x coordinate of a column, in pixels."""
        return self.left + column * self.width


def draw_batches(batch_type: Ints, batch_ptr: Ints, order: Ints, names: Sequence[str] | None = None) -> str:
    """Draw a schedule as an SVG element.

    Args:
        batch_type, batch_ptr, order: as in `Schedule`.
        names: names of the types, by id; None to show the ids.
    """
    sizes, n_batches = np.diff(batch_ptr), len(batch_type)
    is_small = len(order) <= MOST_NODES and n_batches <= MOST_BATCHES
    lanes = _make_lanes(batch_type, sizes, names, is_small)
    base = max((lane.base for lane in lanes.values()), default=0.0)
    left = LETTER * max((len(lane.name) for lane in lanes.values()), default=0) + 10
    width = BOX_WIDTH if is_small else max(min(WIDTH / n_batches, WIDEST), WIDTH / MOST_COLUMNS)
    columns = _Columns(left, width, n_batches, max(-(-n_batches // MOST_COLUMNS), 1))
    parts = [write_label(left - 8, lane.base - 3, lane.name, 'text-anchor="end"') for lane in lanes.values()]
    for batch in _choose_batches(batch_type, sizes, columns.per_column):
        lane, x = lanes[int(batch_type[batch])], columns.x(batch // columns.per_column)
        hint = write_hint(f"batch {batch}: {lane.name} x {sizes[batch]}")
        nodes = order[batch_ptr[batch] : batch_ptr[batch + 1]]
        drawn = _draw_boxes(lane, nodes, x) if is_small else _draw_column(lane, int(sizes[batch]), x, width)
        parts.append(f"<g>{hint}{''.join(drawn)}</g>")
    parts += _number_batches(columns, base + GAP, is_small)
    return write_picture(columns.x(max(len(columns), 4)) + 10, base + 2.5 * FONT, parts)


def _make_lanes(batch_type: Ints, sizes: Ints, names: Sequence[str] | None, is_small: bool) -> dict[int, _Lane]:
    """Place the lanes, one below the other, of the types that occur."""
    lanes, base = {}, 0.0
    for type_id in np.unique(batch_type).tolist():
        most = int(sizes[batch_type == type_id].max())
        unit = BOX_HEIGHT if is_small else LANE / most
        base += GAP + most * unit
        lanes[type_id] = _Lane(names[type_id] if names else f"type {type_id}", colour_of(type_id), base, unit)
    return lanes


def _choose_batches(batch_type: Ints, sizes: Ints, per_column: int) -> Iterator[int]:
    """Yield the batches to draw: the largest of each type in each column."""
    for first in range(0, len(batch_type), per_column):
        shown = range(first, min(first + per_column, len(batch_type)))
        for type_id in dict.fromkeys(batch_type[shown].tolist()):
            yield max((batch for batch in shown if batch_type[batch] == type_id), key=lambda batch: int(sizes[batch]))


def _draw_boxes(lane: _Lane, nodes: Ints, x: float) -> Iterator[str]:
    """Draw a batch as a stack of numbered nodes."""
    for place, node in enumerate(nodes.tolist()):
        y = lane.base - (place + 1) * BOX_HEIGHT
        box = f'x="{x + 1:g}" y="{y + 1:g}" width="{BOX_WIDTH - 2}" height="{BOX_HEIGHT - 2}" rx="2"'
        yield f'<rect {box} fill="{lane.colour}"/>'
        yield write_label(x + BOX_WIDTH / 2, y + 10, str(node), f'fill="white" font-size="9" {MIDDLE}')


def _draw_column(lane: _Lane, size: int, x: float, width: float) -> Iterator[str]:
    """Draw a batch as a column, with its size if there is room."""
    height = max(size * lane.unit, LOWEST)
    box = f'x="{x:.2f}" y="{lane.base - height:.1f}" width="{width:.2f}" height="{height:.1f}"'
    yield f'<rect {box} fill="{lane.colour}"/>'
    # Equality is exact: `draw_batches` passes either WIDEST itself or a smaller number.
    if width == WIDEST:
        is_inside = height > FONT
        y, colour = (lane.base - 3, ' fill="white"') if is_inside else (lane.base - height - 2, "")
        yield write_label(x + width / 2, y, str(size), f'font-size="9" {MIDDLE}{colour}')


def _number_batches(columns: _Columns, y: float, is_small: bool) -> Iterator[str]:
    """Draw the axis with the numbers of some batches."""
    left, end = columns.left, columns.x(len(columns))
    yield f'<line x1="{left:.1f}" y1="{y - 3:g}" x2="{end:.1f}" y2="{y - 3:g}" stroke="currentColor" opacity="0.4"/>'
    yield write_label(left - 8, y + FONT - 1, "batch", f'text-anchor="end" {FAINT}')
    apart = NUMBERS_APART / columns.width * columns.per_column  # in batches
    steps = (step * 10**power for power in range(10) for step in STEPS)
    step = 1 if is_small or columns.width == WIDEST else next(step for step in steps if step >= apart)
    for batch in range(0, columns.n_batches, step):
        x = columns.x(batch // columns.per_column + 0.5)
        yield write_label(x, y + FONT - 1, str(batch), f"{MIDDLE} {FAINT}")
