"""Torch functions that accept a leading batch axis and compute each row as if it were alone.

A rule takes the arguments of a call for one row. It returns whether the same call, with a batch in place of each tensor
that differs from row to row, computes the same results row by row. Functions without a rule are never given batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from autobatch.torch.structures import tensors_in


class Call(NamedTuple):
    """A call of a torch function for one row.

    Attributes:
        args, kwargs: the arguments.
        rows: the tensors among them that differ from row to row.
    """

    args: Sequence[Any]
    kwargs: dict[str, Any]
    rows: list[Tensor]

    def argument(self, place: int, name: str) -> Any:
        """Return an argument; None if it is not given."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name)

    @property
    def is_of_first(self) -> bool:
        """Return whether only the first argument differs from row to row, and has an axis."""
        return bool(self.args) and len(self.rows) == 1 and self.rows[0] is self.args[0] and self.args[0].dim() > 0


Rule = Callable[[Call], bool]


def _element_by_element(call: Call) -> bool:
    """Return whether all row tensors have as many axes as the result, so that other tensors broadcast to each row."""
    rank = max(x.dim() for x in tensors_in((call.args, call.kwargs)))
    return all(x.dim() == rank for x in call.rows) and not {"out", "memory_format"}.intersection(call.kwargs)


def _unreduced(call: Call) -> bool:
    """Return whether a loss is computed for each element."""
    return call.kwargs.get("reduction") == "none" and _element_by_element(call)


def _fill(call: Call) -> bool:
    """Return whether the fill value is a number, which all rows share."""
    value = call.argument(2, "value")
    return not isinstance(value, Tensor) and _element_by_element(call)


def _along(place: int, name: str = "dim") -> Rule:
    """Return the rule that axes are counted from the end, and only the first argument differs from row to row."""

    def rule(call: Call) -> bool:
        axes = call.argument(place, name)
        axes = axes if isinstance(axes, (list, tuple)) and axes else [axes]
        return call.is_of_first and all(type(axis) is int and axis < 0 for axis in axes) and "out" not in call.kwargs

    return rule


def _join(call: Call) -> bool:
    """Return whether all parts differ from row to row, and the axis is counted from the end."""
    axis = call.argument(1, "dim")
    return len(call.rows) == len(tensors_in(call.args)) and type(axis) is int and axis < 0 and "out" not in call.kwargs


def _of_first(call: Call) -> bool:
    return call.is_of_first


def _times(call: Call) -> bool:
    return call.is_of_first and call.argument(1, "other").dim() in (1, 2) and "out" not in call.kwargs


def _look_up(call: Call) -> bool:
    """Return whether only the ids differ from row to row, and the table is not rescaled."""
    is_plain = call.argument(3, "max_norm") is None and not call.argument(5, "scale_grad_by_freq")
    return is_plain and len(call.rows) == 1 and call.rows[0] is call.args[0]


def _take(call: Call) -> bool:
    """Return whether the index begins with `...`, and otherwise has only ints and slices."""
    index = call.args[1]
    is_from_end = isinstance(index, tuple) and bool(index) and index[0] is Ellipsis
    return call.is_of_first and is_from_end and all(isinstance(part, (int, slice)) for part in index[1:])


def _always(call: Call) -> bool:
    return True


ELEMENT_BY_ELEMENT = """
abs absolute acos acosh add addcdiv addcmul arccos arcsin arctan arctan2 asin asinh atan atan2 atanh bitwise_and
bitwise_not bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min clip clone cos cosh deg2rad detach digamma div
divide dropout elu eq erf erfc erfinv exp exp2 expm1 fix floor floor_divide fmod frac ge gelu greater greater_equal gt
hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 isfinite isinf isnan le leaky_relu lerp less less_equal
lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit logsigmoid lt
maximum minimum mish mul multiply nan_to_num ne neg negative not_equal positive pow rad2deg reciprocal
relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign silu sin sinc sinh softplus softshrink softsign sqrt
square sub subtract tan tanh tanhshrink threshold true_divide trunc where xlogy float double half bfloat16 long int
bool __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __rpow__ __neg__ __and__
__or__ __xor__ __invert__ __gt__ __ge__ __lt__ __le__ __eq__ __ne__ __rdiv__ __div__
"""
"""Functions that compute each element of the result from the same element of the arguments."""
LOSSES = """
binary_cross_entropy binary_cross_entropy_with_logits hinge_embedding_loss huber_loss kl_div l1_loss mse_loss
poisson_nll_loss smooth_l1_loss soft_margin_loss
"""
"""Losses that do so if they reduce nothing."""
HARMLESS = ("dtype", "device", "layout", "requires_grad", "is_cuda", "is_meta", "is_sparse", "is_quantized")
"""Attributes of tensors that do not depend on the number of axes."""
ALONG = {
    "softmax": 1, "log_softmax": 1, "sum": 1, "mean": 1, "amax": 1, "amin": 1, "logsumexp": 1, "var": 1, "std": 1,
    "cumsum": 1, "prod": 1, "chunk": 2, "split": 2, "unsqueeze": 1, "squeeze": 1, "unbind": 1, "flip": 1, "glu": 1,
    "normalize": 2, "narrow": 1, "select": 1,
}  # fmt: skip
"""Functions along axes, and the position of the axes among their arguments."""


def _of_name(name: str) -> Iterator[Any]:
    for space in (torch, Tensor, torch._C.TensorBase, functional, torch.special):
        if (found := getattr(space, name, None)) is not None:
            yield found


def _make_rules() -> dict[Any, Rule]:
    rules: dict[Any, Rule] = {f: _element_by_element for name in ELEMENT_BY_ELEMENT.split() for f in _of_name(name)}
    rules |= {f: _unreduced for name in LOSSES.split() for f in _of_name(name)}
    rules |= dict.fromkeys(_of_name("masked_fill"), _fill)
    rules |= {f: _along(place) for name, place in ALONG.items() for f in _of_name(name)}
    rules |= {f: _join for name in ("cat", "concat", "stack") for f in _of_name(name)}
    rules |= {f: _times for name in ("matmul", "__matmul__") for f in _of_name(name)}
    rules |= dict.fromkeys((functional.linear, functional.layer_norm, torch.rms_norm), _of_first)
    rules |= {functional.embedding: _look_up, torch.embedding: _look_up, Tensor.__getitem__: _take}
    rules |= {f: _always for name in ("is_floating_point", "is_complex") for f in _of_name(name)}
    rules |= {getattr(torch._C.TensorBase, name).__get__: _always for name in HARMLESS}
    return rules


PER_ROW = _make_rules()


def is_per_row(function: Any, call: Call) -> bool:
    """Return whether a call with a batch computes each row as if it were alone."""
    rule = PER_ROW.get(function)
    if rule is None and isinstance(function, torch._ops.OpOverload) and torch.Tag.pointwise in function.tags:
        rule = _element_by_element
    return rule is not None and rule(call)
