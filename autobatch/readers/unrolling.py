"""Unroll rounds of messages between the nodes of a graph into a DAG, which a fold computes and a file can hold."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from autobatch.arguments import check_int, is_int
from autobatch.errors import DataError
from autobatch.keywords import checked


@checked()
def unroll(graph: Mapping[str, Any], n_rounds: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Unroll rounds of messages along the edges of a graph, for `autobatch.fold(edges="edges")`.

    Each node is repeated for every round, and its children are the nodes of the round before from which edges lead to
    it. The root is one more node, whose children are all nodes of the last round. So a recurrent network over a graph
    with cycles is a fold, and can be exported.

    Args:
        graph: an instance with `edges`, pairs (from, to) of nodes counted from 0.
        n_rounds: number of rounds, at least 1; messages travel that many edges.
        fields: the fields that list a value for each node, with their value for the root.

    Returns:
        A copy of `graph` with other `edges`, pairs (child, parent), and with these fields of all copies, round by
        round, and of the root. Copies whose messages do not reach the last round are left out. Other fields, such as
        those of edges, are unchanged.

    Raises:
        DataError: fields differ in length, or an edge is not a pair of two nodes.

    >>> unroll({"x": [6, 8], "edges": [[0, 1], [1, 0]], "target": 0.5}, 1, {"x": 0})
    {'x': [6, 8, 6, 8, 0], 'edges': [[0, 3], [1, 2], [2, 4], [3, 4]], 'target': 0.5}
    """
    n_rounds = check_int("n_rounds of unroll", n_rounds, at_least=1)
    lengths = {name: len(graph[name]) if isinstance(graph.get(name), list) else -1 for name in fields}
    n = next(iter(lengths.values()), -1)
    if n < 0 or len({*lengths.values()}) > 1:
        raise DataError(f"fields of unroll must name lists of one length, got {lengths}.")
    try:
        edges = [(*edge,) for edge in graph.get("edges", [])]
    except TypeError:
        edges = [()]  # not a pair, and refused as such
    if not all(len(edge) == 2 and all(is_int(node) and 0 <= node < n for node in edge) for edge in edges):
        raise DataError(f"edges of unroll must be pairs of the {n} nodes, as ints from 0.")
    rounds = [list(range(n))]
    for _ in range(n_rounds):  # a node is repeated only if its message travels to the last round, for a single root
        heard = {*rounds[-1]}
        rounds.append(sorted({one for one, other in edges if other in heard}))
    rounds.reverse()
    numbers, root = list[dict[int, int]](), 0
    for nodes in rounds:
        numbers.append({node: root + place for place, node in enumerate(nodes)})
        root += len(nodes)
    between = [
        [before[one], after[other]] for before, after in pairwise(numbers) for one, other in edges if other in after
    ]
    copies = [node for nodes in rounds for node in nodes]
    return {
        **graph,
        **{name: [*map(graph[name].__getitem__, copies), value] for name, value in fields.items()},
        "edges": between + [[number, root] for number in numbers[-1].values()],
    }
