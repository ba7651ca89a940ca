"""Define the common interface of the libraries that multiply matrices, and describe a product for BLAS.

NumPy is always available. The others are searched for only when they are named or listed: MKL in its wheel, SciPy and
torch in their packages.

A product is described without copies: flags, sizes, addresses, leading dimensions.

An operand is a view whose last axis is contiguous and whose rows have a fixed stride, or the transpose of such a view.
BLAS routines are column-major, so a row-major product out = a @ b is passed as out' = b' @ a'. If `out` is a transpose,
the transposed product is described. So each of `a`, `b` and `out` may be such a view or a transpose of one.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autobatch._native import repeat_product
from autobatch.errors import BackendError, ShapeError

Matrix = NDArray[Any]
KINDS = ("fff", "ddd")  # dtypes of a, b and out


class Gemm(NamedTuple):
    """A description of the product out = a @ b: an argument of `repeat_product`.

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
        a, b, out: arrays of shapes (m, k), (k, n) and (m, n): views with strided rows, or their transposes. They must
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
    # out' = b' @ a': the operands change places, and each is transposed once more.
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

    Cost: about half that of `describe_product`, because getting addresses from NumPy is slow.
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
        flipped_first: whether to prefer the transpose if both layouts fit, as for a single row.

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
            # The stride of a single row, or of an empty matrix, is arbitrary: BLAS requires at least the width.
            return flipped, row // size if n_rows > 1 and n_columns else max(1, n_columns)
    return None


ONE_PAIR = (1, 0, 0)
"""For `repeat_product`: the number of pairs of operands used in turn, and the bytes between consecutive ones."""


class Provider(ABC):
    """A library that multiplies matrices.

    Attributes:
        name: the name that selects it.
        version: the version of the library.
        addresses: the addresses of its routines for native code (`native/blas/calling.h`), by the dtype of the
            operands: "float32" and "float64". Native code cannot call a routine without an address.
    """

    def __init__(self, name: str, version: str, addresses: Mapping[str, int]) -> None:
        self.name = name
        self.version = version
        self.addresses = addresses

    @abstractmethod
    def multiply(self, a: Matrix, b: Matrix, out: Matrix, accumulate: bool = False) -> None:
        """Write a @ b to `out`, or add it to `out`.

        Args:
            a, b, out: (m, k), (k, n), (m, n), all float32 or all float64, views with strided rows, or their transposes;
            none is copied. `out` shares no memory with `a` and `b`.
            accumulate: whether to add to `out` instead of overwriting it.

        Raises:
            ShapeError: shapes, dtypes or strides do not fit.
        """

    def __repr__(self) -> str:
        return f"<{self.name} {self.version}>"


class ByAddress(Provider):
    """A library that is called by the addresses of its routines."""

    def multiply(self, a: Matrix, b: Matrix, out: Matrix, accumulate: bool = False) -> None:
        product = describe_product(a, b, out)
        dtype = a.dtype.name
        if dtype not in self.addresses:
            raise ShapeError(f"{self.name} does not multiply matrices of {dtype}; convert them, or choose numpy.")
        if product.m and product.n:
            repeat_product(1, a.dtype.itemsize, self.addresses[dtype], tuple(product), float(accumulate), ONE_PAIR)


class ByNumPy(Provider):
    """NumPy; native code calls the routines of its BLAS by address, if they can be found."""

    def __init__(self, addresses: Mapping[str, int]) -> None:
        super().__init__("numpy", np.__version__, addresses)
        self._adding = ByAddress(self.name, self.version, addresses)

    def multiply(self, a: Matrix, b: Matrix, out: Matrix, accumulate: bool = False) -> None:
        # NumPy cannot multiply and add in one call: `out += a @ b` allocates the product.
        if accumulate and self.addresses:
            self._adding.multiply(a, b, out, accumulate=True)
            return
        check_product(a, b, out)
        if accumulate:
            out += a @ b
        else:
            np.matmul(a, b, out=out)


class ByTorch(Provider):
    """torch, on tensors that share the arrays' memory; native code calls its library, if that can be found."""

    def __init__(self, name: str, version: str, addresses: Mapping[str, int]) -> None:
        import torch

        super().__init__(name, version, addresses)
        # torch warns once about a read-only array, which an operand may be: trigger that here, where it is ignored.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.from_numpy(np.broadcast_to(np.zeros(1, np.float32), 1))

    def multiply(self, a: Matrix, b: Matrix, out: Matrix, accumulate: bool = False) -> None:
        import torch

        check_product(a, b, out)
        left, right, target = (torch.from_numpy(_forward(x)) for x in (a, b, out))
        if accumulate:
            torch.addmm(target, left, right, out=target)
        else:
            torch.mm(left, right, out=target)


def _forward(x: Matrix) -> Matrix:
    """Return a view of the matrix without negative strides, which torch rejects; only axes of length one have any."""
    return x if min(x.strides) >= 0 else as_strided(x, strides=(abs(x.strides[0]), abs(x.strides[1])))


class Absent(BackendError):
    """The error for a provider whose library is missing."""

    def __init__(self, name: str, why: str, remedy: str) -> None:
        super().__init__(f"the matmul provider {name!r} is not available: {why}; {remedy}.")
        self.why = why
