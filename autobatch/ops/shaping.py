"""Ops that move elements or change shapes: slice, reshape and transpose are views, concat and assemble copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.arguments import RAW, is_int, refusal, show, to_plain
from autobatch.errors import ShapeError
from autobatch.ops.define import (
    Array,
    Op,
    Shape,
    Value,
    align,
    broadcast,
    composite,
    define_op,
    of_values,
    refused_call,
    shape_of,
)
from autobatch.ops.operators import FUNCTIONS
from autobatch.ops.ports import VariadicPort, as_port

Index = tuple[Any, ...]


def index_parts(index: Any) -> Index:
    """Return an index as a tuple; ShapeError unless its parts are ints, slices, None and an ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        plain = part is None or part is Ellipsis or isinstance(part, (slice, int, np.integer))
        if not plain or isinstance(part, bool):
            raise ShapeError(
                f"an index must consist of ints, slices, None and ..., got {show(part)}; for rows of a table use "
                f"ab.lookup."
            )
    return parts


def _slice_shape(x: Shape, index: Any) -> Shape:
    try:
        # NumPy determines the shape, on a broadcast scalar, which takes no memory.
        return np.broadcast_to(np.float32(0), x)[index_parts(index)].shape
    except IndexError as error:
        raise ShapeError(f"slice of a value of shape {x}: {error}.") from None


slice_ = define_op(
    "slice",
    shape=_slice_shape,
    kernel=lambda xp, x, index: x[(slice(None), *index_parts(index))],
    pullback=lambda g, out, x, index: (assemble(g, indices=(index,), shape=x.shape),),
    view=True,
    doc="""Return the view `x[index]`, without a copy.

    Shapes: as in NumPy's indexing by ints, slices, None and `...`.
    Gradient: the gradient of the result at the index, 0 elsewhere.

    >>> ab.ops.slice_(np.array([1.0, 2.0, 3.0]), index=slice(1, None))
    array([2., 3.])
    """,
)


def _assemble(xp: Any, *parts: Array, out: Array, indices: tuple[Any, ...], shape: Shape) -> None:
    # Parts are disjoint: if their sizes add up, they overwrite every element.
    if sum(math.prod(part.shape[1:]) for part in parts) < math.prod(shape):
        out[...] = 0
    for part, index in zip(parts, indices, strict=True):
        out[(slice(None), *index_parts(index))] = part


assemble: Op = define_op(
    "assemble",  # the transpose of disjoint slices: each part at its index, zeros elsewhere
    shape=lambda *parts, indices, shape: shape,
    kernel=_assemble,
    pullback=lambda g, out, *parts, indices, shape: tuple(slice_(g, index=index) for index in indices),
    copies=True,
)


def _reshape_shape(x: Shape, shape: Shape) -> Shape:
    if math.prod(x) != math.prod(shape):
        raise ShapeError(
            f"reshape must keep the number of elements, got shapes {x} and {shape} with {math.prod(x)} and "
            f"{math.prod(shape)} elements."
        )
    return tuple(shape)


def _reshape(xp: Any, x: Array, shape: Shape) -> Array:
    return x.reshape((x.shape[0], *shape))


_reshape_op = define_op(
    "reshape",
    shape=_reshape_shape,
    kernel=_reshape,
    pullback=lambda g, out, x, shape: (reshape(g, x.shape),),
    view=True,
)


def reshape(x: Value, shape: int | Sequence[int]) -> Value:
    """Return the elements of `x` in a new shape; a size of -1, at most one, is inferred from the others.

    Shapes: any x; the result has shape `shape`, with as many elements.
    Gradient: the gradient of the result, in the shape of x.

    >>> ab.reshape(np.array([1.0, 2.0, 3.0, 4.0]), (2, -1))
    array([[1., 2.],
           [3., 4.]])
    """
    try:
        shape = to_plain(shape)
        sizes = (shape,) if isinstance(shape, int) else to_plain(tuple(shape))
        is_known = all(isinstance(s, int) for s in (*shape_of(x), *sizes))  # sizes may be known only at run time
        if is_known and -1 in sizes:
            # The product of the other sizes, because -1 flips the sign; 1 if one of them is 0. A second -1 makes it
            # negative.
            known = -math.prod(sizes) or 1
            sizes = tuple(math.prod(shape_of(x)) // known if s == -1 else s for s in sizes)
        return _reshape_op(x, shape=sizes)
    except RAW as error:
        raise refused_call(reshape, (x, shape), {}, error) from error


def _expand_shape(x: Shape, shape: Shape) -> Shape:
    if broadcast("expand", x, shape) != shape:
        raise ShapeError(f"the shape of expand must be one to which the value's shape {x} broadcasts, got {shape}.")
    return shape


_expand_op = define_op(
    "expand",
    shape=_expand_shape,
    kernel=lambda xp, x, shape: xp.broadcast_to(align(x, len(shape) + 1), (x.shape[0], *shape)),
    pullback=lambda g, out, x, shape: (g,),
    view=True,
)


def expand(x: Any, shape: Shape) -> Any:
    """Broadcast `x` to `shape`, without a copy."""
    return x if shape_of(x) == shape else _expand_op(x, shape=shape)


def again(x: Any) -> Any:
    """Return an equal value that is distinct for derivatives."""
    return _expand_op(x, shape=shape_of(x))


stand_for = define_op(
    "stand_for",
    shape=lambda x, dtype: x,
    kernel=lambda xp, x, dtype: x,
    pullback=lambda g, out, x, dtype: (g,),
    view=True,
    doc="""Return x, marked as numbers of another dtype.

    The name of the dtype is part of the type of each node that reads the result.

    Shapes: any x; the result has the same shape.
    Gradient: the gradient of the result.
    """,
)


def _axes(ndim: int, axes: Sequence[int] | None) -> tuple[int, ...]:
    order = tuple(range(ndim))[::-1] if axes is None else tuple(a % ndim for a in axes)
    if sorted(order) != list(range(ndim)):
        raise ShapeError(f"axes of transpose must be a permutation of the {ndim} axes of the value, got {axes}.")
    return order


_transpose_op = define_op(
    "transpose",
    shape=lambda x, axes: tuple(x[a] for a in _axes(len(x), axes)),
    kernel=lambda xp, x, axes: x.transpose(0, *(a + 1 for a in _axes(x.ndim - 1, axes))),
    pullback=lambda g, out, x, axes: (_transpose_back(g, x, axes),),
    view=True,
)


@of_values
def transpose(x: Value, axes: Sequence[int] | None = None) -> Value:
    """Reorder the axes of `x` (reversed by default).

    Shapes: any x; the result has the sizes of x in the order `axes`.
    Gradient: the gradient of the result, with its axes in the order of x.

    >>> ab.transpose(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[1., 3.],
           [2., 4.]])
    """
    return _transpose_op(x, axes=None if axes is None else tuple(axes))


def _transpose_back(g: Any, x: Any, axes: Sequence[int] | None) -> Any:
    return transpose(g, tuple(int(a) for a in np.argsort(_axes(x.ndim, axes))))


def _concat_shape(*parts: Shape, axis: int) -> Shape:
    first = parts[0]
    if not first or not -len(first) <= axis < len(first):
        raise ShapeError(f"axis of concat must be an axis of values of shape {first}, got {axis}.")
    axis %= len(first)
    for part in parts:
        if len(part) != len(first) or part[:axis] + part[axis + 1 :] != first[:axis] + first[axis + 1 :]:
            raise ShapeError(
                f"values of concat along axis {axis} must agree in all other axes, got shapes {first} and {part}."
            )
    return (*first[:axis], sum(part[axis] for part in parts), *first[axis + 1 :])


def _concat(xp: Any, *parts: Array, out: Array, axis: int) -> None:
    lead = (slice(None),) * (axis + 1 if axis >= 0 else out.ndim + axis)
    start = 0
    for part in parts:
        stop = start + part.shape[len(lead)]
        out[(*lead, slice(start, stop))] = part
        start = stop


def _concat_pullback(g: Any, out: Any, *parts: Any, axis: int) -> tuple[Any, ...]:
    lead, start, gradients = (slice(None),) * (axis % g.ndim), 0, []
    for part in parts:
        stop = start + part.shape[axis]
        gradients.append(slice_(g, index=(*lead, slice(start, stop))))
        start = stop
    return tuple(gradients)


_concat_op = define_op("concat", shape=_concat_shape, kernel=_concat, pullback=_concat_pullback, copies=True)


@of_values
def concat(parts: Sequence[Value], axis: int = -1) -> Value:
    """Join values along one axis.

    Shapes: parts that differ in this axis only; its sizes add up in the result.
    Gradient: for each part, its slice of the gradient of the result.

    >>> ab.concat([np.array([1.0, 2.0]), np.array([3.0])])
    array([1., 2., 3.])
    """
    if not len(parts):
        raise ShapeError("concat must be given at least one value, got none.")
    return _concat_op(*parts, axis=axis)


@composite
def stack(parts: Sequence[Value], axis: int = 0) -> Value:
    """Join values of the same shape along a new axis.

    Inside a cell, a list argument of any length becomes a value with a row per element, of one type for all lengths.

    Shapes: n parts of one shape; the result has an additional axis of length n.
    Gradient: for each part, its slice of the gradient of the result.

    >>> ab.stack([np.zeros(2), np.ones(2)]).shape
    (2, 2)
    """
    parts = as_port(parts)
    if isinstance(parts, VariadicPort) and axis == 0:
        return parts.stacked()
    if not len(parts):
        raise ShapeError("stack must be given at least one value, got none.")
    shape = shape_of(parts[0])
    if not is_int(axis) or not -len(shape) - 1 <= axis <= len(shape):
        raise ShapeError(
            f"axis of stack must be an int from {-len(shape) - 1} to {len(shape)} for values of shape {shape}, got "
            f"{show(axis)}."
        )
    at = axis % (len(shape) + 1)
    return concat([reshape(part, (*shape_of(part)[:at], 1, *shape_of(part)[at:])) for part in parts], at)


@composite
def split(x: Value, n: int) -> tuple[Value, ...]:
    """Cut the last axis into `n` equal parts.

    Shapes: x (..., n * k), each part (..., k).
    Gradient: the joined gradients of the parts.

    >>> ab.split(np.arange(6.0), 3)
    (array([0., 1.]), array([2., 3.]), array([4., 5.]))
    """
    size = shape_of(x)[-1] if shape_of(x) else 0
    if not is_int(n):
        raise refusal(
            "n of split", "the number of equal parts", n, ShapeError, "for parts of other sizes write x[..., a:b]"
        )
    if n < 1 or size % n:
        raise ShapeError(
            f"n of split must be at least 1 and divide {size}, the last axis of a value of shape {shape_of(x)}, "
            f"got {n}."
        )
    width = size // n
    return tuple(slice_(x, index=(..., slice(k * width, (k + 1) * width))) for k in range(n))


FUNCTIONS.update(reshape=reshape, transpose=transpose)
