"""Directional derivatives: their gradients are the second derivatives of batched losses.

The function runs an instance as the original does, and reads the log of its calls forward. It adds a call of another
type to each call, such as "tangent of merge", which computes the derivative of the results along a direction of
parameters and inputs. Tangents of parameters are weights of such types, so that their batches stay matrix products.
Tangents of inputs are data of the instance, like the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from autobatch._native import Derivatives
from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, is_structure, parts_of
from autobatch.ops.operators import STAGE
from autobatch.params.parameter import Parameter
from autobatch.torch.adopting import to_arrays
from autobatch.torch.entering import CURRENT, TensorInputs
from autobatch.torch.memory import to_host
from autobatch.torch.modules import TorchModule
from autobatch.torch.parameters import Tangent, TensorParameter
from autobatch.trace.handles import Rows, Value
from autobatch.trace.inputs import FloatInput
from autobatch.trace.results import SlotTable
from autobatch.trace.tape import record_tangents

RESULT, VALUE, TANGENT = "result", "result[0]", "result[1]"
"""Prefixes of slot paths: of a function's result; of the value and the derivative in the result of `Along`."""


class TangentModule(TorchModule):
    """A module with a direction for its parameters: a tangent tensor for each.

    Args:
        moved: the module.
    """

    def __init__(self, moved: TorchModule) -> None:
        super().__init__(moved.module)
        self._moved = moved
        self._tangents: dict[str, tuple[Parameter, torch.Tensor, Tangent]] = {}
        self._all: tuple[dict[str, Parameter], dict[str, Parameter]] = {}, {}
        self._lock = RLock()

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters of the module and their tangents; the same dict until they change."""
        with self._lock:
            own = self._moved.parameters()
            if self._all[0] is not own:
                known = {id(parameter) for parameter in own.values()}
                self._tangents = {name: x for name, x in self._tangents.items() if id(x[0]) in known}
                self.sparse = self._moved.sparse
                self._all = own, own | {name: tangent for name, (_, _, tangent) in self._tangents.items()}
            for _, tensor, tangent in self._tangents.values():
                tangent.refresh(tensor)
            return self._all[1]

    def meet(self, instances: Any) -> None:
        """Use the dtype of the module."""
        self._moved.meet(instances)
        self.float_dtype, self.device = self._moved.float_dtype, self._moved.device
        self.default_dtype = self._moved.default_dtype

    def tangent(self, name: str, parameter: TensorParameter, has_gradient: bool) -> Tangent:
        """Return the tangent of a parameter, made once.

        Args:
            name: the name of the parameter.
            parameter: the parameter.
            has_gradient: whether the result is differentiated with respect to the tangent too.
        """
        name = f"{'varied ' if has_gradient else ''}tangent of {name}"
        with self._lock:
            known = self._tangents.get(name)
            like = parameter.tensor
            if known is None or known[0] is not parameter or _place_of(known[1]) != _place_of(like):
                tensor = like.new_zeros(parameter.shape, requires_grad=has_gradient)
                known = self._tangents[name] = parameter, tensor, Tangent(tensor, name)
                self._all = {}, {}
        return known[2]


class ReadInputs(TensorInputs):
    """The tensors among the instances that require gradients, and the values that represent them.

    Attributes:
        values: for each read of a tensor by an instance, its value and the tensor.
    """

    def __init__(self, recording: Any) -> None:
        super().__init__(recording)
        self.values: list[tuple[Value, torch.Tensor]] = []
        self._tensor_of: dict[int, torch.Tensor] = {}

    def enter_tensor(self, tensor: torch.Tensor) -> FloatInput:
        leaf = super().enter_tensor(tensor)
        self._tensor_of[id(leaf)] = tensor
        return leaf

    def read(self, x: FloatInput, is_ragged: bool) -> Any:
        """Record a source, and note its value."""
        value = super().read(x, is_ragged)
        self.values.append((value, self._tensor_of[id(x)]))
        return value


class Directions:
    """The direction of the parameters and inputs of a mini-batch.

    Args:
        parameters: the parameters that have tangents, each with its tangent.
        inputs: the tangents of tensors among the instances, by number; tensors are numbered in the order in which cells
            get them.

    Attributes:
        met: the tensors among the instances so far, without tangents.
    """

    def __init__(self, parameters: Sequence[tuple[Parameter, Parameter]], inputs: Mapping[int, torch.Tensor]) -> None:
        self.parameters, self._inputs = parameters, inputs
        self._recorded: ReadInputs | None = None
        self.met: list[torch.Tensor] = []

    def start(self, inputs: ReadInputs) -> None:
        """Begin an instance; a new recording, recognized by its new `inputs`, restarts the numbering of tensors."""
        if self._recorded is not inputs:
            self._recorded, self.met, self._numbers = inputs, [], dict[int, int]()
        self._n_entered, self._n_read = len(inputs.tensors), len(inputs.values)

    def seeds(self) -> list[tuple[Any, Any]]:
        """Return the inputs that an instance has read and that have tangents, each with its tangent."""
        inputs = self._recorded
        assert inputs is not None
        # `to_arrays` below enters tangents that require gradients, after these; the next `start` skips them.
        for tensor in inputs.tensors[self._n_entered :]:
            self._numbers[id(tensor)] = len(self.met)
            self.met.append(tensor)
        found = []
        for value, tensor in inputs.values[self._n_read :]:
            tangent = self._inputs.get(self._numbers.get(id(tensor), -1))
            if tangent is not None:
                found.append((value, STAGE.current.wrapping.wrap(to_arrays(tangent))))
        return found


class Moved(NamedTuple):
    """An instance, and the direction of parameters and inputs."""

    instance: Any
    directions: Directions


class Along:
    """A function of a `Moved` instance that computes another function and its derivative along the direction.

    Args:
        function: the other function, of one instance.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, moved: Moved) -> Any:
        calls, inputs, directions = STAGE.current, CURRENT.inputs, moved.directions
        assert isinstance(inputs, ReadInputs)
        directions.start(inputs)
        tape = calls.open_tape()
        try:
            result = calls.wrapping.wrap(self._function(moved.instance), is_result=True)
        finally:
            calls.close_tape(tape)
        found = record_tangents(tape, directions.seeds(), directions.parameters)
        return result, _tangents(result, found)


def _tangents(x: Any, found: Derivatives) -> Any:
    """Return the tangents of floats in a result, in its structure, with None for everything else."""
    if isinstance(x, Value):
        if x.key.below or x.key.dtype:
            return None
        shape, refs = (x.row.shape, x.refs) if isinstance(x, Rows) else (x.shape, [x.ref])
        return STAGE.current.handles.like(x, [found.total_or_zeros(ref, shape) for ref in refs])
    if is_structure(x):
        return Key.of_structure(x, ()).build([_tangents(part, found) for part in parts_of(x)])
    return None


def slots_of_tangents(own: SlotTable, along: SlotTable, gradients: Mapping[int, Any]) -> dict[int, int]:
    """Map slots of a function to those of the directional derivatives.

    Args:
        own, along: the slots of the function, and of its `Along`.
        gradients: the gradients of outputs, whose slots are mapped.

    Raises:
        GraphError: a slot has results of a different dtype from the module's.
    """
    rows, numbers = own.rows(), _numbers(along)
    found = {}
    for slot in gradients:
        path, shape, dtype = rows[slot]
        if dtype:
            raise GraphError(
                f"the {path} of a function must have the dtype of the module for second derivatives, got {dtype}; "
                f"convert it before returning it."
            )
        found[slot] = numbers[TANGENT + path.removeprefix(RESULT), shape, dtype]
    return found


def check_values(own: SlotTable, along: SlotTable, before: Sequence[NDArray[Any]], now: Sequence[Any]) -> None:
    """Raise a GraphError if a mini-batch, recorded again, has different results.

    Args:
        own, along: slots, as for `slots_of_tangents`.
        before, now: the columns per slot, of the first and the second run.
    """
    numbers = _numbers(along)
    for (path, shape, dtype), x in zip(own.rows(), before, strict=False):
        place = numbers.get((VALUE + path.removeprefix(RESULT), shape, dtype))
        y = now[place] if place is not None else x[:0]
        if len(x) == len(y) and not dtype:
            x, y = to_host(x), to_host(y)
        if len(x) != len(y) or not (dtype or np.allclose(x, y, *_tolerances(x), equal_nan=True)):
            raise _has_changed()


def check_inputs(before: Sequence[torch.Tensor], now: Sequence[torch.Tensor]) -> None:
    """Raise a GraphError if a mini-batch, recorded again, passes other tensors that require gradients to cells."""
    if [(x.shape, x.dtype) for x in before] != [(x.shape, x.dtype) for x in now]:
        raise _has_changed()


def _place_of(x: torch.Tensor) -> tuple[torch.dtype, torch.device]:
    return x.dtype, x.device


def _has_changed() -> GraphError:
    return GraphError(
        "for second derivatives the mini-batch is recorded again, but its results differ from the first ones: the "
        "instances, the module, its mode, or other inputs of the function have changed, or it draws random numbers "
        "outside cells, or results were changed in place."
    )


def _tolerances(x: NDArray[Any]) -> tuple[float, float]:
    """Return the relative and absolute tolerance for numbers that differ only by rounding."""
    eps = float(np.finfo(x.dtype).eps) ** 0.5
    return eps, eps * float(np.abs(x).max(initial=0.0, where=np.isfinite(x)))


def _numbers(slots: SlotTable) -> dict[tuple[Any, ...], int]:
    """Return slot numbers by path, shape and dtype."""
    return {key: number for number, key in enumerate(slots.rows())}
