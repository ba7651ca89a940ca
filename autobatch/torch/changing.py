"""In-place operations on recorded values: `h += x`, `h.mul_(2)`, `F.relu_(h)`, `h[0] = x`.

A recorded value is immutable, so changing it records a new value. From then on, the handle represents the new value
under every name it has in the program, as with a changed tensor. Views are the exception, because torch also changes
the tensor behind a view: in-place operations on a value that is a view or has views raise a GraphError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autobatch.errors import GraphError
from autobatch.ops.operators import STAGE
from autobatch.torch.adopting import to_arrays
from autobatch.torch.asking import named
from autobatch.torch.cells import cell_of_function
from autobatch.torch.entering import CURRENT
from autobatch.torch.flow import Flow
from autobatch.trace.handles import Rows, Value

OPERATORS = {
    "__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_", "__idiv__": "div_",
    "__ifloordiv__": "floor_divide_", "__imod__": "remainder_", "__ipow__": "pow_", "__iand__": "bitwise_and_",
    "__ior__": "bitwise_or_", "__ixor__": "bitwise_xor_", "__ilshift__": "bitwise_left_shift_",
    "__irshift__": "bitwise_right_shift_",
}  # fmt: skip
"""Python's in-place operators and the tensor methods that they call."""
FILLING: dict[str, Callable[..., Any]] = {
    "zero_": torch.zeros_like,
    # Adding zeros broadcasts to the shape of x.
    "fill_": lambda x, value: torch.zeros_like(x) + value,
    "copy_": lambda x, other, non_blocking=False: torch.zeros_like(x) + other,
}
"""In-place functions that do not read the tensor."""
INSTEAD = "make a new tensor: x = x + y for x += y, torch.cat or torch.where for x[i] = y; or call .clone() before."


def is_in_place(name: str) -> bool:
    """Return whether the torch function of this name changes its first argument."""
    return name in OPERATORS or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def change(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record an in-place function of this name, and bind its first argument to the result.

    Raises:
        GraphError: the first argument is a tensor with numbers, a view, or has views; or torch rejects the result.
    """
    name = OPERATORS.get(name, name)
    return replace(args[0], named(name), lambda: _result(name, args[0], args[1:], kwargs))


def replace(target: Any, method: str, make: Callable[[], Any]) -> Any:
    """Bind a value to the result of `make`; `method` names the in-place torch function in messages."""
    if not isinstance(target, Value):
        raise GraphError(
            f"{method} changes a tensor in place by a recorded value, which is only computed when the mini-batch runs; "
            f"start sums with 0.0 instead of a tensor, and write x = x + value for x += value."
        )
    _check_own(target, method)
    if CURRENT.has_gradients and not torch.is_grad_enabled():
        raise GraphError(
            f"{method} changes a recorded value in place while gradients are off, but torch would keep the gradient of "
            f"the old value; {INSTEAD}"
        )
    new, dtype, shape = make(), target.dtype, tuple(target.shape)  # type: ignore[attr-defined]
    if not torch.can_cast(new.dtype, dtype) or tuple(new.shape) != shape:
        raise GraphError(
            f"the result of {method} must fit a tensor of {dtype} and shape {shape} in place, got {new.dtype} of shape "
            f"{tuple(new.shape)}; make a new tensor."
        )
    Flow.of(STAGE.current).replace(target, new if new.dtype is dtype else new.to(dtype))
    return target


def _result(name: str, target: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record the result of an in-place function as a new value."""
    if name == "__setitem__":
        return STAGE.current.call_cell(cell_of_function(with_item), None, (target, *map(to_arrays, rest)), {})
    spaces: tuple[Any, ...] = target, torch, torch.nn.functional
    found = FILLING.get(name) or next((getattr(x, name[:-1]) for x in spaces if hasattr(x, name[:-1])), None)
    if found is None:
        raise GraphError(f"{named(name)} changes a recorded value in place, which cannot be recorded; {INSTEAD}")
    is_method = name not in FILLING and hasattr(target, name[:-1])
    made = found(*rest, **kwargs) if is_method else found(target, *rest, **kwargs)
    return made if isinstance(made, Value) else STAGE.current.alias(STAGE.current.wrapping.wrap(to_arrays(made)))


def with_item(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Copy a tensor with other numbers at an index."""
    x = x.clone()
    x[index] = value
    return x


def _check_own(target: Value, method: str) -> None:
    """Raise a GraphError if, in torch, other values may share memory with this one."""
    if isinstance(target, Rows) or target.is_row or Flow.of(STAGE.current).is_shared(target):
        raise GraphError(
            f"{method} changes a recorded value in place that is a view or has views, which torch would change too; "
            f"{INSTEAD}"
        )
