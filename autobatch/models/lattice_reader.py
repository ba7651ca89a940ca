"""One direction of a lattice-LSTM, with gates between the characters of a text and its possible words.

An LSTM reads the characters x_j of a text. A possible word w from character b to character e is a cell that continues
from the state at b. At e, a gate i_be weighs it against the other words that end there and against the character, with
weights that sum to one. With [a; b] for concatenation, σ the sigmoid, * the element-wise product, and separate W, b in
each line:

    word:        i, f = σ(W [w; h_b] + b),  u = tanh(W [w; h_b] + b),  c_be = f * c_b + i * u
                 i_be = σ(W [x_e; c_be] + b)
    character:   i, o, f = σ(W [x_j; h_(j-1)] + b),  u = tanh(W [x_j; h_(j-1)] + b),  h_j = o * tanh(c_j)
      where no word ends:   c_j = f * c_(j-1) + i * u
      where words end:      c_j = (exp(i) * u + Σ_b exp(i_bj) * c_bj) / (exp(i) + Σ_b exp(i_bj))

Source: Zhang and Yang 2018, Chinese NER using lattice LSTM (arXiv:1805.02023), section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab

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
