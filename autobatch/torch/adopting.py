"""Tensors among the arguments of cells while instances are recorded: parameters, data, inputs with gradients, stacks.

Data are floats of the module's dtype, ints and bools. Tensors of other dtypes are converted by a separate node, as by
`tensor.to`, and represent numbers of their dtype from there on (`autobatch.torch.kinds`).

Results of `torch.stack` are values whose rows are recorded values, so stacking needs no node.

Reductions over the rows, single rows, slices, results of the program and awaited values read the rows directly. All
other uses join the rows first, by one node of `torch.stack`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, cast

import torch
from torch.nn.utils.rnn import PackedSequence

from autobatch import ops
from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, is_structure, parts_of
from autobatch.ops.operators import STAGE
from autobatch.torch import aten
from autobatch.torch.cells import Cut, cell_of_function
from autobatch.torch.entering import CURRENT, on_host
from autobatch.torch.kinds import WITHIN, to_floats
from autobatch.torch.memory import store_at
from autobatch.torch.parameters import find_parameter
from autobatch.trace.handles import Rows, Value

STACK = "stack"  # part of the key that distinguishes stacks from rows returned by autobatch cells
REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": ops.sum_n, "mean": ops.mean_n, "amax": ops.max_n}


def stack_values(values: Sequence[Any], to_array: Callable[[Any], Any]) -> Rows | None:
    """Stack values along a new first axis; None if they differ in shape or dtype.

    Args:
        to_array: converts tensors among them.
    """
    stacked = _stack(values)
    return stacked if stacked is not None else _stack([STAGE.current.wrapping.wrap(to_array(x)) for x in values])


def _stack(values: Sequence[Any]) -> Rows | None:
    kind = type(values[0]) if values else None
    if kind is None or not issubclass(kind, Value) or issubclass(kind, Rows):
        return None
    rows = STAGE.current.handles.class_of(Key("rows", STACK, (kind.key,)))
    return cast("Rows | None", STAGE.current.log.stack(rows, [*values]))


def join_rows(rows: Rows) -> Any:
    """Record the rows as one value, which represents the stack from then on."""
    is_stack = rows.key.detail is STACK
    if is_stack and rows.whole is not None:
        return rows.whole
    if len(rows):
        whole = STAGE.current.call_cell(cell_of_function(torch.stack), None, ([*rows],), {})
    else:
        whole = STAGE.current.zeros(rows.shape)
    if is_stack:
        rows.whole = whole
    return whole


def reduce_rows(name: str, rows: Any, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    """Reduce a stack over its rows without joining them; None if that is impossible."""
    reduce = REDUCTIONS.get(name)
    if reduce is None or keepdim or options or dim not in (None, 0, (0,), [0]) or not len(rows):
        return None
    if rows.dtype.is_complex or rows.row.key.dtype or rows.row.key.below:
        return None
    found = reduce([*rows])
    return aten.OPS[name].function(found) if dim is None and found.shape else found


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
    store_at(tensor.device)  # raises for devices that no backend reads
    if tensor.layout is not torch.strided:
        raise GraphError(f"tensors given to a cell must be dense, got layout {tensor.layout}; call .to_dense().")
    dtype = tensor.dtype
    if dtype is CURRENT.dtype and tensor.requires_grad:
        return _input_of(tensor)
    if not tensor.requires_grad:
        tensor = on_host(tensor)
    if dtype is CURRENT.dtype:
        return tensor.numpy()
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
        return to_floats(on_host(tensor.detach()), CURRENT.dtype).numpy()
    return CURRENT.inputs.enter_tensor(tensor)
