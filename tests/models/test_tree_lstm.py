"""Test the Tree-LSTM's scores and metrics; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np
import pytest

import autobatch as ab
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.tree_classifier import count_correct
from autobatch.models.tree_lstm import SPEC
from helpers.twins.cases import draw_trees_case


@pytest.mark.parametrize("policy", ["unbatched", "depth", "agenda"])
def test_the_root_is_the_last_node_scored(policy: str) -> None:
    model, trees = draw_trees_case(0, n_instances=12, dim=6)
    root_logits, node_logits = ab.batched(model.scores, policy=policy)(trees)
    assert [len(logits) for logits in node_logits] == [sum(1 for _ in tree.postorder()) for tree in trees]
    np.testing.assert_array_equal(root_logits, [logits[-1] for logits in node_logits])


def test_counting_right_answers() -> None:
    tree = Tree.inner(2, Tree.leaf(0, 5), Tree.leaf(1, 6))
    sure = np.eye(3)
    right, wrong = sure[[0, 1, 2]], sure[[0, 1, 1]]
    outputs = np.stack([right[-1], wrong[-1]]), [list(right), list(wrong)]
    assert count_correct(outputs, [tree, tree], {}) == {"root_accuracy": (1, 2), "nodes_accuracy": (5, 6)}
    assert SPEC.predict is not None
    names = {"classes": Vocabulary(["0", "7", "NP"], closed=True)}
    assert SPEC.predict(outputs, [tree, tree], names) == [
        {"label": "NP", "labels": [0, 7, "NP"]},
        {"label": 7, "labels": [0, 7, 7]},
    ]
