"""Sentences with their translations, in two files of aligned lines as in IWSLT: `train.en` beside `train.vi`.

Words are separated by plain spaces. Lines that are empty in both files are skipped.

Source of the data: Cettolo et al. 2015, The IWSLT 2015 evaluation campaign, in the form of Luong and Manning 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Generic, TypeVar

from autobatch.errors import DataError
from autobatch.models.data.lines import read_lines

W = TypeVar("W")


@dataclass(frozen=True)
class Pair(Generic[W]):
    """A sentence and its translation: words as read, or ids after encoding by vocabularies."""

    source: list[W]
    target: list[W]
    reference: str
    """The translation as it was read, with words that no vocabulary knows."""


def read_pairs(path: Path) -> list[Pair[str]]:
    """Read every sentence of a file, and its translation from the file beside it that differs in the suffix alone.

    Args:
        path: a UTF-8 text file, one sentence a line, such as `train.en`; the other is then `train.vi`, or any one.

    Raises:
        DataError: there is not one such file, one cannot be read, they differ in length, or hold no sentence.
    """
    others = sorted(p for p in path.parent.glob(f"{path.stem}.*") if p.stem == path.stem and p.name != path.name)
    if len(others) != 1:
        found = f"{len(others)} files" if others else "no file"
        raise DataError(
            f"cannot read translations of {path}: there is {found} beside it that differs in the suffix alone; "
            f"give one, such as {path.with_suffix('.vi').name}, with a translation in each line."
        )
    pairs = []
    lines = zip_longest(read_lines(path, "sentences"), read_lines(others[0], "translations"))
    for number, (source, target) in enumerate(lines, start=1):
        if source is None or target is None:
            longer, shorter = (others[0], path) if source is None else (path, others[0])
            raise DataError(
                f"cannot align {path} with {others[0].name}: {longer.name} has a line {number} and {shorter.name} has "
                f"none; give a translation in each line."
            )
        pair = make_pair(source.text, target.text)
        if pair.source or pair.target:
            pairs.append(pair)
    if not pairs:
        raise DataError(f"cannot read sentences from {path}: the file holds none; expected one a line.")
    return pairs


def make_pair(source: str, target: str) -> Pair[str]:
    """Split two sentences into words.

    >>> make_pair("the river sings", "sul  tova").target
    ['sul', 'tova']
    """
    return Pair(_words(source), _words(target), target.strip(" "))


def _words(text: str) -> list[str]:
    return [word for word in text.split(" ") if word]
