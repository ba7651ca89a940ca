"""Optimizers: gradients in, parameters changed in place.

`SGD` and `Adam` follow torch.optim number by number, weight decay included (added to the gradient, not decoupled). An
optimizer holds the parameters that its model had when it was made, under the names of `Module.parameters`, and state of
the same shapes; it checks all gradients before it changes the first parameter. A step allocates nothing: intermediate
results live in scratch arrays as long as the largest parameter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import numpy as np

from autobatch.errors import CheckpointError, DataError, GraphError, NumericError, ShapeError
from autobatch.module import FloatArray, Module, check_entries


class OptimizerState(TypedDict):
    """What an optimizer needs to go on as if it had never stopped."""

    kind: str
    """Name of the optimizer's class."""
    options: dict[str, float]
    """The hyperparameters, by name."""
    steps: dict[str, int]
    """How often each parameter was changed, by its name."""
    arrays: dict[str, FloatArray]
    """A copy of every state array, by slot and parameter name: `mean.layers.0.weight`."""


class Optimizer(ABC):
    """What all optimizers share: names, checks, scratch arrays and stored state.

    Args:
        model: its parameters, found now; later additions are not noticed.
        slots: names of the state arrays kept for each parameter, zeros at first.
        options: the hyperparameters by name, each within `limits`.

    Raises:
        DataError: an option is out of range.
    """

    limits: ClassVar[Mapping[str, float]]
    """Option to the number that it must stay below; none may be negative."""

    def __init__(self, model: Module, slots: Sequence[str], options: Mapping[str, float]) -> None:
        self._check_options(options)
        self._model_name = type(model).__name__
        self._parameters = model.parameters()
        self._options = {option: float(value) for option, value in options.items()}
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

    def step(self, grads: Mapping[str, FloatArray]) -> None:
        """Change every trainable parameter once, in place.

        Args:
            grads: parameter name to gradient, of the parameter's shape, for every trainable parameter; those of other
                parameters are ignored. It is only read.

        Raises:
            GraphError: a name is unknown or missing.
            ShapeError: a gradient's shape is not its parameter's. In both cases nothing has changed.
        """
        self._check_grads(grads)
        for name, parameter in self._parameters.items():
            if parameter.trainable:
                self._steps[name] += 1
                state = self._state[name]
                for slot in state:
                    state[slot] = state[slot].astype(parameter.dtype, copy=False)  # the model may have been cast
                self._update(parameter.data, np.asarray(grads[name]), state, self._steps[name])

    def state_dict(self) -> OptimizerState:
        """Copy all that the next step depends on, apart from the parameters."""
        return {
            "kind": type(self).__name__,
            "options": dict(self._options),
            "steps": dict(self._steps),
            "arrays": {key: array.copy() for key, array in self._state_arrays().items()},
        }

    def load_state_dict(self, state: OptimizerState) -> None:
        """Go on from a stored state: hyperparameters, counts and arrays.

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
        check_entries(doing, dict.fromkeys(state["steps"], ()), dict.fromkeys(self._steps, ()))
        check_entries(doing, _shapes(state["arrays"]), _shapes(self._state_arrays()))
        self._check_options(state["options"])
        self._options = {option: float(value) for option, value in state["options"].items()}
        self._steps = dict(state["steps"])
        for name, parameter in self._parameters.items():
            for slot in self._state[name]:
                self._state[name][slot] = np.array(state["arrays"][f"{slot}.{name}"], parameter.dtype)

    @abstractmethod
    def _update(self, data: FloatArray, grad: FloatArray, state: dict[str, FloatArray], step: int) -> None:
        """Change one parameter's `data` and `state` in place; `step` is 1 at its first change."""

    def _decayed(self, data: FloatArray, grad: FloatArray) -> FloatArray:
        """Add weight decay to a gradient, in scratch array 0."""
        decay = self._options["weight_decay"]
        if not decay:
            return grad
        decayed = self._scratch(0, data)
        np.multiply(data, decay, out=decayed)
        decayed += grad
        return decayed

    def _scratch(self, which: int, like: FloatArray) -> FloatArray:
        """Lend an array of the shape and dtype of `like`, with arbitrary contents."""
        key = which, like.dtype
        if key not in self._scratch_arrays:
            largest = max(parameter.data.size for parameter in self._parameters.values())
            self._scratch_arrays[key] = np.empty(largest, like.dtype)
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

    def _check_grads(self, grads: Mapping[str, FloatArray]) -> None:
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


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if wanted.

    Args:
        model: the module to train.
        lr: learning rate.
        momentum: share of the last velocity that is kept; the velocity is not scaled by 1 - momentum.
        nesterov: step along the gradient plus the velocity that follows from it.
        weight_decay: times the parameter, added to its gradient.

    Raises:
        DataError: an option is negative or not finite, or `nesterov` comes without momentum.

    Source: torch.optim.SGD, equal step by step; Nesterov's form is that of Sutskever et al. 2013.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> class Scale(ab.Module):
    ...     def __init__(self):
    ...         self.factor = ab.Parameter([1.0, 2.0])
    >>> model = Scale()
    >>> optimizer = ab.optim.SGD(model, lr=0.5)
    >>> optimizer.step({"factor": np.array([1.0, -1.0], dtype=np.float32)})
    >>> model.factor.data
    array([0.5, 2.5], dtype=float32)
    """

    limits: ClassVar[Mapping[str, float]] = {
        "lr": math.inf,
        "momentum": math.inf,
        "nesterov": math.inf,
        "weight_decay": math.inf,
    }

    def __init__(
        self, model: Module, lr: float, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
    ) -> None:
        if nesterov and momentum == 0.0:
            raise DataError("cannot make SGD with nesterov=True and momentum=0; give a momentum, such as 0.9.")
        options = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(model, ("velocity",) if momentum else (), options)

    def _update(self, data: FloatArray, grad: FloatArray, state: dict[str, FloatArray], step: int) -> None:
        momentum = self._options["momentum"]
        direction = self._decayed(data, grad)
        change = self._scratch(1, data)
        if momentum:
            velocity = state["velocity"]
            velocity *= momentum
            velocity += direction
            if self._options["nesterov"]:
                np.multiply(velocity, momentum, out=change)
                change += direction
                direction = change
            else:
                direction = velocity
        np.multiply(direction, self.lr, out=change)
        data -= change


class Adam(Optimizer):
    """Steps along the mean gradient, divided by the root of the mean squared gradient.

    Args:
        model: the module to train.
        lr: learning rate, about the largest change of a number in one step.
        betas: how much of the mean and of the mean square is kept at each step, below 1.
        eps: added to the root, so that a parameter without gradients stays put.
        weight_decay: times the parameter, added to its gradient.

    Raises:
        DataError: an option is out of range.

    Source: Kingma and Ba 2015 (arXiv:1412.6980), algorithm 1; torch.optim.Adam, equal step by step: both means start at
    zero and are divided by 1 - beta**step, counted per parameter.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> model = ab.Linear(2, 1, rng=np.random.default_rng(0), bias=False)
    >>> model.weight.data = [[1.0, 2.0]]
    >>> optimizer = ab.optim.Adam(model, lr=0.25)
    >>> optimizer.step({"weight": np.array([[3.0, -0.1]], dtype=np.float32)})
    >>> model.weight.data
    array([[0.75, 2.25]], dtype=float32)
    """

    limits: ClassVar[Mapping[str, float]] = {
        "lr": math.inf,
        "beta_1": 1.0,
        "beta_2": 1.0,
        "eps": math.inf,
        "weight_decay": math.inf,
    }

    def __init__(
        self,
        model: Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "beta_1": betas[0], "beta_2": betas[1], "eps": eps, "weight_decay": weight_decay}
        super().__init__(model, ("mean", "mean_square"), options)

    def _update(self, data: FloatArray, grad: FloatArray, state: dict[str, FloatArray], step: int) -> None:
        mean, mean_square = state["mean"], state["mean_square"]
        beta_1, beta_2 = self._options["beta_1"], self._options["beta_2"]
        direction = self._decayed(data, grad)
        change = self._scratch(1, data)

        np.multiply(direction, 1.0 - beta_1, out=change)
        mean *= beta_1
        mean += change

        np.multiply(direction, direction, out=change)
        change *= 1.0 - beta_2
        mean_square *= beta_2
        mean_square += change

        np.sqrt(mean_square, out=change)
        change /= math.sqrt(1.0 - beta_2**step)
        change += self._options["eps"]
        np.divide(mean, change, out=change)
        change *= self.lr / (1.0 - beta_1**step)
        data -= change


def clip_by_norm(grads: Mapping[str, FloatArray], max_norm: float) -> float:
    """Scale all gradients in place by one factor, so that together they are no longer than `max_norm`.

    Args:
        grads: parameter name to gradient of any shape.
        max_norm: above 0, in the units of the gradients; infinity only measures.

    Returns:
        The Euclidean norm over all numbers of all gradients, as it was before.

    Raises:
        NumericError: a gradient holds NaN or infinity; the message names it and nothing has changed.
        DataError: `max_norm` is not above 0.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> grads = {"weight": np.array([3.0, 0.0]), "bias": np.array([4.0])}
    >>> ab.optim.clip_by_norm(grads, 1.0)
    5.0
    >>> print(grads["weight"], grads["bias"])
    [0.6 0. ] [0.8]
    """
    if not max_norm > 0.0:
        raise DataError(f"cannot clip gradients to a norm of {max_norm}; give a number above 0.")
    norms = {name: _norm(grad) for name, grad in grads.items()}
    for name, norm in norms.items():
        if not math.isfinite(norm):
            raise NumericError(
                f"cannot clip gradients: the norm of the gradient of {name!r} is {norm}, no finite number; "
                "skip this step, or lower the learning rate."
            )
    total = math.hypot(*norms.values())
    if total > max_norm:
        for grad in grads.values():
            grad *= max_norm / total
    return total


def _norm(grad: FloatArray) -> float:
    numbers = grad.reshape(-1)
    with np.errstate(all="ignore"):
        square = float(np.dot(numbers, numbers))
        if not math.isfinite(square):  # in float32 the square of 1e20 is infinite
            square = float(np.einsum("i,i->", numbers, numbers, dtype=np.float64))
    return math.sqrt(square)


def _shapes(arrays: Mapping[str, FloatArray]) -> dict[str, tuple[int, ...]]:
    return {key: array.shape for key, array in arrays.items()}
