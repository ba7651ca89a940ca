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

from autobatch.graph.graph import Graph
from autobatch.graph.growth import (
    ATTR_PTR,
    FLOAT_PTR,
    N_OF_EDGES,
    N_OF_NODES,
    N_OF_VALUES,
    NOWHERE,
    OWNER,
    PENDING,
    STATE,
    Nodes,
    OutputSlots,
    Results,
    append_phase,
    choose_nodes,
    count_readers,
    emit_graph,
    most_rows,
    set_in_use,
    values_of,
)  # fmt: skip
from autobatch.jit.arrays import IntArray


class Chosen(NamedTuple):
    """What a round runs.

    Attributes:
        nodes: in the order of their instances; sources: the values of earlier rounds that they read, likewise.
        kept: the values that are kept, which are the outputs.
    """

    nodes: IntArray
    sources: IntArray
    kept: Results


class GrowingGraph:
    """The nodes that the async programs of a mini-batch have recorded so far.

    Args:
        n_instances: of the mini-batch.

    Attributes:
        n_nodes, n_values: how many there are.
        round: the number of the round that was chosen last.
        nodes, values: all of them; `autobatch.graph.growth` names the rows of the table of values.
    """

    def __init__(self, n_instances: int) -> None:
        self.n_instances, self.n_nodes, self._n_edges, self._n_outputs, self.n_values = n_instances, 0, 0, 0, 0
        self.nodes = Nodes(_zeros(N_OF_NODES), np.zeros(64, np.int32), _zeros(N_OF_EDGES), _zeros(), np.zeros(64))
        self.values = _zeros(N_OF_VALUES)
        self._pending = np.zeros(0, np.int32)
        self.round = self._most_outputs = 0  # outputs of a node
        self._rows, self._has_rows = np.zeros(0, np.int32), False  # of all types

    @property
    def owner(self) -> IntArray:
        """The instance of each node."""
        return self.nodes.table[OWNER, : self.n_nodes]

    def append(self, phase: Graph, rows: IntArray) -> None:
        """Add the nodes of a phase, whose edges may come from nodes of earlier ones.

        Args:
            phase: numbers its own nodes from 0, and those of earlier phases backwards from -1.
            rows: that of `OutputSlots`, for all types.
        """
        arrays, first, nodes = phase.types.arrays(), self.n_nodes, self.nodes
        if rows is not self._rows:
            self._rows, self._has_rows = rows, bool((rows != NOWHERE).any())
            self._most_outputs = int(np.diff(arrays.out_ptr).max(initial=0))
        n_nodes, n_edges = first + phase.n_nodes, self._n_edges + phase.n_edges
        n_attr = int(nodes.table[ATTR_PTR, first]) + phase.attr.size
        n_floats = int(nodes.table[FLOAT_PTR, first]) + phase.floats.size
        most = self._most_outputs
        n_outputs = self._n_outputs + most * phase.n_nodes
        n_rows = most_rows(phase.words, arrays) if self._has_rows else phase.n_nodes
        self.nodes = Nodes(
            _with_room(nodes.table, n_nodes + 1),
            _with_room(nodes.first_value, n_outputs + 1),
            _with_room(nodes.edges, n_edges),
            _with_room(nodes.attr, n_attr),
            _with_room(nodes.floats, n_floats),
        )
        self.values = _with_room(self.values, self.n_values + most * n_rows)
        self._n_outputs, self.n_values = append_phase(
            self.nodes, self.values, phase.words, phase.floats, arrays, rows, first, self._n_edges
        )
        self._pending = np.concatenate((self._pending, np.arange(first, n_nodes, dtype=np.int32)))
        self.n_nodes, self._n_edges = n_nodes, n_edges

    def values_of(self, nodes: IntArray, words: IntArray) -> IntArray:
        """The numbers of the values that words, as in graphs, name; of these nodes."""
        return values_of(self.nodes.table, self.nodes.first_value, nodes, words)

    def use(self, nodes: IntArray, in_use: bool) -> None:
        """Note whether the program may still use the outputs of these nodes."""
        set_in_use(self.nodes.table, self.nodes.first_value, self.values, nodes.astype(np.int32), int(in_use))

    def choose(self, wanted: IntArray, slot_of: IntArray, run: int, types: Any) -> Chosen:
        """Choose the pending nodes that these values depend on; they count as done when they are emitted.

        Args:
            slot_of: that of `OutputSlots`, for all types.
            run: the number of the run that will compute them; each kept value notes in which row of which slot of it it
                will be. NOWHERE for the last one: it keeps nothing, and wanted values of earlier rounds are sources.
        """
        self.round += 1
        arrays, about = types.arrays(), (self.round, run, self.n_instances)
        found = choose_nodes(self.nodes, self.values, arrays.out_ptr, slot_of, wanted, self._pending, about)
        nodes, sources, self._pending, *kept = found
        return Chosen(nodes, sources, Results(*kept))

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
        count_readers(self.values, values, n)

    def emit(
        self,
        chosen: Chosen,
        source: IntArray,
        types: Any,
        results: Results | None = None,
        structures: Sequence[Any] = (),
    ) -> Graph:
        """Make the graph of a round; or of the last step, whose outputs are the results of the programs.

        Args:
            source: that of `OutputSlots`, for all slots.
        """
        about, returned = (chosen.nodes, chosen.sources), results or chosen.kept
        words, floats = emit_graph(self.nodes, self.values, source, *about, returned)
        graph = Graph(words, floats, types, tuple(structures) or (None,) * self.n_instances)
        graph.in_range = True  # the phases were checked
        return graph

    def emit_whole(
        self, needed: IntArray, output_slots: OutputSlots, results: Results, types: Any, structures: Sequence[Any]
    ) -> Graph:
        """Make the graph of all nodes that these values depend on; no round may follow."""
        self.nodes.table[STATE, : self.n_nodes] = PENDING
        self._pending = np.arange(self.n_nodes, dtype=np.int32)
        chosen = self.choose(needed, output_slots.slot, NOWHERE, types)
        return self.emit(chosen, output_slots.source, types, results, structures)


def _zeros(*rows: int) -> IntArray:
    return np.zeros((*rows, 64), np.int32)


def _with_room(array: Any, size: int) -> Any:
    """The array, or a copy whose rows are longer and have `size` elements."""
    held = array.shape[-1]
    if size <= held:
        return array
    grown = np.zeros((*array.shape[:-1], max(size, 2 * held)), array.dtype)
    grown[..., :held] = array
    return grown
