"""The description of a matrix product for a BLAS, without copies: flags, sizes, addresses, leading dimensions.

An operand is a view whose last axis is contiguous and whose rows have a fixed stride, or the transpose of such a view.
BLAS routines are column-major, so a row-major product out = a @ b is passed as out' = b' @ a'. If `out` is a transpose,
the transposed product is described. So each of the three may be of either kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import ShapeError

Matrix = NDArray[Any]
KINDS = ("fff", "ddd")  # dtypes of a, b and out


class Gemm(NamedTuple):
    """out = a @ b, in elements and addresses: an argument of `repeat_product`.

    Attributes:
        a_flipped, b_flipped: 1 if the operand is the transpose of the matrix at its address.
        m, n, k: out is (m, n), a is (m, k).
        a, a_step, b, b_step, out, out_step: addresses in bytes, and elements between rows.
    """

    a_flipped: int
    b_flipped: int
    m: int
    n: int
    k: int
    a: int
    a_step: int
    b: int
    b_step: int
    out: int
    out_step: int


def describe_product(a: Matrix, b: Matrix, out: Matrix) -> Gemm:
    """Describe out = a @ b for BLAS.

    Args:
        a, b, out: arrays of shapes (m, k), (k, n) and (m, n): row-strided views or transposes of such. They must
            outlive the description, which holds addresses.

    Raises:
        ShapeError: shapes or dtypes disagree, or strides are not of this kind, such as those of a broadcast axis.

    >>> import numpy as np
    >>> x = np.zeros((8, 6), np.float32)
    >>> describe_product(x[:4, :2], x[4:, :2].T, np.zeros((4, 4), np.float32))[:5]
    (0, 1, 4, 4, 2)
    """
    (a_flipped, a_step), (b_flipped, b_step), (out_flipped, out_step) = check_product(a, b, out)
    (m, k), n = a.shape, b.shape[1]
    if out_flipped:
        return Gemm(
            1 - b_flipped, 1 - a_flipped, n, m, k,
            b.ctypes.data, b_step, a.ctypes.data, a_step, out.ctypes.data, out_step,
        )  # fmt: skip
    return Gemm(
        int(a_flipped), int(b_flipped), m, n, k,
        a.ctypes.data, a_step, b.ctypes.data, b_step, out.ctypes.data, out_step,
    )  # fmt: skip


def check_product(a: Matrix, b: Matrix, out: Matrix) -> list[tuple[bool, int]]:
    """Check matrices as `describe_product` does; return for each whether it is transposed, and its step.

    Cost: about half of a description, because getting addresses from NumPy is slow.
    """
    if not (a.ndim == b.ndim == out.ndim == 2 and a.shape == (len(out), len(b)) and b.shape[1] == out.shape[1]):
        raise ShapeError(
            f"a, b and out of a product must have shapes (m, k), (k, n) and (m, n), got {a.shape}, {b.shape} and "
            f"{out.shape}."
        )
    kinds = a.dtype.char + b.dtype.char + out.dtype.char
    if kinds not in KINDS:
        raise ShapeError(
            f"a, b and out of a product must all be float32 or all float64, got {a.dtype}, {b.dtype} and {out.dtype}."
        )
    return [find_step("a", a), find_step("b", b), find_step("out", out)]


def find_step(name: str, array: Matrix, flipped_first: bool = False) -> tuple[bool, int]:
    """Find the memory layout of a matrix; the stride of an axis of length one is ignored.

    Args:
        name: the name of the matrix, for messages.
        array: the matrix.
        flipped_first: the preferred answer if both are right, as for a single row.

    Returns:
        Whether it is the transpose of strided rows, and the stride of the rows in elements.

    Raises:
        ShapeError: no axis is contiguous, or rows overlap.
    """
    found = _step_of(array, flipped_first)
    if found is None:
        raise ShapeError(
            f"one axis of {name} must be contiguous, and the stride of the other must cover it, got shape "
            f"{array.shape} and strides {array.strides}; make a contiguous copy."
        )
    return found


def readable(array: Matrix) -> Matrix:
    """Copy a matrix that `find_step` rejects, such as a broadcast or reversed one; return others unchanged.

    >>> import numpy as np
    >>> x = np.zeros((4, 3))
    >>> readable(x) is x, readable(x[:, ::2]).strides, readable(np.broadcast_to(1.0, (2, 3))).strides
    (True, (16, 8), (24, 8))
    """
    return array if _step_of(array) is not None else np.ascontiguousarray(array)


def _step_of(array: Matrix, flipped_first: bool = False) -> tuple[bool, int] | None:
    for flipped in (flipped_first, not flipped_first):
        rows = array.T if flipped else array
        (n_rows, n_columns), (row, column), size = rows.shape, rows.strides, array.itemsize
        rows_fit = n_rows <= 1 or (row >= n_columns * size and row % size == 0)
        if n_rows * n_columns == 0 or (rows_fit and (n_columns == 1 or column == size)):
            return flipped, row // size if n_rows > 1 and n_columns else max(1, n_columns)
    return None
