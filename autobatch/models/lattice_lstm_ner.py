"""Lattice-LSTM with a CRF that finds names in a text without spaces, one instance at a time.

Two `LatticeReader`s read in opposite directions, a layer scores the tags of each character from both states, and a
`CRF` tags the text as a whole.

In a reader, an LSTM reads the characters x_j of a text. A possible word w from character b to character e is a cell
that continues from the state at b. At e, a gate i_be weighs it against the other words that end there and against the
character, with weights that sum to one. With [a; b] for concatenation, σ the sigmoid, * the element-wise product, and
separate W, b in each line:

    word:        i, f = σ(W [w; h_b] + b),  u = tanh(W [w; h_b] + b),  c_be = f * c_b + i * u
                 i_be = σ(W [x_e; c_be] + b)
    character:   i, o, f = σ(W [x_j; h_(j-1)] + b),  u = tanh(W [x_j; h_(j-1)] + b),  h_j = o * tanh(c_j)
      where no word ends:   c_j = f * c_(j-1) + i * u
      where words end:      c_j = (exp(i) * u + Σ_b exp(i_bj) * c_bj) / (exp(i) + Σ_b exp(i_bj))

Source: Zhang and Yang 2018, Chinese NER using lattice LSTM (arXiv:1805.02023); section 3.3 for the equations.
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
from autobatch.models.metric import count_tagged, describe_tags
from autobatch.models.spec import Counts, ModelSpec

Words = Sequence[Sequence[tuple[int, int]]]
"""For each character of a text, the words that end there: the index of their first character, and their id."""


class LatticeReader(ab.Module):
    """The gates of characters and words, for one direction; H is the width of embeddings and states."""

    def __init__(self, characters: ab.Parameter, words: ab.Parameter, dim: int, rng: np.random.Generator) -> None:
        self.characters, self.words = characters, words
        self.character_gates = ab.Linear(2 * dim, 4 * dim, rng=rng)
        self.word_gates = ab.Linear(2 * dim, 3 * dim, rng=rng)
        self.weight_gate = ab.Linear(2 * dim, dim, rng=rng)
        self.zeros = np.zeros(dim)

    @ab.cell
    def read_word(self, word: int, state: Any, last: int) -> Any:
        """Read a word from the state at its first character; return c (H,) and the weight (H,) at its last one."""
        h, c = state
        i, f, u = ab.split(self.word_gates(ab.concat((ab.lookup(self.words, word), h))), 3)
        c = ab.sigmoid(f) * c + ab.sigmoid(i) * ab.tanh(u)
        return c, ab.exp(ab.sigmoid(self.weight_gate(ab.concat((ab.lookup(self.characters, last), c)))))

    @ab.cell
    def read_character(self, character: int, state: Any, words: Sequence[Any] | None) -> Any:
        """Read a character where words, each with c and weight, may end; return the next state, h (H,) and c (H,)."""
        h, c = state
        gates = self.character_gates(ab.concat((ab.lookup(self.characters, character), h)))
        i, o, f, u = ab.split(gates, 4)
        if words is None:
            c = ab.sigmoid(f) * c + ab.sigmoid(i) * ab.tanh(u)
        else:
            weight = ab.exp(ab.sigmoid(i))
            total = weight + ab.sum_n([its_weight for _, its_weight in words])
            c = (weight * ab.tanh(u) + ab.sum_n([its_weight * c_word for c_word, its_weight in words])) / total
        return ab.sigmoid(o) * ab.tanh(c), c

    def states(self, characters: Sequence[int], words: Words) -> list[Any]:
        """Compute the state at each character."""
        states: list[Any] = []
        state: Any = (self.zeros, self.zeros)
        for character, ending in zip(characters, words, strict=True):
            found = [self.read_word(word, states[first], character) for first, word in ending]
            state = self.read_character(character, state, found or None)
            states.append(state)
        return states


class LatticeLSTMNER(ab.Module):
    """Tables of characters and words, two readers of the lattice, an output layer and a CRF.

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
                    # Read backwards, character k is number n - 1 - k, and a word ends at its first character `start`
                    # and begins at its last, end - 1.
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
