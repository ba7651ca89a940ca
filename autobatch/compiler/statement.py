"""What a stage of a cell is lowered to: loops over elements, products with shared matrices, and interpreted ops."""

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
    """An int of the row that moves an operand: element number `view` of the int data, times `step` elements."""

    view: View
    step: int


@dataclass(frozen=True)
class Operand(Expression):
    """What an expression reads of memory at each index, as a number of the model's float type.

    Attributes:
        view: which elements; its shape is that of the loop.
        moved: moves the view by an int of the row: a row of a table, the element of a label.
        is_int: it is an int as it lies, which can only be compared with another one.
    """

    view: View
    moved: Index | None = None
    is_int: bool = False


@dataclass(frozen=True)
class Position(Expression):
    """The number of the index, an int, in a loop over one axis."""


@dataclass(frozen=True)
class EdgeCount(Expression):
    """How many edges of a group the node has, as a number of the model's float type."""

    group: int


@dataclass(frozen=True, eq=False)
class Loop:
    """An expression computed at every index of a shape, for every row of a domain.

    Attributes:
        domain: the rows that it runs over.
        shape: the axes that it runs over.
        expression: what it computes, of operands.
        target: which elements it makes, of which value; the strides of axes that it sums over are 0.
        combine: "" where each element is made once; "sum" and "max" join those that meet.
        stored: where the target lies if it is no value: `output` number, or `port` gradient number.
    """

    domain: int
    shape: Shape
    expression: Expression
    target: View
    combine: Combine = ""
    stored: tuple[str, int] | None = None

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """What it reads of memory, each once."""
        return tuple(dict.fromkeys(leaf for leaf in leaves(self.expression) if isinstance(leaf, Operand)))

    def reads(self, kind: type[Expression]) -> bool:
        """Whether the expression has a leaf of a kind."""
        return any(isinstance(leaf, kind) for leaf in leaves(self.expression))

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of the loop nest, after those of one element are gone and those that can be joined are."""
        return self.nest[0]

    @cached_property
    def nest(self) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """The axes, and for the target and each operand its strides along them."""
        views = [self.target, *(operand.view for operand in self.operands)]
        return collapse(self.shape, [view.strides for view in views])

    @property
    def size(self) -> int:
        """Indices."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Term:
    """rows @ weight, or rows @ its transpose; the weight is a value that all rows share."""

    rows: View
    weight: int
    transposed: bool


@dataclass(frozen=True, eq=False)
class Product:
    """The sum of products of rows with shared matrices: one call of a BLAS each; `adds` to what is in the target."""

    domain: int
    terms: tuple[Term, ...]
    target: int
    adds: bool = False


@dataclass(frozen=True, eq=False)
class Interpreted:
    """An instruction that runs as in the reference backend, and why."""

    domain: int
    target: int
    args: tuple[int, ...]
    why: Reason


Statement: TypeAlias = Loop | Product | Interpreted


def collapse(shape: Shape, strides: list[tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Join neighbouring axes along which all views go on alike; drop those of one element. One of none is all there is.

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
