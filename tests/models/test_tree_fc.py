"""Test the batches of fully connected layers along trees; test_twins.py compares them with their twin."""

from __future__ import annotations

from functools import reduce

import numpy as np

import autobatch as ab
from autobatch.graph.rewrite import UNSHARED
from autobatch.models.data.tree import Tree
from autobatch.models.tree_rnn import TreeFC


def test_full_trees_take_a_batch_for_each_level() -> None:
    """Two full trees of eight leaves, as in the benchmark: leaves, three levels, losses and their sums."""
    tree = reduce(lambda t, _: Tree.inner(1, t, t), range(3), Tree.leaf(0, 1))
    model = TreeFC(n_words=2, dim=4, n_classes=2, rng=np.random.default_rng(0))
    loss = ab.batched(model.loss, rewrites=UNSHARED)
    loss([tree, tree])
    assert loss.last is not None
    assert (loss.last.nodes, loss.last.batches) == (2 * (8 + 7 + 15 + 1), 6)
