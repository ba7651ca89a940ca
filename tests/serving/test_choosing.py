"""Test what a round runs, by definition, on random graphs."""

from __future__ import annotations

import numpy as np

from autobatch.graph.build import make_graph
from autobatch.graph.graph import NamedTypes
from autobatch.ir.type_arrays import TypeArrays
from autobatch.policies import get
from autobatch.serving.admission import Pending
from helpers.runs.ways import each


class WorkingTypes(NamedTypes):
    """Types with a given work per node."""

    def arrays(self) -> TypeArrays:
        return super().arrays()._replace(product_work=np.array([100, 5, 0]))


TYPES = WorkingTypes(("a", "b", "c"))


@each("seed", range(60))
def test_every_node_runs_once_after_what_it_reads_and_every_round_gets_everything_on(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    edges = [(int(rng.integers(0, k)), k) for k in range(1, n) for _ in range(rng.integers(0, 3))]
    graph = make_graph(TYPES, rng.integers(0, 3, n).tolist(), sorted(edges, key=lambda edge: edge[1]))
    numbers = np.sort(rng.choice(1000, n, replace=False)).astype(np.int32)
    pending = Pending(numbers, graph, get("score"))
    budget, done, depth, n_rounds = float(rng.choice([0.0, 3e4, 1e9])), set[int](), longest_chain(n, edges), 0
    while len(done) < n:
        ready = {k for k in range(n) if k not in done and all(a in done for a, b in edges if b == k)}
        taken = pending.take(budget, budget)
        fresh = {int(np.flatnonzero(numbers == number)[0]) for number in taken}
        assert len(fresh) == len(taken)
        assert fresh.isdisjoint(done)
        assert ready <= fresh
        assert all(a in done | fresh for a, b in edges if b in fresh)
        done |= fresh
        left = {k for k in range(n) if k not in done}
        sinks = left - {a for a, _ in edges}
        assert all(any(a in left for a, b in edges if b == k) for k in sinks)
        n_rounds += 1
    assert n_rounds <= depth
    assert not pending.take(budget, budget).size


def longest_chain(n: int, edges: list[tuple[int, int]]) -> int:
    """Count the nodes on the longest path."""
    longest = [1] * n
    for a, b in sorted(edges, key=lambda edge: edge[1]):
        longest[b] = max(longest[b], longest[a] + 1)
    return max(longest)
