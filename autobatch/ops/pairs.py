"""Ops on values with an element per pair of rows, such as `x @ y.T` of n and m rows: the scores of self-attention.

In a batch, the pairs of a node are the n * m rows of a derived group, ordered by the row of x, without padding. Each op
has the static arguments `group`, the number of that group, and `of`, the two paired groups. Its kernel receives the
segments of both. `axis` 1 runs over the pairs of each row of the first group, `axis` 0 over those of each row of the
second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.ops.choosing import first_largest, flat_ids
from autobatch.ops.define import MOST_INTS, Array, Op, define_op
from autobatch.ops.elementwise import equal, where
from autobatch.ops.variadic import Segments, segment_max, segment_softmax, segment_sum

Both = tuple[Segments, Segments]


def _along(first: Segments, second: Segments) -> Segments:
    """Return the segments of the pairs of each row of the first group."""
    lengths = np.repeat(second.lengths, first.lengths)
    return Segments(np.concatenate(([0], np.cumsum(lengths))), first.put)


def _numbers(first: Segments, second: Segments) -> tuple[Array, Array]:
    """Return the rows of the first and the second group for each pair."""
    along = _along(first, second)
    # For a pair: its row of the first group, that row's node, and in the second group the first row of the node plus
    # the pair's number within its row.
    rows = np.repeat(np.arange(along.lengths.size), along.lengths)
    nodes = np.repeat(np.arange(first.lengths.size), first.lengths)[rows]
    return rows, np.arange(along.ptr[-1]) - along.ptr[:-1][rows] + second.ptr[:-1][nodes]


def _turned(first: Segments, second: Segments) -> Array:
    """Return the permutation from (second, first) pairs to (first, second) pairs."""
    rows, columns = _numbers(second, first)
    along = _along(first, second)
    nodes = np.repeat(np.arange(second.lengths.size), second.lengths)[rows]
    # A pair lies in the segment of its first row, at the number of its second row within the node.
    return first.put(along.ptr[:-1][columns] + rows - second.ptr[:-1][nodes])


def _reduced(xp: Any, pairs: Array, segments: Both, axis: int) -> tuple[Array, Segments]:
    """Reorder pairs so that those along an axis are contiguous; return them with the segments of each remaining row."""
    return (pairs, _along(*segments)) if axis == 1 else (pairs[_turned(*segments)], _along(*segments[::-1]))


def _blocks(segments: Both) -> Iterator[tuple[slice, slice, slice, tuple[int, int]]]:
    """Yield, for each node, its rows of both groups, its pairs, and the numbers of rows."""
    first, second, at = *segments, 0
    for node in range(first.lengths.size):
        shape = int(first.lengths[node]), int(second.lengths[node])
        end = at + shape[0] * shape[1]
        yield slice(*first.ptr[node : node + 2]), slice(*second.ptr[node : node + 2]), slice(at, end), shape
        at = end


def _flat(rows: Array) -> Array:
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def _multiply(xp: Any, x: Array, y: Array, out: Array, segments: Both, group: int, of: Any) -> None:
    x, y = _flat(x), _flat(y)
    for own, other, pairs, shape in _blocks(segments):
        xp.matmul(x[own], y[other].T, out=out[pairs].reshape(shape))


def _weigh(
    xp: Any, w: Array, x: Array, like: Array, out: Array, segments: Both, group: int, of: Any, axis: int
) -> None:
    x, flat = _flat(x), _flat(out)
    for first, second, pairs, shape in _blocks(segments):
        weights = w[pairs].reshape(shape)
        if axis == 1:
            xp.matmul(weights, x[second], out=flat[first])
        else:
            xp.matmul(weights.T, x[first], out=flat[second])


def _spread(xp: Any, x: Array, out: Array, segments: Both, group: int, of: Any, axis: int) -> None:
    out[...] = x[segments[0].put(_numbers(*segments)[1 - axis])]  # axis 1: x has rows of the first group


def _sum(xp: Any, pairs: Array, out: Array, segments: Both, group: int, of: Any, axis: int) -> None:
    pairs, along = _reduced(xp, pairs, segments, axis)
    segment_sum(xp, pairs, out, along)


def _max(xp: Any, pairs: Array, out: Array, segments: Both, group: int, of: Any, axis: int) -> None:
    pairs, along = _reduced(xp, pairs, segments, axis)
    segment_max(xp, pairs, out, along)


def _argmax(xp: Any, pairs: Array, out: Array, segments: Both, group: int, of: Any, axis: int) -> None:
    pairs, along = _reduced(xp, pairs, segments, axis)
    out[...] = first_largest(xp, pairs, along)


def _softmax(xp: Any, pairs: Array, out: Array, segments: Both, group: int, of: Any, axis: int) -> None:
    if axis == 1:
        segment_softmax(xp, pairs, out, _along(*segments))
        return
    at, made = _turned(*segments), xp.empty_like(out)
    segment_softmax(xp, pairs[at], made, _along(*segments[::-1]))
    out[at] = made


def _turn(xp: Any, pairs: Array, out: Array, segments: Both, group: int, of: Any) -> None:
    out[...] = pairs[_turned(*segments[::-1])]


def _pick(xp: Any, pairs: Array, ids: Array, out: Array, segments: Both, group: int, of: Any, is_checked: bool) -> None:
    out[...] = pairs[flat_ids(xp, ids, (_along(*segments), None), is_checked)]


def _put(xp: Any, g: Array, ids: Array, out: Array, segments: Both, group: int, of: Any, is_checked: bool) -> None:
    out[...] = 0
    out[flat_ids(xp, ids, (_along(*segments), None), is_checked)] = g  # a row picks one pair, so none repeats


def _at_pairs(domains: Sequence[int], group: int, **how: Any) -> int:
    return group


def _at_rows(domains: Sequence[int], of: Any, axis: int = 1, **how: Any) -> int:
    return int(of[1 - axis])  # reducing along axis 1 leaves the rows of the first group


def _max_pullback(g: Any, out: Any, x: Any, **how: Any) -> tuple[Any]:
    # Equal maxima share the gradient; it is divided after spreading, as in max_n.
    hit = equal(x, spread_pairs(out, **how))
    count = spread_pairs(sum_pairs(hit, **how), **how)
    return (where(hit, spread_pairs(g, **how), 0.0) / count,)


def _weigh_pullback(
    g: Any, out: Any, w: Any, x: Any, like: Any, group: int, of: Any, axis: int
) -> tuple[Any, Any, None]:
    to_weights = multiply_pairs(*((g, x) if axis == 1 else (x, g)), group=group, of=of)
    return to_weights, weigh_pairs(w, g, x, group=group, of=of, axis=1 - axis), None


multiply_pairs: Op = define_op(
    "multiply_pairs",  # x @ y.T
    shape=lambda x, y, **how: (), kernel=_multiply, segments="pairs", domain=_at_pairs,
    pullback=lambda g, out, x, y, **how: (weigh_pairs(g, y, x, **how, axis=1), weigh_pairs(g, x, y, **how, axis=0)),
)  # fmt: skip
weigh_pairs: Op = define_op(
    "weigh_pairs",  # w @ x, or (axis 0) w.T @ x
    shape=lambda w, x, like, **how: x, kernel=_weigh, segments="pairs", domain=_at_rows, like=2,
    pullback=_weigh_pullback,
)  # fmt: skip
spread_pairs: Op = define_op(
    "spread_pairs",  # each row at its pairs along an axis
    shape=lambda x, **how: x, kernel=_spread, segments="pairs", domain=_at_pairs,
    pullback=lambda g, out, x, **how: (sum_pairs(g, **how),),
)  # fmt: skip
sum_pairs: Op = define_op(
    "sum_pairs", shape=lambda x, **how: x, kernel=_sum, segments="pairs", domain=_at_rows,
    pullback=lambda g, out, x, **how: (spread_pairs(g, **how),),
)  # fmt: skip
max_pairs: Op = define_op(
    "max_pairs", shape=lambda x, **how: x, kernel=_max, segments="pairs", domain=_at_rows, pullback=_max_pullback
)  # fmt: skip
argmax_pairs: Op = define_op(
    "argmax_pairs", shape=lambda x, **how: x, kernel=_argmax, segments="pairs", domain=_at_rows,
    below=lambda x, **how: MOST_INTS,
)  # fmt: skip
softmax_pairs: Op = define_op(
    "softmax_pairs", shape=lambda x, **how: x, kernel=_softmax, segments="pairs", domain=_at_pairs,
    pullback=lambda g, out, x, **how: (out * (g - spread_pairs(sum_pairs(g * out, **how), **how)),),
)  # fmt: skip
pick_pairs: Op = define_op(
    "pick_pairs",  # for each row of the first group, the pair at its position
    shape=lambda x, ids, **how: x, kernel=_pick, segments="pairs", domain=_at_rows,
    pullback=lambda g, out, x, ids, **how: (put_pairs(g, ids, **how), None),
)  # fmt: skip
put_pairs: Op = define_op(
    "put_pairs",  # the transpose of pick_pairs
    shape=lambda g, ids, **how: g, kernel=_put, segments="pairs", domain=_at_pairs,
    pullback=lambda g, out, x, ids, **how: (pick_pairs(g, ids, **how), None),
)  # fmt: skip


def _turn_pullback(g: Any, out: Any, x: Any, group: int, of: Any) -> tuple[Any]:
    # The gradient belongs to the pairs of x, so it is turned back to their group.
    return (turn_pairs(g, group=x.var.domain, of=of[::-1]),)


turn_pairs: Op = define_op(
    "turn_pairs",  # swap the two paired groups; `of` names them in the new order
    shape=lambda x, **how: x, kernel=_turn, segments="pairs", domain=_at_pairs, pullback=_turn_pullback,
)  # fmt: skip
