"""Find the forms in which the weight stage of a cell computes gradients.

Nearly all gradients are a product of two groups of columns over all rows, a sum of rows, or rows of a table. Any other
is computed from such sums, say by an addition where a parameter is read twice; its sums are then taken by instance, and
the ops after them run with a row for each instance in place of the single row that all share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from autobatch.ir.derivative import Derivative
from autobatch.ir.passes.autodiff import ROW_SUM
from autobatch.ir.program import SHARED, Incoming, Instruction, cone


class Product(NamedTuple):
    """left' @ right over the rows of an instance: of vectors, or of matrices whose inner axis counts as rows, too.

    Attributes:
        value: that is the product.
        left, right: vectors (m,) and (n,), or matrices (m, k) and (k, n).
    """

    value: int
    left: int
    right: int


class Total(NamedTuple):
    """The sum of the rows of a value."""

    value: int
    rows: int


class Scattered(NamedTuple):
    """Rows that are added to the rows of a table that `ids` names."""

    rows: int
    ids: int


class Computed(NamedTuple):
    """A value of one row that is computed from sums."""

    value: int


Form: TypeAlias = Product | Total | Scattered | Computed


@dataclass(frozen=True, eq=False)
class Forms:
    """The forms of a derivative.

    Attributes:
        derivative: of the cell.
    """

    derivative: Derivative

    @cached_property
    def of(self) -> list[tuple[int, Form]]:
        """Each parameter by the number of its value, and a form of its gradient; the forms of a table add up."""
        found = [(index, self.form(gradient)) for index, gradient in self.derivative.parameters]
        for index, scatters in self.derivative.tables:
            found += [(index, Scattered(*scatter)) for scatter in scatters]
        return found

    def form(self, index: int) -> Form:
        """The form of a value of the weight stage."""
        vars, source = self.derivative.vars, self.derivative.vars[index].source
        if isinstance(source, Instruction) and source.op.sums_rows:
            operands = [vars[arg] for arg in source.args]
            shapes = [len(operand.shape) for operand in operands]
            if source.op is ROW_SUM:
                return Total(index, *source.args)
            if source.op.name == "row_sum_outer":
                return Product(index, *source.args)
            if source.op.name == "row_sum_matmul" and shapes == [2, 2] and SHARED not in (o.domain for o in operands):
                return Product(index, *source.args)
        return Computed(index)

    @cached_property
    def by_instance(self) -> frozenset[int]:
        """The instructions of the weight stage that have a row for each instance: sums, and what depends on them."""
        found = set[int]()
        for index in self.derivative.weights:
            source = self.derivative.vars[index].source
            if isinstance(source, Instruction) and (source.op.sums_rows or found.intersection(source.args)):
                found.add(index)
        return frozenset(found)

    @cached_property
    def common(self) -> list[int]:
        """The other instructions: views of rows, and values that all rows share."""
        return [index for index in self.derivative.weights if index not in self.by_instance]

    @cached_property
    def linear(self) -> list[int]:
        """The saved values that the weight stage reads and that are linear in the gradients of the outputs.

        All gradients are: pullbacks multiply them by values of the program.
        """
        vars, depends = self.derivative.vars, set[int]()
        for index in range(len(self.derivative.program.vars), len(vars)):
            source = vars[index].source
            if isinstance(source, Incoming) or (isinstance(source, Instruction) and depends.intersection(source.args)):
                depends.add(index)
        stage, saved, read = {*self.derivative.weights}, {*self.derivative.saved}, set[int]()
        stack = [gradient for _, gradient in self.derivative.parameters]
        stack += [value for _, scatters in self.derivative.tables for scatter in scatters for value in scatter]
        while stack:
            index = stack.pop()
            source = vars[index].source
            if index in stage and isinstance(source, Instruction):
                stack.extend(source.args)
            else:
                read.add(index)
        return sorted(read & saved & depends)

    def needed(self, index: int) -> list[int]:
        """The instructions by instance that a value depends on, in order."""
        wanted = cone(self.derivative.vars, [index])
        return [i for i in self.derivative.weights if i in self.by_instance and i in wanted]
