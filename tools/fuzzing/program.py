"""Programs as data: parameters, cells and instances of straight-line code, which print as Python and run as printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np

import autobatch as ab
from fuzzing.specs import Shape, Spec, Tree, uses_in

F = TypeVar("F", bound="Function")
HEADER = """import numpy as np
import autobatch as ab
from fuzzing.program import numbers
from fuzzing.specs import Pair, State
"""


@dataclass(frozen=True)
class Line:
    """`target = form`, where {0}, {1}, ... in the form stand for the arguments.

    Attributes:
        inner: a function that the form names, which is defined before the line.
    """

    target: str
    form: str
    args: tuple[Tree, ...]
    spec: Spec
    inner: Inner | None = None

    def __str__(self) -> str:
        return f"{self.target} = {self.expression}"

    @property
    def expression(self) -> str:
        """Return the assigned expression."""
        return self.form.format(*self.args)

    @property
    def text(self) -> list[str]:
        """Return the lines of text, including those of the inner function."""
        return [*(self.inner.text() if self.inner else ()), str(self)]

    def calls(self, name: str) -> bool:
        """Return whether the line calls the cell with this name."""
        return self.form.startswith((f"self.{name}(", f"{name}("))

    def trees(self) -> Iterator[Tree]:
        """Yield everything that is read, also by the inner function."""
        yield from self.args
        if self.inner:
            yield from self.inner.trees()

    def mapped(self, change: Callable[[Tree], Tree]) -> Line:
        """Return the line with changed arguments, also in the inner function."""
        return replace(self, args=tuple(map(change, self.args)), inner=self.inner and self.inner.mapped(change))


@dataclass(frozen=True)
class Numbers:
    """A parameter."""

    name: str
    shape: Shape
    trainable: bool = True

    def __str__(self) -> str:
        fixed = "" if self.trainable else ", trainable=False"
        return f"self.{self.name} = ab.Parameter(numbers({int(self.name[1:])}, {self.shape}){fixed})"


@dataclass(frozen=True)
class Argument:
    """A cell's argument: by name only, if it is a keyword; part of the type, if it is static."""

    name: str
    spec: Spec
    keyword: bool = False
    static: bool = False


@dataclass(frozen=True)
class Function:
    """A cell; or an instance, which returns a loss and other values."""

    name: str
    takes: tuple[Argument, ...]
    lines: tuple[Line, ...]
    returns: Tree
    is_method: bool = True

    def trees(self) -> Iterator[Tree]:
        """Yield everything that is read."""
        for line in self.lines:
            yield from line.trees()
        yield self.returns

    def mapped(self, change: Callable[[Tree], Tree]) -> Self:
        """Return the function with changed arguments of its lines, and a changed result."""
        return replace(self, lines=tuple(line.mapped(change) for line in self.lines), returns=change(self.returns))

    @property
    def all_lines(self) -> Iterator[Line]:
        """Yield the lines, and those of the functions that are defined between them."""
        for line in self.lines:
            yield line
            if line.inner:
                yield from line.inner.all_lines

    def signature(self) -> str:
        """Return the arguments, as in a definition; keywords come last."""
        names = [argument.name for argument in self.takes if not argument.keyword]
        keywords = [argument.name for argument in self.takes if argument.keyword]
        return ", ".join(["self"] * self.is_method + names + ["*"] * bool(keywords) + keywords)

    def text(self, is_cell: bool) -> list[str]:
        """Return the lines of its definition; a function that is not a method reads the parameters of `model`."""
        static = tuple(argument.name for argument in self.takes if argument.static)
        marks = [f"@ab.cell(static={static})" if static else "@ab.cell"] if is_cell else []
        body = [text for line in self.lines for text in line.text] + [f"return {self.returns}"]
        if not self.is_method:
            body = [line.replace("self.", "model.") for line in body]
        return [*marks, f"def {self.name}({self.signature()}):", *(f"    {line}" for line in body), ""]


@dataclass(frozen=True)
class Inner(Function):
    """A function that another one defines; it may read everything before it."""

    is_method: bool = False

    def text(self, is_cell: bool = False) -> list[str]:
        body = [text for line in self.lines for text in line.text] + [f"return {self.returns}"]
        return [f"def {self.name}({self.signature()}):", *(f"    {line}" for line in body)]


@dataclass(frozen=True)
class Program:
    """A model, and instances of its loss; `smooth` if the loss is differentiable everywhere."""

    parameters: tuple[Numbers, ...]
    cells: tuple[Function, ...]
    instances: tuple[Function, ...]
    smooth: bool = False

    def __str__(self) -> str:
        methods = [line for cell in self.cells if cell.is_method for line in cell.text(is_cell=True)]
        methods += [line for instance in self.instances for line in instance.text(is_cell=False)]
        made = [f"    {parameter}" for parameter in self.parameters] or ["    pass"]
        everything = OF_ARRAYS if self.has_arrays else EVERYTHING
        body = ["def __init__(self):", *made, "", *methods, *everything]
        free = [line for cell in self.cells if not cell.is_method for line in cell.text(is_cell=True)]
        lines = [HEADER, "class Model(ab.Module):", *(f"    {line}" if line else "" for line in body), *free]
        items = ", ".join(map(self._text_of_item, self.instances))
        return "\n".join([*lines, 'model = Model().astype("float64")', f"instances = [{items}]", ""])

    def build(self) -> ab.Module:
        """Run the text. Return the model."""
        namespace: dict[str, Any] = {"__name__": "drawn"}
        exec(compile(str(self), "<drawn program>", "exec"), namespace)
        model: ab.Module = namespace["model"]
        return model

    @property
    def functions(self) -> tuple[Function, ...]:
        return (*self.cells, *self.instances)

    @property
    def has_arrays(self) -> bool:
        return any(instance.takes for instance in self.instances)

    @property
    def items(self) -> list[Any]:
        """Return the arguments of `loss` and `everything`: the instances' names, with their arrays if there are any."""
        text = ", ".join(map(self._text_of_item, self.instances))
        return list(eval(f"[{text}]", {"numbers": numbers, "np": np}))

    def _text_of_item(self, instance: Function) -> str:
        if not self.has_arrays:
            return repr(instance.name)
        taken = [f"numbers({take.name[1:]}, {take.spec.shape})" for take in instance.takes]  # type: ignore[union-attr]
        arrays = "".join(f"np.asarray({text}), " if "()" in text else f"{text}, " for text in taken)
        return f"({instance.name!r}, ({arrays.strip()}))"

    @property
    def size(self) -> int:
        """Return the size to minimize, from lines, values read and parameters."""
        functions = (*self.cells, *self.instances)
        n_read = sum(1 for f in functions for tree in f.trees() for _ in uses_in(tree))
        n_takes = sum(len(f.takes) for f in functions)
        n_text = sum(len(line.form) for f in functions for line in f.all_lines)
        n_text += sum(20 for f in functions for line in f.all_lines if line.inner for _ in ("", *line.inner.takes))
        return 20 * (len(functions) + n_read + n_takes + len(self.parameters)) + n_text

    def without_the_unread(self) -> Program:
        """Return the program without lines, cells and parameters that nothing reads, but with one parameter at least,
        which makes it float64.
        """
        cells, instances = list[Function](), [_needed(f) for f in self.instances]
        for cell in map(_needed, reversed(self.cells)):
            if any(line.calls(cell.name) for f in (*cells, *instances) for line in f.all_lines):
                cells.insert(0, cell)
        text = "\n".join(line for f in (*cells, *instances) for line in f.text(is_cell=False))
        text = text.replace("model.", "self.")
        parameters = tuple(p for p in self.parameters if _occurs(f"self.{p.name}", text)) or self.parameters[:1]
        return replace(self, cells=tuple(cells), instances=tuple(instances), parameters=parameters)


EVERYTHING = (
    "def loss(self, name):",
    "    return getattr(self, name)()[0]",
    "",
    "def everything(self, name):",
    "    return getattr(self, name)()",
    "",
)
OF_ARRAYS = (
    "def loss(self, item):",
    "    return getattr(self, item[0])(*item[1])[0]",
    "",
    "def everything(self, item):",
    "    return getattr(self, item[0])(*item[1])",
    "",
)


def numbers(seed: int, shape: Shape) -> Any:
    """Draw normally distributed numbers, rounded to two decimals."""
    return np.round(np.random.default_rng(seed).standard_normal(shape), 2)


def _needed(function: F) -> F:
    """Return the function without lines whose targets nothing reads."""
    lines, read = list[Line](), list(uses_in(function.returns))
    for line in reversed(function.lines):
        if any(use.reads(line.target) for use in read):
            needed = replace(line, inner=line.inner and _needed(line.inner))
            lines.insert(0, needed)
            read += [use for tree in needed.trees() for use in uses_in(tree)]
    return replace(function, lines=tuple(lines))


def _occurs(name: str, text: str) -> bool:
    start = text.find(name)
    while start >= 0:
        if not text[start + len(name) : start + len(name) + 1].isdigit():
            return True
        start = text.find(name, start + 1)
    return False
