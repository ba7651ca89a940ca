"""The memory planner: what a cell executes and how its row is laid out, and where rows of a mini-batch lie."""

from __future__ import annotations

from dataclasses import dataclass

from autobatch.autodiff import differentiate
from autobatch.graph import Graph
from autobatch.memplan import placement
from autobatch.memplan.homes import make_layout, place_columns
from autobatch.memplan.joining import join_products
from autobatch.memplan.stacking import make_stacked
from autobatch.plan import Plan, PlannedCell, PlannedTypes
from autobatch.schedule import Schedule
from autobatch.typetable import NodeType


@dataclass(frozen=True)
class MemoryPlanner:
    """Plans cells and mini-batches.

    Args:
        joins: order ports so that joins of them are views, and save nothing of these; for measurement it can be
            switched off.
        stacks: run the inner batches of cells as single instructions, on parameters that lie together.
        sums: run sums of products as single products of vectors side by side; only with `joins` and `stacks`.
    """

    joins: bool = True
    stacks: bool = True
    sums: bool = True

    def plan_cell(self, node_type: NodeType, training: bool) -> PlannedCell:
        """Lay out a type."""
        program = node_type.program
        if self.stacks:
            program = make_stacked(join_products(program) if self.sums and self.joins else program)
        columns = place_columns(program, self.joins)
        derivative = differentiate(program, frozenset(columns.inner)) if training else None
        return PlannedCell(node_type, program, derivative, make_layout(program, columns, derivative))

    def place(self, graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
        """Place a scheduled graph."""
        return placement.place(graph, schedule, cells)
