"""The statements of a lowered stage: loops over elements, products with shared matrices, interpreted ops, and sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from autobatch.compiler.reasons import Reason
from autobatch.compiler.view import View
from autobatch.ops.define import Shape
from autobatch.ops.expression import Expression, leaves

Combine: TypeAlias = Literal["", "sum", "max"]


class Index(NamedTuple):
    """An int that moves an operand: the int at `at`, which is the same at every index of the loop, times `step`."""

    at: Operand
    step: int


@dataclass(frozen=True)
class Operand(Expression):
    """An element that an expression reads from memory at each index, as a number of the model's float type.

    Attributes:
        view: the elements; its shape is that of the loop.
        moved: moves the view by an int of the row: to a row of a table, or to the element of a label.
        is_int: the element is read as an int, which can only be compared with another int, or move an operand.
    """

    view: View
    moved: Index | None = None
    is_int: bool = False


@dataclass(frozen=True)
class Position(Expression):
    """The index of a loop over one axis, as a number of the model's float type, or as an int as `Operand.is_int` is."""

    is_int: bool = False


@dataclass(frozen=True)
class EdgeCount(Expression):
    """The number of edges of a group that the node has, as a number of the model's float type."""

    group: int


@dataclass(frozen=True, eq=False)
class Loop:
    """An expression computed at every index of a shape, for every row of a domain.

    Attributes:
        domain: the rows that it runs over.
        shape: the axes that it runs over.
        expression: the expression, of operands.
        target: the elements that it makes, and their value; the strides of axes that it reduces are 0.
        combine: "" if each element is made once; "sum" and "max" reduce the values at indices of one element.
        stored: the destination if the target is not a value: `output` number, or `port` gradient number.
    """

    domain: int
    shape: Shape
    expression: Expression
    target: View
    combine: Combine = ""
    stored: tuple[str, int] | None = None

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The operands that it reads from memory, each once; an int that moves another one comes before that."""
        found: dict[Operand, None] = {}
        for leaf in leaves(self.expression):
            if isinstance(leaf, Operand):
                found.update(dict.fromkeys((leaf.moved.at, leaf) if leaf.moved else (leaf,)))
        return tuple(found)

    def reads(self, kind: type[Expression]) -> bool:
        """Whether the expression has a leaf of this class."""
        return any(isinstance(leaf, kind) for leaf in leaves(self.expression))

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of the loop nest, without those of length one, and with neighbouring axes joined if they can be."""
        return self.nest[0]

    @cached_property
    def nest(self) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """The axes, and the strides along them of the target and of each operand."""
        views = [self.target, *(operand.view for operand in self.operands)]
        return collapse(self.shape, [view.strides for view in views])

    @property
    def size(self) -> int:
        """The number of indices."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Term:
    """rows @ weight, or rows @ weight.T; the weight is a value that all rows share."""

    rows: View
    weight: int
    transposed: bool


@dataclass(frozen=True, eq=False)
class Product:
    """A sum of products of rows with shared matrices, one BLAS call each; `adds` means added to the target."""

    domain: int
    terms: tuple[Term, ...]
    target: int
    adds: bool = False


@dataclass(frozen=True, eq=False)
class Interpreted:
    """An instruction that runs as in the reference backend, and the reason."""

    domain: int
    target: int
    args: tuple[int, ...]
    why: Reason


@dataclass(frozen=True, eq=False)
class Outer:
    """left' @ right over all rows of a type, added to the gradient of a parameter."""

    domain: int
    left: View
    right: View
    parameter: int


@dataclass(frozen=True, eq=False)
class RowSum:
    """The sum of all rows of a type, added to the gradients of parameters."""

    domain: int
    rows: View
    parameters: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Scatter:
    """All rows of a type, added to the rows of a table's gradient that `ids` name."""

    domain: int
    rows: View
    ids: View
    parameter: int


@dataclass(frozen=True, eq=False)
class Remainder:
    """The gradients of the remaining parameters, which the interpreter computes."""

    parameters: tuple[int, ...]


Statement: TypeAlias = Loop | Product | Interpreted
WeightStep: TypeAlias = Outer | RowSum | Scatter | Remainder


def collapse(shape: Shape, strides: list[tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Join neighbouring axes that every view steps through as one axis; drop axes of length one.

    A shape that has an axis of length zero becomes that axis alone.

    >>> collapse((2, 1, 3), [(3, 3, 1), (0, 0, 0)])
    ((6,), ((1,), (0,)))
    >>> collapse((2, 3), [(3, 1), (0, 1)])
    ((2, 3), ((3, 1), (0, 1)))
    >>> collapse((3, 0), [(0, 1), (1, 0)])
    ((0,), ((1,), (1,)))
    """
    if 0 in shape:
        return (0,), ((1,),) * len(strides)
    axes: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if axes and all(own[-1] == view[axis] * size for own, view in zip(kept, strides, strict=True)):
            axes[-1] *= size
            for own, view in zip(kept, strides, strict=True):
                own[-1] = view[axis]
        else:
            axes.append(size)
            for own, view in zip(kept, strides, strict=True):
                own.append(view[axis])
    return tuple(axes), tuple(tuple(own) for own in kept)
