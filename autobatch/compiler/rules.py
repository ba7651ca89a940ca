"""Define lowering rules, which express ops as loops and products.

A rule returns None, or the reason why it does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from autobatch.compiler.lowered import Lowering
from autobatch.compiler.statement import Combine, EdgeCount, Index, Operand, Position, Reason
from autobatch.compiler.view import View, steps
from autobatch.ir.program import NODE, SHARED, Attribute, Constant, Instruction, Weight, int_limit
from autobatch.ops.define import MOST_INTS, Shape
from autobatch.ops.expression import COMPARISONS, Call, Expression, Number, Read, call

FEW_IDS = 8  # the most rows that one op may look up; an op with more is interpreted

POWERS: dict[float, Callable[[Expression], Expression]] = {
    2.0: lambda x: x * x,
    1.0: lambda x: x,
    0.5: lambda x: call("sqrt", x),
    -1.0: lambda x: 1.0 / x,
    -0.5: lambda x: 1.0 / call("sqrt", x + 0.0),  # the sum turns -0 into 0, whose result is +infinity
}

Rule = Callable[[Lowering, int, Instruction], "Reason | None"]


def lower_elementwise(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower an element-wise op to one expression for every element."""
    shape, scalar = low.shape(index), source.op.scalar
    assert scalar is not None, "only element-wise ops have this rule"
    compares_data = source.op.name in COMPARISONS and any(_is_data(low, arg) for arg in source.args)
    if compares_data and max(_magnitude(low, arg) for arg in source.args) >= MOST_INTS:
        return Reason.LARGE_INTS
    args = [low.operand(arg, shape) for arg in source.args]
    bound = _bind(scalar, args, [_is_int(low, arg) for arg in source.args])
    match bound:
        case Call("power", (base, Number(exponent))) if exponent in POWERS:
            bound = POWERS[exponent](base)
    low.loop(low.domain(index), bound, low.whole(index))
    return None


def lower_product(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower rows times a shared matrix to a product, and a product with a matrix of the node to loops."""
    product = low.product_of(index)
    shape, domain = low.shape(index), low.domain(index)
    if product is not None:
        if source.op.name == "matmul":
            low.product(domain, [product], index)
        else:
            made = low.new(shape, domain)
            low.product(domain, [product], made.value)
            low.loop(domain, Operand(made) + low.operand(source.args[2], shape), low.whole(index))
        return None
    if source.op.name == "affine":
        return Reason.WEIGHT_NOT_SHARED
    x, y = source.args
    if SHARED in (low.domain(x), low.domain(y)) and len(low.shape(x)) == len(low.shape(y)) == 2:
        return Reason.LEFT_TO_LIBRARY
    x_shape, y_shape = low.shape(x), low.shape(y)
    rows, columns, inner = x_shape[:-1], y_shape[1:], x_shape[-1:]
    axes: Shape = (*rows, *inner, *columns)  # columns last: they are contiguous
    summed = len(rows)
    left, right = low.views[x], low.views[y]
    by_row = Operand(left._replace(shape=axes, strides=(*left.strides, *(0 for _ in columns))))
    by_column = Operand(right._replace(shape=axes, strides=(*(0 for _ in rows), *right.strides)))
    low.reduce(domain, by_row * by_column, axes, (summed,), "sum", target=index)
    return None


def lower_dot(low: Lowering, index: int, source: Instruction) -> None:
    """Lower to a sum of products of elements."""
    shape = low.shape(source.args[0])
    x, y = (low.operand(arg, shape) for arg in source.args)
    low.reduce(low.domain(index), x * y, shape, (0,), "sum", target=index)


def lower_outer(low: Lowering, index: int, source: Instruction) -> None:
    """Lower to products of every element of one argument with every element of the other."""
    shape = low.shape(index)
    x, y = (low.views[arg] for arg in source.args)
    by_row = Operand(x._replace(shape=shape, strides=(*x.strides, 0)))
    by_column = Operand(y._replace(shape=shape, strides=(0, *y.strides)))
    low.loop(low.domain(index), by_row * by_column, low.whole(index))


def lower_reduction(low: Lowering, index: int, source: Instruction) -> None:
    """Lower to a sum or a maximum along axes."""
    (x,) = source.args
    shape = low.shape(x)
    combine: Combine = "sum" if source.op.name == "sum" else "max"
    axes = _axes(shape, source.static["axis"])
    low.reduce(low.domain(index), low.operand(x, shape), shape, axes, combine, target=index)


def lower_argmax(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower to the smallest position of an element that is NaN or equals the peak, as a maximum of negated positions.

    Other elements count as the last position.
    """
    (x,) = source.args
    if _is_data(low, x):
        return Reason.LARGE_INTS
    view, size, domain = low.views[x], math.prod(low.shape(x)), low.domain(index)
    if len(view.shape) > 1 and (source.static["axis"] is not None or not view.is_contiguous):
        return Reason.NOT_IN_LINE
    line = Operand(View(view.value, view.offset, (size,), view.strides if len(view.shape) == 1 else (1,)))
    peak = _broadcast(low.reduce(domain, line, (size,), (0,), "max"), (size,))
    here = -Position()
    first = call("select", call("not_equal", line, line), here, 1.0 - size)
    first = call("select", call("equal", line, peak), here, first)
    found = low.reduce(domain, first, (size,), (0,), "max")
    low.loop(domain, -Operand(found._replace(shape=(), strides=())), low.whole(index))
    return None


def lower_softmax(low: Lowering, index: int, source: Instruction) -> None:
    """Lower to exp(x - peak) / sum(exp(x - peak)), or its logarithm, with the largest element as the peak."""
    shape, domain = low.shape(index), low.domain(index)
    axes = _axes(shape, source.static["axis"])
    x = low.operand(source.args[0], shape)
    peak = _broadcast(low.reduce(domain, x, shape, axes, "max"), shape)
    if source.op.name == "softmax":
        power = Operand(low.loop(domain, call("exp", x - peak), low.new(shape, domain)))
        total = _broadcast(low.reduce(domain, power, shape, axes, "sum"), shape)
        low.loop(domain, power / total, low.whole(index))
    else:
        sums = low.reduce(domain, call("exp", x - peak), shape, axes, "sum")
        log_sum = _broadcast(low.loop(domain, call("log", Operand(sums)), low.new(sums.shape, domain)), shape)
        low.loop(domain, x - peak - log_sum, low.whole(index))


def lower_layer_norm(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower to the mean, its correction, the variance, and one pass with these.

    The correction is the mean of x - mean, which is not zero because of rounding.
    """
    shape, domain = low.shape(index), low.domain(index)
    axes, size, eps = (len(shape) - 1,), float(shape[-1]), float(source.static["eps"])
    x, gain, bias = (low.operand(arg, shape) for arg in source.args)
    for _ in range(2):
        total = low.reduce(domain, x, shape, axes, "sum")
        mean = _broadcast(low.loop(domain, Operand(total) / size, low.new(total.shape, domain)), shape)
        x = Operand(low.loop(domain, x - mean, low.new(shape, domain)))
    squares = low.reduce(domain, x * x, shape, axes, "sum")
    deviation = call("sqrt", Operand(squares) / size + eps)
    scale = _broadcast(low.loop(domain, 1.0 / deviation, low.new(squares.shape, domain)), shape)
    low.loop(domain, x * scale * gain + bias, low.whole(index))
    return None


def lower_lookup(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower to copies of rows of a shared table, or of a value of the node, chosen by ints of the node."""
    table, ids = source.args
    view = low.views[table]
    is_shared = low.domain(table) == SHARED
    if is_shared and not isinstance(low.vars[view.value].source, Weight):
        return Reason.NO_TABLE
    is_whole = view.is_whole(low.lowered.sizes[view.value])
    if is_shared and (not is_whole or low.shape(table)[0] != low.vars[view.value].shape[0]):
        return Reason.PART_OF_TABLE
    if low.domain(ids) != low.domain(index) or not _is_int(low, ids) or math.prod(low.shape(ids)) > FEW_IDS:
        return Reason.NO_IDS
    if not math.prod(low.shape(ids)):
        # The value is empty, but each value needs a statement that defines it.
        low.loop(low.domain(index), Number(0.0), low.whole(index))
        return None
    row_shape = low.shape(table)[1:]
    row = math.prod(row_shape)
    id_view = low.views[ids]
    rows = View(view.value, view.offset, row_shape, view.strides[1:])
    for number in range(math.prod(low.shape(ids))):
        at = _int_at(View(id_view.value, _element(id_view, number), (), ()), row_shape)
        target = View(index, number * row, row_shape, steps(row_shape))
        low.loop(low.domain(index), Operand(rows, Index(at, view.strides[0])), target)
    return None


def lower_cross_entropy(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower to log(sum(exp(x - peak))) - (x[label] - peak), with the largest element as the peak."""
    logits, label = source.args
    shape, domain = low.shape(logits), low.domain(index)
    if len(shape) != 1:
        return Reason.NO_VECTOR
    if low.domain(logits) == SHARED:
        return Reason.SHARED_LOGITS
    number = low.number(label)
    if number is None and not _is_int(low, label):
        return Reason.NO_LABEL
    x, view = low.operand(logits, shape), low.views[logits]
    peak = low.reduce(domain, x, shape, (0,), "max")
    sums = low.reduce(domain, call("exp", x - _broadcast(peak, shape)), shape, (0,), "sum")
    one = View(view.value, view.offset, (), ())
    if number is None:
        at = _int_at(View(low.views[label].value, low.views[label].offset, (), ()), ())
        chosen = Operand(one, Index(at, view.strides[0]))
    else:
        chosen = Operand(one._replace(offset=view.offset + int(number) * view.strides[0]))
    total, largest = (Operand(v._replace(shape=(), strides=())) for v in (sums, peak))
    low.loop(domain, call("log", total) - (chosen - largest), low.whole(index))
    return None


def lower_pick(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower to the sum of the elements, with 0 in place of those that are not at the label."""
    x, label = source.args
    shape, domain = low.shape(x), low.domain(index)
    if len(shape) != 1:
        return Reason.NO_VECTOR
    if not _is_int(low, label) or low.domain(label) != domain:
        return Reason.NO_LABEL
    is_there = call("equal", Position(is_int=True), _int_at(low.views[label], shape))
    is_ignored = call("equal", _broadcast(low.views[label], shape), float(source.static["ignore"]))
    chosen = call("select", is_ignored, 0.0, call("select", is_there, low.operand(x, shape), 0.0))
    low.reduce(domain, chosen, shape, (0,), "sum", target=index)
    return None


def lower_one_hot(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower to 1 at the element whose number is the label, and 0 elsewhere."""
    (label,) = source.args
    if low.shape(label) != () or not _is_int(low, label):
        return Reason.NO_INT
    at, here = _int_at(low.views[label], low.shape(index)), Position(is_int=True)
    low.loop(low.domain(index), call("select", call("equal", here, at), 1.0, 0.0), low.whole(index))
    return None


def lower_join(low: Lowering, index: int, source: Instruction) -> None:
    """Lower to copies of the parts that are not made in place, and zeros where there is no part."""
    shape, domain = low.shape(index), low.domain(index)
    if source.op.name == "assemble":
        indices = [i if isinstance(i, tuple) else (i,) for i in source.static["indices"]]
    else:
        indices = _concat_indices(low, index, source)
    parts = [low.part_of(index, where) for where in indices]
    made = [part for arg, part in zip(source.args, parts, strict=True) if low.lies_in(arg, part)]
    if sum(part.size for part in parts) < math.prod(shape):
        # Before the copies, which overwrite zeros; parts made in place may be there already, so they are left out.
        for gap in _between(low.whole(index), made):
            low.loop(domain, Number(0.0), gap)
    for arg, part in zip(source.args, parts, strict=True):
        if part not in made:
            low.loop(domain, low.operand(arg, part.shape), part)


def _between(whole: View, parts: list[View]) -> Iterator[View]:
    """Yield the ranges of a value that its contiguous parts do not cover."""
    if not parts:
        yield whole
        return
    end = 0
    for start, next_end in [*sorted((part.offset, part.offset + part.size) for part in parts), (whole.size, 0)]:
        if end < start:
            yield View(whole.value, end, (start - end,), (1,))
        end = next_end


def lower_spread(low: Lowering, index: int, source: Instruction) -> None:
    """Lower to a copy of a node's value for each of its edges."""
    shape = low.shape(index)
    low.loop(low.domain(index), low.operand(source.args[0], shape), low.whole(index))


def lower_sum_n(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower to a sum or a maximum over the edges of a node; the maximum over no edges is 0."""
    (x,) = source.args
    group, shape = low.domain(x), low.shape(index)
    if group < 0:
        return Reason.NOT_PER_EDGE
    if source.op.name == "sum_n":
        low.loop(group, low.operand(x, shape), low.whole(index), "sum")
    else:
        peak = Operand(low.loop(group, low.operand(x, shape), low.new(shape, NODE), "max"))
        low.loop(NODE, call("select", call("greater", EdgeCount(group), 0.0), peak, 0.0), low.whole(index))
    return None


def lower_count_n(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower to the number of edges of a node."""
    group = low.domain(source.args[0])
    if group < 0:
        return Reason.NOT_PER_EDGE
    low.loop(NODE, EdgeCount(group), low.whole(index))
    return None


def lower_softmax_n(low: Lowering, index: int, source: Instruction) -> Reason | None:
    """Lower to a softmax over the edges of a node."""
    (arg,) = source.args
    group, shape = low.domain(arg), low.shape(index)
    if group < 0:
        return Reason.NOT_PER_EDGE
    x = low.operand(arg, shape)
    peak = Operand(low.loop(group, x, low.new(shape, NODE), "max"))
    power = Operand(low.loop(group, call("exp", x - peak), low.new(shape, group)))
    total = Operand(low.loop(group, power, low.new(shape, NODE), "sum"))
    low.loop(group, power / total, low.whole(index))
    return None


RULES: dict[str, Rule] = {
    "affine": lower_product,
    "matmul": lower_product,
    "dot": lower_dot,
    "outer": lower_outer,
    "sum": lower_reduction,
    "max": lower_reduction,
    "argmax": lower_argmax,
    "softmax": lower_softmax,
    "log_softmax": lower_softmax,
    "layer_norm": lower_layer_norm,
    "lookup": lower_lookup,
    "cross_entropy": lower_cross_entropy,
    "one_hot": lower_one_hot,
    "pick": lower_pick,
    "concat": lower_join,
    "assemble": lower_join,
    "spread": lower_spread,
    "sum_n": lower_sum_n,
    "max_n": lower_sum_n,
    "count_n": lower_count_n,
    "softmax_n": lower_softmax_n,
}


def _axes(shape: Shape, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(len(shape)))
    return tuple(a % len(shape) for a in ((axis,) if isinstance(axis, int) else axis))


def _broadcast(view: View, shape: Shape) -> Operand:
    return Operand(view.broadcast(shape))


def _int_at(view: View, shape: Shape) -> Operand:
    """Return an operand that reads the same int of the row at every index of a shape."""
    return Operand(view.broadcast(shape), is_int=True)


def _bind(tree: Expression, args: Sequence[Expression], are_ints: Sequence[bool]) -> Expression:
    """Replace the reads in the expression of an op by its arguments; comparisons of two ints read them as ints."""
    match tree:
        case Read(number):
            return args[number]
        # As floats, large ints would be rounded, and different ones might compare as equal.
        case Call(name, (Read(x), Read(y))) if name in COMPARISONS and are_ints[x] and are_ints[y]:
            return Call(
                name, tuple(replace(arg, is_int=True) for arg in (args[x], args[y]) if isinstance(arg, Operand))
            )
        case Call(name, inner):
            return Call(name, tuple(_bind(arg, args, are_ints) for arg in inner))
    return tree


def _is_int(low: Lowering, index: int) -> bool:
    """Return whether a value holds ints: data of the node, ints that a cell computed, or a view of these."""
    return int_limit(low.vars, index) > 0 or _is_data(low, index)


def _is_data(low: Lowering, index: int) -> bool:
    """Return whether a value holds ints among the data of the node, or is a view of these."""
    source = low.vars[low.views[index].value].source
    return isinstance(source, Attribute) and not source.is_float


def _magnitude(low: Lowering, index: int) -> float:
    """Return the largest finite magnitude in a constant; 0 for other values."""
    source = low.vars[low.views[index].value].source
    if not isinstance(source, Constant):
        return 0.0
    numbers = np.abs(np.asarray(source.data, np.float64))
    return float(numbers.max(initial=0.0, where=np.isfinite(numbers)))


def _element(view: View, number: int) -> int:
    """Return the position of element `number` of a view within the value that is viewed."""
    offset = view.offset
    for size, stride in zip(view.shape[::-1], view.strides[::-1], strict=True):
        number, at = divmod(number, size)
        offset += at * stride
    return offset


def _concat_indices(low: Lowering, index: int, source: Instruction) -> list[tuple[slice, ...]]:
    axis = source.static["axis"] % len(low.shape(index))
    ends, indices = 0, []
    for part in source.args:
        size = low.shape(part)[axis]
        indices.append((*(slice(None),) * axis, slice(ends, ends + size)))
        ends += size
    return indices
