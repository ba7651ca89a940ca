"""Tree-GRU that classifies every node of a binary tree: a GRU from each child, and their mean.

An inner node computes its state h from the states of its children k, 1 and 2:

    r_k = sigmoid(U_r,k h_k + b_r)
    z_k = sigmoid(U_z,k h_k + b_z)
    c_k = tanh(U_c,k (r_k * h_k) + b_c)
    h = 1/2 sum_k (z_k * h_k + (1 - z_k) * c_k)

The children share the biases. A leaf does the same from the embedding of its word, with its own matrices and biases and
without 1/2. Source: the gates of Cho et al. 2014 (arXiv:1406.1078), as in the tree-GRU among the workloads of ED-Batch
(arXiv:2302.03851).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.tree_classifier import TreeClassifier, describe


class TreeGRU(TreeClassifier):
    """One embedding per word, gates for leaves and for each of two children, and one output layer for all nodes.

    Args:
        n_words: V, word ids are 0 to V - 1.
        dim: H, width of embeddings and states.
        n_classes: C, labels are 0 to C - 1.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, dim: int, n_classes: int, rng: np.random.Generator) -> None:
        self.embedding = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.leaf_gates, self.leaf_candidate = ab.Linear(dim, 2 * dim, rng=rng), ab.Linear(dim, dim, rng=rng)
        self.gates = [ab.Linear(dim, 2 * dim, rng=rng, bias=False) for _ in range(2)]
        self.candidates = [ab.Linear(dim, dim, rng=rng, bias=False) for _ in range(2)]
        self.gate_bias, self.candidate_bias = ab.Parameter(np.zeros(2 * dim)), ab.Parameter(np.zeros(dim))
        self.output = ab.Linear(dim, n_classes, rng=rng)

    @ab.cell
    def leaf(self, word: int) -> Any:
        """Compute the state of a word (H,)."""
        x = ab.lookup(self.embedding, word)
        r, z = ab.split(ab.sigmoid(self.leaf_gates(x)), 2)
        return z * x + (1.0 - z) * ab.tanh(self.leaf_candidate(r * x))

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        """Combine the states of two children to a state."""
        return (self.step(left, 0) + self.step(right, 1)) / 2.0

    def step(self, h: Any, k: int) -> Any:
        """Take a GRU step from a child, inside a cell."""
        r, z = ab.split(ab.sigmoid(self.gates[k](h) + self.gate_bias), 2)
        c = ab.tanh(self.candidates[k](r * h) + self.candidate_bias)
        return z * h + (1.0 - z) * c


SPEC = describe(
    "tree-gru", "a GRU from each child of a binary tree's node, and their mean (after ED-Batch)", TreeGRU, "brackets"
)
