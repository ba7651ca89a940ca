"""Name the arrays and regions of memory in the source of a CUDA kernel."""

from __future__ import annotations

from collections.abc import Hashable

from autobatch.compiler.fusion import Kernel
from autobatch.compiler.lowered import Area
from autobatch.compiler.statement import Loop
from autobatch.compiler.view import View
from autobatch.compiler.writer import ARRAYS, Common, Writer, add, type_of
from autobatch.ir.program import SHARED

CUDA_SLOTS = {
    "buffer": "real", "scratch": "real", "kept": "real", "rows": "real", "ptr": "int64", "dest": "index_type",
    "to": "index_type", "table": "int64", "ints": "int32", "floats": "double",
}  # fmt: skip
"""The first slots of the memory of a stage: arrays and their types. Edges of groups, tables and weights follow."""
DATA = (Area.INTS, Area.FLOATS)


class CudaWriter(Writer):
    """The writer of the text of one kernel.

    The row storage of a kernel is in shared memory. Values that all nodes share are read in place; each has a slot.
    """

    arrays = ARRAYS | {Area.ROW: "row"}

    def __init__(self, common: Common, number: int, kernel: Kernel) -> None:
        super().__init__(common, number, kernel)
        self.sizes: dict[tuple[Hashable, ...], tuple[str, int]] = {}  # by quantity: its name and size
        self.lines: list[str] = []
        self.indent = 2

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * self.indent + text)

    def open(self, head: str) -> None:
        """Begin a compound statement."""
        self.line(f"{head} {{")
        self.indent += 1

    def new_variable(self) -> str:
        """Return a new variable, which holds no value of the stage."""
        return self.variable(-2 - len(self.variables))

    def close(self, indent: int) -> None:
        """End compound statements until this depth."""
        while self.indent > indent:
            self.indent -= 1
            self.line("}")

    def size(self, number: int, *of: Hashable) -> str:
        """Name a size, column or width; 0 and 1 are written as literals.

        Args:
            number: the size.
            of: identifies the quantity that has this size. Different quantities have different names even if they are
                equal, so that the text is the same at every width of a model, because CUDA's compilers take seconds.
        """
        if number in (0, 1):
            return str(number)
        if number < 0:
            return f"-{self.size(-number, *of, '-')}" if number != -1 else "-1"
        name, known = self.sizes.setdefault(of, (f"s{len(self.sizes)}", number))
        assert known == number, f"a size of {of} is {known} and {number}"
        return name

    def address(self, operand: View, moved: str = "") -> tuple[str, str]:
        """Return the array that holds a view, and the text of the place in it where the view begins."""
        if operand.value not in self.storage.shared:
            return super().address(operand, moved)
        array = shared_name(operand.value)
        self.arguments[array] = None
        return array, add([self.size(operand.offset, self.spot, array, operand.offset), moved])

    def need_window(self, area: Area, number: int) -> None:
        """Record the arrays and fields that the choice of the place of an output, or of its gradient, needs."""
        self.arguments.update(dict.fromkeys(("buffer", "ptr", "dest" if area is Area.GATHER else "to")))
        self.field(f"output_{number}")
        if area is Area.GATHER:
            self.field("shift")

    def region(self, view: View) -> tuple[Hashable, int]:
        """Return the region of memory that holds a view, None if it is never written, and the view's first element."""
        if self.lowered.domains[view.value] == SHARED:
            return None, 0
        location, found = self.storage.locate(view)
        if location.area in DATA:
            return None, 0
        return (location.area, location.domain), location.column + found.offset

    def stored_region(self, loop: Loop) -> tuple[Hashable, int]:
        """Return the region in which a loop stores an output or the gradient of a port, and the first element there."""
        assert loop.stored is not None
        what, number = loop.stored
        if what == "output":
            return (Area.OUTPUT, number), loop.target.offset
        place = self.layout.inputs[number]
        return (Area.GRADIENTS, place.domain), place.column + loop.target.offset


def shared_name(value: int) -> str:
    """Return the name of the slot of a value that all nodes share."""
    return f"shared_{value}"


def slot_type(name: str) -> str:
    """Return the type of the elements of a slot's array."""
    return type_of(name, CUDA_SLOTS)
