"""Ops: eager against torch, batched against eager, gradients against torch and central differences."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch import ops
from op_cases import CASES, OPERATORS, Case, CaseModel

ALL = (*CASES, *OPERATORS)
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
TO_EAGER = 1e-10
SIZES = (2, 0, 1, 5)  # calls per instance


def roles_of(cases: tuple[Case, ...]) -> list[Any]:
    """Every case, with every way in which its float arguments are parameters or values of other nodes."""
    return [
        pytest.param(case, roles, id=f"{case}-{'-'.join(roles)}")
        for case in cases
        for roles in itertools.product(("value", "parameter"), repeat=len(case.shapes))
    ]


def parameter(data: Any, dtype: str) -> ab.Parameter:
    made = ab.Parameter(np.zeros(np.shape(data))).astype(dtype)
    made.data = data
    return made


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", ALL, ids=str)
def test_eager_is_torchs(case: Case, dtype: str) -> None:
    floats, ints = case.arguments(np.random.default_rng(0))
    expected = case.expect(*map(torch.as_tensor, floats), *map(torch.as_tensor, ints))
    for arguments in ([np.asarray(x, dtype) for x in floats], [parameter(x, dtype) for x in floats]):
        found = case.compute(*arguments, *ints)
        found = found.data if isinstance(found, ab.Parameter) else found  # 0 + x is x
        assert_close(found, expected, TOLERANCE[dtype])
        assert np.shape(found) == tuple(expected.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_eager_keeps_the_dtype(case: Case, dtype: str) -> None:
    floats, ints = case.arguments(np.random.default_rng(0))
    assert case.compute(*(parameter(x, dtype) for x in floats), *ints).dtype == dtype


@pytest.mark.parametrize("in_cell", [True, False], ids=["cell", "outside"])
@pytest.mark.parametrize(("case", "roles"), roles_of(ALL))
def test_batched_is_eager_and_torchs(case: Case, roles: tuple[str, ...], in_cell: bool) -> None:
    rng = np.random.default_rng(0)
    model = CaseModel(case, roles, rng, in_cell)
    instances = [[case.arguments(rng) for _ in range(size)] for size in SIZES]
    loss = ab.batched(model.loss)
    ab.testing.check_batched(model.loss, loss, instances, TO_EAGER)
    value, grads = loss.value_and_grad(instances)
    expected_value, expected_grads = model.torch_loss(instances)
    assert_close(value, expected_value, TO_EAGER)
    for found, expected in zip(grads.values(), expected_grads, strict=True):
        assert_close(found, expected, TO_EAGER)
    if case.smooth:
        ab.testing.check_grads(loss, instances, model, rng)


def test_every_op_has_a_case() -> None:
    tested = {case.compute for case in CASES}
    named = {case.name.split()[0] for case in CASES}
    variadic = {"attend", "max_n", "mean_n", "sum_n"}
    assert {n for n in ops.__all__ if getattr(ops, n) not in tested} - named - variadic == {"Op", "define_op", "slice_"}
