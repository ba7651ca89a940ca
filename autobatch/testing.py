"""Checks for users' own models (gradients, batched against eager results) and files for bug reports."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from autobatch.api import Batched, batched
from autobatch.arguments import check_int, refusal
from autobatch.errors import NumericError
from autobatch.keywords import checked
from autobatch.ops.randomness import check_generator, randomness
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.trace.awaiting import eager

__all__ = ["check_batched", "check_grads", "dump"]


@checked()
def check_grads(
    loss: Batched,
    instances: Sequence[Any],
    module: Module,
    rng: np.random.Generator,
    directions: int = 3,
    step: float = 1e-5,
    tolerance: float = 1e-6,
) -> None:
    """Compare gradients along random directions with central differences of the loss.

    Along a direction v over all trainable parameters, sum(grad * v) must equal
    (L(p + step v) - L(p - step v)) / (2 step).

    Args:
        loss: a batched function that returns a scalar per instance.
        instances: a mini-batch, whose mean loss is differentiated.
        module: the owner of the parameters, in float64 (`module.astype("float64")`); unchanged afterwards.
        rng: generator for the directions.
        directions: number of directions.
        step: step size to both sides, in the units of the parameters.
        tolerance: largest difference, relative to the larger side plus one.

    Raises:
        NumericError: the two sides differ; the message gives both.
    """
    parameters = {name: p for name, p in module.parameters().items() if p.trainable}
    check_generator(rng)
    directions = check_int("directions of check_grads", directions, at_least=1, below=2**31)
    if not 0 < step < math.inf:
        raise refusal("step of check_grads", "a finite number above 0", step)
    start = {name: p.data.copy() for name, p in parameters.items()}
    random_step = loss.step
    _, grads = loss.value_and_grad(instances)
    loss.step = random_step  # the differences below draw the same masks
    grads = {name: np.array(g) for name, g in grads.items()}

    def mean_loss_at(along: dict[str, Any], distance: float) -> float:
        for name, parameter in parameters.items():
            parameter.data = start[name] + distance * along[name]
        return float(np.mean(loss(instances), dtype=np.float64))

    try:
        for _ in range(directions):
            along = {name: rng.standard_normal(p.shape) for name, p in parameters.items()}
            slope = sum(float((grads[name] * v).sum()) for name, v in along.items())
            difference = (mean_loss_at(along, step) - mean_loss_at(along, -step)) / (2 * step)
            if not abs(slope - difference) <= tolerance * (1 + max(abs(slope), abs(difference))):
                message = f"sum(grad * v) is {slope:.10g}, the central difference {difference:.10g}"
                raise NumericError(f"gradient check: {message}{_advice(start)}.")
    finally:
        for name, parameter in parameters.items():
            parameter.data = start[name]


def _advice(parameters: Mapping[str, Any]) -> str:
    """Return the advice for float32 parameters, or ""."""
    is_single = any(array.dtype == np.float32 for array in parameters.values())
    advice = '; in float32, central differences are inaccurate: call module.astype("float64")'
    return advice if is_single else ""


@checked()
def check_batched(
    function: Callable[[Any], Any], loss: Batched, instances: Sequence[Any], tolerance: float = 1e-10
) -> None:
    """Compare a batched call with eager calls on one instance at a time, with the same random numbers.

    Args:
        function: a function of one instance; an async function runs by `ab.eager`.
        loss: the same function, batched.
        instances: a mini-batch.
        tolerance: largest difference; the default is for float64 (`module.astype("float64")`), use about 1e-4 for
            float32.

    Raises:
        NumericError: the results differ by more than `tolerance`, relative to the largest number plus one.
    """
    expected = []
    for key, x in enumerate(instances):
        with randomness(loss.seed, loss.step, key):
            expected.append(eager(function, x))
    _check_equal(expected, loss(instances), tolerance)


def _check_equal(expected: list[Any], stacked: Any, tolerance: float) -> None:
    if is_dataclass(stacked):
        for f in fields(stacked):
            _check_equal([getattr(e, f.name) for e in expected], getattr(stacked, f.name), tolerance)
        return
    if isinstance(stacked, (tuple, dict)):
        for key in stacked if isinstance(stacked, dict) else range(len(stacked)):
            _check_equal([e[key] for e in expected], stacked[key], tolerance)
        return
    for i, (one, row) in enumerate(zip(expected, stacked, strict=True)):
        if isinstance(one, list):
            for part, other in zip(one, row, strict=True):
                _check_equal([part], [other], tolerance)
            continue
        one = one.data if isinstance(one, Parameter) else one  # an argument that a cell passed through
        error = float(np.max(np.abs(np.asarray(one) - row), initial=0.0))
        if not error <= tolerance * (1 + float(np.max(np.abs(one), initial=0.0))):
            raise NumericError(f"instance {i}: batched differs from eager by {error:.3g}; eager gives {one}.")


@checked()
def dump(
    function: Callable[[Any], Any] | Batched,
    instances: Iterable[Any],
    path: str | os.PathLike[str],
    *,
    training: bool = False,
    has_aux: bool = False,
    values: bool = True,
) -> None:
    """Write the computation of a mini-batch to one file for a bug report, without your source code.

    The file holds the programs of the called cells, the graph of their calls, the ints and floats among their
    arguments, the options of the function, and versions. In a checkout of autobatch, `python tools/fuzz.py --replay
    FILE` runs it batched and one instance at a time, and shrinks it as long as it fails.

    Args:
        function: a batched function, or a function of one instance, which is batched with the defaults of
            `autobatch.batched`.
        instances: as for a call. An async function is run, and the file holds the numbers that it awaited.
        path: file to write, such as "case.zip"; an existing one is replaced atomically.
        training: whether the failure is in `value_and_grad`.
        has_aux: as for `value_and_grad`.
        values: whether to write the numbers of parameters as well as their shapes. Without them, a failure that
            depends on numbers may not be reproduced.

    Raises:
        GraphError: a cell depends on a value that a file cannot hold; or in training, the function returns no loss.
        DataError: there are no instances, or the file cannot be written.

    >>> import tempfile
    >>> import autobatch as ab
    >>> @ab.cell
    ... def double(x):
    ...     return 2.0 * x
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ab.testing.dump(ab.batched(double), [np.ones(3), np.zeros(3)], f"{folder}/case.zip")
    """
    from autobatch.deploy.cases import make_case, write_case

    made = function if isinstance(function, Batched) else batched(function)
    write_case(make_case(made, instances, training, has_aux), path, values)
