"""Words and their ids; one id stands for every word not seen in training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from autobatch.models.data.tree import Tree

UNKNOWN = 0


class Vocabulary:
    """Gives every word an id from 0 to len - 1; id 0 is shared by all words outside of it.

    >>> vocabulary = Vocabulary.count("a rose is a rose".split(), min_count=2)
    >>> len(vocabulary), vocabulary.id("rose"), vocabulary.id("tulip"), vocabulary.word(1)
    (3, 2, 0, 'a')
    """

    def __init__(self, words: Iterable[str]) -> None:
        """Give the words the ids 1, 2, 3, …; no word may come twice."""
        self._words = ["<unknown>", *words]
        self._ids = {word: number for number, word in enumerate(self._words) if number != UNKNOWN}

    @classmethod
    def count(cls, words: Iterable[str], min_count: int = 1) -> Vocabulary:
        """Collect the words that occur at least `min_count` times, the most frequent first, ties in order of spelling.

        With `min_count` 2 or more, rare words of the training data share the unknown word's id and so train it.
        """
        counts = Counter(words)
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls(sorted(kept, key=lambda word: (-counts[word], word)))

    def __len__(self) -> int:
        return len(self._words)

    @property
    def words(self) -> list[str]:
        """List the words with ids 1, 2, 3, …: `Vocabulary(words)` is the same vocabulary."""
        return self._words[1:]

    def id(self, word: str) -> int:
        """The id of a word; `UNKNOWN` if it is not in the vocabulary."""
        return self._ids.get(word, UNKNOWN)

    def word(self, number: int) -> str:
        """The word of an id."""
        return self._words[number]

    def encode(self, tree: Tree[str]) -> Tree[int]:
        """Copy a tree with ids in place of words."""
        return tree.map(self.id)

    def decode(self, tree: Tree[int]) -> Tree[str]:
        """Copy a tree with words in place of ids."""
        return tree.map(self.word)
