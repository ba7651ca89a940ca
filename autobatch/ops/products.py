"""Products of tensors with any number of axes, built from the products of matrices and vectors in `ops.linear`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.arguments import RAW
from autobatch.errors import ShapeError
from autobatch.ops import linear, reduction
from autobatch.ops.define import Shape, Value, broadcast, composite, known_shape, refused_call, shape_of
from autobatch.ops.operators import FUNCTIONS
from autobatch.ops.shaping import expand, reshape, slice_, stack, transpose


def matmul(x: Value, y: Value) -> Value:
    """Compute the matrix product, by NumPy's rule for values with any number of axes; `@` calls it.

    The last axis of `x` and the last but one of `y` (the only one of a vector) are summed over. Axes before the last
    two index stacks of matrices, which broadcast.

    Args:
        x: (..., M, K) or (K,).
        y: (..., K, N) or (K,).

    Shapes: the result (..., M, N); without M if x is a vector, without N if y is one.
    Gradient: for matrices g @ y.T for x and x.T @ g for y, where g is the gradient of the result.

    >>> ab.matmul(np.ones((4, 2, 3)), np.ones(3)).shape
    (4, 2)
    """
    try:
        left, right = shape_of(x), shape_of(y)
        if len(right) <= 2 and (len(left) <= 2 or not all(isinstance(size, (int, np.integer)) for size in left)):
            return linear.matmul(x, y)  # matrices, or rows whose number is known only at run time
        return _stacked(x, y)
    except RAW as error:
        raise refused_call(matmul, (x, y), {}, error) from error


@composite
def _stacked(x: Any, y: Any) -> Any:
    """Multiply stacks of matrices; by a single matrix product if only one argument is a stack."""
    left, right = known_shape(x, "matmul of stacks"), known_shape(y, "matmul of stacks")
    if not left or not right or left[-1] != right[-2:][0]:  # the only axis of a vector, or the last but one
        raise ShapeError(f"the summed axes of matmul must have equal sizes, got shapes {left} and {right}.")
    if len(right) <= 2:
        return reshape(linear.matmul(reshape(x, (math.prod(left[:-1]), left[-1])), y), left[:-1] + right[1:])
    if len(left) <= 2:
        product = linear.matmul(x, _matrix(y, len(right) - 2))
        return _moved(reshape(product, (*left[:-1], *right[:-2], right[-1])), len(left) - 1)
    lead = broadcast("matmul", left[:-2], right[:-2])
    stacks = [
        reshape(expand(part, lead + shape[-2:]), (math.prod(lead), *shape[-2:]))
        for part, shape in ((x, left), (y, right))
    ]
    if not math.prod(lead):
        raise ShapeError(f"the stacks of matmul must have at least one matrix, got shapes {left} and {right}.")
    products = [linear.matmul(*(slice_(part, index=i) for part in stacks)) for i in range(math.prod(lead))]
    return reshape(stack(products), (*lead, left[-2], right[-1]))


def _matrix(y: Any, axis: int) -> Any:
    """Join a stack of matrices (..., K, N) into one matrix (K, ...N)."""
    others = [a for a in range(len(shape_of(y))) if a != axis]
    size = math.prod(shape_of(y)[a] for a in others)
    return reshape(transpose(y, (axis, *others)), (shape_of(y)[axis], size))


def _moved(x: Any, n: int) -> Any:
    """Move the first `n` axes, the rows of a matrix (at most one), after the axes of the stack."""
    axes = tuple(range(len(shape_of(x))))
    return x if n == 0 else transpose(x, (*axes[n:-1], *axes[:n], axes[-1]))


@composite
def einsum(subscripts: str, x: Value, y: Value | None = None) -> Value:
    """Sum products of one or two values in Einstein notation: `einsum("ij,jk->ik", x, y)` is `x @ y`.

    Args:
        subscripts: a letter per axis of each value, then `->` and the letters of the result. Letters missing from the
            result are summed over. A letter must not occur twice in one value, or in the result.
        x, y: one or two values.

    Raises:
        ShapeError: the subscripts do not fit the values.

    Shapes: the axes of x, y and the result as the subscripts name them.
    Gradient: for each value, the product of the gradient of the result with the other value.

    Source: numpy.einsum.

    >>> ab.einsum("ij,kj->ik", np.ones((2, 3)), np.ones((4, 3)))[0]
    array([3., 3., 3., 3.])
    """
    values = [x] if y is None else [x, y]
    given, out, sizes = _parse(subscripts, [known_shape(value, "einsum") for value in values])
    # First sum over letters that only one value has. The others are in both values (batch if also in the result, else
    # inner) or in one value and the result (rows, columns), so one stack of matrix products remains.
    for number, letters in enumerate(given):
        others = {*out, *(letter for other in given[:number] + given[number + 1 :] for letter in other)}
        alone = tuple(axis for axis, letter in enumerate(letters) if letter not in others)
        if alone:
            values[number] = reduction.sum(values[number], alone)
            given[number] = "".join(letter for letter in letters if letter in others)
    if y is None:
        return _ordered(values[0], given[0], out)
    left, right = given
    batch = "".join(letter for letter in left if letter in right and letter in out)
    inner = "".join(letter for letter in left if letter in right and letter not in out)
    rows, columns = ("".join(a for a in letters if a not in batch + inner) for letters in given)
    x, y = _ordered(values[0], left, batch + rows + inner), _ordered(values[1], right, batch + inner + columns)
    shapes = [tuple(sizes[letter] for letter in letters) for letters in (batch, rows, inner, columns)]
    product = reshape(_product(x, y, *shapes), shapes[0] + shapes[1] + shapes[3])
    return _ordered(product, batch + rows + columns, out)


def _parse(subscripts: str, shapes: Sequence[Shape]) -> tuple[list[str], str, dict[str, int]]:
    """Return the letters of the values and of the result, and the size of the axis of each letter."""
    text = subscripts.replace(" ", "")
    inputs, arrow, out = text.partition("->")
    given = inputs.split(",")
    fitting = len(given) == len(shapes) and all(len(a) == len(shape) for a, shape in zip(given, shapes, strict=False))
    letters = "".join(given)
    # The "a" is for scalars: without any letter, isalpha() is False.
    if not arrow or not fitting or not (f"{letters}{out}a").isalpha() or not {*out} <= {*letters}:
        raise ShapeError(
            f"subscripts of einsum must fit values of shapes {' and '.join(map(str, shapes))}, got {subscripts!r}: "
            f"a letter for each axis of each value, '->', and letters of the result that the values have."
        )
    if any(len({*part}) < len(part) for part in (*given, out)):
        raise ShapeError(
            f"subscripts of einsum must not repeat a letter in one value or in the result, got {subscripts!r}."
        )
    sizes: dict[str, int] = {}
    for letter, size in zip(letters, (size for shape in shapes for size in shape), strict=True):
        if sizes.setdefault(letter, size) != size:
            raise ShapeError(
                f"axes {letter!r} of einsum {subscripts!r} must have the same size, got {sizes[letter]} and {size}."
            )
    return given, out, sizes


def _ordered(x: Any, letters: str, wanted: str) -> Any:
    """Transpose `x`, whose axes have these letters, to the wanted order."""
    return x if letters == wanted else transpose(x, tuple(letters.index(letter) for letter in wanted))


def _product(x: Any, y: Any, batch: Shape, rows: Shape, inner: Shape, columns: Shape) -> Any:
    """Multiply x (*batch, *rows, *inner) by y (*batch, *inner, *columns), summed over the inner axes."""
    n, m, k = math.prod(batch), math.prod(rows), math.prod(inner)
    if not inner:
        return reshape(x, (n, m, 1)) * reshape(y, (n, 1, math.prod(columns)))
    if batch and not rows and not columns:
        return reduction.sum(reshape(x, (n, k)) * reshape(y, (n, k)), axis=1)
    lead = (n,) if batch else ()
    left = reshape(x, (*lead, *((m,) if rows or batch else ()), k))
    return matmul(left, reshape(y, (*lead, k, *((math.prod(columns),) if columns or batch else ()))))


FUNCTIONS["matmul"] = matmul
