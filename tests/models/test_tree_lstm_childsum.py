"""Test the child-sum Tree-LSTM's types, labels and metrics; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np

import autobatch as ab
from autobatch.models.data.labelled_tree import LabelledTree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.tree_lstm import CHILD_SUM_SPEC, ChildSumTreeLSTM
from helpers.runs.recorded import types_of_nodes


def make_model() -> ChildSumTreeLSTM:
    return ChildSumTreeLSTM(n_words=3, n_labels=4, dim=5, rng=np.random.default_rng(0)).astype("float64")


def test_nodes_with_any_number_of_children_are_of_one_type() -> None:
    """A root of three nodes, which have 1, 2 and 3 leaves."""
    inner = [LabelledTree(1, [LabelledTree(2) for _ in range(n)]) for n in (1, 2, 3)]
    loss = ab.batched(make_model().loss, policy="depth")
    loss([LabelledTree(0, inner, label=1)])
    assert loss.last is not None
    names = types_of_nodes(loss)
    assert (names.count("node#1"), names.count("node#2")) == (6, 4)
    assert loss.last.batches == 4


def test_children_have_no_order() -> None:
    model = make_model()
    children = [LabelledTree(0), LabelledTree(1, [LabelledTree(2)]), LabelledTree(2)]
    one, other = (LabelledTree(1, order, label=2) for order in (children, children[::-1]))
    losses = ab.batched(model.loss)([one, other, LabelledTree(1, children[:2], label=2)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-14)
    assert abs(losses[2] - losses[0]) > 1e-6


def test_nodes_without_labels_are_not_asked() -> None:
    model, silent = make_model(), LabelledTree(0, [LabelledTree(1)])
    assert ab.batched(model.loss)([silent, LabelledTree(0, [LabelledTree(1, label=2)])])[0] == 0.0
    sure = np.eye(4)
    trees = [LabelledTree(0, [LabelledTree(1), LabelledTree(1, label=2)], label=3), silent]
    outputs = [[sure[1], sure[1], sure[3]], [sure[0], sure[1]]]
    assert CHILD_SUM_SPEC.count_correct is not None
    assert CHILD_SUM_SPEC.predict is not None
    names = {"labels": Vocabulary(["a", "b", "c"])}
    assert CHILD_SUM_SPEC.count_correct(outputs, trees, names) == {"root_accuracy": (1, 1), "nodes_accuracy": (1, 2)}
    assert CHILD_SUM_SPEC.predict(outputs, trees, names) == [
        {"label": "c", "labels": ["a", "a", "c"]},
        {"label": "a", "labels": ["a", "a"]},
    ]
