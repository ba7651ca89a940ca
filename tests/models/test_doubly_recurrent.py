"""Test the rounds and limits of the network that grows trees; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np

import autobatch as ab
from autobatch.models.doubly_recurrent import DoublyRecurrent
from helpers.runs.ways import each


@each("topology, shape", [((-9, -9), "0"), ((9, -9), "(0 (0 0))"), ((9, 9), "(0 (0 0) 0)")])
def test_trees_end_after_so_many_steps(topology: tuple[int, int], shape: str) -> None:
    """Nodes always or never have children and siblings. All nodes of one depth grow in the same round."""
    model = DoublyRecurrent(n_words=3, n_labels=2, dim=4, rng=np.random.default_rng(0), max_steps=3)
    model.parameters()["topology.bias"].data = np.array(topology)
    grow = ab.batched(model.grow)
    assert list(map(repr, grow([[1, 2], []]))) == [shape.replace("0", "1")] * 2  # 0 is the unknown label
    assert grow.last is not None
    assert grow.last.rounds == (1 if shape == "0" else 3)
