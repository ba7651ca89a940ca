"""Name the arrays, fields and indices of a kernel in LLVM IR.

Code refers by name to numbers, fields of the tile and addresses that are the same for a whole kernel or row. The
definitions of these names precede the code in the text, but are written after it, when the names in use are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autobatch.compiler.fusion import Kernel
from autobatch.compiler.llvm.scalars import Code, Module, Pointer, Scalar
from autobatch.compiler.llvm.support import Support
from autobatch.compiler.writer import Common, Product, Sum, Writer, type_of


class Types:
    """The LLVM names of the types of a stage.

    Args:
        real: the NumPy name of the model's float type.
        index_type: the NumPy name of the type of destinations.
    """

    def __init__(self, real: str, index_type: str) -> None:
        self.real = {"float32": "float", "float64": "double"}[real]
        self.index_type = {"int32": "i32", "int64": "i64"}[index_type]
        self._by_name = {
            "real": self.real, "index_type": self.index_type, "int64": "i64", "int32": "i32", "float64": "double",
            "bool_": "i8",
        }  # fmt: skip

    def of(self, array: str) -> str:
        """Return the type of the elements of an array."""
        return self._by_name[type_of(array)]


class LlvmWriter(Writer):
    """The writer of the code of one kernel.

    Attributes:
        code: the instructions of the function so far.
        indices: the indices of loops, and ints that the code computes, by name.
    """

    def __init__(self, common: Common, number: int, kernel: Kernel, module: Module, types: Types) -> None:
        super().__init__(common, number, kernel)
        self.code, self.types, self.real_type = Code(module), types, types.real
        self.support = Support(module, types.real, types.index_type)
        self.indices: dict[str, Scalar] = {}
        self._before_rows: list[str] = []

    def value(self, text: str) -> Scalar:
        """Write the computation of an address or index, which is given as a text of `autobatch.compiler.writer`."""
        match text:
            case Sum():
                total = self.value(text.parts[0])
                for part in text.parts[1:]:
                    total = total + self.value(part)
                return total
            case Product():
                return self.value(text.parts[0]) * self.value(text.parts[1])
        if text.startswith("-"):
            return -self.value(text[1:])
        if text.isdigit():
            return self.code.number("i64", int(text))
        return self.indices[text] if text in self.indices else Scalar(self.code, "i64", f"%{text}")

    def pointer(self, array: str) -> Pointer:
        """Return the address of an array."""
        is_window = array.startswith(("gather_", "output_"))
        return Pointer(self.code, self.real_type if is_window else self.types.of(array), f"%{array}")

    def constant(self, data: float) -> Scalar:
        """Return a number of the model's float type: a constant, or a name that is set from the descriptor."""
        name = self.real(data)
        return self.code.number(self.real_type, data) if name in self.literals.values() else self._given(name)

    def _given(self, name: str) -> Scalar:
        return Scalar(self.code, self.real_type, f"%{name}")

    def read_variable(self, name: str) -> Scalar:
        return self.code.emit(f"load {self.real_type}, ptr %{name}", self.real_type)

    def write_variable(self, name: str, number: Scalar) -> None:
        self.code.line(f"store {self.real_type} {number.text}, ptr %{name}")

    @contextmanager
    def before_rows(self) -> Iterator[None]:
        """Collect the code written within the context, to run once before the loop over rows."""
        self.code.lines, lines = self._before_rows, self.code.lines
        yield
        self.code.lines = lines

    def set(self, name: str, number: Scalar) -> None:
        """Give a name to a number that was just computed, so that code can refer to it."""
        lines, head = self.code.lines, f"  {number.text} = "
        if lines and lines[-1].startswith(head):
            self.code.line(f"%{name} = {lines.pop().removeprefix(head)}")
        else:  # the number keeps its other name
            self.code.line(f"%{name} = add {number.type} {number.text}, 0")
