"""Test the Tree Transformer's types and what a node sees; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np

import autobatch as ab
from autobatch.models.data.labelled_tree import LabelledTree
from autobatch.models.tree_transformer import TreeTransformer
from helpers.runs.recorded import types_of
from helpers.runs.ways import each


def make_model(dim: int = 6) -> TreeTransformer:
    return TreeTransformer(n_words=3, n_labels=4, dim=dim, rng=np.random.default_rng(0)).astype("float64")


def test_nodes_with_any_number_of_children_are_of_one_type() -> None:
    """A root of three nodes with 0, 1 and 3 leaves: words, then blocks on three levels."""
    inner = [LabelledTree(1, [LabelledTree(2) for _ in range(n)]) for n in (0, 1, 3)]
    loss = ab.batched(make_model().loss)
    loss([LabelledTree(0, inner, label=1)])
    assert loss.last is not None
    assert sorted(kind.name for kind in types_of(loss)) == ["block", "node_loss", "read", "sum_n"]
    assert loss.last.batches == 1 + 3 + 1


@each("dim", [4, 6, 16])
def test_a_node_sees_its_word_and_all_below_it(dim: int) -> None:
    """A changed word changes the scores of its node and of the nodes above it, for any number of heads."""
    model = make_model(dim)
    one, other = (
        LabelledTree(0, [LabelledTree(1), LabelledTree(0, [LabelledTree(word), LabelledTree(1)])]) for word in (0, 2)
    )
    before, after = ab.batched(model.scores)([one, other])
    assert [bool(np.any(a != b)) for a, b in zip(before, after, strict=True)] == [False, True, False, True, True]
