"""What all optimizers share: gradients in, parameters changed in place.

An optimizer holds the parameters that its model had when it was made, under the names of `Module.parameters`, and
state of the same shapes; it checks all gradients before it changes the first parameter. A dense step goes through a
parameter in blocks of rows that stay in cache over its dozen passes, with intermediate results in scratch arrays of
that length, so that it allocates nothing.

A gradient given as `Rows` means the dense array, with zeros in all other rows: their moments decay and they move on, as
with torch's dense gradients. With `lazy=True` it means a step of the touched rows alone: their values, their state and
their weight decay are those of a dense step, while all other rows, and their state, stay exactly as they were; the
number of steps counts for the parameter, whichever rows were touched. Time and memory are then those of the touched
rows. A dense gradient touches all rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypedDict

import numpy as np

from autobatch.errors import CheckpointError, DataError, GraphError, ShapeError
from autobatch.module import FloatArray, Module, Shape, check_entries
from autobatch.optim.group import Group, Overrides, assign_groups, check_overrides
from autobatch.rows import Gradient, Rows

BLOCK = 2**16
"""Numbers per block of a dense step: of 2**12 to 2**17, the fastest for tables of 8737 x 64 and 20000 x 300."""


class OptimizerState(TypedDict):
    """What an optimizer needs to go on as if it had never stopped."""

    kind: str
    """Name of the optimizer's class."""
    options: dict[str, float]
    """The hyperparameters, by name."""
    overrides: Overrides
    """Parameter name to the hyperparameters that its group changes."""
    steps: dict[str, int]
    """How often each parameter was changed, by its name."""
    arrays: dict[str, FloatArray]
    """A copy of every state array, by slot and parameter name: `mean.layers.0.weight`."""


class Target(NamedTuple):
    """What one update changes in place, and how."""

    data: FloatArray
    state: dict[str, FloatArray]
    step: int
    """1 at the first change."""
    lr: float
    weight_decay: float

    def of_rows(self, start: int, end: int) -> Target:
        """The same update, of some rows."""
        state = {slot: array[start:end] for slot, array in self.state.items()}
        return self._replace(data=self.data[start:end], state=state)


class Optimizer(ABC):
    """Names, checks, groups, scratch arrays and stored state.

    Args:
        model: its parameters, found now; later additions are not noticed.
        slots: names of the state arrays kept for each parameter, zeros at first.
        options: the hyperparameters by name, each within `limits`.
        groups: parameters with a learning rate or weight decay of their own.

    Raises:
        DataError: an option is out of range, or a group selects no parameter.
    """

    limits: ClassVar[Mapping[str, float]]
    """Option to the number that it must stay below; none may be negative."""

    def __init__(
        self, model: Module, slots: Sequence[str], options: Mapping[str, float], groups: Sequence[Group] = ()
    ) -> None:
        self._check_options(options)
        self._model_name = type(model).__name__
        self._parameters = model.parameters()
        self._options = {option: float(value) for option, value in options.items()}
        self._overrides = assign_groups(f"cannot make {type(self).__name__}", groups, self._parameters)
        self._steps = dict.fromkeys(self._parameters, 0)
        self._state = {
            name: {slot: np.zeros_like(parameter.data) for slot in slots}
            for name, parameter in self._parameters.items()
        }
        self._scratch_arrays: dict[tuple[int, np.dtype[Any]], FloatArray] = {}

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
                parameter; those of other parameters are ignored. It is only read.

        Raises:
            GraphError: a name is unknown or missing.
            ShapeError: a gradient's shape is not its parameter's. In both cases nothing has changed.
        """
        self._check_grads(grads)
        for name, parameter in self._parameters.items():
            if not parameter.trainable:
                continue
            self._steps[name] += 1
            state = self._state[name]
            for slot in state:
                state[slot] = state[slot].astype(parameter.dtype, copy=False)  # the model may have been cast
            own = self._overrides.get(name, {})
            lr = self.lr * own.get("lr_factor", 1.0)
            decay = own.get("weight_decay", self._options["weight_decay"])
            self._apply(Target(parameter.data, state, self._steps[name], lr, decay), grads[name])

    def state_dict(self) -> OptimizerState:
        """Copy all that the next step depends on, apart from the parameters."""
        return {
            "kind": type(self).__name__,
            "options": dict(self._options),
            "overrides": {name: dict(own) for name, own in self._overrides.items()},
            "steps": dict(self._steps),
            "arrays": {key: array.copy() for key, array in self._state_arrays().items()},
        }

    def load_state_dict(self, state: OptimizerState) -> None:
        """Go on from a stored state: hyperparameters, those of groups included, counts and arrays.

        Raises:
            CheckpointError: it was stored by another optimizer or for another model.
            DataError: a hyperparameter is out of range. In both cases nothing has changed.
        """
        kind = type(self).__name__
        doing = f"cannot load the state of the optimizer {kind}"
        if not OptimizerState.__required_keys__ <= state.keys():
            raise CheckpointError(
                f"{doing}: it holds {', '.join(state) or 'nothing'}; give what {kind}.state_dict() returned."
            )
        if state["kind"] != kind:
            raise CheckpointError(f"{doing}: it was stored by {state['kind']}; make that optimizer instead.")
        check_entries(doing, dict.fromkeys(state["options"], ()), dict.fromkeys(self._options, ()))
        check_entries(doing, dict.fromkeys({**self._steps, **state["overrides"]}, ()), dict.fromkeys(self._steps, ()))
        check_entries(doing, dict.fromkeys(state["steps"], ()), dict.fromkeys(self._steps, ()))
        check_entries(doing, _shapes(state["arrays"]), _shapes(self._state_arrays()))
        self._check_options(state["options"])
        for name, own in state["overrides"].items():
            check_overrides(f"load the group of {name!r}", own)
        self._options = {option: float(value) for option, value in state["options"].items()}
        self._overrides = {name: dict(own) for name, own in state["overrides"].items()}
        self._steps = dict(state["steps"])
        for name, parameter in self._parameters.items():
            for slot in self._state[name]:
                self._state[name][slot] = np.array(state["arrays"][f"{slot}.{name}"], parameter.dtype)

    @abstractmethod
    def _update(self, target: Target, grad: FloatArray) -> None:
        """Change the data and the state of a parameter, or of some of its rows, in place."""

    def _keeps_untouched_rows(self, target: Target) -> bool:
        """Whether a dense step changes nothing in rows, and their state, where the gradient is zero."""
        return False

    def _apply(self, target: Target, grad: Gradient) -> None:
        if isinstance(grad, Rows) and (self._options["lazy"] or self._keeps_untouched_rows(target)):
            self._update_rows(target, grad)
            return
        whole = grad if isinstance(grad, Rows) else np.asarray(grad)
        if not isinstance(whole, Rows) and not whole.shape:
            self._update(target, whole)
            return
        n_rows = len(target.data)
        block = max(1, BLOCK * n_rows // max(1, target.data.size))
        for start in range(0, n_rows, block):
            part = target.of_rows(start, start + block)
            self._update(part, self._block(whole, start, part.data))

    def _block(self, grad: Gradient, start: int, like: FloatArray) -> FloatArray:
        """The rows of a gradient from `start` on, as many as `like` has; those of `Rows` in scratch array 2."""
        if not isinstance(grad, Rows):
            return grad[start : start + len(like)]
        first, end = np.searchsorted(grad.ids, (start, start + len(like)))
        dense = self._scratch(2, like)
        dense.fill(0)
        dense[grad.ids[first:end] - start] = grad.values[first:end]
        return dense

    def _update_rows(self, target: Target, grad: Rows) -> None:
        touched = {slot: array[grad.ids] for slot, array in target.state.items()}
        rows = target._replace(data=target.data[grad.ids], state=touched)
        self._update(rows, grad.values)
        target.data[grad.ids] = rows.data
        for slot, array in target.state.items():
            array[grad.ids] = touched[slot]

    def _decayed(self, target: Target, grad: FloatArray) -> FloatArray:
        """Add weight decay to a gradient, in scratch array 0."""
        if not target.weight_decay:
            return grad
        decayed = self._scratch(0, target.data)
        np.multiply(target.data, target.weight_decay, out=decayed)
        decayed += grad
        return decayed

    def _scratch(self, which: int, like: FloatArray) -> FloatArray:
        """Lend an array of the shape and dtype of `like`, with arbitrary contents."""
        key = which, like.dtype
        if key not in self._scratch_arrays or self._scratch_arrays[key].size < like.size:
            self._scratch_arrays[key] = np.empty(like.size, like.dtype)
        return self._scratch_arrays[key][: like.size].reshape(like.shape)

    def _state_arrays(self) -> dict[str, FloatArray]:
        return {f"{slot}.{name}": array for name, state in self._state.items() for slot, array in state.items()}

    def _check_options(self, options: Mapping[str, float]) -> None:
        for option, value in options.items():
            limit = self.limits[option]
            if not 0.0 <= value < limit:
                raise DataError(
                    f"cannot set {option} of {type(self).__name__} to {value}; give at least 0 and below {limit}."
                )

    def _check_grads(self, grads: Mapping[str, Gradient]) -> None:
        doing = f"cannot take a step of {type(self).__name__}"
        for name in grads:
            if name not in self._parameters:
                raise GraphError(
                    f"{doing}: there is a gradient for {name!r} and {self._model_name} had no such parameter when "
                    "the optimizer was made; make the optimizer after the whole model."
                )
        for name, parameter in self._parameters.items():
            if not parameter.trainable:
                continue
            if name not in grads:
                raise GraphError(
                    f"{doing}: the trainable parameter {name!r} of {self._model_name} has no gradient; pass all that "
                    "value_and_grad returns, or set trainable = False."
                )
            if np.shape(grads[name]) != parameter.shape:
                raise ShapeError(
                    f"{doing}: the gradient of {name!r} has shape {np.shape(grads[name])} and the parameter "
                    f"{parameter.shape}; pass the gradients as value_and_grad returns them."
                )


COMMON_LIMITS: Mapping[str, float] = {"lr": math.inf, "weight_decay": math.inf, "lazy": math.inf}
"""Limits of the options that every optimizer has."""


def _shapes(arrays: Mapping[str, FloatArray]) -> dict[str, Shape]:
    return {key: array.shape for key, array in arrays.items()}
