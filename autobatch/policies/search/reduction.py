"""Reduce a graph to a smaller one that is finished by the same sequences of types.

Whether a sequence finishes a graph depends only on the strings of types along its paths, and only on those that are not
subsequences of others. So nodes with the same continuations are merged, and continuations that are subsequences of
others from the same node are removed. Then the same is done on the reversed graph, and so on in turn until nothing
changes.

A *suffix* is a node that represents all nodes after which the same types must run. Suffix m is *within* suffix n if
each path from m is a subsequence of a path from n, so that every sequence that finishes n finishes m. This holds if m
is within some suffix that follows n; or if m is of n's type and every suffix that follows m is within one that follows
n. Of the suffixes that follow a node, those within another are left out, so that the rest are an antichain; nodes of
one type with the same antichain are one suffix. Types that are not kept are skipped, which projects the graph onto the
kept types.

The remaining work is also an antichain of suffixes: running type a replaces those of type a by their followers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch._native import find_suffixes as find_in_core
from autobatch._native import suffixes_to_dag
from autobatch.arrays import IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, reverse

BoolArray = NDArray[np.bool_]


class Suffixes(NamedTuple):
    """S suffixes, each numbered after its followers; S = type_id.size."""

    type_id: IntArray  # int32[S]
    after_ptr: IntArray  # int32[S+1] suffix n is followed by after[after_ptr[n]:after_ptr[n+1]], ascending
    after: IntArray
    first: IntArray  # the antichain of all work, ascending
    within: NDArray[np.uint64]  # uint64[S, W] bit m of row n: m is within n and is not n; no rows if not requested
    n_types: int


def to_suffixes(dag: Dag, kept: BoolArray, compare: bool) -> tuple[Suffixes, IntArray]:
    """Find the suffixes of a dag, projected on the kept types.

    Args:
        dag: N nodes, E edges, T types.
        kept: bool[T], the types that count.
        compare: also find which suffixes are within which; if not, only nodes of equal type and followers are merged.

    Returns:
        The suffixes, and int32[N], each node's suffix, or -1 if its type is not kept.

    Cost: O(N + E log E); with comparison, O(S² / T) more look-ups and S² bits.
    """
    suffixes, suffix = find_in_core(dag, kept, compare)
    return Suffixes(*suffixes), suffix


MAX_COMPARED = 16_384
"""In larger graphs nodes are merged but not compared: comparing takes quadratic time and memory."""
MAX_SUFFIXES = 32_768
"""The bits for all pairs take 128 MiB."""


class ReducedGraph(NamedTuple):
    """A reduced graph with the same finishing sequences as a graph of N nodes."""

    dag: Dag
    node: IntArray  # int32[N] the node of `dag` that represents a node; -1: its paths are subsequences of others


def reduce_graph(dag: Dag) -> ReducedGraph:
    """Shrink a graph so that exactly the same sequences finish it.

    Cost: O(N + E log E) to merge, which leaves K nodes; if these are at most 16,384, three or four times O(K² / T)
    look-ups and K² bits to compare them. 0.4 µs per node for 256 two-type trees, 3 for 32 lattices, which shrink less.

    >>> two_chains = Dag(*(np.array(a, np.int32) for a in ([0, 1, 0, 0, 0], [0, 0, 1, 2, 2, 3], [0, 1, 3])), 2)
    >>> reduced = reduce_graph(two_chains)
    >>> reduced.dag.type_id.tolist(), reduced.node.tolist()
    ([0, 1, 0], [0, 1, 2, 0, 2])
    """
    reduced = ReducedGraph(dag, np.arange(dag.type_id.size, dtype=np.int32))
    reduced = _reduce(_reduce(reduced, False), False)
    if reduced.dag.type_id.size > MAX_COMPARED:
        return reduced
    reduced = _reduce(reduced, True)
    backward, changed = True, True
    while changed:  # a round without a change is the last, because the round before went the other way
        smaller = _reduce(reduced, True)
        changed = _size(smaller) != _size(reduced)
        reduced, backward = smaller, not backward
    return _turn_round(reduced) if backward else reduced


def find_suffixes(dag: Dag, types: Collection[int] | None = None) -> Suffixes:
    """Find the suffixes of a graph, projected on some types or on all, and compare them.

    Raises:
        PolicyError: there are more than 32,768 nodes of these types, too many for a bit per pair.
    """
    kept = np.zeros(dag.n_types, np.bool_)
    kept[list(range(dag.n_types) if types is None else types)] = True
    n_kept = int(kept[dag.type_id].sum())
    if n_kept > MAX_SUFFIXES:
        raise PolicyError(
            f"a reduced graph must have at most {MAX_SUFFIXES} nodes to be searched or bounded, got {n_kept}; use "
            f"a smaller mini-batch, or a policy that does not search."
        )
    return to_suffixes(dag, kept, True)[0]


def project(dag: Dag, types: Collection[int]) -> Dag:
    """Project a graph on some types: keep their nodes, join those linked by paths without kept nodes, and reduce it.

    A sequence finishes it exactly when its entries of these types are those of a sequence that finishes `dag`.
    Raises a PolicyError as `find_suffixes` does, and costs as much as `reduce_graph`. Apply it to a reduced graph.
    """
    return reduce_graph(Dag(*suffixes_to_dag(find_suffixes(dag, types))[0], dag.costs)).dag


def _reduce(reduced: ReducedGraph, compare: bool) -> ReducedGraph:
    """Reduce a graph to its suffixes, and reverse the result."""
    suffixes, suffix = to_suffixes(reduced.dag, np.ones(reduced.dag.n_types, np.bool_), compare)
    smaller, place = suffixes_to_dag(suffixes)
    mapped = np.append(place[suffix], np.int32(-1))  # so that a node without a representative stays without one
    return _turn_round(ReducedGraph(Dag(*smaller, reduced.dag.costs), mapped[reduced.node]))


def _turn_round(reduced: ReducedGraph) -> ReducedGraph:
    node = np.where(reduced.node < 0, -1, reduced.dag.type_id.size - 1 - reduced.node)
    return ReducedGraph(reverse(reduced.dag), node.astype(np.int32))


def _size(reduced: ReducedGraph) -> tuple[int, int]:
    return reduced.dag.type_id.size, reduced.dag.edge_src.size
