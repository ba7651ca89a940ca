"""Print a pass of a block as CUDA C++: the loops over the indices of a thread, and the statements inside.

Arrays and regions of memory get their names in the source here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from autobatch.compiler.assignment import Spot, is_number
from autobatch.compiler.cuda.mapping import Access, Pass, access, anywhere
from autobatch.compiler.fusion import Block, Kernel
from autobatch.compiler.lowered import Area
from autobatch.compiler.nest import Element, Nest
from autobatch.compiler.printing import show_expression
from autobatch.compiler.statement import EdgeCount, Loop, Operand, Position
from autobatch.compiler.view import View
from autobatch.compiler.writer import ARRAYS, DATA, Common, Writer, add, multiply, type_of
from autobatch.ir.program import SHARED
from autobatch.ops.expression import Expression, Number

CUDA_SLOTS = {
    "buffer": "real", "scratch": "real", "kept": "real", "rows": "real", "ptr": "int64", "dest": "index_type",
    "to": "index_type", "table": "int64", "ints": "int32", "floats": "double",
}  # fmt: skip
"""The first slots of the memory of a stage: arrays and their types. Edges of groups, tables and weights follow."""
DATA_AREAS = (Area.INTS, Area.FLOATS)


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
        self.lines.append("    " * self.indent + text)

    def open(self, head: str) -> None:
        self.line(f"{head} {{")
        self.indent += 1

    def new_variable(self) -> str:
        """Return a new variable, which holds no value of the stage."""
        # Not the number of a value: those are not negative, and STORED is -1.
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
        if operand.value not in self.storage.shared:
            return super().address(operand, moved)
        array = shared_name(operand.value)
        self.arguments[array] = None
        return array, add([self.size(operand.offset, self.spot, array, operand.offset), moved])

    def need_window(self, area: Area, number: int) -> None:
        self.arguments.update(dict.fromkeys(("buffer", "ptr", "dest" if area is Area.GATHER else "to")))
        self.field(f"output_{number}")
        if area is Area.GATHER:
            self.field("shift")

    def region(self, view: View) -> tuple[Hashable, int]:
        """Return the region of memory that holds a view, None if it is never written, and the view's first element."""
        if self.lowered.domains[view.value] == SHARED:
            return None, 0
        location, found = self.storage.locate(view)
        if location.area in DATA_AREAS:
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


COMBINE = {"sum": "plus", "max": "larger"}
FUNCTORS = {"sum": "Plus", "max": "Larger"}


class CudaNest(Nest):
    """The writer of a pass."""

    writer: CudaWriter

    def __init__(self, writer: CudaWriter, spot: Spot, block: Block, part: Pass) -> None:
        super().__init__(writer, spot, block)
        self.part, self.mapping = part, part.mapping
        self._stores: list[str] = []

    def accesses(self, is_store: bool) -> list[Access]:
        """Return the accesses to memory of the threads of a row: inside the loops, or those of `store`."""
        pairs = [pair for loop in self.part.loops for pair in self._accesses(loop)]
        return [access for access, is_late in pairs if is_late == is_store]

    def write(self) -> None:
        writer, axes = self.writer, self.mapping.axes
        depth = writer.indent
        if self.mapping.who == "one":
            writer.open("if (team.lane == 0)")
        elif self.mapping.who == "divided":
            self._open_divided()
        for axis in range(len(axes)):
            if axis not in self.mapping.along:
                size, index = writer.size(axes[axis], self.spot, axis), self._index(axis)
                writer.open(f"for (int {index} = 0; {index} < {size}; ++{index})")
        for line in [line for loop in self.part.loops for line in self._statements(loop)]:
            writer.line(line)
        writer.close(depth)

    def store(self) -> None:
        """Write the stores by one thread of values that all threads have in variables."""
        for line in self._stores:
            self.writer.line(line)

    def _statements(self, loop: Loop) -> list[str]:
        """Return the statements of a loop. At a single index, all threads make the values before one stores them."""
        reads, targets = self.reads(loop), self.targets(loop)
        if id(loop) in self.part.again:
            return self._lines(loop, reads, targets[:1])
        if self.mapping.who != "all" or loop.combine:
            return self._lines(loop, reads, targets)
        first = targets[0] if not targets[0].at else Element(self.writer.new_variable())
        self._stores += [self._assign(element, first.array) for element in targets if element.at]
        return self._lines(loop, reads, [first])

    def numbers(self) -> list[tuple[Loop, str]]:
        """Return the reductions to one number, each with the statement that combines it over threads.

        The statement is "" if each thread has the whole result.
        """
        found = []
        for loop in self.part.loops:
            if loop.combine and is_number(self.writer.lowered, loop):
                name = self.writer.variable(loop.target.value)
                is_divided = self.mapping.who == "divided"
                text = f"{name} = team.reduce({name}, {FUNCTORS[loop.combine]}());" if is_divided else ""
                found.append((loop, text))
        return found

    def chosen(self, element: Element) -> str:
        return self._number(element, is_int=True)

    def _lines(self, loop: Loop, reads: dict[Operand, Element], targets: list[Element]) -> list[str]:
        """Return the lines of a loop: the result is written to the first target, and copied from there to others."""

        def show(leaf: Expression) -> str:
            match leaf:
                case Operand():
                    return self._number(reads[leaf], leaf.is_int)
                case Number(data):
                    return self.writer.real(data)
                case EdgeCount(group):
                    self.writer.groups.add(group)
                    return f"real(end_{group} - first_{group})"
                case Position(is_int):
                    index = "i" if loop.axes else "0"
                    return index if is_int else f"real({index})"
            raise TypeError(f"a leaf of a loop must be an operand, a number, a position or an edge count, got {leaf!r}")

        text = show_expression(loop.expression, show, {"max": "larger"}, "{condition} ? {x} : {y}")
        if loop.combine:
            text = f"{COMBINE[loop.combine]}({_load(targets[0])}, {text})"
        lines = []
        for element in targets:
            lines.append(self._assign(element, text))
            text = _load(element)
        return lines

    def _assign(self, element: Element, text: str) -> str:
        """Return the statement that writes an element; if all threads run the index, one of them writes memory."""
        guard = "if (team.lane == 0) " if element.at and self.mapping.who == "all" else ""
        return f"{guard}{_load(element)} = {text};"

    def _number(self, element: Element, is_int: bool) -> str:
        """Return the text that reads an element as a number of the model's float type, or as an int.

        Data have their own type; ints that cells compute are stored as floats.
        """
        text = _load(element)
        if element.is_data:
            return text if is_int else f"real({text})"
        return f"int64({text})" if is_int else text

    def element(self, array: str, first: str, strides: tuple[int, ...]) -> Element:
        moves = [
            multiply(self._index(axis), self.writer.size(stride, self.spot, "stride", axis, stride))
            for axis, stride in enumerate(strides)
            if stride
        ]
        return Element(array, add([first, *moves]), array.partition("_")[0] in DATA)

    def _index(self, axis: int) -> str:
        return "i" if axis == len(self.mapping.axes) - 1 else f"i{axis}"

    def _open_divided(self) -> None:
        """Begin the loop over the indices of a thread, which enumerates the axes in `along` as one axis."""
        writer, along = self.writer, self.mapping.along
        sizes = [writer.size(self.mapping.axes[axis], self.spot, axis) for axis in along]
        if len(along) == 1:
            index = self._index(along[0])
            writer.open(f"for (int {index} = team.lane; {index} < {sizes[0]}; {index} += team.size)")
            return
        writer.open(f"for (int at = team.lane; at < {' * '.join(sizes)}; at += team.size)")
        for number, axis in enumerate(along):
            inner = " * ".join(sizes[number + 1 :])
            quotient = f"at / ({inner})" if inner else "at"
            writer.line(f"const int {self._index(axis)} = {quotient}{f' % {sizes[number]}' if number else ''};")

    def _accesses(self, loop: Loop) -> Iterator[tuple[Access, bool]]:
        """Yield the accesses of a loop, and for each whether it is in `store`."""
        writer, lowered = self.writer, self.writer.lowered
        strides = loop.nest[1]
        for operand, along in zip(loop.operands, strides[1:], strict=True):
            if self.is_in_variable(operand) or lowered.domains[operand.view.value] == SHARED:
                continue
            region, start = writer.region(operand.view)
            if operand.moved is not None:
                region, start = writer.region(operand.view._replace(offset=0))
                yield anywhere(region, start, lowered.sizes[operand.view.value]), False
            elif region is not None:
                yield access(region, start, self.mapping, along, is_write=False), False
        if id(loop) in self.part.again or (loop.combine and is_number(lowered, loop)):
            return
        value, is_late = loop.target.value, self.mapping.who == "all" and not loop.combine
        if loop.stored is not None:
            yield access(*writer.stored_region(loop), self.mapping, strides[0], is_write=True), is_late
        elif writer.storage.has_memory(value):
            region, start = writer.region(loop.target)
            yield access(region, start, self.mapping, strides[0], is_write=True), is_late


def _load(element: Element) -> str:
    return f"{element.array}[{element.at}]" if element.at else element.array
