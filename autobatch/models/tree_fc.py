"""Recursive fully connected network that classifies every node of a binary tree.

A leaf's state is the embedding of its word; the state of a node with the children's states h_l and h_r is

    h = relu(W [h_l; h_r] + b)

Source: TreeFC, a benchmark of Fegade et al. 2021, Cortex: a compiler for recursive deep learning models
(arXiv:2011.01383), after Looks et al. 2017, Deep learning with dynamic computation graphs (arXiv:1702.02181).
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


SPEC = describe(
    "tree-fc", "a fully connected layer over the children of a binary tree's node (Looks et al. 2017)", TreeFC
)
