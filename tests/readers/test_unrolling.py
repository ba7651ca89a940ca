"""Test unrolled graphs: a fold over them equals rounds of messages by matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError
from autobatch.readers import unroll
from helpers.runs.ways import each


class Net(ab.Module):
    """Sums of messages."""

    total = ab.fold(edges="edges", node="node")

    def __init__(self) -> None:
        self.near = ab.Parameter(np.float32(0.5))

    @ab.cell
    def node(self, children: list[Any], x: float) -> Any:
        return x + self.near * ab.sum_n(children, shape=())


@pytest.mark.parametrize("n_rounds", [1, 2, 5])
def test_a_fold_over_an_unrolled_graph_is_rounds_of_messages(n_rounds: int) -> None:
    rng = np.random.default_rng(n_rounds)
    graphs, expected = [], []
    for n in range(1, 8):
        sent = rng.integers(0, 2, (n, n))  # with loops, cycles and nodes without neighbours
        x = rng.random(n)
        graphs.append({"x": x.tolist(), "edges": np.argwhere(sent).tolist(), "label": n})
        states = x
        for _ in range(n_rounds):
            states = x + 0.5 * sent.T @ states
        expected.append(0.25 + 0.5 * states.sum())
    unrolled = [unroll(graph, n_rounds, {"x": 0.25}) for graph in graphs]
    assert [graph["label"] for graph in unrolled] == [*range(1, 8)]
    assert np.allclose(ab.batched(Net().total, backend="reference")(unrolled), expected, rtol=1e-5)


def test_a_graph_may_have_no_nodes_or_edges() -> None:
    assert unroll({"x": [8, 1], "edges": []}, 3, {"x": 7}) == {"x": [8, 1, 7], "edges": [[0, 2], [1, 2]]}
    assert unroll({"x": [], "edges": []}, 3, {"x": 7}) == {"x": [7], "edges": []}


@each(
    "graph, fields, told",
    [
        ({"x": [1], "edges": [[0, 1]]}, {"x": 0}, "edges of unroll must be pairs of the 1 nodes"),
        ({"x": [1], "edges": [[-1, 0]]}, {"x": 0}, "edges of unroll must be pairs of the 1 nodes"),
        *[
            ({"x": [1, 2], "edges": edges}, {"x": 0}, "edges of unroll must be pairs of the 2 nodes, as ints from 0")
            for edges in ([[0]], [[0, 1, 1]], [[0, 1.0]], [[True, 0]], [["a", "b"]], [0, 1], "ab", None, 0.5)
        ],
        ({"x": [1], "edges": []}, {"y": 0}, "must name lists of one length"),
        ({"x": [1], "y": [1, 2], "edges": []}, {"x": 0, "y": 0}, "must name lists of one length"),
        ({"x": [1], "edges": []}, {}, "must name lists of one length"),
    ],
)
def test_malformed_graphs_are_refused(graph: Any, fields: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        unroll(graph, 1, fields)


def test_there_is_a_round() -> None:
    with pytest.raises(DataError, match="n_rounds of unroll must be an int of at least 1, got 0"):
        unroll({"x": [], "edges": []}, 0, {"x": 0})
