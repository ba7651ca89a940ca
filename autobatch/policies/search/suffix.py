"""Merge graph nodes with the same continuations, and drop nodes that others imply.

A *suffix* is a node that represents all nodes after which the same types must run. Suffix m is *within* suffix n if
each path from m is a subsequence of a path from n, so that every sequence that finishes n finishes m. This holds if m
is within some suffix that follows n; or if m is of n's type and every suffix that follows m is within one that follows
n. Of the suffixes that follow a node, those within another are left out, so that the rest are an antichain; nodes of
one type with the same antichain are one suffix. Types that are not kept are skipped, which projects the graph on the
others.

The remaining work is also an antichain of suffixes: running type a replaces those of type a by their followers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch._native import find_suffixes
from autobatch.arrays import IntArray
from autobatch.graph.dag import Dag

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
    suffixes, suffix = find_suffixes(dag, kept, compare)
    return Suffixes(*suffixes), suffix
