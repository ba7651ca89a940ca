"""Words that are each to be done some times, with a tag after them: `right*3|F left*1|E`, one text a line.

A token is a word, `*`, a count from 0 to 999, `|` and a tag; a word may hold any character but the plain space, also
`*` and `|`: the count follows the last `*` before the last `|`. Blank lines are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from autobatch.models.data.lines import Line, parse_lines

W = TypeVar("W")

_TOKEN = re.compile("[^ ]+")
_PARTS = re.compile(r"(.+)\*(0|[1-9][0-9]{0,2})\|([^|]+)", re.DOTALL)
_EXAMPLE = "such as right*3|F left*1|E"


@dataclass(frozen=True)
class Repeats(Generic[W]):
    """Words, how many times each is done, and a tag after each: strings as read, ints after encoding."""

    words: list[W]
    counts: list[int]
    tags: list[W]

    def __str__(self) -> str:
        return " ".join(map("{}*{}|{}".format, self.words, self.counts, self.tags))


def read_repeats(path: Path) -> list[Repeats[str]]:
    """Read every text of a file.

    Args:
        path: a UTF-8 text file, one text a line.

    Raises:
        DataError: the file cannot be read, holds no text, or a line is malformed; names file, line and column.
    """
    return parse_lines(path, "repeated words", parse_repeats, f"one text a line, {_EXAMPLE}")


def parse_repeats(line: Line) -> Repeats[str]:
    """Read one text.

    Raises:
        DataError: a token has not its four parts; names the place and the column of the token.

    >>> parse_repeats(Line(Path("x.txt"), 1, "right*3|F left*0|F"))
    Repeats(words=['right', 'left'], counts=[3, 0], tags=['F', 'F'])
    """
    repeats = Repeats[str]([], [], [])
    for token in _TOKEN.finditer(line.text):
        parts = _PARTS.fullmatch(token[0])
        if parts is None:
            expected = f"a word, '*', a count from 0 to 999, '|' and a tag, {_EXAMPLE}"
            raise line.fault("repeated words", token.start(), expected)
        repeats.words.append(parts[1])
        repeats.counts.append(int(parts[2]))
        repeats.tags.append(parts[3])
    return repeats
