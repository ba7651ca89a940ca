"""Algebraic identities that simplify instructions with bit-identical results, also for NaN, infinities and -0.

In IEEE arithmetic x * 1, x / 1, x - 0, x + (-0) and x ** 1 are x; -(-x) is x; x + (-y) is x - y, x - (-y) is x + y and
(-x) * (-y) is x * y. x + 0 is x unless x is -0, so it is simplified only if x is never -0: exponentials, sigmoids,
squares, sums with a number other than -0. x * 0 and x - x are kept, since x may be NaN. x / c does not become x * (1 /
c), even if c is a power of two: c may be a width, and models that differ in width alone share compiled kernels. For ops
that move elements: a view of a view is one view; a slice of a join that lies in one part is a slice of that part; a
join of neighbouring slices of one value is a slice of it.

A rule returns the number of a value that equals the result, an instruction that computes the same, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from autobatch.ir.program import Constant, Instruction, Var
from autobatch.ops import elementwise as on_elements
from autobatch.ops.define import Op, Shape
from autobatch.ops.operators import OPS
from autobatch.ops.shaping import assemble, slice_


class Values(Protocol):
    """The access of rules to a growing program."""

    @property
    def vars(self) -> Sequence[Var]:
        """Return the values so far."""

    def inner(self, index: int, op: Op) -> Instruction | None:
        """Return the instruction that computes a value, if it applies this op and rules may look into it."""

    def constant(self, data: Any) -> int:
        """Return the number of a constant."""

    def view(self, op: Op, value: int, /, **static: Any) -> int:
        """Return the number of a view of a value."""

    @property
    def drops(self) -> bool:
        """Return whether a rule may leave an argument without any reader."""

    @property
    def differentiated(self) -> bool:
        """Return whether the gradients are derived already, so that `stop_gradient` has no further effect."""


Found: TypeAlias = int | Instruction | None
Rule: TypeAlias = Callable[[Values, Var, Instruction], Found]


class Stretch(NamedTuple):
    """Elements start, start + step, ... of an axis; `length` of them, or -1 if the index removes the axis."""

    start: int
    step: int
    length: int


def number_at(values: Values, index: int) -> float | None:
    """Return the number that all elements of a constant equal; None for other values."""
    source = values.vars[index].source
    if not isinstance(source, Constant):
        return None
    data = np.asarray(source.data)
    if not data.size:
        return None
    first = float(data.flat[0])
    # == takes 0 and -0 for equal, but they are different numbers here.
    same = bool((data == first).all()) and bool((np.signbit(data) == np.signbit(data.flat[0])).all())
    return first if same else None


def is_negative_zero(number: float) -> bool:
    """Return whether a number is -0."""
    return number == 0.0 and math.copysign(1.0, number) < 0


def never_negative_zero(values: Values, index: int) -> bool:
    """Return whether no element of a value can be -0, for any arguments."""
    source = values.vars[index].source
    if not isinstance(source, Instruction):
        number = number_at(values, index)
        return number is not None and not is_negative_zero(number)
    if source.op in (on_elements.add, on_elements.sub):
        # A sum is -0 only if both terms are -0, and a difference only if it is -0 minus 0.
        numbers = [number_at(values, arg) for arg in source.args]
        if source.op is on_elements.add:
            return any(number is not None and not is_negative_zero(number) for number in numbers)
        left, right = numbers
        return (left is not None and not is_negative_zero(left)) or (right is not None and right != 0)
    if source.op is on_elements.mul:
        return source.args[0] == source.args[1]
    return source.op.name in NEVER_NEGATIVE_ZERO


def _add(values: Values, var: Var, source: Instruction) -> Found:
    for x, y in (source.args, source.args[::-1]):
        number = number_at(values, y)
        if number == 0 and (is_negative_zero(number) or never_negative_zero(values, x)):
            return x
    for x, y in (source.args, source.args[::-1]):
        if (negated := values.inner(y, on_elements.neg)) is not None:
            return Instruction(on_elements.sub, (x, *negated.args))
    return None


def _sub(values: Values, var: Var, source: Instruction) -> Found:
    x, y = source.args
    number = number_at(values, y)
    if number == 0 and not is_negative_zero(number):
        return x
    negated = values.inner(y, on_elements.neg)
    return None if negated is None else Instruction(on_elements.add, (x, *negated.args))


def _mul(values: Values, var: Var, source: Instruction) -> Found:
    for x, y in (source.args, source.args[::-1]):
        if number_at(values, y) == 1:
            return x
    left, right = (values.inner(arg, on_elements.neg) for arg in source.args)
    return None if left is None or right is None else Instruction(on_elements.mul, (*left.args, *right.args))


def _div(values: Values, var: Var, source: Instruction) -> Found:
    x, y = source.args
    return x if number_at(values, y) == 1 else None


def _neg(values: Values, var: Var, source: Instruction) -> Found:
    inner = values.inner(source.args[0], on_elements.neg)
    return None if inner is None else inner.args[0]


def _pow(values: Values, var: Var, source: Instruction) -> Found:
    return source.args[0] if number_at(values, source.args[1]) == 1 else None


def _where(values: Values, var: Var, source: Instruction) -> Found:
    condition, x, y = source.args
    if not values.drops:
        return None
    number = number_at(values, condition)
    if number is not None:
        return x if number != 0 else y
    return x if x == y else None


def _reshape(values: Values, var: Var, source: Instruction) -> Found:
    (x,) = source.args
    if values.vars[x].shape == var.shape:
        return x
    inner = values.inner(x, source.op)
    return None if inner is None else Instruction(source.op, inner.args, source.static)


_expand = _reshape  # a chain of expansions, like one of reshapes, equals its last one


def _transpose(values: Values, var: Var, source: Instruction) -> Found:
    (x,) = source.args
    order = _order(values, x, source)
    if order == tuple(range(len(order))):
        return x
    inner = values.inner(x, source.op)
    if inner is None:
        return None
    first = _order(values, inner.args[0], inner)
    # Axis k of the result is axis order[k] of the inner result, which is axis first[order[k]] of its argument.
    return Instruction(source.op, inner.args, {"axes": tuple(first[axis] for axis in order)})


def _order(values: Values, x: int, source: Instruction) -> tuple[int, ...]:
    n_axes, axes = len(values.vars[x].shape), source.static["axes"]
    return tuple(range(n_axes))[::-1] if axes is None else tuple(axis % n_axes for axis in axes)


def _stop_gradient(values: Values, var: Var, source: Instruction) -> Found:
    (x,) = source.args
    inner = values.inner(x, source.op)
    return x if values.differentiated or inner is not None else None


def _slice(values: Values, var: Var, source: Instruction) -> Found:
    (x,) = source.args
    shape = values.vars[x].shape
    here = stretches(shape, source.static["index"])
    if here is None:
        return None
    if _is_whole(here, shape):
        return x
    inner = values.inner(x, slice_)
    if inner is not None:
        before = stretches(values.vars[inner.args[0]].shape, inner.static["index"])
        return None if before is None else Instruction(slice_, inner.args, {"index": _to_index(_after(before, here))})
    joined = values.inner(x, OPS["concat"])
    if joined is not None and values.drops:
        return _slice_of_concat(values, joined, here, var.domain)
    whole = values.inner(x, assemble)
    if whole is not None and values.drops:
        for part, index in zip(whole.args, whole.static["indices"], strict=True):
            if stretches(shape, index) == here and values.vars[part].shape == var.shape:
                return part
    return None


def _slice_of_concat(values: Values, joined: Instruction, here: list[Stretch], domain: int) -> Found:
    """Return the slice of a part that equals a slice of a join, if the part contains it and has the same domain."""
    axis = joined.static["axis"] % len(here)
    start, step, length = here[axis]
    # An int has length -1 and takes one element. With a negative step, `start` is the largest index. An empty slice is
    # not rewritten.
    first, last = sorted((start, start + step * (max(length, 1) - 1)))
    begin = 0
    for part in joined.args:
        shape = values.vars[part].shape
        if begin <= first and last < begin + shape[axis] and length and values.vars[part].domain == domain:
            moved = [*here[:axis], Stretch(start - begin, step, length), *here[axis + 1 :]]
            return Instruction(slice_, (part,), {"index": _to_index(moved)})
        begin += shape[axis]
    return None


def _concat(values: Values, var: Var, source: Instruction) -> Found:
    if len(source.args) == 1:
        return source.args[0]
    axis = source.static["axis"] % len(var.shape)
    chosen = [arg for arg in source.args if values.vars[arg].size] if values.drops else []
    chosen = chosen or list(source.args)
    args = chosen[:1]
    for arg in chosen[1:]:
        joined = _neighbours(values, args[-1], arg, axis)
        if joined is None:
            args.append(arg)
        else:
            args[-1] = joined
    if len(args) == len(source.args):
        return None
    return args[0] if len(args) == 1 else Instruction(source.op, tuple(args), source.static)


def _neighbours(values: Values, left: int, right: int, axis: int) -> int | None:
    """Return the slice that covers two slices of one value, if they are neighbours along an axis."""
    sources = values.inner(left, slice_), values.inner(right, slice_)
    if sources[0] is None or sources[1] is None or sources[0].args != sources[1].args:
        return None
    (whole,) = sources[0].args
    shape = values.vars[whole].shape
    one, other = (stretches(shape, source.static["index"]) for source in sources if source is not None)
    # An int index removes an axis, so `axis`, which counts the axes of the slices, could be a different axis of
    # `whole`.
    if one is None or other is None or any(s.length < 0 for s in (*one, *other)):
        return None
    start, step, length = one[axis]
    if one[:axis] + one[axis + 1 :] != other[:axis] + other[axis + 1 :] or not length:
        return None
    if step != 1 or other[axis].step != 1 or other[axis].start != start + length:
        return None
    both = [*one[:axis], Stretch(start, 1, length + other[axis].length), *one[axis + 1 :]]
    return values.view(slice_, whole, index=_to_index(both))


def _assemble(values: Values, var: Var, source: Instruction) -> Found:
    """Return the value whose slices an assembly puts back in their places. They must cover it, because gaps are
    zeros.
    """
    # The parts of an assembly are disjoint, so they cover it if they have as many elements.
    if sum(math.prod(values.vars[part].shape) for part in source.args) < math.prod(var.shape) or not source.args:
        return None
    wholes = set()
    for part, index in zip(source.args, source.static["indices"], strict=True):
        here = stretches(var.shape, index)
        if here is not None and _is_whole(here, var.shape):
            wholes.add(part)
            continue
        inner = values.inner(part, slice_)
        if inner is None or values.vars[inner.args[0]].shape != var.shape or here is None:
            return None
        if stretches(var.shape, inner.static["index"]) != here:
            return None
        wholes.add(inner.args[0])
    return wholes.pop() if len(wholes) == 1 else None


def stretches(shape: Shape, index: Any) -> list[Stretch] | None:
    """Return a basic index as a stretch of each axis; None if it adds axes.

    >>> stretches((4, 6), (..., slice(2, 4)))
    [Stretch(start=0, step=1, length=4), Stretch(start=2, step=1, length=2)]
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is None for part in parts):
        return None
    given = sum(part is not Ellipsis for part in parts)
    if not any(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    at = next(k for k, part in enumerate(parts) if part is Ellipsis)
    parts[at : at + 1] = [slice(None)] * (len(shape) - given)
    found = []
    for part, size in zip(parts, shape, strict=True):
        if isinstance(part, slice):
            chosen = range(*part.indices(size))
            # Normalised: indices of the same elements give equal stretches.
            step = chosen.step if len(chosen) > 1 else 1
            found.append(Stretch(chosen.start if len(chosen) else 0, step, len(chosen)))
        else:
            found.append(Stretch(int(part) % size, 1, -1))
    return found


def _is_whole(found: Sequence[Stretch], shape: Shape) -> bool:
    return all(stretch == Stretch(0, 1, size) for stretch, size in zip(found, shape, strict=True))


def _after(before: Sequence[Stretch], here: Sequence[Stretch]) -> list[Stretch]:
    """Return the stretches of a slice of a slice."""
    later = iter(here)
    found = []
    for stretch in before:
        # The first slice removed this axis, so the second has no index for it.
        if stretch.length < 0:
            found.append(stretch)
            continue
        start, step, length = next(later)
        found.append(Stretch(stretch.start + stretch.step * start, stretch.step * step if length > 1 else 1, length))
    return found


def _to_index(found: Sequence[Stretch]) -> tuple[Any, ...]:
    index: list[Any] = []
    for start, step, length in found:
        stop = start + step * length
        # With a negative step the stop may be below 0, where a slice would count from the end.
        index.append(start if length < 0 else slice(start, None if stop < 0 else stop, step))
    return tuple(index)


RULES: dict[Op, Rule] = {
    on_elements.add: _add,
    on_elements.sub: _sub,
    on_elements.mul: _mul,
    on_elements.div: _div,
    on_elements.neg: _neg,
    on_elements.pow: _pow,
    on_elements.where: _where,
    on_elements.stop_gradient: _stop_gradient,
    OPS["reshape"]: _reshape,
    OPS["expand"]: _expand,
    OPS["transpose"]: _transpose,
    OPS["concat"]: _concat,
    slice_: _slice,
    assemble: _assemble,
}
NEVER_NEGATIVE_ZERO = {
    "exp", "sigmoid", "softplus", "ndtr", "squared_error", "softmax", "softmax_n", "one_hot", "count_n",
    "less", "less_equal", "greater", "greater_equal", "equal", "not_equal",
}  # fmt: skip
COMMUTATIVE = (on_elements.add, on_elements.mul, on_elements.equal, on_elements.not_equal, on_elements.squared_error)
