"""Read or scale the rows that backward leaves, before the weight stage of a run adds them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.by_instance.reads import derivatives_of, reads_of
from autobatch.backends.by_instance.weights import InstanceWeights
from autobatch.backends.interpret import Interpreter
from autobatch.backends.segments import cut
from autobatch.backends.values import Activity, Array
from autobatch.ir.derivative import Derivative
from autobatch.ir.program import NODE


def read_gradients(into: Mapping[int, Array], interpreter: Interpreter, activity: Activity) -> bool:
    """Add the gradients of each instance to arrays; return False, because the weight stage need not run.

    Args:
        into: by `id` of each parameter, zeros (B, *shape), C-contiguous and in the parameter's store, for the B
            instances of the run.
    """
    weights, store, options = InstanceWeights(interpreter, activity), interpreter.store, interpreter.options
    for read in reads_of(derivatives_of(interpreter.plan, interpreter.cells), into.keys(), joined=False):
        out = into[id(read.parameter)]
        for number, source in enumerate(read.sources):
            for first, end in cut(source.need(weights.counts)):
                if options.store is store:
                    weights.add(source, out[first:end], first, is_zero=number == 0)
                else:
                    there = store.xp.zeros(out[first:end].shape, options.dtype)
                    weights.add(source, there, first, is_zero=True)
                    out[first:end] += store.get(there)
    return False


def scale_rows(
    parameters: frozenset[int],
    factors_of: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    interpreter: Interpreter,
    activity: Activity,
) -> bool:
    """Scale each instance's contributions to gradients by a factor that depends on the norm of its gradient.

    Args:
        parameters: the `id`s of the parameters whose gradients count for the norm.
        factors_of: returns the factors (B,), given the norms (B,), float64.

    Returns:
        True, because the weight stage adds up the scaled contributions.
    """
    derivatives = derivatives_of(interpreter.plan, interpreter.cells)
    weights = InstanceWeights(interpreter, activity)
    factors = factors_of(np.sqrt(weights.squares(reads_of(derivatives, parameters, joined=True))))
    for type_id, derivative in derivatives.items():
        _scale_type(type_id, derivative, factors, weights, interpreter)
    return True


def _scale_type(
    type_id: int,
    derivative: Derivative,
    factors: NDArray[np.float64],
    weights: InstanceWeights,
    interpreter: Interpreter,
) -> None:
    """Multiply the saved rows of a type that are linear in the gradients by the factors of their instances.

    Each column is multiplied once, although a value may be part of another one.
    """
    layout, plan, store = interpreter.cells.cells[type_id].layout, interpreter.plan, interpreter.store
    places, buffer = [layout.saved[index] for index in derivative.linear], interpreter.values.buffer
    for domain in {place.domain for place in places}:
        width = layout.saved_width[domain - NODE]
        columns = np.zeros(width + 2, bool)
        for place in places:
            if place.domain == domain:
                columns[1 + place.column : 1 + place.column + place.width] = True
        instance = weights.rows(type_id, domain).instance
        first = int(plan.saved_base[plan.first_block(type_id) + domain - NODE])
        area = buffer[first : first + instance.size * width].reshape(instance.size, width)
        per_row = store.put(factors[instance].astype(buffer.dtype)[:, None])
        edges = np.flatnonzero(columns[1:] != columns[:-1]).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            area[:, begin:end] *= per_row
