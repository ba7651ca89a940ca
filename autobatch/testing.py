"""For users' own models: gradients against central differences, batched against eager, and reports of errors."""

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
    """Compare the gradient along random directions with central differences of the loss.

    Along a direction v over all trainable parameters, sum(grad * v) must equal
    (L(p + step v) - L(p - step v)) / (2 step).

    Args:
        loss: batched; its function returns a scalar.
        instances: a mini-batch, whose mean loss is differentiated.
        module: the parameters' owner, in float64 (`module.astype("float64")`); unchanged afterwards.
        rng: draws the directions.
        directions: how many.
        step: how far the parameters go, in their units, to both sides.
        tolerance: of the difference, relative to the larger side plus one.

    Raises:
        NumericError: they differ; the message gives both.
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
    """What to try first where numbers differ."""
    is_single = any(array.dtype == np.float32 for array in parameters.values())
    return '; the module is in float32, where differences are rough: call module.astype("float64")' if is_single else ""


@checked()
def check_batched(
    function: Callable[[Any], Any], loss: Batched, instances: Sequence[Any], tolerance: float = 1e-10
) -> None:
    """Compare a batched call with the function called on one instance at a time, with the same random numbers.

    Args:
        function: of one instance; an async one runs by `ab.eager`.
        loss: the same, batched.
        instances: a mini-batch.
        tolerance: for a module in float64 (`module.astype("float64")`); in float32 give about 1e-4.

    Raises:
        NumericError: they differ by more than `tolerance`, relative to the largest number plus one.
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
    """Write a mini-batch to one file that a report of an error can hold: what it computes, without your code.

    The file has the programs of the cells that are called, which of them reads what of which, the ints and floats that
    they are given, the options of the function, and versions. `python tools/fuzz.py --replay FILE`, in a checkout of
    autobatch, runs it batched and one instance at a time, and makes it smaller for as long as it fails.

    Args:
        function: batched, or over one instance, which is then batched as `autobatch.batched` does by default.
        instances: as for a call. An async function runs for it, and what it awaited is in the file as numbers.
        path: of the file, such as "case.zip"; one that exists is replaced once all is written.
        training: what fails is `value_and_grad`.
        has_aux: as it is given to that.
        values: whether the numbers of parameters are in the file. Without them it has their shapes alone, and what
            depends on numbers may not fail there.

    Raises:
        GraphError: a cell depends on something that no file can hold; or in training, the function returns no loss.
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
