"""Draw pairs of words, spelled letter by letter, labelled with their edit distance.

    d a d b c<tab>d d c<tab>2

The second word is the first after a few random edits. The label is the smallest number of insertions, deletions and
substitutions that turn one word into the other; it may be smaller than the number of edits drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autobatch.models.data.comparison import Comparison

LETTERS = "abcd"
MIN_LETTERS = 2


def draw_edits(
    n_pairs: int, rng: np.random.Generator, *, max_letters: int = 6, max_edits: int = 4
) -> list[Comparison[str]]:
    """Draw words of 2 to `max_letters` letters, each with the result of 0 to `max_edits` edits.

    Returns:
        Words of about 4 letters on average, by default; the labels are "0" to "4", most of them less than "3".

    >>> draw_edits(1, np.random.default_rng(5))[0]
    Comparison(left=['d', 'a', 'd', 'b', 'c'], right=['d', 'd', 'c'], label='2')
    """
    return [_draw_pair(rng, max_letters, max_edits) for _ in range(n_pairs)]


def edit_distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Compute the Levenshtein distance by the algorithm of Wagner and Fischer (1974), row by row.

    >>> edit_distance("kitten", "sitting")
    3
    """
    above = list(range(len(right) + 1))
    for row, one in enumerate(left, start=1):
        here = [row]
        for column, other in enumerate(right):
            here.append(min(here[column] + 1, above[column + 1] + 1, above[column] + (one != other)))
        above = here
    return above[-1]


def _draw_pair(rng: np.random.Generator, max_letters: int, max_edits: int) -> Comparison[str]:
    left = [_draw_letter(rng) for _ in range(rng.integers(MIN_LETTERS, max_letters, endpoint=True))]
    right = list(left)
    for _ in range(rng.integers(max_edits, endpoint=True)):
        place = int(rng.integers(len(right)))
        match rng.integers(3):
            case 0:
                right.insert(place, _draw_letter(rng))
            case 1 if len(right) > MIN_LETTERS:
                del right[place]
            case _:
                right[place] = _draw_letter(rng)
    return Comparison(left, right, str(edit_distance(left, right)))


def _draw_letter(rng: np.random.Generator) -> str:
    return LETTERS[rng.integers(len(LETTERS))]
