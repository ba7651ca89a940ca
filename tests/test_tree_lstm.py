"""The Tree-LSTM: batched against eager, against its PyTorch twin, and learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.models.data.listops import N_CLASSES, draw_trees
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.tree_lstm import SPEC, TreeLSTM, count_correct
from twins.tree_lstm import TreeLSTMTwin

POLICIES = ("unbatched", "depth", "agenda")
SEEDS = range(3)
TO_EAGER = 1e-10
TO_TWIN = 1e-9


def draw_workload(seed: int, n_trees: int = 12, dim: int = 6) -> tuple[TreeLSTM, list[Tree[int]]]:
    """Draw a model in float64, and trees of different sizes, one of them a single leaf."""
    rng = np.random.default_rng(seed)
    drawn = [Tree.leaf(3, "3"), *draw_trees(n_trees - 1, rng, max_depth=3)]
    vocabulary = Vocabulary.count(word for tree in drawn for word in tree.words())
    model = TreeLSTM(len(vocabulary), dim, N_CLASSES, rng)
    return model.astype("float64"), [vocabulary.encode(tree) for tree in drawn]


def relative(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected number."""
    expected = np.asarray(expected)
    return float(np.max(np.abs(np.asarray(found) - expected)) / np.max(np.abs(expected)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_batched_losses_are_the_eager_ones(policy: str, seed: int) -> None:
    model, trees = draw_workload(seed)
    loss = ab.batched(model.loss, policy=policy)
    expected = [float(model.loss(tree)) for tree in trees]
    assert relative(loss(trees), expected) < TO_EAGER
    assert relative(loss(loss.record_all(trees)), expected) < TO_EAGER


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_losses_and_gradients_are_the_twins(policy: str, seed: int) -> None:
    model, trees = draw_workload(seed)
    twin = TreeLSTMTwin.with_state(model.state_dict())
    twin_losses = torch.stack([twin.loss(tree) for tree in trees])
    twin_losses.mean().backward()  # type: ignore[no-untyped-call]

    loss = ab.batched(model.loss, policy=policy)
    value, grads = loss.value_and_grad(trees)
    assert relative(loss(trees), twin_losses.detach()) < TO_TWIN
    assert relative(value, twin_losses.detach().mean()) < TO_TWIN
    expected = {name: parameter.grad for name, parameter in twin.named_parameters()}
    assert grads.keys() == expected.keys()
    for name, gradient in expected.items():
        assert relative(grads[name], gradient) < TO_TWIN, name


@pytest.mark.parametrize("policy", POLICIES)
def test_scores_are_the_twins(policy: str) -> None:
    model, trees = draw_workload(seed=0)
    twin = TreeLSTMTwin.with_state(model.state_dict())
    root_logits, node_logits = ab.batched(model.scores, policy=policy)(trees)
    with torch.no_grad():
        expected = [twin.scores(tree).numpy() for tree in trees]
    assert relative(root_logits, [logits[-1] for logits in expected]) < TO_TWIN
    for found, logits in zip(node_logits, expected, strict=True):
        assert relative(found, logits) < TO_TWIN


def test_counting_right_answers() -> None:
    tree = Tree.inner(2, Tree.leaf(0, 5), Tree.leaf(1, 6))
    sure = np.eye(3)
    right, wrong = sure[[0, 1, 2]], sure[[0, 1, 1]]
    outputs = np.stack([right[-1], wrong[-1]]), [list(right), list(wrong)]
    assert count_correct(outputs, [tree, tree], {}) == {"root_accuracy": (1, 2), "nodes_accuracy": (5, 6)}
    assert SPEC.predict is not None
    assert SPEC.predict(outputs, [tree, tree], {}) == [
        {"label": 2, "labels": [0, 1, 2]},
        {"label": 1, "labels": [0, 1, 1]},
    ]


def test_a_few_steps_lower_the_loss() -> None:
    model, trees = draw_workload(seed=1, n_trees=32, dim=16)
    loss = ab.batched(model.loss)
    optimizer = ab.optim.Adam(model, lr=3e-2)
    graphs = loss.record_all(trees)
    before = loss(graphs).mean()
    for _ in range(30):
        _, grads = loss.value_and_grad(graphs)
        optimizer.step(grads)
    assert loss(graphs).mean() < 0.5 * before
