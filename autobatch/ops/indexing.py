"""Ops indexed by ints: rows of a table, the cross-entropy of a label, the k largest elements.

The ints are data, or are computed by cells. Their range is checked before a kernel sees them (`Op.index_axis`). Ints
that cells compute are stored as floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autobatch.errors import ShapeError
from autobatch.ops.define import Array, Op, Shape, Value, composite, define_op
from autobatch.ops.elementwise import equal, where
from autobatch.ops.reduction import softmax

# Ids are known to be in range here, so nothing is clipped.
TAKE = {"numpy": {"mode": "clip"}}  # writes directly to `out`, 2.6 times faster than the default; CuPy has no modes


def to_ids(ids: Array) -> Array:
    """Return ids as ints; ids that a cell computed are stored as floats."""
    return ids.astype(np.int64) if ids.dtype.kind == "f" else ids


def _lookup(xp: Any, table: Array, ids: Array, out: Array) -> None:
    ids = to_ids(ids)
    if table.shape[0] > 1:
        rows = xp.arange(table.shape[0]).reshape((-1,) + (1,) * (ids.ndim - 1))  # each node has its own table
        out[...] = table[rows, ids]
    elif table.dtype == out.dtype:
        xp.take(table[0], ids, axis=0, out=out, **TAKE.get(xp.__name__, {}))
    else:
        out[...] = table[0][ids]


def _lookup_shape(table: Shape, ids: Shape) -> Shape:
    if not table:
        raise ShapeError("the table of lookup must have rows, got a scalar.")
    return ids + table[1:]


def _scatter(xp: Any, g: Array, ids: Array, out: Array, size: int) -> None:
    out[...] = 0
    _add_scattered(xp, g, ids, out, size)


def _add_scattered(xp: Any, g: Array, ids: Array, out: Array, size: int) -> None:
    ids, n_axes = to_ids(ids), ids.ndim
    shape = (len(out), *np.broadcast_shapes(g.shape[1:n_axes], ids.shape[1:]))  # all nodes may share ids or values
    g = xp.broadcast_to(g, (*shape, *g.shape[n_axes:]))
    rows = xp.broadcast_to(xp.arange(shape[0]).reshape((-1,) + (1,) * (ids.ndim - 1)), shape).reshape(-1)
    flat = xp.broadcast_to(ids, shape).reshape(-1)
    # A number for each pair of node and id, so that one sort sums the rows of the whole batch.
    first, sums = sum_by_id(xp, rows * size + flat, g.reshape((flat.size, *out.shape[2:])))
    out[rows[first], flat[first]] += sums


def sum_by_id(xp: Any, ids: Array, rows: Array) -> tuple[Array, Array]:
    """Return the first position of each distinct id, and the sum of its rows.

    Rows are added in their order, on a GPU too, so that sums are reproducible.
    """
    order = xp.argsort(ids, kind="stable")
    if not ids.size:
        return order, rows
    ordered = ids[order]
    starts = xp.flatnonzero(xp.concatenate((xp.ones(1, bool), ordered[1:] != ordered[:-1])))
    return order[starts], sum_runs(xp, rows[order], starts)


def sum_runs(xp: Any, values: Array, starts: Array) -> Array:
    """Sum values[starts[k]:starts[k + 1]] for each k; the last run ends with the values; runs must not be empty."""
    return xp.add.reduceat(values, starts, axis=0)


scatter: Op = define_op(
    "scatter",  # the transpose of lookup: zeros, with g added at row `ids`
    shape=lambda g, ids, size: (size, *g[len(ids) :]),
    kernel=_scatter,
    pullback=lambda g, out, x, ids, size: (lookup(g, ids), None),
    row_sum=_add_scattered,  # the rows of a segment are just another axis of ids
)


lookup: Op = define_op(
    "lookup", shape=_lookup_shape, kernel=_lookup, index_axis=0,
    pullback=lambda g, out, table, ids: (scatter(g, ids, size=table.shape[0]), None),
    doc="""Look up rows of a table by number, such as the vectors of words.

    The ids are data, or computed by `ab.argmax`, `ab.top_k` or `ab.categorical`. In a cell, the table may have any
    number of rows, and `x[k]` is a lookup too.

    Shapes: table (N, ...), ids of any shape, ints in 0..N-1; the result ids.shape + (...).
    Gradient: for the table, the gradient of the rows read; an `ab.Rows` for a parameter that only lookups read.

    >>> ab.lookup(np.array([[0.0, 1.0], [2.0, 3.0]]), 1)
    array([2., 3.])
    """,
)  # fmt: skip


def _cross_entropy_shape(logits: Shape, label: Shape) -> Shape:
    if not logits or logits[:-1] != label:
        raise ShapeError(
            f"labels of cross_entropy must have shape {logits[:-1]} for logits of shape {logits}, got {label}."
        )
    return label


def _cross_entropy(xp: Any, logits: Array, label: Array, out: Array) -> None:
    shifted = xp.subtract(logits, xp.amax(logits, axis=-1, keepdims=True), dtype=out.dtype)
    chosen = xp.take_along_axis(shifted, label[..., None].astype(xp.int64), axis=-1)[..., 0]
    xp.subtract(xp.log(xp.exp(shifted).sum(axis=-1)), chosen, out=out)


def _one_hot(xp: Any, label: Array, out: Array, size: int) -> None:
    xp.equal(label[..., None], xp.arange(size), out=out)


one_hot = define_op("one_hot", shape=lambda label, size: (*label, size), kernel=_one_hot)


def _cross_entropy_pullback(g: Any, out: Any, logits: Any, label: Any) -> tuple[Any, None]:
    wide = g[..., None]
    return wide * (softmax(logits) - one_hot(label, size=logits.shape[-1])), None


cross_entropy = define_op(
    "cross_entropy",
    shape=_cross_entropy_shape,
    kernel=_cross_entropy,
    pullback=_cross_entropy_pullback,
    index_axis=-1,
    doc="""Compute the negative log-probability of a label under the softmax of logits.

    Shapes: logits (..., C), label (...) of ints in 0..C-1; the result has the shape of label, () for one label. In a
        cell, C may be any number of rows.
    Gradient: softmax(logits) - 1 at the label, softmax(logits) elsewhere; none for the label.

    >>> float(ab.cross_entropy(np.array([0.0, 0.0, 0.0, 0.0]), 2).round(4))
    1.3863
    """,
)


def _pick(xp: Any, x: Array, label: Array, out: Array, ignore: int) -> None:
    is_ignored = xp.equal(label, ignore)
    at = xp.where(is_ignored, 0, label).astype(xp.int64)  # `ignore` may be out of range
    x = xp.broadcast_to(x, (*out.shape, x.shape[-1]))
    out[...] = xp.where(is_ignored, 0, xp.take_along_axis(x, at[..., None], axis=-1)[..., 0])


def _pick_pullback(g: Any, out: Any, x: Any, label: Any, ignore: int) -> tuple[Any, None]:
    kept = where(equal(label, float(ignore)), 0.0, g)
    return where(one_hot(label, size=x.shape[-1]), kept[..., None], 0.0), None


pick = define_op(
    "pick",
    shape=lambda x, label, ignore: _cross_entropy_shape(x, label),
    kernel=_pick,
    pullback=_pick_pullback,
    index_axis=-1,
    doc="""Return the elements of x at the labels, and 0 where a label equals `ignore`, which may be out of range.

    Shapes: x (..., C), label (...) of ints in 0..C-1, or `ignore`; the result has the shape of label.
    Gradient: the gradient of the result at the label, 0 elsewhere; none for the label.
    """,
)


def _top_k_shape(x: Shape, k: int) -> Shape:
    if len(x) != 1 or not 0 < k <= x[0]:
        raise ShapeError(f"top_k must be given a vector of at least {max(k, 1)} elements for k={k}, got shape {x}.")
    return (k,)


def _top_k(xp: Any, x: Array, out: Array, k: int) -> None:
    """Write the positions of the k largest elements, the largest first.

    Select the elements above the k-th largest and the first ones equal to it, and sort only these: 9 times faster than
    sorting all of 10,000. Sorts put NaN last. Sorting the reversed elements stably and reading the result from its end
    keeps ties in order.
    """
    n = x.shape[1]
    least = xp.partition(x, n - k, axis=1)[:, n - k : n - k + 1]
    is_nan, ends_in_nan = xp.isnan(x), xp.isnan(least)
    above = (x > least) | (is_nan & ~ends_in_nan)
    equal = (x == least) | (is_nan & ends_in_nan)
    chosen = above | (equal & (xp.cumsum(equal, axis=1) <= k - above.sum(axis=1, keepdims=True)))
    # Each row has exactly k chosen elements, so the flat positions form k columns.
    places = xp.flatnonzero(chosen).reshape(-1, k) - n * xp.arange(len(x))[:, None]
    order = xp.argsort(xp.take_along_axis(x, places, axis=1)[:, ::-1], axis=1, kind="stable")[:, ::-1]
    out[...] = xp.take_along_axis(places, k - 1 - order, axis=1)


_top_k_op = define_op("top_k", shape=_top_k_shape, kernel=_top_k, below=lambda x, k: x[0])


@composite
def top_k(x: Value, k: int) -> tuple[Value, Value]:
    """Return the `k` largest elements of a vector, the largest first, and their positions; ties keep their order.

    The positions are ints, which `ab.lookup` takes. NaN counts as larger than any number, as in torch.

    Shapes: x (n,) with n >= k; both results (k,).
    Gradient: the gradient of the values, for the chosen elements; among equal elements, for the first ones. Second
        derivatives are 0, also where the choice is between equal elements and they are undefined.

    >>> ab.top_k(np.array([0.5, 2.0, 1.0]), 2)
    (array([2., 1.]), array([1, 2]))
    """
    positions = _top_k_op(x, k=int(k))
    return lookup(x, positions), positions
