"""Functions and methods of torch applied to recorded values, outside cells.

Each becomes a node: a separate cell whose body is the function. `torch.stack(values)` adds no node; it is a value whose
rows are the values (`autobatch.torch.adopting`). Reductions over it read all values at once, however many there are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache, partial
from types import NoneType
from typing import Any, Never

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from autobatch.errors import GraphError
from autobatch.ir.arguments import Key
from autobatch.ir.builder import Builder
from autobatch.ops.conditions import COMPARISONS
from autobatch.ops.operators import STAGE
from autobatch.torch import aten, packed
from autobatch.torch.adopting import REDUCTIONS, reduce_rows, stack_values, to_arrays
from autobatch.torch.analysis import REGISTER_HOOK, check_function, is_checked
from autobatch.torch.asking import (
    AWAIT,
    CONSTRUCTORS,
    by_position,
    construct,
    named,
    needs_no_node,
    tell,
    validation_advice,
)
from autobatch.torch.cells import cell_of_function, returning_without_gradient, without_gradient
from autobatch.torch.changing import OPERATORS, change, is_in_place, replace
from autobatch.torch.entering import CURRENT, Precision, on_host
from autobatch.torch.flow import Flow
from autobatch.torch.gradients import BACKWARD, GRAD, REQUIRES, as_variable, grad, refuse_backward
from autobatch.torch.kinds import dtype_of_name
from autobatch.torch.parameters import PARAMETERS, find_parameter
from autobatch.torch.seen_class import asks_for_class
from autobatch.torch.structures import leaves_of
from autobatch.trace.handles import Rows, Value

WITHOUT_GRADIENT = {"__get__", "detach", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones"}
DIRECT = ("add", "sub", "rsub", "mul", "div", "neg", "sum", "mean")
"""Functions that are one op of ours, which graph passes recognize: repeated `total + loss` becomes a sum of many."""
OF_OPS: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.true_divide, "pow": torch.pow, "neg": torch.neg,
    "matmul": torch.matmul, "less": torch.lt, "less_equal": torch.le, "greater": torch.gt, "greater_equal": torch.ge,
    "equal": torch.eq, "not_equal": torch.ne,
}  # fmt: skip
"""Torch's functions for our ops of Python's operators; on other kinds than floats they give other kinds of numbers."""
SPELLED = {
    "__add__": "add", "__radd__": "add", "__sub__": "sub", "__rsub__": "rsub", "__mul__": "mul", "__rmul__": "mul",
    "__truediv__": "div", "__neg__": "neg",
}  # fmt: skip
PLAIN_INDEX = (int, slice, type(None), type(Ellipsis))
"""Index parts that slice a value; others, such as tensors and lists, select elements."""
DROPPING = {
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
}
"""Functions that return the tensor itself in eval()."""
NORMS = functional.batch_norm, functional.instance_norm
"""Functions that may update module statistics, passed by keyword."""
REPLACED: dict[Any, Callable[..., Any]] = {
    packed.VF._pack_padded_sequence: packed.pack_padded,
    packed.VF._pad_packed_sequence: packed.pad_packed,
    **{getattr(torch, name): partial(packed.run_recurrent, name) for name in packed.RECURRENT},
}
"""Torch functions that read memory, and their replacements for recorded values, which may return NotImplemented."""
TAKE: Any = torch.Tensor.__getitem__
INFERENCE_MODE: Any = torch._C._InferenceMode


def apply(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a function of torch, applied to values and tensors; detach the result if grad mode is off."""
    return without_gradient(_apply(function, args, kwargs))


def _apply(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    current: Any = STAGE.current
    if current is None or not hasattr(current, "call_cell"):
        raise GraphError("a recorded value can be used only while its instance is recorded; return it instead.")
    if kwargs:
        args, kwargs = by_position(args, kwargs, with_other=function.__name__ in DIRECT)
    name, is_special, has_op = _look_up(function)
    is_special = is_special or (bool(kwargs) and (kwargs.get("inplace") or kwargs.get("out") is not None))
    if is_special and (found := _apply_special(function, name, args, kwargs)) is not NotImplemented:
        return found
    if has_op and args and (found := _apply_op(name, args, kwargs)) is not NotImplemented:
        return found
    given = tuple(map(_as_data, args))
    options = {key: _as_data(x) for key, x in kwargs.items()} if kwargs else kwargs
    try:
        return current.call_cell(cell_of_function(function), None, given, options)
    except TypeError as error:
        if "not Traced" not in str(error):
            raise
        raise GraphError(
            f"torch.{name} takes a Python number where it was given a recorded value, whose number is only computed "
            f"when the mini-batch runs; an async function can wait for it by `await ab.value(x)`."
        ) from None


@cache
def _look_up(function: Any) -> tuple[str, bool, bool]:
    """Look up how to record a function.

    Returns:
        Its name; whether `_apply_special` may handle it even without `inplace` and `out`; whether `_apply_op` may.
    """
    name = SPELLED.get(function.__name__, function.__name__)
    is_known = function in (GRAD, BACKWARD, REQUIRES, *REGISTER_HOOK) or function in DROPPING or function in REPLACED
    is_special = is_known or is_in_place(function.__name__) or needs_no_node(name) or is_checked(function)
    return name, is_special, name in REDUCTIONS or name in DIRECT or name == "stack"


def _apply_special(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply or reject a function that is not recorded in the usual way; NotImplemented for all others."""
    if function is GRAD:
        return grad(*args, **kwargs)
    if function is BACKWARD:
        refuse_backward()
    if function in REGISTER_HOOK:
        raise GraphError(
            f"{named(name)} is called on a recorded value, whose gradient is computed only when its mini-batch runs; "
            f"call it in a cell, on a tensor that the cell computes."
        )
    if function is REQUIRES:
        return args[0]
    if function in DROPPING and not kwargs.get("training", True):
        return args[0]
    if function in REPLACED and (found := REPLACED[function](*args, **kwargs)) is not NotImplemented:
        return found
    if name == "is_contiguous" and not isinstance(args[0], Rows) and Flow.of(STAGE.current).is_shared(args[0]):
        raise GraphError(
            "torch.Tensor.is_contiguous needs the memory of a recorded value that is a view or has views, but values "
            "have no memory; call .contiguous(), which costs nothing here."
        )
    if (told := tell(function, name, args, kwargs)) is not NotImplemented:
        return told
    check_function(function, args, kwargs)
    if is_in_place(function.__name__):
        return change(function.__name__, args, kwargs)
    if kwargs.get("inplace"):
        return replace(
            args[0], f"torch's {name} with inplace=True", lambda: function(*args, **kwargs | {"inplace": False})
        )
    if kwargs.get("out") is not None:
        raise GraphError(f"{named(name)} must not be given out= with recorded values; use its result.")
    return NotImplemented


def _apply_op(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a function as an op of ours, or to the rows of a stack; NotImplemented if that is impossible."""
    is_rows = issubclass(type(args[0]), Rows)
    if is_rows and name in REDUCTIONS and (found := reduce_rows(name, *args, **kwargs)) is not None:
        return found
    if name == "stack" and isinstance(args[0], (list, tuple)) and not any(args[1:]) and not kwargs.get("dim", 0):
        stacked = stack_values(args[0], to_arrays)
        if stacked is not None and "out" not in kwargs:
            return stacked
    if name in DIRECT and "dtype" not in kwargs and all(map(_is_float, args)):
        return aten.OPS[name].function(*map(to_arrays, args), **kwargs)
    return NotImplemented


def _take(table: Any, index: Any) -> Any:
    """Record an index of a parameter by torch; ints that select its rows become data of the node."""
    if type(index) is list and index and all(map(_is_int, index)):
        index = np.array([int(x) % len(table) for x in index])
    found, parts = table, index if type(index) is tuple else (index,)
    while parts and _is_int(parts[0]):
        row = apply(TAKE, (found, np.array(int(parts[0]) % len(found))), {})
        found, parts = STAGE.current.log.value(type(row), row.ref, True), parts[1:]  # a view, as in torch
    if found is table:
        return apply(TAKE, (table, index), {})
    return found[parts] if parts else found


class OfParameters(TorchFunctionMode):
    """The mode that records functions of parameters, such as `self.first[0]`, like those of values.

    Args:
        module: the module of the parameters.
    """

    def __init__(self, module: Precision) -> None:
        super().__init__()
        self._module = module

    def __enter__(self) -> Any:
        self._before = CURRENT.module, CURRENT.dtype, CURRENT.device, CURRENT.has_gradients, torch._C._InferenceMode
        CURRENT.module, CURRENT.dtype, CURRENT.device = self._module, self._module.float_dtype, self._module.device
        self._copies, CURRENT.copies = CURRENT.copies, self._module.copies
        CURRENT.has_gradients = torch.is_grad_enabled()
        # This holds in all threads. Recordings of torch modules share a lock, and others still get inference mode.
        torch._C._InferenceMode = _inference_mode  # type: ignore[misc, assignment]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        CURRENT.module, CURRENT.dtype, CURRENT.device, CURRENT.has_gradients, mode = self._before
        torch._C._InferenceMode, CURRENT.copies = mode, self._copies  # type: ignore[misc]
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if isinstance(error[1], TypeError) and (told := _explain(str(error[1]))):
            refused = GraphError(told)
            refused.__notes__ = getattr(error[1], "__notes__", [])
            raise refused from error[1]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch._C._set_grad_enabled and CURRENT.has_gradients and hasattr(STAGE.current, "patches"):
            STAGE.current.patches.wrap_functions(None if args[0] else returning_without_gradient)
        for kind in types:
            if issubclass(kind, TensorMethods):
                return apply(function, args, kwargs)
        if function in CONSTRUCTORS and args and any(isinstance(x, Value) for x in leaves_of(args[0])):
            made = construct(*args, **kwargs)
            return (
                made
                if CONSTRUCTORS[function] and isinstance(args[0], Value)
                else apply(torch.Tensor.detach, (made,), {})
            )
        if (function is REQUIRES or "requires_grad" in kwargs) and hasattr(STAGE.current, "patches"):
            before = bool(args) and getattr(args[0], "requires_grad", False)
            return as_variable(function(*args, **kwargs), function is REQUIRES and before)
        if function in NORMS:
            check_function(function, args, kwargs)
        if kwargs and (out := kwargs.get("out")) is not None and _reads_parameter((out,)):
            _refuse_change(f"{named(function.__name__)} with out=", out)
        # Only results with floats are recorded: shapes, ints and the like are computed now, and are constants.
        if function.__name__ not in WITHOUT_GRADIENT and _reads_parameter(args) and hasattr(STAGE.current, "call_cell"):
            check_function(function, args, kwargs)
            if is_in_place(function.__name__) and _reads_parameter(args[:1]):
                _refuse_change(named(OPERATORS.get(function.__name__, function.__name__)), args[0])
            found = function(*args, **kwargs)
            if isinstance(found, torch.Tensor) and found.is_floating_point():
                if function is TAKE and args[0].dtype is CURRENT.dtype:
                    return _take(*args)
                return apply(function, args, kwargs)
            return found
        return function(*args, **kwargs)


def _explain(text: str) -> str:
    """Explain a TypeError of C code that was given a recorded value; return "" for other errors."""
    if "incompatible function arguments" in text:
        return (
            "torch.func, autograd.Function.apply or other C++ code of torch was given a recorded value, which only has "
            "numbers when the mini-batch runs; call it in a cell."
        )
    if found := re.match(r"descriptor '(\w+)' for 'torch\._C\.TensorBase' objects doesn't apply", text):
        return (
            f"torch.Tensor.{found[1]} called as a function takes no recorded values, because Python checks the class; "
            f"write v.{found[1]}(...) for a value v, or call it in a cell."
        )
    return ""


def _refuse_change(method: str, tensor: torch.Tensor) -> Never:
    """Raise the GraphError of a change to a parameter or a buffer while instances are recorded."""
    parameter = find_parameter(tensor)
    name = repr(parameter.name) if parameter is not None and parameter.name else "a parameter"
    raise GraphError(
        f"{method} changes {name} while instances are recorded, but recorded calls read parameters and buffers when "
        f"the mini-batch runs, after all instances; change it before or after the call, or call eval() on the module."
    )


def _refuse_buffer(module: torch.nn.Module, name: str, buffer: Any) -> None:
    """Raise a GraphError for a buffer that is a recorded value or is set in a cell; torch calls this on assignment."""
    if isinstance(STAGE.current, Builder):
        raise GraphError(
            f"the buffer {name!r} of {type(module).__name__} is assigned in a cell, which is traced once for all "
            f"calls; return the value and assign the buffer after the call, or call eval() on the module."
        )
    if isinstance(buffer, Value):
        raise GraphError(
            f"the buffer {name!r} of {type(module).__name__} is assigned a recorded value, which is only computed when "
            f"the mini-batch runs; return the value and assign the buffer after the call, or call eval() on the module."
        )


torch.nn.modules.module.register_module_buffer_registration_hook(_refuse_buffer)


def _inference_mode(is_on: bool) -> Any:
    """Return inference mode; while recording, return grad mode, whose changes `OfParameters` intercepts."""
    return torch.set_grad_enabled(not is_on) if hasattr(STAGE.current, "patches") else INFERENCE_MODE(is_on)


def _reads_parameter(args: Any) -> bool:
    for x in args:
        kind = type(x)
        if kind is torch.nn.Parameter or id(x) in PARAMETERS:
            return True
        if (kind is tuple or kind is list) and _reads_parameter(x):
            return True
    return False


class TensorMethods:
    """The tensor interface of a recorded value: methods, attributes and torch functions."""

    __slots__ = ()
    key: Key
    layout, grad = torch.strided, None
    is_sparse = is_sparse_csr = is_quantized = is_meta = is_mkldnn = is_nested = is_mps = is_xla = False
    retains_grad = False

    def __init_subclass__(cls) -> None:
        if "shape" in vars(cls):
            cls.shape = torch.Size(vars(cls)["shape"])  # type: ignore[method-assign, assignment]

    @property
    def shape(self) -> torch.Size:
        """Return the length of each axis; single values have it as an attribute of their class."""
        return torch.Size(super().shape)  # type: ignore[misc]

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Return the class of tensors, so that `isinstance(value, torch.Tensor)` holds; `type` gives the true one."""
        return torch.Tensor if asks_for_class(sys._getframe(1)) else type(self)

    @property
    def device(self) -> torch.device:
        """Return the device of the module."""
        return CURRENT.device

    @property
    def is_cpu(self) -> bool:
        return CURRENT.device.type == "cpu"

    @property
    def is_cuda(self) -> bool:
        return CURRENT.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype that the numbers represent; for floats it is that of the module."""
        key = self.key.children[0] if self.key.kind == "rows" else self.key
        if key.below:
            return torch.int64
        return dtype_of_name(key.dtype) if key.dtype else CURRENT.dtype

    @property
    def data(self) -> Any:
        """Return the value without its gradient."""
        return apply(torch.Tensor.detach, (self,), {})

    @data.setter
    def data(self, other: Any) -> None:
        raise GraphError("the data of a recorded value are assigned, which a program cannot express; make a new value.")

    @property
    def requires_grad(self) -> bool:
        """Return whether the value depends on a trained parameter, or on a tensor that requires a gradient."""
        is_float = self.dtype.is_floating_point or self.dtype.is_complex
        return is_float and CURRENT.has_gradients and Flow.of(STAGE.current).has_gradient(self)  # type: ignore[arg-type]

    @property
    def is_leaf(self) -> bool:
        """Return whether the value requires no gradient."""
        return not self.requires_grad

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.numel() * self.itemsize

    @property
    def real(self) -> Any:
        """Return the real part; the value itself if it is not complex."""
        return apply(torch.real, (self,), {}) if self.dtype.is_complex else self

    @property
    def imag(self) -> Any:
        return apply(torch.imag, (self,), {})

    @property
    def mT(self) -> Any:
        """Return the value with its last two axes swapped."""
        return apply(torch.transpose, (self, -2, -1), {})

    @property
    def H(self) -> Any:
        """Return the matrix, transposed and conjugated."""
        return apply(torch.adjoint, (self,), {})

    mH = H

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return apply(function, args, kwargs or {})

    def apply(self, op: Any, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record an op; tensors among the arguments are parameters or data."""
        function = OF_OPS.get(op.name)
        if op.name in ("equal", "not_equal") and any(type(x) in (str, NoneType) for x in args):
            return op.name == "not_equal"  # in torch, such comparisons need no numbers
        if function is not None and (op.name in COMPARISONS or not all(map(_is_float, args))):
            return apply(function, args, {})
        return without_gradient(super().apply(op, tuple(map(to_arrays, args)), static))  # type: ignore[misc]

    def __getitem__(self, index: Any) -> Any:
        parts = index if type(index) is tuple else (index,)
        if not all(type(x) in PLAIN_INDEX for x in parts):
            parts = _from_the_start([torch.tensor(x) if _is_plain_list(x) else x for x in parts], self.shape)
            return apply(torch.Tensor.__getitem__, (self, parts if type(index) is tuple else parts[0]), {})
        found: Any = super().__getitem__(index)  # type: ignore[misc]
        if isinstance(found, Rows) and not len(found) and self.shape[0]:  # in torch, an empty slice depends on all rows
            return apply(torch.Tensor.__getitem__, (self, index), {})
        return found

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the length of one axis."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return self.shape.numel()

    def __setattr__(self, name: str, x: Any) -> None:
        try:
            super().__setattr__(name, x)
        except AttributeError:
            raise GraphError(
                f"the attribute {name!r} cannot be set on a recorded value; keep it in a variable."
            ) from None

    def _refuse(self, what: str) -> GraphError:
        return GraphError(f"{what} needs the numbers of a recorded value now; {validation_advice() or AWAIT}")

    def lacks(self, name: str) -> str:
        """Return the error message for a missing attribute."""
        told = "; requires_grad says whether it has a gradient" if name == "grad_fn" else ""
        return (
            f"a recorded value, which represents a tensor while its instance is recorded, has no attribute "
            f"{name!r}{told}."
        )


def _is_float(x: Any) -> bool:
    """Return whether an operand has floats of the module's dtype, or is a number."""
    if isinstance(x, Value):
        key = x.key.children[0] if x.key.kind == "rows" else x.key
        return not key.below and not key.dtype
    return x.dtype is CURRENT.dtype if isinstance(x, torch.Tensor) else not isinstance(x, bool)


def _from_the_start(parts: list[Any], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the parts of an index, with negative ints in tensors made non-negative."""
    for axis, x in enumerate(parts):
        if x is None or x is Ellipsis or isinstance(x, Value):
            break
        if isinstance(x, torch.Tensor):
            if x.dtype in (torch.bool, torch.uint8) or axis >= len(shape):
                break
            if x.numel() and int(x.min()) < 0:
                parts[axis] = torch.where(x < 0, x + shape[axis], x)
    return tuple(parts)


def _is_int(x: Any) -> bool:
    """Return whether part of an index is an int of Python or NumPy."""
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _is_plain_list(x: Any) -> bool:
    """Return whether `x` is a list of ints or bools, possibly nested."""
    return type(x) is list and all(type(part) in (int, bool, list) for part in leaves_of(x))


def _method(function: Any) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: apply(function, (self, *args), kwargs)


for _operator, _function in (("mod", torch.remainder), ("floordiv", torch.floor_divide)):
    setattr(TensorMethods, f"__{_operator}__", _method(_function))
    setattr(TensorMethods, f"__r{_operator}__", lambda self, x, function=_function: apply(function, (x, self), {}))
for _operator, _function in (("lshift", torch.bitwise_left_shift), ("rshift", torch.bitwise_right_shift)):
    setattr(TensorMethods, f"__{_operator}__", _method(_function))
    setattr(TensorMethods, f"__r{_operator}__", lambda self, x, function=_function: apply(function, (x, self), {}))
for _operator in (*OPERATORS, "__setitem__"):
    if hasattr(torch.Tensor, _operator):
        setattr(TensorMethods, _operator, _method(getattr(torch.Tensor, _operator)))
TensorMethods.__pos__ = _method(torch.positive)  # type: ignore[operator]
for _operator in ("invert", "and", "or", "xor"):
    for _prefix in ("", "r"):
        _function = getattr(torch, "bitwise_not" if _operator == "invert" else f"bitwise_{_operator}")
        setattr(TensorMethods, f"__{_prefix}{_operator}__", _method(_function))
for _name in dir(torch.Tensor):
    if not _name.startswith("_") and _name not in vars(TensorMethods) and callable(getattr(torch.Tensor, _name)):
        setattr(TensorMethods, _name, _method(getattr(torch.Tensor, _name)))


def _as_data(x: Any) -> Any:
    """Convert an argument of a torch function; a tensor of one int becomes an array, because an int would become part
    of the type.
    """
    if type(x) in (list, tuple) and any(isinstance(part, Value) for part in x):
        return type(x)(map(_as_data, x))
    if isinstance(x, Value) or not isinstance(x, torch.Tensor) or x.shape or x.dtype is not torch.int64:
        return to_arrays(x)
    return on_host(x.detach()).numpy()
