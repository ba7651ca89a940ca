"""Sentences of tagged words, one per line as in WikiNER: `Mad|I-ORG Capsule|I-ORG Markets|I-ORG .|O`.

Sentences without tags are lines of words, as in the Penn Treebank of language models.

A word may contain any character except the plain space and the tab, even `|`: the tag follows the last `|`. Blank lines
are skipped. If answers are not required, the tags of a line may be left out; a word that contains `|` then keeps its
last one: `either|or|`.

Source of the format: Nothman et al. 2013, Learning multilingual named entity recognition from Wikipedia.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from autobatch.models.data.vocabulary import UNKNOWN
from autobatch.readers.lines import Line, all_tagged, parse_lines

V = TypeVar("V")
W = TypeVar("W")

_TOKEN = re.compile("[^ \\t]+")
_EXAMPLE = "such as Paris|I-LOC is|O"


@dataclass(frozen=True)
class Sentence(Generic[W]):
    """Words with either a tag each or no tags: strings as read, ints after encoding by vocabularies."""

    words: list[W]
    tags: list[W]

    def map(self, replace_word: Callable[[W], V], replace_tag: Callable[[W], V]) -> Sentence[V]:
        """Copy the sentence with other words and tags."""
        return Sentence(list(map(replace_word, self.words)), list(map(replace_tag, self.tags)))

    def spell(
        self: Sentence[str], word: Callable[[str], int], character: Callable[[str], int], tag: Callable[[str], int]
    ) -> SpelledSentence:
        """Encode the sentence, with the characters of words outside the vocabulary."""
        words = [[character(c) for c in text] if word(text) == UNKNOWN else word(text) for text in self.words]
        return SpelledSentence(words, list(map(tag, self.tags)))

    def __str__(self) -> str:
        if not self.tags:
            return " ".join(f"{word}|" if "|" in str(word)[1:] else str(word) for word in self.words)
        return " ".join(f"{word}|{tag}" for word, tag in zip(self.words, self.tags, strict=True))


@dataclass(frozen=True)
class SpelledSentence:
    """Ids of words and tags; a rare word is the list of its characters' ids."""

    words: list[int | list[int]]
    tags: list[int]


def read_sentences(path: Path, answered: bool = True) -> list[Sentence[str]]:
    """Read every sentence of a file.

    Args:
        path: a UTF-8 text file, one sentence per line.
        answered: whether every word must have a tag.

    Raises:
        DataError: the file cannot be read, holds no sentence, or a line is malformed; names file, line and column.
    """
    parse = partial(parse_sentence, answered=answered)
    return parse_lines(path, "sentences", parse, f"one sentence per line, {_EXAMPLE}")


def read_texts(path: Path) -> list[list[str]]:
    """Read the words of every line of a file, separated by spaces or tabs; lines without words are skipped.

    Raises:
        DataError: the file cannot be read, or holds no word; names file, line and column.
    """
    return parse_lines(path, "texts", lambda line: _TOKEN.findall(line.text), "one sentence per line")


def parse_sentence(
    line: Line, what: str = "a sentence", example: str = _EXAMPLE, answered: bool = True
) -> Sentence[str]:
    """Read a line of tagged words.

    Args:
        what, example: name of the format and an example, for messages.
        answered: whether every word must have a tag; otherwise all or none in a line have one.

    Raises:
        DataError: a token is not a word, `|` and a tag; the message has the place and the column of the token.

    >>> print(parse_sentence(Line(Path("x.txt"), 1, "Paris|I-LOC ||O")).words)
    ['Paris', '|']
    >>> print(parse_sentence(Line(Path("x.txt"), 1, "either|or| |"), answered=False).words)
    ['either|or', '|']
    """
    tokens = list(_TOKEN.finditer(line.text))
    parts = [token[0].rpartition("|") for token in tokens]
    tagged = [bool(word and tag) for word, _, tag in parts]
    expected = f"a word, '|' and a tag, {example}"
    if answered and not all(tagged):
        raise line.fault(what, tokens[tagged.index(False)].start(), expected)
    if all_tagged(line, what, tokens, tagged, expected):
        return Sentence([word for word, _, _ in parts], [tag for _, _, tag in parts])
    return Sentence([word or token[0] for token, (word, _, _) in zip(tokens, parts, strict=True)], [])
