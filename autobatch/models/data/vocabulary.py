"""Vocabularies: words and their ids, with one id for all words not seen in training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from autobatch.models.data.tree import Tree, to_label

MIN_COUNT = 2  # rarer words of the training data share the unknown word's id, and so train it
UNKNOWN = 0
OUTSIDE = -1  # returned by a closed vocabulary for unknown words; not an id


class Vocabulary:
    """A bijection between words and ids from 0 to len - 1, except that id 0 stands for all unknown words.

    In a `closed` vocabulary, such as that of tree labels, every id is a word, and `id` returns `OUTSIDE` for unknown
    words.

    >>> vocabulary = Vocabulary.count("a rose is a rose".split(), min_count=2)
    >>> len(vocabulary), vocabulary.id("rose"), vocabulary.id("tulip"), vocabulary.word(1)
    (3, 2, 0, 'a')
    """

    def __init__(self, words: Iterable[str], closed: bool = False) -> None:
        """Number the words in order, from 1, or from 0 if closed; words must be unique."""
        self.closed = closed
        self.first = 0 if closed else 1
        """The smallest id of a word."""
        self._words = [*["<unknown>"] * self.first, *words]
        self._ids = {word: number for number, word in enumerate(self._words) if number >= self.first}

    @classmethod
    def count(cls, words: Iterable[str], min_count: int = 1) -> Vocabulary:
        """Collect the words that occur at least `min_count` times, most frequent first, ties in alphabetical order.

        With `min_count` 2 or more, rare words of the training data share the unknown word's id, and so train it.
        """
        counts = Counter(words)
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls(sorted(kept, key=lambda word: (-counts[word], word)))

    @classmethod
    def of_labels(cls, labels: Iterable[str]) -> Vocabulary:
        """Collect labels in a closed vocabulary: numbers first, in numeric order, then text, in alphabetical order.

        >>> Vocabulary.of_labels(["S", "10", "NP", "2", "S"]).words
        ['2', '10', 'NP', 'S']
        """

        def rank(label: str) -> tuple[bool, int, str]:
            number = to_label(label)
            return (False, number, "") if isinstance(number, int) else (True, 0, label)

        return cls(sorted(set(labels), key=rank), closed=True)

    def __len__(self) -> int:
        return len(self._words)

    @property
    def words(self) -> list[str]:
        """List the words in the order of their ids: `Vocabulary(words, closed)` is the same vocabulary."""
        return self._words[self.first :]

    def id(self, word: str) -> int:
        """Return the id of a word; if unknown, `UNKNOWN`, or `OUTSIDE` if closed."""
        return self._ids.get(word, OUTSIDE if self.closed else UNKNOWN)

    def word(self, number: int) -> str:
        """Return the word of an id."""
        return self._words[number]

    def encode(self, tree: Tree[str]) -> Tree[int]:
        """Copy a tree with ids in place of words."""
        return tree.map(self.id)

    def decode(self, tree: Tree[int]) -> Tree[str]:
        """Copy a tree with words in place of ids."""
        return tree.map(self.word)


@dataclass(frozen=True)
class Words:
    """The source of a vocabulary: the words `of` each training instance that occur at least `min_count` times.

    The words of a `closed` vocabulary of known size are the numbers below that size.
    """

    of: Callable[[Any], Iterable[str]]
    min_count: int = MIN_COUNT
    closed: bool = False

    def collect(self, train: Sequence[Any], size: int | None) -> Vocabulary:
        """Make the vocabulary of training instances."""
        if self.closed and size is not None:
            return Vocabulary.of_labels(map(str, range(size)))
        words = chain.from_iterable(map(self.of, train))
        return Vocabulary.of_labels(words) if self.closed else Vocabulary.count(words, self.min_count)
