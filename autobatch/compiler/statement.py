"""Define the statements of a lowered stage: loops over elements, products, interpreted ops, and sums of gradients.

The reasons why ops are not in one loop nest are listed with a sentence for each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from autobatch.compiler.view import View
from autobatch.ops.define import Shape
from autobatch.ops.expression import Expression, leaves


class Reason(Enum):
    """The reason why two neighbours are not fused, or why an op is interpreted.

    In sentences about neighbours, {maker} and {reader} name the values that the two make; {names[0]}, ... name the
    values that other statements make, and {kinds[0]}, ... are "product" or "op" for each of these.
    """

    PRODUCT = "{names[0]} is a product, which a library computes"
    INTERPRETED = "{names[0]} is interpreted: {rule}"
    OFF = "fusion is switched off"
    ONCE = "one runs once for all rows of the type, the other for every batch"
    # in different kernels
    BETWEEN = "the {kinds[0]} {names[0]} runs between them: it reads the one and is read by the other"
    BOTH_WAIT = "the {kinds[0]} {names[0]} waits for {maker}, and {reader} for the {kinds[1]} {names[1]}"
    EDGES = "one reads from or writes to other nodes, edge by edge"
    READ_BEFORE = "{names[0]} reads {maker} in an earlier kernel, and {reader} waits for the {kinds[1]} {names[1]}"
    WITH_READER = "{reader} is computed where {names[0]} reads it, after the {kinds[1]} {names[1]}"
    # in different loop nests
    ROWS = "one runs for every {rows[0]}, the other for every {rows[1]}"
    COMBINED = "{maker} is a {combine}, known only after its loop"
    AXES = "one loop goes over {axes[0]}, the other over {axes[1]}"
    PART = "{maker} is a part of the value that {reader} reads"
    DATA = "data chooses the element of {maker} that {reader} reads"
    ELEMENTS = "{reader} reads other elements of {maker} than were just made"
    LATER_NEST = "{reader} also reads {names[0]}, which a later loop nest computes"
    NONE = "nothing prevents it; each is in the first loop nest that allows it"

    # why an op is interpreted
    NO_RULE = "it has no rule"
    WEIGHT_NOT_SHARED = "its weight is not shared by all rows, or its input is"
    LEFT_TO_LIBRARY = "a shared matrix times matrices is left to the library"
    NO_TABLE = "its table is computed once for all rows"
    PART_OF_TABLE = "its table is part of a parameter"
    NO_IDS = "its ids are not ints of the node, or too many"
    NOT_IN_LINE = "it reduces one of several axes, or its elements are not contiguous"
    NO_VECTOR = "its logits are not a vector"
    SHARED_LOGITS = "its logits are shared"
    NO_LABEL = "its label is neither a number nor an int of the node"
    NO_INT = "its label is not one int of the node"
    LARGE_INTS = "it compares ints of the node that the model's float type may round"
    NOT_PER_EDGE = "its argument is not a value per edge"


Combine: TypeAlias = Literal["", "sum", "max"]


class Index(NamedTuple):
    """A data-dependent offset: `step` times the int at `at`, which is the same at every index of the loop."""

    at: Operand
    step: int


@dataclass(frozen=True)
class Operand(Expression):
    """An element that an expression reads from memory at each index, as a number of the model's float type.

    Attributes:
        view: the elements; its shape is that of the loop.
        moved: moves the view by an int of the row, to a row of a table or to the element of a label.
        is_int: whether the element is read as an int, which can only be compared with another int, or move an operand.
    """

    view: View
    moved: Index | None = None
    is_int: bool = False


@dataclass(frozen=True)
class Position(Expression):
    """The index of a loop over one axis, as a number of the model's float type or, with `is_int`, as an int."""

    is_int: bool = False


@dataclass(frozen=True)
class EdgeCount(Expression):
    """The number of a node's edges in a group, as a number of the model's float type."""

    group: int


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop that computes an expression at every index of a shape, for every row of a domain.

    Attributes:
        domain: the domain of the rows.
        shape: the axes of the loop.
        expression: the expression, whose leaves are operands.
        target: the elements that the loop makes, and their value; strides are 0 along axes that it reduces.
        combine: "" if each element is made once; "sum" or "max" to reduce the numbers of all indices of an element.
        stored: the destination if the target is not a value: ("output", number), or ("port", number) for a gradient.
    """

    domain: int
    shape: Shape
    expression: Expression
    target: View
    combine: Combine = ""
    stored: tuple[str, int] | None = None

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """Return the operands that the loop reads, without duplicates; an int that moves another comes before it."""
        found: dict[Operand, None] = {}
        for leaf in leaves(self.expression):
            if isinstance(leaf, Operand):
                found.update(dict.fromkeys((leaf.moved.at, leaf) if leaf.moved else (leaf,)))
        return tuple(found)

    def reads(self, kind: type[Expression]) -> bool:
        """Return whether the expression has a leaf of this class."""
        return any(isinstance(leaf, kind) for leaf in leaves(self.expression))

    @property
    def axes(self) -> tuple[int, ...]:
        """Return the axes of the loop nest: without those of length one, and with neighbours joined if possible."""
        return self.nest[0]

    @cached_property
    def nest(self) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Return the axes, and the strides along them of the target and of each operand."""
        views = [self.target, *(operand.view for operand in self.operands)]
        return collapse(self.shape, [view.strides for view in views])

    @property
    def size(self) -> int:
        """Return the number of indices."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Term:
    """A product rows @ weight or rows @ weight.T; the weight is a value that all rows share."""

    rows: View
    weight: int
    transposed: bool


@dataclass(frozen=True, eq=False)
class Product:
    """A sum of products of rows with shared matrices, one BLAS call each; if `adds`, it is added to the target."""

    domain: int
    terms: tuple[Term, ...]
    target: int
    adds: bool = False


@dataclass(frozen=True, eq=False)
class Interpreted:
    """An instruction that is interpreted, as in the reference backend, and the reason."""

    domain: int
    target: int
    args: tuple[int, ...]
    why: Reason


@dataclass(frozen=True, eq=False)
class Outer:
    """A product left' @ right over all rows of a type, added to the gradient of a parameter."""

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
    """All rows of a type, added to the rows of a table's gradient that `ids` select."""

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
    """Join neighbouring axes through which every view steps as through one axis; drop axes of length one.

    A shape with an axis of length zero becomes that axis alone.

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
