"""Lattices of characters and words with a tag at every position, and their text format.

A file begins with the number of lattices; then, for each: the number of positions L; L tags; and L lines, the arcs
that end at a position, as `n_arcs (start id)*`. All are plain decimal numbers separated by spaces. Blank lines are
allowed before a lattice and at the end. Tabs work like spaces.

    2
    3
    0 4 5
    0
    1 0 17
    2 1 18 0 93

An arc from the previous position carries a character, any other a word; characters and words have separate ids. The
first position is the beginning of the lattice and is not tagged: it has no arc, and tag 0.

Other tags are names, such as B-PER, or numbers. A file tags.txt in the same folder may name all numbers, with one
number and name per line, `4 B-PER`.

If answers are not required, the line of tags may be blank or missing.

Source of the format: lattices after Zhang and Yang 2018, Chinese NER using lattice LSTM (arXiv:1805.02023).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

from autobatch.errors import DataError
from autobatch.readers.lines import Line, read_lines

V = TypeVar("V")
W = TypeVar("W")

NAMES = "tags.txt"

_TOKEN = re.compile("[^ \\t]+")
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")  # below 10**9, so that ids fit 32 bits
_WHAT = "a lattice"


@dataclass(frozen=True)
class Lattice(Generic[W]):
    """Positions 0 to L - 1, a tag each, and the arcs that end there.

    Attributes:
        tags: the tags of the L positions; the first is meaningless; empty if not given.
        arcs: the arcs (start, word) that end at each position, start < position; position 0 has none, others have at
            least one. An arc from the position before carries a character, any other a word.
    """

    tags: list[W]
    arcs: list[list[tuple[int, W]]]

    def characters(self) -> Iterator[W]:
        """Return the labels of arcs from one position to the next."""
        return (word for end, arcs in enumerate(self.arcs) for start, word in arcs if start == end - 1)

    def words(self) -> Iterator[W]:
        """Return the labels of all other arcs."""
        return (word for end, arcs in enumerate(self.arcs) for start, word in arcs if start != end - 1)

    def map(
        self, replace_character: Callable[[W], V], replace_word: Callable[[W], V], replace_tag: Callable[[W], V]
    ) -> Lattice[V]:
        """Copy the lattice with other characters, words and tags."""
        arcs = [
            [(start, replace_character(text) if start == end - 1 else replace_word(text)) for start, text in into]
            for end, into in enumerate(self.arcs)
        ]
        return Lattice(list(map(replace_tag, self.tags)), arcs)

    def __str__(self) -> str:
        rows = [" ".join([str(len(arcs)), *(f"{start} {word}" for start, word in arcs)]) for arcs in self.arcs]
        return "\n".join([str(len(self.arcs)), " ".join(map(str, self.tags)), *rows])


def read_lattices(path: Path, answered: bool = True) -> list[Lattice[str]]:
    """Read every lattice of a file; ids are decimal numbers, as strings, and tags are names or numbers.

    Args:
        path: a UTF-8 text file of lattices, with or without a file tags.txt beside it.
        answered: whether every lattice must have tags.

    Raises:
        DataError: a file cannot be read, holds no lattice, or a line is malformed; names file, line and column.
    """
    lines, names = _Lines(path), read_names(path.with_name(NAMES)) if path.with_name(NAMES).is_file() else None
    count = lines.next_row("the number of lattices in the file, on a line of its own", 1)
    n_lattices = count.number(0, "the number of lattices, at least 1", smallest=1)
    lattices = [_read_lattice(lines, names, answered) for _ in range(n_lattices)]
    for line in lines.rest:
        if line.text.strip(" \t"):
            raise line.fault(_WHAT, 0, f"the end of the file after {n_lattices} lattices, the number in its first line")
    return lattices


def read_names(path: Path) -> dict[str, str]:
    """Read the names of tags, one number and name per line.

    Raises:
        DataError: the file cannot be read, holds no name, or a line is malformed or repeats a number or a name.
    """
    names: dict[str, str] = {}
    what = "the name of a tag"
    for line in read_lines(path, "names of tags"):
        tokens = list(_TOKEN.finditer(line.text))
        if not tokens:
            continue
        if len(tokens) != 2 or not _NUMBER.fullmatch(tokens[0][0]):
            raise line.fault(what, tokens[0].start(), "a number and a name, such as 4 B-PER")
        number, name = (token[0] for token in tokens)
        if number in names or name in names.values():
            raise line.fault(what, tokens[0].start(), "a number and a name not in an earlier line")
        names[number] = name
    if not names:
        raise DataError(f"cannot read names of tags from {path}: the file holds none; expected one per line, 4 B-PER.")
    return names


class _Row:
    """The numbers of a line, checked when read."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.tokens = list(_TOKEN.finditer(line.text))

    def number(self, place: int, expected: str, smallest: int = 0, end: int = 10**9) -> int:
        """Return the number at index `place`, which must be at least `smallest` and below `end`."""
        token = self.tokens[place]
        if not _NUMBER.fullmatch(token[0]) or not smallest <= int(token[0]) < end:
            raise self.line.fault(_WHAT, token.start(), expected)
        return int(token[0])

    def check_length(self, length: int, expected: str) -> None:
        """Raise an error for another count of numbers, at the first surplus one or the end of the line."""
        if len(self.tokens) != length:
            position = self.tokens[length].start() if length < len(self.tokens) else len(self.line.text)
            raise self.line.fault(_WHAT, position, expected)


class _Lines:
    """The lines of a file, one after the other."""

    def __init__(self, path: Path) -> None:
        self.rest: Iterator[Line] = read_lines(path, "lattices")
        self._last = Line(path, 1, "")

    def put_back(self, line: Line) -> None:
        self.rest = chain([line], self.rest)

    def next(self, expected: str, skip_blank: bool) -> _Row:
        """Return the next line; it is an error if the file ends here."""
        for line in self.rest:
            self._last = line
            if not skip_blank or line.text.strip(" \t"):
                return _Row(line)
        raise DataError(
            f"cannot read {_WHAT} from {self._last.place}, column {len(self._last.text) + 1}: expected {expected}, "
            f"found the end of the file."
        )

    def goes_on_with(self, text: str) -> bool:
        """Return whether there is a next line that contains only this text and blanks."""
        line = next(self.rest, None)
        if line is not None:
            self.put_back(line)
        return line is not None and line.text.strip(" \t") == text

    def next_row(self, expected: str, length: int, skip_blank: bool = True) -> _Row:
        """Return the next line, which must hold this many numbers."""
        row = self.next(expected, skip_blank)
        row.check_length(length, expected)
        return row


def _read_lattice(lines: _Lines, names: Mapping[str, str] | None, answered: bool) -> Lattice[str]:
    size = lines.next_row("the number of positions of a lattice, on a line of its own", 1)
    n_positions = size.number(0, "the number of positions, at least 1", smallest=1)
    tags = _read_tags(lines, n_positions, names, answered)
    return Lattice(tags, [_read_arcs(lines, position) for position in range(n_positions)])


def _read_tags(lines: _Lines, n_positions: int, names: Mapping[str, str] | None, answered: bool) -> list[str]:
    """Read the line of tags. If it is missing, the next line has the arcs that end at position 0."""
    row = lines.next(f"{n_positions} tags, one for each position", skip_blank=False)
    if not answered and not row.tokens:
        return []
    # A single number is not a line of tags but that of the arcs at position 0. With one position both look alike: it is
    # the tag if the line of arcs, "0", follows.
    if not answered and len(row.tokens) == 1 and (n_positions > 1 or not lines.goes_on_with("0")):
        lines.put_back(row.line)
        return []
    row.check_length(n_positions, f"{n_positions} tags, one for each position")
    row.number(0, "tag 0 for the first position, where the lattice begins", end=1)
    tags = [token[0] for token in row.tokens]
    for position in range(1, n_positions):
        if names is not None and _NUMBER.fullmatch(tags[position]):
            if tags[position] not in names and answered:
                raise row.line.fault(_WHAT, row.tokens[position].start(), f"a tag named in {NAMES} beside the file")
            tags[position] = names.get(tags[position], tags[position])
    return tags


def _read_arcs(lines: _Lines, position: int) -> list[tuple[int, str]]:
    row = lines.next(f"the number of arcs that end at position {position}", skip_blank=False)
    if not row.tokens:
        row.check_length(1, f"the number of arcs that end at position {position}")
    if position == 0:
        row.number(0, "0, as no arc ends at the first position", end=1)
    n_arcs = row.number(0, f"the number of arcs that end at position {position}, at least 1", smallest=min(position, 1))
    row.check_length(1 + 2 * n_arcs, f"{n_arcs} arcs, each a start and an id")
    starts = f"the start of an arc that ends at position {position}, a number from 0 to {position - 1}"
    return [
        (row.number(place, starts, end=position), str(row.number(place + 1, "the id of a character or word")))
        for place in range(1, 1 + 2 * n_arcs, 2)
    ]
