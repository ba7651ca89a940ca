"""The Tree-LSTM with two sets of gates: which node uses which, and metrics; test_twins.py compares it with its twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch.models.data.tree import Tree
from autobatch.models.tree_lstm_2type import SPEC, TwoTypeTree, TwoTypeTreeLSTM, count_correct, draw_kinds
from twin_cases import draw_two_type_case

TEXTS = ["(3 (2 good) (2 film))", "(1 (2 bad) (1 (2 long) (2 film)))", "(2 film)", "(4 (3 very) (3 good))"]


def test_each_inner_node_is_a_call_of_its_kind() -> None:
    """((good film) (long film)), where the left pair is of kind 1, the right one and the root of kind 0."""
    left, right = (Tree.inner(1, Tree.leaf(0, word), Tree.leaf(0, 2)) for word in (0, 1))
    model = TwoTypeTreeLSTM(n_words=3, dim=2, n_classes=2, rng=np.random.default_rng(0))
    loss = ab.batched(model.loss)
    loss([TwoTypeTree(Tree.inner(1, left, right), [1, 0, 0])])
    assert loss.last is not None
    graph = loss.last.graph
    inner = [graph.type_of(node) for node in range(graph.n_nodes) if "merge" in graph.type_of(node)]
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


def test_kinds_belong_to_seed_and_tree() -> None:
    _, instances = draw_two_type_case(3, n_instances=200, dim=2)
    trees = [instance.tree for instance in instances]
    drawn = {seed: [draw_kinds(tree, seed) for tree in trees] for seed in range(5)}
    assert drawn[3] == [draw_kinds(tree, 3) for tree in trees]
    flat = np.array([[kind for kinds in drawn[seed] for kind in kinds] for seed in drawn])
    share = 1 / np.sqrt(flat.shape[1])  # twice the standard deviation of a share of fair coins
    assert np.all(np.abs(flat.mean(axis=1) - 0.5) < 2 * share)
    assert np.all(np.abs((flat[1:] == flat[0]).mean(axis=1) - 0.5) < 2 * share)


def test_a_tree_has_the_same_kinds_in_whatever_file(tmp_path: Path) -> None:
    def load(texts: list[str], seed: int) -> list[TwoTypeTree]:
        (tmp_path / "trees.txt").write_text("\n".join(texts) + "\n")
        return SPEC.load(str(tmp_path / "trees.txt"), np.random.default_rng(seed), vocabularies).items

    (tmp_path / "trees.txt").write_text("\n".join(TEXTS * 2) + "\n")
    vocabularies = SPEC.load(str(tmp_path / "trees.txt"), np.random.default_rng(0)).vocabularies
    assert load(TEXTS, 7) == load(TEXTS[::-1], 7)[::-1]
    assert any(load(TEXTS, seed) != load(TEXTS, 7) for seed in range(5))
    assert [len(item.kinds) for item in load(TEXTS, 7)] == [1, 2, 0, 1]


def test_counting_right_answers() -> None:
    instance = TwoTypeTree(Tree.inner(2, Tree.leaf(0, 5), Tree.leaf(1, 6)), [1])
    sure = np.eye(3)
    right, wrong = sure[[0, 1, 2]], sure[[0, 1, 1]]
    outputs = np.stack([right[-1], wrong[-1]]), [list(right), list(wrong)]
    assert count_correct(outputs, [instance, instance], {}) == {"root_accuracy": (1, 2), "nodes_accuracy": (5, 6)}
    assert SPEC.predict is not None
    assert SPEC.predict(outputs, [instance, instance], {})[1] == {"label": 1, "labels": [0, 1, 1]}
