"""The base of all optimizers: takes gradients by name, and changes parameters in place.

An optimizer holds the parameters that its model had when the optimizer was made, under the names of
`Module.parameters`, and state of the same shapes on the same devices. It checks all gradients before it changes the
first parameter. On the host, a step is one native pass over each parameter, its state and its gradient
(`native/run/optimizer.h`), without allocation. On a device, it is one asynchronous launch for all parameters, with
bit-identical results (`autobatch.optim.on_device`).

A gradient given as `Rows` stands for the dense array with zeros in all other rows: the moments of those rows decay and
their values change, as with torch's dense gradients. Rows that never had a gradient have zero state. Without weight
decay the rule does not change them, so they are skipped, with bit-identical results; which rows these are follows from
their state and is not stored.

With `lazy=True`, `Rows` update their rows alone: values, state and weight decay as in a dense step. All other rows keep
their values and their state. Steps are counted per parameter. A dense gradient updates all rows.

Groups of parameters may be treated differently from the rest.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, cast

import numpy as np

from autobatch.arguments import RAW, check_int, is_number, refusal
from autobatch.devices.store import HOST, Store
from autobatch.errors import CheckpointError, DataError, GraphError, ShapeError
from autobatch.keywords import checked
from autobatch.ops.eager import plain_array, to_numbers
from autobatch.optim.change import N_CONSTANTS, Change, Placed, Updates, store_of
from autobatch.params.gradients import Gradients
from autobatch.params.known import KnownModule
from autobatch.params.module import Module, check_entries
from autobatch.params.parameter import FloatArray, Parameter
from autobatch.params.sparse_rows import Gradient, Rows, check_rows
from autobatch.system.locks import run_lock

if TYPE_CHECKING:
    from autobatch.devices.device import Device

Overrides = dict[str, dict[str, float]]
"""Parameter name to the hyperparameters that differ for it: `lr_factor`, `weight_decay`."""


@checked()
@dataclass(frozen=True)
class Group:
    """Parameters, selected by name, with a learning rate or a weight decay of their own.

    Args:
        names: names as in `Module.parameters`, or patterns, where `*` matches any characters including dots, and `?`
            matches one: `"*bias"`, `{"embedding.weight", "output.*"}`.
        lr_factor: the group's learning rate as a multiple of `optimizer.lr`, so that setting `optimizer.lr`, by hand or
            by a schedule, changes all groups together.
        weight_decay: the group's weight decay; None for the optimizer's.

    Raises:
        DataError: a number is negative or not finite, or `names` is empty.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> model = ab.Linear(2, 1, rng=np.random.default_rng(0))
    >>> groups = [ab.optim.Group("*bias", weight_decay=0.0), ab.optim.Group({"weight"}, lr_factor=0.1)]
    >>> optimizer = ab.optim.AdamW(model, lr=1e-3, weight_decay=0.01, groups=groups)
    """

    names: str | Collection[str]
    lr_factor: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        if not self.patterns:
            raise DataError("names of Group must not be empty; give names or patterns of parameters.")
        check_overrides(f"make a Group of {self.patterns}", self.overrides)

    @property
    def patterns(self) -> list[str]:
        """Return the names and patterns, sorted."""
        return [self.names] if isinstance(self.names, str) else sorted(self.names)

    @property
    def overrides(self) -> dict[str, float]:
        """Return the hyperparameters that the group sets."""
        decay = {} if self.weight_decay is None else {"weight_decay": float(self.weight_decay)}
        return {"lr_factor": float(self.lr_factor), **decay}

    def selects(self, name: str) -> bool:
        """Return whether a name or pattern of the group matches `name`."""
        return any(name == pattern or fnmatchcase(name, pattern) for pattern in self.patterns)


def assign_groups(doing: str, groups: Sequence[Group], names: Collection[str]) -> Overrides:
    """Assign to each parameter the hyperparameters of the first group that selects it.

    Raises:
        DataError: a name or pattern does not match any of `names`, or a group selects only parameters of earlier
            groups.
    """
    assigned: Overrides = {}
    for group in groups:
        if not isinstance(group, Group):
            raise refusal("groups", "a list of Groups", groups)
        for pattern in group.patterns:
            if not any(Group(pattern).selects(name) for name in names):
                raise DataError(f"{doing}: {pattern!r} in groups= must match a parameter: {', '.join(names)}.")
        chosen = [name for name in names if name not in assigned and group.selects(name)]
        if not chosen:
            raise DataError(
                f"{doing}: earlier groups already select all parameters of {group.patterns} in groups=; put it before "
                "them, or leave it out."
            )
        assigned |= dict.fromkeys(chosen, group.overrides)
    return assigned


def check_overrides(doing: str, overrides: dict[str, float]) -> None:
    """Raise a DataError if a number is negative or not finite, or an option is not one that groups set."""
    for option, value in overrides.items():
        if option not in ("lr_factor", "weight_decay"):
            raise DataError(f"cannot {doing}: an option of a group must be lr_factor or weight_decay, got {option!r}.")
        if not 0.0 <= value < math.inf:
            raise DataError(f"cannot {doing}: {option} must be at least 0 and finite, got {value}.")


class OptimizerState(TypedDict):
    """The state from which an optimizer resumes bit-identically."""

    kind: str
    """Name of the optimizer's class."""
    options: dict[str, float]
    """The hyperparameters, by name."""
    overrides: Overrides
    """Parameter name to the hyperparameters set by its group."""
    steps: dict[str, int]
    """Parameter name to its number of steps."""
    arrays: dict[str, FloatArray]
    """Copies of the state arrays, by slot and parameter name, such as `mean.layers.0.weight`."""


class Optimizer(ABC):
    """The base class of optimizers: parameter names, checks, groups, step counts and stored state.

    Args:
        model: the module to train; parameters added to it later are ignored.
        slots: names of each parameter's state arrays, zeros at first.
        options: the hyperparameters by name, each within `limits`.
        groups: parameters with a learning rate or weight decay of their own.

    Raises:
        DataError: an option is out of range, or a group selects no parameter.
    """

    limits: ClassVar[Mapping[str, float]]
    """Exclusive upper bound of each option; the lower bound is 0, inclusive."""

    def __init__(
        self, model: Module, slots: Sequence[str], options: Mapping[str, float], groups: Sequence[Group] = ()
    ) -> None:
        self._check_options(options)
        if not isinstance(model, Module):
            raise DataError(
                f"model of {type(self).__name__} must be a Module, got a {type(model).__name__}; pass the module "
                f"itself, as in {type(self).__name__}(model)."
            )
        self._model, self._model_name = KnownModule(model), type(model).__name__
        self._parameters = model.parameters()
        self._options = {option: float(value) for option, value in options.items()}
        self._overrides = assign_groups(f"cannot make {type(self).__name__}", groups, self._parameters)
        self._steps = dict.fromkeys(self._parameters, 0)
        self._state = {
            name: {slot: parameter.store.xp.zeros(parameter.shape, parameter.dtype) for slot in slots}
            for name, parameter in self._parameters.items()
        }
        self._lies_on = {name: parameter.store for name, parameter in self._parameters.items()}
        self._placed: dict[str, Placed] = {}
        self._updates: dict[Store, Updates] = {}
        self._check_last: Callable[[], None] | None = None

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value:g}" for name, value in self._options.items())
        groups = f", {len(self._overrides)} parameters in groups" if self._overrides else ""
        return f"{type(self).__name__}({options}; {len(self._parameters)} parameters of {self._model_name}{groups})"

    @property
    def lr(self) -> float:
        """Return the learning rate, which may be set between steps.

        Raises:
            DataError: the new rate is negative, infinite or NaN.
        """
        return self._options["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        self._check_options({"lr": value})
        self._options["lr"] = float(value)

    def step(self, grads: Mapping[str, Gradient]) -> None:
        """Update every trainable parameter once, in place. On errors other than NumericError nothing changes.

        Args:
            grads: parameter name to gradient, an array or `Rows` of the parameter's shape, for every trainable
                parameter; gradients of other parameters are ignored. The step does not change gradients. The gradient
                of a parameter on a device is an array on that device, of any library with DLPack.

        Raises:
            GraphError: a name is unknown or missing, or a parameter of the model was replaced.
            ShapeError: a gradient and its parameter differ in shape, or the ids and values of `Rows` do.
            DataError: a gradient is not an array of numbers, is on another device, or is `Rows` with wrong ids.
            BackendError: the kernels of a device cannot be compiled.
            NumericError: on a device, the previous step changed nothing, because the norm of its gradients was not
                finite, and that norm has not been read (`clip_by_norm`).
        """
        with run_lock():
            read = self._read_grads(grads)
            # New kernels are compiled before anything changes, because that may fail.
            for store in {self._parameters[name].store for name in read}:
                if store not in self._updates:
                    self._updates[store] = _make_updates(store)
            changes: dict[Store, list[Change]] = {}
            made: dict[Any, FloatArray] = {}
            for name, grad in read.items():
                self._steps[name] += 1
                changes.setdefault(self._parameters[name].store, []).append(self._change(name, grad, made))
                self._parameters[name].note_change()
            found = grads if isinstance(grads, Gradients) else Gradients()
            for store, listed in changes.items():
                self._updates[store].run(listed, bool(self._options["lazy"]), found.finite)
        # Checking the previous step waits for its norm, so this step is queued first.
        check, self._check_last = self._check_last, found.check
        if check is not None:
            check()

    def state_dict(self) -> OptimizerState:
        """Copy all state that the next step depends on, except the parameters."""
        return {
            "kind": type(self).__name__,
            "options": dict(self._options),
            "overrides": {name: dict(own) for name, own in self._overrides.items()},
            "steps": dict(self._steps),
            "arrays": {key: np.array(store.get(array)) for key, (array, store) in self._state_arrays().items()},
        }

    def load_state_dict(self, state: OptimizerState) -> None:
        """Resume from stored state: hyperparameters, including those of groups, step counts and arrays.

        Args:
            state: the result of `state_dict`.

        Raises:
            CheckpointError: another optimizer class stored it, or it is for another model; nothing has changed.
            DataError: a hyperparameter is out of range; nothing has changed.
        """
        doing = check_kind("optimizer", self, state, OptimizerState.__required_keys__)
        try:
            self._load(doing, state)
        except RAW as error:
            raise CheckpointError(
                f"{doing}: malformed state ({error}); pass the result of {type(self).__name__}.state_dict()."
            ) from error

    def _load(self, doing: str, state: OptimizerState) -> None:
        check_entries(doing, dict.fromkeys(state["options"], ()), dict.fromkeys(self._options, ()))
        # Overrides must be of known parameters, but need not be of all.
        check_entries(doing, dict.fromkeys({**self._steps, **state["overrides"]}, ()), dict.fromkeys(self._steps, ()))
        check_entries(doing, dict.fromkeys(state["steps"], ()), dict.fromkeys(self._steps, ()))
        shapes = {key: array.shape for key, (array, _) in self._state_arrays().items()}
        check_entries(doing, {key: array.shape for key, array in state["arrays"].items()}, shapes)
        self._check_options(state["options"])
        for name, own in state["overrides"].items():
            check_overrides(f"load the group of {name!r}", own)
        # All conversions, which may raise errors, come before the first change.
        arrays = {
            (name, slot): np.array(state["arrays"][f"{slot}.{name}"], parameter.dtype, order="C")
            for name, parameter in self._parameters.items()
            for slot in self._state[name]
        }
        steps = {name: check_int(f"steps of {name}", n, at_least=0) for name, n in state["steps"].items()}
        self._options = {option: float(value) for option, value in state["options"].items()}
        self._overrides = {name: dict(own) for name, own in state["overrides"].items()}
        self._steps = steps
        for (name, slot), array in arrays.items():
            self._state[name][slot] = array
        self._lies_on = dict.fromkeys(self._parameters, HOST)
        self._placed.clear()

    @abstractmethod
    def _constants(self, step: int, lr: float, weight_decay: float) -> tuple[float, ...]:
        """Compute the constants of the update rule (`native/run/optimizer.h`) at a step; the first step is 1."""

    def _change(self, name: str, grad: Gradient, made: dict[Any, FloatArray]) -> Change:
        """Describe the change of a parameter; `made` caches the constants of this step."""
        parameter, own = self._parameters[name], self._overrides.get(name, {})
        # All that the constants depend on: parameters without overrides share the optimizer's options.
        key = self._steps[name], name if own else None, parameter.dtype
        if key not in made:
            lr, decay = self.lr * own.get("lr_factor", 1.0), own.get("weight_decay", self._options["weight_decay"])
            numbers = self._constants(self._steps[name], lr, decay)
            made[key] = np.zeros(N_CONSTANTS, parameter.dtype)
            made[key][: len(numbers)] = numbers
        placed = self._placed.get(name)
        if placed is None or placed.data is not parameter.array:
            placed = self._placed[name] = self._place_state(name, parameter)
        return Change(*placed, grad, made[key])

    def _place_state(self, name: str, parameter: Parameter) -> Placed:
        """Move the state to the parameter's device and dtype, as the model may have been moved or cast."""
        state, store, lies_on = self._state[name], parameter.store, self._lies_on[name]
        for slot, array in state.items():
            moved = array if store is lies_on else store.put(lies_on.get(array))
            state[slot] = moved.astype(parameter.dtype, copy=False)
        self._lies_on[name] = store
        first, second, *_ = *state.values(), None, None  # a rule has up to two state arrays
        return Placed(parameter.array, (first, second))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, with arrays on the host; their next step moves them."""
        state = {
            name: {slot: self._lies_on[name].get(array) for slot, array in own.items()}
            for name, own in self._state.items()
        }
        lies_on: dict[str, Store] = dict.fromkeys(self._parameters, HOST)
        return {**vars(self), "_state": state, "_lies_on": lies_on, "_placed": {}, "_updates": {}, "_check_last": None}

    def _state_arrays(self) -> dict[str, tuple[FloatArray, Store]]:
        """Return the state arrays by their names in `OptimizerState`, each with its device memory."""
        return {
            f"{slot}.{name}": (array, self._lies_on[name])
            for name, state in self._state.items()
            for slot, array in state.items()
        }

    def _check_options(self, options: Mapping[str, float]) -> None:
        for option, value in options.items():
            limit = self.limits[option]
            if not isinstance(value, bool | np.bool_) and not is_number(value):
                raise refusal(f"{option} of {type(self).__name__}", "a number", value)
            if not 0.0 <= value < limit:
                raise DataError(f"{option} of {type(self).__name__} must be at least 0 and below {limit}, got {value}.")

    def _read_grads(self, grads: Mapping[str, Gradient]) -> dict[str, Gradient]:
        """Check all gradients; return those of trainable parameters, as plain arrays or `Rows`."""
        doing = f"cannot take a step of {type(self).__name__}"
        if not isinstance(grads, Mapping):
            raise GraphError(
                f"{doing}: gradients must be a dict by parameter name, got a {type(grads).__name__}; value_and_grad "
                f"returns a pair, so write value, grads = loss.value_and_grad(batch)."
            )
        for name in grads:
            if name not in self._parameters:
                raise GraphError(
                    f"{doing}: gradient {name!r} matches no parameter that {self._model_name} had when the optimizer "
                    "was made; make the optimizer after the whole model."
                )
        read: dict[str, Gradient] = {}
        present = self._model.parameters()
        for name, parameter in self._parameters.items():
            if not parameter.trainable:
                continue
            if present.get(name, parameter) is not parameter:
                raise GraphError(
                    f"{doing}: {name!r} of {self._model_name} was replaced after the optimizer was made; make a new "
                    f"optimizer after replacing a layer."
                )
            if name not in grads:
                raise GraphError(
                    f"{doing}: the trainable parameter {name!r} of {self._model_name} has no gradient; pass all "
                    "gradients that value_and_grad returns, or set trainable = False."
                )
            read[name] = _read_grad(doing, name, grads[name], parameter.store)
            if read[name].shape != parameter.shape:
                raise ShapeError(
                    f"{doing}: the gradient of {name!r} must have the parameter's shape {parameter.shape}, got "
                    f"{read[name].shape}; pass the gradients as value_and_grad returns them."
                )
        return read


def _read_grad(doing: str, name: str, grad: Any, store: Store) -> Gradient:
    """Return a gradient as `Rows` or as a plain array on `store`; raise a DataError if it is neither."""
    array = store.adopt(grad)
    lies_on = store_of(grad) if array is None else store
    if lies_on is not store:
        raise DataError(
            f"{doing}: the gradient of {name!r} must be on the parameter's device {store.kind}, got {lies_on.kind}; "
            "pass the gradients as value_and_grad returns them, or move them."
        )
    if isinstance(grad, Rows):
        check_rows(grad)
        return grad
    try:
        return plain_array(grad) if array is None else to_numbers(array)
    except (DataError, ValueError) as error:
        raise DataError(f"{doing}: the gradient of {name!r} must be an array of numbers: {error}") from error


def _make_updates(store: Store) -> Updates:
    if store is HOST:
        from autobatch.optim.on_host import HostUpdates

        return HostUpdates()
    from autobatch.optim.on_device import DeviceUpdates

    return DeviceUpdates(cast("Device", store))


def check_kind(what: str, owner: object, state: Mapping[str, Any], keys: frozenset[str]) -> str:
    """Check that stored state has all keys and was stored by the class of its owner.

    Args:
        what: "optimizer" or "schedule".

    Returns:
        The start of error messages: "cannot load the state of the optimizer Adam".

    Raises:
        CheckpointError: a key is missing, or another class stored the state.
    """
    kind = type(owner).__name__
    doing = f"cannot load the state of the {what} {kind}"
    if not isinstance(state, Mapping):
        raise refusal(f"state of {kind}.load_state_dict", f"a {kind}.state_dict()", state, CheckpointError)
    if not keys <= state.keys():
        raise CheckpointError(
            f"{doing}: the keys must be {', '.join(sorted(keys))}, got {', '.join(state) or 'none'}; "
            f"pass the result of {kind}.state_dict()."
        )
    if state["kind"] != kind:
        raise CheckpointError(f"{doing}: the {what} must be {state['kind']}, which stored it.")
    return doing


COMMON_LIMITS: Mapping[str, float] = {"lr": math.inf, "weight_decay": math.inf, "lazy": math.inf}
"""Limits of the options common to all optimizers."""
