"""Binary Tree-LSTM that classifies every node of a tree, one instance at a time.

Source: Tai, Socher and Manning 2015, Improved semantic representations from tree-structured long short-term memory
networks (arXiv:1503.00075), section 3.2 with N = 2. Leaves have no children and so no forget gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import TREES, load_trees
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import predict_labels
from autobatch.models.spec import Counts, ModelSpec


class TreeCells(ab.Module):
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
        """Read a word: a state, h (H,) and c (H,)."""
        i, o, u = ab.split(self.leaf_gates(ab.lookup(self.embedding, word)), 3)
        c = ab.sigmoid(i) * ab.tanh(u)
        return ab.sigmoid(o) * ab.tanh(c), c

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        """Join the states of two children: a state."""
        (h_l, c_l), (h_r, c_r) = left, right
        return join_cells(self.left_gates(h_l) + self.right_gates(h_r), c_l, c_r)

    @ab.cell
    def node_loss(self, state: Any, label: int) -> Any:
        """Compare a node with its label: a scalar."""
        h, _ = state
        return ab.cross_entropy(self.output(h), label)

    @ab.cell
    def node_scores(self, state: Any) -> Any:
        """Score the classes of a node: logits (C,)."""
        h, _ = state
        return self.output(h)


class TreeLSTM(TreeCells):
    """Binary Tree-LSTM that classifies every node; arguments are those of `TreeCells`."""

    def loss(self, tree: Tree[int]) -> Any:
        """Sum the cross-entropies of all nodes: a scalar."""
        losses = []

        def visit(t: Tree[int]) -> Any:
            state = self.leaf(t.word) if t.is_leaf else self.merge(visit(t.left), visit(t.right))
            losses.append(self.node_loss(state, t.label))
            return state

        visit(tree)
        return ab.sum_n(losses)

    def scores(self, tree: Tree[int]) -> Any:
        """Score the classes at the root (C,), and at every node in postorder: a list of (C,)."""
        scores = []

        def visit(t: Tree[int]) -> Any:
            state = self.leaf(t.word) if t.is_leaf else self.merge(visit(t.left), visit(t.right))
            scores.append(self.node_scores(state))
            return state

        visit(tree)
        return scores[-1], scores


def join_cells(gates: Any, c_l: Any, c_r: Any) -> Any:
    """Compute a state, h and c, from the pre-activations of five gates (5H,) and the c of two children."""
    i, o, u, f_l, f_r = ab.split(gates, 5)
    c = ab.sigmoid(i) * ab.tanh(u) + ab.sigmoid(f_l) * c_l + ab.sigmoid(f_r) * c_r
    return ab.sigmoid(o) * ab.tanh(c), c


def count_correct(outputs: Any, trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count right and all classifications, at roots and at all nodes.

    Args:
        outputs: of batched `TreeLSTM.scores`: root logits (B, C), and per tree the logits of its nodes.
        trees: the B trees.
        vocabularies: not used; labels are numbers.
    """
    root_logits, node_logits = outputs
    roots = np.argmax(root_logits, axis=1) == [tree.label for tree in trees]
    nodes = [
        np.argmax(logits, axis=1) == [node.label for node in tree.postorder()]
        for logits, tree in zip(node_logits, trees, strict=True)
    ]
    return {
        "root_accuracy": (int(roots.sum()), len(trees)),
        "nodes_accuracy": (sum(int(right.sum()) for right in nodes), sum(len(right) for right in nodes)),
    }


SPEC = ModelSpec(
    name="tree-lstm",
    summary="binary Tree-LSTM with a classification loss at every node (Tai, Socher and Manning 2015)",
    model=TreeLSTM,
    generators=tuple(TREES.generators),
    reads=TREES.reads,
    default_data="listops",
    load=load_trees,
    count_correct=count_correct,
    predict=predict_labels,
)
