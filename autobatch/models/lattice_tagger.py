"""Lattice-LSTM and lattice-GRU that tag every position of a lattice of characters and words, one instance at a time.

Each arc is a step of an LSTM or a GRU from the state at its start; characters and words have separate cells. In the
lattice-LSTM, the state of a position is the sum over the arcs that end there. Source: after Zhang and Yang 2018,
Chinese NER using lattice LSTM (arXiv:1805.02023), with plain sums instead of their gates between arcs.

In the lattice-GRU, with x the vector of a character or word, h the state at the start of its arc, σ the sigmoid, * the
element-wise product, and W, b, U, d separate for each gate, the state of an arc is

    r = σ(W x + b + U h + d),  z = σ(W x + b + U h + d),  n = tanh(W x + b + r * (U h + d)),  a = (1 - z) * n + z * h

and the state of a position where k arcs end is their mean, (a_1 + ... + a_k) / k. Every element stays between -1 and 1
if it is at position 0. With sums it could double with each word of a long lattice, because z * h passes the state on.
Source: the workload LatticeGRU of Chen et al. 2023, ED-Batch (arXiv:2302.03851), with means as in `TreeGRU`; cells of
Cho et al. 2014 (arXiv:1406.1078) in torch's form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import LATTICES, load_lattices
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_tagged, pick_best, predict_tags, tag_probabilities
from autobatch.models.spec import Counts, ModelSpec


class LatticeTagger(ab.Module):
    """The base of lattice models: combines states over arcs, and tags positions by their states.

    A subclass adds its parameters and the four methods below; a state is a tuple that begins with h (H,).
    """

    output: ab.Linear

    def first_state(self) -> Any:
        """Return the learned state of position 0."""
        raise NotImplementedError

    def read_character(self, state: Any, character: int) -> Any:
        """Return the state after an arc with a character."""
        raise NotImplementedError

    def read_word(self, state: Any, word: int) -> Any:
        """Return the state after an arc with a word."""
        raise NotImplementedError

    def join(self, arcs: list[Any]) -> Any:
        """Combine the states of the arcs that end at a position, at least one, to its state."""
        raise NotImplementedError

    @ab.cell
    def tag_loss(self, state: Any, tag: int) -> Any:
        """Compute the cross-entropy of a position's tag: a scalar."""
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
            states.append(self.join(arcs))
        return states[1:]

    def loss(self, lattice: Lattice[int]) -> Any:
        """Sum the cross-entropies of positions 1 to L - 1: a scalar."""
        losses = [self.tag_loss(state, tag) for state, tag in zip(self.states(lattice), lattice.tags[1:], strict=True)]
        return ab.sum_n(losses, shape=())

    def scores(self, lattice: Lattice[int]) -> Any:
        """Score the tags of positions 1 to L - 1: a list of (C,)."""
        return [self.tag_scores(state) for state in self.states(lattice)]


def count_correct(outputs: Any, lattices: Sequence[Lattice[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count correct and all tags and entities, without the first position of each lattice.

    Args:
        outputs: results of batched `LatticeTagger.scores`: per lattice the logits of its positions.
        lattices: one per output.
        vocabularies: the names of the tags.
    """
    names = vocabularies["tags"]
    return count_tagged(pick_best(outputs, names), [lattice.tags[1:] for lattice in lattices], names)


def describe(name: str, summary: str, model: Callable[..., LatticeTagger]) -> ModelSpec:
    """Make the spec of a model of lattices."""
    return ModelSpec(
        name=name,
        summary=summary,
        model=model,
        generators=tuple(LATTICES.generators),
        reads=LATTICES.reads,
        default_data="lattices",
        load=load_lattices,
        load_inputs=load_lattices.inputs,
        count_correct=count_correct,
        predict=predict_tags,
        probabilities=tag_probabilities,
    )


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
        """Return the learned state of position 0, h (H,) and c (H,)."""
        return self.first_h, self.first_c

    @ab.cell
    def read_character(self, state: Any, character: int) -> Any:
        """Return the state after an arc with a character."""
        return self.character_lstm(ab.lookup(self.characters, character), state)

    @ab.cell
    def read_word(self, state: Any, word: int) -> Any:
        """Return the state after an arc with a word."""
        return self.word_lstm(ab.lookup(self.words, word), state)

    def join(self, arcs: list[Any]) -> Any:
        """Sum the states of the arcs."""
        return ab.sum_n(arcs)


LSTM_SPEC = describe(
    "lattice-lstm",
    "LSTM along the arcs of a lattice of characters and words, tagging positions (after Zhang and Yang 2018)",
    LatticeLSTM,
)


class LatticeGRU(LatticeTagger):
    """Tables and GRU cells for characters and for words, a learned first state, one output layer.

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
        self.character_gru = ab.GRUCell(dim, dim, rng=rng)
        self.word_gru = ab.GRUCell(dim, dim, rng=rng)
        self.first_h = ab.Parameter(0.1 * rng.standard_normal(dim))
        self.output = ab.Linear(dim, n_tags, rng=rng)

    def first_state(self) -> Any:
        """Return the learned state of position 0, h (H,) alone."""
        return (self.first_h,)

    @ab.cell
    def read_character(self, state: Any, character: int) -> Any:
        """Return the state after an arc with a character."""
        return (self.character_gru(ab.lookup(self.characters, character), state[0]),)

    @ab.cell
    def read_word(self, state: Any, word: int) -> Any:
        """Return the state after an arc with a word."""
        return (self.word_gru(ab.lookup(self.words, word), state[0]),)

    def join(self, arcs: list[Any]) -> Any:
        """Average the states of the arcs."""
        return ab.mean_n(arcs)


GRU_SPEC = describe(
    "lattice-gru",
    "GRU along the arcs of a lattice of characters and words, tagging positions (ED-Batch's workload)",
    LatticeGRU,
)
