"""Binary Tree-LSTM that classifies every node of a tree, one instance at a time.

Source: Tai, Socher and Manning 2015, Improved semantic representations from tree-structured long short-term memory
networks (arXiv:1503.00075), section 3.2 with N = 2. Leaves have no children and so no forget gates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.tree_classifier import NodeClassifier, TreeClassifier, describe


class TreeCells(NodeClassifier):
    """Cells of a binary Tree-LSTM, with one embedding per word and one output layer for all nodes.

    Args:
        n_words: V, word ids are 0 to V - 1.
        dim: H, width of embeddings and states.
        n_classes: C, labels are 0 to C - 1.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, dim: int, n_classes: int, rng: np.random.Generator) -> None:
        self.embedding = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.leaf_gates = ab.Linear(dim, 3 * dim, rng=rng)
        self.left_gates = ab.Linear(dim, 5 * dim, rng=rng)
        self.right_gates = ab.Linear(dim, 5 * dim, rng=rng, bias=False)
        self.output = ab.Linear(dim, n_classes, rng=rng)

    @ab.cell
    def leaf(self, word: int) -> Any:
        """Compute the state of a word, h (H,) and c (H,)."""
        i, o, u = ab.split(self.leaf_gates(ab.lookup(self.embedding, word)), 3)
        c = ab.sigmoid(i) * ab.tanh(u)
        return ab.sigmoid(o) * ab.tanh(c), c

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        """Combine the states of two children to a state."""
        (h_l, c_l), (h_r, c_r) = left, right
        return join_cells(self.left_gates(h_l) + self.right_gates(h_r), c_l, c_r)

    def hidden(self, state: Any) -> Any:
        """Return the vector h (H,) of a state."""
        h, _ = state
        return h


class TreeLSTM(TreeCells, TreeClassifier):
    """Binary Tree-LSTM that classifies every node; arguments are those of `TreeCells`."""


def join_cells(gates: Any, c_l: Any, c_r: Any) -> Any:
    """Compute a state, h and c, from the pre-activations of five gates (5H,) and the c of two children."""
    i, o, u, f_l, f_r = ab.split(gates, 5)
    c = ab.sigmoid(i) * ab.tanh(u) + ab.sigmoid(f_l) * c_l + ab.sigmoid(f_r) * c_r
    return ab.sigmoid(o) * ab.tanh(c), c


SPEC = describe(
    "tree-lstm", "binary Tree-LSTM with a classification loss at every node (Tai, Socher and Manning 2015)", TreeLSTM
)
