"""Write functions in LLVM IR with number objects: evaluating an operator writes the instruction that computes it.

    code = Code(Module())
    x = code.number("float", 2.0)
    y = x * x + 1.0                # writes two instructions; `y` is the name of the second result

Float arithmetic may be contracted: a product and a sum may become one instruction, rounded once. Operators write
instructions when they are evaluated, so a Python function of numbers is a template that each call expands.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

FLOATS = {"float": 32, "double": 64}
INTS = {"i1": 1, "i8": 8, "i32": 32, "i64": 64}
CONTRACTED = "contract"
REORDERED = "reassoc nsz contract"
"""Flags of float arithmetic that also let LLVM reorder sums."""
ROUNDED = ""
"""Flags of float arithmetic in which each result is rounded."""


class Scalar:
    """A number of a function: a constant, or the result of an instruction."""

    __slots__ = ("code", "text", "type")

    def __init__(self, code: Code, type: str, text: str) -> None:
        self.code, self.type, self.text = code, type, text

    def __add__(self, other: Term) -> Scalar:
        return self.code.binary("add", self, self.like(other))

    def __sub__(self, other: Term) -> Scalar:
        return self.code.binary("sub", self, self.like(other))

    def __rsub__(self, other: float) -> Scalar:
        return self.code.binary("sub", self.like(other), self)

    def __mul__(self, other: Term) -> Scalar:
        return self.code.binary("mul", self, self.like(other))

    def __truediv__(self, other: Term) -> Scalar:
        return self.code.binary("div", self, self.like(other))

    def __rtruediv__(self, other: float) -> Scalar:
        return self.code.binary("div", self.like(other), self)

    def __and__(self, other: Term) -> Scalar:
        return self.code.binary("and", self, self.like(other))

    def __or__(self, other: Term) -> Scalar:
        return self.code.binary("or", self, self.like(other))

    def __lshift__(self, other: Term) -> Scalar:
        return self.code.binary("shl", self, self.like(other))

    def __rshift__(self, other: Term) -> Scalar:
        return self.code.binary("ashr", self, self.like(other))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Scalar:
        if self.type in INTS:
            return 0 - self
        return self.code.emit(f"fneg {self.type} {self.text}", self.type)

    def __abs__(self) -> Scalar:
        return self.code.call("llvm.fabs", self)

    def __lt__(self, other: Term) -> Scalar:
        return self.code.compare("lt", self, self.like(other))

    def __le__(self, other: Term) -> Scalar:
        return self.code.compare("le", self, self.like(other))

    def __gt__(self, other: Term) -> Scalar:
        return self.code.compare("gt", self, self.like(other))

    def __ge__(self, other: Term) -> Scalar:
        return self.code.compare("ge", self, self.like(other))

    def equals(self, other: Term) -> Scalar:
        """Compare for equality; false if one number is NaN."""
        return self.code.compare("eq", self, self.like(other))

    def differs(self, other: Term) -> Scalar:
        """Compare for inequality; true if one number is NaN."""
        return self.code.compare("ne", self, self.like(other))

    def like(self, other: Term) -> Scalar:
        """Return a number of the type of this one: another number, which must have it, or a constant."""
        if not isinstance(other, Scalar):
            return self.code.number(self.type, other)
        assert other.type == self.type, f"operands must have one type, got {self.type} and {other.type}"
        return other

    def to(self, type: str) -> Scalar:
        """Convert the number to a type; floats are truncated to ints."""
        if type == self.type:
            return self
        if self.type in FLOATS:
            cast = "fptosi" if type in INTS else "fpext" if FLOATS[type] > FLOATS[self.type] else "fptrunc"
        else:
            cast = "sitofp" if type in FLOATS else "sext" if INTS[type] > INTS[self.type] else "trunc"
        return self.code.emit(f"{cast} {self.type} {self.text} to {type}", type)

    def view(self, type: str) -> Scalar:
        """View the bits of the number as a type of the same size."""
        return self.code.emit(f"bitcast {self.type} {self.text} to {type}", type)


Term: TypeAlias = Scalar | float


def select(condition: Scalar, x: Scalar, y: Term) -> Scalar:
    """Select x if a condition holds, else y; both are computed."""
    y = x.like(y)
    return x.code.emit(f"select i1 {condition.text}, {x.type} {x.text}, {y.type} {y.text}", x.type)


class Pointer:
    """The address of contiguous numbers of a type.

    Attributes:
        scope: the metadata of loads and stores, which names the memory that they access; see `Module.scopes`.
    """

    __slots__ = ("code", "element", "scope", "text")

    def __init__(self, code: Code, element: str, text: str, scope: str = "") -> None:
        self.code, self.element, self.text, self.scope = code, element, text, scope

    def moved(self, by: Scalar) -> Pointer:
        """Return the address of element `by`."""
        if by.text == "0":
            return self
        found = self.code.emit(f"getelementptr inbounds {self.element}, ptr {self.text}, i64 {by.text}", "ptr")
        return Pointer(self.code, self.element, found.text, self.scope)

    def load(self, at: Scalar) -> Scalar:
        place = self.moved(at)
        return self.code.emit(f"load {self.element}, ptr {place.text}{self.scope}", self.element)

    def store(self, at: Scalar, number: Scalar) -> None:
        assert number.type == self.element, f"a {number.type} is stored as {self.element}"
        place = self.moved(at)
        self.code.line(f"store {self.element} {number.text}, ptr {place.text}{self.scope}")


class Module:
    """The text of a module: functions, declarations of library functions, and metadata."""

    def __init__(self) -> None:
        self.functions: dict[str, str] = {}
        self.declared: dict[str, None] = {}
        self._metadata: list[str] = []

    def scopes(self, names: Sequence[str]) -> dict[str, str]:
        """Declare ranges of memory that do not overlap; return the metadata of accesses to each.

        Without it, LLVM compares each written range with every other one at run time, for all rows at once. Columns of
        one block then seem to overlap, and the loop runs one element at a time.
        """
        # Braces are doubled for `str.format` in `_add`, and again in f-strings.
        domain = self._add('distinct !{{{own}, !"ranges"}}')
        scopes = [self._add(f"distinct !{{{{{{own}}, {domain}}}}}") for _ in names]
        found = {}
        for number, name in enumerate(names):
            own = self._add(f"!{{{{{scopes[number]}}}}}")
            others = self._add("!{{" + ", ".join(s for k, s in enumerate(scopes) if k != number) + "}}")
            found[name] = f", !alias.scope {own}, !noalias {others}"
        return found

    def _add(self, node: str) -> str:
        name = f"!{len(self._metadata)}"
        self._metadata.append(f"{name} = {node.format(own=name)}")
        return name

    def __str__(self) -> str:
        parts = ["\n".join(self.declared), *self.functions.values(), "\n".join(self._metadata)]
        return "\n\n".join(part for part in parts if part) + "\n"


class Code:
    """The instructions of a function so far.

    Attributes:
        lines: the lines of the part that is being written.
        label: the label of the basic block that is being written.
        flags: the flags of float arithmetic.
    """

    def __init__(self, module: Module) -> None:
        self.module, self.lines, self.label = module, list[str](), "entry"
        self.flags = CONTRACTED
        self._n = 0

    @contextmanager
    def flagged(self, flags: str) -> Iterator[None]:
        """Use other flags for float arithmetic within the context."""
        self.flags, before = flags, self.flags
        yield
        self.flags = before

    def line(self, text: str) -> None:
        """Add an instruction without a result."""
        self.lines.append(f"  {text}")

    def emit(self, text: str, type: str) -> Scalar:
        """Add an instruction with a result of a type, and return the result."""
        name = self.new("%t")
        self.lines.append(f"  {name} = {text}")
        return Scalar(self, type, name)

    def new(self, head: str) -> str:
        """Return a new name with this beginning."""
        self._n += 1
        return f"{head}{self._n}"

    def number(self, type: str, number: float) -> Scalar:
        return Scalar(self, type, _constant(type, number))

    def binary(self, name: str, x: Scalar, y: Scalar) -> Scalar:
        """Write an arithmetic instruction for two numbers of one type; int + 0 and int * 1 are simplified."""
        if x.type in FLOATS:
            return self.emit(f"f{name} {self.flags} {x.type} {x.text}, {y.text}", x.type)
        if name == "add" and "0" in (x.text, y.text):
            return y if x.text == "0" else x
        if name == "mul" and "1" in (x.text, y.text):
            return y if x.text == "1" else x
        return self.emit(f"{name} {x.type} {x.text}, {y.text}", x.type)

    def compare(self, name: str, x: Scalar, y: Scalar) -> Scalar:
        """Write a comparison of two numbers of one type; with NaN, only "ne" is true."""
        if x.type in FLOATS:
            return self.emit(f"fcmp {'une' if name == 'ne' else f'o{name}'} {x.type} {x.text}, {y.text}", "i1")
        signed = name if name in ("eq", "ne") else f"s{name}"
        return self.emit(f"icmp {signed} {x.type} {x.text}, {y.text}", "i1")

    def call(self, name: str, *args: Scalar) -> Scalar:
        """Call a function of floats: an LLVM intrinsic (`llvm.exp`), or a function of the system's library (`tanh`)."""
        type = args[0].type
        full, flags = name, ""
        if name.startswith("llvm."):
            full, flags = f"{name}.f{FLOATS[type]}", f"{self.flags} "
        # LLVM knows of its intrinsics, but not of library functions, that they only compute a number.
        pure = "" if name.startswith("llvm.") else " nounwind willreturn memory(none)"
        self.module.declared[f"declare {type} @{full}({', '.join(arg.type for arg in args)}){pure}"] = None
        return self.emit(f"call {flags}{type} @{full}({', '.join(f'{arg.type} {arg.text}' for arg in args)})", type)

    # Control flow.

    def begin(self, label: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{label}:")
        self.label = label

    def jump(self, label: str) -> None:
        """End a basic block by a jump to another one."""
        self.line(f"br label %{label}")

    def branch(self, condition: Scalar, yes: str, no: str) -> None:
        """End a basic block by a jump to one of two, depending on a condition."""
        self.line(f"br i1 {condition.text}, label %{yes}, label %{no}")

    @contextmanager
    def loop(self, stop: Scalar, start: Scalar | None = None, name: str = "") -> Iterator[Scalar]:
        """Write a loop over start:stop, whose body is written within the context; yield its index, called `name`."""
        start = start or self.number("i64", 0)
        index, tag = Scalar(self, "i64", name or self.new("%i")), self.new("")
        before = self.label
        self.jump(f"head{tag}")
        self.begin(f"head{tag}")
        self.line(f"{index.text} = phi i64 [{start.text}, %{before}], [{index.text}.next, %latch{tag}]")
        self.branch(index < stop, f"inside{tag}", f"after{tag}")
        self.begin(f"inside{tag}")
        yield index
        # The body may end in another block than it began in, but the phi above names the block that jumps back.
        self.jump(f"latch{tag}")
        self.begin(f"latch{tag}")
        self.line(f"{index.text}.next = add nsw i64 {index.text}, 1")
        self.jump(f"head{tag}")
        self.begin(f"after{tag}")

    @contextmanager
    def when(self, condition: Scalar) -> Iterator[None]:
        """Write code, within the context, that runs if a condition holds."""
        tag = self.new("")
        self.branch(condition, f"yes{tag}", f"after{tag}")
        self.begin(f"yes{tag}")
        yield
        self.jump(f"after{tag}")
        self.begin(f"after{tag}")

    def either(self, values: Sequence[tuple[str, str]], type: str) -> Scalar:
        """Select a number by the basic block from which this one was entered, given (text, label) of each."""
        choices = ", ".join(f"[{text}, %{label}]" for text, label in values)
        return self.emit(f"phi {type} {choices}", type)


def _constant(type: str, number: float) -> str:
    """Write a constant; floats are written as the bits of a float64, and so are exact."""
    if type in INTS:
        return str(int(number))
    # LLVM refuses a float32 constant that is not exact in float32.
    if type == "float":
        (number,) = struct.unpack("f", struct.pack("f", number)) if math.isfinite(number) else (number,)
    if number != number:
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('Q', struct.pack('d', number))[0]:016X}"
