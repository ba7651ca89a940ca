"""Check a plan from the definition: run it on a memory that records which write each element holds."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import PlanError
from autobatch.graph.graph import Graph
from autobatch.graph.words import OUTPUT_BITS
from autobatch.ir.program import NODE
from autobatch.plan.plan import Batch, Plan, PlannedTypes
from autobatch.schedule.schedule import Schedule

Source: TypeAlias = tuple[int, int]  # a node, and the word of its output and row


def check_plan(plan: Plan, cells: PlannedTypes) -> None:
    """Check a plan by running its reads and writes, batch by batch.

    When a batch runs, every port of its nodes must hold exactly the value, or the sum of values, that the graph gives
    it; at the end, so must every place of a requested output. A batch does not write to rows that it reads, and no
    access leaves the buffer. In training, where backward reads rows again, nothing is overwritten and the batches of a
    type are contiguous. Every node has a row of its own in its batch, with its data.

    Raises:
        PlanError: the plan is invalid; the message names the first node concerned.

    Cost: O(elements of the inputs).
    """
    _check_rows(plan)
    memory = _ShadowMemory(plan, cells)
    for k, batch in enumerate(plan.batches):
        nodes = plan.node_at[plan.type_ptr[batch.type_id] + np.arange(batch.start, batch.end)].tolist()
        inputs = _input_ranges(plan, cells, batch)
        if cells.training:
            _check_follows(plan, cells, batch)
        for node in nodes:
            _check_inputs(plan, cells, batch, node, memory)
        for node in nodes:
            memory.write_outputs(node, k, inputs)
    used = dict.fromkeys(range(len(cells.slot_shapes)), 0)
    graph = plan.graph
    for node, port, slot in zip(graph.out_node.tolist(), graph.out_port.tolist(), graph.out_slot.tolist(), strict=True):
        place = int(plan.slot_base[slot]) + used[slot] * cells.slot_widths[slot]
        used[slot] += 1
        if cells.slot_widths[slot] and memory.read(place, cells.slot_widths[slot]) != [(node, port)]:
            raise PlanError(f"checking a plan: the requested output {port} of node {node} is not at {place}.")
    _check_data(plan)
    if cells.training:
        _check_saved(plan, cells)


def check_made(made: object, graph: Graph, schedule: Schedule, cells: PlannedTypes, planner: object) -> None:
    """Check the result of a user's planner for a scheduled graph; ends with `check_plan`.

    Raises:
        PlanError: the result is not a plan, is the plan of another graph or schedule, or fails `check_plan`.
    """
    doing = f"placing a mini-batch with planner {planner!r}"
    if not isinstance(made, Plan):
        raise PlanError(
            f"{doing}: place() must return an autobatch.plan.plan.Plan, got {made!r} ({type(made).__name__})."
        )
    is_other = {
        "graph": made.graph is not graph,
        "schedule": made.schedule is not schedule,
        "table of types": made.tables is not cells.tables,
    }
    for which in filter(is_other.get, is_other):
        raise PlanError(
            f"{doing}: the plan must refer to the graph, schedule and types given to place(), got another {which}."
        )
    try:
        check_plan(made, cells)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise PlanError(f"{doing}: parts of the plan do not fit each other ({error!r}).") from error


class _ShadowMemory:
    """The buffer: for each element the write that it holds, and for each write the terms added up in it."""

    def __init__(self, plan: Plan, cells: PlannedTypes) -> None:
        self.plan, self.cells = plan, cells
        self.size = plan.gradient_offset or plan.size  # in training, values end where their gradients begin
        self.holds: NDArray[np.int64] = np.full(self.size, -1, np.int64)
        self.writes: list[tuple[int, int, list[Source]]] = []  # first element, width, terms

    def read(self, first: int, width: int) -> list[Source] | None:
        """Return the terms in these elements, sorted; None unless one write covers them all."""
        held = self.holds[first : first + width]
        if held.size < width or held.size == 0 or held[0] < 0 or (held != held[0]).any():
            return None
        start, written, terms = self.writes[held[0]]
        return sorted(terms) if (start, written) == (first, width) else None

    def write_outputs(self, node: int, k: int, inputs: list[range]) -> None:
        """Write the outputs of a node that runs in batch k, whose inputs lie in these ranges."""
        plan, type_id = self.plan, int(self.plan.graph.type_id[node])
        program = self.cells.cells[type_id].program
        for number, output in enumerate(program.outputs):
            width = program.vars[output].size
            # An output and a row are one word, as in `edge_out` of a graph.
            places = [
                (place, is_added, row << OUTPUT_BITS | number)
                for row in range(plan.n_rows(node, number))
                for place, is_added in zip(
                    plan.destinations(node, number, row), plan.added(node, number, row), strict=True
                )
            ]
            for start, added, word in places:
                what = f"checking a plan: output {number} of node {node}"
                held = self.holds[start : start + width] if 0 <= start <= self.size - width else None
                if held is None:
                    raise PlanError(f"{what} leaves the buffer at {start}.")
                if any(start < area.stop and area.start < start + width for area in inputs):
                    raise PlanError(f"{what} is written to {start}, where batch {k} itself reads.")
                if added:
                    if width and self.read(start, width) is None:
                        raise PlanError(f"{what} is added at {start}, where no value lies.")
                    if width:
                        self.writes[held[0]][2].append((node, word))
                    continue
                if self.cells.training and (held >= 0).any():
                    raise PlanError(f"{what} overwrites a value at {start}.")
                held[...] = len(self.writes)
                self.writes.append((start, width, [(node, word)]))


def _check_rows(plan: Plan) -> None:
    """Check that every node has one row, within those of its batch."""
    graph = plan.graph
    if sorted(plan.node_at.tolist()) != list(range(graph.n_nodes)):
        raise PlanError("checking a plan: node_at must be a permutation of the nodes.")
    for batch, (type_id, nodes) in zip(plan.batches, plan.schedule, strict=True):
        for node in nodes.tolist():
            row = int(plan.row[node])
            if not batch.start <= row < batch.end or plan.node_at[plan.type_ptr[type_id] + row] != node:
                raise PlanError(
                    f"checking a plan: node_at must list node {node} at its row {row} of type {type_id}, within rows "
                    f"{batch.start}..{batch.end - 1}."
                )


def _check_follows(plan: Plan, cells: PlannedTypes, batch: Batch) -> None:
    """Check that the rows of a batch follow those of earlier batches of its type."""
    for number, width in enumerate(cells.cells[batch.type_id].layout.input_width):
        rows = batch.start
        if number:
            rows = int(plan.segment_ptr[plan.first_block(batch.type_id) + number][batch.start])
        wanted = plan.type_bases[batch.type_id][number] + rows * width
        if width and batch.bases[number] != wanted:
            raise PlanError(
                f"checking a plan: rows of type {batch.type_id} must begin at {wanted}, after the earlier ones, got "
                f"{batch.bases[number]}."
            )


def _input_ranges(plan: Plan, cells: PlannedTypes, batch: Batch) -> list[range]:
    """Return the ranges of elements that the inputs of a batch take, block by block."""
    found = []
    for number, (base, width) in enumerate(
        zip(batch.bases, cells.cells[batch.type_id].layout.input_width, strict=True)
    ):  # fmt: skip
        rows = batch.end - batch.start
        if number:
            segments = plan.segment_ptr[plan.first_block(batch.type_id) + number]
            rows = int(segments[batch.end] - segments[batch.start])
        if rows * width:
            found.append(range(base, base + rows * width))
    return found


def _check_inputs(plan: Plan, cells: PlannedTypes, batch: Batch, node: int, memory: _ShadowMemory) -> None:
    """Check that every port of a node holds the right values.

    That is its edge's value or the sum of its edges' values; in a variadic group, one value per row.
    """
    graph, row = plan.graph, int(plan.row[node])
    layout = cells.cells[batch.type_id].layout
    expected: defaultdict[int, list[Source]] = defaultdict(list)
    for e in range(int(graph.edge_ptr[node]), int(graph.edge_ptr[node + 1])):
        expected[int(graph.edge_in[e])].append((int(graph.edge_src[e]), int(graph.edge_out[e])))
    for port, place in enumerate(layout.inputs):
        edges, number = expected[port], place.domain - NODE
        if place.domain == NODE:
            first_row, values = row - batch.start, [sorted(edges)]
        else:
            segments = plan.segment_ptr[plan.first_block(batch.type_id) + number]
            first_row, values = int(segments[row] - segments[batch.start]), [[edge] for edge in edges]
            if len(edges) != segments[row + 1] - segments[row]:
                raise PlanError(
                    f"checking a plan: port {port} of node {node} has {len(edges)} edges and "
                    f"{segments[row + 1] - segments[row]} rows."
                )
        for at, terms in enumerate(values):
            first = batch.bases[number] + (first_row + at) * layout.input_width[number] + place.column
            if place.width and memory.read(first, place.width) != terms:
                raise PlanError(
                    f"checking a plan: port {port} of node {node} must read {terms} at {first}, got "
                    f"{memory.read(first, place.width)}."
                )


def _check_data(plan: Plan) -> None:
    """Check that every row has the attributes of its node."""
    graph, arrays = plan.graph, plan.graph.types.arrays()
    starts = [0, 0]
    for node, type_id in enumerate(graph.type_id.tolist()):
        row, block = int(plan.row[node]), plan.first_block(type_id)
        widths = [(int(arrays.int_width[type_id]), int(arrays.float_width[type_id]), block, row, row + 1)]
        for number in range(int(arrays.data_ptr[type_id]), int(arrays.data_ptr[type_id + 1])):
            of_data = block + int(arrays.data_group[number]) - NODE
            first, end = plan.segment_ptr[of_data][row : row + 2].tolist()
            widths.append((int(arrays.data_ints[number]), int(arrays.data_floats[number]), of_data, first, end))
        for place, (n_ints, n_floats, of_data, first, end) in enumerate(widths):
            if place:  # data of any length, whose number of elements comes first, among the ints
                length = int(graph.attr[starts[0]])
                if length != end - first:
                    raise PlanError(
                        f"checking a plan: node {node} has {length} elements of data and {end - first} rows."
                    )
                starts[0] += 1
            given: tuple[tuple[NDArray[Any], int, NDArray[Any]], ...] = (
                (graph.attr, n_ints, plan.int_data[of_data]),
                (graph.floats, n_floats, plan.float_data[of_data]),
            )
            for which, (data, width, rows) in enumerate(given):
                own = data[starts[which] : starts[which] + (end - first) * width]
                starts[which] += own.size
                if not np.array_equal(rows[first:end].ravel(), own, equal_nan=True):
                    raise PlanError(
                        f"checking a plan: row {row} of node {node} must hold the data {own}, got "
                        f"{rows[first:end].ravel()}."
                    )


def _check_saved(plan: Plan, cells: PlannedTypes) -> None:
    """Check that blocks of saved values follow the gradients, and do not overlap."""
    end = 2 * plan.gradient_offset
    for block in np.argsort(plan.saved_base, kind="stable"):
        size = int(plan.block_rows[block] * cells.saved_width[block])
        if size and not end <= plan.saved_base[block] <= plan.size - size:
            raise PlanError(
                f"checking a plan: saved values at {plan.saved_base[block]} overlap others or leave the buffer."
            )
        end = int(plan.saved_base[block]) + size if size else end
