"""Binary Tree-LSTM in which each inner node joins its children by one of two sets of parameters.

The set is drawn at random and is part of the data, as a grammar's rule would be. Two kinds of cells that alternate
without a pattern make trees hard to batch. Source: the workload after ED-Batch (arXiv:2302.03851); the cells are those
of `autobatch.models.tree_lstm`.
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
from autobatch.models.metric import predict_labels
from autobatch.models.spec import Counts, ModelSpec
from autobatch.models.tree_lstm import TreeCells, join_cells


@dataclass(frozen=True)
class TwoTypeTree:
    """A tree, and for each of its inner nodes, in postorder, the set of parameters that it uses: 0 or 1."""

    tree: Tree[int]
    kinds: list[int]


def draw_kinds(tree: Tree[int], seed: int) -> list[int]:
    """Draw a kind, 0 or 1 with equal chance, for each inner node: a function of the seed and the words of the tree.

    A tree therefore has the same kinds at every place of every file.

    >>> tree = Tree.inner(3, Tree.inner(3, Tree.leaf(2, 5), Tree.leaf(2, 6)), Tree.leaf(2, 7))
    >>> [draw_kinds(tree, seed) for seed in range(3)]
    [[1, 0], [0, 0], [1, 1]]
    """
    words = tree.words()
    rng = np.random.default_rng([seed, crc32(np.array(words, np.int64).tobytes())])
    kinds: list[int] = rng.integers(2, size=len(words) - 1).tolist()
    return kinds


def load_two_type_trees(
    data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None
) -> Dataset:
    """Load trees as for `tree-lstm`, and draw the kinds of their inner nodes; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    seed = int(rng.spawn(1)[0].integers(2**32))
    dataset = load_trees(data, rng, vocabularies)
    train, dev = ([TwoTypeTree(tree, draw_kinds(tree, seed)) for tree in part] for part in (dataset.train, dataset.dev))
    return replace(dataset, train=train, dev=dev)


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
        """Join the states of two children by the second set of gates: a state."""
        (h_l, c_l), (h_r, c_r) = left, right
        return join_cells(self.other_left_gates(h_l) + self.other_right_gates(h_r), c_l, c_r)

    def states(self, instance: TwoTypeTree) -> list[Any]:
        """Compute the states of all nodes, in postorder."""
        states = []
        kinds = iter(instance.kinds)

        def visit(t: Tree[int]) -> Any:
            if t.is_leaf:
                state = self.leaf(t.word)
            else:
                left, right = visit(t.left), visit(t.right)
                state = self.merge_other(left, right) if next(kinds) else self.merge(left, right)
            states.append(state)
            return state

        visit(instance.tree)
        return states

    def loss(self, instance: TwoTypeTree) -> Any:
        """Sum the cross-entropies of all nodes: a scalar."""
        nodes = zip(self.states(instance), instance.tree.postorder(), strict=True)
        return ab.sum_n([self.node_loss(state, node.label) for state, node in nodes])

    def scores(self, instance: TwoTypeTree) -> Any:
        """Score the classes at the root (C,), and at every node in postorder: a list of (C,)."""
        scores = [self.node_scores(state) for state in self.states(instance)]
        return scores[-1], scores


def count_correct(outputs: Any, instances: Sequence[TwoTypeTree], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count right and all classifications, at roots and at all nodes, as for `tree-lstm`."""
    return tree_classifier.count_correct(outputs, [instance.tree for instance in instances], vocabularies)


SPEC = ModelSpec(
    name="tree-lstm-2type",
    summary="tree-lstm whose inner nodes use one of two sets of parameters, drawn at random (after ED-Batch)",
    model=TwoTypeTreeLSTM,
    generators=tuple(TREES.generators),
    reads=TREES.reads,
    default_data="listops",
    load=load_two_type_trees,
    count_correct=count_correct,
    predict=predict_labels,
)
