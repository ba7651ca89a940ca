"""Draw a state machine: states one below the other, and transitions as arcs beside them.

Arcs down are gray and arcs up are red; frequent transitions are thicker. A legend below says so. Notebooks show an SVG
element, whose text has the color of the page; files are drawn by Matplotlib, with the same layout in pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from autobatch.display.html import FONT, LETTER, colour_of, write_hint, write_label, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW = 20  # pixels per state
DOT = 5  # radius of a state, in pixels
NEAREST, PER_ROW, FARTHEST = 16, 8, 150  # pixels from states to the control points of arcs
BULGE = 0.75  # width of a cubic Bézier arc as a fraction of that distance
BACK = "#d65f5f"
ONWARD = "#888888"
THINNEST, THICKEST = 0.7, 2.5  # width of arcs, in pixels
HEAD = 6  # length of an arrowhead, in pixels
GAP = 16  # pixels between columns
MOST_LETTERS = 64  # longer descriptions are cut off
HEADINGS = ("runs", "visits")
FAINT = 'opacity="0.7"'


class DrawnState(NamedTuple):
    """A state of the drawing.

    Attributes:
        text: description of the state.
        runs: id and name of the type that runs in it.
        visits: number of visits.
        is_learned: False if the machine did not learn the state and falls back to its rule.
    """

    text: str
    runs: tuple[int, str]
    visits: int
    is_learned: bool


@dataclass(frozen=True)
class Drawing:
    """A drawing of a state machine.

    Attributes:
        heading: heading of the state descriptions.
        states: the states, from top to bottom.
        moves: number of times that each transition was taken, by the indices of its two states.
    """

    heading: str
    states: Sequence[DrawnState]
    moves: Mapping[tuple[int, int], int]

    @property
    def _x(self) -> float:
        """Return the x coordinate of the dots, in pixels."""
        return BULGE * _reach(max((abs(a - b) for a, b in self.moves), default=0)) + 10

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return the cells of the heading, and of each state."""
        cells = [(_cut(state.text), _cut(state.runs[1]), f"{state.visits:,}") for state in self.states]
        return [(_cut(self.heading), *HEADINGS), *cells]

    def _columns(self) -> list[float]:
        """Return the x coordinates where descriptions and types start, and where numbers of visits end, in pixels."""
        first, second, third = (LETTER * max(map(len, column)) for column in zip(*self._rows(), strict=True))
        x = self._x + GAP
        return [x, x + first + GAP, x + first + second + third + 2 * GAP]

    def legend(self) -> list[tuple[str, str]]:
        """Return the color and the text of each line of the legend; an empty color is that of the page."""
        lines = [("", "● learned state, in the color of the type that runs")]
        if not all(state.is_learned for state in self.states):
            lines.append(("", "○ unknown state, in which a rule chooses"))
        if any(b >= a for a, b in self.moves):
            lines.append((ONWARD, "─ to a later state or the same one"))
        if any(b < a for a, b in self.moves):
            lines.append((BACK, "─ back to an earlier state"))
        return [*lines, ("", "thicker: more frequent")] if self.moves else lines

    @property
    def size(self) -> tuple[float, float]:
        """Return the width and height in pixels."""
        width = max(self._columns()[-1], *(10 + LETTER * len(text) for _, text in self.legend())) + 10
        return width, ROW * (len(self.states) + 1.5 + len(self.legend())) + 4

    def svg(self) -> str:
        parts = [self._write_arc(a, b) for a, b in self.moves]
        parts += [_write_head(self._x, place) for place in sorted({b for a, b in self.moves if a != b})]
        hints = ["", *(state.text for state in self.states)]
        for row, (cells, hint) in enumerate(zip(self._rows(), hints, strict=True)):
            # Only a description that was cut off needs a tooltip; the heading, row 0, has none.
            told = write_hint(hint) if cells[0] != hint and hint else ""
            parts.append(f"<g>{told}{''.join(self._write_cells(cells, row))}</g>")
        for place, state in enumerate(self.states):
            colour = colour_of(state.runs[0])
            fill = colour if state.is_learned else "none"
            y = _y(place)
            parts.append(f'<circle cx="{self._x:g}" cy="{y:g}" r="{DOT}" fill="{fill}" stroke="{colour}" '
                         f'stroke-width="2"/>')  # fmt: skip
        for number, (colour, text) in enumerate(self.legend()):
            parts.append(write_label(10, self._legend_y(number), text, f'fill="{colour}"' if colour else FAINT))
        return write_picture(*self.size, parts)

    def plot(self, axes: Axes) -> None:
        """Draw into Matplotlib's axes, in which a unit is a pixel."""
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path

        width, height = self.size
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        style: Any = {"family": "monospace", "fontsize": FONT, "verticalalignment": "baseline", "parse_math": False}
        for a, b in self.moves:
            curve = Path(self._curve(a, b), [Path.MOVETO, *3 * [Path.CURVE4]])
            colour, thickness = self._stroke(a, b)
            axes.add_patch(FancyArrowPatch(path=curve, arrowstyle="-|>", mutation_scale=HEAD, fill=False, color=colour,
                                           linewidth=thickness))  # fmt: skip
        for row, cells in enumerate(self._rows()):
            for x, text, side in zip(self._columns(), cells, ("left", "left", "right"), strict=True):
                axes.text(x, _y(row - 1) + 4, text, horizontalalignment=side, **style)
        for place, state in enumerate(self.states):
            colour = colour_of(state.runs[0])
            fill = colour if state.is_learned else "white"
            axes.plot(
                self._x, _y(place), "o", markersize=2 * DOT, color=fill, markeredgecolor=colour, markeredgewidth=2
            )
        for number, (colour, text) in enumerate(self.legend()):
            axes.text(10, self._legend_y(number), text, color=colour or "black", **style)

    def _legend_y(self, number: int) -> float:
        return ROW * (len(self.states) + 2 + number) + 6

    def _write_cells(self, cells: Sequence[str], row: int) -> Iterator[str]:
        y, options = _y(row - 1) + 4, "" if row else FAINT
        for x, text, side in zip(self._columns(), cells, ("start", "start", "end"), strict=True):
            yield write_label(x, y, text, f'text-anchor="{side}"{options and " " + options}')

    def _curve(self, a: int, b: int) -> list[tuple[float, float]]:
        """Return the control points of a transition; from a state to itself, it is a small loop."""
        x, start, end = self._x, _y(a), _y(b)
        out = x - _reach(abs(a - b))
        if a == b:
            return [(x, start - DOT), (out, start - DOT), (out, end + DOT), (x, end + DOT)]
        return [(x, start), (out, start), (out, end), (x - DOT, end)]

    def _stroke(self, a: int, b: int) -> tuple[str, float]:
        """Return the color and the width of a transition."""
        share = self.moves[a, b] / max(self.moves.values())
        return BACK if b < a else ONWARD, THINNEST + (THICKEST - THINNEST) * sqrt(share)

    def _write_arc(self, a: int, b: int) -> str:
        states, (colour, width) = self.states, self._stroke(a, b)
        hint = write_hint(f"from {states[a].text} to {states[b].text}: {self.moves[a, b]} times")
        start, *others = (f"{x:g} {y:g}" for x, y in self._curve(a, b))
        path = f'd="M{start}C{" ".join(others)}" fill="none"'
        return f'<path {path} stroke="{colour}" stroke-width="{width:.1f}">{hint}</path>'


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


def _reach(rows: int) -> float:
    return min(NEAREST + PER_ROW * rows, FARTHEST)


def _y(place: int) -> float:
    """Return the y coordinate of the middle of a state's row, in pixels; the heading is in row -1."""
    return ROW * (place + 1.5) + 2


def _write_head(x: float, place: int) -> str:
    tip, y = x - DOT, _y(place)
    return f'<path d="M{tip - HEAD:g} {y - 3:g}L{tip:g} {y:g}L{tip - HEAD:g} {y + 3:g}z" opacity="0.7"/>'
