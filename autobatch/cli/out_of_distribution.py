"""Warn about out-of-distribution data: many words that were not in the training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from autobatch.models.data.vocabulary import Vocabulary

LARGE = 0.3  # fraction of unknown words; test data of the same kind has fewer
SPELLED = "characters"  # models that read characters can handle unknown words
ANSWERS = ("classes", "labels", "tags", "target_words")  # vocabularies of predictions


class Counting(Vocabulary):
    """A vocabulary that counts lookups, and lookups of unknown words."""

    def __init__(self, known: Vocabulary) -> None:
        super().__init__(known.words, known.closed)
        self.n_asked, self.n_unknown = 0, 0

    def id(self, word: str) -> int:
        number = super().id(word)
        self.n_asked += 1
        self.n_unknown += number < self.first
        return number


def warn_out_of_distribution(data: str, vocabularies: Mapping[str, Vocabulary]) -> None:
    """Warn on standard error if many words of the data are unknown.

    Args:
        data: name of the data.
        vocabularies: vocabularies of training, by name; only `Counting` ones are considered.
    """
    unknown = " and ".join(_unknown_words(vocabularies))
    if unknown:
        click.echo(f"autobatch: {data} differs from the training data: the model does not know {unknown}.", err=True)


def _unknown_words(vocabularies: Mapping[str, Vocabulary]) -> Iterator[str]:
    for name, words in vocabularies.items():
        is_spelled = name == "words" and SPELLED in vocabularies
        if isinstance(words, Counting) and words.n_asked and not is_spelled:
            share = words.n_unknown / words.n_asked
            if share >= LARGE:
                yield f"{share:.0%} of its {name.replace('_', ' ')}"
