"""Lists of any length in bodies of torch, and the tensors of any number of rows that `torch.stack` makes of them.

A body is given as many tensors as the list of the present call holds; each stands for an element of the list
(`autobatch.trace.elements`). `torch.stack` of all of them in order, and `torch.cat` if each is one row, give a *ragged*
value (`autobatch.trace.ragged`), to torch a tensor (n, d), where n is the length in the present call. It may be a plain
number, because a body is traced for each length that it meets, and all traces must give one program.

Few ops are applied to ragged values: those that treat all rows alike, or reduce them. The tables below have them. Any
other op needs the length, and so does whatever else tells elements apart: then the cell has a type for each length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from autobatch import ops
from autobatch.ops.define import shape_of
from autobatch.ops.operators import Symbol
from autobatch.ops.products import matmul as product
from autobatch.torch import aten, functions
from autobatch.trace.elements import FIRST, MIXED, Element, NeedsLength, TracedList, map_values, values_in
from autobatch.trace.ragged import Ragged

Rule = Callable[..., Any]

BY_ELEMENT = (
    "neg", "exp", "log", "sqrt", "abs", "sin", "cos", "erf", "tanh", "sigmoid", "relu", "gelu", "mul", "pow",
    "maximum", "minimum", "where", "gt", "ge", "lt", "le", "eq", "ne", "add", "sub", "rsub", "div", "reciprocal",
    "rsqrt", "square", "log1p", "xlogy", "silu", "elu", "leaky_relu", "softplus", "clamp", "hardtanh", "clamp_min",
    "clamp_max", "addcmul", "addcdiv", "lerp", "logical_not", "bitwise_not", "logical_and", "bitwise_and",
    "logical_or", "bitwise_or", "clone", "alias", "contiguous", "_to_copy", "detach",
)  # fmt: skip
"""Ops of ragged values that are element by element; other values broadcast to the rows."""
ALONG = (
    "sum", "mean", "amax", "amin", "max", "argmax", "logsumexp", "var", "std", "var_mean", "linalg_vector_norm",
    "_softmax", "_log_softmax", "slice", "select", "split", "split_with_sizes", "unbind", "unsqueeze", "squeeze",
)  # fmt: skip
"""Ops along axes: of each row where the axes are those of rows."""
OVER = ("sum", "mean", "amax", "amin", "logsumexp", "_softmax", "_log_softmax")
"""Those among them that may be over the rows too."""


class Unknown(NamedTuple):
    """A result of an op of a ragged value that the program cannot have, unless the list has one length.

    Attributes:
        group: the number of the list.
        why: its length is needed.
    """

    group: int
    why: str


def shape_in_torch(value: Any) -> tuple[int, ...]:
    """The shape of the tensor that stands for a value: a ragged one has as many rows as the list of this call."""
    return (_n_rows(value), *value.var.shape) if isinstance(value, Ragged) else shape_of(value)


def apply(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Apply an op of ATen to values, among them elements of lists and ragged values.

    Raises:
        NeedsLength: it does not treat all elements of a list alike.
    """
    return _choose(name, OF_ELEMENTS.get(name, aten.OPS[name]), OF_RAGGED.get(name), args, kwargs)


def apply_function(function: Rule, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Apply one of our `autobatch.torch.functions` likewise."""
    return _choose(function.__name__, function, FUNCTIONS_OF_RAGGED.get(function), args, kwargs)


def _choose(name: str, plain: Rule, of_ragged: Rule | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    values = [*values_in((list(args), kwargs))]
    ragged = next((x for x in values if isinstance(x, Ragged)), None)
    if ragged is None:
        return plain(*args, **kwargs)
    if any(isinstance(x, Element) for x in values):
        raise NeedsLength(ragged.var.domain, MIXED)
    if of_ragged is None:
        refuse(name, ragged)
    return of_ragged(*args, **kwargs)


def refuse(name: str, *values: Any) -> Any:
    """Ask for the length of the list whose rows a value has."""
    ragged = next(x for x in values_in(values) if isinstance(x, Ragged))
    raise NeedsLength(ragged.var.domain, f"applies {name} to all of it")


# Elements of lists.


def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Values along an axis of their own; all elements of a list, along the first axis, become a ragged value."""
    whole = _whole(tensors) if dim % (len(shape_of(tensors[0])) + 1) == 0 else None
    return aten.stack(tensors, dim) if whole is None else whole.stacked()


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Values one after the other along an axis; all elements of a list, of one row each, become a ragged value."""
    shape = shape_of(tensors[0])
    whole = _whole(tensors) if shape[:1] == (1,) and dim % len(shape) == 0 else None
    if whole is None:
        return aten.cat(tensors, dim)
    rows = whole.stacked()
    return Ragged(rows.builder, ops.reshape(rows.row, shape[1:]).index)


def add(x: Any, y: Any, *, alpha: float = 1) -> Any:
    """x + alpha y; a first element added to zeros begins the sum of a list."""
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Element) and one.at == FIRST and alpha == 1 and _is_zeros(other, one):
            return one.builder.sum_up_to(one)
    return aten.add(x, y, alpha=alpha)


def _whole(tensors: Sequence[Any]) -> TracedList | None:
    """The list of which these are all elements, in order; None if they stand elsewhere."""
    first = next((x for x in tensors if isinstance(x, Element)), None)
    if first is None:
        return None
    places = [FIRST._replace(number=number) for number in range(1, _n_rows(first) + 1)]
    if [x.at if isinstance(x, Element) else None for x in tensors] != places:
        return None
    found: TracedList = first.builder.as_list(tensors)
    return found


def _is_zeros(x: Any, like: Element) -> bool:
    """Whether `x` is a constant of zeros that broadcasts to the shape of an element."""
    is_constant = isinstance(x, (int, float, np.ndarray)) and np.ndim(x) <= len(like.shape)
    return is_constant and not np.any(x) and np.broadcast_shapes(np.shape(x), like.shape) == like.shape


OF_ELEMENTS: dict[str, Rule] = {"stack": stack, "cat": cat, "add": add}


# Ragged values.


def _n_rows(value: Any) -> int:
    """The length, in the present call, of the list that has an element or a ragged value."""
    n: int = value.builder.lengths[value.var.domain]
    return n


def _of_rows(x: Ragged, function: Rule) -> Any:
    """Ragged values, of what a function makes of each row."""
    result = function(x.row)
    return result if result is NotImplemented else map_values(lambda y: Ragged(x.builder, y.index), result)


def _spread(x: Ragged, others: Any) -> Any:
    """Other values at each row; NeedsLength if there are ragged ones among them."""
    if any(isinstance(y, Ragged) for y in values_in(others)):
        refuse("a function of one argument", x, others)
    return map_values(lambda y: x.builder.at_edges(y, x) if isinstance(y, Symbol) else y, others)


def _along(name: str) -> Rule:
    """An op along axes of rows, or over the rows."""
    function = aten.OPS[name]
    parameters = signature(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs)
        given.apply_defaults()
        x, dim = given.arguments["x"], given.arguments["dim"]
        dims = [dim] if isinstance(dim, int) else dim or ()
        axes = [axis % (x.ndim + (name == "unsqueeze")) for axis in dims]
        if not axes or 0 in axes:
            return OVER_ROWS.get(name, _refusing(name))(*given.args, **given.kwargs)
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
    """The largest element of all; along the first axis its place would be the number of a row."""
    if dim is None:
        return ops.max(x)
    return ops.max(x, dim, keepdim), Unknown(x.var.domain, "asks which of all elements is the largest")


def _cut(x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """All rows."""
    is_whole = slice(start, end, step).indices(_n_rows(x)) == (0, _n_rows(x), 1)
    return x if is_whole else refuse("slice", x)


OVER_ROWS: dict[str, Rule] = {name: aten.OPS[name] for name in OVER} | {"max": _largest, "slice": _cut}


def _view(x: Any, size: Sequence[int], *others: Any) -> Any:
    """Each row in another shape."""
    total, known = _n_rows(x) * math.prod(x.var.shape), -math.prod(size)
    wanted = [total // max(known, 1) if length == -1 else length for length in size]
    if wanted[:1] != [_n_rows(x)] or math.prod(wanted[1:]) != math.prod(x.var.shape):
        refuse("view", x)
    return _of_rows(x, lambda row: ops.reshape(row, tuple(wanted[1:])))


def _expand(x: Any, size: Sequence[int], *, implicit: bool = False) -> Any:
    """Each row broadcast to a shape."""
    if len(size) != x.ndim or size[0] not in (-1, _n_rows(x)):
        refuse("expand", x)
    return _of_rows(x, lambda row: aten.expand(row, size[1:]))


def _join(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Each row with those in its place."""
    is_by_row = all(isinstance(x, Ragged) and dim % x.ndim for x in tensors)
    return ops.concat(tensors, dim) if is_by_row else refuse("cat", tensors)


def _normalise(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    """The last axes of each row with mean 0 and variance 1, scaled and shifted; and mean and 1 / deviation."""
    return _layer_norm(aten.native_layer_norm, x, shape, weight, bias, eps)


def _layer_norm(function: Rule, x: Any, shape: Sequence[int], *others: Any) -> Any:
    if not isinstance(x, Ragged) or len(shape) >= x.ndim:
        refuse("layer_norm", x, others)
    others = _spread(x, others)
    return _of_rows(x, lambda row: function(row, shape, *others))


def _matmul(x: Any, y: Any) -> Any:
    """The product of each row and a vector or matrix, or the sum of rows by weights."""
    if isinstance(x, Ragged) and isinstance(y, Ragged) and x.ndim == 1 and y.ndim <= 2:
        return product(x, y)
    if not isinstance(x, Ragged) or isinstance(y, Ragged) or x.ndim == 1 or len(shape_of(y)) > 2:
        refuse("matmul", x, y)
    if x.ndim == 2:
        return product(x, y)
    (y,) = _spread(x, [y])
    return _of_rows(x, lambda row: product(row, y))


OF_RAGGED: dict[str, Rule] = {
    **{name: aten.OPS[name] for name in BY_ELEMENT},
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
    weight, bias = _spread(input, (weight, bias))
    return _of_rows(input, lambda row: functions.linear(row, weight, bias))


def _norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise the last axis of each row."""
    return _layer_norm(functions.layer_norm, input, normalized_shape, weight, bias, eps)


def _take(x: Any, index: Any) -> Any:
    """Leave indices that are no values to torch."""
    return refuse("an index", x, index) if any(isinstance(y, Symbol) for y in values_in(index)) else NotImplemented


FUNCTIONS_OF_RAGGED: dict[Rule, Rule] = {
    functions.linear: _linear,
    functions.dropout: functions.dropout,
    functions.layer_norm: _norm,
    functions.take: _take,
    product: _matmul,
}
