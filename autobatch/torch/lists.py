"""Lists of any length in bodies of torch.

A body gets as many tensors as the list of the current call has elements; each tensor represents an element
(`autobatch.trace.elements`). `torch.stack` of all of them in order, and `torch.cat` if each is one row, give a value
with one row per element (`autobatch.torch.rows`), to torch a tensor (n, d). Its n may be a plain number, because a body
is traced for each length that occurs, and all traces must give one program.

Code that distinguishes elements needs the length: the cell then has a type for each length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from autobatch import ops
from autobatch.ir.arguments import leaves
from autobatch.ops.define import shape_of
from autobatch.torch import aten
from autobatch.torch.rows import FUNCTIONS_OF_RAGGED, OF_RAGGED, Rule, n_rows, refuse
from autobatch.trace.elements import FIRST, MIXED, Element, NeedsLength, TracedList
from autobatch.trace.ragged import Ragged


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
