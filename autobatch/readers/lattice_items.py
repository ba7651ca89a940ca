"""Lattices as instances of a fold: junctions and arcs are nodes alike, so that their number of edges is linear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Arc(NamedTuple):
    """An arc between two junctions, with a word and scores by name."""

    start: int
    end: int
    word: str
    scores: dict[str, float]


def to_instance(words: Sequence[str], arcs: Sequence[Arc], names: Sequence[str]) -> dict[str, Any]:
    """Make an instance for `autobatch.fold(edges="edges")`.

    Args:
        words: the word of each junction, or "".
        arcs: the arcs.
        names: of the scores; arcs without one, and junctions, have 0.0.
    """
    n = len(words)
    found: dict[str, Any] = {
        "word": [*words, *(arc.word for arc in arcs)],
        "edges": [pair for k, arc in enumerate(arcs, start=n) for pair in ([arc.start, k], [k, arc.end])],
    }
    return found | {name: [0.0] * n + [arc.scores.get(name, 0.0) for arc in arcs] for name in names}
