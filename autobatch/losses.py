"""What training asks of losses and gradients: one finite scalar per instance, weights, and buffers that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import Key
from autobatch.errors import DataError, GraphError, NumericError, ShapeError
from autobatch.graph import Graph
from autobatch.module import Parameter
from autobatch.results import Slot, SlotTable
from autobatch.rows import Gradient

Array = NDArray[Any]


def loss_weights(reduce: str | Sequence[float] | Array, n_instances: int) -> Array:
    """The factor of each instance's loss, float64 (B,)."""
    if n_instances == 0:
        raise DataError("value_and_grad of no instances: their mean has no value; give at least one instance.")
    if isinstance(reduce, str):
        if reduce not in ("mean", "sum"):
            raise DataError(f"reduce={reduce!r}: it is 'mean', 'sum' or an array of weights.")
        return np.full(n_instances, 1.0 / n_instances if reduce == "mean" else 1.0)
    try:
        weights = np.asarray(reduce, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"reduce={reduce!r}: it is 'mean', 'sum' or an array of weights.") from None
    if weights.shape != (n_instances,):
        raise ShapeError(
            f"reduce= has weights of shape {weights.shape} for {n_instances} instances; give one for each."
        )
    if not np.isfinite(weights).all():
        raise DataError(f"reduce= has weights that are not finite: {weights}; give a number for each instance.")
    return weights


def loss_slot(graph: Graph, slots: SlotTable, has_aux: bool) -> int:
    """The slot of the loss; GraphError if the function did not return one scalar value per instance."""
    for number, structure in enumerate(graph.structures):
        if has_aux and not (isinstance(structure, Key) and structure.kind == "tuple" and len(structure.children) == 2):
            raise GraphError(f"with has_aux=True the function returns (loss, aux); for instance {number} it did not.")
        loss = structure.children[0] if has_aux else structure
        if not isinstance(loss, Slot) or slots.shapes[loss.number] != ():
            what = f"a value of shape {slots.shapes[loss.number]}" if isinstance(loss, Slot) else "no single value"
            raise GraphError(
                f"value_and_grad needs a scalar loss; for instance {number} the function returned {what}. Sum what the "
                f"loss is made of; where there is nothing to compute, return np.zeros(())."
            )
    first = graph.structures[0]
    return int((first.children[0] if has_aux else first).number)


def zeros_like(array: Array, buffer: Gradient | None) -> Array:
    """`buffer`, filled with zeros, if it is an array of the shape and dtype of `array`; else a new array."""
    if not isinstance(buffer, np.ndarray) or (buffer.shape, buffer.dtype) != (array.shape, array.dtype):
        return np.zeros_like(array)
    buffer.fill(0)
    return buffer


def check_gradients(out: Mapping[str, Gradient], trainable: Mapping[str, Parameter]) -> None:
    """Refuse gradients to add to that are not those of the trainable parameters."""
    given = {name: (np.shape(g), getattr(g, "dtype", None)) for name, g in out.items()}
    wanted = {name: (p.shape, p.dtype) for name, p in trainable.items()}
    if given != wanted:
        name = next(n for n in (*wanted, *given) if given.get(n) != wanted.get(n))
        what = ["{0[1]} of shape {0[0]}".format(x[name]) if name in x else "nothing" for x in (given, wanted)]
        raise ShapeError(
            f"out= has {what[0]} for parameter {name!r}, whose gradient is {what[1]}; give gradients as an earlier "
            f"call returned them."
        )


def copy_gradients(
    out: Mapping[str, Gradient] | None, trainable: Mapping[str, Parameter]
) -> dict[str, Gradient] | None:
    """Gradients to add to, checked, in arrays of their own, for a later loss may be refused; None for None."""
    if out is None:
        return None
    check_gradients(out, trainable)
    return {name: gradient.copy() for name, gradient in out.items()}


def put_gradients(out: dict[str, Gradient], gradients: Mapping[str, Gradient]) -> None:
    """Change `out` to `gradients`: arrays in place, `Rows` and what has become an array since by replacing them."""
    for name, gradient in gradients.items():
        place = out[name]
        if isinstance(place, np.ndarray) and isinstance(gradient, np.ndarray):
            place[...] = gradient
        else:
            out[name] = gradient


def check_finite(losses: Array, first: int = 0) -> None:
    """Refuse losses that are NaN or infinite; `first` is the number of the first instance."""
    finite = np.isfinite(losses)
    if not finite.all():
        wrong = np.flatnonzero(~finite)
        raise NumericError(
            f"the loss of {wrong.size} of {losses.size} instances is not finite (instance {first + wrong[0]}: "
            f"{losses[wrong[0]]}); no gradient was computed. Lower the learning rate, clip gradients, or call the "
            f"function directly on that instance to see where the number comes from."
        )
