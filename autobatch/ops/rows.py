"""Ops that move any number of rows: slices along the rows of each node, joins of slices, and their transposes.

In a batch, the rows of a node are a range of the rows of a variadic group, its *segment*. `take_rows` joins slices of
the segments of its arguments; the result has segments of its own, a *derived* group. A slice is (start, stop, step) as
in Python, with `END` for an omitted end. For a per-node or shared argument (`fixed`), the rows are its first axis.
`put_rows` moves rows of a derived group back, and `take_part` moves them there again. Both take the arguments of
`take_rows` after the moved one, for their segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.ops.define import Array, Op, Shape, define_op
from autobatch.ops.variadic import Segments

Cut: TypeAlias = tuple[int, int, int]
END = 2**30  # beyond any row; -END is before any


class Picked(NamedTuple):
    """The rows of each node in a slice: `counts` of them, from `first` on, `step` apart."""

    first: NDArray[np.int64]
    counts: NDArray[np.int64]
    step: int


def as_cut(index: slice) -> Cut:
    """Return a slice as three ints."""
    step = 1 if index.step is None else int(index.step)
    start, stop = (0, END) if step > 0 else (END, -END)
    return start if index.start is None else int(index.start), stop if index.stop is None else int(index.stop), step


def pick(lengths: NDArray[np.int64], cut: Cut) -> Picked:
    """Return the rows that a slice selects from values of these lengths.

    >>> pick(np.array([0, 2, 5]), as_cut(slice(1, None))).counts
    array([0, 1, 4])
    """
    start, stop, step = cut
    # Python's rule for the ends of a slice: they are limited to 0..n, or with a negative step to -1..n - 1, where -1 is
    # before the first row. A count is the distance of the ends in steps, rounded up.
    low, high = (0, lengths) if step > 0 else (-1, lengths - 1)
    first, last = (np.clip(end + lengths * (end < 0), low, high) for end in (start, stop))
    counts = (last - first + step - (1 if step > 0 else -1)) // step
    return Picked(first, np.maximum(counts, 0), step)


def count_rows(n: int, cut: Cut) -> int:
    """Count the rows that a slice selects from `n`."""
    return len(range(n)[slice(*cut)])


def _moves(segments: Sequence[Segments], cuts: Sequence[Cut]) -> Iterator[tuple[Array, Array]]:
    """Yield, for each argument, the numbers of the selected rows, and of the rows that they become."""
    picked = [pick(own.lengths, cut) for own, cut in zip(segments, cuts, strict=True)]
    total = np.sum([part.counts for part in picked], axis=0)
    # The result has the rows of node 0 from all arguments, then those of node 1; `before` is where the next argument
    # starts in each node.
    before = np.cumsum(total) - total
    for own, (first, counts, step) in zip(segments, picked, strict=True):
        nodes = np.repeat(np.arange(counts.size), counts)
        k = np.arange(nodes.size) - (np.cumsum(counts) - counts)[nodes]
        yield own.put(own.ptr[:-1][nodes] + first[nodes] + k * step), own.put(before[nodes] + k)
        before = before + counts


def _moves_of(segments: Sequence[Segments], cuts: Sequence[Cut], number: int) -> tuple[Array, Array]:
    """Return the moves of the argument `number`, counted after the moved one."""
    return next(islice(_moves(segments[1:], cuts), number, None))


def _rows_of(xp: Any, part: Array, own: Segments, is_fixed: bool) -> Array:
    """Return the rows of an argument, concatenated over all nodes."""
    if not is_fixed:
        return part
    return xp.broadcast_to(part, (own.lengths.size, *part.shape[1:])).reshape(-1, *part.shape[2:])


def _take(xp: Any, *parts: Array, out: Array, segments: Any, cuts: Any, fixed: Any, group: int, is_one: bool) -> None:
    for part, own, is_fixed, (taken, made) in zip(parts, segments, fixed, _moves(segments, cuts), strict=True):
        out[made] = _rows_of(xp, part, own, is_fixed)[taken]


def _take_part(
    xp: Any, *arrays: Array, out: Array, segments: Any, cuts: Any, fixed: Any, group: int, is_one: bool, number: int
) -> None:
    taken, made = _moves_of(segments, cuts, number)
    if len(cuts) > 1:  # the rows of other parts are zeros
        out[...] = 0
    out[made] = _rows_of(xp, arrays[0], segments[1 + number], fixed[number])[taken]


def _put(
    xp: Any, *arrays: Array, out: Array, segments: Any, cuts: Any, fixed: Any, group: int, is_one: bool, number: int
) -> None:
    taken, made = _moves_of(segments, cuts, number)
    out[...] = 0
    place = (taken // out.shape[1], taken % out.shape[1]) if fixed[number] else taken  # fixed: by node and row
    out[place] = arrays[0][made]


def _shape(first: Shape, *others: Shape, fixed: Any, number: int = 0, **how: Any) -> Shape:
    return first[1:] if fixed[number] else first


def _group(domains: Sequence[int], group: int, **how: Any) -> int:
    return group


take_rows: Op = define_op(
    "take_rows", shape=_shape, kernel=_take, segments="move", domain=_group,
    pullback=lambda g, out, *parts, **how: tuple(put_rows(g, *parts, **how, number=n) for n in range(len(parts))),
)  # fmt: skip
take_part: Op = define_op(
    "take_part",  # take_rows(*parts), but rows of part `number` come from the first argument, the others are zeros
    shape=_shape, kernel=_take_part, segments="move", domain=_group, like=1,
    pullback=lambda g, out, x, *parts, **how: (put_rows(g, *parts, **how), *(None for _ in parts)),
)  # fmt: skip
put_rows: Op = define_op(
    "put_rows",  # the transpose of take_part: each row at its origin, zeros elsewhere
    shape=lambda g, *parts, number, **how: parts[number], kernel=_put, segments="move", like=1,
    domain=lambda domains, number, **how: max(domains[1 + number], -1),  # per node, if shared
    pullback=lambda g, out, x, *parts, **how: (take_part(g, *parts, **how), *(None for _ in parts)),
)  # fmt: skip
