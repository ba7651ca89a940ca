"""The rules of the optimizers, compiled: each number of a parameter, and of its state, is read and written once.

A rule changes some numbers, `data`, and their state, `first` and `second`, by the gradient of each; `constants` are
its hyperparameters, in the dtype of the parameter. The number of state arrays selects the rule when it is compiled:
none is plain descent, one is momentum, two are the moments of Adam. Every operation is rounded as NumPy rounds it, so
the order of rows, and the number of rows processed together, changes no bit.

A row of 64 numbers takes 15 ns. With slices it would take 100 ns, because Numba counts references to arrays. Signed
indices, which may count from the end, would prevent vectorisation of the loop.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.jit.loops import compiled
from autobatch.optim.change import N_CONSTANTS

Array = NDArray[Any]
LongArray = NDArray[np.int64]

ONLY, TOUCHED, ALL = range(3)
"""Which rows change: those with a gradient; those that ever had one too; all."""
PROBE = N_CONSTANTS
"""After the constants come a number, its state and its gradient, on which the rule is tried."""
N_ZEROS = 4096
"""Numbers without a gradient that are processed together."""
PROBE_SPAN = (PROBE, 0, PROBE + 3, 1)
unsigned = np.uint64
Span: TypeAlias = tuple[int, int, int, int]
"""Consecutive numbers: the index of the first in the data, in the state and in the gradient, and their count."""
Lying: TypeAlias = tuple[int, int, int]
"""Rows in memory: their count, the numbers in each, and the numbers from one row's beginning to the next."""


@compiled
def update(data: Array, first: Array | None, second: Array | None, grad: Array, constants: Array, span: Span) -> None:
    """Change consecutive numbers by the rule that the number of state arrays selects."""
    if first is None:
        update_plainly(data, grad, constants, span)
    elif second is None:
        update_by_momentum(data, first, grad, constants, span)
    else:
        update_by_moments(data, first, second, grad, constants, span)


@compiled
def rows_that_change(which: int, first: Array | None, second: Array | None, constants: Array) -> int:
    """Determine which rows the rule changes: rows without a gradient are skipped if they would stay the same.

    The rule is tried on one number whose gradient and state are zero; it treats all such numbers alike.
    """
    if which == ONLY:
        return ONLY
    constants[PROBE], constants[PROBE + 1 :] = 1, 0
    if first is None:
        update(constants, None, None, constants, constants, PROBE_SPAN)
    elif second is None:
        update(constants, constants[PROBE + 1 :], None, constants, constants, PROBE_SPAN)
    else:
        update(constants, constants[PROBE + 1 :], constants[PROBE + 2 :], constants, constants, PROBE_SPAN)
    if constants[PROBE] != 1 or constants[PROBE + 1] != 0 or constants[PROBE + 2] != 0:
        return ALL
    return ONLY if first is None else TOUCHED


@compiled
def update_plainly(data: Array, grad: Array, constants: Array, span: Span) -> None:
    """Change numbers without state; constants: lr and decay."""
    at, _, of, size = span
    lr, decay = constants[0], constants[1]
    for i in range(size):
        a, g = unsigned(at + i), grad[unsigned(of + i)]
        if decay != 0:
            g = data[a] * decay + g
        data[a] = data[a] - g * lr


@compiled
def update_by_momentum(data: Array, velocity: Array, grad: Array, constants: Array, span: Span) -> None:
    """Change numbers by their velocity; constants: lr, decay, momentum, and 1 for Nesterov's form or 0."""
    at, own, of, size = span
    lr, decay, momentum, nesterov = constants[0], constants[1], constants[2], constants[3]
    for i in range(size):
        a, s, g = unsigned(at + i), unsigned(own + i), grad[unsigned(of + i)]
        if decay != 0:
            g = data[a] * decay + g
        v = velocity[s] * momentum + g
        velocity[s] = v
        if nesterov != 0:
            v = v * momentum + g
        data[a] = data[a] - v * lr


@compiled
def update_by_moments(data: Array, mean: Array, mean_square: Array, grad: Array, constants: Array, span: Span) -> None:
    """Change numbers by their moments.

    Constants: the rate, the decay that is added to the gradient, both betas, 1 - each, the root of 1 - beta_2**step,
    eps, and the factor by which the numbers shrink first.
    """
    at, own, of, size = span
    rate, decay, beta_1, beta_2 = constants[0], constants[1], constants[2], constants[3]
    share_1, share_2, root, eps, shrink = constants[4], constants[5], constants[6], constants[7], constants[8]
    for i in range(size):
        a, s, g = unsigned(at + i), unsigned(own + i), grad[unsigned(of + i)]
        x = data[a] * shrink
        if decay != 0:
            g = x * decay + g
        m = mean[s] * beta_1 + g * share_1
        v = mean_square[s] * beta_2 + g * g * share_2
        mean[s], mean_square[s] = m, v
        data[a] = x - m / (sqrt(v) / root + eps) * rate


@compiled
def update_dense(
    rows: Lying, data: Array, first: Array | None, second: Array | None, grad: Array, grad_step: int, constants: Array
) -> None:
    """Change all rows of a parameter.

    Args:
        rows: of `data`.
        data, grad: flat, from the first number on; the rows of `grad` begin `grad_step` numbers apart.
        first, second: flat, with contiguous rows.
    """
    n_rows, width, step = rows
    if step == width and grad_step == width:
        n_rows, width = 1, n_rows * width
    for row in range(n_rows):
        update(data, first, second, grad, constants, (row * step, row * width, row * grad_step, width))


@compiled
def update_rows(
    which: int, rows: Lying, data: Array, first: Array | None, second: Array | None,
    gradient: tuple[LongArray, Array, Array], zeros: Array, constants: Array,
) -> None:  # fmt: skip
    """Change rows of a parameter whose gradient is `Rows`.

    Args:
        which: ONLY or ALL; rows that the rule does not change are skipped (`rows_that_change`).
        rows, data, first, second: as for `update_dense`.
        gradient: the ids of its rows, increasing; their values, flat; and for each row of the parameter whether it ever
            had a gradient, in which the ids are marked.
        zeros: N_ZEROS zeros, or the width of a row if that is more.
    """
    n_rows, width, step = rows
    ids, values, touched = gradient
    which = rows_that_change(which, first, second, constants)
    row = 0
    together = zeros.size // max(width, 1) if step == width else 1
    for at in range(ids.size + 1):
        stop = ids[at] if at < ids.size else n_rows
        while which != ONLY and row < stop:
            if which == TOUCHED and not touched[row]:
                row += 1
                continue
            end, limit = row + 1, min(stop, row + together)
            while end < limit and (which == ALL or touched[end]):
                end += 1
            update(data, first, second, zeros, constants, (row * step, row * width, 0, (end - row) * width))
            row = end
        if at < ids.size:
            touched[stop] = True
            update(data, first, second, values, constants, (stop * step, stop * width, at * width, width))
            row = stop + 1
