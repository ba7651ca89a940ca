"""Lattice-LSTM that tags every position of a lattice of characters and words, one instance at a time.

Each arc is a step of an LSTM from the state at its start; characters and words have separate LSTMs. The state of a
position is the sum over the arcs that end there. Source: after Zhang and Yang 2018, Chinese NER using lattice LSTM
(arXiv:1805.02023), with plain sums instead of their gates between arcs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.lattice_tagger import LatticeTagger, describe


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


SPEC = describe(
    "lattice-lstm",
    "LSTM along the arcs of a lattice of characters and words, tagging positions (after Zhang and Yang 2018)",
    LatticeLSTM,
)
