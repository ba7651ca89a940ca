"""Recursive networks that classify every node of a binary tree: fully connected, with GRUs, or with matrices.

`TreeFC`: a leaf's state is the embedding of its word; the state of a node with the children's states h_l and h_r is

    h = relu(W [h_l; h_r] + b)

Source: TreeFC, a benchmark of Fegade et al. 2021, Cortex: a compiler for recursive deep learning models
(arXiv:2011.01383), after Looks et al. 2017, Deep learning with dynamic computation graphs (arXiv:1702.02181).

`TreeGRU`: an inner node computes its state h by a GRU from each of its children k, 1 and 2, and their mean:

    r_k = sigmoid(U_r,k h_k + b_r)
    z_k = sigmoid(U_z,k h_k + b_z)
    c_k = tanh(U_c,k (r_k * h_k) + b_c)
    h = 1/2 sum_k (z_k * h_k + (1 - z_k) * c_k)

The children share the biases. A leaf does the same from the embedding of its word, with its own matrices and biases and
without 1/2. Source: the gates of Cho et al. 2014 (arXiv:1406.1078), as in the tree-GRU among the workloads of ED-Batch
(arXiv:2302.03851).

`MVRNN`: a node is a vector, and a matrix that transforms its sibling. A word w has a vector a and a matrix A, a
low-rank matrix plus a diagonal; a node with the children (a, A) and (b, B) has the vector p and the matrix P:

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


class TreeFC(TreeClassifier):
    """One embedding per word, one layer for all inner nodes, and one output layer for all nodes.

    Args:
        n_words: V, word ids are 0 to V - 1.
        dim: H, width of embeddings and states.
        n_classes: C, labels are 0 to C - 1.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, dim: int, n_classes: int, rng: np.random.Generator) -> None:
        self.embedding = ab.Parameter(rng.standard_normal((n_words, dim)))
        self.layer = ab.Linear(2 * dim, dim, rng=rng)
        self.output = ab.Linear(dim, n_classes, rng=rng)

    @ab.cell
    def leaf(self, word: int) -> Any:
        """Look up the state of a word (H,)."""
        return ab.lookup(self.embedding, word)

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        """Combine the states of two children to a state."""
        return ab.relu(self.layer(ab.concat((left, right))))


FC_SPEC = describe(
    "tree-fc", "a fully connected layer over the children of a binary tree's node (Looks et al. 2017)", TreeFC
)


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


GRU_SPEC = describe(
    "tree-gru", "a GRU from each child of a binary tree's node, and their mean (after ED-Batch)", TreeGRU, "brackets"
)


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


MV_SPEC = describe("mv-rnn", "a vector and a matrix per node of a binary tree (Socher et al. 2012)", MVRNN, "reviews")
