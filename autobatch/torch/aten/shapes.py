"""Ops of ATen that move numbers: views, slices, joins; and constants in the shape of a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch import ops
from autobatch.ops.define import shape_of
from autobatch.ops.shaping import expand as broadcast_to
from autobatch.ops.shaping import slice_
from autobatch.torch.aten.table import indexed, moved, op, seen


@op("t", of=seen)
def t(x: Any) -> Any:
    """Swap the axes of a matrix."""
    return ops.transpose(x)


@op("transpose", of=seen)
def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """Swap two axes of x."""
    axes = list(range(len(shape_of(x))))
    if not axes:
        return x
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return ops.transpose(x, axes)


@op("permute", of=seen)
def permute(x: Any, dims: Sequence[int]) -> Any:
    """Reorder the axes of x."""
    return ops.transpose(x, tuple(dims))


@op("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", of=seen)
def view(x: Any, size: Sequence[int], *others: Any) -> Any:
    """Return the elements of x in another shape."""
    return ops.reshape(x, tuple(size))


@op("expand", of=seen)
def expand(x: Any, size: Sequence[int], *, implicit: bool = False) -> Any:
    """Broadcast x to a shape, in which -1 keeps the length of an axis."""
    shape = (1,) * (len(size) - len(shape_of(x))) + shape_of(x)
    wanted = tuple(own if n == -1 else n for own, n in zip(shape, size, strict=True))
    return broadcast_to(ops.reshape(x, shape) if shape != shape_of(x) else x, wanted)


@op("unsqueeze", of=seen)
def unsqueeze(x: Any, dim: int) -> Any:
    """Insert an axis of length one."""
    shape = list(shape_of(x))
    shape.insert(dim % (len(shape) + 1), 1)
    return ops.reshape(x, tuple(shape))


@op("squeeze", of=seen)
def squeeze(x: Any, dim: int | Sequence[int] | None = None) -> Any:
    """Remove axes of length one."""
    shape = shape_of(x)
    given = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    out = {d % len(shape) for d in given if shape} & {d for d, n in enumerate(shape) if n == 1}
    return ops.reshape(x, tuple(n for d, n in enumerate(shape) if d not in out))


@op("slice", of=seen)
def cut(x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """Return every step-th element in a range along an axis."""
    return _at(x, dim, slice(*slice(start, end, step).indices(shape_of(x)[dim])))


@op("select", of=seen)
def select(x: Any, dim: int, index: int) -> Any:
    """Return one element along an axis."""
    return _at(x, dim, index)


@op("split", "unsafe_split", of=seen)
def split(x: Any, size: int, dim: int = 0) -> Any:
    """Split x along an axis into parts of a size; the last may be shorter."""
    length = shape_of(x)[dim]
    return [_at(x, dim, slice(first, min(first + size, length))) for first in range(0, length, size)]


@op("split_with_sizes", of=seen)
def split_with_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    """Split x along an axis into parts of these sizes."""
    ends = np.cumsum(sizes).tolist()
    return [_at(x, dim, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


@op("unbind", of=seen)
def unbind(x: Any, dim: int = 0) -> Any:
    """Return all elements along an axis."""
    return [_at(x, dim, place) for place in range(shape_of(x)[dim])]


@op("cat", of=moved)
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Join values along an axis; values of torch's empty shape (0,) are left out."""
    rank = max(len(shape_of(x)) for x in tensors)
    parts = [x for x in tensors if len(shape_of(x)) == rank]
    return parts[0] if len(parts) == 1 else ops.concat(parts, dim)


@op("stack", of=moved)
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Join values along a new axis."""
    return ops.concat([unsqueeze(x, dim) for x in tensors], dim)


@op("repeat", of=moved)
def repeat(x: Any, repeats: Sequence[int]) -> Any:
    """Repeat x along each axis."""
    x = ops.reshape(x, (1,) * (len(repeats) - len(shape_of(x))) + shape_of(x))
    if 0 in repeats:
        return np.zeros(tuple(n * size for n, size in zip(repeats, shape_of(x), strict=True)))
    for axis, n in enumerate(repeats):
        x = ops.concat([x] * n, axis) if n > 1 else x
    return x


@op("embedding", of=indexed)
def embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    """Look up rows of a table."""
    return NotImplemented if scale_grad_by_freq else ops.lookup(weight, indices)


@op("index_select", of=indexed)
def index_select(x: Any, dim: int, index: Any) -> Any:
    """Return the elements along an axis at int positions."""
    if not shape_of(x):
        return NotImplemented
    index = index if shape_of(index) else ops.reshape(index, (1,))
    if dim % len(shape_of(x)) == 0:
        return ops.lookup(x, index)
    axes = list(range(len(shape_of(x))))
    axes.insert(0, axes.pop(dim))
    found = ops.lookup(ops.transpose(x, axes), index)
    return ops.transpose(found, tuple(int(a) for a in np.argsort(axes)))  # the inverse permutation


@op("fill", of=moved)
def fill(x: Any, value: Any) -> Any:
    """Return a number in the shape of x."""
    return broadcast_to(value, shape_of(x)) if hasattr(value, "shape") else np.full(shape_of(x), float(value))


@op("zero", of=moved)
def zero(x: Any) -> Any:
    """Return zeros in the shape of x."""
    return np.zeros(shape_of(x))


def _at(x: Any, dim: int, index: Any) -> Any:
    axis = dim % len(shape_of(x))
    return slice_(x, index=(*(slice(None) for _ in range(axis)), index))
