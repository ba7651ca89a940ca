"""The plan of a mini-batch: a schedule, and a place in memory for every value that its nodes read or write.

All floats of a mini-batch lie in one flat buffer, in training

    [ inputs of every type | requested outputs | gradients of both, at +gradient_offset | saved values of every type ]

where a type owns one *block* `[rows, width]` per domain: one row per node, and for each variadic group one row per
edge; and in inference

    [ requested outputs | inputs of batches, each only from its first writer to its run ]

Rows of a type are in schedule order, so a batch reads contiguous rows; ports are column ranges (`autobatch.ir.layout`).
A node output has *destinations*: absolute offsets into the buffer where its readers (and the user) find it. Its
gradients lie at the same offsets plus `gradient_offset`. A port that reads a sum of several values is a destination of
each: the first to run stores its value, the others add theirs.

The planner makes plans; this module defines them, and `autobatch.plan.plan_check` checks one from the definition.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import FloatArray, IntArray, LongArray
from autobatch.graph.graph import Graph
from autobatch.ir.derivative import Derivative
from autobatch.ir.flows import FlowArrays, make_flows
from autobatch.ir.layout import Layout
from autobatch.ir.program import NODE, CellProgram, stacks_in
from autobatch.ir.type_arrays import TypeArrays, extended
from autobatch.ir.typetable import NodeType, make_arrays
from autobatch.params.stacks import Stack, parts_of
from autobatch.schedule.schedule import Schedule

ALIGNMENT = 16  # elements: blocks start on a cache line in float32


class TypeTables(NamedTuple):
    """The layouts of T types as int32 arrays, for placement by the core; a block is one domain of one type."""

    out_ptr: IntArray  # [T+1] outputs of each type
    out_block: IntArray  # [outputs] within its type: the block whose rows it has
    block_ptr: IntArray  # [T+1] blocks of each type: node rows, then variadic groups
    block_width: IntArray  # [blocks] columns of the inputs
    block_ints: IntArray  # [blocks] int attributes per row
    block_floats: IntArray  # [blocks] float attributes per row
    port_ptr: IntArray  # [T+1] ports of each type
    port_block: IntArray  # [ports] within its type: 0 for a plain port
    port_column: IntArray  # [ports]


class LayoutArrays(NamedTuple):
    """All that placement reads of planned types.

    Attributes:
        slot_width: elements per row of each slot of the results.
        saved_width: [blocks] columns of the saved values.
        training: whether gradients and saved values have places.
    """

    tables: TypeTables
    slot_width: LongArray
    saved_width: LongArray
    training: bool


class CellSizes(NamedTuple):
    """The memory and the number of steps of T compiled types; zero for types without nodes in any plan so far.

    Attributes:
        saved: [blocks] elements per row of residuals.
        scratch: [stages, blocks] elements per row of the scratch memory of tiles.
        fields: [T] fields of a tile.
        own, kept: [T] elements of scratch memory per tile, whatever its number of rows; and elements of persistent
            scratch memory per row of nodes.
        most_rows: [T] the largest number of rows of a tile.
        steps: [stages, T, 3] numbers of steps that run once before all batches, per batch, and once after them; for the
            weight stage the compiled steps, 0, and the steps that Python runs.
    """

    saved: LongArray
    scratch: LongArray
    fields: LongArray
    own: LongArray
    kept: LongArray
    most_rows: LongArray
    steps: LongArray


class Batch(NamedTuple):
    """Rows start:end of a type, which run together.

    Attributes:
        bases: per domain of the type, the offset of the batch's first row in its inputs.
    """

    type_id: int
    start: int
    end: int
    bases: tuple[int, ...]


@dataclass(eq=False)
class Plan:
    """A schedule and the places of all its values.

    Attributes:
        row: [N] the row of each node among those of its type.
        type_ptr: [T+1] node_at[type_ptr[t]:type_ptr[t+1]] are the nodes of type t by row.
        block_rows: rows per block (numbered as in the tables).
        base_ptr, base: base[base_ptr[k] + b] is the offset of the first row of batch k in block b of its type.
        saved_base: per block, the offset of its first element; none in inference.
        segments, segment_base: segments[segment_base[b]:segment_base[b+1]] holds the first edge row of each node row,
            and the end, if block b is that of a variadic group; else it is empty.
        dest_base: per output of a type (by output number), where its rows start in dest_ptr: those of nodes or, for an
            output of any number of rows, those of edges.
        dest_ptr, dest: the destinations of each row of an output, by (type, output, row).
        adds: for each destination, whether the value is added there instead of stored.
        slot_base, slot_rows: the places of the requested outputs, by slot, and their numbers of rows.
        gradient_offset: distance from a place to the place of its gradient; 0 in inference.
        size: elements of the buffer.
        ints, floats: the attributes of all nodes, by block and row.
        types: the properties of the types at the time of planning.
        whole_slot: the slot of a loss that is known to depend on all nodes, or -1.
    """

    graph: Graph
    schedule: Schedule
    row: IntArray
    type_ptr: NDArray[np.int64]
    node_at: IntArray
    block_rows: NDArray[np.int64]
    base_ptr: NDArray[np.int64]
    base: NDArray[np.int64]
    saved_base: NDArray[np.int64]
    segments: NDArray[np.int64]
    segment_base: NDArray[np.int64]
    dest_base: NDArray[np.int64]
    dest_ptr: NDArray[np.int64]
    dest: NDArray[Any]
    adds: NDArray[np.bool_]
    slot_base: NDArray[np.int64]
    slot_rows: NDArray[np.int64]
    gradient_offset: int
    size: int
    ints: IntArray
    floats: FloatArray
    types: TypeArrays
    tables: TypeTables
    whole_slot: int = -1

    @cached_property
    def segment_ptr(self) -> dict[int, NDArray[np.int64]]:
        """Return the segments of each variadic group block, by block number."""
        ends = self.segment_base.tolist()
        return {b: self.segments[first:end] for b, (first, end) in enumerate(pairwise(ends)) if first < end}

    @cached_property
    def int_data(self) -> Blocks:
        """Return the int attributes of each block, `[rows, width]` in row order."""
        return Blocks(self.ints, self.tables.block_ints, self.block_rows)

    @cached_property
    def float_data(self) -> Blocks:
        """Return the float attributes of each block, `[rows, width]` in row order."""
        return Blocks(self.floats, self.tables.block_floats, self.block_rows)

    def segments_of(self, type_id: int, domain: int) -> NDArray[np.int64]:
        """Return, for a variadic group of a type, the first edge row of each node row, and the end."""
        return self.segment_ptr[self.first_block(type_id) + domain - NODE]

    def data(self, type_id: int, domain: int = NODE) -> tuple[IntArray, FloatArray]:
        """Return the int and float attributes `[rows, width]` of the rows of a domain of a type."""
        block = self.first_block(type_id) + domain - NODE
        return self.int_data[block], self.float_data[block]

    @cached_property
    def batches(self) -> list[Batch]:
        done = dict.fromkeys(range(len(self.type_ptr)), 0)
        found = []
        sizes = np.diff(self.schedule.batch_ptr).tolist()
        bases, first = self.base.tolist(), self.base_ptr.tolist()
        for k, (type_id, size) in enumerate(zip(self.schedule.batch_type.tolist(), sizes, strict=True)):
            start = done[type_id]
            done[type_id] = end = start + size
            found.append(Batch(type_id, start, end, tuple(bases[first[k] : first[k + 1]])))
        return found

    @cached_property
    def type_bases(self) -> dict[int, tuple[int, ...]]:
        """Map each type with nodes to the offsets of its first row in its blocks; for training plans only."""
        found: dict[int, tuple[int, ...]] = {}
        for batch, type_id in enumerate(self.schedule.batch_type.tolist()):
            if type_id not in found:
                found[type_id] = tuple(self.base[self.base_ptr[batch] : self.base_ptr[batch + 1]].tolist())
        return found

    @cached_property
    def adds_up(self) -> bool:
        """Return whether any value is added at its destination."""
        return bool(self.adds.any())

    def n_bytes(self, dtype: np.dtype[Any]) -> int:
        """Return the bytes of the buffer, with elements of this dtype."""
        return self.size * dtype.itemsize

    @property
    def host_bytes(self) -> int:
        """Return the bytes of the arrays of the plan itself, without those of its types."""
        return sum([array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray)])

    def __str__(self) -> str:
        lines = [f"Plan(elements={self.size}, destinations={self.dest.size})"]
        names = self.graph.types.names
        if self.gradient_offset:
            for type_id, bases in sorted(self.type_bases.items()):
                for block, base in enumerate(bases, start=self.first_block(type_id)):
                    lines += self._block_line(base, names[type_id], block, int(self.block_rows[block]))
        else:
            for k, batch in enumerate(self.batches):
                n_nodes = batch.end - batch.start
                for block, base in enumerate(batch.bases, start=self.first_block(batch.type_id)):
                    rows = n_nodes
                    if block > self.first_block(batch.type_id):
                        rows = int(np.diff(self.segment_ptr[block][[batch.start, batch.end]])[0])
                    lines += self._block_line(base, f"{names[batch.type_id]}, batch {k}", block, rows)
        for slot, (base, rows) in enumerate(zip(self.slot_base.tolist(), self.slot_rows.tolist(), strict=True)):
            lines.append(f"{base:8}  asked for, slot {slot}: {rows} rows")
        if self.gradient_offset:
            lines.append(f"{self.gradient_offset:8}  gradients of all these, in the same order")
            lines.append(f"{2 * self.gradient_offset:8}  values saved for the backward stages")
        return "\n".join(lines)

    def _block_line(self, base: int, name: str, block: int, rows: int) -> list[str]:
        width = int(self.tables.block_width[block])
        # The first block of each type holds the rows of its nodes.
        each = "node" if block in self.tables.block_ptr else "edge"
        return [f"{base:8}  inputs of {name}: {rows} x {width}, a row per {each}"] if rows and width else []

    def n_rows(self, node: int, output: int = 0) -> int:
        """Return the number of rows of a node output; 1 unless the output has any number of rows."""
        row = int(self.row[node])
        first, end = self.output_rows(int(self.graph.type_id[node]), output, row, row + 1)
        return end - first

    def destinations(self, node: int, output: int = 0, row: int = 0) -> list[int]:
        """Return the destinations of a row of a node output: one per reading edge and per slot of the result."""
        first, end = self._destination_range(node, output, row)
        places: list[int] = self.dest[first:end].tolist()
        return places

    def added(self, node: int, output: int = 0, row: int = 0) -> list[bool]:
        """Return whether the value is added, for each destination of a row of a node output."""
        first, end = self._destination_range(node, output, row)
        flags: list[bool] = self.adds[first:end].tolist()
        return flags

    def output_rows(self, type_id: int, output: int, start: int, end: int) -> tuple[int, int]:
        """Return the range in `dest_ptr` of an output of the nodes start:end of a type."""
        number = int(self.tables.out_ptr[type_id]) + output
        block, base = int(self.tables.out_block[number]), int(self.dest_base[number])
        if block:
            start, end = self.segments_of(type_id, NODE + block)[[start, end]].tolist()
        return base + start, base + end

    def _destination_range(self, node: int, output: int, row: int) -> tuple[int, int]:
        type_id, own = int(self.graph.type_id[node]), int(self.row[node])
        first = self.output_rows(type_id, output, own, own + 1)[0] + row
        return int(self.dest_ptr[first]), int(self.dest_ptr[first + 1])

    def first_block(self, type_id: int) -> int:
        """Return the number of a type's block of node rows."""
        return int(self.tables.block_ptr[type_id])


class Planner(Protocol):
    """The interface of a memory planner, which decides where values live."""

    def plan_cell(self, node_type: NodeType, training: bool) -> PlannedCell:
        """Choose the program of a type, derive its backward stages if `training`, and lay out its values in columns."""

    def place(self, graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
        """Assign a row to every node, and destinations to every node output."""


class KernelPasses(NamedTuple):
    """The passes of a backend with compiled kernels over a cell; each can be switched off for measurements.

    Attributes:
        cuts: loop splitting: split loops over several gates into one loop per gate.
        hoists: run steps once for all rows of a type where they need not run for every batch.
        fuses: loop fusion: put as many loops as possible into one kernel; if not, every loop is a kernel.
    """

    cuts: bool = True
    hoists: bool = True
    fuses: bool = True


class PlannedCell(NamedTuple):
    """A node type with the program executed for it.

    Attributes:
        program: equivalent to the program of the type, with the same ports and attributes.
        derivative: of `program`; None in inference.
        passes: the program or derivative after each pass, by name, in order.
        kernels: the passes of compiled backends.
    """

    type: NodeType
    program: CellProgram
    derivative: Derivative | None
    layout: Layout
    passes: tuple[tuple[str, CellProgram | Derivative], ...] = ()
    kernels: KernelPasses = KernelPasses()


@dataclass(eq=False)
class PlannedTypes:
    """All types of a graph, planned; the tables for placement are made once per set of types.

    Attributes:
        compiled: the compiled types, by backend and options.
    """

    cells: list[PlannedCell]
    slot_shapes: list[tuple[int, ...]]
    training: bool
    compiled: dict[Hashable, Any] = field(default_factory=dict)

    def followed(self, more: PlannedTypes) -> PlannedTypes:
        """Return these types and more, with all slots; the properties of these are reused."""
        whole, known = PlannedTypes(self.cells + more.cells, more.slot_shapes, self.training), vars(self)
        # `vars` holds the cached properties that were computed so far: extend these, and leave the others to first use.
        own = vars(whole)
        for name in {"arrays", "tables", "flows"} & known.keys():
            own[name] = extended(known[name], getattr(more, name))
        if "saved_width" in known:
            own["saved_width"] = np.concatenate((self.saved_width, more.saved_width))
        if "stacks" in known:
            own["stacks"] = list(dict.fromkeys(self.stacks + more.stacks))
        if "_gradients" in known:
            own["_gradients"] = tuple(map(frozenset.union, self._gradients, more._gradients))
        own["traces"] = self.traces + more.traces
        return whole

    @cached_property
    def traces(self) -> tuple[int, ...]:
        return tuple(cell.type.trace for cell in self.cells)

    @cached_property
    def slot_widths(self) -> list[int]:
        """Return the elements per row of each slot."""
        return [math.prod(shape) for shape in self.slot_shapes]

    @cached_property
    def layout(self) -> LayoutArrays:
        """Return the layouts as arrays, for placement by the core."""
        return LayoutArrays(self.tables, np.array(self.slot_widths, np.int64), self.saved_width, self.training)

    @cached_property
    def arrays(self) -> TypeArrays:
        """Return the properties of these types alone.

        The table of the graph is not used for this, because other threads may add types to it, or retrace some, at any
        time.
        """
        return make_arrays([cell.type for cell in self.cells])

    @cached_property
    def tables(self) -> TypeTables:
        ports = [(cell, place) for cell in self.cells for place in cell.layout.inputs]
        return TypeTables(
            out_ptr=_ptr([len(c.program.outputs) for c in self.cells]),
            out_block=np.array([block for c in self.cells for block in _blocks_of_outputs(c)], np.int32),
            block_ptr=_ptr([len(c.layout.input_width) for c in self.cells]),
            block_width=np.array([w for c in self.cells for w in c.layout.input_width], np.int32),
            block_ints=np.array([w for c in self.cells for w in _words_of(c, False)], np.int32),
            block_floats=np.array([w for c in self.cells for w in _words_of(c, True)], np.int32),
            port_ptr=_ptr([len(c.layout.inputs) for c in self.cells]),
            port_block=np.array([p.domain - NODE for _, p in ports], np.int32),
            port_column=np.array([p.column for _, p in ports], np.int32),
        )

    @cached_property
    def singular(self) -> list[int]:
        """Return the types with outputs at which gradients may not be finite."""
        return [type_id for type_id, cell in enumerate(self.cells) if cell.type.singular]

    @cached_property
    def flows(self) -> FlowArrays:
        """Return the paths of gradients through each type, as arrays."""
        return make_flows([cell.type.program for cell in self.cells])

    @cached_property
    def row_parameters(self) -> frozenset[int]:
        """Return the `id` of each parameter of these types whose gradient is kept as rows."""
        rows, whole = self._gradients
        return rows - whole

    @cached_property
    def _gradients(self) -> tuple[frozenset[int], ...]:
        """Return the `id`s of parameters with row gradients, and of those with dense ones."""
        derivatives = [cell.derivative for cell in self.cells if cell.derivative is not None]
        whole = {id(part) for d in derivatives for i, _ in d.parameters for part in parts_of(d.parameter(i))}
        return frozenset(id(d.parameter(i)) for d in derivatives for i, _ in d.tables), frozenset(whole)

    @cached_property
    def stacks(self) -> list[Stack]:
        """Return the stacks of parameters that are read, without repetitions."""
        return list(dict.fromkeys(stack for cell in self.cells for stack in stacks_in(cell.program.vars)))

    @cached_property
    def saved_width(self) -> NDArray[np.int64]:
        """Return the columns of the saved values, per block."""
        return np.array([w for c in self.cells for w in c.layout.saved_width], np.int64)


class Blocks(dict[int, NDArray[Any]]):
    """The attributes of all types: an array `[rows, width]` per block, built on first use."""

    def __init__(self, flat: NDArray[Any], width: IntArray, block_rows: NDArray[np.int64]) -> None:
        self._flat, self._width, self._rows = flat, width, block_rows
        self._ends = np.cumsum(block_rows * width)

    def __missing__(self, block: int) -> NDArray[Any]:
        end, n_rows, width = int(self._ends[block]), int(self._rows[block]), int(self._width[block])
        self[block] = found = self._flat[end - n_rows * width : end].reshape(n_rows, width)
        return found


def _blocks_of_outputs(cell: PlannedCell) -> list[int]:
    # An output that all nodes share has a row per node as well.
    return [max(cell.program.vars[output].domain, NODE) - NODE for output in cell.program.outputs]


def _words_of(cell: PlannedCell, is_float: bool) -> list[int]:
    """Return the attribute words per row, for each block of a type."""
    return [cell.program.words(is_float, NODE + block) for block in range(len(cell.layout.input_width))]


def _ptr(counts: list[int]) -> IntArray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
