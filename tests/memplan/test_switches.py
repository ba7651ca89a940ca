"""Test that the planner's switches and the rewrites change what runs but not the results, in all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.memplan.planner import MemoryPlanner
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.twins.cases import CASES, Case

Ways = dict[str, Any]  # options of `ab.batched`


def way(*rewrites: str, joins: bool = True, stacks: bool = True, sums: bool = True, recomputes: str = "cheap") -> Ways:
    """Return options for a combination of switches; `sums` needs the two before it."""
    switches: Any = {"joins": joins, "stacks": stacks, "sums": sums and joins and stacks, "recomputes": recomputes}
    return {"rewrites": rewrites, "planner": MemoryPlanner(**switches)}


def all_ways() -> list[Ways]:
    """Return every combination that differs from the others."""
    rewrites = [passes for n in range(3) for passes in itertools.combinations(("fold", "share"), n)]
    layouts = [(joins, stacks, True) for joins in (False, True) for stacks in (False, True)] + [(True, True, False)]
    return [
        way(*passes, joins=joins, stacks=stacks, sums=sums, recomputes=recomputes)
        for passes in rewrites
        for joins, stacks, sums in layouts
        for recomputes in ("nothing", "all")
    ]


def some_ways() -> list[Ways]:
    """Return the default, combinations that differ from it in one switch, and one that differs in all."""
    return [
        way("fold"), way(), way("fold", "share"), way("fold", joins=False), way("fold", stacks=False),
        way("fold", sums=False), way("fold", recomputes="nothing"), way("fold", recomputes="more"),
        way("fold", recomputes="all"), way("share", joins=False, stacks=False, recomputes="all"),
    ]  # fmt: skip


def check_ways(function: Any, instances: list[Any], ways: list[Ways], backend: Callable[[], Any]) -> int:
    """Compare values and gradients of all combinations with the first; return the number of combinations."""
    expected = None
    for options in ways:
        loss = ab.batched(function, backend=backend(), seed=3, **options)
        value, grads = loss.value_and_grad(instances)
        found = {"": np.asarray(value), **{name: np.asarray(grad) for name, grad in grads.items()}}
        expected = expected or {name: array.copy() for name, array in found.items()}
        for name, array in found.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-10, atol=1e-12, err_msg=f"{options} {name}")
    return len(ways)


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_switches_give_equal_gradients(case: Case) -> None:
    model, instances = case.draw(seed=5, n_instances=4, dim=3)
    assert check_ways(model.loss, instances, some_ways(), Reference) == 10


@pytest.mark.cases(0, 3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_combinations_give_equal_gradients(case: Case) -> None:
    model, instances = case.draw(seed=5, n_instances=4, dim=3)
    for backend in (Reference, lambda: Cpu(provider="numpy")):
        assert check_ways(model.loss, instances, all_ways(), backend) == 40


def test_switches_give_equal_gradients_on_the_cpu_backend() -> None:
    model, instances = next(case for case in CASES if case.name == "lattice-lstm").draw(5, 4, 3)
    assert check_ways(model.loss, instances, some_ways(), lambda: Cpu(provider="numpy")) == 10


@pytest.mark.cases(0, 8)
@pytest.mark.parametrize("seed", range(20))
def test_switches_give_equal_gradients_of_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    assert check_ways(model.loss, draw_instances(rng, model, n=4), some_ways(), Reference) == 10


class Dropping(ab.Module):
    """Equal nodes, sums, and different dropout masks."""

    def __init__(self) -> None:
        self.matrix = ab.Parameter(np.random.default_rng(0).standard_normal((6, 6)))

    @ab.cell
    def step(self, x: Any) -> Any:
        return ab.dropout(ab.tanh(self.matrix @ x), 0.5)

    @ab.cell
    def plain(self, x: Any) -> Any:
        return ab.sigmoid(self.matrix @ x)

    def loss(self, n: int) -> Any:
        x: Any = np.linspace(-1.0, 1.0, 6)
        for _ in range(n):
            x = self.step(self.plain(x)) + self.plain(x) + self.step(x)
        return ab.sum(x)


def test_all_ways_draw_the_same_masks() -> None:
    model = Dropping().astype("float64")
    assert check_ways(model.loss, [3, 3, 2], all_ways(), Reference) == 40
    once, again = (ab.batched(model.loss, seed=seed)([3])[0] for seed in (3, 4))
    assert once != again
