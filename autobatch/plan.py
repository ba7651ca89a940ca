"""Where every value of a mini-batch lives: layouts (columns inside a cell) and plans (rows and destinations between).

All floats of a mini-batch lie in one flat buffer:

    [ inputs of every type | what the user asked for | gradients of both, at +mirror | saved values of every type ]

A type owns one *block* `[rows, width]` per domain: one row per node, and for each variadic group one row per edge.
Rows are in schedule order, so a batch reads contiguous rows; ports are column ranges. A node output has
*destinations*, absolute offsets into the buffer where its readers (and the user) find it; their gradients lie at
the same offsets plus `mirror`.

The planner decides; this module says what a plan is, and checks one from the definition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.autodiff import Derivative
from autobatch.errors import PlanError
from autobatch.graph import Graph
from autobatch.program import NODE, CellProgram
from autobatch.schedule import Schedule
from autobatch.typetable import NodeType
from autobatch.words import FloatArray, IntArray

ALIGNMENT = 16  # elements: blocks start on a cache line in float32


class Place(NamedTuple):
    """Columns column:column + width of the block of this domain."""

    domain: int
    column: int
    width: int


@dataclass(frozen=True, eq=False)
class Layout:
    """Columns inside a cell.

    Attributes:
        inputs: the place of each port, by port number.
        saved: the place of each value kept for the backward stages, by value.
        input_width, saved_width: width of the block of each domain, node rows first, then the variadic groups.
    """

    inputs: tuple[Place, ...]
    saved: dict[int, Place]
    input_width: tuple[int, ...]
    saved_width: tuple[int, ...]

    def __str__(self) -> str:
        inputs = [(f"port {number}", place) for number, place in enumerate(self.inputs)]
        saved = [(f"%{index}", place) for index, place in self.saved.items()]
        areas = (("inputs", inputs, self.input_width), ("saved", saved, self.saved_width))
        lines = [
            f"{what} of {'a node' if domain == NODE else f'an edge of group {domain}'}, {width} columns: "
            + ", ".join(f"{name} in {p.column}:{p.column + p.width}" for name, p in places if p.domain == domain)
            for what, places, widths in areas
            for domain, width in enumerate(widths, start=NODE)
            if width
        ]
        return "\n".join(lines)


class TypeTables(NamedTuple):
    """The layouts of T types as int32 arrays for compiled placement; a block is one domain of one type."""

    out_ptr: IntArray  # [T+1] outputs of each type
    block_ptr: IntArray  # [T+1] blocks of each type: node rows, then variadic groups
    block_width: IntArray  # [blocks] columns of the inputs
    port_ptr: IntArray  # [T+1] ports of each type
    port_block: IntArray  # [ports] within its type: 0 for a plain port
    port_column: IntArray  # [ports]
    port_leads: IntArray  # [ports] 1 for the first port of a variadic group: its edges are the group's rows


@dataclass(frozen=True, eq=False)
class Plan:
    """A schedule and the places of all its values.

    Attributes:
        row: [N] the row of each node in the blocks of its type.
        type_ptr: [T+1] node_at[type_ptr[t]:type_ptr[t+1]] are the nodes of type t by row.
        input_base, saved_base: per block, the offset of its first element.
        block_rows: rows per block.
        segment_ptr: for each variadic group block (by block number), the first edge row of each node row, and the end.
        dest_base: per output of a type (by output number), where its rows start in dest_ptr.
        dest_ptr, dest: the destinations of each node output, by (type, output, row).
        slot_base, slot_rows: where what the user asked for lies, by slot, and how many rows.
        mirror: from a place to the place of its gradient; 0 in inference.
        size: elements of the buffer.
        int_data, float_data: per type, the attributes `[N_type, width]` in row order.
    """

    graph: Graph
    schedule: Schedule
    row: IntArray
    type_ptr: IntArray
    node_at: IntArray
    input_base: NDArray[np.int64]
    saved_base: NDArray[np.int64]
    block_rows: NDArray[np.int64]
    segment_ptr: dict[int, NDArray[np.int64]]
    dest_base: NDArray[np.int64]
    dest_ptr: NDArray[np.int64]
    dest: NDArray[Any]
    slot_base: NDArray[np.int64]
    slot_rows: NDArray[np.int64]
    mirror: int
    size: int
    int_data: list[IntArray]
    float_data: list[FloatArray]
    tables: TypeTables

    @cached_property
    def batches(self) -> list[tuple[int, int, int]]:
        """(type, first row, end row) of each batch, in order."""
        done = dict.fromkeys(range(len(self.type_ptr)), 0)
        found = []
        sizes = np.diff(self.schedule.batch_ptr).tolist()
        for kind, size in zip(self.schedule.batch_type.tolist(), sizes, strict=True):
            found.append((kind, done[kind], done[kind] + size))
            done[kind] += size
        return found

    def __str__(self) -> str:
        lines = [f"Plan(elements={self.size}, destinations={self.dest.size})"]
        for kind, name in enumerate(self.graph.types.names):
            first, end = self.tables.block_ptr[kind : kind + 2].tolist()
            for block in range(first, end):
                rows, width = int(self.block_rows[block]), int(self.tables.block_width[block])
                if rows and width:
                    each = "node" if block == first else "edge"
                    lines.append(f"{self.input_base[block]:8}  inputs of {name}: {rows} x {width}, a row per {each}")
        for slot, (base, rows) in enumerate(zip(self.slot_base.tolist(), self.slot_rows.tolist(), strict=True)):
            lines.append(f"{base:8}  asked for, slot {slot}: {rows} rows")
        if self.mirror:
            lines.append(f"{self.mirror:8}  gradients of all these, in the same order")
            lines.append(f"{2 * self.mirror:8}  values saved for the backward stages")
        return "\n".join(lines)

    def destinations(self, node: int, output: int = 0) -> list[int]:
        """Where an output of a node is written: once for each edge that reads it, and for the user."""
        first = self.dest_base[self.tables.out_ptr[self.graph.type_id[node]] + output] + self.row[node]
        places: list[int] = self.dest[self.dest_ptr[first] : self.dest_ptr[first + 1]].tolist()
        return places

    def first_block(self, kind: int) -> int:
        """The number of a type's block of node rows."""
        return int(self.tables.block_ptr[kind])


class Planner(Protocol):
    """Decides where values live."""

    def layout(self, program: CellProgram, derivative: Derivative | None) -> Layout:
        """Give every port, and every value that `derivative` saves, its columns."""

    def place(self, graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
        """Give every node its row and every node output its destinations."""


class PlannedCell(NamedTuple):
    """A node type with its derivative (None in inference) and its layout."""

    type: NodeType
    derivative: Derivative | None
    layout: Layout


@dataclass
class PlannedTypes:
    """All types of a graph, planned; tables for compiled placement are made once per set of types."""

    cells: list[PlannedCell]
    slot_shapes: list[tuple[int, ...]]
    training: bool

    @cached_property
    def slot_widths(self) -> list[int]:
        """Elements per row of each slot."""
        return [math.prod(shape) for shape in self.slot_shapes]

    @cached_property
    def tables(self) -> TypeTables:
        """The layouts as arrays."""
        ports = [(cell, place) for cell in self.cells for place in cell.layout.inputs]
        return TypeTables(
            out_ptr=_ptr([len(c.type.program.outputs) for c in self.cells]),
            block_ptr=_ptr([len(c.layout.input_width) for c in self.cells]),
            block_width=np.array([w for c in self.cells for w in c.layout.input_width], np.int32),
            port_ptr=_ptr([len(c.layout.inputs) for c in self.cells]),
            port_block=np.array([p.domain - NODE for _, p in ports], np.int32),
            port_column=np.array([p.column for _, p in ports], np.int32),
            port_leads=np.array([leads for c in self.cells for leads in _leading(c.layout)], np.int32),
        )

    @cached_property
    def row_parameters(self) -> frozenset[int]:
        """The `id` of each parameter whose gradient is some rows, as far as these types read it."""
        derivatives = [cell.derivative for cell in self.cells if cell.derivative is not None]
        whole = {id(d.parameter(i)) for d in derivatives for i, _ in d.parameters}
        return frozenset(id(d.parameter(i)) for d in derivatives for i, _ in d.tables) - whole

    @cached_property
    def saved_width(self) -> NDArray[np.int64]:
        """Columns of the saved values, per block."""
        return np.array([w for c in self.cells for w in c.layout.saved_width], np.int64)


def _leading(layout: Layout) -> list[int]:
    """1 for the first port of each variadic group."""
    domains = [p.domain for p in layout.inputs]
    return [int(d != NODE and d not in domains[:k]) for k, d in enumerate(domains)]


def _ptr(counts: list[int]) -> IntArray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def check_plan(plan: Plan, cells: PlannedTypes) -> None:
    """Check a plan from the definition, by reading every place again.

    Every input of every node, and every output asked for, must be the destination of exactly the value that the
    graph says; no two values may share an element; everything lies in the buffer; no row is used twice, and each has
    the data of its node.

    Raises:
        PlanError: names the first node for which that does not hold.

    Cost: O(elements of the inputs), in Python.
    """
    graph, size = plan.graph, plan.mirror or plan.size
    if sorted(plan.node_at.tolist()) != list(range(graph.n_nodes)):
        raise PlanError("checking a plan: node_at is no permutation of the nodes; every node has one row.")
    writer: dict[int, tuple[int, int]] = {}
    for node in range(graph.n_nodes):
        kind, row = int(graph.type_id[node]), int(plan.row[node])
        if (
            not 0 <= row < plan.type_ptr[kind + 1] - plan.type_ptr[kind]
            or plan.node_at[plan.type_ptr[kind] + row] != node
        ):
            raise PlanError(f"checking a plan: node {node} is not where row {row} of type {kind} says.")
        for number, output in enumerate(cells.cells[kind].type.program.outputs):
            width = cells.cells[kind].type.program.vars[output].size
            for start in plan.destinations(node, number):
                for element in range(start, start + width):
                    if element in writer or not 0 <= element < size:
                        raise PlanError(
                            f"checking a plan: output {number} of node {node} overwrites a value or leaves the buffer "
                            f"at {element}."
                        )
                    writer[element] = (node, number)
    for node in range(graph.n_nodes):
        _check_inputs(plan, cells, node, writer)
    used = dict.fromkeys(range(len(cells.slot_shapes)), 0)
    for node, port, slot in zip(graph.out_node.tolist(), graph.out_port.tolist(), graph.out_slot.tolist(), strict=True):
        place = int(plan.slot_base[slot]) + used[slot] * cells.slot_widths[slot]
        used[slot] += 1
        if cells.slot_widths[slot] and writer.get(place) != (node, port):
            raise PlanError(f"checking a plan: what was asked of node {node}, output {port}, is not at {place}.")
    _check_data(plan)
    if cells.training:
        _check_saved(plan, cells)


def _check_inputs(plan: Plan, cells: PlannedTypes, node: int, writer: dict[int, tuple[int, int]]) -> None:
    """Every edge of a node must find its value in the row, or edge row, of its port."""
    graph = plan.graph
    kind, row = int(graph.type_id[node]), int(plan.row[node])
    layout, seen = cells.cells[kind].layout, dict[int, int]()
    for e in range(int(graph.edge_ptr[node]), int(graph.edge_ptr[node + 1])):
        port = int(graph.edge_in[e])
        place = layout.inputs[port]
        block = plan.first_block(kind) + place.domain - NODE
        at = row if place.domain == NODE else int(plan.segment_ptr[block][row]) + seen.get(port, 0)
        seen[port] = seen.get(port, 0) + 1
        first = int(plan.input_base[block]) + at * layout.input_width[place.domain - NODE] + place.column
        expected = (int(graph.edge_src[e]), int(graph.edge_out[e]))
        if any(writer.get(element) != expected for element in range(first, first + place.width)):
            raise PlanError(
                f"checking a plan: port {port} of node {node} reads {first}, where {expected} is not written."
            )
    for port, place in enumerate(layout.inputs):
        block = plan.first_block(kind) + place.domain - NODE
        wanted = 1 if place.domain == NODE else int(np.diff(plan.segment_ptr[block][row : row + 2])[0])
        if seen.get(port, 0) != wanted:
            raise PlanError(
                f"checking a plan: port {port} of node {node} has {seen.get(port, 0)} edges and {wanted} rows."
            )


def _check_data(plan: Plan) -> None:
    """Every row must have the attributes of its node."""
    graph, arrays = plan.graph, plan.graph.types.arrays()
    for data, width, rows in (
        (graph.attr, arrays.int_width, plan.int_data),
        (graph.floats, arrays.float_width, plan.float_data),
    ):
        ends = np.cumsum(width[graph.type_id])
        for node, kind in enumerate(graph.type_id.tolist()):
            own = data[ends[node] - width[kind] : ends[node]]
            if own.size and not np.array_equal(rows[kind][plan.row[node]], own, equal_nan=True):
                raise PlanError(f"checking a plan: row {plan.row[node]} of node {node} has other data than {own}.")


def _check_saved(plan: Plan, cells: PlannedTypes) -> None:
    """Blocks of saved values follow the gradients, and do not overlap."""
    end = 2 * plan.mirror
    for block in np.argsort(plan.saved_base, kind="stable"):
        size = int(plan.block_rows[block] * cells.saved_width[block])
        if size and not end <= plan.saved_base[block] <= plan.size - size:
            raise PlanError(
                f"checking a plan: saved values at {plan.saved_base[block]} overlap others or leave the buffer."
            )
        end = int(plan.saved_base[block]) + size if size else end
