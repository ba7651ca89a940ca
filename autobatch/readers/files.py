"""The files that a user's own model reads, for `autobatch train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autobatch.keywords import checked
from autobatch.readers.encoding import values
from autobatch.readers.vocabulary import Vocabulary


@checked()
@dataclass(frozen=True)
class Files:
    """The files that a model reads: the attribute `files` of its class, for `autobatch train package.module:Class`.

    The vocabularies are those of the training data, and the constructor of the class is passed their sizes: `n_word`
    for the field `word`.

    Args:
        read: a function from a path to a list of instances, such as `autobatch.readers.read_conllu`.
        words: fields whose strings become ids, with an id for unknown words.
        labels: fields whose strings become ids, without unknown ones.
        min_count: rarer words share the unknown word's id, and so train it.

    >>> import autobatch as ab
    >>> class Tagger(ab.Module):
    ...     files = ab.readers.Files(ab.readers.read_conllu, words=["word"], labels=["upos"])
    ...     def __init__(self, n_word, n_upos, dim, rng):
    ...         self.words = ab.Embedding(n_word, dim, rng=rng)
    """

    read: Callable[[Path], Sequence[Any]]
    words: Sequence[str] = ()
    labels: Sequence[str] = ()
    min_count: int = 2

    def collect(self, instances: Sequence[Any]) -> dict[str, Vocabulary]:
        """Make the vocabularies of training instances, by field."""
        words = {name: Vocabulary.count(values(instances, name), self.min_count) for name in self.words}
        return words | {name: Vocabulary.of_labels(values(instances, name)) for name in self.labels}
