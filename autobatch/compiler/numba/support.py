"""Functions that generated kernels call beside mathematical ones. Each also works as plain Python, for tests."""

from __future__ import annotations

from typing import Any

from autobatch.compiler.numba.inlined import in_kernels, reordered, replaced_by
from autobatch.compiler.numba.intrinsics import make_larger, make_part

Array = Any
Float = Any


@replaced_by(make_part)
def part(array: Array, first: int, size: int) -> Array:
    """Elements first:first + size of a flat array.

    Compiled code gets the address of the first element instead: a view would count references.
    """
    return array[first : first + size]


@replaced_by(make_larger)
def larger(x: Float, y: Float) -> Float:
    """The larger of two numbers; NaN if one is."""
    return x if x > y or x != x else y


@reordered
def plus(total: Float, term: Float) -> Float:
    """Add a term to a sum. LLVM may reorder only this: x - peak - log(total) must not become x - (peak + ...)."""
    return total + term


@in_kernels
def power(x: Float, y: Float) -> Float:
    """x ** y."""
    return x**y


@in_kernels
def collect(buffer: Array, total: Array, size: int, dest: Array, start: int, stop: int, shift: int) -> None:
    """Write to `total` the sum of the ranges of `size` elements that begin at dest[start:stop] + shift."""
    if start == stop:
        for i in range(size):
            total[i] = 0
        return
    one = part(buffer, dest[start] + shift, size)
    if stop - start == 1:
        for i in range(size):
            total[i] = one[i]
        return
    other = part(buffer, dest[start + 1] + shift, size)
    for i in range(size):
        total[i] = one[i] + other[i]
    for j in range(start + 2, stop):
        other = part(buffer, dest[j] + shift, size)
        for i in range(size):
            total[i] += other[i]


@in_kernels
def may_store(adds: Array, start: int, stop: int) -> bool:
    """Whether a value may be made at its first destination: it has one, and is added to none of its destinations."""
    for j in range(start, stop):
        if adds[j]:
            return False
    return start < stop


@in_kernels
def send(buffer: Array, value: Array, size: int, first: int, adds: bool) -> None:
    """Write a value to the buffer from `first` on, or add it there."""
    place = part(buffer, first, size)
    if adds:
        for i in range(size):
            place[i] += value[i]
    else:
        for i in range(size):
            place[i] = value[i]
