"""A stage of a cell as loops, products and ops that run alone.

What a rule of `autobatch.compiler.rules` expresses becomes loops: a softmax is a largest element, exponentials, their
sum and quotients, which can then be fused with what is around them. An affine map of rows is a product and a sum with
the bias; where products of rows are added up, one library call adds to what the other wrote. What the stage computes
from parameters alone is left out: it runs once, and not for every batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from autobatch.compiler.loop import Alone, Loop, Number, Operand, Product, Read, Statement, Term
from autobatch.compiler.view import View, steps, views_of
from autobatch.ir.derivative import Derivative
from autobatch.ir.layout import Layout
from autobatch.ir.program import NODE, SHARED, Attribute, Constant, Instruction, Port, Var
from autobatch.ops.define import Shape
from autobatch.ops.elementwise import add
from autobatch.ops.linear import affine, matmul
from autobatch.plan.plan import PlannedCell

STORED = -1  # the target of loops that write to destinations or to the gradient of a port


class Home(NamedTuple):
    """Columns from `column` on of an area: "inputs", "mirror" or "saved" of a domain, or one of another kind."""

    area: str
    domain: int
    column: int


@dataclass(eq=False)
class Lowered:
    """A lowered stage.

    Attributes:
        name: of the cell.
        stage: "forward" or "backward".
        vars: the values of the cell.
        views: which elements of which value each of these is.
        sizes: elements of each value; those of the cell first, then those that lowering made.
        domains: their domains.
        statements: in an order that can be run.
        homes: the values that have a place.
        aliases: values that are made as part of another one.
        shared: instructions that run once.
        parts: for a value that is made of others, those that are made where it lies.
        taken: values that lie, at first, where others are written.
    """

    name: str
    stage: str
    vars: tuple[Var, ...]
    views: list[View]
    sizes: list[int]
    domains: list[int]
    statements: list[Statement]
    homes: dict[int, Home]
    aliases: dict[int, View]
    shared: list[int]
    parts: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    taken: frozenset[int] = frozenset()

    def values_read(self, statement: Statement) -> set[int]:
        """The values that a statement reads."""
        match statement:
            case Loop():
                return {operand.view.value for operand in statement.operands}
            case Product(terms=terms):
                return {term.rows.value for term in terms}
            case Alone(args=args):
                return {self.views[arg].value for arg in args}


def lower_forward(cell: PlannedCell) -> Lowered:
    """Lower what runs per batch, forward."""
    program = cell.program
    vars = program.vars if cell.derivative is None else cell.derivative.vars
    lowering = Lowering(program.name, "forward", vars, cell.layout, homes_of(vars, cell.layout, forward=True))
    lowering.run(program.instructions, needed=program.outputs)
    for number, output in enumerate(program.outputs):
        lowering.store("output", number, NODE, vars[output].shape, lowering.operand(output, vars[output].shape))
    return lowering.lowered


def lower_backward(cell: PlannedCell) -> Lowered:
    """Lower what runs per batch, backward."""
    derivative = cell.derivative
    assert derivative is not None, "backward follows a forward run in training"
    vars, layout = derivative.vars, cell.layout
    homes = homes_of(vars, layout, forward=False)
    lowering = Lowering(cell.program.name, "backward", vars, layout, homes)
    lowering.lowered.taken = layout.taken
    lowering.gather(derivative)
    lowering.run(derivative.backward, needed=[g for g in derivative.ports if g is not None])
    for number, gradient in enumerate(derivative.ports):
        if number not in layout.settled:
            port = vars[cell.program.ports[number]]
            read = Number(0.0) if gradient is None else lowering.operand(gradient, port.shape)
            lowering.store("port", number, port.domain, port.shape, read)
    return lowering.lowered


def homes_of(vars: Sequence[Var], layout: Layout, forward: bool) -> dict[int, Home]:
    """The places that the layout gives to values, in a stage."""
    homes: dict[int, Home] = {}
    for index, var in enumerate(vars):
        match var.source:
            case Port(number=number):
                place = layout.inputs[number]
                homes[index] = Home("inputs", place.domain, place.column)
            case Attribute(is_float=is_float, column=column):
                homes[index] = Home("floats" if is_float else "ints", NODE, column)
    areas = [("saved", layout.saved), ("inputs", layout.inner)]
    if not forward:
        areas.append(("mirror", layout.gradients))
    for area, places in areas:
        for index, place in places.items():
            homes[index] = Home(area, place.domain, place.column)
    return homes


class Lowering:
    """Grows the statements of a stage; what rules call."""

    def __init__(self, name: str, stage: str, vars: tuple[Var, ...], layout: Layout, homes: dict[int, Home]) -> None:
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
            homes=homes,
            aliases={},
            shared=[],
        )
        self._apart: set[int] = set()

    def run(self, indices: Sequence[int], needed: Iterable[int]) -> None:
        """Lower instructions, in order."""
        from autobatch.compiler.rules import RULES, lower_elementwise

        sums = self._sums_of_products(indices, {*needed, *self.lowered.homes})
        inside = {value for parts in sums.values() for value in parts.inner}
        for index in indices:
            source = self.source(index)
            if self.vars[index].domain == SHARED:
                self.lowered.shared.append(index)
            elif source.op.view:
                self._copy_view(index, source)
            elif index in inside:
                continue
            elif index in sums:
                self._add_products(index, sums[index])
            elif source.op.scalar is not None and not source.op.random:
                lower_elementwise(self, index, source)
            else:
                rule = RULES.get(source.op.name)
                why = f"{source.op.name} has no rule" if rule is None else rule(self, index, source)
                if why is not None:
                    self.alone(index, why)

    # What rules call.

    def source(self, index: int) -> Instruction:
        """The instruction that computes a value."""
        source = self.vars[index].source
        assert isinstance(source, Instruction)
        return source

    def shape(self, index: int) -> Shape:
        """The shape of a value."""
        return self.vars[index].shape

    def domain(self, index: int) -> int:
        """The domain of a value, which may be one that lowering made."""
        return self.lowered.domains[index]

    def new(self, shape: Shape, domain: int) -> View:
        """A value that the program does not have."""
        self.lowered.sizes.append(int(np.prod(shape, dtype=np.int64)))
        self.lowered.domains.append(domain)
        return View(len(self.lowered.sizes) - 1, 0, shape, steps(shape))

    def whole(self, index: int) -> View:
        """All of a value."""
        return View(index, 0, self.shape(index), steps(self.shape(index)))

    def operand(self, arg: int, shape: Shape) -> Read:
        """An argument, at every index of a shape."""
        number = self.number(arg)
        return Operand(self.views[arg].broadcast(shape)) if number is None else Number(number)

    def number(self, arg: int) -> float | None:
        """The number that an argument is, if it is one."""
        source = self.vars[arg].source
        if isinstance(source, Constant) and np.ndim(source.data) == 0:
            return float(source.data)
        return None

    def loop(
        self, domain: int, text: str, reads: Sequence[Read], target: View, combine: str = "", shape: Shape | None = None
    ) -> View:
        """Add a loop; return its target."""
        shape = target.shape if shape is None else shape
        self.lowered.statements.append(Loop(domain, shape, text, tuple(reads), target, combine))
        return target

    def reduce(
        self,
        domain: int,
        text: str,
        reads: Sequence[Read],
        shape: Shape,
        axes: Sequence[int],
        combine: str,
        target: int | None = None,
    ) -> View:
        """Combine the values of an expression along axes; the result keeps them, with length one.

        Returns:
            the result: the value `target`, or a new one.
        """
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        made = self.new(kept, domain) if target is None else View(target, 0, kept, steps(kept))
        strides = tuple(0 if axis in axes else stride for axis, stride in enumerate(made.strides))
        self.loop(domain, text, reads, made._replace(shape=shape, strides=strides), combine)
        return made

    def store(self, what: str, number: int, domain: int, shape: Shape, read: Read) -> None:
        """Add a loop that writes a value to its destinations, or to the gradient of a port."""
        target = View(STORED, 0, shape, steps(shape))
        self.lowered.statements.append(Loop(domain, shape, "{0}", (read,), target, stored=(what, number)))

    def alone(self, index: int, why: str) -> None:
        """Let an instruction run as in the reference backend."""
        source = self.source(index)
        self.lowered.statements.append(Alone(self.domain(index), index, source.args, why))
        self._apart.add(index)

    def product(self, domain: int, terms: Sequence[tuple[int, int, bool]], target: int) -> None:
        """Add a product, or a sum of them, of (rows, weight, whether it is transposed)."""
        found = tuple(Term(self._rows(rows), weight, transposed) for rows, weight, transposed in terms)
        self.lowered.statements.append(Product(domain, found, target))
        self._apart.add(target)

    def product_of(self, index: int) -> tuple[int, int, bool] | None:
        """The rows and the shared matrix that an instruction multiplies; None if it does something else."""
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
        """The elements of a value at an index."""
        array = np.empty((1, *self.shape(index)), np.int8)
        part = array[(slice(None), *where)]
        offset = part.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        return View(index, offset if part.size else 0, part.shape[1:], part.strides[1:])

    def lies_in(self, part: int, view: View) -> bool:
        """Whether an argument of a join that they cover is where the join wants it, or can be made there."""
        if self._lies_in(part, view):
            self.lowered.parts[view.value].append(self.views[part].value)
            return True
        return False

    def _lies_in(self, part: int, view: View) -> bool:
        lowered, own = self.lowered, self.views[part]
        here, there = lowered.homes.get(own.value), lowered.homes.get(view.value)
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

    # Gradients that come in, views that copy, sums of products.

    def gather(self, derivative: Derivative) -> None:
        """Make the gradients of the outputs known: read where they lie, or copied if they have a place."""
        readers = self._readers_that_need_memory(derivative.backward)
        for number, index in enumerate(derivative.incoming):
            home = Home("gather", number, 0)  # of output `number`, not of a domain
            if index in self.lowered.homes or index in readers:
                gathered = self.new(self.shape(index), self.domain(index))
                self.lowered.homes[gathered.value] = home
                self.loop(self.domain(index), "{0}", [Operand(gathered)], self.whole(index))
            else:
                self.lowered.homes[index] = home

    def _readers_that_need_memory(self, indices: Iterable[int]) -> set[int]:
        """The values that a product or an op that runs alone may read."""
        from autobatch.compiler.rules import RULES

        found: set[int] = set()
        for index in indices:
            op = self.source(index).op
            if (
                not op.view
                and (op.scalar is None or op.random)
                and (op.name in ("matmul", "affine") or op.name not in RULES)
            ):
                found.update(self.views[arg].value for arg in self.source(index).args)
        return found

    def _copy_view(self, index: int, source: Instruction) -> None:
        if self.views[index].value == index and self.domain(index) != SHARED:
            parent = self.views[source.args[0]]
            target = View(index, 0, parent.shape, steps(parent.shape))
            self.loop(self.domain(index), "{0}", [Operand(parent)], target)

    def _rows(self, rows: int) -> View:
        """Rows that a library can read."""
        view = self.views[rows]
        if view.is_contiguous and self._is_float(view.value):
            return view
        return self.loop(self.domain(rows), "{0}", [Operand(view)], self.new(view.shape, self.domain(rows)))

    def _is_float(self, value: int) -> bool:
        """Whether a value lies in memory as numbers of the model's float type."""
        return not isinstance(self.vars[value].source, Attribute) if value < len(self.vars) else True

    def _sums_of_products(self, indices: Sequence[int], needed: set[int]) -> dict[int, _Sum]:
        """The sums of two or more products, which the library can add up; the largest that there are."""
        read = Counter(arg for i in indices for arg in self.source(i).args)
        found: dict[int, _Sum] = {}
        for index in indices:
            if self.source(index).op is not add or self.domain(index) == SHARED:
                continue
            parts = _Sum([], [], set())
            for arg in self.source(index).args:
                self._collect(index, arg, read, needed, found, parts)
            if len(parts.products) > 1:
                for value in parts.inner:
                    found.pop(value, None)
                found[index] = parts
        return found

    def _collect(
        self, index: int, arg: int, read: Counter[int], needed: set[int], found: dict[int, _Sum], parts: _Sum
    ) -> None:
        alike = self.shape(arg) == self.shape(index) and self.domain(arg) == self.domain(index)
        source = self.vars[arg].source
        if not alike or read[arg] > 1 or arg in needed or not isinstance(source, Instruction):
            parts.others.append(arg)
        elif arg in found:
            parts.products.extend(found[arg].products)
            parts.others.extend(found[arg].others)
            parts.inner.update(found[arg].inner, (arg,))
        elif (product := self.product_of(arg)) is not None:
            parts.products.append(product)
            parts.others.extend(source.args[2:])
            parts.inner.add(arg)
        elif source.op is add:
            parts.inner.add(arg)
            for inner in source.args:
                self._collect(index, inner, read, needed, found, parts)
        else:
            parts.others.append(arg)

    def _add_products(self, index: int, parts: _Sum) -> None:
        shape, domain = self.shape(index), self.domain(index)
        if not parts.others:
            self.product(domain, parts.products, index)
            return
        made = self.new(shape, domain)
        self.product(domain, parts.products, made.value)
        reads = [Operand(made), *(self.operand(arg, shape) for arg in parts.others)]
        self.loop(domain, " + ".join(f"{{{k}}}" for k in range(len(reads))), reads, self.whole(index))


class _Sum(NamedTuple):
    """What a sum adds up: products, other values; and the values that are part of it and of nothing else."""

    products: list[tuple[int, int, bool]]
    others: list[int]
    inner: set[int]
