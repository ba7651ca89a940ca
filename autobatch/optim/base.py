"""The base of all optimizers: takes gradients by name, and changes parameters in place.

An optimizer holds the parameters that its model had when it was made, under the names of `Module.parameters`, and
state of the same shapes; it checks all gradients before it changes the first parameter. A step is one compiled pass
over each parameter, its state and its gradient (`autobatch.optim.rules`), and allocates nothing.

A gradient given as `Rows` stands for the dense array, with zeros in all other rows: the moments of those rows decay and
their values change, as with torch's dense gradients. Rows that never had a gradient have a state of zero. They are
skipped if the rule would not change them, which holds without weight decay. Skipping changes no bit; it saves less the
more rows had a gradient. Which rows had one follows from their state and is not stored.

With `lazy=True`, `Rows` are a step of their rows alone: values, state and weight decay of these rows are those of a
dense step, and all other rows keep their values and their state. Steps are counted per parameter, for all rows
together. A dense gradient is a step of all rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import CheckpointError, DataError, GraphError, ShapeError
from autobatch.ops.eager import plain_array
from autobatch.optim.group import Group, Overrides, assign_groups, check_overrides
from autobatch.optim.rules import ALL, N_NUMBERS, N_ZEROS, ONLY, update_dense, update_rows
from autobatch.params.module import Module, check_entries
from autobatch.params.parameter import FloatArray, Shape
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.system.turns import run_lock


class OptimizerState(TypedDict):
    """The state with which an optimizer continues exactly as without an interruption."""

    kind: str
    """Name of the optimizer's class."""
    options: dict[str, float]
    """The hyperparameters, by name."""
    overrides: Overrides
    """Parameter name to the hyperparameters that its group changes."""
    steps: dict[str, int]
    """Number of steps of each parameter, by name."""
    arrays: dict[str, FloatArray]
    """A copy of every state array, by slot and parameter name: `mean.layers.0.weight`."""


class Lines(NamedTuple):
    """An array as compiled code reads it: rows of consecutive numbers that begin `step` numbers apart."""

    array: FloatArray
    """The array itself."""
    flat: FloatArray
    """A view of the memory from the first number to the last."""
    n_rows: int
    width: int
    step: int


@dataclass
class Job:
    """The memory that the passes over a parameter read and write, looked up once."""

    data: Lines
    state: tuple[FloatArray | None, FloatArray | None]
    """Flat."""
    grad: Lines | None = None


class Optimizer(ABC):
    """Names, checks, groups, passes over parameters, and stored state.

    Args:
        model: its present parameters are used; later additions are ignored.
        slots: names of the state arrays kept for each parameter, zeros at first.
        options: the hyperparameters by name, each within `limits`.
        groups: parameters with a learning rate or weight decay of their own.

    Raises:
        DataError: an option is out of range, or a group selects no parameter.
    """

    limits: ClassVar[Mapping[str, float]]
    """For each option the number that it must stay below; no option may be negative."""

    def __init__(
        self, model: Module, slots: Sequence[str], options: Mapping[str, float], groups: Sequence[Group] = ()
    ) -> None:
        self._check_options(options)
        if not isinstance(model, Module):
            raise DataError(
                f"cannot make {type(self).__name__} of a {type(model).__name__}: it takes the module itself, as in "
                f"{type(self).__name__}(model)."
            )
        self._model, self._model_name = model, type(model).__name__
        self._parameters = model.parameters()
        self._options = {option: float(value) for option, value in options.items()}
        self._overrides = assign_groups(f"cannot make {type(self).__name__}", groups, self._parameters)
        self._steps = dict.fromkeys(self._parameters, 0)
        self._state = {
            name: {slot: np.zeros(parameter.shape, parameter.dtype) for slot in slots}
            for name, parameter in self._parameters.items()
        }
        self._touched: dict[str, NDArray[np.bool_]] = {}
        self._jobs: dict[str, Job] = {}
        self._constant_arrays: dict[np.dtype[Any], FloatArray] = {}
        self._constants_for: tuple[Any, ...] = ()
        self._zeros: dict[np.dtype[Any], FloatArray] = {}

    @property
    def lr(self) -> float:
        """The learning rate; may be set between steps.

        Raises:
            DataError: it is set to a negative number, infinity or NaN.
        """
        return self._options["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        self._check_options({"lr": value})
        self._options["lr"] = float(value)

    def step(self, grads: Mapping[str, Gradient]) -> None:
        """Change every trainable parameter once, in place.

        Args:
            grads: parameter name to gradient, an array or `Rows` of the parameter's shape, for every trainable
                parameter; gradients of other parameters are ignored. They are only read.

        Raises:
            GraphError: a name is unknown or missing, or stands for another parameter than before.
            ShapeError: a gradient's shape is not its parameter's.
            DataError: a gradient is not an array of numbers. In all cases nothing has changed.
        """
        with run_lock():
            for name, grad in self._read_grads(grads).items():
                self._steps[name] += 1
                self._change(name, self._parameters[name].array, grad)
                self._parameters[name].note_change()

    def state_dict(self) -> OptimizerState:
        """Copy everything that the next step depends on, except the parameters."""
        return {
            "kind": type(self).__name__,
            "options": dict(self._options),
            "overrides": {name: dict(own) for name, own in self._overrides.items()},
            "steps": dict(self._steps),
            "arrays": {key: array.copy() for key, array in self._state_arrays().items()},
        }

    def load_state_dict(self, state: OptimizerState) -> None:
        """Continue from a stored state: hyperparameters, those of groups included, counts and arrays.

        Raises:
            CheckpointError: it was stored by another optimizer or for another model.
            DataError: a hyperparameter is out of range. In both cases nothing has changed.
        """
        doing = check_kind("optimizer", self, state, OptimizerState.__required_keys__)
        check_entries(doing, dict.fromkeys(state["options"], ()), dict.fromkeys(self._options, ()))
        check_entries(doing, dict.fromkeys({**self._steps, **state["overrides"]}, ()), dict.fromkeys(self._steps, ()))
        check_entries(doing, dict.fromkeys(state["steps"], ()), dict.fromkeys(self._steps, ()))
        check_entries(doing, _shapes(state["arrays"]), _shapes(self._state_arrays()))
        self._check_options(state["options"])
        for name, own in state["overrides"].items():
            check_overrides(f"load the group of {name!r}", own)
        arrays = {
            (name, slot): np.array(state["arrays"][f"{slot}.{name}"], parameter.dtype, order="C")
            for name, parameter in self._parameters.items()
            for slot in self._state[name]
        }
        self._options = {option: float(value) for option, value in state["options"].items()}
        self._overrides = {name: dict(own) for name, own in state["overrides"].items()}
        self._steps = dict(state["steps"])
        for (name, slot), array in arrays.items():
            self._state[name][slot] = array
        self._touched.clear()
        self._jobs.clear()
        self._constants_for = ()

    @abstractmethod
    def _constants(self, step: int, lr: float, weight_decay: float) -> tuple[float, ...]:
        """Compute the constants of the rule (`autobatch.optim.rules`) at a step; the first step is 1."""

    def _change(self, name: str, data: FloatArray, grad: Gradient) -> None:
        """Change a parameter and its state, in place."""
        known = self._jobs.get(name)
        if known is None or known.data.array is not data:
            known = self._jobs[name] = self._prepare(name, data)
        (flat, n_rows, width, step), (first, second) = known.data[1:], known.state
        constants = self._fill_constants(name, data.dtype)
        if isinstance(grad, Rows):
            ids, values = np.asarray(grad.ids, np.int64), np.asarray(grad.values, data.dtype, order="C").reshape(-1)
            zeros = _lend(self._zeros, data.dtype, max(N_ZEROS, width))
            update_rows(
                ONLY if self._options["lazy"] else ALL, (n_rows, width, step), flat, first, second,
                (ids, values, self._touched_rows(name, n_rows)), zeros, constants,
            )  # fmt: skip
        else:
            if name in self._touched:
                self._touched[name].fill(True)
            if known.grad is None or known.grad.array is not grad:
                known.grad = to_lines(np.asarray(grad, data.dtype))
            update_dense((n_rows, width, step), flat, first, second, known.grad.flat, known.grad.step, constants)
        if known.data.array is not data:
            data[...] = known.data.array

    def _prepare(self, name: str, data: FloatArray) -> Job:
        state = self._state[name]
        for slot, array in state.items():
            state[slot] = array.astype(data.dtype, copy=False)  # the model may have been cast
        first, second, *_ = *(array.reshape(-1) for array in state.values()), None, None
        return Job(to_lines(data), (first, second))

    def _fill_constants(self, name: str, dtype: np.dtype[Any]) -> FloatArray:
        """Fill in the constants of the rule for this step of a parameter."""
        own, step = self._overrides.get(name, {}), self._steps[name]
        lr, decay = self.lr * own.get("lr_factor", 1.0), own.get("weight_decay", self._options["weight_decay"])
        key = step, lr, decay, dtype
        constants = _lend(self._constant_arrays, dtype, N_NUMBERS)
        if self._constants_for != key:
            numbers = self._constants(step, lr, decay)
            constants[: len(numbers)] = numbers
            self._constants_for = key
        return constants

    def _touched_rows(self, name: str, n_rows: int) -> NDArray[np.bool_]:
        """For each row, whether it ever had a gradient; a row whose state is zero counts as one without."""
        if name not in self._touched:
            touched = np.zeros(n_rows, bool)
            for array in self._state[name].values():
                touched |= array.reshape(n_rows, -1).any(axis=1)
            self._touched[name] = touched
        return self._touched[name]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out views of parameters, which would become separate arrays in copies and pickles."""
        return {**vars(self), "_jobs": {}}

    def _state_arrays(self) -> dict[str, FloatArray]:
        return {f"{slot}.{name}": array for name, state in self._state.items() for slot, array in state.items()}

    def _check_options(self, options: Mapping[str, float]) -> None:
        for option, value in options.items():
            limit = self.limits[option]
            if not 0.0 <= value < limit:
                raise DataError(
                    f"cannot set {option} of {type(self).__name__} to {value}; give at least 0 and below {limit}."
                )

    def _read_grads(self, grads: Mapping[str, Gradient]) -> dict[str, Gradient]:
        """Check all gradients, and return those of trainable parameters, each as plain array or `Rows`."""
        doing = f"cannot take a step of {type(self).__name__}"
        if not isinstance(grads, Mapping):
            raise GraphError(
                f"{doing}: it takes the gradients by name, not a {type(grads).__name__}; value_and_grad returns the "
                f"value and the gradients, so write value, grads = loss.value_and_grad(batch)."
            )
        for name in grads:
            if name not in self._parameters:
                raise GraphError(
                    f"{doing}: there is a gradient for {name!r} and {self._model_name} had no such parameter when "
                    "the optimizer was made; make the optimizer after the whole model."
                )
        read: dict[str, Gradient] = {}
        present = self._model.parameters()
        for name, parameter in self._parameters.items():
            if not parameter.trainable:
                continue
            if present.get(name, parameter) is not parameter:
                raise GraphError(
                    f"{doing}: {name!r} of {self._model_name} is another parameter than when the optimizer was made; "
                    f"make a new optimizer after replacing a layer."
                )
            if name not in grads:
                raise GraphError(
                    f"{doing}: the trainable parameter {name!r} of {self._model_name} has no gradient; pass all that "
                    "value_and_grad returns, or set trainable = False."
                )
            grad = grads[name]
            try:
                read[name] = grad if isinstance(grad, Rows) else plain_array(grad)
            except (DataError, ValueError) as error:
                raise DataError(f"{doing}: the gradient of {name!r} is no array of numbers: {error}") from error
            if read[name].shape != parameter.shape:
                raise ShapeError(
                    f"{doing}: the gradient of {name!r} has shape {read[name].shape} and the parameter "
                    f"{parameter.shape}; pass the gradients as value_and_grad returns them."
                )
        return read


def check_kind(what: str, owner: object, state: Mapping[str, Any], keys: frozenset[str]) -> str:
    """Check that stored state has all keys and was stored by the class of its owner.

    Args:
        what: "optimizer" or "schedule".

    Returns:
        "cannot load the state of the optimizer Adam": the beginning of an error.

    Raises:
        CheckpointError: a key is missing, or another class stored the state.
    """
    kind = type(owner).__name__
    doing = f"cannot load the state of the {what} {kind}"
    if not keys <= state.keys():
        raise CheckpointError(
            f"{doing}: it holds {', '.join(state) or 'nothing'}; give what {kind}.state_dict() returned."
        )
    if state["kind"] != kind:
        raise CheckpointError(f"{doing}: it was stored by {state['kind']}; make that {what} instead.")
    return doing


COMMON_LIMITS: Mapping[str, float] = {"lr": math.inf, "weight_decay": math.inf, "lazy": math.inf}
"""Limits of the options that every optimizer has."""


def to_lines(array: FloatArray) -> Lines:
    """An array as lines, one for each index of its first axis; a copy if its memory has no lines."""
    n_rows, size = len(array) if array.ndim else 1, array.itemsize
    width = array.size // max(n_rows, 1)
    if not _has_lines(array):
        array = array.copy()
    step = array.strides[0] // size if array.ndim and n_rows > 1 else width
    if step < width or array.flags.c_contiguous:
        array, step = np.ascontiguousarray(array), width
        return Lines(array, array.reshape(-1), n_rows, width, width)
    length = (n_rows - 1) * step + width
    return Lines(array, np.lib.stride_tricks.as_strided(array, (length,), (size,)), n_rows, width, step)


def _has_lines(array: FloatArray) -> bool:
    """Whether each line is consecutive numbers, and lines begin a whole number of items apart.

    A field of a structured array may break this rule, for example with lines 12 bytes apart and items of 8 bytes.
    """
    if not array.flags.writeable or not array.flags.aligned:
        return False
    if not array.ndim or not len(array):
        return True
    return array.strides[0] % array.itemsize == 0 and array[0].flags.c_contiguous


def _lend(kept: dict[np.dtype[Any], FloatArray], dtype: np.dtype[Any], size: int) -> FloatArray:
    """A reused array of at least this size; it holds zeros at first, later whatever was written to it."""
    if dtype not in kept or kept[dtype].size < size:
        kept[dtype] = np.zeros(size, dtype)
    return kept[dtype]


def _shapes(arrays: Mapping[str, FloatArray]) -> dict[str, Shape]:
    return {key: array.shape for key, array in arrays.items()}
