"""Sentences with a tag at every word, one a line as in WikiNER: `Mad|I-ORG Capsule|I-ORG Markets|I-ORG .|O`.

Sentences without tags are lines of words, as in the Penn Treebank of language models.

A word may hold any character but the plain space, also `|`: the tag follows the last `|`. Blank lines are skipped.

Source of the format: Nothman et al. 2013, Learning multilingual named entity recognition from Wikipedia.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from autobatch.models.data.lines import Line, parse_lines

W = TypeVar("W")

_TOKEN = re.compile("[^ ]+")
_EXAMPLE = "such as Paris|I-LOC is|O"


@dataclass(frozen=True)
class Sentence(Generic[W]):
    """Words with one tag each: strings as read, ints after encoding by vocabularies."""

    words: list[W]
    tags: list[W]

    def __str__(self) -> str:
        return " ".join(f"{word}|{tag}" for word, tag in zip(self.words, self.tags, strict=True))


@dataclass(frozen=True)
class SpelledSentence:
    """The ids of words with the ids of their tags; a rare word is the list of the ids of its characters."""

    words: list[int | list[int]]
    tags: list[int]


def read_sentences(path: Path) -> list[Sentence[str]]:
    """Read every sentence of a file.

    Args:
        path: a UTF-8 text file, one sentence a line.

    Raises:
        DataError: the file cannot be read, holds no sentence, or a line is malformed; names file, line and column.
    """
    return parse_lines(path, "sentences", parse_sentence, f"one sentence a line, {_EXAMPLE}")


def read_texts(path: Path) -> list[list[str]]:
    """Read the words of every line of a file, separated by plain spaces; lines without words are skipped.

    Raises:
        DataError: the file cannot be read, or holds no word; names file, line and column.
    """
    return parse_lines(path, "texts", lambda line: _TOKEN.findall(line.text), "one sentence a line")


def parse_sentence(line: Line, what: str = "a sentence", example: str = _EXAMPLE) -> Sentence[str]:
    """Read one sentence, or what else has words with tags: messages call it `what`, with an `example`.

    Raises:
        DataError: a token is not a word, `|` and a tag; names the place and the column of the token.

    >>> print(parse_sentence(Line(Path("x.txt"), 1, "Paris|I-LOC ||O")).words)
    ['Paris', '|']
    """
    words, tags = [], []
    for token in _TOKEN.finditer(line.text):
        word, _, tag = token[0].rpartition("|")
        if not (word and tag):
            raise line.fault(what, token.start(), f"a word, '|' and a tag, {example}")
        words.append(word)
        tags.append(tag)
    return Sentence(words, tags)
