"""`torch.autograd.grad` of recorded values, for functions of one instance that differentiate while being recorded.

Reading the instance's log of calls backwards gives the calls of gradients, see `autobatch.trace.tape`. A tensor that is
made to require a gradient within the function becomes a recorded value, and so do all results computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import checkpoint

from autobatch._native import Derivatives
from autobatch.errors import GraphError
from autobatch.ops.operators import STAGE
from autobatch.torch.adopting import join_rows, to_arrays
from autobatch.torch.cells import cell_of_function
from autobatch.torch.parameters import TensorParameter, find_parameter
from autobatch.trace.handles import Rows, Value
from autobatch.trace.tape import record_gradients

REQUIRES: Any = torch.Tensor.requires_grad_
BACKWARD: Any = torch.Tensor.backward
GRAD: Any = torch.autograd.grad


def as_variable(x: Any, was_asked: bool = False) -> Any:
    """Return the recorded value of a tensor that a function differentiates by; return other objects unchanged.

    Args:
        x: the tensor.
        was_asked: whether the tensor required a gradient before; then the gradient of the mini-batch reaches it too.
    """
    if type(x) is not torch.Tensor or not x.requires_grad or find_parameter(x) is not None:
        return x
    calls = STAGE.current
    return calls.alias(calls.wrapping.wrap(to_arrays(x if was_asked else x.detach())))


def refuse_backward() -> None:
    """Raise the GraphError of a call of backward() on a recorded value."""
    raise GraphError(
        "a recorded function calls backward() on a value, which is only computed when the mini-batch runs; call it on "
        "the result of the batched function, or torch.autograd.grad(value, tensors) for gradients within the function."
    )


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...] | dict[Any, Any]:
    """Record the gradients of values; the arguments are those of `torch.autograd.grad`.

    Returns:
        A value per input, in a dict if the inputs are one. The values have no gradients unless `create_graph` is set.

    Raises:
        GraphError: an input is not a recorded value, or no output depends on it; or the function is async.
    """
    if is_grads_batched:
        raise GraphError(
            "is_grads_batched=True is not supported for recorded values; call torch.autograd.grad in a loop."
        )
    calls, wrap = STAGE.current, STAGE.current.wrapping.wrap
    if calls.begun is None:
        raise GraphError(
            "torch.autograd.grad is not available in an async function, whose calls are discarded when it waits; call "
            "it in a function that awaits nothing."
        )
    results = [_value(x, "differentiates") for x in _listed(outputs)]
    given = [None] * len(results) if grad_outputs is None else _listed(grad_outputs)
    variables = [_variable(x) for x in _listed([*inputs.values()] if isinstance(inputs, dict) else inputs)]
    seeds = [(x, wrap(_seed(x, g))) for x, g in zip(results, given, strict=True)]
    # Closed at once, the tape has the calls of this instance so far, without those of its gradients.
    tape = calls.open_tape(calls.begun)
    calls.close_tape(tape)
    values = [x for x in variables if isinstance(x, Value)]
    found = record_gradients(tape, seeds, values, [x for x in variables if not isinstance(x, Value)])
    allow_unused = bool(allow_unused) or materialize_grads
    gradients = [_gradient(x, found, create_graph, allow_unused, materialize_grads) for x in variables]
    return dict(zip(inputs, gradients, strict=True)) if isinstance(inputs, dict) else tuple(gradients)


def _gradient(
    x: Value | TensorParameter, found: Derivatives, create_graph: bool, allow_unused: bool, materialize: bool
) -> Any:
    """Return the gradient of a value or a parameter; None if no output depends on it."""
    shape: Any = x.key.detail if isinstance(x, Value) else x.shape
    ref = found.total(x.ref, shape) if isinstance(x, Value) else found.of_parameter(x, shape)
    if ref is None:
        if not allow_unused:
            raise GraphError(
                f"torch.autograd.grad was called with the input {x!r}, on which no output depends; pass "
                f"allow_unused=True if that is intended."
            )
        return STAGE.current.zeros(shape) if materialize else None
    value = STAGE.current.handles.value(ref, shape)
    return value if create_graph else STAGE.current.call_cell(cell_of_function(torch.Tensor.detach), None, (value,), {})


def _listed(x: Any) -> Sequence[Any]:
    return x if isinstance(x, (list, tuple)) else [x]


def _value(x: Any, what: str) -> Value:
    """Return `x` as one value; GraphError unless it has floats of the module's dtype.

    Args:
        x: a value, or rows of values.
        what: the use of the value, for the message.
    """
    if isinstance(x, Rows):
        x = join_rows(x)
    if not isinstance(x, Value) or x.key.below or x.key.dtype:
        shape = tuple(getattr(x, "shape", ()))
        raise GraphError(
            f"torch.autograd.grad {what} recorded values by recorded values in the dtype of the module, got "
            f"{type(x).__name__} of shape {shape}; call x = x.requires_grad_() within the function to record a tensor."
        )
    return x


def _variable(x: Any) -> Value | TensorParameter:
    """Return the parameter of a tensor that is one, or else `x` as a value."""
    parameter = find_parameter(x) if isinstance(x, torch.Tensor) else None
    return _value(x, "differentiates") if parameter is None else parameter


def _seed(x: Value, gradient: Any) -> Any:
    """Return the gradient of an output; by default ones, for a value of one element."""
    shape: Any = x.key.detail
    if gradient is not None:
        given = to_arrays(gradient)
        if tuple(given.shape) != shape:
            raise GraphError(
                f"a gradient given to torch.autograd.grad must have the shape of its value, {shape}, got "
                f"{tuple(given.shape)}."
            )
        return given
    if shape and int(np.prod(shape)) != 1:
        raise GraphError(
            f"an output of torch.autograd.grad must be a scalar, got shape {shape}; sum it, or give grad_outputs."
        )
    return np.ones(shape)


def _without_saving(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Run the steps around a checkpointed function; skip them while recording, which keeps nothing for backward."""
    # Only a recording has patches; the trace of a cell has none.
    if hasattr(STAGE.current, "patches"):
        yield
    else:
        yield from SAVING(*args, **kwargs)


SAVING: Callable[..., Iterator[None]] = checkpoint._checkpoint_without_reentrant_generator
checkpoint._checkpoint_without_reentrant_generator = _without_saving
