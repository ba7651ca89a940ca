"""Torch functions that read numbers, or only shapes and dtypes, of values that have no numbers yet.

While a body is traced, or run without numbers, tensors computed from values and parameters have no numbers yet;
constants have them. If the shape of a result depends only on constants, the function is rewritten ("respelled"): an
index of bools becomes one of ints. If a body reads numbers of a node's data, these become constants, which are part of
the node's type (`NeedsData`). Otherwise, an error is raised.

Functions that need only a value's shape and dtype, or make a tensor in its likeness, are applied to an uninitialized
tensor of this shape and dtype.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, Never, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autobatch.errors import GraphError
from autobatch.ir.builder import NeedsData, data_behind
from autobatch.torch.structures import leaves_of, on_leaves, tensors_in
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
READING = {"item", "tolist", "numpy", "is_nonzero", "equal", "allclose", "__array__"}
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
    """Make a tensor of the shape, dtype and device of a value; return anything else unchanged."""
    if not isinstance(x, Value):
        return x
    return torch.empty(tuple(x.shape), dtype=x.dtype, device=x.device)  # type: ignore[attr-defined]


def needs_no_node(name: str) -> bool:
    """Return whether the function of this name may need no node, because `tell` applies or rejects it."""
    return any(name in names for names in (MEMORY, READING, TELLING, MAKING, CONVERTING))


def tell(function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply a function that needs no numbers of values; NotImplemented if it needs them.

    Raises:
        GraphError: it needs a value's memory, or its numbers outside torch, or moves it to another device.
    """
    if name in MEMORY:
        raise GraphError(f"{named(name)} needs the memory of a recorded value, but values have no numbers yet; {AWAIT}")
    if name in READING:
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
    if found.device != given[0].device:
        raise GraphError(
            f"a recorded value is moved to {found.device} by {named(name)}, but batched functions compute on the "
            f"device of the module, {given[0].device}; move the module, or the result."
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
        tensors = [part for part in parts if not isinstance(part, Value)]
        elsewhere = next((x.device for x in tensors if x.device.type != "cpu"), None)  # a GPU, or "meta"
        if elsewhere is not None:
            parts = [part if isinstance(part, Value) else part.to(elsewhere) for part in parts]
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


NUMBERS = {
    "_local_scalar_dense": "a number that its condition, .item() or index needs",
    "is_nonzero": "a number that its condition needs",
    "nonzero": "the places where a condition holds",
    "argwhere": "the places where a condition holds",
    "masked_select": "the places where a condition holds",
    "unique_consecutive": "how many values differ",
    "unique_dim": "how many values differ",
    "_unique": "how many values differ",
    "_unique2": "how many values differ",
    "equal": "whether all numbers are equal",
    "bincount": "the largest number",
    "repeat_interleave": "how often to repeat a part",
}
"""Torch ops whose results need numbers, for their shape or for Python, and a description of these numbers."""
FIRST, SECOND = slice(0, 1), slice(1, 2)
ASKED = {"masked_select": SECOND, "index": SECOND, "equal": slice(0, 2)}
"""The arguments whose numbers an op needs, if it is not the first."""
Spelled = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Numbers(Protocol):
    """An analysis that knows which tensors are constants."""

    def varies(self, x: Tensor) -> bool:
        """Return whether the numbers of a tensor are not constant."""

    def values(self, tensors: Iterable[Tensor]) -> Iterable[Any] | None:
        """Return the values that such tensors represent in the program; None if they are unknown."""


class Respelling(TorchFunctionMode):
    """The mode that replaces torch functions by equal ones that read no numbers, while rows are mapped."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        function, args, kwargs = respell(function, args, kwargs or {}, self) or (function, args, kwargs or {})
        return function(*args, **kwargs)

    def varies(self, x: Tensor) -> bool:
        """Return whether a tensor differs from row to row."""
        return torch._C._functorch.is_functorch_wrapped_tensor(x)

    def values(self, tensors: Iterable[Tensor]) -> None:
        """Return None: the analysis has already rejected functions that read numbers."""


def check_numbers(op: Any, args: Any, numbers: Numbers) -> None:
    """Check that an op needs no numbers that are not constant, for its shape or for Python.

    Raises:
        NeedsData: it needs some.
    """
    name = op.overloadpacket.__name__
    asked = [x for x in tensors_in(args[ASKED.get(name, FIRST)]) if numbers.varies(x)]
    if name in NUMBERS and asked:
        refuse_numbers(NUMBERS[name], f"torch's {name}", numbers.values(asked))
    if name == "index" and (conditions := list(filter(_is_condition, asked))):
        refuse_numbers(NUMBERS["nonzero"], "an index of bools", numbers.values(conditions))


def refuse_numbers(what: str, op: str, values: Iterable[Any] | None) -> Never:
    """Raise the NeedsData error of a function that reads numbers.

    Args:
        what: a description of the numbers.
        op: the name of the function.
        values: the values whose numbers it reads; None if they are unknown.
    """
    advice = "choose between values by torch.where, or decide outside the cell, after await ab.value(x)."
    raise NeedsData(
        f"a module asks for {what} ({op}), but it is only computed when the mini-batch runs; "
        f"{validation_advice() or advice}",
        None if values is None else data_behind(values),
    )


def validation_advice() -> str:
    """Return the advice for a distribution of torch that checks its numbers; "" if none is on the call stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (
        frame.f_code.co_name in ("__init__", "_validate_sample")
        and frame.f_globals.get("__name__", "").startswith("torch.distributions.")
    ):
        frame = frame.f_back
    return "" if frame is None else "torch.distributions checks its arguments by them, so give it validate_args=False."


def respell(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], numbers: Numbers) -> Spelled | None:
    """Rewrite a call of a torch function as an equal one that reads no numbers; None if there is no need or no way.

    Raises:
        NeedsData: the function would read numbers that are not known yet.
    """
    spell = SPELL.get(function)
    return None if spell is None else spell(numbers, function, *args, **kwargs)


def _give(numbers: Numbers, function: Any, x: Tensor, *options: Any, **others: Any) -> None:
    """Raise a NeedsData error for the numbers of a tensor that has none."""
    if numbers.varies(x) and ((values := numbers.values([x])) is not None or x.is_meta):
        refuse_numbers("the numbers of a tensor", f".{function.__name__}()", values)


def _take(numbers: Numbers, function: Any, x: Tensor, index: Any) -> Spelled | None:
    parts = index if isinstance(index, tuple) else (index,)
    has_ints = any(_is_int(part) and numbers.varies(part) for part in parts)
    is_known = [_is_known_condition(part, numbers) for part in parts]
    if not has_ints and not (any(is_known) and x.dim()):
        return None
    places = (_places(part) if known else (part,) for part, known in zip(parts, is_known, strict=True))
    parts = tuple(itertools.chain(*places))
    return (_take_ints if has_ints else function), (x, parts), {}


def _take_ints(x: Tensor, index: tuple[Any, ...]) -> Tensor:
    """Index first the axes with a tensor of one int, as torch does, and then the others."""
    axis, others = 0, list[Any]()
    for place, part in enumerate(index):
        if _is_int(part):
            # Torch reads the number of an index tensor without axes, but not of one with an axis.
            x = x[(*[slice(None)] * axis, part.long().reshape(1))].squeeze(axis)
            continue
        others.append(part)
        if part is Ellipsis:
            axis = x.dim() - sum(map(_has_axis, index[place + 1 :]))
        else:
            axis += _has_axis(part)
    return x[tuple(others)]


def _has_axis(part: Any) -> bool:
    """Return whether a part of an index selects along an axis of the tensor, instead of adding one."""
    return part is not None and not isinstance(part, bool)


def _select(numbers: Numbers, function: Any, input: Tensor, mask: Tensor, **options: Any) -> Spelled | None:
    if numbers.varies(mask) or options:
        return None
    shape: Any = torch.broadcast_shapes(input.shape, mask.shape)  # type: ignore[no-untyped-call]
    (places,) = mask.expand(shape).reshape(-1).nonzero(as_tuple=True)
    return (lambda x, places: torch.index_select(x.expand(shape).reshape(-1), 0, places)), (input, places), {}


def _narrow(numbers: Numbers, function: Any, input: Tensor, dim: int, start: Any, length: int) -> Spelled | None:
    if not _is_int(start):
        return None
    return (
        (lambda x, start: torch.index_select(x, dim, start + torch.arange(length, device=x.device))),
        (input, start),
        {},
    )


def _repeat(
    numbers: Numbers, function: Any, input: Any = None, repeats: Any = None, dim: int | None = None, **options: Any
) -> Spelled | None:
    if input is None or not isinstance(repeats, Tensor) or numbers.varies(repeats):
        return None
    axis = 0 if dim is None else dim
    n = input.numel() if dim is None else input.shape[axis]
    places = torch.repeat_interleave(repeats.expand(n))
    return (lambda x, places: torch.index_select(x.flatten() if dim is None else x, axis, places)), (input, places), {}


def _split(
    numbers: Numbers, function: Any, input: Tensor, indices: Any = None, dim: int = 0, **options: Any
) -> Spelled | None:
    indices = options.get("tensor_indices_or_sections", indices)
    if not isinstance(indices, Tensor):
        return None
    if numbers.varies(indices):  # torch would read their memory, which does not exist
        refuse_numbers("where to split a tensor", "torch's tensor_split by a tensor", numbers.values([indices]))
    return function, (input, indices.tolist(), dim), {}


def _count(
    numbers: Numbers, function: Any, input: Tensor, weights: Tensor | None = None, minlength: int = 0
) -> Spelled | None:
    if weights is None or numbers.varies(input):
        return None
    n = max(minlength, int(input.max()) + 1 if input.numel() else 0)
    dtype = weights.dtype if weights.dtype is torch.float32 else torch.float64
    return _add_up, (n, input, weights.detach().to(dtype)), {}


def _add_up(n: int, places: Tensor, weights: Tensor) -> Tensor:
    return weights.new_zeros(n).index_add(0, places, weights)


def _combine(
    numbers: Numbers, function: Any, input: Tensor, r: int = 2, with_replacement: bool = False
) -> Spelled | None:
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = [*choose(range(len(input)), r)] if r else []
    places = torch.tensor(chosen, dtype=torch.int64).reshape(-1, r) if r else slice(0)
    return (lambda x: x[places]), (input,), {}


def _construct(numbers: Numbers, function: Any, data: Any, dtype: Any = None, **options: Any) -> Spelled | None:
    is_plain = isinstance(data, Tensor) or options.get("requires_grad")
    if is_plain or not any(map(numbers.varies, tensors_in(data))):
        return None
    return (lambda data: construct(data, dtype).detach()), (data,), {}


SPELL: dict[Any, Callable[..., Spelled | None]] = {
    Tensor.__getitem__: _take,
    torch.combinations: _combine,
    **dict.fromkeys(CONSTRUCTORS, _construct),
    **dict.fromkeys((Tensor.tolist, Tensor.numpy, Tensor.item, Tensor.__array__), _give),
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), _select),
    **dict.fromkeys((torch.narrow, Tensor.narrow), _narrow),
    **dict.fromkeys((torch.repeat_interleave, Tensor.repeat_interleave), _repeat),
    **dict.fromkeys((torch.tensor_split, Tensor.tensor_split), _split),
    **dict.fromkeys((torch.bincount, Tensor.bincount), _count),
}


def _is_int(x: Any) -> bool:
    """Return whether `x` is a tensor of one int."""
    return isinstance(x, Tensor) and not x.dim() and x.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)


def _is_condition(x: Any) -> bool:
    """Return whether `x` is a tensor of bools."""
    return isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8)


def _is_known_condition(x: Any, numbers: Numbers) -> bool:
    return _is_condition(x) and x.dim() > 0 and not numbers.varies(x)


def _places(condition: Tensor) -> tuple[Tensor, ...]:
    """Convert an index of bools to the equivalent index of ints."""
    return condition.nonzero(as_tuple=True)
