"""Test slices of ragged rows: their lengths and rows equal those of Python's slices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from autobatch.ops.rows import as_cut, count_rows, pick, put_rows, take_part, take_rows
from autobatch.ops.variadic import Segments

ENDS = (None, *range(-4, 5))
SLICES = [slice(*ends) for ends in product(ENDS, ENDS, (None, 1, 2, 3, -1, -2))]


def test_lengths_and_rows_are_those_of_python() -> None:
    lengths = np.arange(6)
    for index in SLICES:
        cut, expected = as_cut(index), [list(range(n)[index]) for n in lengths.tolist()]
        first, counts, step = pick(lengths, cut)
        assert counts.tolist() == list(map(len, expected))
        assert [count_rows(n, cut) for n in lengths.tolist()] == counts.tolist()
        found = [[int(a + k * step) for k in range(n)] for a, n in zip(first, counts, strict=True)]
        assert found == expected


@pytest.mark.slow
def test_joined_slices_go_back_to_where_they_are_from() -> None:
    rng = np.random.default_rng(0)
    lengths = [np.array([2, 0, 5, 1]), np.array([1, 3, 0, 2])]
    segments = [Segments(np.concatenate(([0], np.cumsum(n)))) for n in lengths]
    values = [rng.standard_normal((int(n.sum()), 3)) for n in lengths]
    node = rng.standard_normal((4, 2, 3))
    for one, other in product(SLICES[::7], SLICES[3::11]):
        static = {"cuts": (as_cut(one), as_cut(other), as_cut(slice(None))), "fixed": (False, False, True)}
        parts = [np.split(x, s.ptr[1:-1]) for x, s in zip(values, segments, strict=True)]
        expected = [np.concatenate((x[one], y[other], z)) for x, y, z in zip(*parts, node, strict=True)]
        own = [*segments, Segments(np.arange(5) * 2)]
        out = np.empty((sum(map(len, expected)), 3))
        take_rows.kernel(np, *values, node, out=out, segments=own, group=2, is_one=False, **static)
        np.testing.assert_array_equal(out, np.concatenate(expected))
        g = rng.standard_normal(out.shape)
        for number, x in enumerate((*values, node)):
            back = np.full_like(x, np.nan)
            how = {"segments": [None, *own], "group": 2, "is_one": False, "number": number, **static}
            put_rows.kernel(np, g, *values, node, out=back, **how)
            moved = np.zeros_like(out)  # <back, x> must equal <g, moved x>
            others = [x if k == number else np.zeros_like(v) for k, v in enumerate((*values, node))]
            take_rows.kernel(np, *others, out=moved, segments=own, group=2, is_one=False, **static)
            np.testing.assert_allclose((back * x).sum(), (g * moved).sum(), atol=1e-12)
            again = np.full_like(out, np.nan)
            take_part.kernel(np, x, *values, node, out=again, **how)
            np.testing.assert_array_equal(again, moved)
