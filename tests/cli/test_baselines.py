"""The PyTorch models that autobatch is compared with compute the same results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.tree import Tree
from baselines import kept, tree_lstm_expert
from baselines.baseline import Baseline
from baselines.forest import list_nodes, merge_trees
from baselines.lattice import KINDS, list_arcs, merge_lattices
from baselines.ways import BASELINES
from helpers.twins.cases import draw_lattices_case, draw_sentences_case, draw_trees_case

DRAWS: dict[str, Callable[..., tuple[Any, list[Any]]]] = {
    "tree-lstm": draw_trees_case,
    "bilstm-tagger": partial(draw_sentences_case, n_layers=1),
    "lattice-lstm": draw_lattices_case,
}
SIZES = {
    "tree-lstm": {"n_words": "embedding", "n_classes": "output.bias"},
    "bilstm-tagger": {"n_words": "embedding", "n_tags": "output.bias"},
    "lattice-lstm": {"n_characters": "characters", "n_words": "words", "n_tags": "output.bias"},
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}

every_baseline = pytest.mark.parametrize(("model", "name"), [(m, name) for m in BASELINES for name in BASELINES[m]])


def make(model: str, name: str, dim: int, dtype: torch.dtype) -> tuple[Any, list[Any], Baseline]:
    """Draw a model and instances, and build its baseline from its parameters."""
    ours, instances = DRAWS[model](0, 12, dim)
    state = ours.state_dict()
    sizes = {size: len(state[parameter]) for size, parameter in SIZES[model].items()}
    baseline = BASELINES[model][name](dim=dim, **sizes).to(dtype)
    baseline.copy_parameters(state)
    return ours, instances, baseline


def apart(found: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest expected number."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))


@pytest.mark.cases(6)
@every_baseline
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_losses_and_gradients_are_autobatchs(
    model: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "LARGE", 0)  # oneDNN, which supports only float32, multiplies these too
    monkeypatch.setattr(tree_lstm_expert.ExpertTreeLSTM, "block", 300)
    monkeypatch.setattr(kept, "PART", 20)
    ours, instances, baseline = make(model, name, 6, dtype)
    loss = ab.batched(ours.loss, backend="reference")
    prepared = [baseline.prepare(instance) for instance in instances]
    other, minibatch = baseline.merge(prepared[:5]), baseline.merge(prepared)
    expected = loss(instances)
    with torch.inference_mode():
        assert apart(baseline.losses(minibatch), expected) < TOLERANCE[dtype]
    baseline.backward(other)  # overwrites its gradients and buffers
    baseline.backward(minibatch)
    _, grads = loss.value_and_grad(instances)
    here = baseline.translate({gradient: np.asarray(array) for gradient, array in grads.items()})
    found = dict(baseline.named_parameters())
    assert here.keys() == found.keys()
    for parameter, gradient in here.items():
        assert apart(found[parameter].grad, gradient) < TOLERANCE[dtype], parameter


@pytest.mark.slow
@every_baseline
def test_a_few_steps_lower_the_loss(model: str, name: str) -> None:
    _, instances, baseline = make(model, name, 8, torch.float64)
    minibatch = baseline.merge([baseline.prepare(instance) for instance in instances])
    optimizer = torch.optim.Adam(baseline.parameters(), lr=3e-2, fused=True)
    before = baseline.losses(minibatch).mean().item()
    for _ in range(20):
        baseline.backward(minibatch)
        optimizer.step()
    assert baseline.losses(minibatch).mean().item() < 0.7 * before


@pytest.mark.parametrize("by_depth", [False, True])
def test_levels_of_two_trees(by_depth: bool) -> None:
    r"""Rows of the trees below; by height, their lower inner nodes share a level, below the left tree's root.

            /\
           /\ 2        7 8
          0  1          \/
    """
    leaf, inner = Tree.leaf, Tree.inner
    trees: list[Tree[int]] = [
        inner(14, inner(13, leaf(10, 0), leaf(11, 1)), leaf(12, 2)),
        inner(19, leaf(17, 7), leaf(18, 8)),
    ]
    forest = merge_trees([list_nodes(tree) for tree in trees], by_depth)
    if by_depth:
        assert forest.levels == [(2, 0), (3, 1), (0, 2)]
        assert forest.labels.tolist() == [10, 11, 12, 17, 18, 13, 14, 19]
        assert forest.children.tolist() == [0, 1, 5, 2, 3, 4]
    else:
        assert forest.levels == [(5, 0), (0, 2), (0, 1)]
        assert forest.labels.tolist() == [10, 11, 12, 17, 18, 13, 19, 14]
        assert forest.children.tolist() == [0, 1, 3, 4, 5, 2]
    assert forest.words.tolist() == [0, 1, 2, 7, 8]
    slots = forest.slots.tolist()
    assert [slots.index(place) for place in range(6)] == forest.children.tolist()
    assert slots.count(6) == len(slots) - 6 == 2


def test_the_agenda_runs_arcs_when_their_start_is_complete() -> None:
    """Two lattices of four and two positions: the words wait until more of them than of characters are ready."""
    lattices: list[Lattice[int]] = [
        Lattice([0, 1, 2, 3], [[], [(0, 10)], [(1, 11), (0, 50)], [(2, 12), (1, 51), (0, 52)]]),
        Lattice([0, 1], [[], [(0, 13)]]),
    ]
    merged = merge_lattices([list_arcs(lattice) for lattice in lattices])
    assert merged.batches == [(0, 2), (1, 3), (0, 1), (0, 1)]
    assert [arcs.ids.tolist() for arcs in merged.arcs] == [[10, 13, 11, 12], [50, 52, 51]]
    assert merged.tags.tolist() == [1, 2, 3, 1]
    assert merged.lattices.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_every_agenda_is_in_order(seed: int) -> None:
    _, lattices = draw_lattices_case(seed, 12, 2)
    merged = merge_lattices([list_arcs(lattice) for lattice in lattices])
    ends = torch.cat([arcs.ends for arcs in merged.arcs])
    waits_for = torch.bincount(ends, minlength=merged.n_positions)
    done = [0 for _ in KINDS]
    for kind, n_arcs in merged.batches:
        rows = slice(done[kind], done[kind] + n_arcs)
        assert not waits_for[merged.arcs[kind].starts[rows]].any()
        waits_for -= torch.bincount(merged.arcs[kind].ends[rows], minlength=merged.n_positions)
        done[kind] += n_arcs
    assert not waits_for.any()
    assert sum(done) == sum(len(arcs) for lattice in lattices for arcs in lattice.arcs)
