"""The files that a user's own model reads, for `autobatch train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autobatch.arguments import check_int, refusal
from autobatch.keywords import checked
from autobatch.readers.vocabulary import Vocabulary, values


@checked()
@dataclass(frozen=True)
class Files:
    """The files that a model reads: the attribute `files` of its class, for `autobatch train package.module:Class`.

    The constructor of the class is passed the sizes of the vocabularies: `n_word` for the field `word`. Vocabularies of
    words are built from the training data. So are those of labels, unless development data is held out from a file:
    then they contain the labels of the whole file.

    Args:
        read: a function from a path to a list of instances, such as `autobatch.readers.read_conllu`.
        words: fields whose strings become ids, with an id for unknown words.
        labels: fields whose strings become ids, without an id for unknown ones.
        min_count: rarer words share the unknown word's id, and so train it.

    Raises:
        DataError: a field is in both `words` and `labels`, or `min_count` is less than 1.

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

    def __post_init__(self) -> None:
        check_int("min_count of Files", self.min_count, at_least=1)
        if both := {*self.words} & {*self.labels}:
            raise refusal("labels of Files", "other fields than words", sorted(both))

    def collect(self, train: Sequence[Any], read: Sequence[Any]) -> dict[str, Vocabulary]:
        """Return the vocabularies by field: of words in `train`, and of labels in all instances `read` from the data.

        Raises:
            DataError: no instance has a field.
        """
        words = {name: Vocabulary.count(values(train, name), self.min_count) for name in self.words}
        return words | {name: Vocabulary.of_labels(values(read, name)) for name in self.labels}
