"""Products of rounded numbers: the operands that `precision="bf16"` rounds, and how.

bf16 is the first half of a float32. Every product of rows with a matrix that all rows share has both operands rounded,
to nearest, ties to even. These products are nearly all the arithmetic of a model: forward, the rows and the matrix are
rounded; for the gradient of the rows, the gradient and the matrix; for the gradient of the matrix, which is also one
product, both factors. Sums, states, gradients, parameters and all other ops keep the module's float32. So do products
of parameters alone, and products of rows with matrices of their own, which do not suit a matrix unit.

Numbers below 2**-126 in magnitude may count as zero, as on processors that multiply bf16.

With `precision="tf32"` the libraries of a GPU may use its matrix units, which read the first 19 bits of each float32.
Other backends do not support it.

Source: Kalamkar et al. 2019 (arXiv:1905.12322): bf16 products with float32 sums train as well as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.arguments import show
from autobatch.errors import BackendError
from autobatch.ir.program import SHARED, Instruction, Var
from autobatch.ops.linear import affine, matmul

PRECISIONS = ("float32", "tf32", "bf16")
GRADIENTS = ("row_sum_outer", "row_sum_matmul")  # of matrices that all rows share


def check_precision(precision: str, dtype: np.dtype[Any], backend: str) -> None:
    """Raise a BackendError for an unknown precision, or one that this dtype or backend does not support."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise BackendError(f"precision must be one of {', '.join(PRECISIONS)}, got {show(precision)}.")
    if precision == "tf32" and backend != "cuda":
        raise BackendError(
            f'multiplying with precision="tf32": the backend must be "cuda", got {backend!r}; leave precision '
            f'out, or choose backend="cuda".'
        )
    if precision != "float32" and dtype != np.float32:
        raise BackendError(
            f'multiplying with precision="{precision}": the parameters of the module must be float32, got '
            f'{dtype}; call module.astype("float32"), or leave precision out.'
        )


def rounded_args(vars: Sequence[Var], index: int) -> tuple[int, ...]:
    """Return the positions of an instruction's arguments that are rounded in bf16.

    Args:
        vars: the values of a cell.
        index: the value that the instruction computes.
    """
    source = vars[index].source
    assert isinstance(source, Instruction)
    if source.op not in (matmul, affine) and source.op.name not in GRADIENTS:
        return ()
    operands = [vars[arg] for arg in source.args[:2]]
    shared = [len(operand.shape) for operand in operands if operand.domain == SHARED]
    sums_rows = source.op.name in GRADIENTS
    # A gradient: both factors have rows, and it is a matrix. A product: exactly one operand is shared, a matrix.
    if (sums_rows and not shared and len(vars[index].shape) == 2) or (not sums_rows and shared == [2]):
        return 0, 1
    return ()
