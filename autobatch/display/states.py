"""Draw a state machine: states one below the other, and transitions as arcs beside them.

Arcs down are grey and arcs up are red; frequent transitions are thicker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

from autobatch.display.html import LETTER, colour_of, write_hint, write_label, write_picture

ROW = 20  # pixels per state
DOT = 5  # radius of a state, in pixels
NEAREST, PER_ROW, FARTHEST = 16, 8, 150  # pixels from states to the control points of arcs
BULGE = 0.75  # width of a cubic Bézier arc as a fraction of that distance
BACK = "#d65f5f"
THINNEST, THICKEST = 0.7, 3.5  # width of arcs, in pixels
HEAD = 6  # length of an arrowhead, in pixels


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


def draw_states(states: Sequence[DrawnState], moves: Mapping[tuple[int, int], int]) -> str:
    """Draw states and transitions as an SVG element.

    Args:
        states: from top to bottom.
        moves: number of times that each transition was taken, by the indices of its two states.
    """
    farthest = max((abs(a - b) for a, b in moves), default=0)
    x = BULGE * _reach(farthest) + 10
    widest = LETTER * max((len(state.text) for state in states), default=0)
    most = max(moves.values(), default=1)
    arcs = [_draw_arc(states, a, b, n, x, THINNEST + (THICKEST - THINNEST) * sqrt(n / most))
            for (a, b), n in moves.items()]  # fmt: skip
    heads = [_draw_head(x, place) for place in sorted({b for a, b in moves if a != b})]
    rows = [part for place, state in enumerate(states) for part in _draw_state(state, x, place, widest)]
    runs = LETTER * max((len(_say_runs(state)) for state in states), default=0)
    return write_picture(x + 40 + widest + runs, ROW * len(states) + 4, [*arcs, *heads, *rows])


def _reach(rows: int) -> float:
    return min(NEAREST + PER_ROW * rows, FARTHEST)


def _y(place: int) -> float:
    return ROW * (place + 0.5) + 2


def _draw_arc(states: Sequence[DrawnState], a: int, b: int, n: int, x: float, width: float) -> str:
    """Draw a transition; from a state to itself, it is a small loop."""
    start, end, out = _y(a), _y(b), x - _reach(abs(a - b))
    if a == b:
        start, end = start - DOT, end + DOT
    hint = write_hint(f"from {states[a].text} to {states[b].text}: {n} times")
    colour = f'stroke="{BACK}"' if b < a else 'stroke="currentColor" opacity="0.45"'
    curve = f"M{x:g} {start:g}C{out:g} {start:g} {out:g} {end:g} {x:g} {end:g}"
    return f'<path d="{curve}" fill="none" {colour} stroke-width="{width:.1f}">{hint}</path>'


def _draw_head(x: float, place: int) -> str:
    tip, y = x - DOT, _y(place)
    return f'<path d="M{tip - HEAD:g} {y - 3:g}L{tip:g} {y:g}L{tip - HEAD:g} {y + 3:g}z" opacity="0.7"/>'


def _draw_state(state: DrawnState, x: float, place: int, widest: float) -> Iterator[str]:
    number, _ = state.runs
    y, colour = _y(place), colour_of(number)
    fill = colour if state.is_learned else "none"
    yield f'<circle cx="{x:g}" cy="{y:g}" r="{DOT}" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
    yield write_label(x + 14, y + 4, state.text)
    yield write_label(x + 30 + widest, y + 4, _say_runs(state), f'fill="{colour}"')


def _say_runs(state: DrawnState) -> str:
    rule = "" if state.is_learned else ", by the rule"
    return f"runs {state.runs[1]} ×{state.visits}{rule}"
