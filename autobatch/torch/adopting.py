"""Tensors that cells are given while instances are recorded: parameters, data of nodes, and inputs with gradients.

Data are floats of the module's dtype, ints and bools. What is of another dtype is converted by a node of its own, as
`tensor.to` converts it, and stands for numbers of its dtype from there on (`autobatch.torch.kinds`).
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
    """Tensors among the arguments of a cell as what is recorded: a parameter, an array, or an int of one int."""
    kind = type(x)
    if issubclass(kind, Value):
        return join_rows(x) if issubclass(kind, Rows) and x.key.detail is STACK else x
    if kind is int or kind is str or kind is bool:
        return x
    if isinstance(x, torch.Tensor):
        with torch._C.DisableTorchFunction():  # the recording's own mode, of which no part is meant here
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
            "a cell is given a PackedSequence, which is a batch of sequences that torch has made; give the cell the "
            "tensor of one sequence, (n, d): autobatch makes the batches."
        )
    if is_structure(x):
        own = parts_of(x)
        parts = [to_arrays(part) for part in own]
        return x if all(map(is_, parts, own)) else Key.of_structure(x, ()).build(parts)
    return Cut(x) if kind is slice else x


def _is_transformed() -> GraphError:
    return GraphError(
        "a function that is recorded calls cells within torch.func (grad, vmap, jvp and the like), which cannot "
        "transform what is recorded; call torch.autograd.grad(value, tensors, create_graph=True) for gradients."
    )


def _array_of(tensor: torch.Tensor) -> Any:
    parameter = find_parameter(tensor)
    if parameter is not None:
        return parameter
    if tensor.device.type != "cpu":
        raise GraphError(
            f"a cell is given a tensor of shape {tuple(tensor.shape)} on {tensor.device}; cells run on the processor: "
            f"call .cpu() on it."
        )
    if tensor.layout is not torch.strided:
        raise GraphError(f"a cell is given a tensor of layout {tensor.layout}, but values are dense; call .to_dense().")
    dtype = tensor.dtype
    if dtype is CURRENT.dtype:
        return _input_of(tensor) if tensor.requires_grad else tensor.numpy()
    if dtype is torch.int64:
        return tensor.numpy() if tensor.shape else int(tensor)
    return tensor.numpy() if dtype is torch.bool else _converted(tensor)


def _converted(tensor: torch.Tensor) -> Any:
    """The value that stands for a tensor of another dtype."""
    dtype, model = tensor.dtype, CURRENT.dtype
    is_float = dtype.is_floating_point or dtype.is_complex
    if is_float and dtype not in WITHIN[model]:
        raise GraphError(
            f"a cell is given a tensor of {dtype}, and the module computes in {model}; call .to({model}) on the "
            f"tensor, or .double() on the module."
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
                f"a tensor of shape {tuple(tensor.shape)} asks for a gradient, which a recorded graph would lose; give "
                f"the instances themselves to the batched function, or tensor.detach()."
            )
        return to_floats(tensor.detach(), CURRENT.dtype).numpy()
    return CURRENT.inputs.enter_tensor(tensor)
