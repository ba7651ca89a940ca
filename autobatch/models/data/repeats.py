"""Texts of words with repeat counts and tags: `right*3|F left*1|E`, one text per line; and random walks around a table.

A token is a word, `*`, a count from 0 to 999, `|` and a tag. A word may contain any character except spaces and tabs,
even `*` and `|`: the count follows the last `*` before the last `|`. Blank lines are skipped. If answers are not
required, the tags of a line may be left out: `right*3 left*1`.

A walk around a table with six seats is tagged with the seat after every move: `right*3|D across*1|A left*2|E`. It
begins at seat A. "right" and "left" go to the next seat, "across" to the opposite one; each is repeated by its count. A
network that makes one move per step needs as many steps, and must remember the seat between moves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from autobatch.readers.lines import Line, all_tagged, parse_lines

W = TypeVar("W")

_TOKEN = re.compile("[^ \\t]+")
_PARTS = re.compile(r"(.+)\*(0|[1-9][0-9]{0,2})\|([^|]+)", re.DOTALL)
_PARTS_ALONE = re.compile(r"(.+)\*(0|[1-9][0-9]{0,2})", re.DOTALL)
_EXAMPLE = "such as right*3|F left*1|E"


@dataclass(frozen=True)
class Repeats(Generic[W]):
    """Words with counts, and either a tag each or no tags: strings as read, ints after encoding."""

    words: list[W]
    counts: list[int]
    tags: list[W]

    def __str__(self) -> str:
        if not self.tags:
            return " ".join(map("{}*{}".format, self.words, self.counts))
        return " ".join(map("{}*{}|{}".format, self.words, self.counts, self.tags))


def read_repeats(path: Path, answered: bool = True) -> list[Repeats[str]]:
    """Read every text of a file.

    Args:
        path: a UTF-8 text file, one text per line.
        answered: whether every word must have a tag.

    Raises:
        DataError: the file cannot be read, holds no text, or a line is malformed; names file, line and column.
    """
    return parse_lines(
        path, "repeated words", partial(parse_repeats, answered=answered), f"one text per line, {_EXAMPLE}"
    )


def parse_repeats(line: Line, answered: bool = True) -> Repeats[str]:
    """Read one text. If `answered`, every word must have a tag; otherwise all or none have one.

    Raises:
        DataError: a token is malformed; the message has the place and the column of the token.

    >>> parse_repeats(Line(Path("x.txt"), 1, "right*3|F left*0|F"))
    Repeats(words=['right', 'left'], counts=[3, 0], tags=['F', 'F'])
    """
    expected = f"a word, '*', a count from 0 to 999, '|' and a tag, {_EXAMPLE}"
    tokens, repeats, tagged = list(_TOKEN.finditer(line.text)), Repeats[str]([], [], []), list[bool]()
    for token in tokens:
        parts = _PARTS.fullmatch(token[0])
        tagged.append(parts is not None)
        if parts is not None:
            repeats.tags.append(parts[3])
        elif not answered:
            parts = _PARTS_ALONE.fullmatch(token[0])
        if parts is None:
            raise line.fault("repeated words", token.start(), expected)
        repeats.words.append(parts[1])
        repeats.counts.append(int(parts[2]))
    all_tagged(line, "repeated words", tokens, tagged, expected)
    return repeats


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
