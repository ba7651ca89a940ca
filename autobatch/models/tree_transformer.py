"""Tree Transformer that classifies nodes of trees with any number of children, one instance at a time.

A node is a Transformer block that attends from its word to the word and the states of its children. With the word's
embedding x, members m_0 = x and m_k = h_k of the children k, and heads a, each with its own matrices Q, K and V:

    w_k = softmax over k of (Q x) . (K m_k) / sqrt(d)
    y = norm(x + O [sum_k w_k V m_k of all heads])
    h = norm(y + W_2 relu(W_1 y + b_1) + b_2)

Information passes from children to parents by attention alone, without padding. Source: after Ahmed, Samee and Mercer
2019, You only need attention to traverse trees (ACL), where parents attend to dependents; there, all members attend to
all others and are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.tree_classifier import LabelledTreeClassifier, describe_labelled


class TreeTransformer(LabelledTreeClassifier):
    """One embedding per word, one block for all nodes, and one output layer.

    Args:
        n_words: V, word ids are 0 to V - 1.
        n_labels: C, labels are 0 to C - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
        n_heads: A, of which each has d = ceil(H / A) elements.
    """

    def __init__(self, n_words: int, n_labels: int, dim: int, rng: np.random.Generator, n_heads: int = 4) -> None:
        self.embedding = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.n_heads, self.head_dim = n_heads, ceil(dim / n_heads)
        width = n_heads * self.head_dim
        self.query = ab.Linear(dim, width, rng=rng)
        self.key = ab.Linear(dim, width, rng=rng, bias=False)
        self.value = ab.Linear(dim, width, rng=rng)
        self.attended = ab.Linear(width, dim, rng=rng)
        self.widen, self.narrow = ab.Linear(dim, 4 * dim, rng=rng), ab.Linear(4 * dim, dim, rng=rng)
        self.norm_attended, self.norm = ab.LayerNorm(dim), ab.LayerNorm(dim)
        self.output = ab.Linear(dim, n_labels, rng=rng)

    @ab.cell
    def read(self, word: int) -> Any:
        """Look up the embedding of a word (H,)."""
        return ab.lookup(self.embedding, word)

    @ab.cell
    def block(self, x: Any, members: Sequence[Any]) -> Any:
        """Attend from a word to members, which include it; return a state (H,)."""
        queries = ab.split(self.query(x), self.n_heads)
        keys = [ab.split(self.key(member), self.n_heads) for member in members]
        values = [ab.split(self.value(member), self.n_heads) for member in members]
        heads = [
            ab.attend(query, [key[a] for key in keys], [value[a] for value in values], scale=1 / sqrt(self.head_dim))
            for a, query in enumerate(queries)
        ]
        y = self.norm_attended(x + self.attended(ab.concat(heads)))
        return self.norm(y + self.narrow(ab.relu(self.widen(y))))

    def node(self, word: int, children: Sequence[Any]) -> Any:
        """Compute the state of a node with a word and the states of its children."""
        x = self.read(word)
        return self.block(x, [x, *children])


SPEC = describe_labelled(
    "tree-transformer",
    "each node of a tree attends to its children (after Ahmed, Samee and Mercer 2019)",
    TreeTransformer,
)
