"""The memory planner: chooses the program of each cell, the layout of its rows, and its places in a mini-batch."""

from __future__ import annotations

from dataclasses import dataclass

from autobatch.errors import PlanError
from autobatch.graph.graph import Graph
from autobatch.ir.autodiff import differentiate
from autobatch.ir.derivative import Derivative
from autobatch.ir.program import CellProgram
from autobatch.ir.simplify import simplify, simplify_derivative
from autobatch.ir.typetable import NodeType
from autobatch.memplan import placement
from autobatch.memplan.cell.buffer_assignment import make_layout
from autobatch.memplan.cell.inputs import place_columns
from autobatch.memplan.cell.joining import join_products
from autobatch.memplan.cell.rematerialisation import PRICES, rematerialise
from autobatch.memplan.cell.stacking import make_stacked
from autobatch.plan.plan import KernelPasses, Plan, PlannedCell, PlannedTypes
from autobatch.schedule.schedule import Schedule
from autobatch.system.unchecked import unchecked


@unchecked
@dataclass(frozen=True)
class MemoryPlanner:
    """Plan cells and mini-batches; every pass over a cell can be switched off for measurements.

    Raises:
        PlanError: `recomputes` is unknown.

    Args:
        simplifies: common-subexpression elimination and constant folding, forward and backward.
        joins: order ports so that concatenations of them are views, which are not saved.
        stacks: run the inner batches of cells as single instructions on stacked parameters.
        sums: run sums of products as single products of concatenated vectors; only with `joins` and `stacks`.
        cuts, hoists, fuses: passes of backends with compiled kernels, see `KernelPasses`.
        recomputes: the residuals that backward rematerialises: "cheap", those that are cheap to compute; "more", as if
            memory were slower; "all", as many as possible, for tests; or "nothing".
        reuses: buffer reuse: gradients that the weight stage reads overwrite dead residuals.
    """

    simplifies: bool = True
    joins: bool = True
    stacks: bool = True
    sums: bool = True
    cuts: bool = True
    hoists: bool = True
    fuses: bool = True
    recomputes: str = "cheap"
    reuses: bool = True

    def __post_init__(self) -> None:
        if self.recomputes != "nothing" and self.recomputes not in PRICES:
            words = ", ".join(map(repr, ("nothing", *PRICES)))
            raise PlanError(f"recomputes of MemoryPlanner must be one of {words}, got {self.recomputes!r}.")

    def plan_cell(self, node_type: NodeType, training: bool) -> PlannedCell:
        """Choose the program of a type, derive its backward stages if `training`, and lay out its values."""
        program = node_type.program
        passes: list[tuple[str, CellProgram | Derivative]] = [("traced", program)]
        if self.simplifies:
            program = simplify(program)
            passes.append(("simplified", program))
        if self.stacks and self.sums and self.joins:
            program = join_products(program)
            passes.append(("joined", program))
        if self.stacks:
            program = make_stacked(program)
            passes.append(("stacked", program))
        if self.simplifies and self.stacks:
            program = simplify(program)  # a join may have slices of one stacked value as its parts
            passes.append(("stacked simplified", program))
        columns, derivative = place_columns(program, self.joins), None
        if training:
            # Values that lie in the inputs are kept anyway, so the columns must be known before the derivative.
            derivative = differentiate(program, frozenset(columns.inner))
            passes.append(("derived", derivative))
            if self.simplifies:
                derivative = simplify_derivative(derivative)
                passes.append(("derivative simplified", derivative))
            if self.recomputes != "nothing":
                derivative = rematerialise(derivative, PRICES[self.recomputes])
                passes.append(("recomputed", derivative))
        layout = make_layout(program, columns, derivative, self.reuses)
        kernels = KernelPasses(self.cuts, self.hoists, self.fuses)
        return PlannedCell(node_type, program, derivative, layout, tuple(passes), kernels)

    def place(self, graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
        """Assign places in the buffer to the values of a scheduled graph."""
        return placement.place(graph, schedule, cells)
