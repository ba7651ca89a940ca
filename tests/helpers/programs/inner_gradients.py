"""Gradients inside of a cell that is being traced, from the pullbacks of ops, and the same on torch's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

from autobatch import ops
from autobatch.ir import autodiff
from autobatch.ir.builder import Traced
from autobatch.ir.program import Instruction, Var
from autobatch.ops.elementwise import add
from autobatch.trace.ragged import Ragged


def pull_back(compute: Callable[..., Any], values: Sequence[Any], g: Any) -> list[Any]:
    """Return the gradient of <g, compute(*values)> for each value; None where there is none.

    Args:
        compute: returns a value of the cell.
        values: of the cell, with a row per node or per edge.
        g: a value with the shape and the rows of the result.
    """
    builder = values[0].builder
    result = builder.wrap(compute(*values))
    gradient = builder.value(builder.wrap(g).index)
    found = autodiff.pull_back(builder, [(result.index, gradient)], [value.index for value in values])
    return [_of_kind(value, part) for value, part in zip(values, found, strict=True)]


def differentiable(vars: Sequence[Var], given: set[int]) -> set[int]:
    """Return the given values, and the values that depend on one of them differentiably."""
    found = set(given)
    for index, var in enumerate(vars):
        source = var.source
        if isinstance(source, Instruction) and source.op.pullback and found.intersection(source.args):
            found.add(index)
    return found


def _of_kind(value: Any, gradient: Traced | None) -> Any:
    return gradient if gradient is None or not isinstance(value, Ragged) else Ragged(gradient.builder, gradient.index)


def slope(compute: Callable[..., Any], values: Sequence[Any], g: Any, order: int) -> Any:
    """Return a number that depends on the derivatives of order - 1, so that its gradients contain those of `order`."""

    def weighed(*values: Any) -> Any:
        return _sum_of_sines(pull_back(compute, values, g))

    return weighed(*values) if order == 2 else slope(weighed, values, 1.0, order - 1)


def _sum_of_sines(parts: Sequence[Any]) -> Any:
    found = [ops.sum(ops.sin(part)) for part in parts if part is not None]
    return reduce(add, found) if found else 0.0


def torch_slope(compute: Callable[..., Any], values: Sequence[Any], g: Any, order: int) -> Any:
    """Compute the same number as `slope`, on torch's tensors."""

    def weighed(*values: Any) -> Any:
        result = compute(*values)
        if not result.requires_grad:
            return torch.zeros((), dtype=torch.float64)
        parts = torch.autograd.grad(result, values, g, create_graph=True, allow_unused=True)
        return sum(torch.sin(part).sum() for part in parts if part is not None)

    one = torch.ones((), dtype=torch.float64)
    return weighed(*values) if order == 2 else torch_slope(weighed, values, one, order - 1)
