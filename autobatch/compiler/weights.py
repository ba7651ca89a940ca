"""Compile the third stage of a cell: the gradients of its parameters, once per type over all rows of its batches.

Earlier stages save the operands, so most gradients are a single step: a product of two groups of columns, a sum of
rows, or rows for a table. All other gradients, such as one that is computed from such a sum, are in one `Remainder`,
which the interpreter runs. Steps that targets compile come first.
"""

from __future__ import annotations

from collections import defaultdict

from autobatch.compiler.assignment import Storage
from autobatch.compiler.lowered import Area, Lowered
from autobatch.compiler.lowering import locations_of
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Outer, Remainder, RowSum, Scatter, WeightStep
from autobatch.compiler.tiles import name_fields
from autobatch.compiler.view import View, views_of
from autobatch.ir.passes.autodiff import ROW_SUM
from autobatch.ir.program import NODE, Instruction
from autobatch.plan.plan import PlannedCell

IN_BUFFER = (Area.SAVED, Area.INPUTS)


def compile_weights(cell: PlannedCell) -> StageProgram:
    """Compile the weight stage."""
    derivative = cell.derivative
    assert derivative is not None, "backward follows a forward run in training"
    vars, locations = derivative.vars, locations_of(derivative.vars, cell.layout, forward=False)
    domains, sizes = [var.domain for var in vars], [var.size for var in vars]
    lowered = Lowered(cell.program.name, "weights", vars, views_of(vars), sizes, domains, [], locations, {}, [])
    steps = _WeightSteps(cell, lowered).steps
    fields = name_fields(len(cell.layout.input_width), len(cell.program.outputs))
    n_compiled = sum(isinstance(step, Outer | RowSum) for step in steps)
    return StageProgram(cell, lowered, steps, Storage(locations, {}), fields, n_compiled, len(steps) - n_compiled)


class _WeightSteps:
    """The steps of a weight stage.

    Attributes:
        steps: products, sums of rows, rows for tables, and the remainder, in this order.
    """

    def __init__(self, cell: PlannedCell, lowered: Lowered) -> None:
        assert cell.derivative is not None
        self._lowered = lowered
        owners: defaultdict[int, list[int]] = defaultdict(list)
        for parameter, gradient in cell.derivative.parameters:
            owners[gradient].append(parameter)
        read = {
            arg for index in cell.derivative.weights
            if isinstance(source := lowered.vars[index].source, Instruction) for arg in source.args
        }  # fmt: skip
        outers: list[WeightStep] = []
        sums: defaultdict[tuple[int, View], list[int]] = defaultdict(list)
        rest: list[int] = []
        for gradient, parameters in owners.items():
            found = None if gradient in read else self._operands(gradient)
            if found is None:
                rest += parameters
            elif len(found) == 2:
                domain = self._domain(found[0])
                outers += [Outer(domain, *found, parameter) for parameter in parameters]
            else:
                sums[self._domain(found[0]), found[0]] += parameters
        scatters: list[WeightStep] = []
        for parameter, parts in cell.derivative.tables:
            made = [self._scatter(parameter, values, ids) for values, ids in parts]
            if any(one is None for one in made):
                rest.append(parameter)
            else:
                scatters += [one for one in made if one is not None]
        totals: list[WeightStep] = [RowSum(domain, rows, tuple(p)) for (domain, rows), p in sums.items()]
        self.steps = [*outers, *totals, *scatters, *([Remainder(tuple(rest))] if rest else [])]

    def _operands(self, gradient: int) -> tuple[View, ...] | None:
        """Return the operands of a product or a sum of rows, if they are in the buffer; None for any other gradient."""
        source = self._lowered.vars[gradient].source
        if not isinstance(source, Instruction) or not (source.op is ROW_SUM or source.op.name == "row_sum_outer"):
            return None
        views = [self._lowered.views[arg] for arg in source.args]
        if not all(map(self._lies_in_buffer, views)):
            return None
        per_node = [self._domain(view) == NODE for view in views]  # groups in one op have equally many rows
        return tuple(views) if per_node[0] == per_node[-1] else None

    def _scatter(self, parameter: int, values: int, ids: int) -> Scatter | None:
        views, location = self._lowered.views, self._lowered.locations.get(self._lowered.views[ids].value)
        is_there = location is not None and (location.area is Area.INTS or self._lies_in_buffer(views[ids]))
        fits = is_there and self._lies_in_buffer(views[values]) and not self._lowered.vars[ids].shape
        if not fits or self._domain(views[ids]) != self._domain(views[values]):
            return None
        return Scatter(self._domain(views[values]), views[values], views[ids], parameter)

    def _lies_in_buffer(self, view: View) -> bool:
        """Return whether the elements of a view are adjacent in the rows of the buffer."""
        location = self._lowered.locations.get(view.value)
        return location is not None and location.area in IN_BUFFER and view.is_contiguous

    def _domain(self, view: View) -> int:
        return self._lowered.locations[view.value].domain
