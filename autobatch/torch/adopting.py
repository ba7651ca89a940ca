"""Tensors among the arguments of cells while instances are recorded: parameters, data, and inputs with gradients.

Data are floats of the module's dtype, ints and bools. Tensors of other dtypes are converted by a separate node, as by
`tensor.to`, and represent numbers of their dtype from there on (`autobatch.torch.kinds`).
"""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, is_structure, parts_of
from autobatch.ops.operators import STAGE
from autobatch.torch.cells import Cut, cell_of_function
from autobatch.torch.entering import CURRENT
from autobatch.torch.kinds import WITHIN, to_floats
from autobatch.torch.parameters import find_parameter
from autobatch.torch.stacked import STACK, join_rows
from autobatch.trace.handles import Rows, Value


def to_arrays(x: Any) -> Any:
    """Convert tensors in the arguments of a cell to the recorded form: a parameter, an array, an input or an int."""
    kind = type(x)
    if issubclass(kind, Value):
        return join_rows(x) if issubclass(kind, Rows) and x.key.detail is STACK else x
    if kind is int or kind is str or kind is bool:
        return x
    if isinstance(x, torch.Tensor):
        with torch._C.DisableTorchFunction():  # the recording's mode must not see these calls
            try:
                return _array_of(x)
            except RuntimeError:
                if torch._C._functorch.is_functorch_wrapped_tensor(x):
                    raise _is_transformed() from None
                raise
    if kind is tuple or kind is list:
        parts = [to_arrays(part) for part in x]
        return x if all(map(is_, parts, x)) else kind(parts)
    if isinstance(x, PackedSequence):
        raise GraphError(
            "a cell must not be given a PackedSequence, which is a batch of sequences; give the cell the tensor of one "
            "sequence, (n, d): autobatch makes the batches."
        )
    if is_structure(x):
        own = parts_of(x)
        parts = [to_arrays(part) for part in own]
        return x if all(map(is_, parts, own)) else Key.of_structure(x, ()).build(parts)
    return Cut(x) if kind is slice else x


def _is_transformed() -> GraphError:
    return GraphError(
        "a recorded function calls cells within torch.func (grad, vmap, jvp and the like), which cannot transform "
        "recorded calls; call torch.autograd.grad(value, tensors, create_graph=True) for gradients."
    )


def _array_of(tensor: torch.Tensor) -> Any:
    parameter = find_parameter(tensor)
    if parameter is not None:
        return parameter
    if tensor.device.type != "cpu":
        raise GraphError(
            f"tensors given to a cell must be on the CPU, got one of shape {tuple(tensor.shape)} on {tensor.device}; "
            f"call .cpu() on it."
        )
    if tensor.layout is not torch.strided:
        raise GraphError(f"tensors given to a cell must be dense, got layout {tensor.layout}; call .to_dense().")
    dtype = tensor.dtype
    if dtype is CURRENT.dtype:
        return _input_of(tensor) if tensor.requires_grad else tensor.numpy()
    if dtype is torch.int64:
        return tensor.numpy() if tensor.shape else int(tensor)
    return tensor.numpy() if dtype is torch.bool else _converted(tensor)


def _converted(tensor: torch.Tensor) -> Any:
    """Return the value that represents a tensor of a different dtype from the module's."""
    dtype, model = tensor.dtype, CURRENT.dtype
    is_float = dtype.is_floating_point or dtype.is_complex
    if is_float and dtype not in WITHIN[model]:
        raise GraphError(
            f"a tensor given to a cell must fit the dtype of the module, {model}, got {dtype}; call .to({model}) on "
            f"the tensor, or .double() on the module."
        )
    if tensor.requires_grad:
        given = _input_of(tensor)
    else:
        given = (to_floats(tensor, model) if is_float else tensor.to(torch.int64)).numpy()
    if dtype.is_complex:
        given = STAGE.current.call_cell(cell_of_function(torch.view_as_complex), None, (given,), {})
    return STAGE.current.call_cell(cell_of_function(torch.Tensor.to), None, (given, dtype), {})


def _input_of(tensor: torch.Tensor) -> Any:
    if CURRENT.inputs is None:
        if CURRENT.has_gradients and torch.is_grad_enabled():
            raise GraphError(
                f"a tensor of shape {tuple(tensor.shape)} requires a gradient, which a recorded graph would lose; give "
                f"the instances themselves to the batched function, or tensor.detach()."
            )
        return to_floats(tensor.detach(), CURRENT.dtype).numpy()
    return CURRENT.inputs.enter_tensor(tensor)
