"""Define a lowered stage, with its statements and the places of its values, and the builder to which rules add."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from autobatch.compiler.statement import Combine, Interpreted, Loop, Operand, Product, Reason, Statement, Term
from autobatch.compiler.view import View, steps, views_of
from autobatch.ir.layout import Layout
from autobatch.ir.program import SHARED, Attribute, Constant, Instruction, Var
from autobatch.ops.define import Shape
from autobatch.ops.expression import Expression, Number
from autobatch.ops.linear import affine, matmul

STORED = -1  # the target of loops that write to destinations or to the gradient of a port


class Area(StrEnum):
    """The memory that holds a value of a stage; each target maps it to memory of its own.

    The first four are the storage classes from which buffer assignment chooses. The others are given: the plan's buffer
    holds the inputs of nodes, their gradients and residuals; OUTPUT is the first destination of an output, and GATHER
    its gathered gradient; the rest are data of nodes and values shared by all rows.
    """

    REGISTER = "register"  # a variable of a loop nest or, for one number per node, of a kernel
    ROW = "row"  # scratch memory that all rows of a kernel use in turn
    BATCH = "batch"  # scratch memory with a row for each row of a batch
    PERSISTENT = "persistent"  # scratch memory with a row for each node of the type
    INPUTS = "inputs"
    GRADIENTS = "gradients"
    SAVED = "saved"
    OUTPUT = "output"
    GATHER = "gather"
    INTS = "ints"
    FLOATS = "floats"
    SHARED = "shared"


class Location(NamedTuple):
    """Columns of an area from `column` on, in the rows of a domain; in GATHER and OUTPUT, `domain` is the output."""

    area: Area
    domain: int
    column: int


@dataclass(eq=False)
class Lowered:
    """A lowered stage.

    Attributes:
        name: the name of the cell.
        stage: "forward" or "backward".
        vars: the values of the cell.
        views: for each value of the cell, the value whose elements it views, and these elements.
        sizes: the number of elements of each value; values of the cell first, then values that lowering added.
        domains: the domain of each value.
        statements: the statements, in an executable order.
        locations: the places of the values that the layout puts in memory.
        aliases: values that are made as part of another one.
        shared: instructions that run once.
        parts: for a value that is joined from others, the parts that are made in place.
        pieces: for each value that loop splitting divided, its pieces, which have equal size.
        taken: values whose columns other values overwrite later (buffer reuse).
    """

    name: str
    stage: str
    vars: tuple[Var, ...]
    views: list[View]
    sizes: list[int]
    domains: list[int]
    statements: list[Statement]
    locations: dict[int, Location]
    aliases: dict[int, View]
    shared: list[int]
    parts: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    pieces: list[list[int]] = field(default_factory=list)
    taken: frozenset[int] = frozenset()

    def goes_between_nodes(self, statement: Statement) -> bool:
        """Return whether a loop writes an output with a row per edge to its destinations, or gathers its gradient.

        Each edge has destinations of its own, so such a loop is a kernel whose rows are edges.
        """
        if not isinstance(statement, Loop) or statement.domain < 0:
            return False
        per_edge = [o.view.value for o in statement.operands if self.domains[o.view.value] >= 0]
        is_output = statement.stored is not None and statement.stored[0] == "output"
        return is_output or any(v in self.locations and self.locations[v].area is Area.GATHER for v in per_edge)

    def values_read(self, statement: Statement) -> set[int]:
        match statement:
            case Loop():
                return {operand.view.value for operand in statement.operands}
            case Product(terms=terms):
                return {term.rows.value for term in terms}
            case Interpreted(args=args):
                return {self.views[arg].value for arg in args}


class Lowering:
    """The builder of a lowered stage; rules call its methods to add statements."""

    def __init__(
        self, name: str, stage: str, vars: tuple[Var, ...], layout: Layout, locations: dict[int, Location]
    ) -> None:
        self.vars, self.layout = vars, layout
        self.views = views_of(vars)
        self.lowered = Lowered(
            name,
            stage,
            vars,
            self.views,
            [v.size for v in vars],
            [v.domain for v in vars],
            statements=[],
            locations=locations,
            aliases={},
            shared=[],
        )
        self._apart: set[int] = set()  # made by products and interpreted ops, which always write to memory

    # What rules call.

    def source(self, index: int) -> Instruction:
        """Return the instruction that computes a value."""
        source = self.vars[index].source
        assert isinstance(source, Instruction)
        return source

    def shape(self, index: int) -> Shape:
        return self.vars[index].shape

    def domain(self, index: int) -> int:
        """Return the domain of a value of the cell, or of one that lowering added."""
        return self.lowered.domains[index]

    def new(self, shape: Shape, domain: int) -> View:
        """Add a value that the program does not have; return the view of all its elements."""
        self.lowered.sizes.append(int(np.prod(shape, dtype=np.int64)))
        self.lowered.domains.append(domain)
        return View(len(self.lowered.sizes) - 1, 0, shape, steps(shape))

    def whole(self, index: int) -> View:
        """Return the view of all elements of a value."""
        return View(index, 0, self.shape(index), steps(self.shape(index)))

    def operand(self, arg: int, shape: Shape) -> Expression:
        """Return the expression of an argument, broadcast to a shape: a number if it is a constant number."""
        number = self.number(arg)
        return Operand(self.views[arg].broadcast(shape)) if number is None else Number(number)

    def number(self, arg: int) -> float | None:
        """Return the value of an argument that is a constant number; None for others."""
        source = self.vars[arg].source
        if isinstance(source, Constant) and np.ndim(source.data) == 0:
            return float(source.data)
        return None

    def loop(
        self, domain: int, expression: Expression, target: View, combine: Combine = "", shape: Shape | None = None
    ) -> View:
        """Add a loop; return its target."""
        shape = target.shape if shape is None else shape
        self.lowered.statements.append(Loop(domain, shape, expression, target, combine))
        return target

    def reduce(
        self,
        domain: int,
        expression: Expression,
        shape: Shape,
        axes: Sequence[int],
        combine: Combine,
        target: int | None = None,
    ) -> View:
        """Reduce an expression along axes; the result keeps these axes, with length one.

        Returns:
            The result: a view of the value `target`, or of a new value.
        """
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        made = self.new(kept, domain) if target is None else View(target, 0, kept, steps(kept))
        strides = tuple(0 if axis in axes else stride for axis, stride in enumerate(made.strides))
        self.loop(domain, expression, made._replace(shape=shape, strides=strides), combine)
        return made

    def store(self, what: str, number: int, domain: int, expression: Expression, shape: Shape) -> None:
        """Add a loop that writes an expression to the destinations of an output, or to the gradient of a port."""
        target = View(STORED, 0, shape, steps(shape))
        self.lowered.statements.append(Loop(domain, shape, expression, target, stored=(what, number)))

    def interpret(self, index: int, why: Reason) -> None:
        """Add an instruction that is interpreted, as in the reference backend."""
        source = self.source(index)
        self.lowered.statements.append(Interpreted(self.domain(index), index, source.args, why))
        self._apart.add(index)

    def product(self, domain: int, terms: Sequence[tuple[int, int, bool]], target: int) -> None:
        """Add a sum of one or more products, each given as (rows, weight, whether the weight is transposed)."""
        found = tuple(Term(self._rows(rows), weight, transposed) for rows, weight, transposed in terms)
        self.lowered.statements.append(Product(domain, found, target))
        self._apart.add(target)

    def product_of(self, index: int) -> tuple[int, int, bool] | None:
        """Return the term, as for `product`, if an instruction multiplies rows by a shared matrix; else None."""
        source = self.source(index)
        if source.op is affine:
            weight, rows, _ = source.args
            transposed = True
        elif source.op is matmul:
            transposed = len(self.shape(source.args[0])) == 2
            weight, rows = source.args if transposed else source.args[::-1]
        else:
            return None
        fits = len(self.shape(weight)) == 2 and len(self.shape(rows)) == 1
        if not fits or self.domain(weight) != SHARED or self.domain(rows) == SHARED:
            return None
        return rows, weight, transposed

    def part_of(self, index: int, where: Any) -> View:
        """Return the view of the elements of a value at an index of NumPy."""
        # Elements of one byte, so that the offset and the strides, which NumPy counts in bytes, count elements.
        array = np.empty((1, *self.shape(index)), np.int8)
        part = array[(slice(None), *where)]
        offset = part.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        return View(index, offset if part.size else 0, part.shape[1:], part.strides[1:])

    def lies_in(self, part: int, view: View) -> bool:
        """Return whether an argument of a join is at its place, or can be made there; if so, record it as a part."""
        if self._lies_in(part, view):
            self.lowered.parts[view.value].append(self.views[part].value)
            return True
        return False

    def _lies_in(self, part: int, view: View) -> bool:
        lowered, own = self.lowered, self.views[part]
        here, there = lowered.locations.get(own.value), lowered.locations.get(view.value)
        if here is not None:
            at = here._replace(column=here.column + own.offset)
            wanted = there is not None and there._replace(column=there.column + view.offset)
            return at == wanted and own.is_contiguous and view.is_contiguous
        can = (
            own.is_whole(lowered.sizes[own.value])
            and own.value in self._apart
            and own.value not in lowered.aliases
            and view.is_contiguous
        )
        if can and self.domain(own.value) == self.domain(view.value):
            lowered.aliases[own.value] = view._replace(shape=own.shape, strides=own.strides)
            return True
        return False

    def _rows(self, rows: int) -> View:
        """Return a view of rows that a BLAS can read, contiguous and of the float type; copy them if necessary."""
        view = self.views[rows]
        if view.is_contiguous and self._is_float(view.value):
            return view
        return self.loop(self.domain(rows), Operand(view), self.new(view.shape, self.domain(rows)))

    def _is_float(self, value: int) -> bool:
        """Return whether a value is stored in the model's float type."""
        return not isinstance(self.vars[value].source, Attribute) if value < len(self.vars) else True
