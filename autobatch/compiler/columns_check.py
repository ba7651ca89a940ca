"""Check where a compiled stage reads and writes, by running it symbolically: on names of elements, not on numbers.

For every column of every row, the simulated memory holds the name of the element last written there. The steps run as
the generated source would: one batch after the other, row by row, nest by nest, index by index. Every read must find
the intended element, complete, and of its own row. This detects values in columns of others, columns that are
overwritten too early, sums that are read before they are complete, and scratch memory that one row reads from another,
regardless of the pass at fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

from autobatch.compiler.assignment import Spot, Storage, is_number, is_row_number
from autobatch.compiler.fusion import Block, Kernel, Step
from autobatch.compiler.lowered import STORED, Area, Location, Lowered
from autobatch.compiler.statement import Interpreted, Loop, Operand, Product
from autobatch.compiler.view import View
from autobatch.errors import PlanError
from autobatch.ir.program import NODE, SHARED, Instruction
from autobatch.ops.define import Shape
from autobatch.plan.plan import PlannedCell

BATCHES = ((0, 1), (2, 3))  # the nodes of each batch of the simulated mini-batch
EDGES = (2, 0, 1, 2)  # the number of edges of each node, in every group
PER_ROW = (Area.ROW, Area.GATHER, Area.OUTPUT, Area.REGISTER)  # cleared before each row of a kernel
UNCHANGED = (Area.INTS, Area.FLOATS)  # never written

Row: TypeAlias = tuple[int, int]
"""A node, and the number of one of its edges; -1 for the row of the node itself."""
Column: TypeAlias = tuple[object, ...]


class Element(NamedTuple):
    """Element `number` of a value in a row, written by the loop with id `maker`, which has reduced `terms` terms."""

    value: int
    number: int
    row: Row
    maker: int = 0
    terms: int = 0


def check_columns(
    cell: PlannedCell, lowered: Lowered, steps: Sequence[Step], storage: Storage, n_before: int, n_after: int
) -> None:
    """Check that every read of a stage finds its element, and that the stage leaves the values that later ones read.

    Args:
        n_before, n_after: the numbers of steps that run once for all rows, before and after the batches.

    Raises:
        PlanError: names the first element that is missing, and the one in its place.

    Cost: 1 to 2 microseconds per element that the stage visits, in each of four rows.
    """
    stage = _Stage(cell, lowered, storage)
    all_nodes = tuple(node for batch in BATCHES for node in batch)
    last = len(steps) - n_after
    stage.run(steps, range(n_before), all_nodes)
    for batch in BATCHES:
        stage.run(steps, range(n_before, last), batch)
    stage.run(steps, range(last, len(steps)), all_nodes)
    stage.check_left(all_nodes)


class _Stage:
    """A symbolic run of a stage."""

    def __init__(self, cell: PlannedCell, lowered: Lowered, storage: Storage) -> None:
        self.cell, self.lowered, self.storage = cell, lowered, storage
        self.memory: dict[Column, list[Element]] = {}  # several elements if values share a column at the beginning
        self.nodes: tuple[int, ...] = ()
        self.loops = {id(s): s for s in lowered.statements if isinstance(s, Loop)}
        self.terms: dict[int, Counter[int]] = {}  # terms per element that a loop reduces, by the id of the loop
        self.makers: dict[tuple[int, int], int] = {}  # the last loop that makes each element
        for loop in (loop for loop in self.loops.values() if loop.stored is None):
            numbers = list(_elements(loop.shape, loop.target.strides, loop.target.offset))
            made = range(lowered.sizes[loop.target.value]) if loop.combine else numbers  # including empty sums
            self.makers |= {(loop.target.value, number): id(loop) for number in made}
            if loop.combine:
                self.terms[id(loop)] = Counter(numbers)
        for value, node in product(self._known(), range(len(EDGES))):
            for row in self._rows(value, node):
                for number in range(lowered.sizes[value]):
                    self.memory.setdefault(self._column(value, number, row), []).append(Element(value, number, row))

    def _known(self) -> list[int]:
        """Return the values that are in memory before the stage runs: ports; in backward also the values of forward."""
        n_program = len(self.cell.program.vars)
        areas = (Area.INPUTS, Area.SAVED) if self.lowered.stage == "backward" else (Area.INPUTS,)
        found = [v for v, location in self.lowered.locations.items() if location.area in areas and v < n_program]
        vars = self.lowered.vars
        is_backward = self.lowered.stage == "backward"
        return [v for v in found if is_backward or not isinstance(vars[v].source, Instruction)]

    # Memory.

    def _rows(self, value: int, node: int) -> list[Row]:
        return _rows_of(self.lowered.domains[value], node)

    def _row(self, value: int, row: Row) -> Row:
        """Return the row of a value that a loop reads or makes in a row of its own domain."""
        return (row[0], -1) if self.lowered.domains[value] == NODE else row

    def _column(self, value: int, number: int, row: Row) -> Column:
        location, view = self.storage.locate(View(value, number, (), ()))
        return self._place(location, location.column + view.offset, row)

    def _place(self, location: Location, column: int, row: Row) -> Column:
        if location.area in PER_ROW:
            return location.area, location.domain, column
        if location.area is Area.BATCH:
            return location.area, location.domain, self.nodes.index(row[0]), row[1], column
        return location.area, location.domain, row, column

    def _check(self, column: Column, value: int, number: int, row: Row, who: str) -> None:
        """Raise a PlanError unless a column holds the element."""
        found = self.memory.get(column, [])
        if not any(self._is(element, value, number, row) for element in found):
            there = ", ".join(f"%{e.value}[{e.number}] of row {e.row} ({e.terms} terms)" for e in found) or "nothing"
            raise PlanError(
                f"checking the {self.lowered.stage} stage of {self.lowered.name!r}: {who} must find %{value}[{number}] "
                f"of row {row} in {column}, got {there}; this is a bug in autobatch; please report it."
            )

    def _is(self, found: Element, value: int, number: int, row: Row) -> bool:
        """Return whether `found` is complete, and is the element itself or an element of a part made in its place."""
        if found.row != row or (found.maker and self.makers[found.value, found.number] != found.maker):
            return False
        terms = self.terms.get(found.maker)
        if terms is not None and found.terms != terms[found.number] * self._n_times(found):
            return False
        return self._root(found.value, found.number) == self._root(value, number) or self._has_part(value, found.value)

    def _n_times(self, found: Element) -> int:
        """Return how often the loop that made an element runs for its row: once, or once per edge."""
        is_over_edges = self.loops[found.maker].domain != self.lowered.domains[found.value]
        return EDGES[found.row[0]] if is_over_edges else 1

    def _root(self, value: int, number: int) -> tuple[int, int]:
        while value in self.lowered.aliases:
            whole = self.lowered.aliases[value]
            value, number = whole.value, whole.offset + number
        return value, number

    def _has_part(self, whole: int, part: int) -> bool:
        parts = self.lowered.parts.get(whole, ())
        return part in parts or any(self._has_part(inner, part) for inner in parts)

    # Steps.

    def run(self, steps: Sequence[Step], numbers: Iterable[int], nodes: tuple[int, ...]) -> None:
        self.nodes = nodes
        for number in numbers:
            step = steps[number]
            if isinstance(step, Kernel):
                for row in (row for node in nodes for row in _rows_of(step.domain, node)):
                    self._run_row(number, step, row)
            else:
                self._run_whole(step)

    def _run_whole(self, step: Product | Interpreted) -> None:
        """Run a product or an interpreted op: read all of its inputs, then make all of its target."""
        size = self.lowered.sizes[step.target]
        if isinstance(step, Product):
            views = [term.rows for term in step.terms] + [_whole(step.target, size)] * step.adds
        else:
            views = [self.lowered.views[arg] for arg in step.args]
        for view, node in product(views, self.nodes):
            for row in self._rows(view.value, node):
                self._fetch(view, row, f"%{step.target}")
        for row in (row for node in self.nodes for row in self._rows(step.target, node)):
            for number in range(size):
                self.memory[self._column(step.target, number, row)] = [Element(step.target, number, row)]

    def _fetch(self, view: View, row: Row, who: str) -> None:
        """Check all elements of a view in a row, unless the view is of memory that is never written."""
        if self.lowered.domains[view.value] == SHARED or self.storage.locate(view)[0].area in UNCHANGED:
            return
        for number in _elements(view.shape, view.strides, view.offset):
            self._check(self._column(view.value, number, row), view.value, number, row, who)

    def _run_row(self, step: int, kernel: Kernel, row: Row) -> None:
        """Run the blocks of a kernel for a row; the nest of a block runs for that row, or for each edge of the node."""
        for column in [column for column in self.memory if column[0] in PER_ROW]:
            del self.memory[column]
        for (area, of), (first, size) in kernel.spares.items():
            values = [v for v, location in self.lowered.locations.items() if location[:2] == (area, of)]
            for k in range(size):
                self.memory[Area.ROW, NODE, first + k] = [Element(STORED, k, row)]
                if values:
                    self.memory[area, of, k] = [Element(value, k, row) for value in values]
        for at, block in enumerate(kernel.blocks):
            self._begin(block, row)
            if block.domain == kernel.domain:
                self._run_nest(Spot(step, at), block, row)
                continue
            for edge in _rows_of(block.domain, row[0]):
                self._begin(block, edge)
                self._run_nest(Spot(step, at), block, edge)
        for of in (of for area, of in kernel.spares if area is Area.OUTPUT):
            first_place, _ = kernel.spares[Area.OUTPUT, of]
            # No value of the row may have been written where the kernel may make the output.
            for k in (k for first, size in kernel.written(of) for k in range(first, first + size)):
                self._check((Area.ROW, NODE, first_place + k), STORED, k, row, f"the window of output {of}")
                self._check((Area.OUTPUT, of, k), STORED, k, row, f"output {of}")

    def _begin(self, block: Block, row: Row) -> None:
        """Write the initial values of reductions, for a node before the block, and for an edge before its nest."""
        for loop in block.loops:
            value = loop.target.value
            if loop.combine and (self.lowered.domains[value] == NODE) == (row[1] < 0):
                for number in range(self.lowered.sizes[value]):
                    self.memory[self._combined(loop, number, row)] = [Element(value, number, row, id(loop))]
                    self._keep(loop, number, row)

    def _run_nest(self, spot: Spot, block: Block, row: Row) -> None:
        walks = [(loop, list(_walk(loop))) for loop in block.loops]
        for k in range(len(walks[0][1])):
            for loop, walk in walks:
                target, *reads = walk[k]
                for operand, number in zip(loop.operands, reads, strict=True):
                    self._read(spot, loop, operand, number, self._row(operand.view.value, row))
                self._make(spot, loop, target, row if loop.stored else self._row(loop.target.value, row))

    def _read(self, spot: Spot, loop: Loop, operand: Operand, number: int, row: Row) -> None:
        """Check an operand of a loop at an index, in a variable of the nest or of the row, or in memory."""
        value, who = operand.view.value, f"the loop that makes %{loop.target.value}"
        made = self.storage.registers.get(value)
        is_in_row = made is not None and made.step == spot.step and is_row_number(self.lowered, value)
        if is_in_row or (made == spot and operand.moved is None):
            self._check((Area.REGISTER, value), value, number, row, who)
        elif operand.moved is not None:  # an int chooses the element: check all of them
            self._fetch(_whole(value, self.lowered.sizes[value]), row, who)
        else:
            self._fetch(View(value, number, (), ()), row, who)

    def _make(self, spot: Spot, loop: Loop, number: int, row: Row) -> None:
        value = loop.target.value
        if loop.stored is not None:
            what, of = loop.stored
            place = self.cell.layout.inputs[of] if what == "port" else None
            location = (
                Location(Area.OUTPUT, of, 0) if place is None else Location(Area.GRADIENTS, place.domain, place.column)
            )
            self.memory[self._place(location, location.column + number, row)] = [Element(STORED, number, row)]
        elif loop.combine:
            column = self._combined(loop, number, row)
            (begun,) = self.memory[column]
            self.memory[column] = [begun._replace(terms=begun.terms + 1)]
            self._keep(loop, number, row)
        else:
            made = [Element(value, number, row, id(loop))]
            if self.storage.registers.get(value) == spot:
                self.memory[Area.REGISTER, value] = made
            if self.storage.registers.get(value) != spot or self.storage.has_memory(value):
                self.memory[self._column(value, number, row)] = made

    def _combined(self, loop: Loop, number: int, row: Row) -> Column:
        """Return the place where a loop accumulates: a variable, or an element of memory."""
        value = loop.target.value
        return (Area.REGISTER, value) if is_number(self.lowered, loop) else self._column(value, number, row)

    def _keep(self, loop: Loop, number: int, row: Row) -> None:
        """Write an accumulated number to its place in memory, if it has one."""
        value = loop.target.value
        if is_number(self.lowered, loop) and self.storage.has_memory(value):
            self.memory[self._column(value, number, row)] = self.memory[Area.REGISTER, value]

    def check_left(self, nodes: tuple[int, ...]) -> None:
        """Check the results of a stage: residuals and, in backward, gradients of ports."""
        self.nodes = nodes
        for value, node in product(self._left(), nodes):
            for row in self._rows(value, node):
                self._fetch(_whole(value, self.lowered.sizes[value]), row, "a later stage")
        derivative, layout = self.cell.derivative, self.cell.layout
        for of, place in enumerate(layout.inputs if self.lowered.stage == "backward" and derivative else ()):
            port = self.cell.program.ports[of]
            gradient = derivative.ports[of] if derivative is not None else None
            view = self.lowered.views[gradient] if of in layout.aliased and gradient is not None else None
            for row in (row for node in nodes for row in self._rows(port, node)):
                for k in range(place.width):
                    value = STORED if view is None else view.value
                    number = k if view is None else next(_elements(view.shape, view.strides, view.offset + k))
                    column = self._place(Location(Area.GRADIENTS, place.domain, place.column), place.column + k, row)
                    self._check(column, value, number, row, f"the gradient of port {of}")

    def _left(self) -> Iterator[int]:
        """Yield the residuals that the next stage reads."""
        derivative = self.cell.derivative
        n_program = len(self.cell.program.vars)
        if derivative is None:
            return
        if self.lowered.stage == "forward":
            yield from (v for v in self.cell.layout.saved if v < n_program)
            return
        read = {arg for index in derivative.weights for arg in _args(derivative.vars[index].source)}
        read.update(value for _, scatters in derivative.tables for scatter in scatters for value in scatter)
        read.update(gradient for _, gradient in derivative.parameters)
        found = {self.lowered.views[value].value for value in read}
        locations = self.lowered.locations
        yield from (v for v in found if v in locations and locations[v].area in (Area.SAVED, Area.INPUTS))


def _rows_of(domain: int, node: int) -> list[Row]:
    return [(node, -1)] if domain == NODE else [(node, edge) for edge in range(EDGES[node])]


def _args(source: object) -> tuple[int, ...]:
    return source.args if isinstance(source, Instruction) else ()


def _whole(value: int, size: int) -> View:
    return View(value, 0, (size,), (1,))


def _elements(shape: Shape, strides: Sequence[int], offset: int) -> Iterator[int]:
    """Yield the numbers of the elements of a view, in order."""
    for index in product(*map(range, shape)):
        yield offset + sum(i * stride for i, stride in zip(index, strides, strict=True))


def _walk(loop: Loop) -> Iterator[tuple[int, ...]]:
    """Yield, for every index of a loop, the elements of its target and of its operands."""
    views = [loop.target, *(operand.view for operand in loop.operands)]
    return zip(*(_elements(loop.shape, view.strides, view.offset) for view in views), strict=True)
