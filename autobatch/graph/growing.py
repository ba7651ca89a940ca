"""Growing graphs: the graph of a mini-batch that is recorded and run in parts.

Async programs are recorded in phases; after each phase a *round* computes the values that the programs wait for. A
`GrowingGraph` holds all nodes recorded so far. `choose` finds the nodes of a round, those that the wanted values depend
on and that have not run; `emit` makes a graph of them. In that graph a *source* stands for each value of an earlier
round: a node that reads a row of a table of kept values. The outputs of the graph are the values to keep: those that
are wanted, that the program may still use, or that a pending node reads.

`KeptRows` assigns the kept values to rows of the tables, one table for each slot. The loops are in
`native/graph/growing/`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch._native import (
    add_work,
    append_phase,
    choose_nodes,
    count_readers,
    count_values,
    drop_pending,
    emit_graph,
    move_rows,
    nodes_of,
    set_in_use,
    sketch_pending,
)
from autobatch.arrays import FloatArray, IntArray, LongArray
from autobatch.graph.graph import PER_NODE, Graph, Types
from autobatch.graph.words import HEADER

NONE = np.zeros(0, np.int32)
PENDING, CHOSEN, DONE = 0, 1, 2  # the states of nodes
NOWHERE = -1
TYPE_ID, STATE, OWNER, EDGE_PTR, ATTR_PTR, FLOAT_PTR, OUTPUT_PTR, N_OF_NODES = range(8)
SOURCE, OUTPUT_WORD, PORT, N_OF_EDGES = range(4)
MADE_BY, WORD, IN_USE, READERS, RUN, SLOT, ROW, KEPT, MARK, NUMBER, N_OF_VALUES = range(11)
"""The rows of the table of values. A value is an output of a node, or a row of an output with any number of rows.

- MADE_BY: the node; WORD: the word of the output and the row, as in graphs.
- IN_USE: 1 while the program may use it; READERS: the number of edges of pending nodes, and of results, that read it.
- RUN, SLOT, ROW: the run that computed it, and the row of a slot of its results; NOWHERE if it is not kept.
- KEPT: its row in the table of kept values of its shape, or NOWHERE.
- MARK: the last round that wanted it, or minus the last round for which it was a source.
- NUMBER: the number of its node in the graph of a round, or -1 minus the number of its source.
"""


class Nodes(NamedTuple):
    """The nodes of a growing graph; arrays have spare room at their ends.

    Attributes:
        table: [7, N+1] with the rows TYPE_ID, STATE, OWNER (the instance, or NOWHERE for dropped nodes), and EDGE_PTR,
            ATTR_PTR, FLOAT_PTR and OUTPUT_PTR, where the edges, attributes and outputs of a node begin.
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
    """Facts about the outputs of all types, and about the slots in which they are kept.

    Attributes:
        slot: the slot of each output; outputs are numbered as in `TypeArrays.out_ptr`.
        rows: the variadic group of the type whose edges are the rows of an output; NOWHERE for a single value.
        source: for each slot, the type of the nodes that read a row of its table, or NOWHERE.
    """

    slot: IntArray
    rows: IntArray
    source: IntArray


class Results(NamedTuple):
    """The outputs of a round.

    Attributes:
        values, slots: the returned values, and their slots.
        ptr: where the results of each instance begin.
    """

    values: IntArray
    slots: IntArray
    ptr: IntArray


class Chosen(NamedTuple):
    """The nodes of a round, and the values that it reads and keeps.

    Attributes:
        nodes: the nodes, in the order of their instances.
        sources: the values of earlier rounds that the nodes read, in the same order.
        kept: the values to keep, which are the outputs.
    """

    nodes: IntArray
    sources: IntArray
    kept: Results


class Request(NamedTuple):
    """A request for a round, or for the last step.

    Attributes:
        wanted: the values to compute.
        slots: facts about the outputs of all types, and about slots.
        run: the number of the run that will compute them; each kept value notes its slot and row there. NOWHERE for the
            last step, which keeps nothing and reads wanted values of earlier rounds from sources.
        results: the results of the last step; None for a round, which returns the values to keep.
        structures: the structures of the results, by instance.
    """

    wanted: IntArray
    slots: OutputSlots
    run: int
    results: Results | None = None
    structures: Sequence[Any] = ()


class GrowingGraph:
    """The nodes that the async programs of a mini-batch have recorded so far.

    Args:
        n_instances: the number of instances.
        keys: int64[n_instances], the keys of their random numbers; by default their positions.

    Attributes:
        keys: the keys of the instances.
        n_nodes, n_pending, n_values: the numbers of nodes, of those that have not run, and of values.
        round: the number of the last round that was chosen.
        nodes, values: their tables; `MADE_BY` and so on name the rows of the table of values.
    """

    def __init__(self, n_instances: int, keys: LongArray | None = None) -> None:
        self.keys = np.arange(n_instances) if keys is None else keys
        self.n_instances, self.n_nodes, self.n_values = n_instances, 0, 0
        self._n_edges = self._n_attr = self._n_floats = self._n_outputs = 0
        self.nodes = Nodes(_zeros(N_OF_NODES), np.zeros(64, np.int32), _zeros(N_OF_EDGES), _zeros(), np.zeros(64))
        self.values = _zeros(N_OF_VALUES)
        self._pending = np.zeros(0, np.int32)
        self.round = self._most_outputs = 0  # the most outputs of any type
        self._rows, self._has_rows = np.zeros(0, np.int32), False  # `OutputSlots.rows` of all types

    @property
    def n_pending(self) -> int:
        return self._pending.size

    @property
    def type_id(self) -> IntArray:
        return self.nodes.table[TYPE_ID, : self.n_nodes]

    @property
    def owner(self) -> IntArray:
        return self.nodes.table[OWNER, : self.n_nodes]

    def append(self, phase: Graph, rows: IntArray) -> IntArray:
        """Add the nodes of a phase, whose edges may come from nodes of earlier phases; return the values that it
        returns.

        Args:
            phase: numbers its own nodes from 0, and those of earlier phases backwards from -1.
            rows: `OutputSlots.rows` of all types.
        """
        arrays, first = phase.types.arrays(), self.n_nodes
        # The array is replaced whenever there are new types, so its identity shows whether the facts about it are
        # outdated.
        if rows is not self._rows:
            self._rows, self._has_rows = rows, bool((rows != NOWHERE).any())
            self._most_outputs = int(np.diff(arrays.out_ptr).max(initial=0))
        _, n_nodes, n_edges, n_attr, _, n_floats = phase.words[:HEADER].tolist()
        # An upper bound, so that room can be made without a pass over the nodes. Without outputs of several rows, it
        # also bounds the number of values.
        n_outputs = self._most_outputs * n_nodes
        n_new = count_values(phase.words, arrays, rows) if self._has_rows else n_outputs
        self._make_room(n_nodes, n_edges, n_attr, n_floats, n_outputs, n_new)
        self._n_outputs, self.n_values, self._pending, values = append_phase(
            self.nodes, self.values, phase.words, phase.floats, arrays, rows, first, self._n_edges, self._pending
        )
        self.n_nodes, self._n_edges = first + n_nodes, self._n_edges + n_edges
        self._n_attr, self._n_floats = self._n_attr + n_attr, self._n_floats + n_floats
        return values

    def _make_room(self, *more: int) -> None:
        """Make room for more nodes, edges, attributes, floats, outputs and values."""
        table, first_value, edges, attr, floats = self.nodes
        nodes, n_edges, n_attr, n_floats, outputs, values = more
        nodes, outputs = self.n_nodes + nodes + 1, self._n_outputs + outputs + 1
        n_edges, n_attr, n_floats = self._n_edges + n_edges, self._n_attr + n_attr, self._n_floats + n_floats
        if not (
            nodes <= table.shape[1] and outputs <= first_value.size and n_edges <= edges.shape[1]
            and n_attr <= attr.size and n_floats <= floats.size
        ):  # fmt: skip
            self.nodes = Nodes(
                _with_room(table, nodes), _with_room(first_value, outputs), _with_room(edges, n_edges),
                _with_room(attr, n_attr), _with_room(floats, n_floats),
            )  # fmt: skip
        self.values = _with_room(self.values, self.n_values + values)

    def use(self, kept: IntArray, gone: IntArray = NONE) -> None:
        """Record that the program may use the outputs of the nodes `kept`, and no longer those of the nodes `gone`."""
        set_in_use(self.nodes, self.values, kept, gone)

    def choose(self, request: Request, types: Any) -> Chosen:
        """Choose the pending nodes that the wanted values depend on; they count as done when they are emitted."""
        return self.note(choose_nodes(*self.ask(request, types.arrays().out_ptr)))

    def ask(self, request: Request, out_ptr: IntArray) -> tuple[Any, ...]:
        """Begin a round; return the arguments of the core's `choose_nodes`.

        Args:
            out_ptr: `TypeArrays.out_ptr` of all types.
        """
        self.round += 1
        slot_of, pending, run = request.slots.slot, self._pending, request.run
        return self.nodes, self.values, out_ptr, slot_of, request.wanted, pending, self.round, run, self.n_instances

    def note(self, chosen: tuple[IntArray, ...]) -> Chosen:
        """Record the nodes that the core has chosen."""
        nodes, sources, self._pending, *kept = chosen
        return Chosen(nodes, sources, Results(*kept))

    def sketch(self, wanted: IntArray, types: Any) -> tuple[IntArray, Graph]:
        """Return the pending nodes that these values depend on, and the graph of their types and edges alone."""
        nodes, words = sketch_pending(self.nodes, self.values, wanted, self._pending)
        return nodes, Graph(words, np.zeros(0), types, (None,))

    def pending_work(self, types: Types) -> float:
        """Return the predicted work of all pending nodes, including those that no result needs; see `work_of`."""
        return add_work(self.type_id, self.owner, self._pending, types.arrays().product_work, PER_NODE, None)

    def work_by_instance(self, nodes: IntArray, types: Types) -> tuple[float, FloatArray]:
        """Return the predicted work of some nodes, in total and per instance; see `work_of`."""
        found = np.zeros(self.n_instances)
        work = types.arrays().product_work
        return add_work(self.type_id, self.owner, nodes, work, PER_NODE, found), found

    def pick(self, picked: IntArray) -> None:
        """Choose these pending nodes, which depend on no others, for the next round."""
        self.nodes.table[STATE, picked] = CHOSEN

    def nodes_of(self, places: Collection[int]) -> IntArray:
        """Return the nodes of the instances at some places."""
        is_of = np.zeros(self.n_instances, bool)
        is_of[[*places]] = True
        return nodes_of(self.owner, is_of)

    def drop(self, places: Collection[int]) -> None:
        """Drop the pending nodes of the instances at some places, whose programs no longer use any value.

        All nodes of these instances lose their owner, so that decoding refuses their values in later programs of these
        instances.
        """
        dropped = self.nodes_of(places)
        self.owner[dropped] = NOWHERE
        self._pending = drop_pending(self.nodes, self.values, self._pending, NOWHERE)
        self.use(NONE, dropped)

    def compact(self) -> tuple[IntArray, IntArray]:
        """Drop the nodes that are done and whose values nothing can read; renumber all others.

        Returns:
            The new number of each node, and of each value; NOWHERE if it was dropped.
        """
        n, n_values, (table, first_value, edges, attr, floats) = self.n_nodes, self.n_values, self.nodes
        values = self.values[:, :n_values]
        # Values with the mark -round are sources of the current round, which still reads their rows.
        is_read = (values[IN_USE] != 0) | (values[READERS] > 0) | (values[MARK] == -self.round)
        is_pending = table[STATE, :n] == PENDING
        is_kept = is_pending | (np.bincount(values[MADE_BY], is_read, n) > 0)
        kept, with_edges = np.flatnonzero(is_kept), is_pending[is_kept]
        # Pending nodes read only kept nodes: each of their edges counts among the READERS of a value of its source.
        of_node, of_value = np.full(n, NOWHERE, np.int32), np.full(n_values, NOWHERE, np.int32)
        of_node[kept] = np.arange(kept.size)
        lengths = np.diff(table[:, : n + 1])[:, kept]
        # Nodes that have run keep only their outputs, which may still be read, not their edges and attributes.
        lengths[EDGE_PTR:OUTPUT_PTR] *= with_edges
        parts = [_ranges(table[row, kept], lengths[row]) for row in (EDGE_PTR, ATTR_PTR, FLOAT_PTR, OUTPUT_PTR)]
        # An output of a kept node stays with all its rows, so that words still name the right row.
        n_rows = np.diff(first_value)[parts[3]]
        found = _ranges(first_value[parts[3]], n_rows)
        of_value[found] = np.arange(found.size)
        new = np.zeros((N_OF_NODES, max(kept.size + 1, 64)), np.int32)
        new[:EDGE_PTR, : kept.size] = table[:EDGE_PTR, kept]
        new[EDGE_PTR:, 1 : kept.size + 1] = np.cumsum(lengths[EDGE_PTR:], 1)
        self.nodes = Nodes(
            new, _spare(np.concatenate(([0], np.cumsum(n_rows))).astype(np.int32)), _spare(edges[:, parts[0]]),
            _spare(attr[parts[1]]), _spare(floats[parts[2]]),
        )  # fmt: skip
        read = of_node[self.nodes.edges[SOURCE, : parts[0].size]]
        self.nodes.edges[SOURCE, : read.size] = read
        self.values = _spare(values[:, found])
        self.values[MADE_BY, : found.size] = of_node[self.values[MADE_BY, : found.size]]
        self._pending = of_node[self._pending]
        self.n_nodes, self._n_edges, self._n_attr, self._n_floats = kept.size, *(part.size for part in parts[:3])
        self._n_outputs, self.n_values = n_rows.size, found.size
        return of_node, of_value

    def hold(self, values: IntArray, n: int) -> None:
        """Count n more readers of each of these values."""
        count_readers(self.nodes, self.values, values, n)

    def emit(self, chosen: Chosen, request: Request, types: Any) -> Graph:
        """Make the graph of a round; or of the last step, whose outputs are the results of the programs."""
        results = request.results or chosen.kept
        words, floats = emit_graph(
            self.nodes, self.values, request.slots.source, chosen.nodes, chosen.sources, results
        )  # fmt: skip
        return self.emitted(words, floats, types, request)

    def emitted(self, words: IntArray, floats: FloatArray, types: Any, request: Request) -> Graph:
        """Make the graph of a round from the arrays that the core has emitted."""
        structures = tuple(request.structures) or (None,) * self.n_instances
        graph = Graph(words, floats, types, structures, self.keys)
        graph.in_range = True  # the phases were checked
        return graph

    def emit_whole(
        self, needed: IntArray, output_slots: OutputSlots, results: Results, types: Any, structures: Sequence[Any]
    ) -> Graph:
        """Make the graph of all nodes that these values depend on; no round may follow."""
        # The nodes that have run become pending again. `choose` then takes their edges off READERS a second time, so
        # the counts are wrong afterwards.
        self.nodes.table[STATE, : self.n_nodes] = PENDING
        self._pending = np.arange(self.n_nodes, dtype=np.int32)
        request = Request(needed, output_slots, NOWHERE, results, structures)
        return self.emit(self.choose(request, types), request, types)


class Moved(NamedTuple):
    """Values that get rows, by slot.

    Attributes:
        found, rows: their rows in the results of the run that computed them, and in the tables.
        ptr: where those of each slot begin.
    """

    found: IntArray
    rows: IntArray
    ptr: IntArray


class KeptRows:
    """The rows of the tables of kept values.

    `move` is called between the choice of a round and its run: it frees the rows of values that nothing can read any
    more, and assigns rows to values of the last run that may still be read.

    Args:
        graph: the graph of these values.

    Attributes:
        size: for each slot, the number of rows that its table needs.
    """

    def __init__(self, graph: GrowingGraph) -> None:
        self._graph, self.size = graph, np.zeros(0, np.int32)
        self._held, self._free = np.zeros((2, 0, 0), np.int32)  # by slot: the value in each row, and the free rows
        self._n_free = np.zeros(0, np.int32)

    @property
    def in_use(self) -> IntArray:
        """Count, for each slot, the rows of its table that were in use after the last move."""
        found: IntArray = self._held.shape[1] - self._n_free
        return found

    def move(self, values: IntArray) -> Moved:
        """Assign rows to those of these values that the chosen round reads, or that a later one may read."""
        graph = self._graph
        n_slots = int(graph.values[SLOT, values].max(initial=NOWHERE)) + 1
        return Moved(*move_rows(graph.values, values, graph.round, *self.tables(n_slots, values.size)))

    def tables(self, n_slots: int, n: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return the arrays that the core updates, with room for this many slots, and for n more rows in each."""
        old_slots, old_rows = self._held.shape
        # All n values may belong to one slot, so each slot needs n free rows.
        if n_slots > old_slots or n > min(self._n_free.tolist(), default=n):
            self._grow(max(n_slots, old_slots), max(2 * old_rows, old_rows + n))
        return self._held, self._free, self._n_free, self.size

    def renumber(self, of_value: IntArray) -> None:
        """Apply the new numbers of values, and free the rows of dropped ones."""
        is_held = self._held != NOWHERE
        self._held[is_held] = of_value[self._held[is_held]]
        for slot, row in np.argwhere(is_held & (self._held == NOWHERE)).tolist():
            self._free[slot, self._n_free[slot]] = row
            self._n_free[slot] += 1

    def _grow(self, slots: int, rows: int) -> None:
        old_slots, old_rows = self._held.shape
        held, free = np.full((slots, rows), NOWHERE, np.int32), np.zeros((slots, rows), np.int32)
        n_free, size = np.zeros((2, slots), np.int32)
        held[:old_slots, :old_rows], size[:old_slots] = self._held, self.size
        for slot in range(slots):
            before = self._free[slot, : self._n_free[slot]] if slot < old_slots else np.arange(old_rows)[::-1]
            rows_free = np.concatenate((np.arange(old_rows, rows)[::-1], before))  # taken from the end
            free[slot, : rows_free.size], n_free[slot] = rows_free, rows_free.size
        self._held, self._free, self._n_free, self.size = held, free, n_free, size


def _zeros(*rows: int) -> IntArray:
    return np.zeros((*rows, 64), np.int32)


def _spare(array: Any) -> Any:
    """Copy an array, with spare room at the end of its rows."""
    return _with_room(array, max(array.shape[-1], 64)).copy()


def _ranges(starts: IntArray, lengths: IntArray) -> NDArray[np.int64]:
    """Concatenate the ranges that have these starts and lengths."""
    # One `arange`, shifted for each range by the distance from its place in the result to its start.
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if ends.size else 0)


def _with_room(array: Any, size: int) -> Any:
    """Return the array, or a copy with longer rows if those have fewer than `size` elements."""
    held = array.shape[-1]
    if size <= held:
        return array
    grown = np.zeros((*array.shape[:-1], max(size, 2 * held)), array.dtype)
    grown[..., :held] = array
    return grown
