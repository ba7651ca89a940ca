"""Common-subexpression elimination for nodes: of those with equal type, attributes and inputs, keep the first.

Each node is written as a record, with its sources replaced by the kept nodes, so that equal nodes over equal inputs
have equal records. A hash table finds earlier records with the same hash, which are then compared word by word. Float
attributes are compared as bits: NaN equals itself, and 0.0 is not -0.0. If there is no equal record, the node is kept.
A node whose cell draws random numbers equals no other, because its numbers depend on its instance and its place there.
"""

from __future__ import annotations

import numpy as np

from autobatch.graph.words import Sections, copy_outputs, data_starts, sections, words_size, write_header
from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray
from autobatch.jit.loops import compiled

HEAD = 3  # words of a record before its edges: its node's new number, type, number of edges
LOW_32 = 0xFFFFFFFF
FACTOR = 0x9E3779B1  # 2^32 / golden ratio, odd: multiplying by it loses nothing
SHIFT = 15  # brings the well mixed high bits to the low ones, which the next multiplication spreads
FREE = -1


@compiled
def share_equal(words: IntArray, floats: FloatArray, types: TypeArrays) -> tuple[IntArray, FloatArray, int]:
    """Write a new graph with only the first of equal nodes, and redirect readers and outputs of the others to it.

    Returns:
        The words and float attributes, the given ones if all nodes differ; and the number of nodes removed.

    Cost: O(words of the graph) expected, and twice its memory and 16 to 32 bytes per node.
    """
    graph = sections(words)
    records, number, n_nodes, n_edges, n_attr, n_floats = _record(graph, floats.view(np.int32), types)
    n_shared = number.size - n_nodes
    if n_shared == 0:
        return words, floats, 0
    n_instances, n_outputs = graph.instance_ptr.size - 1, graph.out_node.size
    shared = np.empty(words_size(n_instances, n_nodes, n_edges, n_attr, n_outputs), np.int32)
    shared_floats = np.empty(n_floats, np.float64)
    result = write_header(shared, n_instances, n_nodes, n_edges, n_attr, n_outputs, n_floats)
    _write_nodes(records, result, shared_floats.view(np.int32), types)
    _write_instances(graph, result, number)
    copy_outputs(graph, result, number)
    return shared, shared_floats, n_shared


@compiled
def _record(graph: Sections, bits: IntArray, types: TypeArrays) -> tuple[IntArray, IntArray, int, int, int, int]:
    """Write the records of the kept nodes, one after another. The lookup is inlined: a call per node took 17 ns.

    Args:
        bits: the float attributes as two words each.

    Returns:
        The records; the new number of each node or of its equal; the numbers of nodes, edges, int and float attributes
        kept.
    """
    type_ids, edge_ptr, attr = graph.type_id, graph.edge_ptr, graph.attr
    edge_src, edge_out, edge_in = graph.edge_src, graph.edge_out, graph.edge_in
    int_starts, float_starts = data_starts(type_ids, attr, types)
    random = types.random
    records = np.empty(HEAD * type_ids.size + 3 * edge_src.size + attr.size + bits.size, np.int32)
    number = np.empty(type_ids.size, np.int32)
    table = np.full(_table_size(type_ids.size), FREE, np.int64)  # the upper 31 bits of a hash, then the record
    n = n_edges = n_attr = n_floats = start = 0
    for node in range(type_ids.size):
        type_id, first, stop = type_ids[node], edge_ptr[node], edge_ptr[node + 1]
        records[start], records[start + 1], records[start + 2] = n, type_id, stop - first
        at, h = start + HEAD, _mixed(0, type_id)
        for e in range(first, stop):
            records[at], records[at + 1], records[at + 2] = number[edge_src[e]], edge_out[e], edge_in[e]
            h = _mixed(_mixed(h, records[at]), (edge_in[e] << 8) + edge_out[e])
            at += 3
        n_ints, n_reals = int_starts[node + 1] - int_starts[node], float_starts[node + 1] - float_starts[node]
        for attribute in range(int_starts[node], int_starts[node + 1]):
            records[at] = attr[attribute]
            h = _mixed(h, attr[attribute])
            at += 1
        for word in range(2 * float_starts[node], 2 * float_starts[node + 1]):
            records[at] = bits[word]
            h = _mixed(h, bits[word])
            at += 1
        if not random[type_id]:
            place = h & (table.size - 1)
            while table[place] != FREE:
                if table[place] >> 32 == h >> 1:
                    shift = (table[place] & LOW_32) - start
                    k = start + 1
                    while k < at and records[k] == records[k + shift]:
                        k += 1
                    if k == at:
                        break
                place = (place + 1) & (table.size - 1)
            if table[place] != FREE:
                number[node] = records[table[place] & LOW_32]
                continue
            table[place] = h >> 1 << 32 | start
        number[node], start = n, at
        n, n_edges = n + 1, n_edges + stop - first
        n_attr, n_floats = n_attr + n_ints, n_floats + n_reals
    return records[:start], number, n, n_edges, n_attr, n_floats


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
def _write_nodes(records: IntArray, result: Sections, bits: IntArray, types: TypeArrays) -> None:
    """Write types, edges and attributes from the records."""
    type_ids, edge_ptr, attr = result.type_id, result.edge_ptr, result.attr
    edge_src, edge_out, edge_in = result.edge_src, result.edge_out, result.edge_in
    int_width, float_width, data_ptr = types.int_width, types.float_width, types.data_ptr
    at = edge = attribute = word = 0
    for node in range(type_ids.size):
        type_id, n_edges = records[at + 1], records[at + 2]
        type_ids[node], edge_ptr[node + 1] = type_id, edge + n_edges
        at += HEAD
        for _ in range(n_edges):
            edge_src[edge], edge_out[edge], edge_in[edge] = records[at], records[at + 1], records[at + 2]
            at, edge = at + 3, edge + 1
        n_ints, n_floats = int_width[type_id], float_width[type_id]
        for number in range(data_ptr[type_id], data_ptr[type_id + 1]):
            length = records[at + n_ints]
            n_ints, n_floats = (
                n_ints + 1 + length * types.data_ints[number], n_floats + length * types.data_floats[number]
            )  # fmt: skip
        for _ in range(n_ints):
            attr[attribute] = records[at]
            at, attribute = at + 1, attribute + 1
        for _ in range(2 * n_floats):
            bits[word] = records[at]
            at, word = at + 1, word + 1


@compiled
def _write_instances(graph: Sections, result: Sections, number: IntArray) -> None:
    """Write where each instance's nodes end: before the first kept node of a later instance."""
    n = node = 0
    for i in range(1, graph.instance_ptr.size):
        while node < graph.instance_ptr[i]:
            n = max(n, number[node] + 1)
            node += 1
        result.instance_ptr[i] = n
