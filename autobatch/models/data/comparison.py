"""Pairs of texts with a label, one pair per line, separated by tabs; and random pairs of words with edit distances.

    a cat sleeps<tab>an animal sleeps<tab>entailment

Words are separated by plain spaces; each text has one or more. Blank lines are skipped. If answers are not required,
the label may be left out, with or without its tab.

Random pairs are words, spelled letter by letter: `d a d b c<tab>d d c<tab>2`. The second word is the first after a few
random edits. The label is the smallest number of insertions, deletions and substitutions that turn one word into the
other; it may be smaller than the number of edits drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from autobatch.readers.lines import Line, parse_lines

W = TypeVar("W")

_EXPECTED = "a word of the first text", "a tab and a word of the second text", "a tab and a label"


@dataclass(frozen=True)
class Comparison(Generic[W]):
    """Two texts of at least one word and a label: strings as read, ints after encoding by vocabularies.

    The label is None if not given.
    """

    left: list[W]
    right: list[W]
    label: Any

    def __str__(self) -> str:
        label = [] if self.label is None else [str(self.label)]
        return "\t".join([" ".join(map(str, self.left)), " ".join(map(str, self.right)), *label])


def read_comparisons(path: Path, answered: bool = True) -> list[Comparison[str]]:
    """Read every pair of texts of a file, with its label.

    Args:
        path: a UTF-8 text file, two texts and a label in each line.
        answered: whether every pair must have a label.

    Raises:
        DataError: the file cannot be read, holds no pair, or a line is malformed; names file, line and column.
    """
    parse = partial(parse_comparison, answered=answered)
    return parse_lines(path, "pairs of texts", parse, "two texts and a label in each line", blank=" ")


def parse_comparison(line: Line, answered: bool = True) -> Comparison[str]:
    """Read two texts and a label, which is optional unless `answered`.

    Raises:
        DataError: a part is missing, or there are too many; the message has place, column and expected text.

    >>> parse_comparison(Line(Path("x.txt"), 1, "a b c\\ta c\\tshorter"))
    Comparison(left=['a', 'b', 'c'], right=['a', 'c'], label='shorter')
    """
    parts, here = list[list[str]](), 0
    for expected in _EXPECTED:
        part = line.text[here:].partition("\t")[0]
        parts.append([word for word in part.split(" ") if word])
        if not parts[-1] and (answered or len(parts) < len(_EXPECTED)):
            raise line.fault("a pair of texts", min(here, len(line.text)), expected)
        here += len(part) + 1
    # The third part ends one place before `here`: at a tab, unless it is the end of the line.
    if here <= len(line.text):
        raise line.fault("a pair of texts", here - 1, "the end of the line after two texts and a label")
    left, right, label = parts
    return Comparison(left, right, " ".join(label) or None)


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
