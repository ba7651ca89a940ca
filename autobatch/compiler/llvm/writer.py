"""Name the arrays, fields and indices of a kernel in LLVM IR, and write the functions that kernels call.

Code refers by name to numbers, fields of the tile and addresses that are the same for a whole kernel or row. The
definitions of these names precede the code in the text, but are written after it, when the names in use are known.

Kernels call functions that sum the gradients of readers, or copy outputs to their readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from autobatch.compiler.fusion import Kernel
from autobatch.compiler.llvm.scalars import Code, Module, Pointer, Scalar
from autobatch.compiler.writer import Common, Product, Sum, Writer, type_of


class Support:
    """The support functions of a module. Methods write a call; the first call also writes the function.

    Args:
        real, index_type: the LLVM types of numbers and of destinations.
    """

    def __init__(self, module: Module, real: str, index_type: str) -> None:
        self.module, self.real, self.index_type = module, real, index_type

    def collect(self, code: Code, *args: Pointer | Scalar) -> None:
        """Write to a range the sum of the ranges at destinations: (buffer, total, size, dest, start, stop, shift)."""
        self._call(code, "collect", "void", args, partial(_collect, real=self.real, index_type=self.index_type))

    def may_store(self, code: Code, *args: Pointer | Scalar) -> Scalar:
        """Return whether a value may be made at its first destination: (adds, start, stop).

        This requires that it has a destination, and that all destinations store it instead of adding it.
        """
        return Scalar(code, "i1", self._call(code, "may_store", "i1", args, _may_store))

    def send(self, code: Code, *args: Pointer | Scalar) -> None:
        """Write a value to the buffer from `first` on, or add it there: (buffer, value, size, first, adds)."""
        self._call(code, "send", "void", args, partial(_send, real=self.real))

    def _call(
        self, code: Code, name: str, returns: str, args: tuple[Pointer | Scalar, ...], write: Callable[..., None]
    ) -> str:
        types = ["ptr" if isinstance(arg, Pointer) else arg.type for arg in args]
        if name not in self.module.functions:
            own = Code(self.module)
            names = [f"%a{number}" for number in range(len(args))]
            write(own, *(Scalar(own, type, text) for type, text in zip(types, names, strict=True)))
            given = ", ".join(f"{type} {text}" for type, text in zip(types, names, strict=True))
            self.module.functions[name] = (
                f"define internal {returns} @{name}({given}) {{\nentry:\n" + "\n".join(own.lines) + "\n}"
            )
        given = ", ".join(f"{type} {arg.text}" for type, arg in zip(types, args, strict=True))
        if returns == "void":
            code.line(f"call void @{name}({given})")
            return ""
        return code.emit(f"call {returns} @{name}({given})", returns).text


def _collect(
    code: Code,
    buffer: Scalar,
    total: Scalar,
    size: Scalar,
    dest: Scalar,
    start: Scalar,
    stop: Scalar,
    shift: Scalar,
    real: str,
    index_type: str,
) -> None:
    out, places = Pointer(code, real, total.text), Pointer(code, index_type, dest.text)

    def at(number: Scalar) -> Pointer:
        return Pointer(code, real, buffer.text).moved(places.load(number).to("i64") + shift)

    n = stop - start
    with code.when(n.equals(0)), code.loop(size) as i:
        out.store(i, code.number(real, 0.0))
    with code.when(n.equals(1)):
        one = at(start)
        with code.loop(size) as i:
            out.store(i, one.load(i))
    with code.when(n > 1):
        one, other = at(start), at(start + 1)
        with code.loop(size) as i:
            out.store(i, one.load(i) + other.load(i))
        with code.loop(stop, start + 2) as j:
            other = at(j)
            with code.loop(size) as i:
                out.store(i, out.load(i) + other.load(i))
    code.line("ret void")


def _may_store(code: Code, adds: Scalar, start: Scalar, stop: Scalar) -> None:
    flags = Pointer(code, "i8", adds.text)
    with code.loop(stop, start) as j, code.when(flags.load(j).differs(0)):
        code.line("ret i1 false")
        code.begin(code.new("never"))  # a block must follow
    code.line(f"ret i1 {(start < stop).text}")


def _send(code: Code, buffer: Scalar, value: Scalar, size: Scalar, first: Scalar, adds: Scalar, real: str) -> None:
    given, place = Pointer(code, real, value.text), Pointer(code, real, buffer.text).moved(first)
    with code.when(adds):
        with code.loop(size) as i:
            place.store(i, place.load(i) + given.load(i))
        code.line("ret void")
        code.begin(code.new("never"))
    with code.loop(size) as i:
        place.store(i, given.load(i))
    code.line("ret void")


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
        if lines and lines[-1].startswith(head):  # the last instruction computed it: rename its result
            self.code.line(f"%{name} = {lines.pop().removeprefix(head)}")
        else:  # the number keeps its other name
            self.code.line(f"%{name} = add {number.type} {number.text}, 0")
