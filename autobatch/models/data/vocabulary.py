"""The source of a model's vocabularies: the words of its training instances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from autobatch.readers.vocabulary import OUTSIDE, UNKNOWN, Vocabulary

__all__ = ["MIN_COUNT", "OUTSIDE", "UNKNOWN", "Vocabulary", "Words"]

MIN_COUNT = 2  # rarer words of the training data share the unknown word's id, and so train it


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
