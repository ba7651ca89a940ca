"""Lattice-LSTM with a CRF that finds names in a text without spaces, one instance at a time.

Two `LatticeReader`s read in opposite directions, a layer scores the tags of each character from both states, and a
`CRF` tags the text as a whole; these two classes have the equations.

Source: Zhang and Yang 2018, Chinese NER using lattice LSTM (arXiv:1805.02023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.errors import DataError
from autobatch.models.crf import CRF
from autobatch.models.data.dataset import LATTICES, Dataset, load_lattices
from autobatch.models.data.lattice import NAMES, Lattice
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.lattice_reader import LatticeReader
from autobatch.models.metric import count_tagged, describe_tags
from autobatch.models.spec import Counts, ModelSpec


class LatticeLSTMNER(ab.Module):
    """Tables of characters and words, two readers of the lattice, an output layer and a random field.

    Args:
        n_characters: character ids are 0 to n_characters - 1.
        n_words: word ids are 0 to n_words - 1.
        n_tags: C, tags are 0 to C - 1.
        dim: H, width of embeddings and of the states of each direction.
        rng: draws the initial parameters.
    """

    def __init__(self, n_characters: int, n_words: int, n_tags: int, dim: int, rng: np.random.Generator) -> None:
        self.characters = ab.Parameter(0.1 * rng.standard_normal((n_characters, dim)))
        self.words = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.rightward = LatticeReader(self.characters, self.words, dim, rng)
        self.leftward = LatticeReader(self.characters, self.words, dim, rng)
        self.output = ab.Linear(2 * dim, n_tags, rng=rng)
        self.crf = CRF(n_tags, rng)

    @ab.cell
    def tag_scores(self, right: Any, left: Any) -> Any:
        """Score the tags of a character: (C,)."""
        return self.output(ab.concat((right[0], left[0])))

    def scores(self, lattice: Lattice[int]) -> list[Any]:
        """Score the tags of each character on its own: a list of (C,)."""
        n, characters = len(lattice.arcs) - 1, list(lattice.characters())
        ending: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        beginning: list[list[tuple[int, int]]] = [[] for _ in range(n)]  # at each character, counted from the last one
        for end, arcs in enumerate(lattice.arcs):
            for start, word in arcs:
                if start < end - 1:
                    ending[end - 1].append((start, word))
                    beginning[n - 1 - start].append((n - end, word))
        right = self.rightward.states(characters, ending)
        left = self.leftward.states(characters[::-1], beginning)[::-1]
        return [self.tag_scores(*both) for both in zip(right, left, strict=True)]

    def loss(self, lattice: Lattice[int]) -> Any:
        """Compute the negative log-probability of the tags: a scalar."""
        return self.crf.loss(self.scores(lattice), lattice.tags[1:])

    def tags(self, lattice: Lattice[int]) -> list[Any]:
        """Find the most likely tags: a list of ints."""
        return self.crf.best(self.scores(lattice))


def check_characters(dataset: Dataset, rng: np.random.Generator) -> Dataset:
    """Return the data set, after checking that every position of every lattice has exactly one character.

    Raises:
        DataError: a position has no character or several.
    """
    for number, lattice in enumerate(dataset.items, start=1):
        for end, arcs in enumerate(lattice.arcs[1:], start=1):
            n_characters = sum(start == end - 1 for start, _ in arcs)
            if n_characters != 1:
                raise DataError(
                    f"lattice {number} of {dataset.name} must have one character from position {end - 1} to {end} to "
                    f"be read as a text, got {n_characters}."
                )
    return dataset


load_character_lattices = replace(load_lattices, finish=check_characters)


def say_missing_names(vocabularies: Mapping[str, Vocabulary]) -> str:
    """Explain that entity F1 is left out if tags are numbers; "" if they are names."""
    if not all(map(str.isdecimal, vocabularies["tags"].words)):
        return ""
    return (
        f"tags are numbers without names, so entity F1 is left out; name them in a file {NAMES} beside the data, with "
        f"a number and a name per line, such as 4 B-PER."
    )


def count_correct(found: Any, lattices: Sequence[Lattice[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count correct tags, and entities if tags name them, from the results of batched `LatticeLSTMNER.tags`."""
    return count_tagged(found, [lattice.tags[1:] for lattice in lattices], vocabularies["tags"])


SPEC = ModelSpec(
    name="lattice-lstm-ner",
    summary="LSTM of characters with gated words and a CRF, which finds names (Zhang and Yang 2018)",
    model=LatticeLSTMNER,
    generators=("lattice-names", "lattices"),
    reads=LATTICES.reads,
    default_data="lattice-names",
    load=load_character_lattices,
    load_inputs=load_character_lattices.inputs,
    say_missing=say_missing_names,
    count_correct=count_correct,
    predict=describe_tags,
    predictor="tags",
)
