"""Pictures whose pixels are tagged words, one row per line in the format of sentences, separated by blank lines.

blue|sky  white|sky blue|sky
blue|sea  red|boat  green|land
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from autobatch.errors import DataError
from autobatch.models.data.sentence import Sentence, parse_sentence
from autobatch.readers.lines import read_lines

V = TypeVar("V")
W = TypeVar("W")

_EXAMPLE = "such as blue|sky red|boat"


@dataclass(frozen=True)
class Picture(Generic[W]):
    """Rows of equal length, from top to bottom: strings as read, ints after encoding by vocabularies."""

    rows: list[Sentence[W]]

    def words(self) -> Iterator[W]:
        """Return the words of all pixels, row by row."""
        return (word for row in self.rows for word in row.words)

    def tags(self) -> Iterator[W]:
        """Return the tags of all pixels, row by row."""
        return (tag for row in self.rows for tag in row.tags)

    def map(self, replace_word: Callable[[W], V], replace_tag: Callable[[W], V]) -> Picture[V]:
        """Copy the picture with other words and tags."""
        return Picture([row.map(replace_word, replace_tag) for row in self.rows])

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows))


def read_pictures(path: Path, answered: bool = True) -> list[Picture[str]]:
    """Read every picture of a file.

    Args:
        path: a UTF-8 text file, one row per line; blank lines separate pictures.
        answered: whether every pixel must have a tag; otherwise all or none in a row have one.

    Raises:
        DataError: the file cannot be read, holds no picture, or a line is malformed or differs in length from the row
            before; the message has file, line and column.
    """
    pictures: list[Picture[str]] = []
    is_open = False
    for line in read_lines(path, "pictures"):
        if not line.text.strip(" \t"):
            is_open = False
            continue
        row = parse_sentence(line, "a picture", _EXAMPLE, answered)
        if not is_open:
            pictures.append(Picture([]))
        elif len(row.words) != len(pictures[-1].rows[0].words):
            n_pixels = len(pictures[-1].rows[0].words)
            raise line.fault("a picture", len(line.text), f"{n_pixels} pixels, as in the row before")
        pictures[-1].rows.append(row)
        is_open = True
    if not pictures:
        raise DataError(f"cannot read pictures from {path}: the file holds none; expected rows {_EXAMPLE}.")
    return pictures
