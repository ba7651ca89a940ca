"""The arrays of a growing graph, and the compiled loops over them; see `autobatch.graph.growing`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.words import (
    OUTPUT,
    OUTPUT_BITS,
    count_groups,
    data_starts,
    sections,
    words_size,
    write_header,
)
from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray, blank, copied, filled
from autobatch.jit.loops import compiled

PENDING, CHOSEN, DONE = 0, 1, 2  # the states of nodes
NOWHERE = -1
TYPE_ID, STATE, OWNER, EDGE_PTR, ATTR_PTR, FLOAT_PTR, OUTPUT_PTR, N_OF_NODES = range(8)
SOURCE, OUTPUT_WORD, PORT, N_OF_EDGES = range(4)
MADE_BY, WORD, IN_USE, READERS, RUN, SLOT, ROW, KEPT, MARK, NUMBER, N_OF_VALUES = range(11)
"""The rows of the table of values, which are the outputs of nodes, or the rows of outputs of any number of rows:

- MADE_BY: the node; WORD: names the output and the row, as in graphs.
- IN_USE: 1 while the program may use it; READERS: how many edges of pending nodes, and results, read it.
- RUN, SLOT, ROW: the run that computed it, and the row of a slot of its results; NOWHERE if it is not kept.
- KEPT: its row in the table of kept values of its shape, or NOWHERE.
- MARK: the last round that wanted it, or minus the last one that it was a source of.
- NUMBER: of the node that gives it in the graph of a round, or -1 minus that of its source.
"""


class Nodes(NamedTuple):
    """The nodes of a growing graph; arrays have spare room at their ends.

    They are few, because a compiled loop takes as long to receive an array as to read hundreds of numbers from it.

    Attributes:
        table: [7, N+1] the rows that constants name: TYPE_ID, STATE, and OWNER, the instance; and where the edges,
            attributes and outputs of a node begin: EDGE_PTR, ATTR_PTR, FLOAT_PTR and OUTPUT_PTR.
        first_value: [outputs+1] the number of an output's value, or of that of its first row.
        edges: [3, E] SOURCE, OUTPUT_WORD and PORT, as in graphs, of nodes of any phase.
        attr, floats: the attributes, in node order.
    """

    table: IntArray
    first_value: IntArray
    edges: IntArray
    attr: IntArray
    floats: FloatArray


class OutputSlots(NamedTuple):
    """What is known of the outputs of all types, and of the slots in which they are kept.

    Attributes:
        slot: in which an output is kept; outputs are numbered as `TypeArrays.out_ptr` does.
        rows: the variadic group of the type whose edges are the rows of an output; NOWHERE for a single value.
        source: for each slot, the type of the nodes that read a row of its table, or NOWHERE.
    """

    slot: IntArray
    rows: IntArray
    source: IntArray


class Results(NamedTuple):
    """What a round gives.

    Attributes:
        values, slots: what is returned, and in which slot; ptr: where the results of each instance begin.
    """

    values: IntArray
    slots: IntArray
    ptr: IntArray


@compiled
def most_rows(words: IntArray, types: TypeArrays) -> int:
    """Count the rows that outputs have if each node's has those of its longest variadic group, and at least one."""
    phase = sections(words)
    int_starts, _ = data_starts(phase.type_id, phase.attr, types)
    lengths, total = np.zeros(types.group_ptr[-1] + 1, np.int64), 0
    for node in range(phase.type_id.size):
        type_id = phase.type_id[node]
        count_groups(phase, node, int_starts[node], types, lengths)
        n_rows = 1
        for group in range(types.group_ptr[type_id + 1] - types.group_ptr[type_id]):
            n_rows = max(n_rows, lengths[group])
        total += n_rows
    return total


@compiled
def append_phase(
    nodes: Nodes, values: IntArray, words: IntArray, floats: FloatArray, types: TypeArrays, rows: IntArray,
    first: int, n_edges: int,
) -> tuple[int, int]:  # fmt: skip
    """Copy the nodes of a phase behind those of earlier ones, of which there are `first` with `n_edges` edges.

    Returns:
        How many outputs and values there are now.
    """
    phase, table, edges, first_value = sections(words), nodes.table, nodes.edges, nodes.first_value
    int_starts, float_starts = data_starts(phase.type_id, phase.attr, types)
    phase_types, ends, edge_src, edge_out, edge_in = (
        phase.type_id, phase.edge_ptr, phase.edge_src, phase.edge_out, phase.edge_in
    )  # fmt: skip
    type_ids, state, owner, output_ptr = table[TYPE_ID], table[STATE], table[OWNER], table[OUTPUT_PTR]
    edge_ptr, attr_ptr, float_ptr, out_ptr = table[EDGE_PTR], table[ATTR_PTR], table[FLOAT_PTR], types.out_ptr
    source, output, port, made_by, word = edges[SOURCE], edges[OUTPUT_WORD], edges[PORT], values[MADE_BY], values[WORD]
    in_use, readers, run, kept, mark = values[IN_USE], values[READERS], values[RUN], values[KEPT], values[MARK]
    copy_part(phase.attr, 0, phase.attr.size, nodes.attr, attr_ptr[first])
    copy_part(floats, 0, floats.size, nodes.floats, float_ptr[first])
    lengths = np.zeros(types.group_ptr[-1] + 1, np.int64)
    attr_end, float_end, v = attr_ptr[first], float_ptr[first], first_value[output_ptr[first]]
    for i in range(phase.instance_ptr.size - 1):
        for n in range(phase.instance_ptr[i], phase.instance_ptr[i + 1]):
            node, type_id = first + n, phase_types[n]
            type_ids[node], owner[node], state[node] = type_id, i, PENDING
            attr_ptr[node + 1], float_ptr[node + 1] = attr_end + int_starts[n + 1], float_end + float_starts[n + 1]
            n_outputs = out_ptr[type_id + 1] - out_ptr[type_id]
            output_ptr[node + 1] = output_ptr[node] + n_outputs
            count_groups(phase, n, int_starts[n], types, lengths)
            for out in range(n_outputs):
                group = rows[out_ptr[type_id] + out]
                for k in range(1 if group == NOWHERE else lengths[group]):
                    made_by[v], word[v], in_use[v], readers[v], mark[v] = node, out | k << OUTPUT_BITS, 0, 0, 0
                    run[v] = kept[v] = NOWHERE
                    v += 1
                first_value[output_ptr[node] + out + 1] = v
            for e in range(ends[n], ends[n + 1]):
                edge, read = n_edges + e, first + edge_src[e]
                source[edge], output[edge], port[edge] = read, edge_out[e], edge_in[e]
                readers[value_of(output_ptr, first_value, read, edge_out[e])] += 1
            edge_ptr[node + 1] = n_edges + ends[n + 1]
    return output_ptr[first + phase_types.size], v


@compiled
def value_of(output_ptr: IntArray, first_value: IntArray, node: int, word: int) -> int:
    """The number of the value that a word names."""
    return int(first_value[output_ptr[node] + (word & OUTPUT)] + (word >> OUTPUT_BITS))


@compiled
def values_of(table: IntArray, first_value: IntArray, of: IntArray, words: IntArray) -> IntArray:
    """The numbers of the values that words name, of these nodes."""
    output_ptr, found = table[OUTPUT_PTR], blank(of.size)
    for k in range(of.size):
        found[k] = value_of(output_ptr, first_value, of[k], words[k])
    return found


@compiled
def copy_part(values: NDArray[Any], first: int, end: int, target: NDArray[Any], at: int) -> int:
    """Copy values[first:end] to target[at:], and give the place behind them."""
    for k in range(first, end):
        target[at + k - first] = values[k]
    return at + end - first


@compiled
def set_in_use(table: IntArray, first_value: IntArray, values: IntArray, of: IntArray, in_use: int) -> None:
    """Set the flag of all outputs of some nodes."""
    output_ptr, flags = table[OUTPUT_PTR], values[IN_USE]
    for k in range(of.size):
        for v in range(first_value[output_ptr[of[k]]], first_value[output_ptr[of[k] + 1]]):
            flags[v] = in_use


@compiled
def count_readers(values: IntArray, of: IntArray, n: int) -> None:
    """Count n more readers of each of these values."""
    readers = values[READERS]
    for k in range(of.size):
        readers[of[k]] += n


@compiled
def sketch_pending(
    nodes: Nodes, values: IntArray, wanted: IntArray, pending: IntArray, n_nodes: int
) -> tuple[IntArray, IntArray]:
    """Find the pending nodes that wanted values depend on, and write the graph of their types and edges alone.

    Returns:
        The nodes, in order; and the words of the graph, of one instance, in which they are numbered from 0.
    """
    table, edges, made_by = nodes.table, nodes.edges, values[MADE_BY]
    state, edge_ptr, type_id, source = table[STATE], table[EDGE_PTR], table[TYPE_ID], edges[SOURCE]
    number, stack = filled(n_nodes, NOWHERE), blank(pending.size)
    n_needed = n_edges = 0
    for k in range(wanted.size):
        node, height = made_by[wanted[k]], 0
        if state[node] == PENDING and number[node] == NOWHERE:
            number[node], stack[0], height = 0, node, 1
        while height:
            height -= 1
            node, n_needed = stack[height], n_needed + 1
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                if state[source[e]] == PENDING:
                    n_edges += 1
                    if number[source[e]] == NOWHERE:
                        number[source[e]], stack[height] = 0, source[e]
                        height += 1
    needed, n = blank(n_needed), 0
    words = np.empty(words_size(1, n_needed, n_edges, 0, 0), np.int32)
    graph = write_header(words, 1, n_needed, n_edges, 0, 0, 0)
    graph.instance_ptr[1], graph.output_ptr[1], e_new = n_needed, 0, 0
    for k in range(pending.size):
        node = pending[k]
        if number[node] != NOWHERE:
            number[node], needed[n], graph.type_id[n] = n, node, type_id[node]
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                if number[source[e]] != NOWHERE:
                    graph.edge_src[e_new], graph.edge_out[e_new] = number[source[e]], 0
                    graph.edge_in[e_new] = edges[PORT][e]
                    e_new += 1
            n += 1
            graph.edge_ptr[n] = e_new
    return needed, words


@compiled
def drop_pending(nodes: Nodes, values: IntArray, pending: IntArray, place: int) -> IntArray:
    """Drop the pending nodes of the instance at a place: nothing reads them; give the other pending nodes."""
    table, edges, first_value, readers = nodes.table, nodes.edges, nodes.first_value, values[READERS]
    state, owner, edge_ptr, output_ptr = table[STATE], table[OWNER], table[EDGE_PTR], table[OUTPUT_PTR]
    left, n = blank(pending.size), 0
    for k in range(pending.size):
        node = pending[k]
        if owner[node] == place:
            state[node] = DONE
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                readers[value_of(output_ptr, first_value, edges[SOURCE, e], edges[OUTPUT_WORD, e])] -= 1
        else:
            left[n] = node
            n += 1
    return copied(left, n)


@compiled
def choose_nodes(
    nodes: Nodes, values: IntArray, out_ptr: IntArray, slot_of: IntArray, wanted: IntArray, pending: IntArray,
    about: tuple[int, int, int],
) -> tuple[IntArray, ...]:  # fmt: skip
    """Choose nodes, see `GrowingGraph.choose`.

    Args:
        about: the numbers of the round and of its run, and how many instances there are.

    Returns:
        The nodes, the values that they read, the other pending nodes, and the kept values as `Results` has them.
    """
    now, run, n_instances = about
    is_last = run == NOWHERE
    table, edges, first_value = nodes.table, nodes.edges, nodes.first_value
    state, edge_ptr, owner, output_ptr = table[STATE], table[EDGE_PTR], table[OWNER], table[OUTPUT_PTR]
    source, output, made_by, mark, readers = (
        edges[SOURCE], edges[OUTPUT_WORD], values[MADE_BY], values[MARK], values[READERS]
    )  # fmt: skip
    stack, n_chosen, n_sources = blank(pending.size), 0, 0
    for k in range(pending.size):
        n_chosen += state[pending[k]] == CHOSEN  # picked before
    for k in range(wanted.size):
        node, mark[wanted[k]], height = made_by[wanted[k]], now, 0
        if state[node] == DONE:
            n_sources += 1
        elif state[node] == PENDING:
            state[node], stack[0], height = CHOSEN, node, 1
        while height:
            height -= 1
            node, n_chosen = stack[height], n_chosen + 1
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                if state[source[e]] == PENDING:
                    state[source[e]], stack[height] = CHOSEN, source[e]
                    height += 1
    found, left, n_found, n_left = blank(n_chosen), blank(pending.size - n_chosen), 0, 0
    for k in range(pending.size):
        if state[pending[k]] == CHOSEN:
            found[n_found] = pending[k]
            n_found += 1
            n_sources += edge_ptr[pending[k] + 1] - edge_ptr[pending[k]]
        else:
            left[n_left] = pending[k]
            n_left += 1
    sources, n_sources = blank(n_sources), 0
    for k in range(wanted.size):
        v = wanted[k]
        if is_last and state[made_by[v]] == DONE and mark[v] == now:
            sources[n_sources], mark[v] = v, -now
            n_sources += 1
    for k in range(n_chosen):
        for e in range(edge_ptr[found[k]], edge_ptr[found[k] + 1]):
            v = value_of(output_ptr, first_value, source[e], output[e])
            readers[v] -= 1
            if state[source[e]] == DONE and mark[v] != -now:
                sources[n_sources], mark[v] = v, -now
                n_sources += 1
    owners = blank(max(n_sources, n_chosen))
    for k in range(n_sources):
        owners[k] = owner[made_by[sources[k]]]
    ordered = in_order(sources, owners, n_sources, n_instances)
    for k in range(n_chosen):
        owners[k] = owner[found[k]]
    found = in_order(found, owners, n_chosen, n_instances)
    kept, slots, ptr = _keep(nodes, values, out_ptr, slot_of, found, about)
    return found, ordered, left, kept, slots, ptr


@compiled
def _keep(
    nodes: Nodes, values: IntArray, out_ptr: IntArray, slot_of: IntArray, chosen: IntArray, about: tuple[int, int, int]
) -> tuple[IntArray, IntArray, IntArray]:
    """Find the values of chosen nodes that are wanted, or may be read later, and number their rows in their slots.

    Returns:
        The values, their slots, and where those of each instance begin.
    """
    now, run, n_instances = about
    type_id, owner, output_ptr = nodes.table[TYPE_ID], nodes.table[OWNER], nodes.table[OUTPUT_PTR]
    first_value, mark, word, in_use = nodes.first_value, values[MARK], values[WORD], values[IN_USE]
    readers, runs, in_slot, row = values[READERS], values[RUN], values[SLOT], values[ROW]
    n = most = 0
    for k in range(chosen.size):
        if run != NOWHERE:
            n += first_value[output_ptr[chosen[k] + 1]] - first_value[output_ptr[chosen[k]]]
    for k in range(slot_of.size):
        most = max(most, slot_of[k])
    kept, slots, ptr, rows, n = blank(n), blank(n), filled(n_instances + 1, 0), filled(most + 1, 0), 0
    for k in range(chosen.size):
        node = chosen[k]
        for v in range(first_value[output_ptr[node]], first_value[output_ptr[node + 1]]):
            if run != NOWHERE and (mark[v] == now or in_use[v] != 0 or readers[v] > 0):
                slot = slot_of[out_ptr[type_id[node]] + (word[v] & OUTPUT)]
                kept[n], slots[n] = v, slot
                runs[v], in_slot[v], row[v] = run, slot, rows[slot]
                rows[slot] += 1
                ptr[owner[node] + 1] += 1
                n += 1
    for i in range(n_instances):
        ptr[i + 1] += ptr[i]
    return copied(kept, n), copied(slots, n), ptr


@compiled
def in_order(items: IntArray, owners: IntArray, n: int, n_owners: int) -> IntArray:
    """The first n items: those of owner 0, then those of owner 1, ...; those of one owner stay in order."""
    ends, ordered = filled(n_owners + 1, 0), blank(n)
    for k in range(n):
        ends[owners[k] + 1] += 1
    for i in range(n_owners):
        ends[i + 1] += ends[i]
    for k in range(n):
        ordered[ends[owners[k]]] = items[k]
        ends[owners[k]] += 1
    return ordered


@compiled
def emit_graph(
    nodes: Nodes, values: IntArray, source_type: IntArray, picked: IntArray, sources: IntArray, results: Results
) -> tuple[IntArray, FloatArray]:
    """Write the graph of the chosen nodes and sources, and note that the nodes are done."""
    returned, slots, ends = results.values, results.slots, results.ptr
    n_instances = ends.size - 1
    table, edges, all_attr, all_floats = nodes.table, nodes.edges, nodes.attr, nodes.floats
    all_types, state, owner, output_ptr = table[TYPE_ID], table[STATE], table[OWNER], table[OUTPUT_PTR]
    edge_ptr, attr_ptr, float_ptr, first_value = table[EDGE_PTR], table[ATTR_PTR], table[FLOAT_PTR], nodes.first_value
    source, output, port = edges[SOURCE], edges[OUTPUT_WORD], edges[PORT]
    made_by, word, number, kept, in_slot = values[MADE_BY], values[WORD], values[NUMBER], values[KEPT], values[SLOT]
    n_edges, n_attr, n_floats = 0, sources.size, 0
    for k in range(picked.size):
        node = picked[k]
        n_edges += edge_ptr[node + 1] - edge_ptr[node]
        n_attr += attr_ptr[node + 1] - attr_ptr[node]
        n_floats += float_ptr[node + 1] - float_ptr[node]
    n_nodes = picked.size + sources.size
    words = np.empty(words_size(n_instances, n_nodes, n_edges, n_attr, returned.size), np.int32)
    floats = np.empty(n_floats, np.float64)
    graph = write_header(words, n_instances, n_nodes, n_edges, n_attr, returned.size, n_floats)
    instance_ptr, returned_ptr, type_id, ptr, attr = (
        graph.instance_ptr, graph.output_ptr, graph.type_id, graph.edge_ptr, graph.attr
    )  # fmt: skip
    edge_src, edge_out, edge_in, out_node, out_port = (
        graph.edge_src, graph.edge_out, graph.edge_in, graph.out_node, graph.out_port
    )  # fmt: skip
    out_slot = graph.out_slot
    n = e = a = f = s = c = o = 0
    for i in range(n_instances):
        while s < sources.size and owner[made_by[sources[s]]] == i:
            v = sources[s]
            type_id[n], attr[a], number[v] = source_type[in_slot[v]], kept[v], -1 - n
            n, a, s = n + 1, a + 1, s + 1
            ptr[n] = e
        while c < picked.size and owner[picked[c]] == i:
            node = picked[c]
            type_id[n], state[node] = all_types[node], DONE
            for k in range(edge_ptr[node], edge_ptr[node + 1]):
                read = number[value_of(output_ptr, first_value, source[k], output[k])]
                edge_src[e], edge_out[e], edge_in[e] = read, output[k], port[k]
                if read < 0:
                    edge_src[e], edge_out[e] = -1 - read, 0
                e += 1
            a = copy_part(all_attr, attr_ptr[node], attr_ptr[node + 1], attr, a)
            f = copy_part(all_floats, float_ptr[node], float_ptr[node + 1], floats, f)
            for v in range(first_value[output_ptr[node]], first_value[output_ptr[node + 1]]):
                number[v] = n
            n, c = n + 1, c + 1
            ptr[n] = e
        instance_ptr[i + 1] = n
        while o < ends[i + 1]:
            v = returned[o]
            read = number[v]
            out_node[o], out_port[o], out_slot[o] = read, word[v], slots[o]
            if read < 0:
                out_node[o], out_port[o] = -1 - read, 0
            o += 1
        returned_ptr[i + 1] = o
    return words, floats
