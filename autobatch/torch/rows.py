"""Lists of any length, and tensors with any number of rows, in bodies of torch.

A body gets as many tensors as the list of the current call has elements; each tensor represents an element
(`autobatch.trace.elements`). `torch.stack` of all of them in order, and `torch.cat` if each is one row, give a ragged
value with one row per element (`autobatch.trace.ragged`), to torch a tensor (n, d), where n is the length of the list
in the current call. n may equal d, or be one, and no op may depend on that. It may be a plain number, because a body is
traced for each length that occurs, and all traces must give one program.

Code that distinguishes elements needs the length: the cell then has a type for each length. Only ops that treat all
rows alike, or reduce them, accept ragged values; they are in the tables below. All others need the length of the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Never, cast

import numpy as np

from autobatch import ops
from autobatch.ir.arguments import leaves, map_leaves
from autobatch.ir.builder import Traced
from autobatch.ops.define import shape_of
from autobatch.ops.operators import Symbol
from autobatch.ops.products import matmul as product
from autobatch.torch import aten, functions
from autobatch.trace.elements import FIRST, MIXED, Element, NeedsLength, TracedList
from autobatch.trace.ragged import Ragged

Rule = Callable[..., Any]

BY_ELEMENT = (
    "neg", "exp", "log", "sqrt", "abs", "sin", "cos", "erf", "tanh", "sigmoid", "relu", "gelu", "mul", "pow",
    "maximum", "minimum", "where", "gt", "ge", "lt", "le", "eq", "ne", "add", "sub", "rsub", "div", "reciprocal",
    "rsqrt", "square", "silu", "elu", "leaky_relu", "softplus", "clamp", "hardtanh", "clamp_min",
    "clamp_max", "addcmul", "addcdiv", "lerp", "logical_not", "bitwise_not", "logical_and", "bitwise_and",
    "logical_or", "bitwise_or", "clone", "alias", "contiguous", "_to_copy", "detach",
)  # fmt: skip
"""Element-wise ops on ragged values; other values broadcast to the rows."""
ALONG = (
    "sum", "mean", "amax", "amin", "max", "argmax", "logsumexp", "var", "std", "var_mean", "linalg_vector_norm",
    "_softmax", "_log_softmax", "slice", "select", "split", "split_with_sizes", "unbind", "unsqueeze", "squeeze",
)  # fmt: skip
"""Ops along axes, applied to each row if the axes are those of rows."""
OVER = ("sum", "mean", "amax", "amin", "logsumexp", "_softmax", "_log_softmax")
"""The ops in `ALONG` that may reduce over the rows too."""


@dataclass(frozen=True)
class Unknown:
    """A result of an op on a ragged value that a program cannot represent unless the length of the list is known.

    Attributes:
        group: the number of the list.
        why: the reason why its length is needed.
    """

    group: int
    why: str


def shape_in_torch(value: Any) -> tuple[int, ...]:
    """Return the shape of a value's tensor; that of a ragged value has a row per element of the current list."""
    return (n_rows(value), *value.var.shape) if isinstance(value, Ragged) else shape_of(value)


def n_rows(value: Any) -> int:
    """Return the length, in the current call, of the list of an element or a ragged value."""
    n: int = value.builder.lengths[value.var.domain]
    return n


def refuse(name: str, *values: Any) -> Never:
    """Raise a NeedsLength error for the list of the first ragged value."""
    ragged = next(x for x in leaves(values) if isinstance(x, Ragged))
    raise NeedsLength(ragged.var.domain, f"applies {name} to all of it")


def _of_rows(x: Ragged, function: Rule) -> Any:
    """Apply a function to each row; return its results as ragged values."""
    result = function(x.row)
    return result if result is NotImplemented else map_leaves(lambda y: Ragged(x.builder, y.index), result)


def _spread(name: str, x: Ragged, others: Any) -> Any:
    """Broadcast the other arguments of an op to each row; NeedsLength if one of them is ragged."""
    if any(isinstance(y, Ragged) for y in leaves(others)):
        refuse(name, x, others)
    return map_leaves(lambda y: x.builder.at_edges(y, x) if isinstance(y, Traced) else y, others)


def _along(name: str) -> Rule:
    """Return the rule of an op along axes of rows, or over the rows."""
    function = aten.OPS[name].function
    parameters = signature(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs)
        given.apply_defaults()
        x, dim = given.arguments["x"], given.arguments["dim"]
        dims = [dim] if isinstance(dim, int) else dim or ()
        axes = [axis % (x.ndim + (name == "unsqueeze")) for axis in dims]
        if not axes or 0 in axes:
            return OVER_ROWS.get(name, _refusing(name))(*given.args, **given.kwargs)
        # A row lacks the first axis.
        shifted = [axis - 1 for axis in axes]
        given.arguments["dim"] = shifted[0] if isinstance(dim, int) else shifted

        def of_row(row: Any) -> Any:
            given.arguments["x"] = row
            return function(*given.args, **given.kwargs)

        return _of_rows(x, of_row)

    return call


def _refusing(name: str) -> Rule:
    return lambda *args, **kwargs: refuse(name, args)


def _largest(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the largest element of all; along the first axis its place is `Unknown`, because it numbers a row."""
    if dim is None:
        return ops.max(x)
    return ops.max(x, dim, keepdim), Unknown(x.var.domain, "asks which of all elements is the largest")


def _cut(x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """Return `x` for a slice of all rows; NeedsLength for any other slice."""
    is_whole = slice(start, end, step).indices(n_rows(x)) == (0, n_rows(x), 1)
    return x if is_whole else refuse("slice", x)


OVER_ROWS: dict[str, Rule] = {name: aten.OPS[name].function for name in OVER} | {"max": _largest, "slice": _cut}


def _view(x: Any, size: Sequence[int], *others: Any) -> Any:
    """Reshape each row."""
    # With a -1 in `size`, minus the product is the product of the known lengths.
    total, known = n_rows(x) * math.prod(x.var.shape), -math.prod(size)
    wanted = [total // max(known, 1) if length == -1 else length for length in size]
    if wanted[:1] != [n_rows(x)] or math.prod(wanted[1:]) != math.prod(x.var.shape):
        refuse("view", x)
    return _of_rows(x, lambda row: ops.reshape(row, tuple(wanted[1:])))


def _expand(x: Any, size: Sequence[int], *, implicit: bool = False) -> Any:
    """Broadcast each row to a shape."""
    if len(size) != x.ndim or size[0] not in (-1, n_rows(x)):
        refuse("expand", x)
    return _of_rows(x, lambda row: aten.shapes.expand(row, size[1:]))


def _join(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Join corresponding rows."""
    is_by_row = all(isinstance(x, Ragged) and dim % x.ndim for x in tensors)
    return ops.concat(tensors, dim) if is_by_row else refuse("cat", tensors)


def _normalise(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    """Normalize the last axes of each row; return also mean and 1 / deviation."""
    return _layer_norm(aten.layers.native_layer_norm, x, shape, weight, bias, eps)


def _layer_norm(function: Rule, x: Any, shape: Sequence[int], *others: Any) -> Any:
    if not isinstance(x, Ragged) or len(shape) >= x.ndim:
        refuse("layer_norm", x, others)
    others = _spread("layer_norm", x, others)
    return _of_rows(x, lambda row: function(row, shape, *others))


def _matmul(x: Any, y: Any) -> Any:
    """Multiply each row by a vector or matrix, or sum rows by weights."""
    if isinstance(x, Ragged) and isinstance(y, Ragged) and x.ndim == 1 and y.ndim <= 2:
        return product(x, y)
    if not isinstance(x, Ragged) or isinstance(y, Ragged) or x.ndim == 1 or len(shape_of(y)) > 2:
        refuse("matmul", x, y)
    if x.ndim == 2:
        return product(x, y)
    (y,) = _spread("matmul", x, [y])
    return _of_rows(x, lambda row: product(row, y))


OF_RAGGED: dict[str, Rule] = {
    **{name: aten.OPS[name].function for name in BY_ELEMENT},
    **{name: _along(name) for name in ALONG},
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _view),
    **dict.fromkeys(("matmul", "mm", "mv", "dot"), _matmul),
    "expand": _expand,
    "cat": _join,
    "native_layer_norm": _normalise,
}


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Multiply each row by a matrix of (out, in)."""
    if not isinstance(input, Ragged) or input.ndim < 2:
        refuse("linear", input, weight)
    weight, bias = _spread("linear", input, (weight, bias))
    return _of_rows(input, lambda row: functions.linear(row, weight, bias))


def _norm(input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Normalize the last axis of each row."""
    return _layer_norm(functions.layer_norm, input, normalized_shape, weight, bias, eps)


def _take(x: Any, index: Any) -> Any:
    """Return NotImplemented for an index without values; NeedsLength for others."""
    return refuse("an index", x, index) if any(isinstance(y, Symbol) for y in leaves(index)) else NotImplemented


FUNCTIONS_OF_RAGGED: dict[Rule, Rule] = {
    functions.linear: _linear,
    functions.dropout: functions.dropout,
    functions.layer_norm: _norm,
    functions.take: _take,
    product: _matmul,
}


def apply(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Apply an op of ATen to values, including elements of lists and ragged values.

    Raises:
        NeedsLength: the op does not treat all elements of a list alike.
    """
    return _choose(name, OF_ELEMENTS.get(name, aten.OPS[name].function), OF_RAGGED.get(name), args, kwargs)


def apply_function(function: Rule, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Apply one of our `autobatch.torch.functions` in the same way as `apply`."""
    return _choose(function.__name__, function, FUNCTIONS_OF_RAGGED.get(function), args, kwargs)


def _choose(name: str, plain: Rule, of_ragged: Rule | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    values = [*leaves((list(args), kwargs))]
    ragged = next((x for x in values if isinstance(x, Ragged)), None)
    if ragged is None:
        return plain(*args, **kwargs)
    if any(isinstance(x, Element) for x in values):
        raise NeedsLength(ragged.var.domain, MIXED)
    return refuse(name, ragged) if of_ragged is None else of_ragged(*args, **kwargs)


def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Join values along a new axis; all elements of a list, along the first axis, become a ragged value."""
    whole = _whole(tensors) if dim % (len(shape_of(tensors[0])) + 1) == 0 else None
    return aten.shapes.stack(tensors, dim) if whole is None else whole.stacked()


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Join values along an axis; all elements of a list, of one row each, become a ragged value."""
    shape = shape_of(tensors[0])
    whole = _whole(tensors) if shape[:1] == (1,) and dim % len(shape) == 0 else None
    if whole is None:
        return aten.shapes.cat(tensors, dim)
    rows = whole.stacked()
    return Ragged(rows.builder, ops.reshape(rows.row, shape[1:]).index)


def add(x: Any, y: Any, *, alpha: float = 1) -> Any:
    """Compute x + alpha y; a first element added to zeros starts the sum of a list."""
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Element) and one.at == FIRST and alpha == 1 and _is_zeros(other, one):
            return one.builder.sum_up_to(one)
    return aten.elementwise.add(x, y, alpha=alpha)


def _whole(tensors: Sequence[Any]) -> TracedList | None:
    """Return the list whose elements these are, all of them in order; None for other tensors."""
    first = next((x for x in tensors if isinstance(x, Element)), None)
    if first is None:
        return None
    places = [FIRST._replace(number=number) for number in range(1, n_rows(first) + 1)]
    if [x.at if isinstance(x, Element) else None for x in tensors] != places:
        return None
    return cast(TracedList, first.builder.as_list(tensors))


def _is_zeros(x: Any, like: Element) -> bool:
    """Return whether `x` is a constant of zeros that broadcasts to the shape of an element."""
    is_constant = isinstance(x, (int, float, np.ndarray)) and np.ndim(x) <= len(like.shape)
    return is_constant and not np.any(x) and np.broadcast_shapes(np.shape(x), like.shape) == like.shape


OF_ELEMENTS: dict[str, Rule] = {"stack": stack, "cat": cat, "add": add}
