"""The effects of sequences of types on small graphs, from the definitions: paths, subsequences, executed sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autobatch.arrays import IntArray
from autobatch.graph.dag import Dag


def inputs_of(dag: Dag, node: int) -> list[int]:
    nodes: list[int] = dag.edge_src[dag.edge_ptr[node] : dag.edge_ptr[node + 1]].tolist()
    return nodes


def paths_from(dag: Dag, node: int) -> Iterator[list[int]]:
    """Yield the types along every path from a node to a node without readers."""
    readers = {n for n in range(dag.type_id.size) if node in inputs_of(dag, n)}
    kind = int(dag.type_id[node])
    if not readers:
        yield [kind]
    for reader in readers:
        for path in paths_from(dag, reader):
            yield [kind, *path]


def is_subsequence(part: Sequence[int], whole: Sequence[int]) -> bool:
    rest = iter(whole)
    return all(entry in rest for entry in part)


def finishes_paths(dag: Dag, sequence: Sequence[int]) -> bool:
    """Return whether the types of every path are a subsequence of `sequence`."""
    return all(is_subsequence(path, sequence) for node in range(dag.type_id.size) for path in paths_from(dag, node))


def run(dag: Dag, sequence: Sequence[int]) -> list[int]:
    """Run all ready nodes of each type in turn; return the position at which each node ran, or -1."""
    ran: dict[int, int] = {}
    for k, kind in enumerate(sequence):
        ready = [n for n in range(dag.type_id.size) if n not in ran and all(s in ran for s in inputs_of(dag, n))]
        ran |= {node: k for node in ready if dag.type_id[node] == kind}
    return [ran.get(node, -1) for node in range(dag.type_id.size)]


def fewest_batches(dag: Dag) -> int:
    """Return the length of the shortest sequence that finishes, by breadth-first search over executed sets."""
    everything = frozenset(range(dag.type_id.size))
    reached, length = {frozenset[int]()}, 0
    while everything not in reached:
        following = set()
        for done in reached:
            ready = [n for n in everything - done if done.issuperset(inputs_of(dag, n))]
            for kind in {int(dag.type_id[n]) for n in ready}:
                following.add(done.union(n for n in ready if dag.type_id[n] == kind))
        reached, length = following, length + 1
    return length


def random_sequence(dag: Dag, rng: np.random.Generator, spare: float) -> IntArray:
    """Draw ready types until all nodes have run, interspersed with about `spare` superfluous types per batch."""
    sequence: list[int] = []
    while -1 in (ran := run(dag, sequence)):
        ready = [n for n in range(len(ran)) if ran[n] < 0 and all(ran[s] >= 0 for s in inputs_of(dag, n))]
        sequence.append(int(dag.type_id[rng.choice(ready)]))
        sequence.extend(rng.integers(dag.n_types, size=rng.poisson(spare)).tolist())
    return np.array(sequence, np.int32)
