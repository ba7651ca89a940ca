"""Sentences of tagged words, one per line as in WikiNER: `Mad|I-ORG Capsule|I-ORG Markets|I-ORG .|O`; and random ones.

Sentences without tags are lines of words, as in the Penn Treebank of language models.

A word may contain any character except the plain space and the tab, even `|`: the tag follows the last `|`. Blank lines
are skipped. If answers are not required, the tags of a line may be left out; a word that contains `|` then keeps its
last one: `either|or|`.

Source of the format: Nothman et al. 2013, Learning multilingual named entity recognition from Wikipedia.

Random sentences are of a made-up language, and tagged with people, places and groups (IOB2, as in CoNLL). A name is one
to three words. All three types use the same names, so that only the words around a name determine its type: a title
comes before a person, a preposition before a place, and a verb of groups after a group. A tagger must therefore read in
both directions.

Rare names are words of one to three parts and an ending, most of which occur once. Only the ending determines their
type, so a tagger must read their letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

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
            # A bar is added to words with a bar, whose last part would be read as a tag.
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


NAMES = tuple(
    first + second for first in ("Bel", "Dor", "Kan", "Mir", "Sul", "Tov") for second in ("a", "en", "is", "or")
)
TITLES = ("sir", "dame", "captain", "doctor")
PREPOSITIONS = ("in", "near", "towards", "beyond")
GROUP_VERBS = ("merged", "elected", "disbanded", "voted")
PLAIN = ("the", "old", "river", "runs", "slowly", "and", "a", "song", "rises", "bright", "morning", "falls")
ENDINGS = {"PER": ("son", "dottir", "ez"), "LOC": ("ville", "mouth", "stan"), "ORG": ("corp", "bank", "tech")}


def draw_sentences(n_sentences: int, rng: np.random.Generator, *, max_parts: int = 5) -> list[Sentence[str]]:
    """Draw sentences of 1 to `max_parts` parts, each a name with the word that determines its type, or plain words.

    Returns:
        Sentences of about 9 words on average, by default.

    >>> print(draw_sentences(1, np.random.default_rng(2), max_parts=2)[0])
    in|O Kanen|B-LOC old|O slowly|O
    """
    return [_draw_sentence(rng, max_parts) for _ in range(n_sentences)]


def draw_rare_names(n_sentences: int, rng: np.random.Generator, *, max_parts: int = 5) -> list[Sentence[str]]:
    """Draw sentences of 1 to `max_parts` parts, each a name of one word that determines its type, or plain words.

    Returns:
        Sentences of about 5 words on average, by default.

    >>> print(draw_rare_names(1, np.random.default_rng(2), max_parts=2)[0])
    Sulorkanisson|B-PER rises|O falls|O river|O morning|O
    """
    return [_draw_rare_names(rng, max_parts) for _ in range(n_sentences)]


def _draw_rare_names(rng: np.random.Generator, max_parts: int) -> Sentence[str]:
    tokens: list[tuple[str, str]] = []
    for _ in range(rng.integers(1, max_parts, endpoint=True)):
        if rng.random() < 0.5:
            kind = _pick(rng, tuple(ENDINGS))
            stem = "".join(_pick(rng, NAMES) for _ in range(rng.integers(1, 3, endpoint=True)))
            tokens.append((stem.capitalize() + _pick(rng, ENDINGS[kind]), f"B-{kind}"))
        else:
            tokens += [(_pick(rng, PLAIN), "O") for _ in range(rng.integers(1, 5))]
    return Sentence([word for word, _ in tokens], [tag for _, tag in tokens])


def _draw_sentence(rng: np.random.Generator, max_parts: int) -> Sentence[str]:
    tokens: list[tuple[str, str]] = []
    for _ in range(rng.integers(1, max_parts, endpoint=True)):
        match rng.integers(4):
            case 0:
                tokens += [(_pick(rng, TITLES), "O"), *_draw_name(rng, "PER")]
            case 1:
                tokens += [(_pick(rng, PREPOSITIONS), "O"), *_draw_name(rng, "LOC")]
            case 2:
                tokens += [*_draw_name(rng, "ORG"), (_pick(rng, GROUP_VERBS), "O")]
            case _:
                tokens += [(_pick(rng, PLAIN), "O") for _ in range(rng.integers(1, 5))]
    return Sentence([word for word, _ in tokens], [tag for _, tag in tokens])


def _draw_name(rng: np.random.Generator, kind: str) -> list[tuple[str, str]]:
    n_words = rng.integers(1, 3, endpoint=True)
    return [(_pick(rng, NAMES), f"{'I' if place else 'B'}-{kind}") for place in range(n_words)]


def _pick(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[rng.integers(len(words))]
