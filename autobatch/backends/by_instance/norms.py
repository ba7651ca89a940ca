"""The norm of each instance's gradient, without the gradient.

That of a matrix is a sum over rows, G = sum_r d_r x_r', so its squared norm needs no product of the size of G:

    |G|^2 = sum_r sum_s (d_r . d_s) (x_r . x_s)

For n rows this takes n^2 (m + k) multiplications, and forming G takes n m k: whichever is less is done. Rows of all
types that read the matrix count together. Rows of a table are first added up by id. Any other gradient, or one that has
terms of several kinds, is formed for some instances at a time.

Source: Goodfellow 2015 (arXiv:1510.01799); of sequences, Li et al. 2022 (arXiv:2110.05679), "ghost clipping".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.by_instance.forms import Product, Scattered
from autobatch.backends.by_instance.needs import by_rows, chunks, need_of_norm
from autobatch.backends.by_instance.rows import Taken, groups_of
from autobatch.backends.by_instance.sources import Read, Source
from autobatch.backends.by_instance.sums import TypeRows, sum_by_key
from autobatch.backends.values import Array
from autobatch.ops.indexing import sum_runs


class Norms:
    """Squared norms of gradients, per instance.

    Args:
        types: the rows of each type that is read.
        n_instances: of the mini-batch.
        store: the memory of the device; dtype: of the values.
    """

    def __init__(self, types: Mapping[int, TypeRows], n_instances: int, store: Any, dtype: np.dtype[Any]) -> None:
        self._types, self._n, self._store, self._dtype = types, n_instances, store, dtype
        self._xp = store.xp

    def squares(self, reads: Sequence[Read]) -> NDArray[np.float64]:
        """The sum over all gradients of their squared norms, on the host: float64 (B,)."""
        total = self._xp.zeros(self._n, np.float64)
        for read in reads:
            kinds = {type(source.form) for source in read.sources}
            add = self._wholes
            if len(kinds) == 1:
                add = {Product: self._products, Scattered: self._tables}.get(kinds.pop(), add)
            need = need_of_norm(read, lambda type_id, domain: self._types[type_id].rows(domain).counts)
            for first, end in chunks(need):
                add(read, total, first, end)
        found: NDArray[np.float64] = self._store.get(total)
        return found

    def _products(self, read: Read, total: Array, first: int, end: int) -> None:
        sources, xp = read.sources, self._xp
        several = [self._types[s.type_id].rows_of(s.form.left, s.form.right) for s in sources]  # type: ignore[union-attr]
        for group in groups_of(several, first, end):
            factors = [self._factors(source, taken) for source, taken in zip(sources, group.taken, strict=True)]
            left, right = (_joined(xp, sides) for sides in zip(*factors, strict=True))
            n, m, k = left.shape[1], left.shape[2], right.shape[2]
            if by_rows(n, m, k):
                one, other = (xp.matmul(side, side.transpose(0, 2, 1)) for side in (left, right))
                one *= other
            else:
                one = xp.matmul(left.transpose(0, 2, 1), right)
                one *= one
            total[self._store.put(group.instances)] += one.reshape(len(one), -1).sum(axis=1, dtype=np.float64)

    def _factors(self, source: Source, taken: Taken) -> tuple[Array, Array]:
        assert isinstance(source.form, Product)
        return self._types[source.type_id].factors(source.form, source.where, taken)

    def _tables(self, read: Read, total: Array, first: int, end: int) -> None:
        n_ids = read.parameter.shape[0]
        keys, parts = [], []
        for source in read.sources:
            assert isinstance(source.form, Scattered)
            each, ids, values = self._types[source.type_id].scattered(source.form, first, end)
            keys.append((each - first) * n_ids + ids)
            parts.append(values)
        found, sums = sum_by_key(self._xp, self._store.put, np.concatenate(keys), _joined(self._xp, parts, 0))
        if found.size:
            sums *= sums
            of_row, instances = sums.sum(axis=1, dtype=np.float64), found // n_ids
            starts = np.flatnonzero(np.concatenate(([True], instances[1:] != instances[:-1])))
            per_instance = sum_runs(self._xp, of_row, self._store.put(starts))
            total[self._store.put(first + instances[starts])] += per_instance

    def _wholes(self, read: Read, total: Array, first: int, end: int) -> None:
        whole = self._xp.zeros((end - first, *read.parameter.shape), self._dtype)
        for number, source in enumerate(read.sources):
            self._types[source.type_id].add(source, whole, first, is_zero=number == 0)
        total[first:end] += _squares(whole)


def _squares(found: Array) -> Array:
    """The sum of squares of each row."""
    flat = found.reshape(len(found), -1)
    return (flat * flat).sum(axis=1, dtype=np.float64)


def _joined(xp: Any, parts: Sequence[Array], axis: int = 1) -> Array:
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, axis)
