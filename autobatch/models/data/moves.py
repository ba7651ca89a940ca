"""Draw walks around a table with six seats, tagged with the seat after every move.

    right*3|D across*1|A left*2|E

A walk begins at seat A. "right" and "left" go to the next seat, "across" to the opposite one; each is repeated by its
count. A network that makes one move per step needs as many steps, and must remember the seat between moves.
"""

from __future__ import annotations

import numpy as np

from autobatch.models.data.repeats import Repeats

SEATS = "ABCDEF"
MOVES = {"right": 1, "left": -1, "across": 3}
"""Seats to advance in each move."""


def draw_moves(n_walks: int, rng: np.random.Generator, *, max_moves: int = 5, max_count: int = 5) -> list[Repeats[str]]:
    """Draw walks of 1 to `max_moves` moves, each done 0 to `max_count` times.

    Returns:
        Walks of about 3 moves on average, by default.

    >>> print(draw_moves(1, np.random.default_rng(2))[0])
    right*2|C right*0|C right*2|E left*3|B across*4|B
    """
    return [_draw_walk(rng, max_moves, max_count) for _ in range(n_walks)]


def _draw_walk(rng: np.random.Generator, max_moves: int, max_count: int) -> Repeats[str]:
    n_moves = rng.integers(1, max_moves, endpoint=True)
    words = [list(MOVES)[move] for move in rng.integers(len(MOVES), size=n_moves)]
    counts = rng.integers(max_count, size=n_moves, endpoint=True).tolist()
    seats = np.cumsum([MOVES[word] * count for word, count in zip(words, counts, strict=True)]) % len(SEATS)
    return Repeats(words, counts, [SEATS[seat] for seat in seats])
