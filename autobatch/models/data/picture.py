"""Pictures whose pixels are tagged words, and random pictures of sky over sea and land.

    blue|sky white|sky blue|sky
    blue|sea red|boat  green|land

A file has a row per line in the format of sentences, and blank lines between pictures.

In random pictures, a pixel's colour alone does not determine its label. Above the horizon there is sky. Below it, there
is sea on one side of a shore, and land on the other. Blue is sky or sea, green is sea or land, white is anything. Red
is a balloon in the sky, a boat in the sea, or a house on land.

Source of the task: Shuai, Zuo, Wang and Wang 2015 (arXiv:1509.00552), which labels the pixels of photographs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

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


COLOURS = {
    "sky": ("blue", "blue", "white"),
    "sea": ("blue", "blue", "green", "white"),
    "land": ("green", "green", "brown", "white"),
}
"""Label of a pixel to its equally likely colours."""
THINGS = {"sky": "balloon", "sea": "boat", "land": "house"}
RED = 0.08  # of all pixels


def draw_scenes(n_scenes: int, rng: np.random.Generator, *, min_size: int = 4, max_size: int = 7) -> list[Picture[str]]:
    """Draw pictures with height and width from `min_size` to `max_size` pixels, drawn independently.

    >>> print(draw_scenes(1, np.random.default_rng(5), min_size=2, max_size=4)[0])
    blue|sky red|balloon blue|sky blue|sky
    red|house green|land green|land green|land
    white|land brown|land brown|land brown|land
    green|land green|land brown|land red|house
    """
    return [_draw_scene(rng, min_size, max_size) for _ in range(n_scenes)]


def _draw_scene(rng: np.random.Generator, min_size: int, max_size: int) -> Picture[str]:
    height, width = rng.integers(min_size, max_size, size=2, endpoint=True)
    horizon, shore = rng.integers(1, height), rng.integers(width, endpoint=True)
    sides = rng.permutation(["sea", "land"])
    picture: Picture[str] = Picture([])
    for row in range(height):
        places = ["sky" if row < horizon else str(sides[int(column >= shore)]) for column in range(width)]
        is_red = rng.random(width) < RED
        words = ["red" if red else str(rng.choice(COLOURS[place])) for place, red in zip(places, is_red, strict=True)]
        tags = [THINGS[place] if red else place for place, red in zip(places, is_red, strict=True)]
        picture.rows.append(Sentence(words, tags))
    return picture
