"""Test the tree-GRU's children; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np

import autobatch as ab
from autobatch.models.data.tree import Tree
from autobatch.models.tree_rnn import TreeGRU


def test_children_have_places_and_biases_in_common() -> None:
    """A mirrored tree has the same loss once the matrices of both places are swapped."""
    model = TreeGRU(n_words=3, dim=5, n_classes=2, rng=np.random.default_rng(0)).astype("float64")
    model.gate_bias.data[:], model.candidate_bias.data[:] = 0.3, -0.2
    inner = Tree.inner(1, Tree.leaf(0, 1), Tree.leaf(1, 2))
    tree = Tree.inner(1, inner, Tree.leaf(0, 0))
    mirrored = Tree.inner(1, Tree.leaf(0, 0), Tree.inner(1, Tree.leaf(1, 2), Tree.leaf(0, 1)))
    loss = ab.batched(model.loss)
    before = loss([tree, mirrored])
    assert abs(before[0] - before[1]) > 1e-4
    model.gates.reverse()
    model.candidates.reverse()
    np.testing.assert_allclose(loss([mirrored, tree]), before, rtol=1e-12)
