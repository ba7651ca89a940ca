"""Write a loop nest in LLVM IR: the ranges that are named before it, and the statements inside."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext

from autobatch.compiler.assignment import Spot
from autobatch.compiler.fusion import Block
from autobatch.compiler.llvm.scalars import REORDERED, ROUNDED, Pointer, Scalar, select
from autobatch.compiler.llvm.vectormath import FUNCTIONS
from autobatch.compiler.llvm.writer import LlvmWriter
from autobatch.compiler.nest import Element, Nest
from autobatch.compiler.statement import EdgeCount, Loop, Operand, Position
from autobatch.compiler.writer import DATA, add, multiply
from autobatch.ops.expression import COMPARISONS, Call, Expression, Number

ARITHMETIC = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div"}
COMPARE = {
    "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne",
}  # fmt: skip
INTRINSICS = {"sqrt": "llvm.sqrt", "power": "llvm.pow"}


def larger(x: Scalar, y: Scalar) -> Scalar:
    """Return the larger of two numbers; NaN if one is NaN. The sign of a zero result is undefined."""
    with x.code.flagged("nsz"):
        return x.code.call("llvm.maximum", x, y)


class LlvmNest(Nest):
    """The writer of a loop nest, and of the addresses and numbers that it uses."""

    writer: LlvmWriter

    def __init__(self, writer: LlvmWriter, spot: Spot, block: Block) -> None:
        super().__init__(writer, spot, block)
        self.code = writer.code
        self._known: dict[tuple[str, str, tuple[int, ...]], str] = {}
        self._ranges: dict[str, Pointer] = {}
        self._numbers: dict[str, Scalar] = {}

    def write(self) -> None:
        if not self.block.axes:  # one by one, because an int that one loop makes may choose the element of a later one
            for loop in self.block.loops:
                self._write_loop(loop, self.reads(loop), self.targets(loop))
            return
        # Before the loops begin, so that the addresses of ranges are computed once.
        accessed = [(loop, self.reads(loop), self.targets(loop)) for loop in self.block.loops]
        self._separate({element.array for _, _, targets in accessed for element in targets})
        last = len(self.block.axes) - 1
        with ExitStack() as loops:
            for axis, size in enumerate(self.block.axes):
                length = self.writer.value(self.writer.size(size, self.spot, axis))
                self.writer.indices["i" if axis == last else f"i{axis}"] = loops.enter_context(self.code.loop(length))
            for loop, reads, targets in accessed:
                self._write_loop(loop, reads, targets)

    def element(self, array: str, first: str, strides: tuple[int, ...]) -> Element:
        """Return the element of a range at the index of the nest; the range is named before the nest."""
        writer, axes, is_data = self.writer, self.block.axes, array.partition("_")[0] in DATA
        if not axes:
            return Element(array, first, is_data)
        key = (array, first, strides)
        if key not in self._known:
            name = self._known[key] = writer.name()
            with writer.before_rows() if array == "shared" else nullcontext():  # shared values are the same in all rows
                start = writer.value(first)
                if not any(strides):
                    self._numbers[name] = writer.pointer(array).load(start)
                elif strides == (1,):
                    self._ranges[name] = writer.pointer(array).moved(start)
                else:
                    writer.indices[name] = start
        name = self._known[key]
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

    def chosen(self, element: Element) -> str:
        """Read an element as an int, and return a name for it."""
        name = self.writer.name()
        self.writer.indices[name] = self._number(element, is_int=True)
        return name

    def _separate(self, written: set[str]) -> None:
        """Tell LLVM that ranges do not overlap, if at least one of several is written.

        This is true of written ranges, because a block reads its own values from variables, and parts of one value are
        disjoint.
        """
        if len(self._ranges) > 1 and not written.isdisjoint(self._ranges):
            scopes = self.code.module.scopes(list(self._ranges))
            for name, pointer in self._ranges.items():
                pointer.scope = scopes[name]

    def _write_loop(self, loop: Loop, reads: dict[Operand, Element], targets: list[Element]) -> None:
        result = self._evaluate(loop, loop.expression, reads)
        if loop.combine:
            before = self._load(targets[0])
            # LLVM can vectorise a sum only if it may reorder the terms.
            with self.code.flagged(REORDERED):
                result = before + result if loop.combine == "sum" else larger(before, result)
        for element in targets:
            self._store(element, result)

    def _evaluate(self, loop: Loop, tree: Expression, reads: dict[Operand, Element]) -> Scalar:
        code, real = self.code, self.writer.real_type
        match tree:
            case Call(name, args):
                given = [self._evaluate(loop, arg, reads) for arg in args]
                if name == "select":
                    return select(*given)
                if name == "negate":
                    return -given[0]
                if name in COMPARISONS:
                    return code.compare(COMPARE[name], *given)
                if name in ("add", "subtract"):
                    # Only terms of sums are contracted: b * b - 4 * a * c, for example, must be 0 at a double root.
                    with code.flagged(ROUNDED):
                        return code.binary(ARITHMETIC[name], *given)
                if name in ARITHMETIC:
                    return code.binary(ARITHMETIC[name], *given)
                if name == "max":
                    return larger(*given)
                if name in INTRINSICS:
                    return code.call(INTRINSICS[name], *given)
                return FUNCTIONS[real][name](*given)
            case Operand():
                return self._number(reads[tree], tree.is_int)
            case Number(data):
                return self.writer.constant(data)
            case EdgeCount(group):
                self.writer.groups.add(group)
                return (self.writer.value(f"end_{group}") - self.writer.value(f"first_{group}")).to(real)
            case Position(is_int):
                index = self.writer.value("i" if loop.axes else "0")
                return index if is_int else index.to(real)
        raise TypeError(f"an expression of a loop must consist of calls, operands and numbers, got {tree!r}")

    def _number(self, element: Element, is_int: bool) -> Scalar:
        """Read an element as a number of the model's float type, or as an int64.

        Data have their own type; ints that cells compute are stored as floats.
        """
        return self._load(element).to("i64" if is_int else self.writer.real_type)

    def _load(self, element: Element) -> Scalar:
        name, at, _ = element
        if not at:
            return self._numbers[name] if name in self._numbers else self.writer.read_variable(name)
        return self._place(name).load(self.writer.value(at))

    def _store(self, element: Element, number: Scalar) -> None:
        name, at, _ = element
        if at:
            self._place(name).store(self.writer.value(at), number)
        else:
            self.writer.write_variable(name, number)

    def _place(self, name: str) -> Pointer:
        return self._ranges[name] if name in self._ranges else self.writer.pointer(name)
