"""Lattice-LSTM that tags every position of a lattice of characters and words, one instance at a time.

Each arc is a step of an LSTM from the state at its start; characters and words have separate LSTMs. The state of a
position is the sum over the arcs that end there. Source: after Zhang and Yang 2018, Chinese NER using lattice LSTM
(arXiv:1805.02023), with plain sums instead of their gates between arcs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import LATTICES, load_lattices
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_tags, pick_best, predict_tags
from autobatch.models.spec import Counts, ModelSpec


class LatticeTagger(ab.Module):
    """What lattice models of any cell share: sums of states over arcs, and tags of states.

    A model adds its parameters and the three methods below; a state is a tuple, the first of which is h (H,).
    """

    output: ab.Linear

    def first_state(self) -> Any:
        """Give the learned state of position 0."""
        raise NotImplementedError

    def read_character(self, state: Any, character: int) -> Any:
        """Follow an arc with a character: a state."""
        raise NotImplementedError

    def read_word(self, state: Any, word: int) -> Any:
        """Follow an arc with a word: a state."""
        raise NotImplementedError

    @ab.cell
    def tag_loss(self, state: Any, tag: int) -> Any:
        """Compare a position with its tag: a scalar."""
        return ab.cross_entropy(self.output(state[0]), tag)

    @ab.cell
    def tag_scores(self, state: Any) -> Any:
        """Score the tags of a position: logits (C,)."""
        return self.output(state[0])

    def states(self, lattice: Lattice[int]) -> list[Any]:
        """Compute the states of positions 1 to L - 1."""
        states = [self.first_state()]
        for end in range(1, len(lattice.arcs)):
            arcs = [
                self.read_character(states[start], word) if start == end - 1 else self.read_word(states[start], word)
                for start, word in lattice.arcs[end]
            ]
            states.append(ab.sum_n(arcs))
        return states[1:]

    def loss(self, lattice: Lattice[int]) -> Any:
        """Sum the cross-entropies of positions 1 to L - 1: a scalar."""
        losses = [self.tag_loss(state, tag) for state, tag in zip(self.states(lattice), lattice.tags[1:], strict=True)]
        return ab.sum_n(losses, shape=())

    def scores(self, lattice: Lattice[int]) -> Any:
        """Score the tags of positions 1 to L - 1: a list of (C,)."""
        return [self.tag_scores(state) for state in self.states(lattice)]


class LatticeLSTM(LatticeTagger):
    """Tables and LSTM cells for characters and for words, a learned first state, one output layer.

    Args:
        n_characters: character ids are 0 to n_characters - 1.
        n_words: word ids are 0 to n_words - 1.
        n_tags: C, tags are 0 to C - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_characters: int, n_words: int, n_tags: int, dim: int, rng: np.random.Generator) -> None:
        self.characters = ab.Parameter(0.1 * rng.standard_normal((n_characters, dim)))
        self.words = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.character_lstm = ab.LSTMCell(dim, dim, rng=rng)
        self.word_lstm = ab.LSTMCell(dim, dim, rng=rng)
        self.first_h = ab.Parameter(0.1 * rng.standard_normal(dim))
        self.first_c = ab.Parameter(0.1 * rng.standard_normal(dim))
        self.output = ab.Linear(dim, n_tags, rng=rng)

    def first_state(self) -> Any:
        """Give the learned state of position 0, h (H,) and c (H,)."""
        return self.first_h, self.first_c

    @ab.cell
    def read_character(self, state: Any, character: int) -> Any:
        """Follow an arc with a character: a state."""
        return self.character_lstm(ab.lookup(self.characters, character), state)

    @ab.cell
    def read_word(self, state: Any, word: int) -> Any:
        """Follow an arc with a word: a state."""
        return self.word_lstm(ab.lookup(self.words, word), state)


def count_correct(outputs: Any, lattices: Sequence[Lattice[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count right and all tags, the first position of each lattice left out.

    Tags have no names in the files, so entities cannot be counted.

    Args:
        outputs: of batched `LatticeTagger.scores`: per lattice the logits of its positions.
        lattices: one per output.
        vocabularies: the names of the tags.
    """
    return {"tag_accuracy": count_tags(pick_best(outputs), [lattice.tags[1:] for lattice in lattices])}


SPEC = ModelSpec(
    name="lattice-lstm",
    summary="LSTM along the arcs of a lattice of characters and words, tagging positions (after Zhang and Yang 2018)",
    model=LatticeLSTM,
    generators=tuple(LATTICES.generators),
    reads=LATTICES.reads,
    default_data="lattices",
    load=load_lattices,
    count_correct=count_correct,
    predict=predict_tags,
)
