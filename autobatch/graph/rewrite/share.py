"""Common-subexpression elimination for nodes: of those with equal type, attributes and inputs, keep the first.

Each node is written as a record, with its sources replaced by the first nodes equal to them, so that equal nodes over
equal inputs have equal records. A hash table finds earlier records with the same hash, which are then compared word by
word. Float attributes are compared as bits: NaN equals itself, and 0.0 is not -0.0. A node whose cell draws random
numbers equals no other, because its numbers depend on its instance and its place there.

By the rule, nodes are shared whose cells multiply matrices, if they read data alone, or nodes that are shared. Only
nodes that read data, or nodes that were looked up, are looked up, until their type is given up: when its look-ups have
cost more than its equal nodes save. So a chain of calls is followed until chains differ, and where nothing repeats
little is looked up. Nodes that multiply nothing are shared for those that read them.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.words import (
    Sections,
    copy_attributes,
    copy_outputs,
    data_starts,
    sections,
    words_size,
    write_header,
)
from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray, LongArray, count_up
from autobatch.jit.loops import compiled

HEAD = 4  # words of a record before its edges: its node, hash, type, number of edges
LOW_32 = 0xFFFFFFFF
FACTOR = 0x9E3779B1  # 2^32 / golden ratio, odd: multiplying by it loses nothing
SHIFT = 15  # brings the well mixed high bits to the low ones, which the next multiplication spreads
FREE = -1
LOOK_UP, WORD, NODE, WRITE = 2048, 64, 8192, 1024
"""Costs in multiply-adds of products, of which a core does 50 in a nanosecond.

LOOK_UP is for a node that is looked up, and WORD for each word of its record: 20 to 40 ns in all. NODE is what a node
costs beside its products: half of it to schedule and place it. WRITE is for each node of a graph that is written anew,
and whose operands are gathered where they no longer lie side by side.
"""
SHARE, CREDIT, SMALL = 128, LOOK_UP // 16, 1024
"""What a type may lose by being looked up, since later nodes have more to equal: 1 / SHARE of what its nodes cost, or
CREDIT per node of the graph or of a small one if that is more."""

Flags: TypeAlias = NDArray[np.bool_]


@compiled
def share_equal(
    words: IntArray, floats: FloatArray, types: TypeArrays, by_rule: bool
) -> tuple[IntArray, FloatArray, int]:
    """Write a new graph with only the first of equal nodes, and redirect readers and outputs of the others to it.

    Args:
        by_rule: share the types that are worth it; all types otherwise.

    Returns:
        The words and float attributes, the given ones if no node goes; and the number of nodes removed.

    Cost: O(words of the graph) expected, and twice its memory and 16 to 32 bytes per node.
    """
    graph, first = sections(words), find_shared(words, floats, types, by_rule).first
    n_shared = 0
    for node in range(first.size):
        n_shared += first[node] != node
    if n_shared == 0:
        return words, floats, 0
    shared, shared_floats = _write(graph, floats, types, first)
    return shared, shared_floats, n_shared


class Found(NamedTuple):
    """What looking nodes up gave."""

    first: IntArray  # [N] the node that stays in place of each; most often itself
    tried: LongArray  # [T] nodes that were looked up
    found: LongArray  # [T] of these, the nodes that equal an earlier one
    chosen: Flags  # [T] whether these are shared


@compiled
def find_shared(words: IntArray, floats: FloatArray, types: TypeArrays, by_rule: bool) -> Found:
    """Find the nodes that stay when equal ones are shared, of all types or, by the rule, of those that are worth it."""
    graph = sections(words)
    first, tried, found, gain = _find_equal(graph, floats.view(np.int32), types, by_rule)
    if not by_rule:
        return Found(first, tried, found, found > 0)
    chosen = _choose_types(graph, types, first, found, gain)
    for node in range(first.size):
        if not chosen[graph.type_id[node]]:
            first[node] = node
    return Found(first, tried, found, chosen)


@compiled
def _find_equal(
    graph: Sections, bits: IntArray, types: TypeArrays, by_rule: bool
) -> tuple[IntArray, LongArray, LongArray, LongArray]:
    """Find for each node the first that computes the same, which may be the node itself.

    The look-up is inlined: a call per node took 17 ns.

    Args:
        bits: the float attributes as two words each.
        by_rule: look up only nodes that read data, or nodes that were looked up, of types that are not given up.

    Returns:
        The first equal of each node; per type, how many nodes were looked up, how many of them equal an earlier one,
        and what sharing these saves, less what the look-ups cost.
    """
    type_ids, edge_ptr, attr = graph.type_id, graph.edge_ptr, graph.attr
    edge_src, edge_out, edge_in = graph.edge_src, graph.edge_out, graph.edge_in
    int_starts, float_starts = data_starts(type_ids, attr, types)
    records = np.empty(HEAD * type_ids.size + 3 * edge_src.size + attr.size + bits.size, np.int32)
    first, looked_up = count_up(type_ids.size), np.zeros(type_ids.size, np.bool_)
    table = np.full(_table_size(type_ids.size), FREE, np.int32)  # where the record of a node starts
    is_open, work, credit = types.random == 0, types.product_work, _credits(type_ids, types.product_work)
    tried, found = np.zeros(is_open.size, np.int64), np.zeros(is_open.size, np.int64)
    gain = np.zeros(is_open.size, np.int64)
    start = 0
    for node in range(type_ids.size):
        type_id, edge, stop = type_ids[node], edge_ptr[node], edge_ptr[node + 1]
        looks = is_open[type_id]
        if by_rule and looks and edge < stop:
            looks = work[type_id] > 0
            while looks and edge < stop:
                looks, edge = looked_up[edge_src[edge]], edge + 1
        if not looks:
            continue
        looked_up[node] = True
        records[start], records[start + 2], records[start + 3] = node, type_id, stop - edge_ptr[node]
        at, h = start + HEAD, _mixed(0, type_id)
        for e in range(edge_ptr[node], stop):
            records[at], records[at + 1], records[at + 2] = first[edge_src[e]], edge_out[e], edge_in[e]
            h = _mixed(_mixed(h, records[at]), (edge_in[e] << 8) + edge_out[e])
            at += 3
        for attribute in range(int_starts[node], int_starts[node + 1]):
            records[at] = attr[attribute]
            h = _mixed(h, attr[attribute])
            at += 1
        for word in range(2 * float_starts[node], 2 * float_starts[node + 1]):
            records[at] = bits[word]
            h = _mixed(h, bits[word])
            at += 1
        records[start + 1] = h >> 1
        place, k = h & (table.size - 1), start
        while k < at and table[place] != FREE:
            k = start + 1
            while k < at and records[k] == records[table[place] + k - start]:
                k += 1
            if k < at:
                place = (place + 1) & (table.size - 1)
        tried[type_id] += 1
        cost = LOOK_UP + WORD * (at - start)
        gain[type_id] -= cost
        if k == at:
            first[node] = records[table[place]]
            found[type_id] += 1
            gain[type_id] += NODE + work[type_id] if work[type_id] > 0 else 2 * cost
        else:
            table[place], start = start, at
        is_open[type_id] = gain[type_id] > -credit[type_id] or not by_rule
    return first, tried, found, gain


@compiled
def _credits(type_ids: IntArray, work: LongArray) -> LongArray:
    """What each type may lose by being looked up."""
    credits = np.zeros(work.size, np.int64)
    for type_id in type_ids:
        credits[type_id] += NODE + work[type_id]
    for type_id in range(work.size):
        credits[type_id] = max(credits[type_id] // SHARE, CREDIT * max(type_ids.size, SMALL))
    return credits


@compiled
def _choose_types(graph: Sections, types: TypeArrays, first: IntArray, found: LongArray, gain: LongArray) -> Flags:
    """Choose the types to share: those with products that gain by it, and the types that their equal nodes read.

    There are none if the graph would have to be written anew for less than that costs.
    """
    chosen, saved = np.zeros(gain.size, np.bool_), 0
    for type_id in range(gain.size):
        if gain[type_id] > 0 and types.product_work[type_id] > 0:
            chosen[type_id] = True
            saved += found[type_id] * (NODE + types.product_work[type_id])
    if saved < WRITE * first.size:
        return np.zeros(gain.size, np.bool_)
    type_ids, edge_ptr, edge_src = graph.type_id, graph.edge_ptr, graph.edge_src
    for node in range(first.size - 1, -1, -1):
        if first[node] != node and chosen[type_ids[node]]:
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                chosen[type_ids[edge_src[e]]] = True
    return chosen


@compiled
def _table_size(n_nodes: int) -> int:
    """A power of two, at least twice the nodes."""
    size = 2
    while size < 2 * n_nodes:
        size *= 2
    return size


@compiled
def _mixed(h: int, word: int) -> int:
    """The hash of data with hash `h` followed by `word`; injective in `h` for each `word`."""
    h = ((h ^ int(word)) * FACTOR) & LOW_32
    return h ^ (h >> SHIFT)


@compiled
def _write(graph: Sections, floats: FloatArray, types: TypeArrays, first: IntArray) -> tuple[IntArray, FloatArray]:
    """Write a new graph with the nodes that are their own first equals."""
    int_starts, float_starts = data_starts(graph.type_id, graph.attr, types)
    number = np.zeros(first.size + 1, np.int32)
    n_edges = n_attr = n_floats = 0
    for node in range(first.size):
        number[node + 1] = number[node]
        if first[node] == node:
            number[node + 1] += 1
            n_edges += graph.edge_ptr[node + 1] - graph.edge_ptr[node]
            n_attr += int_starts[node + 1] - int_starts[node]
            n_floats += float_starts[node + 1] - float_starts[node]
    n_instances, n_nodes, n_outputs = graph.instance_ptr.size - 1, number[first.size], graph.out_node.size
    words = np.empty(words_size(n_instances, n_nodes, n_edges, n_attr, n_outputs), np.int32)
    result = write_header(words, n_instances, n_nodes, n_edges, n_attr, n_outputs, n_floats)
    for i in range(n_instances + 1):
        result.instance_ptr[i] = number[graph.instance_ptr[i]]
    place = number[first]  # of each node's first equal
    copy_outputs(graph, result, place)
    _write_nodes(graph, result, first, place)
    kept_floats = np.empty(n_floats, np.float64)
    copy_attributes(graph.attr, result.attr, int_starts, number)
    copy_attributes(floats, kept_floats, float_starts, number)
    return words, kept_floats


@compiled
def _write_nodes(graph: Sections, result: Sections, first: IntArray, place: IntArray) -> None:
    """Write types and edges of the nodes that stay."""
    type_id, edge_ptr, edge_src = graph.type_id, graph.edge_ptr, graph.edge_src
    at = 0
    for node in range(first.size):
        if first[node] == node:
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                result.edge_src[at] = place[edge_src[e]]
                result.edge_out[at], result.edge_in[at] = graph.edge_out[e], graph.edge_in[e]
                at += 1
            result.type_id[place[node]] = type_id[node]
            result.edge_ptr[place[node] + 1] = at
