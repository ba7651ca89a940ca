"""Lower a stage of a cell to loops, products and interpreted ops.

The rules of `autobatch.compiler.rules` turn ops into loops: a softmax becomes a maximum, exponentials, their sum and
quotients, which can be fused with the ops around them. An affine map of rows becomes a product and a sum with the bias.
In a sum of products, each library call after the first adds to the result of the previous one. Values that depend on
parameters alone are omitted, because they are computed once, not for every batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autobatch.compiler.lowered import Area, Location, Lowered, Lowering
from autobatch.compiler.rules import RULES, lower_elementwise
from autobatch.compiler.statement import Operand, Reason
from autobatch.compiler.view import View, steps
from autobatch.ir.derivative import Derivative
from autobatch.ir.layout import Layout
from autobatch.ir.program import NODE, SHARED, Attribute, Instruction, Port, Var
from autobatch.ops.elementwise import add
from autobatch.ops.expression import Expression, Number
from autobatch.plan.plan import PlannedCell


def lower_forward(cell: PlannedCell) -> Lowered:
    """Lower the forward stage."""
    program = cell.program
    vars = program.vars if cell.derivative is None else cell.derivative.vars
    lowering = _Stage(program.name, "forward", vars, cell.layout, locations_of(vars, cell.layout, forward=True))
    lowering.run(program.instructions, needed=program.outputs)
    for number, output in enumerate(program.outputs):
        shape, domain = vars[output].shape, max(vars[output].domain, NODE)
        lowering.store("output", number, domain, lowering.operand(output, shape), shape)
    return lowering.lowered


def lower_backward(cell: PlannedCell) -> Lowered:
    """Lower the backward stage."""
    derivative = cell.derivative
    assert derivative is not None, "backward follows a forward run in training"
    vars, layout = derivative.vars, cell.layout
    locations = locations_of(vars, layout, forward=False)
    lowering = _Stage(cell.program.name, "backward", vars, layout, locations)
    lowering.lowered.taken = layout.taken
    lowering.gather(derivative)
    lowering.run(derivative.backward, needed=[g for g in derivative.ports if g is not None])
    for number, gradient in enumerate(derivative.ports):
        if number not in layout.aliased:
            port = vars[cell.program.ports[number]]
            made = Number(0.0) if gradient is None else lowering.operand(gradient, port.shape)
            lowering.store("port", number, port.domain, made, port.shape)
    return lowering.lowered


def locations_of(vars: Sequence[Var], layout: Layout, forward: bool) -> dict[int, Location]:
    """Return the places that the layout gives to the values of a stage."""
    locations: dict[int, Location] = {}
    for index, var in enumerate(vars):
        match var.source:
            case Port(number=number):
                place = layout.inputs[number]
                locations[index] = Location(Area.INPUTS, place.domain, place.column)
            case Attribute(is_float=is_float, column=column):
                locations[index] = Location(Area.FLOATS if is_float else Area.INTS, var.domain, column)
    areas = [(Area.SAVED, layout.saved), (Area.INPUTS, layout.inner)]
    if not forward:
        areas.append((Area.GRADIENTS, layout.gradients))
    for area, places in areas:
        for index, place in places.items():
            locations[index] = Location(area, place.domain, place.column)
    return locations


MAYBE_IN_MEMORY = {"matmul", "affine", "lookup", "argmax", "cross_entropy", "pick"}
"""Ops with a rule that may still turn them into products, or leave them to be interpreted; only the rule decides."""


class _Stage(Lowering):
    """The lowering of the instructions of a stage."""

    def run(self, indices: Sequence[int], needed: Iterable[int]) -> None:
        """Lower instructions, in order; `needed` are values that must exist, and so cannot vanish in a sum."""
        sums = self._sums_of_products(indices, {*needed, *self.lowered.locations})
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
            else:
                is_elementwise = source.op.scalar is not None and not source.op.random
                rule = lower_elementwise if is_elementwise else RULES.get(source.op.name)
                why = Reason.NO_RULE if rule is None else rule(self, index, source)
                if why is not None:
                    self.interpret(index, why)

    def gather(self, derivative: Derivative) -> None:
        """Provide the gradients of outputs: read them where they are gathered, or copy those that need memory."""
        readers = self._readers_that_need_memory(derivative.backward)
        for number, index in enumerate(derivative.incoming):
            location = Location(Area.GATHER, number, 0)  # `number` is an output, not a domain
            if index in self.lowered.locations or index in readers or self.domain(index) != NODE:
                gathered = self.new(self.shape(index), self.domain(index))
                self.lowered.locations[gathered.value] = location
                self.loop(self.domain(index), Operand(gathered), self.whole(index))
            else:
                self.lowered.locations[index] = location

    def _readers_that_need_memory(self, indices: Iterable[int]) -> set[int]:
        """Return the values that products or interpreted ops may read, and which must therefore be in memory."""
        found: set[int] = set()
        for index in indices:
            op = self.source(index).op
            if (
                not op.view
                and (op.scalar is None or op.random)
                and (op.name in MAYBE_IN_MEMORY or op.name not in RULES)
            ):
                found.update(self.views[arg].value for arg in self.source(index).args)
        return found

    def _copy_view(self, index: int, source: Instruction) -> None:
        # A view op that has to copy makes a value of its own, see `views_of`.
        if self.views[index].value == index and self.domain(index) != SHARED:
            parent = self.views[source.args[0]]
            target = View(index, 0, parent.shape, steps(parent.shape))
            self.loop(self.domain(index), Operand(parent), target)

    def _sums_of_products(self, indices: Sequence[int], needed: set[int]) -> dict[int, _Sum]:
        """Find the maximal sums of two or more products, which the library can accumulate in one result."""
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
        total: Expression = Operand(made)
        for arg in parts.others:
            total += self.operand(arg, shape)
        self.loop(domain, total, self.whole(index))


class _Sum(NamedTuple):
    """The terms of a sum: products and other values; `inner` are the intermediate values that only this sum reads."""

    products: list[tuple[int, int, bool]]
    others: list[int]
    inner: set[int]
