"""The two states of a node in a network that grows trees: of the nodes above it, and of the siblings before it.

With v the vectors of labels, p the parent of a node and s its preceding sibling, the states are

    ancestral:   a = LSTM_a(v_p, a_p),    at the root the state of an LSTM that has read the text
    fraternal:   f = LSTM_f(v_s, f_s),    0 at the first sibling

Decisions at the node read tanh(W [a; f]), with h of both states. `autobatch.models.doubly_recurrent` has the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab


class NodeStates(ab.Module):
    """Embeddings of words and labels, three LSTMs, and a layer that combines two states.

    Args:
        n_words: word ids of texts are 0 to n_words - 1.
        n_labels: C, labels of nodes are 0 to C - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, n_labels: int, dim: int, rng: np.random.Generator) -> None:
        self.words = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.labels = ab.Parameter(0.1 * rng.standard_normal((n_labels, dim)))
        self.encoder = ab.LSTMCell(dim, dim, rng=rng)
        self.ancestral = ab.LSTMCell(dim, dim, rng=rng)
        self.fraternal = ab.LSTMCell(dim, dim, rng=rng)
        self.join = ab.Linear(2 * dim, dim, rng=rng, bias=False)
        self.first = np.zeros(dim), np.zeros(dim)

    @ab.cell
    def read(self, word: int, state: Any) -> Any:
        """Return the state, h (H,) and c (H,), after reading a word of the text."""
        return self.encoder(ab.lookup(self.words, word), state)

    @ab.cell
    def descend(self, label: int, state: Any) -> Any:
        """Return the ancestral state of a node's children, from its label and state."""
        return self.ancestral(ab.lookup(self.labels, label), state)

    @ab.cell
    def pass_on(self, label: int, state: Any) -> Any:
        """Return the fraternal state of a node's next sibling, from its label and state."""
        return self.fraternal(ab.lookup(self.labels, label), state)

    def hidden(self, above: Any, before: Any) -> Any:
        """Combine the ancestral and the fraternal state of a node, inside a cell: (H,)."""
        return ab.tanh(self.join(ab.concat((above[0], before[0]))))

    def encode(self, words: Sequence[int]) -> Any:
        """Read a text; return the ancestral state of the root."""
        state: Any = self.first
        for word in words:
            state = self.read(word, state)
        return state
