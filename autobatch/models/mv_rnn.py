"""MV-RNN that classifies every node of a binary tree: a node is a vector, and a matrix that transforms its sibling.

A word w has a vector a and a matrix A, a low-rank matrix plus a diagonal; a node with the children (a, A) and (b, B)
has the vector p and the matrix P:

    A = U_w V_w + diag(d_w)
    p = tanh(W [B a; A b] + g)
    P = W_M [A; B]

Source: Socher, Huval, Manning and Ng 2012, Semantic compositionality through recursive matrix-vector spaces (EMNLP),
section 2; the initial values are theirs: matrices of words are near the identity, a node is near its children's mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.tree_classifier import TreeClassifier, describe

NOISE = 0.01  # standard deviation of the noise added to identity matrices


class MVRNN(TreeClassifier):
    """Vectors and matrices of words, layers that combine two of each, and one output layer for all nodes.

    Args:
        n_words: V, word ids are 0 to V - 1.
        dim: H, vectors are (H,) and matrices (H, H).
        n_classes: C, labels are 0 to C - 1.
        rng: draws the initial parameters.
        rank: R, rank of a word's matrix without its diagonal.
    """

    def __init__(self, n_words: int, dim: int, n_classes: int, rng: np.random.Generator, rank: int = 3) -> None:
        def near(array: Any) -> ab.Parameter:
            return ab.Parameter(array + NOISE * rng.standard_normal(np.shape(array)))

        self.vectors = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.lefts = ab.Parameter(0.1 * rng.standard_normal((n_words, dim, rank)))
        self.rights = ab.Parameter(0.1 * rng.standard_normal((n_words, rank, dim)))
        self.diagonals = near(np.ones((n_words, dim)))
        halves = np.hstack([np.eye(dim), np.eye(dim)]) / 2
        self.join_vectors, self.join_matrices = near(halves), near(halves)
        self.bias = ab.Parameter(np.zeros(dim))
        self.identity = np.eye(dim)
        self.output = ab.Linear(dim, n_classes, rng=rng)

    @ab.cell
    def leaf(self, word: int) -> Any:
        """Look up the state of a word: its vector (H,) and its matrix (H, H)."""
        low_rank = ab.lookup(self.lefts, word) @ ab.lookup(self.rights, word)
        return ab.lookup(self.vectors, word), low_rank + ab.lookup(self.diagonals, word) * self.identity

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        """Apply the matrix of each child to the vector of the other, and combine both to a state."""
        (a, A), (b, B) = left, right
        vector = ab.tanh(self.join_vectors @ ab.concat((B @ a, A @ b)) + self.bias)
        return vector, self.join_matrices @ ab.concat((A, B), axis=0)

    def hidden(self, state: Any) -> Any:
        """Return the vector (H,) of a state."""
        vector, _ = state
        return vector


SPEC = describe("mv-rnn", "a vector and a matrix per node of a binary tree (Socher et al. 2012)", MVRNN, "reviews")
