"""Fold sums into their readers: a plain port with several edges reads the sum of their values.

The summing node and its batches are then unnecessary: a reader waits for the terms themselves. The types tell which
outputs are sums: those that add up the values of a variadic port. Two sweeps over the edges find the nodes to remove; a
third writes the new graph. A sum that is kept may be a term of a folded sum.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.words import (
    OUTPUT,
    Sections,
    copy_attributes,
    copy_outputs,
    data_starts,
    sections,
    words_size,
    write_header,
)
from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray
from autobatch.jit.loops import compiled

GROWTH = 4
"""A sum is kept if folding it would create more than this many times the edges that it removes.

Every edge costs a written value, and its gradient read back: r readers and t terms need r * t edges when folded, r + t
when kept. Saving a batch is worth some of that: a sum of at most 4 terms is always folded, one of 8 terms if it is read
up to 8 times, one of hundreds up to 4 times. The number of edges of the whole graph grows at most 4-fold.
"""
Flags: TypeAlias = NDArray[np.uint8]


@compiled
def fold_sums(
    words: IntArray, floats: FloatArray, types: TypeArrays, passed: IntArray
) -> tuple[IntArray, FloatArray, int, int]:
    """Fold sums into their readers and write a new graph without them; the other nodes stay in order.

    A node is removed if all of these conditions hold:

    - Each of its outputs that is read is the sum of a variadic port with at least two values. A sum of no values is
      zeros, which no edge carries; a sum of one value is left to the pass "forward".
    - The user does not ask for it: a requested value needs a node that writes it.
    - It has readers, and all are plain ports that read nothing else. A variadic port has a row for each of its values;
      and folding into a port with several edges would have no bound on the result.
    - The terms of one sum that come from nodes of one type are the same output of theirs, or rows of it. A batch writes
      its outputs one after another, so otherwise it would be unclear which write stores and which add.
    - Everything it reads is a term of such a sum, so that no node is left unused; and it has no plain ports, so that no
      sum folds into a node that is removed.
    - The edges created are at most `GROWTH` times the edges removed.

    These conditions do not depend on other folds, so a second application finds nothing.

    Args:
        passed: [outputs] the port that the output equals whenever the port has one edge, or -1.

    Returns:
        The words and float attributes, the given ones if nothing is folded; the numbers of folded sums and of new
        edges.

    Cost: O(N + E + edges made).
    """
    graph = sections(words)
    sum_port = _sum_ports(types, passed)
    folds = _find_sums(graph, types, sum_port)
    if not folds.any():
        return words, floats, 0, 0
    n_edges = graph.edge_src.size
    terms = np.empty(n_edges, np.int32)  # for an edge that reads a sum, the first edge of its terms
    counts = _count_readers(graph, types, sum_port, folds, terms)  # for such a first edge: how many read the sum, ...
    n_folded, n_made, n_gone = _choose(graph, types.sum_type.size, folds, counts)  # ... and now how many terms it has
    if n_folded == 0:
        return words, floats, 0, 0
    folded, kept_floats = _write(graph, floats, types, folds, terms, counts, n_edges + n_made - n_gone)
    return folded, kept_floats, n_folded, n_made


@compiled
def _sum_ports(types: TypeArrays, passed: IntArray) -> IntArray:
    """Find the variadic port that each output sums, or -1."""
    sum_port = passed.copy()
    for type_id in range(types.out_ptr.size - 1):
        for out in range(types.out_ptr[type_id], types.out_ptr[type_id + 1]):
            if passed[out] >= 0 and types.port_plain[types.port_ptr[type_id] + passed[out]]:
                sum_port[out] = -1
    return sum_port


@compiled
def _find_sums(graph: Sections, types: TypeArrays, sum_port: IntArray) -> Flags:
    """Flag the nodes of summing types without plain ports, except those whose outputs are returned."""
    of_type = np.zeros(types.sum_type.size, np.uint8)
    for type_id in range(of_type.size):
        sums = sum_port[types.out_ptr[type_id] : types.out_ptr[type_id + 1]].max() >= 0
        of_type[type_id] = sums and not types.port_plain[types.port_ptr[type_id] : types.port_ptr[type_id + 1]].any()
    type_ids = graph.type_id
    folds = np.zeros(type_ids.size, np.uint8)
    if of_type.any():
        for node in range(folds.size):
            folds[node] = of_type[type_ids[node]]
        for node in graph.out_node:
            folds[node] = 0
    return folds


@compiled
def _count_readers(graph: Sections, types: TypeArrays, sum_port: IntArray, folds: Flags, terms: IntArray) -> IntArray:
    """Count the readers of each sum, at the first edge of its terms; unflag nodes that must stay for their readers."""
    type_id, edge_ptr, edge_src, edge_out, edge_in = (
        graph.type_id, graph.edge_ptr, graph.edge_src, graph.edge_out, graph.edge_in,
    )  # fmt: skip
    out_ptr, port_ptr, port_plain = types.out_ptr, types.port_ptr, types.port_plain
    n_readers = np.zeros(edge_src.size, np.int32)
    for node in range(type_id.size):
        first, end = edge_ptr[node], edge_ptr[node + 1]
        ports = port_ptr[type_id[node]]
        for e in range(first, end):
            source = edge_src[e]
            if not folds[source]:
                continue
            alone = (e == first or edge_in[e - 1] != edge_in[e]) and (e + 1 == end or edge_in[e + 1] != edge_in[e])
            port = sum_port[out_ptr[type_id[source]] + (edge_out[e] & OUTPUT)]
            term, stop = edge_ptr[source], edge_ptr[source + 1]
            while term < stop and edge_in[term] < port:
                term += 1
            if alone and port >= 0 and port_plain[ports + edge_in[e]] and term < stop and edge_in[term] == port:
                terms[e] = term
                n_readers[term] += 1
            else:
                folds[source] = 0
    return n_readers


@compiled
def _choose(graph: Sections, n_types: int, folds: Flags, counts: IntArray) -> tuple[int, int, int]:
    """Unflag nodes whose terms forbid folding; count the nodes that fold, the edges created and those removed.

    Args:
        counts: the readers of each sum, at the first edge of its terms; replaced by the number of terms.
    """
    type_ids, edge_ptr, edge_src, edge_out, edge_in = (
        graph.type_id, graph.edge_ptr, graph.edge_src, graph.edge_out, graph.edge_in,
    )  # fmt: skip
    term_of = np.full(type_ids.size, -1, np.int32)  # the node that last took this one as a term of a sum that is read
    sum_of = np.full(n_types, -1, np.int32)  # the sum that last had a term of this type, ...
    output_of = np.zeros(n_types, np.int32)  # ... and which output that was
    n_folded = n_made = n_gone = 0
    for node in range(type_ids.size):
        if not folds[node]:
            continue
        first, end = edge_ptr[node], edge_ptr[node + 1]
        made, gone, fits, all_read, start = 0, end - first, True, True, first
        while start < end:
            stop = start + 1
            while stop < end and edge_in[stop] == edge_in[start]:
                stop += 1
            if counts[start] > 0:
                fits &= stop - start > 1
                made += counts[start] * (stop - start)
                gone += counts[start]
                for e in range(start, stop):
                    type_id, output = type_ids[edge_src[e]], edge_out[e] & OUTPUT
                    fits &= sum_of[type_id] != start or output_of[type_id] == output
                    sum_of[type_id], output_of[type_id] = start, output
                counts[start] = stop - start
            else:
                all_read = False
            start = stop
        if fits and 0 < made <= GROWTH * gone and (all_read or _only_terms(graph, node, counts, term_of)):
            n_folded, n_made, n_gone = n_folded + 1, n_made + made, n_gone + gone
        else:
            folds[node] = 0
    return n_folded, n_made, n_gone


@compiled
def _only_terms(graph: Sections, node: int, counts: IntArray, term_of: IntArray) -> bool:
    """Say whether everything that a node reads is a term of a sum that is read, as marked in `term_of`."""
    edge_src, edge_in = graph.edge_src, graph.edge_in
    first, end = graph.edge_ptr[node], graph.edge_ptr[node + 1]
    is_read = False
    for e in range(first, end):
        if e == first or edge_in[e] != edge_in[e - 1]:
            is_read = counts[e] > 0
        if is_read:
            term_of[edge_src[e]] = node
    n_others = 0
    for e in range(first, end):
        n_others += term_of[edge_src[e]] != node
    return n_others == 0


@compiled
def _write(
    graph: Sections,
    floats: FloatArray,
    types: TypeArrays,
    folds: Flags,
    terms: IntArray,
    counts: IntArray,
    n_edges: int,
) -> tuple[IntArray, FloatArray]:
    """Write the new graph: `n_edges` edges, and the nodes that are not folded."""
    int_starts, float_starts = data_starts(graph.type_id, graph.attr, types)
    number = np.zeros(folds.size + 1, np.int32)
    n_attr, n_floats = graph.attr.size, floats.size
    for node in range(folds.size):
        number[node + 1] = number[node] + 1 - folds[node]
        if folds[node]:
            n_attr -= int_starts[node + 1] - int_starts[node]
            n_floats -= float_starts[node + 1] - float_starts[node]
    instance_ptr = graph.instance_ptr
    n_instances, n_nodes, n_outputs = instance_ptr.size - 1, number[folds.size], graph.out_node.size
    words = np.empty(words_size(n_instances, n_nodes, n_edges, n_attr, n_outputs), np.int32)
    result = write_header(words, n_instances, n_nodes, n_edges, n_attr, n_outputs, n_floats)
    for i in range(n_instances + 1):
        result.instance_ptr[i] = number[instance_ptr[i]]
    copy_outputs(graph, result, number)
    _write_nodes(graph, result, folds, terms, counts, number)
    kept_floats = np.empty(n_floats, np.float64)
    copy_attributes(graph.attr, result.attr, int_starts, number)
    copy_attributes(floats, kept_floats, float_starts, number)
    return words, kept_floats


@compiled
def _write_nodes(
    graph: Sections, result: Sections, folds: Flags, terms: IntArray, counts: IntArray, number: IntArray
) -> None:
    """Write types and edges of the remaining nodes, with terms in place of the edges that read their sum."""
    type_id, edge_ptr, edge_src, edge_out, edge_in = (
        graph.type_id, graph.edge_ptr, graph.edge_src, graph.edge_out, graph.edge_in,
    )  # fmt: skip
    new_type, new_ptr = result.type_id, result.edge_ptr
    new_src, new_out, new_in = result.edge_src, result.edge_out, result.edge_in
    at = 0
    for node in range(folds.size):
        if folds[node]:
            continue
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            if folds[edge_src[e]]:
                first = terms[e]
                for term in range(first, first + counts[first]):
                    new_src[at], new_out[at], new_in[at] = number[edge_src[term]], edge_out[term], edge_in[e]
                    at += 1
            else:
                new_src[at], new_out[at], new_in[at] = number[edge_src[e]], edge_out[e], edge_in[e]
                at += 1
        new_type[number[node]] = type_id[node]
        new_ptr[number[node] + 1] = at
