"""Print the statements inside a loop nest, and the names of ranges that are set before it."""

from __future__ import annotations

from typing import NamedTuple

from autobatch.compiler.assignment import Spot, is_number, is_row_number
from autobatch.compiler.fusion import Block
from autobatch.compiler.lowered import Area, Home
from autobatch.compiler.writer import Writer, add, multiply, table_and_step
from autobatch.compiler.printing import show_expression
from autobatch.compiler.statement import EdgeCount, Loop, Operand, Position
from autobatch.ir.program import SHARED
from autobatch.ops.expression import Expression, Number

FUNCTIONS = {"max": "larger"}  # functions whose names differ from those in expressions
COMBINE = {"sum": "plus", "max": "larger"}


class Element(NamedTuple):
    """A variable or an element of an array that is read or written at an index of a nest.

    Attributes:
        at: the index of the element; "" for a variable.
        is_data: the element has the type of the data, not the model's float type.
    """

    array: str
    at: str = ""
    is_data: bool = False


class Nest:
    """Prints the statements inside a loop nest, and the names that are set before it."""

    def __init__(self, writer: Writer, spot: Spot, block: Block) -> None:
        self.writer, self.spot, self.block = writer, spot, block
        self.before: list[str] = []
        self.known: dict[tuple[str, str, tuple[int, ...]], str] = {}
        self.tags: dict[str, str] = {}

    def statements(self) -> list[str]:
        """The lines of all loops."""
        reads, targets = [], []
        for loop in self.block.loops:
            strides = loop.nest[1]
            reads.append({o: self._read(o, along) for o, along in zip(loop.operands, strides[1:], strict=True)})
            targets.append(self._targets(loop, strides[0]))
        self.tags = self._tag({element.array for elements in targets for element in elements})
        return [
            line
            for loop, read, elements in zip(self.block.loops, reads, targets, strict=True)
            for line in self._lines(loop, read, elements)
        ]

    def _tag(self, written: set[str]) -> dict[str, str]:
        """Tag each range, to tell LLVM that it overlaps no other one; see `autobatch.compiler.numba.scoped`.

        No range that is written overlaps another one: a block reads its own values from variables, and parts of one
        value are disjoint.
        """
        names = [name for (_, _, strides), name in self.known.items() if strides == (1,)]
        if len(names) < 2 or written.isdisjoint(names):
            return {}
        return {name: f"{self.spot.block}, {tag}, {len(names)}" for tag, name in enumerate(names)}

    def _lines(self, loop: Loop, reads: dict[Operand, Element], targets: list[Element]) -> list[str]:
        """The lines of a loop: the result is written to the first target, and copied from there to the others."""

        def show(leaf: Expression) -> str:
            match leaf:
                case Operand():
                    element = reads[leaf]
                    text = self._load(element)
                    return f"real({text})" if element.is_data and not leaf.is_int else text
                case Number(data):
                    return self.writer.real(data)
                case EdgeCount(group):
                    self.writer.groups.add(group)
                    return f"real(edges_{group})"
                case Position():
                    return "i" if loop.axes else "0"
            raise TypeError(f"{leaf!r} is no leaf of a loop")

        text = show_expression(loop.expression, show, FUNCTIONS)
        if loop.combine:
            text = f"{COMBINE[loop.combine]}({self._load(targets[0])}, {text})"
        lines = []
        for element in targets:
            lines.append(self._assign(element, text))
            text = self._load(element)
        return lines

    def _load(self, element: Element) -> str:
        array, at, _ = element
        if array in self.tags and at == "i":
            return f"get({array}, i, {self.tags[array]})"
        return f"{array}[{at}]" if at else array

    def _assign(self, element: Element, text: str) -> str:
        array, at, _ = element
        if array in self.tags and at == "i":
            return f"put({array}, i, {text}, {self.tags[array]})"
        return f"{array}[{at}] = {text}" if at else f"{array} = {text}"

    def _targets(self, loop: Loop, strides: tuple[int, ...]) -> list[Element]:
        """The targets of a loop: a variable, memory or both."""
        writer, value = self.writer, loop.target.value
        if loop.stored is not None:
            return [self._stored(loop.stored, loop.target.offset, strides)]
        if loop.combine:
            is_variable = is_number(writer.lowered, loop)
            return [
                Element(writer.variable(value)) if is_variable else self._element(*writer.address(loop.target), strides)
            ]
        found = [Element(writer.variable(value))] if writer.storage.registers.get(value) == self.spot else []
        if not found or value in writer.storage.homes or value in writer.storage.aliases:
            found.append(self._element(*writer.address(loop.target), strides))
        return found

    def _stored(self, stored: tuple[str, int], offset: int, strides: tuple[int, ...]) -> Element:
        """Where an output or the gradient of a port is written."""
        writer, (what, number) = self.writer, stored
        if what == "output":
            writer.need_window(Area.OUTPUT, number)
            return self._element(
                f"output_{number}_w", writer.size(offset, self.spot, Area.OUTPUT, number, offset), strides
            )
        place = writer.layout.inputs[number]
        home = Home(Area.GRADIENTS, place.domain, place.column)
        writer.arguments["buffer"] = None
        column = home.column + offset
        first = add([writer.row_of(home), writer.size(column, self.spot, home.area, home.domain, column)])
        return self._element("buffer", first, strides)

    def _read(self, operand: Operand, strides: tuple[int, ...]) -> Element:
        """The variable or element of an operand."""
        writer, value = self.writer, operand.view.value
        made = writer.storage.registers.get(value)
        is_row_number_here = made is not None and made.step == self.spot.step and is_row_number(writer.lowered, value)
        if is_row_number_here or (made == self.spot and operand.moved is None):
            return Element(writer.variable(value))
        moved = ""
        if operand.moved is not None and writer.lowered.domains[value] == SHARED:
            array, step = table_and_step(value)
            writer.arguments.update({array: None, step: None})
            ids, first = writer.address(operand.moved.view)
            first = add(
                [
                    writer.size(operand.view.offset, self.spot, array, operand.view.offset),
                    multiply(f"{ids}[{first}]", step),
                ]
            )
        else:
            if operand.moved is not None:
                ids, first = writer.address(operand.moved.view)
                moved = multiply(f"{ids}[{first}]", writer.size(operand.moved.step, "step", value, operand.moved.step))
            array, first = writer.address(operand.view, moved)
        return self._element(array, first, strides)

    def _element(self, array: str, first: str, strides: tuple[int, ...]) -> Element:
        """The element of a range at the index of the nest; the range is named before the nest."""
        writer, axes, is_data = self.writer, self.block.axes, array in ("ints", "floats")
        if not axes:
            return Element(array, first, is_data)
        key = (array, first, strides)
        if key not in self.known:
            name = self.known[key] = writer.name()
            if not any(strides):
                text = f"{array}[{first}]"
            elif strides == (1,):
                text = f"part({array}, {first}, {writer.size(axes[0], self.spot, 0)})"
            else:
                text = first
            if array == "shared" and (strides == (1,) or not any(strides)):
                writer.shared[name] = text
            else:
                self.before.append(f"{name} = {text}")
        name = self.known[key]
        if not any(strides):
            return Element(name, is_data=is_data)
        if strides == (1,):
            return Element(name, "i", is_data)
        indices = [f"i{axis}" for axis in range(len(axes) - 1)] + ["i"]
        moves = [
            multiply(i, writer.size(stride, self.spot, "stride", axis, stride))
            for axis, (i, stride) in enumerate(zip(indices, strides, strict=True))
            if stride
        ]
        return Element(array, add([name, *moves]), is_data)
