"""Compile a stage of a cell for any target: run the passes of the compiler, and return the steps and their storage.

The third stage computes the gradients of parameters, once per type over all rows of its batches.

Earlier stages save the operands, so most gradients are a single step: a product of two groups of columns, a sum of
rows, or rows for a table. All other gradients, such as one that is computed from such a sum, are in one `Remainder`,
which the interpreter runs. Steps that targets compile come first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any, TypeAlias

from autobatch.compiler.assignment import Storage, assign_buffers
from autobatch.compiler.checking import check_statements, check_steps, check_storage
from autobatch.compiler.columns_check import check_columns
from autobatch.compiler.fusion import Kernel, fuse, keep_apart
from autobatch.compiler.hoisting import Parts, hoist
from autobatch.compiler.lowered import Area, Lowered
from autobatch.compiler.lowering import locations_of, lower_backward, lower_forward
from autobatch.compiler.neighbours import Neighbours, show_apart
from autobatch.compiler.printing import show_axes, show_lowered, show_statements, show_steps, show_storage
from autobatch.compiler.splitting import split_loops
from autobatch.compiler.statement import Interpreted, Outer, Product, Remainder, RowSum, Scatter, WeightStep
from autobatch.compiler.view import View, views_of
from autobatch.compiler.writer import name_fields
from autobatch.ir.autodiff import ROW_SUM
from autobatch.ir.program import NODE, Instruction
from autobatch.plan.plan import PlannedCell
from autobatch.system.unchecked import checking


@dataclass(frozen=True, eq=False)
class StageProgram:
    """A compiled stage for any target; a target prints its kernels, and maps the storage classes to memory.

    Attributes:
        cell: the cell of the stage.
        steps: kernels, products and interpreted ops; in the weight stage products, sums, scatters and the remainder.
        fields: the names of the fields of a tile, which kernels read; see `autobatch.compiler.writer`.
        n_before, n_after: the numbers of first and of last steps that run once for all rows of a type.
    """

    cell: PlannedCell
    lowered: Lowered
    steps: list[Any]
    storage: Storage
    fields: tuple[str, ...]
    n_before: int
    n_after: int


Note: TypeAlias = Callable[[str, str], None]  # called with the name of a pass and its result as text


def compile_forward(cell: PlannedCell, note: Note | None = None) -> StageProgram:
    """Compile the forward stage; `note` is called with the result of every pass."""
    return _compile(lower_forward(cell), cell, note)


def compile_backward(cell: PlannedCell, note: Note | None = None) -> StageProgram:
    """Compile the backward stage; `note` is called with the result of every pass."""
    return _compile(lower_backward(cell), cell, note)


def _compile(lowered: Lowered, cell: PlannedCell, note: Note | None) -> StageProgram:
    checked = checking() or note is not None
    report = _PassReporter(lowered, note)
    if checked:
        check_statements(lowered, lowered.statements)
    report.statements("lowered")
    if cell.kernels.cuts:
        split_loops(lowered)
        if checked:
            check_statements(lowered, lowered.statements)
        report.statements("cut")
    parts = hoist(lowered) if cell.kernels.hoists else Parts([], lowered.statements, [])
    statements = [statement for part in parts for statement in part]
    if checked:
        check_statements(lowered, statements)
    if cell.kernels.hoists:
        report.hoisted(parts)
    divide = fuse if cell.kernels.fuses else keep_apart
    before, per_batch, after = (divide(lowered, part) for part in parts)
    steps = [*before, *per_batch, *after]
    if checked:
        check_steps(lowered, statements, steps)
    report.fused(Neighbours(lowered, steps, len(before), len(after), cell.kernels.fuses))
    storage = assign_buffers(lowered, steps, len(before))
    if checked:
        check_storage(lowered, steps, storage)
        check_columns(cell, lowered, steps, storage, len(before), len(after))
    report.stored(storage)
    fields = name_fields(len(cell.layout.input_width), len(cell.program.outputs))
    return StageProgram(cell, lowered, steps, storage, fields, len(before), len(after))


class _PassReporter:
    """A reporter of the result of every pass to `note`, if it is not None."""

    def __init__(self, lowered: Lowered, note: Note | None) -> None:
        self.lowered, self.note, self.last = lowered, note, ""

    def statements(self, name: str) -> None:
        """Report the statements; "as before" if a pass has not changed them."""
        if self.note is not None:
            text = show_lowered(self.lowered)
            self.note(name, text if text != self.last else "as before")
            self.last = text

    def hoisted(self, parts: Parts) -> None:
        """Report which statements run before, in and after the batches."""
        if self.note is None:
            return
        if not parts.before and not parts.after:
            self.note("hoisted", "nothing: all statements run for every batch")
            return
        titles = ("before all batches, for all rows of the type", "for every batch", "after all batches, for all rows")
        lines = []
        for title, part in zip(titles, parts, strict=True):
            if part:
                lines += [f"{title}:", *(f"  {line}" for line in show_statements(self.lowered, part))]
        self.note("hoisted", "\n".join(lines))

    def fused(self, neighbours: Neighbours) -> None:
        if self.note is not None:
            lines = show_steps(self.lowered, neighbours.steps)
            apart = indent(show_apart(neighbours), "  ")
            self.note("fused", "\n".join([*lines, "neighbours that are not fused:", apart]))

    def stored(self, storage: Storage) -> None:
        if self.note is not None:
            self.note("storage", show_storage(self.lowered, storage))


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
    # The stage has no batches: its compiled steps count as those before them, and the others as those after them.
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


def list_steps(stage: StageProgram, texts: Sequence[str]) -> str:
    """List the steps of a stage.

    Args:
        texts: for each step, the source of its kernel; "" if it is not a kernel.
    """
    lines = [f"{stage.lowered.name}, {stage.lowered.stage}"]
    for number, (step, text) in enumerate(zip(stage.steps, texts, strict=True)):
        if number == stage.n_before > 0:
            lines.append("for every batch:")
        if number == len(stage.steps) - stage.n_after:
            lines.append("after all batches:")
        match step:
            case Kernel(blocks=blocks):
                lines.append(f"step {number}: kernel")
                lines += [
                    f"  block {b} over {show_axes(block.axes)}, loops: {len(block.loops)}"
                    for b, block in enumerate(blocks)
                ]
                lines += ["  | " + line for line in text.splitlines()]
            case Product(terms=terms, target=target):
                text = " + ".join(f"%{t.rows.value} @ %{t.weight}{'.T' if t.transposed else ''}" for t in terms)
                lines.append(f"step {number}: product %{target} {'+=' if step.adds else '='} {text}")
            case Interpreted(target=target, why=why):
                lines.append(f"step {number}: %{target} is interpreted: {why.value}")
    return "\n".join(lines)
