"""Define views of values: an offset and a stride per axis select the elements of a view."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autobatch.ir.program import Instruction, Var
from autobatch.ops.define import Shape


class View(NamedTuple):
    """A view of a value, whose element (i, j, ...) is number offset + i * strides[0] + j * strides[1] + ... of it."""

    value: int
    offset: int
    shape: Shape
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the number of elements; an element that appears several times counts as often."""
        return math.prod(self.shape)

    def is_whole(self, size: int) -> bool:
        """Return whether the view has all elements of a value of this size, in order."""
        return self.offset == 0 and self.size == size and self.is_contiguous

    @property
    def is_contiguous(self) -> bool:
        """Return whether the elements are adjacent and in order."""
        return self.size <= 1 or spread(self.shape, self.strides) == spread(self.shape, steps(self.shape))

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the first element and the end; equal if there are no elements."""
        if not self.size:
            return self.offset, self.offset
        reach = [stride * (size - 1) for size, stride in zip(self.shape, self.strides, strict=True)]
        return self.offset + sum(min(r, 0) for r in reach), self.offset + sum(max(r, 0) for r in reach) + 1

    def within(self, aliases: Mapping[int, View]) -> View:
        """Return the same view of the value that owns the memory, if values are made as parts of others."""
        view = self
        while view.value in aliases:
            whole = aliases[view.value]
            view = view._replace(value=whole.value, offset=view.offset + whole.offset)
        return view

    def broadcast(self, shape: Shape) -> View:
        """Return the view broadcast to a larger shape, by NumPy's rules."""
        missing = len(shape) - len(self.shape)
        strides = [
            0 if old == 1 else stride for old, stride in zip(self.shape, self.strides, strict=True)
        ]  # fmt: skip
        return self._replace(shape=shape, strides=(0,) * missing + tuple(strides))


def steps(shape: Shape) -> tuple[int, ...]:
    """Return the strides of a contiguous array, in elements.

    >>> steps((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def spread(shape: Shape, strides: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of the axes whose length is not one."""
    return tuple(stride for size, stride in zip(shape, strides, strict=True) if size != 1)


def views_of(vars: Sequence[Var]) -> list[View]:
    """Return a view for each value: of all of itself, or of another value if a view op makes it.

    A view op that must copy, such as a reshape of a transposed value, makes a value of its own.
    """
    found: list[View] = []
    for index, var in enumerate(vars):
        own = View(index, 0, var.shape, steps(var.shape))
        source = var.source
        if isinstance(source, Instruction) and source.op.view:
            parent = found[source.args[0]]
            own = _seen_through(source, parent, vars[parent.value].size) or own
        found.append(own)
    return found


def _seen_through(source: Instruction, parent: View, size: int) -> View | None:
    """Return the view that a view op makes of a view, found by applying the op to an array; None if it copies."""
    # Elements of one byte, so that offsets and strides in bytes count elements. Kernels of ops take an axis of rows.
    memory = np.empty(max(size, 1), np.int8)
    if math.prod(parent.shape) == 0:
        shape = source.op.kernel(np, np.empty((1, *parent.shape), np.int8), **source.static).shape[1:]
        return View(parent.value, 0, shape, steps(shape))
    array = np.ndarray((1, *parent.shape), np.int8, memory, parent.offset, (1, *parent.strides))
    view = source.op.kernel(np, array, **source.static)
    first = view.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    if view.size and not np.may_share_memory(view, memory):
        return None
    return View(parent.value, first if view.size else 0, view.shape[1:], view.strides[1:])
