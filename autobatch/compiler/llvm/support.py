"""Write the functions that kernels call: sums of the gradients of readers, and copies of outputs to their readers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from autobatch.compiler.llvm.scalars import Code, Module, Pointer, Scalar


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

        This requires that it has a destination, and that it is added to none of its destinations.
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
