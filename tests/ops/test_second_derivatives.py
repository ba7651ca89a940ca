"""Test second derivatives, from the pullbacks of all ops, against torch's gradients of gradients."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch import ops
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from helpers.programs.gradient_cases import EVERY, RowsCase, instances_of, slope_cell
from helpers.programs.inner_gradients import pull_back, slope, torch_slope
from helpers.programs.op_cases import Case
from helpers.runs.ways import each
from host_device import HostDevice

TOLERANCE = 1e-9
COMPILED: list[Callable[[], Any]] = [lambda: Cpu(poison=True)]
if shutil.which("g++") is not None:
    COMPILED.append(lambda: Cuda(poison=True, device=HostDevice()))
ALL = tuple(case for case in EVERY if not case.name.startswith("elu at"))  # its second derivative jumps there
FIRST = tuple({(type(case), case.name): case for case in ALL}.values())  # one of each name


class Precise(ab.Module):
    """Makes cells compute in float64."""

    def __init__(self) -> None:
        self.scale = ab.Parameter(np.ones(()))
        self.astype("float64")


def check(case: Case | RowsCase, backend: Any, order: int = 2) -> None:
    """Compare the derivatives of a case up to an order with torch."""
    instances = instances_of(case)
    loss = ab.batched(slope_cell(case, order), module=Precise(), backend=backend)
    value, _, found = loss.value_and_grad(instances, reduce="sum", inputs=True)
    total = 0.0
    for (values, g, ints), (gradients, of_g, _) in zip(instances, found, strict=True):
        tensors = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (*values, g)]
        numbers = [torch.as_tensor(i) for i in ints]
        slopes = torch_slope(lambda *x, numbers=numbers: case.expect(*x, *numbers), tensors[:-1], tensors[-1], order)
        slopes = slopes + 0.0 * sum(map(torch.sum, tensors))
        total += slopes.item()
        for ours, theirs in zip((*gradients, of_g), torch.autograd.grad(slopes, tensors), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(value, total, rtol=TOLERANCE, atol=TOLERANCE)


@each("case", ALL)
def test_second_derivatives_are_torchs(case: Case | RowsCase) -> None:
    check(case, Reference(poison=True))


@each("case", FIRST)
def test_second_derivatives_in_lowered_cells_are_torchs(case: Case | RowsCase) -> None:
    check(case, Cpu(poison=True))


@pytest.mark.slow
@each("case", [case for case in FIRST if case.name not in ("layer_norm", "layer_norm rows")])  # see `normalised`
def test_third_derivatives_are_torchs(case: Case | RowsCase) -> None:
    check(case, Reference(poison=True), order=3)


@pytest.mark.slow
@pytest.mark.parametrize("make", COMPILED, ids=["cpu", "cuda"][: len(COMPILED)])
def test_second_derivatives_in_compiled_cells_are_torchs(make: Any) -> None:
    for case in FIRST[::4]:
        check(case, make())


@pytest.mark.slow
@each("case", [case for case in FIRST if case.draw != "grid"])
def test_second_derivatives_are_central_differences(case: Case | RowsCase) -> None:
    instances, rng = instances_of(case), np.random.default_rng(1)
    loss = ab.batched(slope_cell(case, 2), module=Precise())
    found = loss.value_and_grad(instances, reduce="sum", inputs=True)[2]
    along = [tuple(rng.standard_normal(x.shape) for x in (*values, g)) for values, g, _ in instances]

    def total_at(distance: float) -> float:
        moved = [
            (tuple(x + distance * v for x, v in zip(values, vs[:-1], strict=True)), g + distance * vs[-1], ints)
            for (values, g, ints), vs in zip(instances, along, strict=True)
        ]
        return float(np.sum(loss(moved)))

    gradients = [(*of_values, of_g) for of_values, of_g, _ in found]
    pairs = [pair for parts in zip(gradients, along, strict=True) for pair in zip(*parts, strict=True)]
    expected = (total_at(1e-6) - total_at(-1e-6)) / 2e-6
    np.testing.assert_allclose(sum(float(np.sum(g * v)) for g, v in pairs), expected, rtol=1e-6, atol=1e-6)


# Points at which a derivative jumps, or where 0 meets infinity.


def differentiated(compute: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Return the derivative by an argument, computed inside a cell."""
    return lambda *values: pull_back(compute, values, 1.0)[number]


def derivative(compute: Callable[..., Any], at: Sequence[float], *by: int) -> float:
    """Differentiate by the arguments with these numbers, one after the other."""
    *before, last = by

    @ab.cell
    def derived(*values: Any) -> Any:
        return reduce(differentiated, before, compute)(*values)

    loss = ab.batched(lambda values: derived(*values), module=Precise())
    gradients = loss.value_and_grad([tuple(map(np.asarray, at))], inputs=True)[2]
    return float(gradients[0][last])


@each("exponent, second, third", [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (2.0, 2.0, 0.0), (3.0, 0.0, 6.0), (4.0, 0.0, 0.0)])
def test_powers_of_zero_have_the_derivatives_of_polynomials(exponent: float, second: float, third: float) -> None:
    """Also where the exponent is a value; torch's derivatives by both are NaN there."""
    assert derivative(lambda x: x**exponent, [0.0], 0, 0) == second
    assert derivative(lambda x: x**exponent, [0.0], 0, 0, 0) == third
    assert derivative(ops.pow, [0.0, exponent], 0, 0) == second
    assert derivative(ops.pow, [0.0, exponent], 0, 0, 0) == third
    assert derivative(ops.pow, [0.0, exponent], 1, 0) == derivative(ops.pow, [0.0, exponent], 1, 1) == 0.0
    assert derivative(ops.pow, [0.0, exponent], 0, 1) == (1.0 if exponent == 1.0 else 0.0)
    assert np.isfinite([derivative(ops.pow, [0.0, exponent], *by) for by in ((1, 1, 0), (1, 0, 0), (0, 0, 1))]).all()


@each(
    "compute, at, second",
    [
        (ops.relu, [0.0], 0.0),
        (ops.leaky_relu, [0.0], 0.0),
        (lambda x: ops.elu(x, 0.5), [0.0], 0.5),
        (ops.abs, [0.0], 0.0),
        (ops.maximum, [1.5, 1.5], 0.0),
        (ops.minimum, [1.5, 1.5], 0.0),
        (lambda x: ops.clip(x, -1.0, 1.0), [1.0], 0.0),
        (lambda x: ops.where(x > 0.0, x, x * x), [0.0], 2.0),
        (lambda x, y: ops.max(ops.stack([x * x, y * y, x * y])), [1.5, 1.5], 2.0 / 3.0),
    ],
)
def test_second_derivatives_at_kinks_are_those_of_the_sides_that_first_ones_take(
    compute: Any, at: list[float], second: float
) -> None:
    np.testing.assert_allclose(derivative(compute, at, 0, 0), second, rtol=1e-15)


# Random numbers, which torch draws differently.


class Dropping(ab.Module):
    """Dropout of values and of their gradients."""

    def __init__(self) -> None:
        self.scale = ab.Parameter(np.linspace(0.5, 1.5, 4))
        self.astype("float64")

    @ab.cell
    def scaled(self, x: Any) -> Any:
        return self.scale * x

    @ab.cell
    def parts(self, x: Any, g: Any) -> Any:
        return dropped_and_pulled(x, g)

    @ab.cell(ragged=("x", "g"))
    def parts_of_rows(self, x: Any, g: Any) -> Any:
        return dropped_and_pulled(x, g)

    @ab.cell
    def curved(self, x: Any, g: Any) -> Any:
        return slope(lambda x, g: ops.tanh(ops.dropout(x * x, 0.5) * g), (x, g), 1.0 + g * g, 2)

    def loss(self, instance: Any) -> Any:
        return self.curved(*map(self.scaled, instance))


def apply(call: Callable[..., Any], instance: tuple[Any, ...]) -> Any:
    return call(*instance)


def dropped_and_pulled(x: Any, g: Any) -> tuple[Any, Any, Any]:
    """Return dropout of x, the pullback of g through it, and the pullback of x through that."""
    made: list[Any] = []

    def compute(x: Any) -> Any:
        made.append(ops.dropout(x, 0.5))
        return made[-1]

    (once,) = pull_back(compute, [x], g)
    (twice,) = pull_back(lambda g: pull_back(compute, [x], g)[0], [g], x)
    return made[0] * g - once * x, made[1] - twice, once


@each("make", [lambda: Reference(poison=True), lambda: Cpu(poison=True)])
def test_all_derivatives_of_dropout_have_one_mask(make: Any) -> None:
    rng, model = np.random.default_rng(0), Dropping()
    for call, sizes in ((model.parts, ((4,),) * 3), (model.parts_of_rows, ((2, 4), (5, 4), (1, 4)))):
        instances = [(rng.standard_normal(size), rng.standard_normal(size)) for size in sizes]
        found = ab.batched(partial(apply, call), module=model, backend=make())(instances)
        for k, (_, g) in enumerate(instances):
            same, again, once = (part[k] for part in found)
            np.testing.assert_allclose([same, again], 0.0, atol=1e-15)  # a kernel may round a * b - c * d once less
            assert set(np.unique(once / g)) == {0.0, 2.0}
    instances = [(rng.standard_normal(4), rng.standard_normal(4)) for _ in range(3)]
    loss = ab.batched(model.loss, module=model, backend=make())
    ab.testing.check_grads(loss, instances, model, np.random.default_rng(1))
