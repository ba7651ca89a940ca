"""Tree-LSTMs that classify every node of a tree, one instance at a time: binary, with two types of nodes, or child-sum.

Source: Tai, Socher and Manning 2015, Improved semantic representations from tree-structured long short-term memory
networks (arXiv:1503.00075). `TreeLSTM` is their section 3.2 with N = 2. Leaves have no children and so no forget gates.

In `TwoTypeTreeLSTM`, each inner node uses one of two sets of parameters. The set is drawn at random and is part of the
data, like a grammar rule. Irregularly alternating cells make trees hard to batch. Source: after a workload of ED-Batch
(arXiv:2302.03851).

`ChildSumTreeLSTM` is their section 3.1, for trees with any number of children. A node with the input x, the embedding
of its word, and the children k, each with the state h_k and c_k:

    i, o, u = W [x] + U [sum_k h_k] + b      three gates, of which i and o are sigmoid(.), u is tanh(.)
    f_k = sigmoid(W_f x + U_f h_k + b_f)     one forget gate for each child
    c = i * u + sum_k f_k * c_k
    h = o * tanh(c)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np

import autobatch as ab
from autobatch.models import tree_classifier
from autobatch.models.data.dataset import TREES, Dataset, load_trees
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import label_of, predict_labels, root_probabilities
from autobatch.models.spec import Counts, ModelSpec
from autobatch.models.tree_classifier import (
    LabelledTreeClassifier,
    NodeClassifier,
    TreeClassifier,
    describe,
    describe_labelled,
)


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


@dataclass(frozen=True)
class TwoTypeTree:
    """A tree, and the kind of each inner node in postorder: the index of its set of parameters, 0 or 1."""

    tree: Tree[int]
    kinds: list[int]


def draw_kinds(tree: Tree[int], seed: int) -> list[int]:
    """Draw a kind, 0 or 1 with equal probability, for each inner node.

    The kinds depend only on the seed and the words of the tree, so they are the same wherever the tree occurs.

    >>> tree = Tree.inner(3, Tree.inner(3, Tree.leaf(2, 5), Tree.leaf(2, 6)), Tree.leaf(2, 7))
    >>> [draw_kinds(tree, seed) for seed in range(3)]
    [[1, 0], [0, 0], [1, 1]]
    """
    words = tree.words()
    # A checksum is equal in every process, unlike hash().
    rng = np.random.default_rng([seed, crc32(np.array(words, np.int64).tobytes())])
    kinds: list[int] = rng.integers(2, size=len(words) - 1).tolist()
    return kinds


def draw_all_kinds(dataset: Dataset, rng: np.random.Generator) -> Dataset:
    """Draw the kinds of the inner nodes of all trees."""
    seed = int(rng.spawn(1)[0].integers(2**32))
    train, dev = ([TwoTypeTree(tree, draw_kinds(tree, seed)) for tree in part] for part in (dataset.train, dataset.dev))
    return replace(dataset, train=train, dev=dev)


load_two_type_trees = replace(load_trees, finish=draw_all_kinds)


class TwoTypeTreeLSTM(TreeCells):
    """Binary Tree-LSTM with two sets of gates for inner nodes.

    Args:
        n_words: V, word ids are 0 to V - 1.
        dim: H, width of embeddings and states.
        n_classes: C, labels are 0 to C - 1.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, dim: int, n_classes: int, rng: np.random.Generator) -> None:
        super().__init__(n_words, dim, n_classes, rng)
        self.other_left_gates = ab.Linear(dim, 5 * dim, rng=rng)
        self.other_right_gates = ab.Linear(dim, 5 * dim, rng=rng, bias=False)

    @ab.cell
    def merge_other(self, left: Any, right: Any) -> Any:
        """Combine the states of two children to a state with the second set of gates."""
        (h_l, c_l), (h_r, c_r) = left, right
        return join_cells(self.other_left_gates(h_l) + self.other_right_gates(h_r), c_l, c_r)

    def states(self, instance: TwoTypeTree) -> list[Any]:
        """Compute the states of all nodes, in postorder."""
        kinds = iter(instance.kinds)

        def merge(left: Any, right: Any) -> Any:
            return self.merge_other(left, right) if next(kinds) else self.merge(left, right)

        return [state for _, state in instance.tree.fold(self.leaf, merge)]

    def loss(self, instance: TwoTypeTree) -> Any:
        """Sum the cross-entropies of all nodes: a scalar."""
        nodes = zip(self.states(instance), instance.tree.postorder(), strict=True)
        return ab.sum_n([self.node_loss(state, node.label) for state, node in nodes])

    def scores(self, instance: TwoTypeTree) -> Any:
        """Score the classes at the root (C,), and at every node in postorder: a list of (C,)."""
        scores = [self.node_scores(state) for state in self.states(instance)]
        return scores[-1], scores


def count_correct(outputs: Any, instances: Sequence[TwoTypeTree], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count correct and all classifications, at roots and at all nodes, as for `tree-lstm`."""
    return tree_classifier.count_correct(outputs, [instance.tree for instance in instances], vocabularies)


TWO_TYPE_SPEC = ModelSpec(
    name="tree-lstm-2type",
    summary="tree-lstm whose inner nodes use one of two sets of parameters, drawn at random (after ED-Batch)",
    model=TwoTypeTreeLSTM,
    generators=tuple(TREES.generators),
    reads=TREES.reads,
    default_data="listops",
    load=load_two_type_trees,
    load_inputs=load_two_type_trees.inputs,
    count_correct=count_correct,
    predict=predict_labels,
    label=lambda instance, vocabularies: label_of(instance.tree, vocabularies),
    probabilities=root_probabilities,
)


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


CHILD_SUM_SPEC = describe_labelled(
    "tree-lstm-childsum", "Tree-LSTM for any number of children (Tai, Socher and Manning 2015)", ChildSumTreeLSTM
)
