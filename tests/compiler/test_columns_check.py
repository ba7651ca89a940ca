"""Test that the checker of columns finds past defects: values in columns of others, and sums that start too early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.compiler import assignment, fusion, stage
from autobatch.compiler.assignment import Storage
from autobatch.compiler.fusion import Kernel, Step
from autobatch.compiler.lowered import Area, Lowered, Lowering
from autobatch.compiler.statement import Statement
from autobatch.compiler.view import View
from autobatch.errors import PlanError

pytestmark = pytest.mark.usefixtures("_checked")


class Model(ab.Module):
    """The two cells, in float64, of which one was wrong in forward and the other in backward."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.A, self.B, self.W = (ab.Parameter(rng.standard_normal((2, 2))) for _ in range(3))
        self.U, self.V = (ab.Parameter(rng.standard_normal((3, n))) for n in (2, 3))
        self.c = ab.Parameter(rng.standard_normal((2, 1)))
        self.astype("float64")

    @ab.cell
    def joined(self, x: Any, y: Any) -> Any:
        a = self.A @ x
        return ab.tanh(a + self.B @ x), ab.tanh(self.U @ a + self.V @ ab.tanh(y))

    @ab.cell
    def reduced(self, x: Any) -> Any:
        return ab.sum((self.W @ x) * self.c)

    def loss(self, x: Any) -> Any:
        first, second = self.joined(x[:2], x)
        return self.reduced(first) + ab.sum(second)


def run() -> None:
    model = Model()
    instances = list(np.random.default_rng(1).standard_normal((4, 3)))
    ours = ab.batched(model.loss, backend=Cpu(poison=True))
    theirs = ab.batched(model.loss, backend=Reference(poison=True))
    np.testing.assert_allclose(ours(instances), [model.loss(x) for x in instances], rtol=1e-12)
    _, found = ours.value_and_grad(instances)
    _, expected = theirs.value_and_grad(instances)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, atol=1e-12)
    ab.testing.check_grads(ours, instances, model, np.random.default_rng(2))


def test_right_cells_pass() -> None:
    run()


def test_a_part_that_is_not_all_of_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a product is joined. Computed in place, its other half would overwrite the values behind it."""

    def lies_in(self: Lowering, part: int, view: View) -> bool:
        own = self.views[part]
        if own.offset == 0 and own.value in self._apart and own.value not in self.lowered.aliases:
            self.lowered.aliases[own.value] = view._replace(shape=own.shape, strides=own.strides)
            return True
        return False

    monkeypatch.setattr(Lowering, "_lies_in", lies_in)
    with pytest.raises(PlanError, match="must find"):
        run()


def test_a_sum_that_begins_where_another_loop_still_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(lowered: Lowered, statements: Sequence[Statement]) -> dict[int, dict[int, bool]]:
        return {}

    monkeypatch.setattr(fusion, "overwritings", forget)
    monkeypatch.setattr(stage, "check_steps", lambda *args: None)
    with pytest.raises(PlanError, match="must find"):
        run()


def test_memory_of_a_row_that_another_step_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that several steps use must not be in memory that each row reuses."""
    right = assignment.assign_buffers

    def wrong(lowered: Lowered, steps: list[Step], n_before: int) -> Storage:
        storage = right(lowered, steps, n_before)
        for value, location in storage.locations.items():
            if location.area is Area.BATCH:
                storage.locations[value] = location._replace(area=Area.ROW)
        return storage

    monkeypatch.setattr(stage, "assign_buffers", wrong)
    monkeypatch.setattr(stage, "check_storage", lambda *args: None)
    with pytest.raises(PlanError, match="must find"):
        run()


def test_loops_of_a_nest_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fusion.fuse

    def wrong(lowered: Lowered, statements: list[Statement]) -> list[Step]:
        steps = right(lowered, statements)
        for step in steps:
            for block in step.blocks if isinstance(step, Kernel) else ():
                block.loops.reverse()
        return steps

    monkeypatch.setattr(stage, "fuse", wrong)
    monkeypatch.setattr(stage, "check_steps", lambda *args: None)
    monkeypatch.setattr(stage, "check_storage", lambda *args: None)
    with pytest.raises(PlanError, match="must find"):
        run()


def test_values_without_elements_write_over_nothing() -> None:
    """The empty gradient nominally lies where saved values give up their columns to gradients."""

    class Beside(ab.Module):
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.W, self.U = (ab.Parameter(rng.standard_normal((4, 4))) for _ in range(2))
            self.first, self.second = (ab.Parameter(np.zeros((3, 0, 3))) for _ in range(2))
            self.astype("float64")

        @ab.cell
        def cell(self, x: Any) -> Any:
            return ab.max_n([self.first, self.second]), ab.tanh(self.W @ x) * (self.U @ x)

        def loss(self, x: Any) -> Any:
            nothing, something = self.cell(ab.tanh(x))
            return ab.sum(nothing) + ab.sum(something)

    model, instances = Beside(), list(np.random.default_rng(1).standard_normal((3, 4)))
    _, found = ab.batched(model.loss, backend=Cpu(poison=True)).value_and_grad(instances)
    _, expected = ab.batched(model.loss, backend=Reference(poison=True)).value_and_grad(instances)
    np.testing.assert_allclose(found["W"], expected["W"], rtol=1e-10)
