"""Describe the values of a cell in memory: items that can be placed, views of items, and joins.

A value that is a contiguous slice of another is a view, so the other is split into *items* where slices begin and end;
its items stay adjacent. A `concat` along the first axis is a *join*: it needs no copy if its parts are adjacent. Other
views (transposed, broadcast) read the whole value through strides; two are equal if their strides are.
Items of one area can be placed next to each other. The areas are the columns of a node, the columns of an edge of each
variadic group, and the values that all nodes share (parameters). Each data attribute is an area of its own, in program
order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from autobatch.ir.program import NODE, SHARED, Attribute, CellProgram, Constant, Instruction, Port, Var, Weight
from autobatch.memplan.cell.aligned import Line
from autobatch.ops.define import Op, Shape
from autobatch.ops.elementwise import stop_gradient

NODE_COLUMNS, SHARED_VALUES, INT_DATA, FLOAT_DATA = "node", "shared", "int data", "float data"
DATA = (INT_DATA, FLOAT_DATA)  # prefixes of the names of data areas; a variadic group follows


class Item(NamedTuple):
    """Elements start:stop of a value, with memory of their own."""

    value: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class Read(NamedTuple):
    """The memory that an argument refers to: elements of a value, read through strided views."""

    value: int
    start: int
    stop: int
    strided: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ProgramMemory:
    """The values of one program in memory."""

    program: CellProgram

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """Return the memory that each value refers to: its own, unless it is a view."""
        return reads_of(self.program.vars)

    @cached_property
    def constants(self) -> frozenset[int]:
        """Return the views without a gradient, although the viewed values may have one."""
        found: set[int] = set()
        for i in self.program.instructions:
            if _op(self, i) is stop_gradient or (_op(self, i).view and self._args(i)[0] in found):
                found.add(i)
        return frozenset(found)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Return the instructions that compute: neither views nor copies."""
        return tuple(i for i in self.program.instructions if not (_op(self, i).view or _op(self, i).copies))

    @cached_property
    def joins(self) -> dict[int, tuple[int, ...]]:
        """Return the parts of each `concat` that needs no copy if they are adjacent."""
        return {i: self._args(i) for i in self.copying if self.why_copied(i) is None}

    @cached_property
    def copying(self) -> tuple[int, ...]:
        """Return the instructions that only move bytes."""
        return tuple(i for i in self.program.instructions if _op(self, i).copies and self.program.vars[i].size)

    @cached_property
    def items(self) -> dict[int, tuple[Item, ...]]:
        """Return the items of each value that has memory: all but views and literal numbers."""
        return {
            value: tuple(Item(value, start, stop) for start, stop in pairwise(sorted(cuts)))
            for value, cuts in self._cuts.items()
            if not is_number(self.program.vars[value]) and self.program.vars[value].size
        }

    @cached_property
    def areas(self) -> dict[str, tuple[Item, ...]]:
        """Return the items of each area, in program order."""
        found: defaultdict[str, list[Item]] = defaultdict(list)
        for value, items in self.items.items():
            found[self.area_of(value)] += items
        return {area: tuple(items) for area, items in found.items()}

    @cached_property
    def _cuts(self) -> dict[int, set[int]]:
        cuts: dict[int, set[int]] = {}
        for read in self.reads:
            cuts.setdefault(read.value, {0, self.program.vars[read.value].size}).update((read.start, read.stop))
        return cuts

    def fixed_lines(self) -> list[Line]:
        """Return the lines that always hold: the items of each value, and all items of data attributes."""
        data = [items for area, items in self.areas.items() if area.startswith(DATA)]
        lines = [Line(None, tuple((item,) for item in items)) for items in (*data, *self.items.values())]
        return [line for line in lines if len(line.spans) > 1]

    def span(self, index: int, copied_joins: frozenset[int] = frozenset()) -> tuple[Item, ...]:
        """Return the items of a value, in order; none for a number.

        Args:
            index: a value of the program.
            copied_joins: joins whose parts are not adjacent, which have memory of their own.
        """
        read = self.reads[index]
        if read.value in self.joins and read.value not in copied_joins:
            # A join is only read as a whole (`why_copied`), so all parts are in its span.
            return tuple(item for part in self.joins[read.value] for item in self.span(part, copied_joins))
        return tuple(i for i in self.items.get(read.value, ()) if read.start <= i.start and i.stop <= read.stop)

    def area_of(self, value: int) -> str:
        """Return the area of a value with memory.

        That is `NODE_COLUMNS`, `SHARED_VALUES`, or one per variadic group and data attribute.
        """
        var = self.program.vars[value]
        if isinstance(var.source, Attribute):
            return f"{FLOAT_DATA if var.source.is_float else INT_DATA}{f' {var.domain}' * (var.domain != NODE)}"
        return {NODE: NODE_COLUMNS, SHARED: SHARED_VALUES}.get(var.domain, f"edge of group {var.domain}")

    def why_copied(self, index: int) -> str | None:
        """Return why a copying instruction can never be a join; None if it can."""
        source = self.program.vars[index].source
        assert isinstance(source, Instruction)
        reads = [self.reads[a] for a in source.args]
        if source.op.name != "concat" or source.static["axis"] % len(self.program.vars[index].shape):
            return "it interleaves its parts"
        if any(read.strided for read in reads):
            return "a part is read through strides"
        if any(is_number(self.program.vars[r.value]) or self.area_of(r.value) != self.area_of(index) for r in reads):
            return "its parts lie in different areas"
        if any(first.value == other.value and _overlap(first, other) for first, other in combinations(reads, 2)):
            return "a part is in it twice"
        if len(self._cuts[index]) > 2 or any(r.strided for r in self.reads if r.value == index):
            return "it is read in pieces"
        return None

    def name(self, index: int) -> str:
        """Name a value: a port, parameter or attribute by its name, others by number."""
        source = self.program.vars[index].source
        return source.name if isinstance(source, (Port, Weight, Attribute)) else f"%{index}"

    def item_name(self, item: Item) -> str:
        """Name an item by its value, with the element range if it is not the whole value."""
        part = "" if len(self.items[item.value]) == 1 else f"[{item.start}:{item.stop}]"
        return self.name(item.value) + part

    def _args(self, index: int) -> tuple[int, ...]:
        source = self.program.vars[index].source
        assert isinstance(source, Instruction)
        return source.args


def reads_of(vars: Sequence[Var]) -> tuple[Read, ...]:
    """Return the memory that each value refers to: its own, unless it is a view."""
    found: list[Read] = []
    for index, var in enumerate(vars):
        if isinstance(var.source, Instruction) and var.source.op.view:
            argument = var.source.args[0]
            found.append(seen_through(var.source, vars[argument].shape, found[argument]))
        else:
            found.append(Read(index, 0, var.size))
    return tuple(found)


def is_number(var: Var) -> bool:
    """Return whether a value is a literal number of the program."""
    return isinstance(var.source, Constant) and np.ndim(var.source.data) == 0


def literal(var: Var) -> str | None:
    """Return a literal number as text, or None for any other value."""
    # As floats, 0.0 and -0.0 would be equal, and nan not equal to itself.
    return repr(np.asarray(var.source.data).item()) if isinstance(var.source, Constant) and is_number(var) else None


def seen_through(source: Instruction, shape: Shape, argument: Read) -> Read:
    """Return the memory behind a view of an argument: a contiguous range of its elements, or strides over them."""
    # Bytes, so that differences of addresses count elements; kernels expect the batch axis in front.
    base = np.empty((1, *shape), np.int8)
    view = source.op.kernel(np, base, **source.static)
    if argument.strided or not view.flags.c_contiguous:
        return argument._replace(strided=(*argument.strided, f"{source.op.name} of {shape}, {source.static}"))
    start = argument.start + view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return Read(argument.value, start, start + view.size)


def _op(memory: ProgramMemory, index: int) -> Op:
    source = memory.program.vars[index].source
    assert isinstance(source, Instruction)
    return source.op


def _overlap(first: Read, other: Read) -> bool:
    return first.start < other.stop and other.start < first.stop
