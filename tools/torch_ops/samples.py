"""Convert samples of torch's table of ops to programs: tensors are values, everything else is part of the body."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

N_INSTANCES = 3
KINDS = torch.float64, torch.int64, torch.bool, torch.complex128
"""Kinds of samples; an op uses the first that it supports."""
CHANGING = {
    "cauchy", "exponential", "geometric", "log_normal", "normal.in_place", "uniform", "resize_", "resize_as_",
    "nn.functional.batch_norm", "nn.functional.batch_norm.without_cudnn", "nn.functional.instance_norm",
    "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
}  # fmt: skip
"""Ops that change arguments; in a cell they change copies."""
NOISE = 0.1  # relative difference between instances, for float tensors


@dataclass(frozen=True)
class Case:
    """A sample of an op.

    Attributes:
        op, number: the op's name in the table, and the sample's number.
        tensors: the arguments that are values; differentiable ones require gradients.
    """

    op: str
    number: int
    tensors: list[Tensor]
    _info: Any
    _sample: Any
    _spec: Any
    _static: list[Any]

    def body(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Apply the op to other tensors. Return all tensors of its result."""
        left = iter([self._copied(x) for x in tensors] if self.op in CHANGING else tensors)
        leaves = [next(left) if isinstance(leaf, Tensor) else leaf for leaf in self._static]
        x, args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        result = self._sample.output_process_fn_grad(self._info(x, *args, **kwargs))
        return tuple(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor))

    def _copied(self, x: Tensor) -> Tensor:
        """Copy a tensor; the copy has a gradient if the op has one."""
        return x.clone() if self._info.supports_autograd else x.detach().clone()

    def instances(self) -> Iterator[list[list[Tensor]]]:
        """Yield the tensors of all instances, with other numbers in each; later attempts change less."""
        for changes in ((_shuffled, _shuffled), (_disturbed, _shuffled), (_disturbed, _same), (_same, _same)):
            draw = torch.Generator().manual_seed(self.number)
            others = [[_redraw(x, draw, *changes) for x in self.tensors] for _ in range(N_INSTANCES - 1)]
            yield [[_redraw(x, draw, _same, _same) for x in self.tensors], *others]


@cache
def table() -> dict[str, Any]:
    """Return the ops of torch's table, by name; random ops use the generator and do not seed it."""
    from torch.testing._internal import common_methods_invocations as theirs  # takes seconds

    vars(theirs)["wrapper_set_seed"] = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {f"{one.name}.{one.variant_test_name}" if one.variant_test_name else one.name: one for one in theirs.op_db}


def cases_of(op: str, limit: int | None = None) -> Iterator[Case]:
    """Yield the samples of an op, in order, at most `limit`."""
    info = table()[op]
    dtypes = info.supported_dtypes("cpu")
    dtype = next((kind for kind in KINDS if kind in dtypes), None)
    if dtype is None:
        return
    has_gradients = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    torch.default_generator.manual_seed(0)
    for number, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=has_gradients)):
        if number == limit:
            return
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        yield Case(op, number, tensors, info, sample, spec, leaves)


def _redraw(x: Tensor, draw: torch.Generator, change: Any, change_ints: Any) -> Tensor:
    """Return a tensor of the same kind and shape with other numbers."""
    if x.layout != torch.strided:
        return x.detach().clone()
    if x.is_floating_point() or x.is_complex():
        return change(x.detach().clone(), draw)  # type: ignore[no-any-return]
    return change_ints(x.detach().clone(), draw)  # type: ignore[no-any-return]


def _same(x: Tensor, draw: torch.Generator) -> Tensor:
    return x


def _shuffled(x: Tensor, draw: torch.Generator) -> Tensor:
    """Return the same numbers in another order; floats are also disturbed, and conditions are drawn."""
    if x.dtype == torch.bool:
        return torch.randint(2, x.shape, generator=draw).bool()
    x = x.flatten()[torch.randperm(x.numel(), generator=draw)].reshape(x.shape)
    return _disturbed(x, draw) if x.is_floating_point() or x.is_complex() else x


def _disturbed(x: Tensor, draw: torch.Generator) -> Tensor:
    """Change floats a little."""
    noise = 1 - NOISE * torch.rand(x.shape, generator=draw, dtype=torch.float64)
    return x * noise.to(x.dtype)


def select(ops: Sequence[str]) -> list[str]:
    """Return the ops of these names, in all variants; all ops if there are no names."""
    names = [*table()]
    if unknown := [op for op in ops if not any(name == op or name.startswith(f"{op}.") for name in names)]:
        raise ValueError(f"torch's table has no op {unknown[0]!r}.")
    return [name for name in names if not ops or any(name == op or table()[name].name == op for op in ops)]
