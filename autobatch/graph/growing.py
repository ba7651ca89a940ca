"""Growing graphs: the graph of a mini-batch that is recorded, and run, bit by bit.

Async programs are recorded in phases; after each phase a *round* runs what the programs wait for. A `GrowingGraph`
holds all that was recorded so far. `choose` finds the nodes that a round must run, which are those that the wanted
values depend on and that have not run; `emit` makes a graph of them. In that graph a *source* stands for each value
that an earlier round has computed: a node that reads a row of a table of kept values. The graph of a round also says
which of its values are kept: those that are wanted, that the program may still use, or that a node held back reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.graph import Graph
from autobatch.graph.words import sections, words_size, write_header
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
        edge_ptr, attr_ptr, float_ptr, value_ptr: [N+1] where the edges, attributes and outputs of a node begin.
        source, output, port: [E] as in graphs, of nodes of any phase.
        attr, floats: the attributes, in node order.
    """

    type_id: IntArray
    state: IntArray
    owner: IntArray
    edge_ptr: IntArray
    attr_ptr: IntArray
    float_ptr: IntArray
    value_ptr: IntArray
    source: IntArray
    output: IntArray
    port: IntArray
    attr: IntArray
    floats: FloatArray


class Values(NamedTuple):
    """The outputs of the nodes of a growing graph.

    Attributes:
        node: that makes it.
        in_use: 1 while the program may use it.
        readers: how many edges of pending nodes read it.
        run, slot, row: the run that computed it, and the row of a slot of its results; NOWHERE if it is not kept.
        kept: its row in the table of kept values of its shape, or NOWHERE.
        mark: the last round that wanted it, or minus the last one that it was a source of.
        number: of the node that gives it in the graph of a round, or -1 minus that of its source.
    """

    node: IntArray
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
        source: the type of the nodes that read it from the table of kept values.
        slot: in which it is kept.
    """

    source: IntArray
    slot: IntArray


class Chosen(NamedTuple):
    """What a round runs.

    Attributes:
        nodes: in the order of their instances; sources: the values of earlier rounds that they read, likewise.
    """

    nodes: IntArray
    sources: IntArray


class Results(NamedTuple):
    """What a round gives.

    Attributes:
        values, slots: what is returned, and in which slot; ptr: where the results of each instance begin.
    """

    values: IntArray
    slots: IntArray
    ptr: IntArray


class GrowingGraph:
    """The nodes that the async programs of a mini-batch have recorded so far.

    Args:
        n_instances: of the mini-batch.

    Attributes:
        n_nodes, n_values: how many there are.
        nodes, values: all of them.
    """

    def __init__(self, n_instances: int) -> None:
        self.n_instances, self.n_nodes, self.n_values, self._n_edges = n_instances, 0, 0, 0
        self.nodes = Nodes._make([*(np.zeros(64, np.int32) for _ in Nodes._fields[:-1]), np.zeros(64)])
        self.values = Values(*(np.zeros(64, np.int32) for _ in Values._fields))
        self._pending = np.zeros(0, np.int32)
        self._round = 0

    @property
    def owner(self) -> IntArray:
        """The instance of each node."""
        return self.nodes.owner[: self.n_nodes]

    def append(self, phase: Graph) -> None:
        """Add the nodes of a phase, whose edges may come from nodes of earlier ones.

        Args:
            phase: numbers its own nodes from 0, and those of earlier phases backwards from -1.
        """
        arrays, first = phase.types.arrays(), self.n_nodes
        n_edges, ends = self._n_edges + phase.n_edges, (self.nodes.attr_ptr[first], self.nodes.float_ptr[first])
        n_values = self.n_values + int(np.diff(arrays.out_ptr)[phase.type_id].sum())
        n_nodes = first + phase.n_nodes
        sizes = [*[n_nodes + 1] * 7, *[n_edges] * 3, ends[0] + phase.attr.size, ends[1] + phase.floats.size]
        self.nodes = Nodes._make(map(_with_room, self.nodes, sizes))
        self.values = Values._make(_with_room(values, n_values) for values in self.values)
        append_phase(self.nodes, self.values, phase.words, phase.floats, arrays, first, self._n_edges)
        self._pending = np.concatenate((self._pending, np.arange(first, n_nodes, dtype=np.int32)))
        self.n_nodes, self.n_values, self._n_edges = n_nodes, n_values, n_edges

    def values_of(self, nodes: IntArray, outputs: IntArray) -> IntArray:
        """The numbers of values."""
        return self.nodes.value_ptr[nodes] + outputs

    def use(self, nodes: IntArray, in_use: bool) -> None:
        """Note whether the program may still use the outputs of these nodes."""
        set_in_use(self.nodes.value_ptr, self.values.in_use, nodes.astype(np.int32), int(in_use))

    def choose(self, wanted: IntArray, all_sources: bool) -> Chosen:
        """Choose the pending nodes that these values depend on; they count as done from now on.

        Args:
            all_sources: whether wanted values of earlier rounds are sources too.
        """
        self._round += 1
        nodes, sources, self._pending = choose_nodes(
            self.nodes, self.values, wanted.astype(np.int32), self._pending, self._round, self.n_instances, all_sources
        )
        return Chosen(nodes, sources)

    @contextmanager
    def holding(self, values: IntArray) -> Iterator[None]:
        """Within the context, these values are kept."""
        self.hold(values, 1)
        try:
            yield
        finally:
            self.hold(values, -1)

    def hold(self, values: IntArray, n: int) -> None:
        """Count n more readers of each of these values."""
        np.add.at(self.values.readers, values, n)

    def emit(self, chosen: Chosen, kinds: Kinds, run: int, types: Any) -> tuple[Graph, IntArray]:
        """Make the graph of a round; note in which row of which slot of the run each kept value will be.

        Returns:
            The graph, and the kept values, which are its outputs.
        """
        kept = find_kept(self.nodes, self.values, chosen.nodes, self._round)
        slots, ptr = place_kept(self.nodes, self.values, types.arrays(), kinds, kept, run, self.n_instances)
        graph = self._emit(chosen, kinds, Results(kept, slots, ptr), types, (None,) * self.n_instances)
        return graph, kept

    def emit_last(self, chosen: Chosen, kinds: Kinds, results: Results, types: Any, structures: Sequence[Any]) -> Graph:
        """Make the graph of the last run, whose outputs are the results of the programs."""
        return self._emit(chosen, kinds, results, types, tuple(structures))

    def emit_whole(
        self, needed: IntArray, kinds: Kinds, results: Results, types: Any, structures: Sequence[Any]
    ) -> Graph:
        """Make the graph of all nodes that these values depend on; no round may follow."""
        self.nodes.state[: self.n_nodes] = PENDING
        self._pending = np.arange(self.n_nodes, dtype=np.int32)
        return self.emit_last(self.choose(needed, all_sources=False), kinds, results, types, structures)

    def _emit(self, chosen: Chosen, kinds: Kinds, results: Results, types: Any, structures: tuple[Any, ...]) -> Graph:
        words, floats = emit_graph(self.nodes, self.values, types.arrays(), kinds, chosen, results, self.n_instances)
        graph = Graph(words, floats, types, structures)
        graph.in_range = True  # the phases were checked
        return graph


def _with_room(array: Any, size: int) -> Any:
    """The array, or a longer copy that has `size` elements."""
    if size <= array.size:
        return array
    grown = np.zeros(max(size, 2 * array.size), array.dtype)
    grown[: array.size] = array
    return grown


@compiled
def append_phase(
    nodes: Nodes, values: Values, words: IntArray, floats: FloatArray, types: TypeArrays, first: int, n_edges: int
) -> None:
    """Copy the nodes of a phase behind those of earlier ones."""
    phase = sections(words)
    kinds, ends, edge_src, edge_out, edge_in = (
        phase.type_id,
        phase.edge_ptr,
        phase.edge_src,
        phase.edge_out,
        phase.edge_in,
    )
    type_id, owner, state, readers = nodes.type_id, nodes.owner, nodes.state, values.readers
    edge_ptr, attr_ptr, float_ptr, value_ptr = nodes.edge_ptr, nodes.attr_ptr, nodes.float_ptr, nodes.value_ptr
    source, output, port, made_by, in_use = nodes.source, nodes.output, nodes.port, values.node, values.in_use
    run, kept, mark, out_ptr = values.run, values.kept, values.mark, types.out_ptr
    int_width, float_width = types.int_width, types.float_width
    copy_behind(phase.attr, nodes.attr, attr_ptr[first])
    copy_behind(floats, nodes.floats, float_ptr[first])
    for i in range(phase.instance_ptr.size - 1):
        for n in range(phase.instance_ptr[i], phase.instance_ptr[i + 1]):
            node, kind = first + n, kinds[n]
            type_id[node], owner[node], state[node] = kind, i, PENDING
            attr_ptr[node + 1] = attr_ptr[node] + int_width[kind]
            float_ptr[node + 1] = float_ptr[node] + float_width[kind]
            value_ptr[node + 1] = value_ptr[node] + out_ptr[kind + 1] - out_ptr[kind]
            for v in range(value_ptr[node], value_ptr[node + 1]):
                made_by[v], in_use[v], readers[v], mark[v] = node, 0, 0, 0
                run[v] = kept[v] = NOWHERE
            for e in range(ends[n], ends[n + 1]):
                edge, read = n_edges + e, first + edge_src[e]
                source[edge], output[edge], port[edge] = read, edge_out[e], edge_in[e]
                readers[value_ptr[read] + edge_out[e]] += 1
            edge_ptr[node + 1] = n_edges + ends[n + 1]


@compiled
def copy_behind(values: NDArray[Any], target: NDArray[Any], at: int) -> None:
    """Copy values to a target, from a position on."""
    for k in range(values.size):
        target[at + k] = values[k]


@compiled
def set_in_use(value_ptr: IntArray, flags: IntArray, nodes: IntArray, in_use: int) -> None:
    """Set the flag of all outputs of some nodes."""
    for k in range(nodes.size):
        for v in range(value_ptr[nodes[k]], value_ptr[nodes[k] + 1]):
            flags[v] = in_use


@compiled
def choose_nodes(
    nodes: Nodes, values: Values, wanted: IntArray, pending: IntArray, now: int, n_instances: int, all_sources: bool
) -> tuple[IntArray, IntArray, IntArray]:
    """Find the pending nodes that wanted values depend on, the values that they read, and the other pending nodes."""
    state, edge_ptr, source, output = nodes.state, nodes.edge_ptr, nodes.source, nodes.output
    value_ptr, made_by, mark = nodes.value_ptr, values.node, values.mark
    stack, n_chosen = blank(pending.size), 0
    n_sources = 0
    for k in range(wanted.size):
        node = made_by[wanted[k]]
        if state[node] == DONE and all_sources and mark[wanted[k]] != now:
            n_sources += 1
        mark[wanted[k]] = now
        height = 0
        if state[node] == PENDING:
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
        else:
            left[n_left] = pending[k]
            n_left += 1
    n_edges = 0
    for k in range(n_chosen):
        n_edges += edge_ptr[found[k] + 1] - edge_ptr[found[k]]
    sources, n_sources = blank(n_sources + n_edges), 0
    if all_sources:
        for k in range(wanted.size):
            v = wanted[k]
            if state[made_by[v]] == DONE and mark[v] == now:
                sources[n_sources], mark[v] = v, -now
                n_sources += 1
    for k in range(n_chosen):
        for e in range(edge_ptr[found[k]], edge_ptr[found[k] + 1]):
            v = value_ptr[source[e]] + output[e]
            values.readers[v] -= 1
            if state[source[e]] == DONE and mark[v] != -now:
                sources[n_sources], mark[v] = v, -now
                n_sources += 1
    owners = blank(n_sources)
    for k in range(n_sources):
        owners[k] = nodes.owner[made_by[sources[k]]]
    ordered = in_order(sources, owners, n_instances)
    owners = blank(n_chosen)
    for k in range(n_chosen):
        owners[k] = nodes.owner[found[k]]
    return in_order(found, owners, n_instances), ordered, left


@compiled
def in_order(items: IntArray, owners: IntArray, n_owners: int) -> IntArray:
    """The items of owner 0, then those of owner 1, ...; those of one owner stay in order."""
    ends, ordered = filled(n_owners + 1, 0), blank(owners.size)
    for k in range(owners.size):
        ends[owners[k] + 1] += 1
    for i in range(n_owners):
        ends[i + 1] += ends[i]
    for k in range(owners.size):
        ordered[ends[owners[k]]] = items[k]
        ends[owners[k]] += 1
    return ordered


@compiled
def find_kept(nodes: Nodes, values: Values, chosen: IntArray, now: int) -> IntArray:
    """Find the values of chosen nodes that are wanted, that the program may use, or that pending nodes read."""
    value_ptr, mark, in_use, readers = nodes.value_ptr, values.mark, values.in_use, values.readers
    n = 0
    for k in range(chosen.size):
        n += value_ptr[chosen[k] + 1] - value_ptr[chosen[k]]
    kept, n = blank(n), 0
    for k in range(chosen.size):
        for v in range(value_ptr[chosen[k]], value_ptr[chosen[k] + 1]):
            if mark[v] == now or in_use[v] != 0 or readers[v] > 0:
                kept[n] = v
                n += 1
    return copied(kept, n)


@compiled
def place_kept(
    nodes: Nodes, values: Values, types: TypeArrays, kinds: Kinds, kept: IntArray, run: int, n_instances: int
) -> tuple[IntArray, IntArray]:
    """Number the rows of kept values in their slots; give the slots, and where the values of each instance begin."""
    type_id, owner, value_ptr, made_by = nodes.type_id, nodes.owner, nodes.value_ptr, values.node
    runs, in_slot, row, out_ptr, slot_of = values.run, values.slot, values.row, types.out_ptr, kinds.slot
    slots, ptr, most = blank(kept.size), filled(n_instances + 1, 0), 0
    for k in range(kept.size):
        node = made_by[kept[k]]
        slots[k] = slot_of[out_ptr[type_id[node]] + kept[k] - value_ptr[node]]
        most = max(most, slots[k])
        ptr[owner[node] + 1] += 1
    for i in range(n_instances):
        ptr[i + 1] += ptr[i]
    rows = filled(most + 1, 0)
    for k in range(kept.size):
        v = kept[k]
        runs[v], in_slot[v], row[v] = run, slots[k], rows[slots[k]]
        rows[slots[k]] += 1
    return slots, ptr


@compiled
def emit_graph(
    nodes: Nodes, values: Values, types: TypeArrays, kinds: Kinds, chosen: Chosen,
    results: Results, n_instances: int,
) -> tuple[IntArray, FloatArray]:  # fmt: skip
    """Write the graph of the chosen nodes and sources, and note that the nodes are done."""
    picked, sources = chosen.nodes, chosen.sources
    returned, slots, ends = results.values, results.slots, results.ptr
    all_types, owner, state, source, output = nodes.type_id, nodes.owner, nodes.state, nodes.source, nodes.output
    edge_ptr, attr_ptr, float_ptr, value_ptr = nodes.edge_ptr, nodes.attr_ptr, nodes.float_ptr, nodes.value_ptr
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
    instance_ptr, output_ptr, type_id, ptr, attr = (
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
            type_id[n] = source_kind[out_ptr[all_types[node]] + v - value_ptr[node]]
            attr[a], number[v] = kept[v], -1 - n
            n, a, s = n + 1, a + 1, s + 1
            ptr[n] = e
        while c < picked.size and owner[picked[c]] == i:
            node = picked[c]
            type_id[n], state[node] = all_types[node], DONE
            for k in range(edge_ptr[node], edge_ptr[node + 1]):
                read = number[value_ptr[source[k]] + output[k]]
                edge_src[e], edge_out[e], edge_in[e] = read, output[k], port[k]
                if read < 0:
                    edge_src[e], edge_out[e] = -1 - read, 0
                e += 1
            for k in range(attr_ptr[node], attr_ptr[node + 1]):
                attr[a] = all_attr[k]
                a += 1
            for k in range(float_ptr[node], float_ptr[node + 1]):
                floats[f] = all_floats[k]
                f += 1
            for v in range(value_ptr[node], value_ptr[node + 1]):
                number[v] = n
            n, c = n + 1, c + 1
            ptr[n] = e
        instance_ptr[i + 1] = n
        while o < ends[i + 1]:
            v = returned[o]
            read = number[v]
            out_node[o], out_port[o], out_slot[o] = read, v - value_ptr[made_by[v]], slots[o]
            if read < 0:
                out_node[o], out_port[o] = -1 - read, 0
            o += 1
        output_ptr[i + 1] = o
    return words, floats
