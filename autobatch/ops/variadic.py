"""Variadic ops: sums, means, maxima and attention over any number of values, the edges of a node.

Inside a cell a list argument is a *variadic port*: an array with one row per edge, in the order of the nodes of
the batch, and `Segments`, which assigns edges to nodes. The primitives reduce edges to nodes (`sum_n`, `max_n`), spread
nodes to edges, or work along the edges of each node (softmax). The other functions are built from them. Applied to a
plain sequence, the same functions work on its stacked values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np

from autobatch.arguments import refusal, show, to_plain
from autobatch.errors import ShapeError
from autobatch.ops import reduction
from autobatch.ops.define import (
    A_LIST,
    Array,
    Op,
    Shape,
    Shapes,
    Value,
    Values,
    composite,
    define_op,
    known_shape,
    of_values,
    shape_of,
    shortcut,
)
from autobatch.ops.elementwise import add, equal, exp, log, mul, where
from autobatch.ops.indexing import sum_runs
from autobatch.ops.operators import Symbol
from autobatch.ops.ports import VariadicPort, as_port
from autobatch.ops.reduction import softmax
from autobatch.ops.shaping import again, concat, reshape


class Segments:
    """The edges of each row: row r has the edges ptr[r]:ptr[r + 1] (possibly none).

    They are known on the host, so reading them never waits for a device.

    Args:
        ptr: a NumPy array.
        put: copies a NumPy array to the device.

    Attributes:
        lengths: edges per row, a NumPy array like `ptr`.
        n_filled: the number of rows that have edges.
    """

    def __init__(self, ptr: Array, put: Callable[[Array], Array] = lambda array: array) -> None:
        self.ptr, self.put = ptr, put
        self.lengths = np.diff(ptr)
        self.n_filled = int(np.count_nonzero(self.lengths))

    @cached_property
    def counts(self) -> Array:
        """Return the number of edges of each row, on the device."""
        return self.put(self.lengths)

    @cached_property
    def rows(self) -> Array:
        """Return the row of each edge."""
        return self.put(np.repeat(np.arange(self.lengths.size), self.lengths))

    @cached_property
    def places(self) -> Array:
        """Return the position of each edge among those of its row."""
        return self.put(np.arange(self.ptr[-1]) - np.repeat(self.ptr[:-1], self.lengths))

    @cached_property
    def filled(self) -> Array:
        """Return the rows that have edges."""
        return self.put(np.flatnonzero(self.lengths))

    @cached_property
    def starts(self) -> Array:
        """Return the first edge of each row that has edges."""
        # `reduceat` would give an empty row the first edge of the next row, so empty rows are left out.
        return self.put(self.ptr[:-1][self.lengths > 0])


def segment_sum(xp: Any, x: Array, out: Array, segments: Segments) -> None:
    """Sum the edges of each row; a row without edges gets zero."""
    if segments.n_filled < len(out):
        out[...] = 0
    if segments.n_filled:
        out[segments.filled] = sum_runs(xp, x, segments.starts)


def segment_max(xp: Any, x: Array, out: Array, segments: Segments) -> None:
    """Find the maximum over the edges of each row, element by element; a row without edges gets zero."""
    out[...] = 0
    if not segments.n_filled:
        return
    try:
        out[segments.filled] = xp.maximum.reduceat(x, segments.starts, axis=0)
    except NotImplementedError:  # CuPy has reduceat for add only
        out[segments.filled] = -xp.inf
        xp.maximum.at(out, segments.rows, x)


def _spread(xp: Any, x: Array, like: Array, out: Array, segments: Segments) -> None:
    out[...] = x if isinstance(x, (int, float)) or x.shape[0] == 1 else x[segments.rows]


def segment_softmax(xp: Any, x: Array, out: Array, segments: Segments) -> None:
    """Compute the softmax over the edges of each row, element by element."""
    peak = xp.empty((len(segments.counts), *x.shape[1:]), x.dtype)
    segment_max(xp, x, peak, segments)
    xp.exp(xp.subtract(x, peak[segments.rows], out=out), out=out)
    segment_sum(xp, out, peak, segments)  # the sums overwrite the peaks
    xp.true_divide(out, peak[segments.rows], out=out)


def _count_n(xp: Any, x: Array, out: Array, segments: Segments) -> None:
    out[...] = segments.counts


def _max_n_pullback(g: Any, out: Any, x: Any) -> tuple[Any]:
    hit = equal(x, _spread_edges(out, x))
    count = _spread_edges(_sum_edges(hit), x)  # divide at edges: the count of a row without edges is zero
    return (where(hit, _spread_edges(g, x), 0.0) / count,)


_spread_edges = define_op(
    "spread", shape=lambda x, like: x, kernel=_spread, segments="spread", like=1,
    pullback=lambda g, out, x, like: (_sum_edges(g), None),
)  # fmt: skip
_sum_edges: Op = define_op(
    "sum_n", shape=lambda x: x, kernel=segment_sum, segments="reduce",
    pullback=lambda g, out, x: (_spread_edges(g, x),),
)  # fmt: skip
_max_edges = define_op("max_n", shape=lambda x: x, kernel=segment_max, segments="reduce", pullback=_max_n_pullback)
_count_edges = define_op("count_n", shape=lambda x: (), kernel=_count_n, segments="reduce", like=0)
_softmax_edges = define_op(
    "softmax_n", shape=lambda x: x, kernel=segment_softmax, segments="edge",
    pullback=lambda g, out, x: (out * (g - _spread_edges(_sum_edges(g * out), x)),),
)  # fmt: skip


def _over(values: Any, variadic: Any, stacked: Any) -> Any:
    """Apply a reduction to a variadic port or a non-empty sequence, part by part to tuples."""
    values = as_port(values)
    if isinstance(values, VariadicPort):
        return _map(variadic, values.values(None))
    if isinstance(values[0], tuple):
        if {len(v) if isinstance(v, tuple) else -1 for v in values} != {len(values[0])}:
            raise ShapeError("the elements of a list must be values, or tuples of one length, got a mixture.")
        return tuple(_over(part, variadic, stacked) for part in zip(*values, strict=True))
    check_equal_shapes(values)
    return stacked(list(values))


def _reduce(values: Any, shape: Any, variadic: Any, over: Any) -> Any:
    """Apply a reduction to a port, or `over` to a sequence; return zeros of the given shape if it is empty."""
    values = as_port(values)
    is_list = not isinstance(values, VariadicPort)
    if is_list and not values:
        return _zeros(element_shape(shape))
    element = values[0] if is_list else values.values(element_shape(shape))
    if shape is not None and (found := _map(_known_shape, element)) != element_shape(shape):
        raise ShapeError(f"shape must be the shape of one element, {found}, got {shape!r}.")
    return over(values) if is_list else _map(variadic, element)


def element_shape(shape: Any) -> Any:
    """Return the argument `shape=` as a shape, as a tuple of the shapes of a tuple's parts, or as None."""
    if shape is None:
        return None
    shape = to_plain(shape)
    if _is_size(shape):
        return (int(shape),)
    if not isinstance(shape, (tuple, list)):
        raise ShapeError(f"shape must be the sizes of one element, got {show(shape)}; write shape=(3,), for example.")
    if all(map(_is_size, shape)):
        return tuple(map(int, shape))
    return tuple(map(element_shape, shape))


def _is_size(x: Any) -> bool:
    return isinstance(x, (int, np.integer))


def _zeros(shape: Any) -> Any:
    if shape is None:
        raise ShapeError(
            "the list is empty, so the shape of the result is unknown; give the shape of one element, as in "
            "ab.sum_n(values, shape=(8,))."
        )
    if all(isinstance(s, int) for s in shape):
        return np.zeros(shape)  # float64: float32 zeros would round the results of a float64 model
    return tuple(_zeros(s) for s in shape)


def _map(function: Any, tree: Any) -> Any:
    return tuple(_map(function, t) for t in tree) if isinstance(tree, tuple) else function(tree)


def check_equal_shapes(values: Sequence[Any]) -> None:
    """Raise a ShapeError if the elements of a list differ in shape, or if a size is known only at run time."""
    shapes = {_known_shape(v) for v in values if not isinstance(v, tuple)}
    if len(shapes) > 1:
        raise ShapeError(f"the elements of a list must have one shape, got {' and '.join(map(str, sorted(shapes)))}.")


def _known_shape(x: Any) -> Shape:
    return known_shape(x, "a reduction of a list")


def _stack(values: list[Any]) -> Any:
    return concat([reshape(v, (1, *shape_of(v))) for v in values], axis=0)


def _add_up(parts: list[Any]) -> Any:
    """Sum values; return a single value as a new one, with a derivative of its own."""
    return reduce(add, parts) if len(parts) > 1 else again(parts[0])


@composite
def _sum_n(values: Any) -> Any:
    return _over(values, _sum_edges, _add_up)


@composite
def _mean_n(values: Any) -> Any:
    return _over(values, _mean_edges, lambda parts: reduction.mean(_stack(parts), axis=0))


@composite
def _max_n(values: Any) -> Any:
    return _over(values, _max_edges, lambda parts: reduction.max(_stack(parts), axis=0))


@composite
def _softmax_n(scores: Any) -> Any:
    scores = list(scores)
    check_equal_shapes(scores)
    weights = softmax(_stack(scores), axis=0)
    return tuple(weights[i] for i in range(len(scores)))


@composite
def _logsumexp_n(values: Any) -> Any:
    return _over(values, _logsumexp_edges, lambda parts: reduction.logsumexp(_stack(parts), axis=0))


@composite
def _dot_n(weights: Any, values: Any, shape: Any) -> Any:
    return sum_n(each(mul, weights, values), shape)


def _logsumexp_edges(x: Any) -> Any:
    peak = reduction.finite_peak(_max_edges(x))
    return log(_sum_edges(exp(x - _spread_edges(peak, x)))) + peak


def _mean_edges(x: Any) -> Any:
    count = _count_edges(x)
    return _sum_edges(x) / reshape(count + equal(count, 0.0), (1,) * x.ndim)  # the mean of no edges is 0 / 1


SUM_N = inspect.unwrap(_sum_n)  # rewriting may turn `x + y` of recorded values into it


@shortcut(_sum_n, A_LIST)
@of_values
def sum_n(values: Values, shape: Shapes = None) -> Value:
    """Sum any number of values, or of equal tuples of values, element by element.

    Args:
        values: values of one shape, or tuples of values; their number is not part of the type.
        shape: the shape of one element (a tuple of shapes for tuples); needed only if the list may be empty. The sum is
            then zero.

    Shapes: values of one shape; the result has the same shape.
    Gradient: the gradient of the sum, for each value.

    >>> ab.sum_n([np.ones(2), np.ones(2), np.ones(2)])
    array([3., 3.])
    """
    return _reduce(values, shape, _sum_edges, _sum_n)


@shortcut(_mean_n, A_LIST)
@of_values
def mean_n(values: Values, shape: Shapes = None) -> Value:
    """Average any number of values; zero if there are none (see `sum_n`).

    Shapes: values of one shape; the result has the same shape.
    Gradient: the gradient of the mean, divided by the number of values, for each value.

    >>> ab.mean_n([np.array([1.0, 2.0]), np.array([3.0, 6.0])])
    array([2., 4.])
    """
    return _reduce(values, shape, _mean_edges, _mean_n)


@shortcut(_max_n, A_LIST)
@of_values
def max_n(values: Values, shape: Shapes = None) -> Value:
    """Return the largest of any number of values, element by element; zero if there are none (see `sum_n`).

    Shapes: values of one shape; the result has the same shape.
    Gradient: for the largest value of each element; equal largest values share it evenly. Second derivatives are 0,
        also where the largest values are equal and they are undefined.

    >>> ab.max_n([np.array([1.0, 6.0]), np.array([3.0, 2.0])])
    array([3., 6.])
    """
    return _reduce(values, shape, _max_edges, _max_n)


def each(function: Callable[..., Any], *lists: Values) -> Value:
    """Apply a function to each element of a list, or to the elements at one position of several lists.

    Inside a cell that takes the lists as arguments, the result is a list of any length too, and the cell has one type
    for all lengths. There `[f(h) for h in children]` does the same, but it takes longer to trace, once per length.

    Args:
        function: takes one element of each list, and may read other values too. It returns a value or a tuple of
            values, and must have no side effects: in such a cell it is called once for all elements.
        lists: lists of equal length.

    Raises:
        ShapeError: the lists differ in length.

    Shapes: as for the function.
    Gradient: the gradient of the function, element by element.

    >>> [float(x) for x in ab.each(lambda x, y: x * y, [1.0, 2.0], [3.0, 4.0])]
    [3.0, 8.0]
    """
    if not callable(function):
        raise refusal("function of each", "a function", function)
    for values in lists:
        if not hasattr(values, "__iter__"):
            raise refusal("an argument of each after the function", "a list", values, ShapeError)
    lists = tuple(map(as_port, lists))
    for values in lists:
        if isinstance(values, VariadicPort):
            return values.each(function, lists)
    if len(set(map(len, lists))) > 1:
        raise ShapeError(
            f"the lists of ab.each must have one length, got lengths {' and '.join(str(len(x)) for x in lists)}."
        )
    return [function(*elements) for elements in zip(*lists, strict=True)]


@of_values
def softmax_n(scores: Values) -> Value:
    """Compute the softmax over the values of a list, element by element: a list of weights that sum to one.

    Shapes: any number of scores of one shape; the weights have the same shape.
    Gradient: as for `softmax`, across the list.

    >>> [float(w) for w in ab.softmax_n([0.0, 0.0])]
    [0.5, 0.5]
    """
    scores = as_port(scores)
    if isinstance(scores, VariadicPort):
        return scores.like(_map(_softmax_edges, scores.elements()))
    return list(_softmax_n(scores)) if scores else []


@of_values
def logsumexp_n(values: Values) -> Value:
    """Compute the logarithm of the sum of exponentials over one or more values, element by element.

    The largest value is subtracted first, so nothing overflows. An empty list raises a ShapeError, because the result
    would be minus infinity.

    Shapes: values of one shape; the result has the same shape.
    Gradient: the softmax over the values; nan where the result is infinite.

    >>> float(ab.logsumexp_n([1000.0, 1000.0]).round(4))
    1000.6931
    """
    values = as_port(values)
    if not isinstance(values, VariadicPort) and not values:
        raise ShapeError("logsumexp_n must be given at least one value, got none; the result would be minus infinity.")
    return _logsumexp_n(values)


@of_values
def dot_n(weights: Values, values: Values, shape: Shapes = None) -> Value:
    """Sum the values, each multiplied by its weight.

    Args:
        weights: one per value: scalars, or arrays that multiply values element by element.
        values: any number of values of one shape.
        shape: the shape of one value; needed only if the list may be empty. The sum is then zero.

    Shapes: weights () or broadcasting to one value's shape; values of one shape; the result has the same shape.
    Gradient: the values for the weights, the weights for the values.

    >>> float(ab.dot_n([0.5, 2.0], [4.0, 3.0]))
    8.0
    """
    weights, values = as_port(weights), as_port(values)
    if not isinstance(values, VariadicPort) and not values and not len(weights):
        return _zeros(element_shape(shape))
    return _dot_n(weights, values, shape)


@composite
def attend(query: Value, keys: Values, values: Values, scale: float = 1.0, shape: Shapes = None) -> Value:
    """Sum `values`, weighted by the softmax of scale * (query . key): dot-product attention without padding.

    Args:
        query: a vector (D,).
        keys: any number of vectors (D,).
        values: one value per key, of one shape.
        scale: factor of the scores; 1/sqrt(D) gives the scaled form (Vaswani et al. 2017).
        shape: the shape of one value; needed only if the lists may be empty. The result is then zero.

    Shapes: query (D,), keys (D,) each, values of one shape; the result has the shape of one value.
    Gradient: for query, keys and values.

    >>> ab.attend(np.array([1.0, 0.0]), [np.zeros(2), np.zeros(2)], [np.array([1.0]), np.array([3.0])])
    array([2.])
    """
    keys, values = as_port(keys), as_port(values)
    if isinstance(keys, VariadicPort) and isinstance(values, VariadicPort):
        v, k = values.values(element_shape(shape)), keys.values(query.shape)
        _check_attention(query, k, v)
        scale = _spread_edges(scale, k) if isinstance(scale, Symbol) else scale
        weights = _softmax_edges(reduction.sum(_spread_edges(query, k) * k, axis=-1) * scale)
        return _sum_edges(reshape(weights, (1,) * v.ndim) * v)
    if len(keys) != len(values):
        raise ShapeError(f"attend must be given as many keys as values, got {len(keys)} and {len(values)}.")
    if not len(keys):
        return _zeros(element_shape(shape))
    check_equal_shapes(keys)
    check_equal_shapes(values)
    _check_attention(query, keys[0], values[0])
    scores, v = _stack(list(keys)) @ query * scale, _stack(list(values))
    return reduction.sum(reshape(softmax(scores), (len(keys), *(1,) * (v.ndim - 1))) * v, axis=0)


def _check_attention(query: Any, key: Any, value: Any) -> None:
    if isinstance(key, tuple) or isinstance(value, tuple):
        raise ShapeError("keys and values of attend must be single values, got tuples; join their parts by ab.concat.")
    if len(shape_of(query)) != 1 or shape_of(query) != shape_of(key):
        raise ShapeError(
            f"query and keys of attend must have one shape (D,), got {shape_of(query)} and {shape_of(key)}."
        )
