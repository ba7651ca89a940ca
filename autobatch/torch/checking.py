"""A check of users' functions: batched results compared with torch itself, one instance at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autobatch.api import batched as batched_arrays
from autobatch.errors import GraphError, NumericError
from autobatch.ir.arguments import parts_of
from autobatch.keywords import checked
from autobatch.torch.analysis import functions_behind, leaves_behind
from autobatch.torch.batched import BatchedMethod, TorchBatched, batched
from autobatch.torch.kinds import is_float
from autobatch.torch.modules import TorchModule
from autobatch.torch.structures import leaves_of, tensors_in
from autobatch.trace.awaiting import eager

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""The maximum difference of numbers of a dtype, relative to the largest of their tensor, or to 1."""


@checked(batched, batched_arrays)
def check_batched(
    function: Callable[[Any], Any],
    instances: Sequence[Any],
    *,
    module: nn.Module | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> None:
    """Compare a batched function with torch itself, one instance at a time: values, shapes, dtypes and gradients.

    Gradients are those of a weighted sum of all results, with respect to parameters and to instance tensors that
    require them. Where torch gives None, the result must be None. `.grad`, buffers and the state of torch's generator
    are unchanged.

    Args:
        function: a function of one instance, plain or async, as for `abt.batched`, or an already batched one.
        instances: a mini-batch.
        module: see `abt.batched`; None for an already batched function.
        tolerance: the maximum difference, relative to the largest number of a tensor, or to 1; by default 1e-9 in
            float64, 1e-4 in float32.
        options: the options of `abt.batched`; none for an already batched function.

    Raises:
        NumericError: a result or a gradient differs; the message names the instance or parameter, and the difference.
        GraphError: the function draws random numbers, which differ when it is batched; no module is known; or options
            are given for an already batched function.

    >>> check_batched(nn.Linear(2, 2), [torch.ones(2), torch.zeros(2)])
    """
    is_made = isinstance(function, TorchBatched)
    if is_made and (options or module is not None):
        raise GraphError("check_batched: the function is already batched; give the options to abt.batched.")
    run: Any = function if is_made else batched(function, module=module, **options)
    if isinstance(run, BatchedMethod):
        run(instances)  # raises the error that the module is missing
    owner = run.recorder.module
    assert isinstance(owner, TorchModule)
    with _unchanged(owner.module), torch.enable_grad():
        expected = _run_alone(run.recorder.function, instances)
        found = run(instances)
        _compare_results(expected, found, tolerance)
        with torch.no_grad():
            _compare_results(expected, run(instances), tolerance)
        leaves = leaves_behind(functions_behind([_total(expected)]))
        of_instances = {id(x): x for x in tensors_in(list(instances)) if x.requires_grad and x.is_leaf}
        names = {id(p): f"parameter {name!r}" for name, p in owner.module.named_parameters()}
        all_leaves = {id(x): x for x in (*leaves, *owner.module.parameters()) if x.requires_grad} | of_instances
        totals = _total(expected), _total(_like(_rows(found, len(expected)), expected))
        gradients = [_differentiate(total, [*all_leaves.values()]) for total in totals]
    for x, wanted, given in zip(all_leaves.values(), *gradients, strict=True):
        name = names.get(id(x), f"a tensor of shape {tuple(x.shape)}, not a parameter")
        _compare_gradients(f"the gradient of {name}", wanted, given, tolerance)


def _run_alone(function: Callable[[Any], Any], instances: Sequence[Any]) -> list[Any]:
    """Compute each instance by torch itself; GraphError if the function draws random numbers."""
    before = torch.get_rng_state()
    results = [eager(function, x) for x in instances]
    if not torch.equal(before, torch.get_rng_state()):
        raise GraphError(
            "check_batched: the function draws random numbers, which differ when it is batched; call eval() on the "
            "module."
        )
    return results


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Restore buffers and torch's generator at the end of the context."""
    buffers = [(x, x.clone()) for x in module.buffers()]
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            with torch.no_grad():
                for x, before in buffers:
                    x.copy_(before)


def _rows(found: Any, n_instances: int) -> list[Any]:
    """Split the results of a batched function by instance."""
    return [_row(found, k) for k in range(n_instances)]


def _row(found: Any, k: int) -> Any:
    if isinstance(found, (Tensor, list)):
        return found[k]
    return [_row(part, k) for part in parts_of(found)]


def _compare_results(expected: Sequence[Any], found: Any, tolerance: float | None) -> None:
    for k, (one, other) in enumerate(zip(expected, _rows(found, len(expected)), strict=True)):
        wanted, given = list(leaves_of(one)), list(leaves_of(other))
        if len(wanted) != len(given):
            raise NumericError(f"instance {k}: batched gives {len(given)} tensors, torch alone {len(wanted)}.")
        for number, (x, y) in enumerate(zip(wanted, given, strict=True)):
            part = f", tensor {number} of its result" if len(wanted) > 1 else ""
            _compare(f"instance {k}{part}", torch.as_tensor(x), torch.as_tensor(y), tolerance)


def _compare_gradients(what: str, wanted: Tensor | None, given: Tensor | None, tolerance: float | None) -> None:
    """Compare gradients; a tensor without a gradient in torch must not have one here."""
    if wanted is not None and given is not None:
        _compare(what, wanted, given, tolerance)
    elif wanted is not given:
        kinds = ["None" if x is None else "a tensor" for x in (given, wanted)]
        raise NumericError(f"{what}: batched it is {kinds[0]}, torch alone gives {kinds[1]}.")


def _compare(what: str, wanted: Tensor, given: Tensor, tolerance: float | None) -> None:
    if wanted.shape != given.shape or wanted.dtype != given.dtype:
        kinds = [f"{x.dtype} of shape {tuple(x.shape)}" for x in (given, wanted)]
        raise NumericError(f"{what}: batched it is {kinds[0]}, torch alone gives {kinds[1]}.")
    x, y = (z.detach().cpu().to(torch.complex128 if z.is_complex() else torch.float64) for z in (wanted, given))
    finite = x[x.isfinite()].abs()
    largest = max(1.0, float(finite.max())) if finite.numel() else 1.0
    kind = wanted.dtype.to_real() if wanted.is_complex() else wanted.dtype
    limit = TOLERANCE.get(kind, 0.0) if tolerance is None else tolerance
    if not torch.allclose(x, y, rtol=0.0, atol=limit * largest, equal_nan=True):
        apart = float((x - y).abs().nan_to_num(torch.inf).max())
        raise NumericError(f"{what}: batched differs from torch alone by {apart:.3g}, of numbers up to {largest:.3g}.")


def _total(results: Sequence[Any]) -> Tensor:
    """Sum all numbers that have gradients, each with a random weight."""
    draw, total = torch.Generator().manual_seed(0), torch.zeros((), dtype=torch.float64)
    for x in (x for one in results for x in leaves_of(one) if isinstance(x, Tensor) and is_float(x.dtype)):
        weights = torch.rand(x.shape, generator=draw, dtype=torch.float64).to(x.device)
        if x.requires_grad:  # weights are drawn for constants too, which may be batched beside results with gradients
            total = total + (torch.view_as_real(x).sum(-1) if x.is_complex() else x).mul(weights).sum()
    return total


def _like(found: Sequence[Any], expected: Sequence[Any]) -> list[list[Any]]:
    """Return the results as lists of tensors, detached if the expected one has no gradient."""
    pairs = [zip(leaves_of(x), leaves_of(y), strict=True) for x, y in zip(found, expected, strict=True)]
    return [
        [x if getattr(y, "requires_grad", False) else torch.as_tensor(x).detach() for x, y in each] for each in pairs
    ]


def _differentiate(total: Tensor, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """Compute the gradients of a sum; None for tensors that it does not depend on."""
    if not leaves or not total.requires_grad:
        return [None] * len(leaves)
    found = torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True)  # both read the instances' graph
    return [None if g is None else g.to_dense() for g in found]
