"""Pairs of texts with a label, one pair per line, separated by tabs.

    a cat sleeps<tab>an animal sleeps<tab>entailment

Words are separated by plain spaces; each text has one or more. Blank lines are skipped. If answers are not required,
the label may be left out, with or without its tab.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

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
    if here <= len(line.text):
        raise line.fault("a pair of texts", here - 1, "the end of the line after two texts and a label")
    left, right, label = parts
    return Comparison(left, right, " ".join(label) or None)
