"""The backward stages of a cell as data; `autobatch.ir.autodiff` makes them, and other passes change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from autobatch.ir.program import SHARED, CellProgram, Constant, Instruction, Var, Weight, show_lines
from autobatch.params.parameter import Parameter


class ScatteredRows(NamedTuple):
    """Rows to add to a table: each row of the value `values` goes to the row that the value `ids` names."""

    values: int
    ids: int


@dataclass(frozen=True, eq=False)
class Derivative:
    """The three stages of a differentiable cell, over one list of values.

    Attributes:
        vars: the values of the program, then those of the backward stages.
        saved: values kept between stages, one place per row.
        backward: instructions to run per batch, in order.
        weights: instructions to run once per type, in order.
        incoming: the gradients of the outputs, by output number.
        ports: the gradient of each port, by port number; None if no output depends on the port.
        parameters: pairs of a `Weight` value and its gradient, one row.
        tables: pairs of a `Weight` value whose gradient consists of scattered rows, and these rows; no stage computes
            the gradient as an array.
        kept: values that lie in the inputs, which all stages can read.
        again: values of the program that backward rematerialises; it also recomputes views and values of one row.
    """

    program: CellProgram
    vars: tuple[Var, ...]
    saved: tuple[int, ...]
    backward: tuple[int, ...]
    weights: tuple[int, ...]
    incoming: tuple[int, ...]
    ports: tuple[int | None, ...]
    parameters: tuple[tuple[int, int], ...]
    tables: tuple[tuple[int, tuple[ScatteredRows, ...]], ...]
    kept: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()

    @cached_property
    def accumulated(self) -> frozenset[int]:
        """Return the parameter gradients that can be added up in place: single sums over rows without other readers."""
        read = Counter(g for _, g in self.parameters)
        read.update(s.values for _, scatters in self.tables for s in scatters)
        for i in self.weights:
            source = self.vars[i].source
            read.update(source.args if isinstance(source, Instruction) else ())
        sources = {g: self.vars[g].source for _, g in self.parameters}
        return frozenset(
            g for g, s in sources.items() if read[g] == 1 and isinstance(s, Instruction) and s.op.sums_rows
        )

    @cached_property
    def by_segment(self) -> frozenset[int]:
        """Return the instructions of the weight stage with a row per segment: sums, and instructions that depend on
        them."""
        found = set[int]()
        for index in self.weights:
            source = self.vars[index].source
            if isinstance(source, Instruction) and (source.op.sums_rows or found.intersection(source.args)):
                found.add(index)
        return frozenset(found)

    @cached_property
    def linear(self) -> list[int]:
        """Return the saved values that the weight stage reads and that are linear in the gradients of the outputs.

        All gradients are: pullbacks multiply them by values of the program.
        """
        depends, read = set(self.incoming), {g for _, g in self.parameters}
        read.update(value for _, scatters in self.tables for scatter in scatters for value in scatter)
        for index in range(len(self.program.vars), len(self.vars)):
            source = self.vars[index].source
            if isinstance(source, Instruction) and depends.intersection(source.args):
                depends.add(index)
        for index in self.weights:
            source = self.vars[index].source
            read.update(source.args if isinstance(source, Instruction) else ())
        return sorted(read & depends & {*self.saved})

    def factors(self, gradient: int) -> tuple[int, int] | None:
        """Return the operands of a gradient that sums their products over rows, see `autobatch.ops.linear.factors`.

        None for any other gradient, and if all rows share an operand.
        """
        source = self.vars[gradient].source
        if not isinstance(source, Instruction) or source.op.name not in ("row_sum_outer", "row_sum_matmul"):
            return None
        left, right = source.args
        operands = self.vars[left], self.vars[right]
        is_product = len({len(var.shape) for var in operands}) == 1 and SHARED not in {var.domain for var in operands}
        return (left, right) if is_product and len(self.vars[gradient].shape) == 2 else None

    def needed(self, roots: Iterable[int]) -> list[int]:
        """Return the instructions of the weight stage that some of its values depend on, in order."""
        wanted = set(roots)
        for index in reversed(self.weights):
            source = self.vars[index].source
            if index in wanted and isinstance(source, Instruction):
                wanted.update(source.args)
        return [index for index in self.weights if index in wanted]

    @property
    def roots(self) -> Iterator[int]:
        """Yield the results of the stages, which must be computed."""
        yield from (gradient for gradient in self.ports if gradient is not None)
        yield from (gradient for _, gradient in self.parameters)
        yield from (value for _, scatters in self.tables for scatter in scatters for value in scatter)

    @cached_property
    def keys(self) -> dict[int, int]:
        """Return the `id` of each parameter that has a gradient, by the number of its value."""
        return {i: id(self.parameter(i)) for i, _ in (*self.parameters, *self.tables)}

    def parameter(self, index: int) -> Parameter:
        source = self.vars[index].source
        assert isinstance(source, Weight)
        return source.parameter

    def __str__(self) -> str:
        backward = [*self.incoming, *self._new(self.backward)]
        lines = [f"{self.program.name}, backward", *show_lines(self.vars, backward)]
        lines += [
            f"  gradient of %{p} is %{g}" for p, g in zip(self.program.ports, self.ports, strict=True) if g is not None
        ]
        lines += [f"{self.program.name}, weights", *show_lines(self.vars, self._new(self.weights))]
        lines += [f"  gradient of %{p} is %{g}" for p, g in self.parameters]
        lines += [
            f"  gradient of %{p} has %{s.values} added at rows %{s.ids}" for p, parts in self.tables for s in parts
        ]
        lists = [("saved", self.saved), *([("computed again", sorted(self.again))] if self.again else [])]
        return "\n".join([*lines, *(f"  {what}: {', '.join(f'%{i}' for i in values)}" for what, values in lists)])

    def _new(self, stage: tuple[int, ...]) -> list[int]:
        """Return the values to print for a stage: its new ones, recomputed ones, and new constants that it reads."""
        shown = set(stage)
        for source in (self.vars[i].source for i in stage):
            if isinstance(source, Instruction):
                shown.update(a for a in source.args if isinstance(self.vars[a].source, Constant))
        return sorted(i for i in shown if i >= len(self.program.vars) or i in self.again)
