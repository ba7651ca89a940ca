"""The JAX Tree-LSTM that autobatch is compared with computes the same results, and compiles rarely."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.models.data.tree import Tree
from autobatch.models.tree_lstm import TreeLSTM
from baselines.forest import LEFT, NONE, list_nodes

pytest.importorskip("jax", reason="compares with JAX, which the extra jax brings")

from baselines.tree_lstm_jax import JaxTreeLSTM, Padded, round_up
from baselines.ways import GRADIENT_TOLERANCE, LOSS_TOLERANCE, assert_close, jax_ways

N_WORDS, N_CLASSES, LR = 20, 5, 3e-2


def draw(rng: np.random.Generator, n_leaves: int) -> Tree[int]:
    label = int(rng.integers(N_CLASSES))
    if n_leaves == 1:
        return Tree.leaf(label, int(rng.integers(N_WORDS)))
    left = int(rng.integers(1, n_leaves))
    return Tree.inner(label, draw(rng, left), draw(rng, n_leaves - left))


def make(n_trees: int = 24, dim: int = 6) -> tuple[TreeLSTM, list[Tree[int]], JaxTreeLSTM]:
    """Return a model, flat trees, which need little compilation, and the baseline with the same parameters."""
    rng = np.random.default_rng(0)
    ours, baseline = TreeLSTM(N_WORDS, dim, N_CLASSES, rng), JaxTreeLSTM(LR)
    baseline.copy_parameters(ours.state_dict())
    return ours, [draw(rng, int(rng.integers(1, 5))) for _ in range(n_trees)], baseline


def merge(baseline: JaxTreeLSTM, trees: list[Tree[int]]) -> Padded:
    return baseline.merge([baseline.prepare(tree) for tree in trees])


def test_losses_and_gradients_are_autobatchs() -> None:
    """Before and after levels have grown: padding has no effect."""
    ours, trees, baseline = make()
    loss = ab.batched(ours.loss, backend="reference")
    for n_trees in (3, 24, 5):
        losses, found = baseline.answer(merge(baseline, trees[:n_trees]))
        assert_close(losses, loss(trees[:n_trees]), LOSS_TOLERANCE, "losses")
        _, grads = loss.value_and_grad(trees[:n_trees])
        expected = baseline.translate({name: np.asarray(gradient) for name, gradient in grads.items()})
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            assert_close(found[name], gradient, GRADIENT_TOLERANCE, name)


def test_steps_are_those_of_adam() -> None:
    ours, trees, baseline = make()
    loss, optimizer = ab.batched(ours.loss, backend="reference"), ab.optim.Adam(ours, lr=LR)
    minibatch = merge(baseline, trees)
    before = float(np.mean(baseline.losses(minibatch)))
    for _ in range(10):
        optimizer.step(loss.value_and_grad(trees)[1])
        baseline.train(minibatch)
    assert_close(baseline.losses(minibatch), loss(trees), 20 * LOSS_TOLERANCE, "losses")
    assert float(np.mean(baseline.losses(minibatch))) < 0.98 * before


def test_rows_of_a_padded_forest() -> None:
    """Every real row occurs once, and children are rows of the previous level; an extra tree has all the padding."""
    _, trees, baseline = make()
    merge(baseline, trees)
    minibatch = merge(baseline, trees[:7])
    columns = [list_nodes(tree) for tree in trees[:7]]
    assert np.bincount(minibatch.trees)[:7].tolist() == [nodes.shape[1] for nodes in columns]
    widths = np.array(minibatch.widths)
    assert minibatch.labels.shape == minibatch.trees.shape == (widths.sum(),)
    assert minibatch.words.shape == (widths[:, 0].sum(),)
    ends = np.cumsum(2 * widths[:, 1])
    for level in range(1, len(widths)):
        children = minibatch.children[ends[level - 1] : ends[level]]
        assert children.max(initial=0) < widths[level - 1].sum()
    n_inner = sum(int((nodes[LEFT] != NONE).sum()) for nodes in columns)
    assert np.count_nonzero(minibatch.children) <= 2 * n_inner <= minibatch.children.size


def test_nothing_is_compiled_after_the_first_round() -> None:
    """One function computes losses and one steps, for mini-batches of any shape; more threads need both again."""
    _, trees, baseline = make(n_trees=40)
    ways = jax_ways(baseline, trees, 8)
    threads = torch.get_num_threads()
    try:
        for n_threads, n_compiled in ((1, 2), (2, 4)):
            torch.set_num_threads(n_threads)
            for _ in range(2):
                for way in ways.values():
                    assert way.n_minibatches == 5
                    for number in range(5):
                        way.infer(number)
                        way.train(number)
                assert baseline.n_compiled == n_compiled
    finally:
        torch.set_num_threads(threads)


def test_widths_are_round_and_few() -> None:
    assert [round_up(n) for n in (0, 1, 3, 7, 8, 9, 11, 13, 15, 16, 17, 33, 1000)] == [
        0, 1, 3, 7, 8, 10, 12, 14, 16, 16, 20, 40, 1024,
    ]  # fmt: skip
    assert all(n <= round_up(n) <= 1.25 * n for n in range(1, 5000))
    assert len({round_up(n) for n in range(1, 1 << 12)}) == 8 + 4 * 9
