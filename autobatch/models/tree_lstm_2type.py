"""Binary Tree-LSTM in which each inner node uses one of two sets of parameters.

The set is drawn at random and is part of the data, like a grammar rule. Irregularly alternating cells make trees hard
to batch. Source: after a workload of ED-Batch (arXiv:2302.03851); cells of `autobatch.models.tree_lstm`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models import tree_classifier
from autobatch.models.data.dataset import TREES
from autobatch.models.data.two_type_tree import TwoTypeTree, load_two_type_trees
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import label_of, predict_labels, root_probabilities
from autobatch.models.spec import Counts, ModelSpec
from autobatch.models.tree_lstm import TreeCells, join_cells


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


SPEC = ModelSpec(
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
