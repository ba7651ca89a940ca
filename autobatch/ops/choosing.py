"""Ops that select among any number of rows: rows by position, the position of the largest, the k largest.

In a batch, the rows of a node are a range of the rows of a variadic group (`autobatch.ops.variadic.Segments`).
Positions count from the node's first row. Positions in the data are range-checked when instances are merged; the kernel
checks computed and constant ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autobatch.errors import DataError
from autobatch.ops.define import MOST_INTS, Array, Op, Shape, define_op
from autobatch.ops.indexing import sum_by_id, to_ids
from autobatch.ops.variadic import Segments, segment_max


def flat_ids(xp: Any, ids: Array, segments: Sequence[Segments | None], is_checked: bool) -> Array:
    """Convert positions to row numbers of the whole batch.

    Args:
        segments: those of the values to choose from, then those of the positions, or None for per-node positions.
        is_checked: whether the positions are known to be in range; if not, they are checked, which waits for the
            device.

    Raises:
        DataError: an unchecked position is out of range.
    """
    own, of = segments
    assert own is not None
    ids, starts, counts = to_ids(ids), own.put(own.ptr[:-1]), own.counts
    if of is not None:
        starts, counts = starts[of.rows], counts[of.rows]  # one per position instead of one per node
    wide = (-1, *(1,) * (ids.ndim - 1))
    starts, counts = starts.reshape(wide), counts.reshape(wide)
    if not is_checked:
        wrong = (ids < 0) | (ids >= counts)
        if bool(wrong.any()):
            wrong, ids, counts = xp.broadcast_arrays(wrong, ids, counts)
            raise DataError(
                f"positions of lookup must be in 0..{int(counts[wrong][0]) - 1} for this number of rows, got "
                f"{int(ids[wrong][0])}; the position was computed, or is a constant."
            )
    return starts + ids


def _choose(xp: Any, x: Array, ids: Array, out: Array, segments: Any, is_checked: bool) -> None:
    out[...] = x[flat_ids(xp, ids, segments[:2], is_checked)]


def _put(xp: Any, g: Array, ids: Array, like: Array, out: Array, segments: Any, is_checked: bool) -> None:
    # The positions count in the segments of `like`, because g has only the chosen rows.
    flat = flat_ids(xp, ids, (segments[2], segments[1]), is_checked)
    out[...] = 0
    # Several positions may name one row, and `out[flat] += g` would add only one of them.
    first, sums = sum_by_id(
        xp, flat.reshape(-1), xp.broadcast_to(g, (*flat.shape, *out.shape[1:])).reshape(-1, *out.shape[1:])
    )
    out[flat.reshape(-1)[first]] = sums


choose_rows: Op = define_op(
    "choose_rows",  # per node, the rows at its positions
    shape=lambda x, ids, is_checked: ids + x, kernel=_choose, segments="choose",
    # Shared positions choose per node too, because each node has its own rows; -1 is the domain of nodes.
    domain=lambda domains, is_checked: max(domains[1], -1),
    pullback=lambda g, out, x, ids, is_checked: (put_chosen(g, ids, x, is_checked=is_checked), None),
)  # fmt: skip
put_chosen: Op = define_op(
    "put_chosen",  # the transpose of choose_rows: zeros, with g added at the positions
    shape=lambda g, ids, like, is_checked: g[len(ids) :], kernel=_put, segments="choose", like=2,
    domain=lambda domains, is_checked: domains[2],
    pullback=lambda g, out, x, ids, like, is_checked: (choose_rows(g, ids, is_checked=is_checked), None, None),
)  # fmt: skip


def first_largest(xp: Any, x: Array, segments: Segments) -> Array:
    """Return the position of the largest row of each node, the first of ties, as floats; NaN counts as largest."""
    is_nan = xp.isnan(x)
    has_nan, peak = (xp.empty((len(segments.counts), *x.shape[1:]), x.dtype) for _ in range(2))
    segment_max(xp, is_nan.astype(x.dtype), has_nan, segments)
    segment_max(xp, x, peak, segments)
    # The maximum of a node with NaN is NaN, which equals nothing, so such nodes look for NaN itself.
    hit = xp.where(has_nan[segments.rows] > 0, is_nan, x == peak[segments.rows])
    places = segments.places.reshape((-1, *(1,) * (x.ndim - 1)))
    best = xp.empty(peak.shape, xp.float64)
    # The first hit is the largest negated position; misses are minus infinity.
    segment_max(xp, xp.where(hit, -places.astype(xp.float64), -xp.inf), best, segments)
    return -best


def _argmax_n(xp: Any, x: Array, out: Array, segments: Segments, is_flat: bool) -> None:
    if not is_flat:
        out[...] = first_largest(xp, x, segments)
        return
    width = int(x[:1].size) or 1
    if int(segments.lengths.max(initial=0)) * width > MOST_INTS:
        raise DataError(
            f"argmax must choose among at most {MOST_INTS} elements, got more; its result is stored as a float, which "
            f"is exact only up to there."
        )
    flat = x.reshape(len(x), -1)
    inner = xp.argmax(flat, axis=1)
    # The first row with the largest of the row maxima, then the first such element in it: the first of ties overall.
    row = first_largest(xp, xp.take_along_axis(flat, inner[:, None], axis=1)[:, 0], segments).astype(xp.int64)
    out[...] = row * width + inner[segments.put(segments.ptr[:-1]) + row]


argmax_n: Op = define_op(
    "argmax_n",  # the position of the largest row, or (`is_flat`) of the largest element of all rows
    shape=lambda x, is_flat: () if is_flat else x,
    kernel=_argmax_n, segments="reduce", below=lambda x, is_flat: MOST_INTS, least=lambda is_flat: 1,
)  # fmt: skip


def _top_k_n(xp: Any, x: Array, out: Array, segments: Segments, k: int) -> None:
    is_nan = xp.isnan(x)
    keys = (segments.places, -xp.where(is_nan, 0, x), ~is_nan, segments.rows)  # the last key is the primary one
    order = xp.lexsort(xp.stack([key.astype(xp.float64) for key in keys]))  # CuPy takes an array of keys, not a tuple
    starts = segments.put(segments.ptr[:-1])
    # `least` ensures that each node has k rows, so its first k of the order are its own.
    out[...] = segments.places[order[starts[:, None] + xp.arange(k)]]


def _top_k_shape(x: Shape, k: int) -> Shape:
    return (k,)


top_k_n: Op = define_op(
    "top_k_n",  # the positions of the k largest rows, which are scalars
    shape=_top_k_shape, kernel=_top_k_n, segments="reduce", below=lambda x, k: MOST_INTS, least=lambda k: k,
)  # fmt: skip
