"""Report data that is unlike the data that a model was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from autobatch.models.data.vocabulary import Vocabulary

LARGE = 0.3  # of the words; test data of the same kind has fewer
SPELLED = "characters"  # models that read these know rare words by them
ANSWERS = ("classes", "labels", "tags", "target_words")  # vocabularies of what models predict


class Counting(Vocabulary):
    """The same vocabulary, which counts the words that it is asked for, and those of them that it does not have."""

    def __init__(self, known: Vocabulary) -> None:
        super().__init__(known.words, known.closed)
        self.n_asked, self.n_unknown = 0, 0

    def id(self, word: str) -> int:
        """The id of a word."""
        number = super().id(word)
        self.n_asked += 1
        self.n_unknown += number < self.first
        return number


def say_strange_data(data: str, vocabularies: Mapping[str, Vocabulary]) -> None:
    """Say in one line on standard error how data differs from that of training, if much of it does.

    Args:
        data: its name.
        vocabularies: those of training; only those that count are looked at.
    """
    unknown = " and ".join(_strange_words(vocabularies))
    if unknown:
        click.echo(f"autobatch: {data} is unlike the training data: the model does not know {unknown}.", err=True)


def _strange_words(vocabularies: Mapping[str, Vocabulary]) -> Iterator[str]:
    for name, words in vocabularies.items():
        is_spelled = name == "words" and SPELLED in vocabularies
        if isinstance(words, Counting) and words.n_asked and not is_spelled:
            share = words.n_unknown / words.n_asked
            if share >= LARGE:
                yield f"{share:.0%} of its {name.replace('_', ' ')}"
