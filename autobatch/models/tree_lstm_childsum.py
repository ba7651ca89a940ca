"""Child-sum Tree-LSTM that classifies nodes of trees with any number of children, one instance at a time.

A node with the input x and the children k, each with the state h_k and c_k:

    i, o, u = W [x] + U [sum_k h_k] + b      three gates, of which i and o are sigmoid(.), u is tanh(.)
    f_k = sigmoid(W_f x + U_f h_k + b_f)     one forget gate for each child
    c = i * u + sum_k f_k * c_k
    h = o * tanh(c)

Source: Tai, Socher and Manning 2015, Improved semantic representations from tree-structured long short-term memory
networks (arXiv:1503.00075), section 3.1. The input of a node is the embedding of its word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.tree_classifier import LabelledTreeClassifier, describe_labelled


class ChildSumTreeLSTM(LabelledTreeClassifier):
    """One embedding per word, gates of an LSTM whose input is the sum of the children, and one output layer.

    Args:
        n_words: V, word ids are 0 to V - 1.
        n_labels: C, labels are 0 to C - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, n_labels: int, dim: int, rng: np.random.Generator) -> None:
        self.embedding = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.gates_x = ab.Linear(dim, 3 * dim, rng=rng)
        self.gates_h = ab.Linear(dim, 3 * dim, rng=rng, bias=False)
        self.forget_x = ab.Linear(dim, dim, rng=rng)
        self.forget_h = ab.Linear(dim, dim, rng=rng, bias=False)
        self.output = ab.Linear(dim, n_labels, rng=rng)

    @ab.cell
    def node(self, word: int, children: Sequence[Any]) -> Any:
        """Compute the state of a node, h (H,) and c (H,), from its word and the states of any number of children."""
        x = ab.lookup(self.embedding, word)
        total = ab.sum_n([h for h, _ in children], shape=x.shape)
        i, o, u = ab.split(self.gates_x(x) + self.gates_h(total), 3)
        x_f = self.forget_x(x)
        kept = ab.sum_n([ab.sigmoid(x_f + self.forget_h(h)) * c for h, c in children], shape=x.shape)
        c = ab.sigmoid(i) * ab.tanh(u) + kept
        return ab.sigmoid(o) * ab.tanh(c), c

    def hidden(self, state: Any) -> Any:
        """Return the vector h (H,) of a state."""
        h, _ = state
        return h


SPEC = describe_labelled(
    "tree-lstm-childsum", "Tree-LSTM for any number of children (Tai, Socher and Manning 2015)", ChildSumTreeLSTM
)
