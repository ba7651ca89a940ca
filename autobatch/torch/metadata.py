"""Torch functions that need only a value's shape and dtype, and tensors made in its likeness.

They are applied to an uninitialized tensor of the value's shape and dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autobatch.errors import GraphError
from autobatch.torch.structures import leaves_of, on_leaves
from autobatch.trace.handles import Value

TELLING = {
    "numel", "nelement", "ndimension", "element_size", "is_contiguous", "get_device", "is_signed", "is_floating_point",
    "is_complex", "is_same_size", "result_type", "is_shared", "is_pinned", "is_inference", "is_conj", "is_neg",
    "has_names",
}  # fmt: skip
"""Functions that read only metadata of a tensor."""
MAKING = {
    "zeros_like", "ones_like", "full_like", "empty_like", "new", "new_zeros", "new_ones", "new_full", "new_empty",
    "new_tensor", "new_empty_strided",
}  # fmt: skip
"""Functions that make a tensor in the likeness of another."""
CONVERTING = {
    "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "byte", "char", "bool",
    "cpu", "cuda", "contiguous",
}  # fmt: skip
"""Functions that return the tensor itself if it already has that form."""
MEMORY = {
    "data_ptr", "storage", "untyped_storage", "storage_offset", "stride", "set_", "resize_", "share_memory_",
    "pin_memory", "apply_", "map_",
}  # fmt: skip
"""Functions that read a tensor's memory, which a recorded value does not have."""
NUMBERS = {"item", "tolist", "numpy", "is_nonzero", "equal", "allclose", "__array__"}
"""Functions that return numbers to Python."""
CONSTRUCTORS: Mapping[Any, bool] = {torch.as_tensor: True, torch.asarray: True, torch.tensor: False}
"""Functions that make a tensor from data, and whether gradients flow to a given tensor."""

AWAIT = (
    "they are computed when the mini-batch runs. An async function can wait for them by `await ab.value(x)`; "
    "torch.where chooses between values."
)
BEFORE_INPUT = ("condition", "n", "sorted_sequence")
"""The first arguments of torch functions whose first argument is not `input`."""


def probe(x: Any) -> Any:
    """Make a tensor of the shape and dtype of a value; return anything else unchanged."""
    return torch.empty(tuple(x.shape), dtype=x.dtype) if isinstance(x, Value) else x  # type: ignore[attr-defined]


def needs_no_node(name: str) -> bool:
    """Return whether the function of this name may need no node, because `tell` applies or rejects it."""
    return any(name in names for names in (MEMORY, NUMBERS, TELLING, MAKING, CONVERTING))


def tell(function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply a function that needs no numbers of values; NotImplemented if it needs them.

    Raises:
        GraphError: it needs a value's memory, or its numbers outside torch, or moves it to another device.
    """
    if name in MEMORY:
        raise GraphError(f"{named(name)} needs the memory of a recorded value, but values have no numbers yet; {AWAIT}")
    if name in NUMBERS:
        raise GraphError(f"{named(name)} needs the numbers of a recorded value now; {AWAIT}")
    if name not in TELLING and name not in MAKING and name not in CONVERTING:
        return NotImplemented
    with torch._C.DisableTorchFunction():
        if name in MAKING:
            others = leaves_of([args[1:], dict(kwargs)])
            return NotImplemented if any(isinstance(x, Value) for x in others) else _make(function, args, kwargs)
        given = on_leaves(probe, list(args))
        found = function(*given, **kwargs)
    if name in TELLING or isinstance(found, str):
        return found
    if found.device.type != "cpu":
        raise GraphError(
            f"a recorded value is moved to {found.device} by {named(name)}, but batched functions compute on the CPU; "
            f"leave the module and the instances there."
        )
    return args[0] if found is given[0] else NotImplemented


def _make(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return function(probe(args[0]), *args[1:], **kwargs)


def named(name: str) -> str:
    """Return the name of a torch function as users write it."""
    return f"torch.Tensor.{name}" if hasattr(torch.Tensor, name) else f"torch.{name}"


def construct(data: Any, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> Any:
    """Build the result of `torch.tensor` of numbers and values by torch functions that need no numbers."""
    if isinstance(data, (list, tuple)) and data:
        parts = [
            _number(construct(part)) if isinstance(part, (Value, torch.Tensor)) else construct(part) for part in data
        ]
        kind = parts[0].dtype
        for part in parts:
            kind = torch.promote_types(kind, part.dtype)
        if any(part.is_meta for part in parts):  # a body is running without numbers
            parts = [part.to("meta") for part in parts]
        made: Any = torch.stack([part if part.dtype is kind else part.to(kind) for part in parts])
    else:
        made = data if isinstance(data, (Value, torch.Tensor)) else torch.tensor(data)
    made = made if dtype is None or made.dtype is dtype else made.to(dtype)
    return made


def _number(x: Any) -> Any:
    """Reshape a tensor of one element to a scalar, which torch accepts in a list; return others unchanged."""
    return x.reshape(()) if x.dim() and x.numel() == 1 else x


def by_position(
    args: tuple[Any, ...], kwargs: dict[str, Any], with_other: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the first operand of a function by position, and `other` too if `with_other`."""
    if not args and kwargs.keys().isdisjoint(BEFORE_INPUT):
        for first in ("input", "tensors"):
            if first in kwargs:
                args, kwargs = (kwargs[first],), {key: x for key, x in kwargs.items() if key != first}
    if len(args) == 1 and with_other and "other" in kwargs:
        args, kwargs = (*args, kwargs["other"]), {key: x for key, x in kwargs.items() if key != "other"}
    return args, kwargs
