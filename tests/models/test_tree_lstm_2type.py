"""Test the Tree-LSTM with two sets of gates: which node uses which, and metrics; test_twins.py compares its twin."""

from __future__ import annotations

import numpy as np
import pytest

import autobatch as ab
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.tree_lstm import TWO_TYPE_SPEC, TwoTypeTree, TwoTypeTreeLSTM, count_correct
from helpers.runs.recorded import types_of_nodes
from helpers.twins.cases import draw_two_type_case


def test_each_inner_node_is_a_call_of_its_kind() -> None:
    """((good film) (long film)), where the left pair has kind 1, and the right pair and the root have kind 0."""
    left, right = (Tree.inner(1, Tree.leaf(0, word), Tree.leaf(0, 2)) for word in (0, 1))
    model = TwoTypeTreeLSTM(n_words=3, dim=2, n_classes=2, rng=np.random.default_rng(0))
    loss = ab.batched(model.loss)
    loss([TwoTypeTree(Tree.inner(1, left, right), [1, 0, 0])])
    inner = [name for name in types_of_nodes(loss) if "merge" in name]
    assert inner == ["merge_other", "merge", "merge"]


@pytest.mark.parametrize("policy", ["unbatched", "depth", "agenda"])
def test_the_kinds_of_one_set_of_parameters_make_no_difference(policy: str) -> None:
    model, instances = draw_two_type_case(0, n_instances=12, dim=6)
    swapped = [TwoTypeTree(instance.tree, [1 - kind for kind in instance.kinds]) for instance in instances]
    loss = ab.batched(model.loss, policy=policy)
    assert np.max(np.abs(loss(instances) - loss(swapped))) > 1e-3
    for name in ("left_gates.weight", "left_gates.bias", "right_gates.weight"):
        model.parameters()[f"other_{name}"].data[:] = model.parameters()[name].data
    np.testing.assert_allclose(loss(instances), loss(swapped), rtol=1e-12)


def test_counting_right_answers() -> None:
    instance = TwoTypeTree(Tree.inner(2, Tree.leaf(0, 5), Tree.leaf(1, 6)), [1])
    sure = np.eye(3)
    right, wrong = sure[[0, 1, 2]], sure[[0, 1, 1]]
    outputs = np.stack([right[-1], wrong[-1]]), [list(right), list(wrong)]
    assert count_correct(outputs, [instance, instance], {}) == {"root_accuracy": (1, 2), "nodes_accuracy": (5, 6)}
    assert TWO_TYPE_SPEC.predict is not None
    names = {"classes": Vocabulary.of_labels(["0", "1", "2"])}
    assert TWO_TYPE_SPEC.predict(outputs, [instance, instance], names)[1] == {"label": 1, "labels": [0, 1, 1]}
