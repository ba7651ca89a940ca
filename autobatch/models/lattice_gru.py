"""Lattice-GRU that tags every position of a lattice of characters and words, one instance at a time.

The lattice-LSTM with GRU cells: with x the vector of a character or word, h the state at the start of its arc, σ the
sigmoid, * the element-wise product, and W, b, U, d separate for each gate, the state of an arc is

    r = σ(W x + b + U h + d),  z = σ(W x + b + U h + d),  n = tanh(W x + b + r * (U h + d)),  a = (1 - z) * n + z * h

and the state of a position where k arcs end is their mean, (a_1 + ... + a_k) / k. Every element stays between -1 and 1
if it is at position 0. With sums it could double with each word of a long lattice, because z * h passes the state on.
Source: the workload LatticeGRU of Chen et al. 2023, ED-Batch (arXiv:2302.03851), with means as in `tree_gru`; cells of
Cho et al. 2014 (arXiv:1406.1078) in torch's form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.lattice_tagger import LatticeTagger, describe


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


SPEC = describe(
    "lattice-gru",
    "GRU along the arcs of a lattice of characters and words, tagging positions (ED-Batch's workload)",
    LatticeGRU,
)
