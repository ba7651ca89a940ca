"""The arrays of a growing graph, and the compiled loops over them; see `autobatch.graph.growing`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.words import OUTPUT, OUTPUT_BITS, Sections, data_starts, sections, words_size, write_header
from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray, blank, copied, filled
from autobatch.jit.loops import compiled

PENDING, CHOSEN, DONE = 0, 1, 2  # the states of nodes
NOWHERE = -1


class Nodes(NamedTuple):
    """The nodes of a growing graph; arrays have spare room at their ends.

    Attributes:
        type_id, state: [N].
        owner: [N] the instance.
        edge_ptr, attr_ptr, float_ptr, output_ptr: [N+1] where the edges, attributes and outputs of a node begin.
        first_value: [outputs+1] the number of an output's value, or of that of its first row.
        source, output, port: [E] as in graphs, of nodes of any phase.
        attr, floats: the attributes, in node order.
    """

    type_id: IntArray
    state: IntArray
    owner: IntArray
    edge_ptr: IntArray
    attr_ptr: IntArray
    float_ptr: IntArray
    output_ptr: IntArray
    first_value: IntArray
    source: IntArray
    output: IntArray
    port: IntArray
    attr: IntArray
    floats: FloatArray


class Values(NamedTuple):
    """The outputs of the nodes of a growing graph, or the rows of those that have any number of rows.

    Attributes:
        node: that makes it; word: names the output and the row, as in graphs.
        in_use: 1 while the program may use it.
        readers: how many edges of pending nodes, and results, read it.
        run, slot, row: the run that computed it, and the row of a slot of its results; NOWHERE if it is not kept.
        kept: its row in the table of kept values of its shape, or NOWHERE.
        mark: the last round that wanted it, or minus the last one that it was a source of.
        number: of the node that gives it in the graph of a round, or -1 minus that of its source.
    """

    node: IntArray
    word: IntArray
    in_use: IntArray
    readers: IntArray
    run: IntArray
    slot: IntArray
    row: IntArray
    kept: IntArray
    mark: IntArray
    number: IntArray


class Kinds(NamedTuple):
    """What is known of the outputs of each type, numbered as `TypeArrays.out_ptr` does.

    Attributes:
        source: the type of the nodes that read it from the table of kept values, or NOWHERE.
        slot: in which it is kept.
        rows: where its number of rows is found: NOWHERE for a single value; a port, whose edges are counted; or -2
            minus the number, in the type, of data whose length it is.
    """

    source: IntArray
    slot: IntArray
    rows: IntArray


class Results(NamedTuple):
    """What a round gives.

    Attributes:
        values, slots: what is returned, and in which slot; ptr: where the results of each instance begin.
    """

    values: IntArray
    slots: IntArray
    ptr: IntArray


@compiled
def count_rows(phase: Sections, n: int, at: int, types: TypeArrays, where: int) -> int:
    """Count the rows of an output of node n of a phase, whose int attributes begin at `at`; see `Kinds.rows`."""
    if where == NOWHERE:
        return 1
    n_rows = 0
    if where >= 0:
        for e in range(phase.edge_ptr[n], phase.edge_ptr[n + 1]):
            n_rows += phase.edge_in[e] == where
        return n_rows
    kind = phase.type_id[n]
    at += types.int_width[kind]
    for number in range(types.data_ptr[kind], types.data_ptr[kind] - 1 - where):
        n_rows = phase.attr[at]
        at += 1 + n_rows * types.data_ints[number]
    return n_rows


@compiled
def count_values(words: IntArray, types: TypeArrays, rows: IntArray) -> tuple[int, int]:
    """Count the outputs of a phase, and their values: one each, or one for each row."""
    phase, out_ptr = sections(words), types.out_ptr
    n_outputs = n_values = 0
    starts = data_starts(phase.type_id, phase.attr, types)[0]
    for n in range(phase.type_id.size):
        first, end = out_ptr[phase.type_id[n]], out_ptr[phase.type_id[n] + 1]
        n_outputs += end - first
        for out in range(first, end):
            n_values += count_rows(phase, n, starts[n], types, rows[out])
    return n_outputs, n_values


@compiled
def append_phase(
    nodes: Nodes, values: Values, words: IntArray, floats: FloatArray, types: TypeArrays, rows: IntArray,
    first: int, n_edges: int,
) -> None:  # fmt: skip
    """Copy the nodes of a phase behind those of earlier ones, of which there are `first` with `n_edges` edges."""
    phase = sections(words)
    int_starts, float_starts = data_starts(phase.type_id, phase.attr, types)
    kinds, ends, edge_src, edge_out = phase.type_id, phase.edge_ptr, phase.edge_src, phase.edge_out
    type_id, owner, state, readers = nodes.type_id, nodes.owner, nodes.state, values.readers
    edge_ptr, attr_ptr, float_ptr = nodes.edge_ptr, nodes.attr_ptr, nodes.float_ptr
    output_ptr, first_value = nodes.output_ptr, nodes.first_value
    source, output, port, made_by, word = nodes.source, nodes.output, nodes.port, values.node, values.word
    in_use, run, kept, mark, out_ptr = values.in_use, values.run, values.kept, values.mark, types.out_ptr
    copy_part(phase.attr, 0, phase.attr.size, nodes.attr, attr_ptr[first])
    copy_part(floats, 0, floats.size, nodes.floats, float_ptr[first])
    attr_end, float_end, v = attr_ptr[first], float_ptr[first], first_value[output_ptr[first]]
    for i in range(phase.instance_ptr.size - 1):
        for n in range(phase.instance_ptr[i], phase.instance_ptr[i + 1]):
            node, kind = first + n, kinds[n]
            type_id[node], owner[node], state[node] = kind, i, PENDING
            attr_ptr[node + 1], float_ptr[node + 1] = attr_end + int_starts[n + 1], float_end + float_starts[n + 1]
            n_outputs = out_ptr[kind + 1] - out_ptr[kind]
            output_ptr[node + 1] = output_ptr[node] + n_outputs
            for out in range(n_outputs):
                for k in range(count_rows(phase, n, int_starts[n], types, rows[out_ptr[kind] + out])):
                    made_by[v], word[v], in_use[v], readers[v], mark[v] = node, out | k << OUTPUT_BITS, 0, 0, 0
                    run[v] = kept[v] = NOWHERE
                    v += 1
                first_value[output_ptr[node] + out + 1] = v
            for e in range(ends[n], ends[n + 1]):
                edge, read = n_edges + e, first + edge_src[e]
                source[edge], output[edge], port[edge] = read, edge_out[e], phase.edge_in[e]
                readers[value_of(output_ptr, first_value, read, edge_out[e])] += 1
            edge_ptr[node + 1] = n_edges + ends[n + 1]


@compiled
def value_of(output_ptr: IntArray, first_value: IntArray, node: int, word: int) -> int:
    """The number of the value that a word names."""
    return int(first_value[output_ptr[node] + (word & OUTPUT)] + (word >> OUTPUT_BITS))


@compiled
def values_of(nodes: Nodes, of: IntArray, words: IntArray) -> IntArray:
    """The numbers of the values that words name, of these nodes."""
    output_ptr, first_value, found = nodes.output_ptr, nodes.first_value, blank(of.size)
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
def set_in_use(nodes: Nodes, flags: IntArray, of: IntArray, in_use: int) -> None:
    """Set the flag of all outputs of some nodes."""
    output_ptr, first_value = nodes.output_ptr, nodes.first_value
    for k in range(of.size):
        for v in range(first_value[output_ptr[of[k]]], first_value[output_ptr[of[k] + 1]]):
            flags[v] = in_use


@compiled
def count_readers(readers: IntArray, values: IntArray, n: int) -> None:
    """Count n more readers of each of these values."""
    for k in range(values.size):
        readers[values[k]] += n


@compiled
def choose_nodes(
    nodes: Nodes, values: Values, out_ptr: IntArray, slot_of: IntArray, wanted: IntArray, pending: IntArray,
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
    state, edge_ptr, source, output, owner = nodes.state, nodes.edge_ptr, nodes.source, nodes.output, nodes.owner
    output_ptr, first_value, made_by = nodes.output_ptr, nodes.first_value, values.node
    mark, readers = values.mark, values.readers
    stack, n_chosen, n_sources = blank(pending.size), 0, 0
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
    nodes: Nodes, values: Values, out_ptr: IntArray, slot_of: IntArray, chosen: IntArray, about: tuple[int, int, int]
) -> tuple[IntArray, IntArray, IntArray]:
    """Find the values of chosen nodes that are wanted, or may be read later, and number their rows in their slots.

    Returns:
        The values, their slots, and where those of each instance begin.
    """
    now, run, n_instances = about
    type_id, owner, output_ptr, first_value = nodes.type_id, nodes.owner, nodes.output_ptr, nodes.first_value
    mark, word = values.mark, values.word
    in_use, readers, runs, in_slot, row = values.in_use, values.readers, values.run, values.slot, values.row
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
    nodes: Nodes, values: Values, types: TypeArrays, kinds: Kinds, picked: IntArray, sources: IntArray,
    results: Results,
) -> tuple[IntArray, FloatArray]:  # fmt: skip
    """Write the graph of the chosen nodes and sources, and note that the nodes are done."""
    returned, slots, ends = results.values, results.slots, results.ptr
    n_instances = ends.size - 1
    all_types, owner, state, source, output = nodes.type_id, nodes.owner, nodes.state, nodes.source, nodes.output
    edge_ptr, attr_ptr, float_ptr = nodes.edge_ptr, nodes.attr_ptr, nodes.float_ptr
    output_ptr, first_value, word = nodes.output_ptr, nodes.first_value, values.word
    port, all_attr, all_floats, made_by, number = nodes.port, nodes.attr, nodes.floats, values.node, values.number
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
    out_slot, out_ptr, source_kind, kept = graph.out_slot, types.out_ptr, kinds.source, values.kept
    n = e = a = f = s = c = o = 0
    for i in range(n_instances):
        while s < sources.size and owner[made_by[sources[s]]] == i:
            v = sources[s]
            node = made_by[v]
            type_id[n] = source_kind[out_ptr[all_types[node]] + (word[v] & OUTPUT)]
            attr[a], number[v] = kept[v], -1 - n
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
