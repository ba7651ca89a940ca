"""Rewrite a cell so that each inner batch is one instruction on stacked parameters.

The products of a batch become one product with their stacked weights; the members of the batch are slices of the
result, in the order of the layout. Element-wise instructions whose operands are adjacent, slices of one value or
parameters, become one instruction on the larger slice. Operands that are not views in the layout stay as they are. The
result is an ordinary program: it is differentiated and planned as if it had been written that way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from autobatch.ir.builder import Builder, Traced
from autobatch.ir.program import Attribute, CellProgram, Instruction, Port, Weight, draws_of, stacks_in
from autobatch.ir.program_check import check_cell
from autobatch.memplan.cell.constraints import RESULT
from autobatch.memplan.cell.grouping import INPUT, STACKED
from autobatch.memplan.cell.layout import CellLayout, InnerBatch, lay_out
from autobatch.memplan.cell.memory import SHARED_VALUES, Read, is_number, literal, seen_through
from autobatch.ops.define import Shape
from autobatch.ops.shaping import slice_
from autobatch.params.parameter import Parameter
from autobatch.params.stacks import make_stack, settle
from autobatch.system.unchecked import checking

MAX_INSTRUCTIONS = 200  # larger programs would take too long to lay out


class Same(NamedTuple):
    """An operand that all members of a group share."""

    what: object


class Slice(NamedTuple):
    """An operand that is rows of a larger value: elements start:stop, and the key that joined parts must share."""

    start: int
    stop: int
    of: object


Operands: TypeAlias = tuple[Same | Slice, ...]
Group: TypeAlias = tuple[int, ...]  # values of the old program that one instruction computes, in order


def make_stacked(program: CellProgram, elementwise: bool = True) -> CellProgram:
    """Lay out and stack a program for execution; return it unchanged if it has too many instructions.

    Args:
        program: as traced.
        elementwise: see `stack_program`; unnecessary for a backend that fuses element-wise instructions into one
            kernel.

    Cost: that of `lay_out`, which is paid once per form of program.
    """
    too_many = len(program.instructions) > MAX_INSTRUCTIONS
    return program if too_many else stack_program(program, lay_out(program), elementwise)


def stack_program(program: CellProgram, layout: CellLayout, elementwise: bool = True) -> CellProgram:
    """Replace the inner batches of a layout by single instructions, where one instruction can compute them.

    Args:
        program: the program of a cell.
        layout: its layout.
        elementwise: also join element-wise instructions whose operands are adjacent.

    Returns:
        A program with the same name, ports, attributes and outputs, whose parameters may be `Stack`s, placed in the
        order of the layout.

    Cost: linear in the values, and in the members of batches times their operands.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> from autobatch.ir.arguments import Key
    >>> from autobatch.trace.tracer import Tracer
    >>> from autobatch.memplan.cell.layout import plan_cell
    >>> a, b = ab.Parameter(np.zeros((2, 2))), ab.Parameter(np.zeros((2, 2)))
    >>> tracer, key = Tracer("both", {id(a): "a", id(b): "b"}), Key("value", (2,))
    >>> program, _ = tracer.trace(lambda given: (ab.tanh(a @ given["x"]), ab.tanh(b @ given["x"])), {"x": key})
    >>> print(stack_program(program, plan_cell(program)))
    both(%0 x: (2,))
      %1: (4, 2) = parameter [a b]
      %2: (4,) = matmul(%1, %0)
      %3: (4,) = tanh(%2)
      %4: (2,) = slice(%3, index=(slice(0, 2, None),))
      %5: (2,) = slice(%3, index=(slice(2, 4, None),))
      return %4, %5
    """
    stacked = _Stacking(program, layout).run(elementwise)
    if checking():
        check_cell(stacked)
    return stacked


class _Stacking:
    """Build the new program batch by batch; `number` maps values of the old program to values of the new."""

    def __init__(self, program: CellProgram, layout: CellLayout) -> None:
        self.program, self.layout, self.memory = program, layout, layout.memory
        self.names = {id(v.source.parameter): v.source.name for v in program.vars if isinstance(v.source, Weight)}
        self.builder = Builder(program.name, weight_names=self.names)
        self.number: dict[int, int] = {}
        self.reads: list[Read] = []

    def run(self, elementwise: bool) -> CellProgram:
        # In the order of the program, because `finish` numbers ports and the columns of attributes in this order.
        for index, var in enumerate(self.program.vars):
            if isinstance(var.source, (Port, Attribute)):
                self._value(index)
        for batch in self.layout.batches:
            for group in self._groups(batch, elementwise):
                self._emit(group)
        outputs = [self.builder.value(self._value(output)) for output in self.program.outputs]
        # The draw's attribute stays even if no output needs it; `Builder.add` notes neither ties nor draws.
        program = self.builder.finish(outputs, draws_of(self.builder.vars))
        made = replace(program, ties=self.program.ties, draws=self.program.draws)
        settle(stacks_in(made.vars), self._parameter_order())
        return made

    # Groups.

    def _groups(self, batch: InnerBatch, elementwise: bool) -> list[Group]:
        """Divide the members of a batch into groups, each computed by one instruction."""
        operands = {index: self._operands(batch, index) for index in batch.values if batch.is_product or elementwise}
        joined = {index: found for index in batch.values if (found := operands.get(index)) is not None}
        single: list[Group] = [(index,) for index in batch.values if index not in joined]
        groups: list[list[int]] = []
        for index in sorted(joined, key=lambda index: _place(joined[index])):
            if groups and _follows(joined[groups[-1][-1]], joined[index]):
                groups[-1].append(index)
            else:
                groups.append([index])
        return single + [tuple(group) for group in groups]

    def _operands(self, batch: InnerBatch, index: int) -> Operands | None:
        """Describe the operands of a member; None if it must run alone."""
        source, shape = self._source(index), self.program.vars[index].shape
        if not shape or not all(shape):
            return None
        if batch.is_product:
            found = [self._product_operand(batch, k, arg) for k, arg in enumerate(source.args)]
            possible = source.op in STACKED and RESULT in batch.views
        else:
            found = [self._soft_operand(batch, k, arg, shape) for k, arg in enumerate(source.args)]
            possible = source.op.scalar is not None and not source.op.random
        known = [operand for operand in found if operand is not None]
        if not possible or len(known) < len(found):
            return None
        return tuple(known)

    def _product_operand(self, batch: InnerBatch, k: int, arg: int) -> Same | Slice | None:
        if k == INPUT:
            return Same(self._shared(arg))
        # A vector in place of the matrix is not stacked: its elements are not rows of the result.
        return self._weight(arg) if k in batch.views and (k > 0 or len(self.program.vars[arg].shape) == 2) else None

    def _soft_operand(self, batch: InnerBatch, k: int, arg: int, shape: Shape) -> Same | Slice | None:
        var, new = self.program.vars[arg], self._value(arg)
        if (text := literal(var)) is not None:
            return Same(text)
        if var.shape != shape:
            # An operand that is broadcast along the axis on which members are joined can serve all of them.
            spread = len(var.shape) < len(shape) or var.shape[0] == 1
            return Same(("value", new)) if spread else None
        if self._parameter(arg) is not None:
            return self._weight(arg) if k in batch.views else None
        # This view has no gradient, but a slice of the value behind it might have one.
        if arg in self.memory.constants:
            return None
        read = self._read(new)
        base = self.builder.vars[read.value]
        # Members are joined along the first axis, so each must be whole rows of the value behind it.
        if read.strided or base.shape[1:] != shape[1:] or read.start % math.prod(shape[1:]):
            return None
        return Slice(read.start, read.stop, read.value)

    def _weight(self, arg: int) -> Slice | None:
        """Return the place of a parameter, or of some rows of one, among the parameters of the cell."""
        parameter, shape = self._parameter(arg), self.program.vars[arg].shape
        read = self.memory.reads[arg]
        if (
            parameter is None
            or arg in self.memory.constants
            or read.strided
            or not shape
            or parameter.shape[1:] != shape[1:]
        ):
            return None
        if read.start % math.prod(shape[1:]):
            return None
        start = self.layout.offset(arg)
        return Slice(start, start + read.stop - read.start, parameter.trainable)

    # The new program.

    def _emit(self, group: Group) -> None:
        """Append one instruction for a group, with a slice for each member; or one instruction per member."""
        source = self._source(group[0])
        operands = [self._joined([self._source(index).args[k] for index in group]) for k in range(len(source.args))]
        known = [operand for operand in operands if operand is not None]
        if len(group) == 1 or len(known) < len(operands):
            for index in group:
                self._copy(index)
            return
        result = self.builder.apply(source.op, tuple(known), source.static)
        start = 0
        for index in group:
            stop = start + self.program.vars[index].shape[0]
            self.number[index] = slice_(result, index=(slice(start, stop),)).index
            start = stop

    def _joined(self, args: Sequence[int]) -> Traced | None:
        """Return one value with an operand for all members of a group; None if parameters cannot be joined."""
        if len(set(map(self._shared, args))) == 1 or is_number(self.program.vars[args[0]]):
            return self.builder.value(self._value(args[0]))
        if self._parameter(args[0]) is not None:
            return self._stacked(args)
        first, last = self._read(self._value(args[0])), self._read(self._value(args[-1]))
        return self._rows(self.builder.value(first.value), first.start, last.stop)

    def _stacked(self, args: Sequence[int]) -> Traced | None:
        """Return adjacent parameters as one value: a stack of whole parameters, or rows of a single one."""
        pieces: list[Read] = []
        for read in (self.memory.reads[arg] for arg in args):
            if pieces and (pieces[-1].value, pieces[-1].stop) == (read.value, read.start):
                pieces[-1] = pieces[-1]._replace(stop=read.stop)
            else:
                pieces.append(read)
        parameters = [parameter for piece in pieces if (parameter := self._parameter(piece.value)) is not None]
        if len(pieces) == 1:
            return self._rows(self.builder.wrap(parameters[0]), pieces[0].start, pieces[0].stop)
        if any(piece.stop - piece.start < self.program.vars[piece.value].size for piece in pieces):
            return None
        stack = make_stack(parameters)
        self.names[id(stack)] = f"[{' '.join(self.names[id(parameter)] for parameter in parameters)}]"
        return self.builder.wrap(stack)

    def _rows(self, whole: Traced, start: int, stop: int) -> Traced:
        if (start, stop) == (0, whole.var.size):
            return whole
        width = math.prod(whole.shape[1:])
        rows: Traced = slice_(whole, index=(slice(start // width, stop // width),))
        return rows

    def _value(self, index: int) -> int:
        """Return a value's number in the new program, appending views, copies and inputs at their first read."""
        if index not in self.number:
            self._copy(index)
        return self.number[index]

    def _copy(self, index: int) -> None:
        var = self.program.vars[index]
        source = var.source
        if isinstance(source, Weight):
            self.number[index] = self.builder.wrap(source.parameter).index
            return
        if isinstance(source, Instruction):
            source = replace(source, args=tuple(self._value(arg) for arg in source.args))
        self.number[index] = self.builder.add(source, var.shape, var.domain).index

    # Lookups.

    def _shared(self, arg: int) -> tuple[Read, bool]:
        """Return a key that is equal for arguments with the same numbers and the same gradient."""
        return self.memory.reads[arg], arg in self.memory.constants

    def _source(self, index: int) -> Instruction:
        source = self.program.vars[index].source
        assert isinstance(source, Instruction)
        return source

    def _parameter(self, index: int) -> Parameter | None:
        """Return the parameter that a value is, or is a view of."""
        source = self.program.vars[self.memory.reads[index].value].source
        return source.parameter if isinstance(source, Weight) else None

    def _read(self, new: int) -> Read:
        """Return the memory that a value of the new program refers to."""
        for number in range(len(self.reads), new + 1):
            var = self.builder.vars[number]
            if isinstance(var.source, Instruction) and var.source.op.view:
                arg = var.source.args[0]
                self.reads.append(seen_through(var.source, self.builder.vars[arg].shape, self.reads[arg]))
            else:
                self.reads.append(Read(number, 0, var.size))
        return self.reads[new]

    def _parameter_order(self) -> list[Parameter]:
        items = self.layout.areas.get(SHARED_VALUES, ())
        return [parameter for item in items if (parameter := self._parameter(item.value)) is not None]


def _place(operands: Operands) -> tuple[tuple[str, int], ...]:
    """Return a sort key that puts members with adjacent operands next to each other."""
    same = [(repr(operand), 0) for operand in operands if isinstance(operand, Same)]
    return (*same, *((repr(operand.of), operand.start) for operand in operands if isinstance(operand, Slice)))


def _follows(before: Operands, after: Operands) -> bool:
    """Return whether each operand equals or is adjacent to the one before, and at least one is a slice."""
    return any(isinstance(operand, Slice) for operand in after) and all(
        (x.of, x.stop) == (y.of, y.start) if isinstance(x, Slice) and isinstance(y, Slice) else x == y
        for x, y in zip(before, after, strict=True)
    )
