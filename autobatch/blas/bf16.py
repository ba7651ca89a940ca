"""bf16: the first 16 bits of a float32, rounded to nearest, ties to even; NaN stays NaN.

NumPy has no bf16, so arrays of bf16 have the dtype uint16. Sums of their products are float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autobatch.blas.finding import get_provider
from autobatch.blas.own.packed import half
from autobatch.blas.product import Matrix, find_step
from autobatch.blas.provider import Provider
from autobatch.errors import BackendError, ShapeError
from autobatch.jit.loops import compiled
from autobatch.system.processor import has_amx, has_bf16


@compiled
def to_bf16(x: np.float32) -> np.uint16:
    """Round a float32 to bf16, in compiled code."""
    return np.uint16(half(np.float32(x).view(np.uint32)))


@compiled
def _round_rows(x: Any, x_step: int, out: Any, out_step: int, n_rows: int, n_columns: int) -> None:
    for row in range(n_rows):
        source = x[row * x_step : row * x_step + n_columns]
        target = out[row * out_step : row * out_step + n_columns]
        for column in range(n_columns):
            target[column] = to_bf16(source[column])


def round_to_bf16(x: Matrix, out: NDArray[np.uint16] | None = None) -> NDArray[np.uint16]:
    """Round a matrix to bf16.

    Args:
        x: float32 (m, n), a row-strided view or the transpose of one.
        out: uint16 (m, n), a row-strided view, or a transpose where x is one; None makes a new one.

    Returns:
        out.

    Raises:
        ShapeError: shapes, dtypes or strides that do not fit.

    >>> [hex(bits) for bits in round_to_bf16(np.array([[1.0, -2.0, np.inf]], np.float32))[0]]
    ['0x3f80', '0xc000', '0x7f80']
    """
    if out is None:
        out = np.empty(x.shape, np.uint16, order="F" if x.ndim == 2 and find_step("x", x)[0] else "C")
    if x.ndim != 2 or x.shape != out.shape or x.dtype != np.float32 or out.dtype != np.uint16:
        raise ShapeError(
            f"rounding {x.dtype} of shape {x.shape} to {out.dtype} of shape {out.shape}: give a float32 matrix and a "
            f"uint16 one of its shape."
        )
    if x.size:
        flipped, _ = find_step("x", x)
        out_flipped, out_step = find_step("out", out, flipped)
        flipped, step = find_step("x", x, out_flipped)
        if flipped != out_flipped:
            raise ShapeError(
                f"rounding x of strides {x.strides} into one of strides {out.strides}: their rows must lie the same "
                f"way."
            )
        n_rows, n_columns = x.T.shape if flipped else x.shape
        source, target = (
            as_strided(array, ((n_rows - 1) * rows_apart + n_columns,), (array.itemsize,))
            for array, rows_apart in ((x, step), (out, out_step))
        )
        _round_rows(source, step, target, out_step, n_rows, n_columns)
    return out


def multiply_bf16(
    a: NDArray[np.uint16], b: NDArray[np.uint16], out: NDArray[np.float32], accumulate: bool = False
) -> None:
    """Write the product of bf16 matrices to `out`, or add it to `out`; sums are float32.

    Args:
        a, b: uint16 (m, k) and (k, n), as `round_to_bf16` gives them; views as `Provider.multiply` takes them.
        out: float32 (m, n).
        accumulate: add to `out` instead of overwriting it.

    Raises:
        BackendError: no library here multiplies bf16.
        ShapeError: shapes, dtypes or strides that do not fit.

    Source: Kalamkar et al. 2019 (arXiv:1905.12322), bf16 with float32 sums in training.
    """
    find_bf16().multiply(a, b, out, accumulate)


def find_bf16() -> Provider:
    """Find the provider that multiplies bf16 matrices.

    Raises:
        BackendError: there is none, or the processor has no instructions for bf16, so that it would be slower.
    """
    provider = get_provider("mkl")
    if "uint16" not in provider.addresses:
        raise BackendError(f"multiplying bf16 matrices: MKL {provider.version} does not; install a newer one.")
    if not has_bf16():
        raise BackendError(
            "multiplying bf16 matrices: this processor has neither AMX nor AVX-512 instructions for bf16; use float32."
        )
    return provider


def find_amx() -> Provider | None:
    """Find the provider that multiplies bf16 matrices with AMX, several times as fast as float32; None without AMX."""
    if not has_amx():
        return None
    try:
        return find_bf16()
    except BackendError:
        return None
