"""Copies and pickles of batched functions and their recordings either work, or the error says what to do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import GraphError
from autobatch.models.data.listops import N_CLASSES, draw_trees
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.tree_lstm import TreeLSTM
from helpers.runs.recorded import module_of
from helpers.runs.ways import each

CLONES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda loss: pickle.loads(pickle.dumps(loss)),
}


@pytest.fixture
def trees() -> list[Any]:
    drawn = draw_trees(6, np.random.default_rng(0), max_depth=2)
    vocabulary = Vocabulary.count(word for tree in drawn for word in tree.words())
    return [vocabulary.encode(tree) for tree in drawn]


def make_loss(trees: list[Any], backend: str) -> Any:
    n_words = 1 + max(word for tree in trees for word in tree.words())
    model = TreeLSTM(n_words, 4, N_CLASSES, np.random.default_rng(1))
    return ab.batched(model.loss, policy="score+both", backend=backend, seed=3, max_bytes=10**6, plan_cache=5)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("clone", CLONES)
def test_a_copy_of_a_used_function_goes_on_by_itself(trees: list[Any], backend: str, clone: str) -> None:
    """Both start with equal parameters, settings and steps; training one does not change the other."""
    loss = make_loss(trees, backend)
    loss.value_and_grad(loss.record_all(trees))
    twin = CLONES[clone](loss)
    assert (twin.step, twin.seed, twin.max_bytes, twin.policy.name) == (1, 3, 10**6, "score+both")
    assert twin.backend.name == backend
    assert twin.backend is not loss.backend
    before = loss(trees)
    assert np.array_equal(twin(trees), before)
    model = module_of(twin)
    _, grads = twin.value_and_grad(twin.record_all(trees))
    ab.optim.Adam(model, lr=0.1).step(grads)
    assert np.array_equal(loss(trees), before)
    assert np.abs(twin(trees) - before).max() > 1e-3


def test_a_copy_has_recorded_nothing(trees: list[Any]) -> None:
    loss = make_loss(trees, "reference")
    graphs = loss.record_all(trees)
    twin = copy.deepcopy(loss)
    for recorded in (False, True):
        if recorded:
            twin.record_all(trees)
        with pytest.raises(GraphError, match="graph 0 was recorded by another batched function"):
            twin(graphs)


def test_a_shallow_copy_runs_the_same_model_and_graphs(trees: list[Any]) -> None:
    loss = make_loss(trees, "reference")
    graphs = loss.record_all(trees)
    expected = loss(graphs)
    twin = copy.copy(loss)
    twin.policy = ab.policies.get("unbatched")
    assert np.allclose(twin(graphs), expected, rtol=1e-5)
    assert (twin.last.batches, loss.policy.name) == (twin.last.nodes, "score+both")


def test_copies_of_graphs_are_of_the_same_function(trees: list[Any]) -> None:
    loss = make_loss(trees, "reference")
    graphs = loss.record_all(trees)
    copies = copy.deepcopy(graphs)
    assert copies[0].words is not graphs[0].words
    assert np.array_equal(loss([*copies[:3], *graphs[3:]]), loss(graphs))


# Policies are copied with or without what they have learned.


def make_with(policy: Any, trees: list[Any]) -> Any:
    n_words = 1 + max(word for tree in trees for word in tree.words())
    return ab.batched(TreeLSTM(n_words, 4, N_CLASSES, np.random.default_rng(1)).loss, policy=policy)


@pytest.mark.slow
@each("clone", CLONES)
@each("policy", ["auto", *ab.policies.names()])
def test_a_used_function_of_any_policy_is_copied(trees: list[Any], policy: str, clone: str) -> None:
    loss = make_with(policy, trees)
    for n in range(1, 4):
        loss.value_and_grad(loss.record_all(trees[:n]))
        loss(trees[n:])
    twin = CLONES[clone](loss)
    assert np.array_equal(twin(trees), loss(trees))
    assert twin.last.batches == loss.last.batches


@pytest.mark.parametrize("clone", CLONES)
@pytest.mark.parametrize("online", [False, True])
def test_a_function_with_a_learned_policy_is_copied(trees: list[Any], clone: str, online: bool) -> None:
    """A copied policy continues learning if the original does."""
    loss = make_with("agenda", trees)
    loss.learn_policy([trees[:2]], online=online, episodes=3)
    loss(trees)
    twin = CLONES[clone](loss)
    assert twin.policy is not loss.policy
    assert np.array_equal(twin(trees), loss(trees))
    assert twin.last.batches == loss.last.batches
    assert (twin.policy.learner is not None) == online


# Cells.


class Energy(ab.Module):
    def __init__(self) -> None:
        self.weight = ab.Parameter(np.eye(3))

    @ab.cell
    def energy(self, x: Any) -> Any:
        return ab.sum(ab.tanh(self.weight @ x))


@ab.cell
def square(x: Any) -> Any:
    return ab.sum(x * x)


@each("backend", ["reference", "cpu"])
@each("clone", [*CLONES, "copy"])
@each("n", [1, 64])
def test_a_batched_function_may_be_a_cell_itself(backend: str, clone: str, n: int) -> None:
    model, inputs = Energy(), [np.full(3, float(k)) for k in range(n)]
    for cell in (model.energy, square):
        loss = ab.batched(cell, backend=backend)
        expected = [cell(x) for x in inputs]
        np.testing.assert_allclose(loss(inputs), expected, rtol=1e-6)
        value, grads = loss.value_and_grad(inputs)
        np.testing.assert_allclose(value, np.mean(expected), rtol=1e-5)
        twin = {**CLONES, "copy": copy.copy}[clone](loss)
        np.testing.assert_allclose(twin(inputs), expected, rtol=1e-6)
        if cell is not square:
            assert grads["weight"].shape == (3, 3)
            assert (module_of(twin) is model) == (clone == "copy")


def test_copies_and_pickles_of_a_cell_are_the_cell() -> None:
    for cell in (square, Energy.energy):
        assert copy.deepcopy(cell) is pickle.loads(pickle.dumps(cell)) is cell
    model = Energy()
    twin = copy.deepcopy(model.energy)
    assert twin.__self__ is not model  # type: ignore[attr-defined]
    assert float(twin(np.ones(3))) == float(model.energy(np.ones(3)))
