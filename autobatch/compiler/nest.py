"""Find the variables and elements that each statement inside a loop nest reads and writes, for any target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from autobatch.compiler.assignment import Spot, is_number, is_row_number
from autobatch.compiler.fusion import Block
from autobatch.compiler.lowered import Area, Location
from autobatch.compiler.statement import Loop, Operand
from autobatch.compiler.writer import Writer, add, multiply, table_and_step
from autobatch.ir.program import SHARED


class Element(NamedTuple):
    """A variable, or an element of an array, that is read or written at an index of a nest.

    Attributes:
        array: the name of the variable or of the array.
        at: the index of the element; "" for a variable.
        is_data: whether the element has the type of the data, not the model's float type.
    """

    array: str
    at: str = ""
    is_data: bool = False


class Nest(ABC):
    """The loop nest of a block; a target defines how an element is named and read."""

    def __init__(self, writer: Writer, spot: Spot, block: Block) -> None:
        self.writer, self.spot, self.block = writer, spot, block

    @abstractmethod
    def element(self, array: str, first: str, strides: tuple[int, ...]) -> Element:
        """Return the element of a range of an array at the index of the nest."""

    @abstractmethod
    def chosen(self, element: Element) -> str:
        """Return the text of an element that is read as an int, to move an operand."""

    def reads(self, loop: Loop) -> dict[Operand, Element]:
        """Return the variable or element of each operand that a loop reads."""
        return {o: self._read(o, along) for o, along in zip(loop.operands, loop.nest[1][1:], strict=True)}

    def targets(self, loop: Loop) -> list[Element]:
        """Return the targets of a loop: a variable, an element of memory, or both."""
        writer, value, strides = self.writer, loop.target.value, loop.nest[1][0]
        if loop.stored is not None:
            return [self._stored(loop.stored, loop.target.offset, strides)]
        if loop.combine:
            is_variable = is_number(writer.lowered, loop)
            return [
                Element(writer.variable(value)) if is_variable else self.element(*writer.address(loop.target), strides)
            ]
        found = [Element(writer.variable(value))] if writer.storage.registers.get(value) == self.spot else []
        if not found or writer.storage.has_memory(value):
            found.append(self.element(*writer.address(loop.target), strides))
        return found

    def is_in_variable(self, operand: Operand) -> bool:
        """Return whether an operand is in a variable of the kernel or of this nest."""
        writer, value = self.writer, operand.view.value
        made = writer.storage.registers.get(value)
        is_row_number_here = made is not None and made.step == self.spot.step and is_row_number(writer.lowered, value)
        return is_row_number_here or (made == self.spot and operand.moved is None)

    def _stored(self, stored: tuple[str, int], offset: int, strides: tuple[int, ...]) -> Element:
        """Return the element to which an output or the gradient of a port is written."""
        writer, (what, number) = self.writer, stored
        if what == "output":
            writer.need_window(Area.OUTPUT, number)
            return self.element(
                f"output_{number}_w", writer.size(offset, self.spot, Area.OUTPUT, number, offset), strides
            )
        place = writer.layout.inputs[number]
        location = Location(Area.GRADIENTS, place.domain, place.column)
        writer.arguments["buffer"] = None
        column = location.column + offset
        first = add([writer.row_of(location), writer.size(column, self.spot, location.area, location.domain, column)])
        return self.element("buffer", first, strides)

    def _read(self, operand: Operand, strides: tuple[int, ...]) -> Element:
        writer, value = self.writer, operand.view.value
        if self.is_in_variable(operand):
            return Element(writer.variable(value))
        if operand.moved is None:
            return self.element(*writer.address(operand.view), strides)
        at, step = operand.moved
        chosen = self.chosen(self._read(at, (0,) * len(strides)))
        if writer.lowered.domains[value] == SHARED:
            array, row = table_and_step(value)
            writer.arguments.update({array: None, row: None})
            offset = writer.size(operand.view.offset, self.spot, array, operand.view.offset)
            return self.element(array, add([offset, multiply(chosen, row)]), strides)
        moved = multiply(chosen, writer.size(step, "step", value, step))
        return self.element(*writer.address(operand.view, moved), strides)
