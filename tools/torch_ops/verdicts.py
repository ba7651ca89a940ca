"""Compare an op of torch in a cell with torch itself: values, gradients and dtypes of several instances."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import autobatch.torch as abt
from autobatch.errors import AutobatchError
from torch_ops.samples import Case

UNINITIALISED = "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"
"""Ops whose results are arbitrary numbers: only shapes and dtypes are compared."""
SEEDS = range(1, 17)
"""Seeds for random ops; some results are the same for most seeds."""
RELATIVE, ABSOLUTE = 1e-7, 1e-9


class Verdict(StrEnum):
    """The verdict on a sample."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    CRASH = "crash"
    SKIPPED = "skipped"
    """Torch itself refuses the sample, or returns no tensor."""


@dataclass(frozen=True)
class Outcome:
    """The verdict on a sample, with details.

    Attributes:
        notes: what runs the cell, by `explain`; empty if autobatch computes everything.
    """

    op: str
    sample: int
    runs: str
    verdict: Verdict
    detail: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.verdict}: {self.op}, sample {self.sample}, runs={self.runs!r}: {self.detail}"


@dataclass(frozen=True)
class Expected:
    """Torch's results for an instance: outputs, their weights in the loss, and gradients of the tensors."""

    outputs: Sequence[Tensor]
    weights: Sequence[Tensor]
    gradients: Sequence[Tensor | None]


class _Anchor(nn.Module):
    """A module that computes in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1, dtype=torch.float64))


def judge(case: Case, runs: str, backend: str = "reference", explained: bool = False) -> Outcome:
    """Run a sample in a cell and compare it with torch, one instance at a time.

    Args:
        explained: whether to ask `explain` what torch runs.
    """

    def outcome(verdict: Verdict, detail: str = "", notes: tuple[str, ...] = ()) -> Outcome:
        return Outcome(case.op, case.number, runs, verdict, detail, notes)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _expect(case)
        if isinstance(found, str):
            return outcome(Verdict.SKIPPED, found)
        instances, expected, is_random = found
        cell = abt.cell(case.body, runs=runs)
        shapes = {tuple(y.shape for y in one.outputs) for one in expected}
        gather = tuple if len(shapes) == 1 else list  # so that a batched function returns each instance's own
        batched = abt.batched(lambda tensors: gather(cell(*tensors)), module=_Anchor(), backend=backend)
        try:
            difference = _compare(batched, instances, expected, is_random)
        except AutobatchError as error:
            message = str(error)
            return outcome(Verdict.CRASH if "\n" in message or not message else Verdict.REFUSED, message)
        except Exception as error:
            return outcome(Verdict.CRASH, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        if difference:
            return outcome(Verdict.WRONG, difference)
        return outcome(Verdict.RIGHT, notes=_explained(batched, instances) if explained else ())


def _explained(batched: Any, instances: Sequence[Sequence[Tensor]]) -> tuple[str, ...]:
    """Return the notes of `explain` on the cell."""
    with torch.no_grad():
        return tuple(line for _, line in batched.explain(instances).notes)


def _expect(case: Case) -> tuple[list[list[Tensor]], list[Expected], bool] | str:
    """Return instances that torch accepts, its results for each, and whether they are random; or why there are none."""
    why = ""
    for has_gradients, instances in product((True, False), case.instances()):
        for tensors in instances:
            for x, sample in zip(tensors, case.tensors, strict=True):
                x.requires_grad_(has_gradients and sample.requires_grad)
        try:
            expected = [_run_eagerly(case, tensors, seed=0) for tensors in instances]
            others = [_run_eagerly(case, instances[0], seed) for seed in SEEDS] if _draws(case, instances[0]) else []
        except Exception as error:
            why = why or f"torch refuses it: {' '.join(str(error).split())}"
            continue
        if not expected[0].outputs:
            return "torch returns no tensor"
        differs = any(_differ(other.outputs, expected[0].outputs, "") for other in others)
        is_random = case.op.split(".")[0] in UNINITIALISED or differs
        return instances, expected, is_random
    return why


def _draws(case: Case, tensors: Sequence[Tensor]) -> bool:
    """Return whether torch draws random numbers."""
    _run_eagerly(case, tensors, seed=0)
    after = torch.default_generator.get_state()
    return not torch.equal(after, torch.Generator().manual_seed(0).get_state())


def _run_eagerly(case: Case, tensors: Sequence[Tensor], seed: int) -> Expected:
    """Return torch's results for an instance. The op gets copies, because it may change them."""
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors]
    torch.default_generator.manual_seed(seed)
    outputs = case.body(*leaves)
    draw = torch.Generator().manual_seed(case.number)
    weights = [torch.rand(y.shape, generator=draw, dtype=torch.float64).to(y.dtype) for y in outputs]
    asking = [x for x in leaves if x.requires_grad]
    differentiable = [(y, w) for y, w in zip(outputs, weights, strict=True) if y.requires_grad]
    gradients: Sequence[Tensor | None] = [None] * len(asking)
    if differentiable and asking:
        ys, ws = zip(*differentiable, strict=True)
        gradients = torch.autograd.grad(ys, asking, ws, allow_unused=True)
    return Expected([y.detach().clone() for y in outputs], weights, gradients)


def _compare(batched: Any, instances: Sequence[Sequence[Tensor]], expected: Sequence[Expected], is_random: bool) -> str:
    """Return how a batched function differs from torch; empty if it does not."""
    torch.default_generator.manual_seed(0)
    outputs = batched(instances)
    if isinstance(outputs, list):
        outputs = [*zip(*outputs, strict=True)]
    n_outputs = len(expected[0].outputs)
    if len(outputs) != n_outputs:
        return f"{len(outputs)} outputs for {n_outputs}"
    for k, one in enumerate(expected):
        rows = [_row(y, k) for y in outputs]
        if difference := _differ(rows, one.outputs, f"instance {k}, output", is_random):
            return difference
    leaves = [[x for x in tensors if x.requires_grad] for tensors in instances]
    wanted = [gradient for one in expected for gradient in one.gradients]
    flat = [x for tensors in leaves for x in tensors]
    if not flat or all(gradient is None for gradient in wanted):
        return ""
    weighted = [
        (_row(y, k), one.weights[j])
        for k, one in enumerate(expected)
        for j, y in enumerate(outputs)
        if _row(y, k).requires_grad
    ]
    if not weighted:
        return "no output has a gradient"
    ys, ws = zip(*weighted, strict=True)
    gradients = torch.autograd.grad(ys, flat, ws, allow_unused=True)
    found = [torch.zeros_like(x) if g is None else g for x, g in zip(flat, gradients, strict=True)]
    whole = [torch.zeros_like(x) if g is None else g for x, g in zip(flat, wanted, strict=True)]
    return _differ(found, whole, "gradient", is_random)


def _row(y: Any, k: int) -> Tensor:
    """Return the output of an instance; outputs are stacked, or in a list if shapes differ."""
    row: Tensor = y[k]
    return row


def _differ(found: Sequence[Tensor], wanted: Sequence[Tensor], what: str, is_random: bool = False) -> str:
    """Return how two lists of tensors differ; empty if they do not."""
    for k, (x, y) in enumerate(zip(found, wanted, strict=True)):
        if x.dtype != y.dtype:
            return f"{what} {k} is {x.dtype}, not {y.dtype}"
        if x.shape != y.shape:
            return f"{what} {k} has shape {tuple(x.shape)}, not {tuple(y.shape)}"
        if is_random:
            continue
        try:
            torch.testing.assert_close(x, y, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
        except AssertionError as error:
            return f"{what} {k}: {' '.join(str(error).split())}"
    return ""
