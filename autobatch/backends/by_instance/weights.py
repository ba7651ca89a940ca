"""Run the weight stages per instance: compute gradients, or norms without gradients where that is cheaper.

The gradient of a matrix is a sum over rows, G = sum_r d_r x_r', so its squared norm can be computed without G:

    |G|^2 = sum_r sum_s (d_r . d_s) (x_r . x_s)

For n rows, this takes n^2 (m + k) multiplications, and computing G takes n m k; the cheaper way is used. Rows of all
types that read the matrix are counted together in n. Any other gradient, or one with terms of several kinds, is
computed for a chunk of instances at a time; that of a table consists of the rows that are not zero.

Source: Goodfellow 2015 (arXiv:1510.01799); of sequences, Li et al. 2022 (arXiv:2110.05679), "ghost clipping".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.by_instance.reads import Read, Source, by_rows
from autobatch.backends.interpret import Frame, Interpreter
from autobatch.backends.segments import InstanceRows, Taken, cut, groups_of
from autobatch.backends.values import Activity, Array
from autobatch.ops.linear import factors
from autobatch.params.sparse_rows import Rows


class InstanceWeights:
    """The weight stages of all types, per instance, in a run after its backward pass.

    Args:
        activity: the nodes that the losses depend on; the rows of other nodes are ignored.
    """

    def __init__(self, interpreter: Interpreter, activity: Activity) -> None:
        self._interpreter, self._activity = interpreter, activity
        self._xp, self._put, self._dtype = interpreter.store.xp, interpreter.store.put, interpreter.options.dtype
        self._rows: dict[tuple[int, int], InstanceRows] = {}
        self._frames: dict[int, Frame] = {}

    def rows(self, type_id: int, domain: int) -> InstanceRows:
        """Return the rows of a domain of a type, by instance; cached."""
        if (type_id, domain) not in self._rows:
            plan, n_nodes = self._interpreter.plan, int(np.diff(self._interpreter.plan.type_ptr)[type_id])
            active = None if self._activity.is_whole else self._activity.rows(type_id, 0, n_nodes)
            self._rows[type_id, domain] = InstanceRows(plan, type_id, domain, active)
        return self._rows[type_id, domain]

    def counts(self, type_id: int, domain: int) -> Any:
        """Return the number of rows of each instance."""
        return self.rows(type_id, domain).counts

    def _frame(self, source: Source) -> Frame:
        """Return a frame with the values that a type's weight stage reads or computes without a sum; cached."""
        type_id, derivative = source.type_id, source.derivative
        if type_id not in self._frames:
            self._frames[type_id] = frame = self._interpreter.weight_frame(type_id)
            self._interpreter.run(frame, [i for i in derivative.weights if i not in derivative.by_segment])
        return self._frames[type_id]

    # Gradients.

    def add(self, source: Source, out: Array, first: int, is_zero: bool) -> None:
        """Add a contribution to the gradients of n instances from `first` on.

        Args:
            out: the gradients (n, *shape), C-contiguous.
            is_zero: whether `out` is all zero, and may be overwritten.
        """
        n, where = len(out), source.where
        if source.gradient is None:
            self._add_rows(source, out.reshape(n * out.shape[1], *out.shape[2:]), out.shape[1], first, first + n)
            return
        place = out if where is None else out.reshape(n, where.height, where.width)
        if source.factors is not None:
            self._add_products(source, place, first, is_zero)
            return
        rows, frame = self.rows, self._frame(source)
        frame = frame.in_segments(n, lambda domain: groups_of([rows(source.type_id, domain)], first, first + n))
        self._interpreter.run(frame, source.stage)
        found = frame.env[source.gradient]
        place += found if where is None else where.of_each(found)

    def _add_products(self, source: Source, place: Array, first: int, is_zero: bool) -> None:
        """Add sums of products, which are most of the work, in place if possible."""
        for group in groups_of([self._rows_of(source)], first, first + len(place)):
            left, right = self._factors(source, group.taken[0])
            left, where = left.transpose(0, 2, 1), group.where(self._put)
            if not is_zero:
                place[where] += self._xp.matmul(left, right)
            elif isinstance(where, slice):
                self._xp.matmul(left, right, out=place[where])
            else:
                place[where] = self._xp.matmul(left, right)

    def _rows_of(self, source: Source) -> InstanceRows:
        return self.rows(source.type_id, source.domain(*(source.factors or ())))

    def _factors(self, source: Source, taken: Taken) -> tuple[Array, Array]:
        """Return the factors of a sum of products for some instances: (n, rows, m) and (n, rows, k)."""
        assert source.gradient is not None
        left, right = (self._frame(source).env[value] for value in source.factors or ())
        if source.where is not None:  # only the rows and columns of the wanted part
            row, column, height, width = source.where
            left, right = left[:, row : row + height], right[..., column : column + width]
        args = taken.of((left, right), self._put)
        return factors(*self._interpreter.rounded(source.derivative.vars, source.gradient, args))

    def _add_rows(self, source: Source, table: Any, n_ids: int, first: int, end: int) -> None:
        """Add the scattered rows of the instances first:end to the gradients of their tables.

        Args:
            table: the gradients, an array or `Rows` with n_ids rows per instance, one instance below the other.
        """
        frame = self._frame(source)
        for values, index in source.scatters:
            instances, ids = self.rows(source.type_id, source.domain(values)), self._interpreter.looked_up(frame, index)
            rows = instances.rows[instances.ptr[first] : instances.ptr[end]]
            ids = ids[rows] if len(ids) > 1 else np.broadcast_to(ids, (rows.size, *ids.shape[1:]))
            table_of_row = (instances.instance[rows] - first).reshape(-1, *(1,) * (ids.ndim - 1))
            keys = table_of_row * n_ids + ids.astype(np.int64)
            self._interpreter.add_rows(keys, frame.env[values][self._put(rows)], table)

    # Norms.

    def squares(self, reads: Sequence[Read]) -> NDArray[np.float64]:
        """Return the sum of the squared norms of all gradients, per instance and on the host: float64 (B,)."""
        total = self._xp.zeros(self._interpreter.plan.graph.n_instances, np.float64)
        for read in reads:
            add = self._add_squares_of_table if read.is_table else self._add_squares_of_arrays
            if read.is_product:
                add = self._add_squares_of_products
            for first, end in cut(read.need_of_norm(self.counts)):
                add(read, total[first:end], first)
        found: NDArray[np.float64] = self._interpreter.store.get(total)
        return found

    def _add_squares_of_products(self, read: Read, total: Array, first: int) -> None:
        for group in groups_of([self._rows_of(source) for source in read.sources], first, first + len(total)):
            pairs = zip(read.sources, group.taken, strict=True)
            several = zip(*(self._factors(source, taken) for source, taken in pairs), strict=True)
            left, right = (sides[0] if len(sides) == 1 else self._xp.concatenate(sides, 1) for sides in several)
            if by_rows(left.shape[1], left.shape[2], right.shape[2]):
                one, other = (self._xp.matmul(side, side.transpose(0, 2, 1)) for side in (left, right))
                one *= other
            else:
                one = self._xp.matmul(left.transpose(0, 2, 1), right)
                one *= one
            total[group.where(self._put)] += _sums(one)

    def _add_squares_of_table(self, read: Read, total: Array, first: int) -> None:
        n, (n_ids, *width) = len(total), read.parameter.shape
        rows = Rows.zeros((n * n_ids, *width), self._dtype, self._interpreter.store)
        for source in read.sources:
            self._add_rows(source, rows, n_ids, first, first + n)
        of_row = self._interpreter.store.get(_sums(rows.values * rows.values))
        total += self._put(np.bincount(rows.ids // n_ids, of_row, n))

    def _add_squares_of_arrays(self, read: Read, total: Array, first: int) -> None:
        whole = self._xp.zeros((len(total), *read.parameter.shape), self._dtype)
        for number, source in enumerate(read.sources):
            self.add(source, whole, first, is_zero=number == 0)
        total += _sums(whole * whole)


def _sums(found: Array) -> Array:
    """Return the sum of each row, float64."""
    return found.reshape(len(found), prod(found.shape[1:])).sum(axis=1, dtype=np.float64)
