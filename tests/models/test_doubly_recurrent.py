"""The network that grows trees: its rounds, limits and metrics; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np

import autobatch as ab
from autobatch.models.data.ordered_tree import OrderedTree, Told
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.doubly_recurrent import SPEC, DoublyRecurrent, count_correct
from ways import each


@each("topology, shape", [((-9, -9), "0"), ((9, -9), "(0 (0 0))"), ((9, 9), "(0 (0 0) 0)")])
def test_trees_end_after_so_many_steps(topology: tuple[int, int], shape: str) -> None:
    """A node always, or never, has children and siblings; all that are as far from the root grow in one round."""
    model = DoublyRecurrent(n_words=3, n_labels=1, dim=4, rng=np.random.default_rng(0), max_steps=3)
    model.parameters()["topology.bias"].data = np.array(topology)
    grow = ab.batched(model.grow)
    assert list(map(repr, grow([[1, 2], []]))) == [shape] * 2
    assert grow.last is not None
    assert grow.last.rounds == (1 if shape == "0" else 3)


def test_counting_right_edges() -> None:
    """Of three edges two are right; an edge that a tree has twice counts twice."""
    grown = [OrderedTree(1, [OrderedTree(2), OrderedTree(2)]), OrderedTree(3)]
    meant = [OrderedTree(1, [OrderedTree(2), OrderedTree(2), OrderedTree(3)]), OrderedTree(3)]
    told = [Told([1], tree) for tree in meant]
    assert count_correct(grown, told, {}) == {"edge_f1": (4, 5), "exact": (1, 2)}
    assert SPEC.predict is not None
    names = {"labels": Vocabulary(["a", "b", "c"])}
    assert SPEC.predict(grown, told, names) == [{"tree": "(a b b)"}, {"tree": "c"}]
