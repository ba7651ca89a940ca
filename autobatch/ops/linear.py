"""Products: matrix by vector, vector by matrix, matrix by matrix, affine, dot and outer.

A weight that all nodes share has a single row, and multiplying all rows of a batch by it is one matrix product. A
weight per node (MV-RNN) gives a stack of small products. Weight gradients are `outer` products summed over rows, which
is also one matrix product: `row_sum`.
"""

from __future__ import annotations

from typing import Any

from autobatch.errors import ShapeError
from autobatch.ops.define import Array, Shape, define_op
from autobatch.ops.shaping import transpose


def _matmul_shape(x: Shape, y: Shape) -> Shape:
    if not (1 <= len(x) <= 2 and 1 <= len(y) <= 2):
        raise ShapeError(f"operands of matmul must be vectors or matrices, got shapes {x} and {y}.")
    if x[-1] != y[0]:
        raise ShapeError(
            f"the inner sizes of matmul must be equal, got {x[-1]} and {y[0]} for operands of shapes {x} and {y}."
        )
    return x[:-1] + y[1:]


def _floats(x: Array, out: Array) -> Array:
    """Convert int data to the float type of the result; NumPy would compute int products in the int type."""
    return x if x.dtype.kind == "f" else x.astype(out.dtype)


def _matmul(xp: Any, x: Array, y: Array, out: Array) -> None:
    x, y = _floats(x, out), _floats(y, out)
    x_is_matrix, y_is_matrix = x.ndim == 3, y.ndim == 3
    if x_is_matrix and y_is_matrix:
        xp.matmul(x, y, out=out)
    elif x_is_matrix and x.shape[0] == 1:
        xp.matmul(y, x[0].T, out=out)
    elif y_is_matrix and y.shape[0] == 1:
        xp.matmul(x, y[0], out=out)
    elif x_is_matrix:
        xp.matmul(x, y[:, :, None], out=out[:, :, None])
    elif y_is_matrix:
        xp.matmul(x[:, None, :], y, out=out[:, None, :])
    else:
        xp.sum(x * y, axis=-1, out=out)


def _matmul_row_sum(xp: Any, x: Array, y: Array, out: Array) -> None:
    x, y = _floats(x, out), _floats(y, out)
    if x.ndim == 4 and y.ndim == 4 and x.shape[:2] == y.shape[:2]:
        # The sum over rows is the inner sum of a single product.
        left, right = factors(x, y)
        out += xp.matmul(left.transpose(0, 2, 1), right)
        return
    n_rows = max(x.shape[1], y.shape[1])
    x, y = (array.reshape(-1, *array.shape[2:]) for array in (x, y))  # a shared one stays a single row
    product = xp.empty((len(out) * n_rows, *out.shape[1:]), out.dtype)
    _matmul(xp, x, y, product)
    out += product.reshape(len(out), n_rows, *out.shape[1:]).sum(axis=1)


def factors(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the factors of S sums of products over rows: arrays (S, n, m) and (S, n, k); each sum is left.T @ right.

    Args:
        x, y: rows of vectors, (S, rows, m) and (S, rows, k), or of matrices, (S, rows, m, i) and (S, rows, i, k), whose
            inner axis counts as rows too.
    """
    if x.ndim == 3:
        return x, y
    return x.transpose(0, 1, 3, 2).reshape(len(x), -1, x.shape[2]), y.reshape(len(y), -1, y.shape[3])


def _matmul_pullback(g: Any, out: Any, x: Any, y: Any) -> tuple[Any, Any]:
    match x.ndim, y.ndim:
        case 2, 1:
            return outer(g, y), matmul(g, x)
        case 1, 2:
            return matmul(y, g), outer(x, g)
        case 2, 2:
            return matmul(g, transpose(y)), matmul(transpose(x), g)
    return g * y, g * x


matmul = define_op(
    "matmul", shape=_matmul_shape, kernel=_matmul, pullback=_matmul_pullback, row_sum=_matmul_row_sum
)  # fmt: skip


def _dot_shape(x: Shape, y: Shape) -> Shape:
    if len(x) != 1 or x != y:
        raise ShapeError(f"operands of dot must be vectors of the same length, got shapes {x} and {y}.")
    return ()


dot = define_op(
    "dot",
    shape=_dot_shape,
    kernel=_matmul,
    pullback=lambda g, out, x, y: (g * y, g * x),
    doc="""Compute the dot product of two vectors.

    Shapes: x (n,), y (n,), the result ().
    Gradient: y for x, x for y.

    >>> float(ab.dot(np.array([1.0, 2.0]), np.array([3.0, 4.0])))
    11.0
    """,
)


def _outer_shape(x: Shape, y: Shape) -> Shape:
    if len(x) != 1 or len(y) != 1:
        raise ShapeError(f"operands of outer must be vectors, got shapes {x} and {y}.")
    return x + y


def _outer_row_sum(xp: Any, x: Array, y: Array, out: Array) -> None:
    x, y = _floats(x, out), _floats(y, out)
    if x.shape[:2] == y.shape[:2]:
        out += xp.matmul(x.transpose(0, 2, 1), y)
    else:
        # One factor is shared by all rows, so the sum moves into the other.
        out += x.sum(axis=1)[:, :, None] * y.sum(axis=1)[:, None, :]


outer = define_op(
    "outer",
    shape=_outer_shape,
    kernel=lambda xp, x, y, out: xp.multiply(x[:, :, None], y[:, None, :], out=out, dtype=out.dtype),
    pullback=lambda g, out, x, y: (matmul(g, y), matmul(x, g)),
    row_sum=_outer_row_sum,
    doc="""Multiply each element of x by each element of y.

    Shapes: x (m,), y (n,), the result (m, n).
    Gradient: g @ y for x, x @ g for y, where g is the gradient of the result.

    >>> ab.outer(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    array([[3., 4.],
           [6., 8.]])
    """,
)


def _affine_shape(weight: Shape, x: Shape, bias: Shape) -> Shape:
    if len(weight) != 2 or len(x) != 1 or weight[1:] != x:
        raise ShapeError(
            f"affine must be given a weight (n_out, n_in) and a vector (n_in,), got shapes {weight} and {x}."
        )
    if bias != weight[:1]:
        raise ShapeError(f"the bias of affine must have shape {weight[:1]} for a weight of {weight}, got {bias}.")
    return bias


def _affine(xp: Any, weight: Array, x: Array, bias: Array, out: Array) -> None:
    rows = max(weight.shape[0], x.shape[0])  # fewer than in `out` if only the bias differs between nodes
    product = out if rows == out.shape[0] else xp.empty((rows, *out.shape[1:]), out.dtype)
    _matmul(xp, weight, x, product)
    xp.add(product, bias, out=out)


affine = define_op(
    "affine",
    shape=_affine_shape,
    kernel=_affine,
    pullback=lambda g, out, weight, x, bias: (outer(g, x), matmul(g, weight), g),
    doc="""Compute weight @ x + bias, as `ab.Linear` does.

    Shapes: weight (m, n), x (n,), bias (m,), the result (m,).
    Gradient: outer(g, x) for weight, g @ weight for x, g for bias, where g is the gradient of the result.

    >>> ab.affine(np.array([[1.0, 2.0]]), np.array([3.0, 4.0]), np.array([0.5]))
    array([11.5])
    """,
)
