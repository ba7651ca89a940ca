"""Compute the value and the gradients of a mini-batch from its runs.

`GradientSum` is the gradient of a weighted sum of losses; `LateGradientSum` is the same on a device that the call does
not wait for; `autobatch.engine.each_instance` has per-instance gradients. Losses must be one finite scalar per
instance; they, their weights and the gradients in `out=` are checked.

Gradients with respect to float arrays of instances are added up at the positions that each source read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from functools import cached_property
from itertools import repeat
from operator import is_
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import refusal
from autobatch.arrays import SILENT
from autobatch.backends.base import Run
from autobatch.devices.late import Late
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Clock, Step
from autobatch.engine.runner import Runner
from autobatch.errors import DataError, GraphError, NumericError, ShapeError
from autobatch.ir.arguments import Key
from autobatch.params.gradients import Gradients
from autobatch.params.parameter import Parameter
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.plan.budget import Part
from autobatch.plan.plan import Plan
from autobatch.trace.inputs import Inputs
from autobatch.trace.results import Slot, check_slots


class InputGradients:
    """The gradients with respect to all inputs of a mini-batch.

    Args:
        inputs: the inputs to differentiate with respect to.
        dtype: the type of the computation.

    Attributes:
        flat: the gradients with respect to all numbers of all inputs, concatenated.
    """

    def __init__(self, inputs: Inputs, dtype: np.dtype[Any]) -> None:
        self._inputs = inputs
        self.flat: NDArray[Any] = np.zeros(inputs.size, dtype)

    def add(self, plan: Plan, run: Run) -> None:
        """Add the gradients of a run, which has been differentiated, of some of the instances."""
        for type_id in self._inputs.source_types:
            # The first attribute of a source is the number of its read. It stays with the node through rewrites and
            # parts, so it tells which read each row of gradients belongs to.
            numbers = plan.data(type_id)[0][:, 0].tolist()
            if numbers:
                positions = np.concatenate([self._inputs.reads[number].ravel() for number in numbers])
                np.add.at(self.flat, positions, run.gradients(type_id).ravel())  # reads may overlap

    def structures(self) -> list[Any]:
        """Return each instance's structure with gradients in place of arrays; see `Inputs.structures`."""
        return self._inputs.structures(self.flat)


Array = NDArray[Any]


class Exchange(Protocol):
    """The exchange of values and gradients between the processes of a group, in one call."""

    def add(self, value: np.generic, grads: dict[str, Gradient], clock: Clock) -> np.generic:
        """Return the sum of the values of all processes, and add the other processes' gradients to `grads`."""

    def add_late(self, losses: LateLosses, grads: dict[str, Gradient], clock: Clock) -> Callable[[], np.generic]:
        """Add up losses on a device, and gradients; return a function that waits for the sum of the losses.

        The function raises a NumericError if a loss of another process is not finite.
        """

    def add_nothing(
        self, dtype: np.dtype[Any], names: Sequence[str], zeros: Callable[[Collection[str]], Gradients], clock: Clock
    ) -> tuple[np.generic, dict[str, Gradient]]:
        """Return the value and the gradients of the other processes if this one has no instances.

        Args:
            dtype: the type of the value.
            names: the names of the gradients.
            zeros: makes zero gradients, given the names of those that are `Rows`.
        """


class Differentiation(Protocol):
    """Differentiate the parts of a mini-batch one after the other, and collect the gradients."""

    def add(self, runner: Runner, step: Step, part: Part, instances: slice, run: Run) -> None:
        """Differentiate the run of a part, within its context.

        Args:
            instances: the positions of the part's instances.
        """

    def finish(self, exchange: Exchange | None, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        """Return the value and the gradients, once all parts have run.

        Args:
            exchange: adds up those of all processes; None for a single process.
        """


class GradientSum:
    """The gradients of a weighted sum of losses; see `Differentiation`.

    Args:
        slot: the slot of the losses.
        weights: the weight of each instance's loss (B,).
        grads: the gradients to add to; None for this thread's buffers, set to zero.
        inputs: the gradients with respect to inputs, to add to; None if they are not requested.
    """

    def __init__(
        self, slot: int, weights: Array, grads: dict[str, Gradient] | None, inputs: InputGradients | None = None
    ) -> None:
        self._slot, self._weights, self._grads, self._inputs = slot, weights, grads, inputs
        self._losses: list[Array] = []

    def add(self, runner: Runner, step: Step, part: Part, instances: slice, run: Run) -> None:
        """See `Differentiation`.

        Raises:
            NumericError: a loss is not finite.
        """
        losses = run.outputs[self._slot]
        check_finite(losses, instances.start)
        self._losses.append(losses)
        seeds = {self._slot: self._weights[instances].astype(losses.dtype)}
        self._grads = runner.backward(step, run, seeds, self._grads)
        if self._inputs is not None:
            self._inputs.add(part.plan, run)

    def finish(self, exchange: Exchange | None, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        """Return the weighted sum of the losses, and its gradients; see `Differentiation`."""
        assert self._grads is not None, "there are instances, and so parts"
        value = weighted_sum(np.concatenate(self._losses), self._weights)
        return value if exchange is None else exchange.add(value, self._grads, clock), self._grads


class LateGradientSum:
    """The gradients of a weighted sum of losses, computed asynchronously on a device; see `Differentiation`.

    `Gradients.finite` tells whether all losses are finite.

    Args:
        slot, weights, grads: as for `GradientSum`.
        losses: checks the losses on the device.

    Attributes:
        unread: reads the loss; None before all parts have run.
    """

    def __init__(self, slot: int, weights: Array, grads: dict[str, Gradient] | None, losses: LateLosses) -> None:
        self._slot, self._weights, self._grads, self._losses = slot, weights, grads, losses
        self._runs: list[Run] = []
        self.unread: UnreadLoss | None = None

    def add(self, runner: Runner, step: Step, part: Part, instances: slice, run: Run) -> None:
        weights = self._weights[instances]
        self._runs.append(run)
        self._losses.add(run.on_device(self._slot), weights)
        seeds = {self._slot: weights.astype(runner.parameters.dtype)}
        self._grads = runner.backward(step, run, seeds, self._grads)

    def finish(self, exchange: Exchange | None, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        """Return the weighted sum of the losses, which waits on first access, and its gradients."""
        grads, finite = self._grads, self._losses.finite
        assert grads is not None, "there are instances, and so parts"
        if isinstance(grads, Gradients):
            grads.finite = finite if grads.finite is None else grads.finite & finite  # earlier ones in `out=`
        whole = None if exchange is None else exchange.add_late(self._losses, grads, clock)
        self.unread = UnreadLoss(self._runs, self._slot, self._weights, whole)
        return Late(self.unread), grads


def join_columns(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Join the outputs of the runs of consecutive parts of a mini-batch."""
    return list(parts[0]) if len(parts) == 1 else [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def loss_weights(reduce: str | Sequence[float] | Array, n_instances: int, dtype: np.dtype[Any]) -> Array:
    """Return the weight of each instance's loss, float64 (B,); raise if one is not finite in the losses' `dtype`."""
    if isinstance(reduce, str):
        if reduce not in ("mean", "sum"):
            raise DataError(f"reduce= must be 'mean', 'sum', 'none' or an array of weights, got {reduce!r}.")
        weights = np.empty(n_instances)
        weights.fill(1.0 / n_instances if reduce == "mean" else 1.0)
        return weights
    try:
        weights = np.asarray(reduce, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise refusal("reduce=", "'mean', 'sum', 'none' or an array of weights", reduce) from None
    # NumPy converts None to NaN without an error.
    if reduce is None:
        raise refusal("reduce=", "'mean', 'sum', 'none' or an array of weights", reduce)
    if weights.shape != (n_instances,):
        raise ShapeError(
            f"reduce= must have one weight per instance, got weights of shape {weights.shape} for {n_instances} "
            f"instances."
        )
    with np.errstate(**SILENT):
        wrong = np.flatnonzero(~np.isfinite(weights.astype(dtype)))
    if wrong.size:
        first = wrong[0]
        raise DataError(f"reduce= must be finite numbers in {dtype.name}, got {weights[first]} for instance {first}.")
    return weights


def loss_slot(structures: Sequence[Any], has_aux: bool) -> int:
    """Return the slot of the loss in the structures that the function returned, one per instance.

    Raises:
        DataError: there are no instances.
        GraphError: the function did not return one scalar value per instance.
        ShapeError: the losses of some instances are ints.
    """
    if not structures:
        raise DataError("value_and_grad must be given at least one instance, got none, whose mean is undefined.")
    if all(map(is_, structures, repeat(structures[0]))):
        structures = structures[:1]  # structures are shared, so that one check is usually enough
    first: Slot | None = None
    for number, structure in enumerate(structures):
        if has_aux and not (isinstance(structure, Key) and structure.kind == "tuple" and len(structure.children) == 2):
            raise GraphError(
                f"with has_aux=True, the function must return (loss, aux); for instance {number} it returned something "
                f"else."
            )
        loss = structure.children[0] if has_aux else structure
        if not isinstance(loss, Slot) or loss.shape != ():
            what = f"a value of shape {loss.shape}" if isinstance(loss, Slot) else "several values or none"
            if isinstance(loss, Key) and loss.kind == "tuple" and not has_aux:
                raise GraphError(
                    f"value_and_grad needs a scalar loss; for instance {number} the function returned a tuple of "
                    f"{len(loss.children)}. If it returns (loss, aux), pass has_aux=True."
                )
            raise GraphError(
                f"value_and_grad needs a scalar loss; for instance {number} the function returned {what}. Sum the "
                f"terms of the loss; if there are none, return np.zeros(())."
            )
        first = first or loss
        if loss is not first:
            check_slots((first, loss))
    assert first is not None
    return first.number


def take_gradients(out: dict[str, Gradient], trainable: Mapping[str, Parameter], apart: bool) -> dict[str, Gradient]:
    """Check the gradients to add to; return `out` itself, or copies for `put_gradients` to write back.

    Args:
        apart: whether to copy all arrays, because a later loss may be refused. If an array's rows are not contiguous,
            all arrays are copied as well: kernels that add to them know only addresses.

    Raises:
        DataError: `out` is not a dict, or an array is read-only.
        ShapeError: `out` does not hold exactly one array or `Rows` per trainable parameter, of its shape and type.
    """
    _check_gradients(out, trainable)
    if not apart and all(_lies_in_rows(out[name], parameter.store) for name, parameter in trainable.items()):
        return out
    return {name: gradient.copy() for name, gradient in out.items()}


def _check_gradients(out: Mapping[str, Gradient], trainable: Mapping[str, Parameter]) -> None:
    advice = "pass gradients that an earlier call returned."
    if not isinstance(out, MutableMapping):
        raise DataError(f"out= must be a dict of gradients by parameter name, got a {type(out).__name__}; {advice}")
    stores = {name: parameter.store for name, parameter in trainable.items()}
    given = {name: _describe(gradient, stores.get(name, HOST)) for name, gradient in out.items()}
    wanted = {name: f"{p.dtype} of shape {p.shape}" for name, p in trainable.items()}
    if given != wanted:
        name = next(n for n in (*wanted, *given) if given.get(n) != wanted.get(n))
        what = [x.get(name, "nothing") for x in (given, wanted)]
        raise ShapeError(f"out= has {what[0]} for parameter {name!r}, whose gradient is {what[1]}; {advice}")
    for name, gradient in out.items():
        if isinstance(gradient, np.ndarray) and not gradient.flags.writeable:
            raise DataError(f"out= must hold writable arrays, got a read-only one for parameter {name!r}; {advice}")


def _describe(gradient: Any, store: Store) -> str:
    is_there = gradient.store is store if isinstance(gradient, Rows) else _is_array(gradient, store)
    return f"{gradient.dtype} of shape {gradient.shape}" if is_there else f"a {type(gradient).__name__}"


def _is_array(gradient: Any, store: Store) -> bool:
    """Return whether a gradient is an array in the memory of a device."""
    return isinstance(gradient, np.ndarray) if store is HOST else store.adopt(gradient) is gradient


def _lies_in_rows(gradient: Gradient, store: Store) -> bool:
    """Return whether backends can add to a gradient in place: `Rows`, or an aligned array of contiguous rows."""
    if isinstance(gradient, Rows):
        return True
    is_aligned = store is not HOST or gradient.flags.aligned  # arrays of devices always are
    if gradient.flags.c_contiguous or not gradient.size:
        return is_aligned
    # Rows must not overlap, as those of a broadcast array do, and must begin a whole number of elements apart.
    row, step = gradient[0], gradient.strides[0]
    fits = len(gradient) == 1 or (step >= row.nbytes and step % gradient.itemsize == 0)
    return fits and row.flags.c_contiguous and is_aligned


def put_gradients(out: dict[str, Gradient], gradients: dict[str, Gradient]) -> dict[str, Gradient]:
    """Write `gradients` to `out` and return it: arrays in place, `Rows` by replacing the entry."""
    if out is gradients:
        return out
    for name, gradient in gradients.items():
        place = out[name]
        if not isinstance(place, Rows) and not isinstance(gradient, Rows):
            place[...] = gradient
        else:
            out[name] = gradient
    return out


def add_gradients(out: dict[str, Gradient], gradients: Mapping[str, Gradient]) -> dict[str, Gradient]:
    """Add `gradients` to `out` and return it: in place, except that `Rows` plus an array become a new array."""
    for name, gradient in gradients.items():
        place = out[name]
        if isinstance(gradient, Rows) and not isinstance(place, Rows):
            gradient.add_to(place)
        elif isinstance(place, Rows) and not isinstance(gradient, Rows):
            whole = gradient.copy()
            place.add_to(whole)
            out[name] = whole
        else:
            place += gradient  # type: ignore[operator]
    return out


class LateLosses:
    """Asynchronous checks of the losses of a mini-batch, on the device.

    Args:
        store: the memory of the device.
        with_total: whether to add up the losses.

    Attributes:
        finite: an array of one bool, whether all losses are finite; None before the first loss.
        total: an array of one number, their weighted sum; None before the first loss, or if it is not computed.
    """

    def __init__(self, store: Store, with_total: bool) -> None:
        self._store, self._with_total = store, with_total
        self.finite: Any = None
        self.total: Any = None

    def add(self, losses: Any, weights: Array) -> None:
        """Add the losses of some instances, given as an array of the device."""
        finite = self._store.xp.isfinite(losses).all(keepdims=True)
        self.finite = finite if self.finite is None else self.finite & finite
        if self._with_total:
            total = (losses * self._store.put(weights.astype(losses.dtype))).sum(keepdims=True)
            self.total = total if self.total is None else self.total + total


class UnreadLoss:
    """A function without arguments that reads the weighted sum of the losses of a mini-batch from the device.

    Args:
        runs: the runs of the mini-batch's parts, whose outputs are read.
        slot: the slot of the losses.
        weights: the weight of each instance's loss (B,).
        whole: returns the sum over all processes of a group; None for a single process.
    """

    def __init__(
        self, runs: Sequence[Run], slot: int, weights: Array, whole: Callable[[], np.generic] | None = None
    ) -> None:
        self._runs, self._slot, self._weights, self._whole = list(runs), slot, weights, whole
        self._is_read = False

    def __call__(self) -> np.generic:
        """Wait for the losses, and return their weighted sum.

        Raises:
            NumericError: a loss is not finite, here or in another process.
        """
        # Set before reading: an error that the caller gets here is not raised again by the next step.
        self._is_read = True
        losses = self._losses
        check_finite(losses)
        return weighted_sum(losses, self._weights) if self._whole is None else self._whole()

    def check(self) -> None:
        """Wait for losses that were not read yet, and raise a NumericError if one is not finite."""
        if not self._is_read:
            self()

    @cached_property
    def _losses(self) -> Array:
        losses = np.concatenate([run.outputs[self._slot] for run in self._runs])
        self._runs.clear()  # frees their outputs
        return losses


def weighted_sum(losses: Array, weights: Array) -> np.generic:
    """Return the weighted sum of losses, added up in float64 (the dtype of weights) and rounded to their dtype."""
    found: np.generic = np.add.reduce(weights * losses).astype(losses.dtype)
    return found


def check_finite(losses: Array, first: int = 0) -> None:
    """Raise a NumericError if a loss is NaN or infinite; `first` is the number of the first instance."""
    finite = np.isfinite(losses)
    if not np.logical_and.reduce(finite):
        wrong = np.flatnonzero(~finite)
        raise NumericError(
            f"the loss of {wrong.size} of {losses.size} instances is not finite (instance {first + wrong[0]}: "
            f"{losses[wrong[0]]}); their gradients are not used. Lower the learning rate, clip gradients, or call the "
            f"function directly on that instance to find where the value arises."
        )
