"""Test settings that change while a batched function is in use: sizes and decisions are updated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cpu.compiled_cell import CompiledCell
from autobatch.backends.cpu.run import MOST_BOUND, BoundCells
from autobatch.backends.reference import Reference
from autobatch.memplan.planner import MemoryPlanner
from autobatch.plan.plan import PlannedCell
from helpers.fakes.noting_backend import NotingBackend, count_live
from helpers.twins.cases import draw_trees_case

BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": lambda: Reference(poison=True),
}


class Net(ab.Module):
    """A sum over the states of a chain, with a separate cell for each number of steps modulo 4."""

    def __init__(self, dim: int, dtype: str = "float32") -> None:
        rng = np.random.default_rng(0)
        self.weights = [ab.Parameter(rng.standard_normal((dim, dim)) / dim) for _ in range(2)]
        self.start = ab.Parameter(rng.standard_normal(dim))
        self.astype(dtype)

    @ab.cell
    def step(self, h: Any, x: Any) -> Any:
        return ab.tanh(self.weights[0] @ h + self.weights[1] @ x)

    @ab.cell(static=("kind",))
    def late(self, h: Any, kind: int) -> Any:
        return ab.tanh(self.weights[0] @ h) * (kind + 1.0)

    def loss(self, n: int) -> Any:
        h = x = self.start * 1.0
        for _ in range(n):
            h, x = self.step(h, x), h
        return ab.sum(h)

    def kinds(self, kinds: tuple[int, ...]) -> Any:
        h = self.start * 1.0
        for kind in kinds:
            h = self.late(h, kind)
        return ab.sum(h)


def results(run: Any, batch: Any) -> list[Any]:
    """Run a mini-batch in inference and training; return the results."""
    value, grads = run.value_and_grad(batch)
    return [run(batch), value, *(np.array(gradient) for gradient in grads.values())]


def assert_alike(found: list[Any], wanted: list[Any], tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def check_precisions(make: Callable[[], Any], dim: int, batch: list[int]) -> None:
    """Compare a function that changes precision, and copies with different ones, with new functions."""
    model = Net(dim)
    wanted = {p: results(ab.batched(model.loss, backend=make(), precision=p), batch) for p in ("float32", "bf16")}
    assert any(np.abs(a - b).max() > 1e-6 for a, b in zip(*wanted.values(), strict=True))
    for recorded in (False, True):
        run = ab.batched(model.loss, backend=make())
        minibatch = run.record_all(batch) if recorded else batch
        for precision in ("float32", "bf16", "float32", "bf16"):
            run.precision = precision
            assert_alike(results(run, minibatch), wanted[precision], 1e-6)
        twins = {precision: copy.copy(run) for precision in wanted}
        for precision, twin in twins.items():
            twin.precision = precision
        for precision in ("float32", "bf16", "float32"):
            assert_alike(results(twins[precision], minibatch), wanted[precision], 1e-6)


@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_precision_changes_on_a_used_function(backend: str, n: int) -> None:
    check_precisions(BACKENDS[backend], 12, [3] * n)


@pytest.mark.slow
def test_precision_changes_on_a_used_compiled_function() -> None:
    """Rounded rows need separate scratch memory."""
    check_precisions(lambda: Cpu(poison=True), 64, [2] * 64)


def test_scratch_memory_has_a_size_for_each_precision() -> None:
    """The size does not depend on earlier requests; rounded rows take more."""
    run, used = ab.batched(Net(64).loss), Cpu()
    step = run.prepare([2], training=True)

    def size(backend: Cpu, precision: str) -> int:
        options = run.options._replace(precision=precision)
        return backend.prepare(step.parts[0].plan, step.cells, options).n_bytes

    wanted = {precision: size(Cpu(), precision) for precision in ("float32", "bf16")}
    assert wanted["float32"] < wanted["bf16"]
    for precision in ("float32", "bf16", "float32", "bf16"):
        assert size(used, precision) == wanted[precision]


def test_one_plan_runs_on_one_backend_in_both_precisions() -> None:
    model, backend = Net(8), Cpu(poison=True)
    runs = [ab.batched(model.loss, backend=backend, precision=p) for p in ("float32", "bf16")]
    wanted = [results(run, [2, 3]) for run in runs]
    for _ in range(2):
        for run, found in zip(runs, wanted, strict=True):
            assert_alike(results(run, [2, 3]), found, 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_dtype_of_a_model_changes(backend: str) -> None:
    model = Net(6)
    run = ab.batched(model.loss, backend=BACKENDS[backend]())
    wanted = results(run, [1, 3])
    for dtype, tolerance in (("float64", 1e-5), ("float32", 1e-5)):
        model.astype(dtype)
        assert_alike(results(run, [1, 3]), wanted, tolerance)


# Planners.


@dataclass(frozen=True)
class Noting(MemoryPlanner):
    """A planner that notes the types that it lays out."""

    noted: list[str] = field(default_factory=list, compare=False)

    def plan_cell(self, node_type: Any, training: bool) -> PlannedCell:
        self.noted.append(node_type.name)
        return super().plan_cell(node_type, training)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("recorded", [False, True])
def test_another_planner_lays_out_known_types(backend: str, recorded: bool) -> None:
    model, trees = draw_trees_case(0, 4, 3)
    first, second = Noting(), Noting(joins=False, stacks=False, sums=False, simplifies=False)
    run = ab.batched(model.loss, backend=BACKENDS[backend](), planner=first)
    batch = run.record_all(trees) if recorded else trees
    wanted = results(run, batch)
    assert run.last is not None
    before = run.last.launches, run.last.copied_bytes
    run.planner = second
    for _ in range(2):
        assert_alike(results(run, batch), wanted, 1e-10)
    assert sorted(second.noted) == sorted(first.noted)
    assert (run.last.launches, run.last.copied_bytes) != before
    run.planner = Noting()
    assert_alike(results(run, batch), wanted, 1e-10)
    assert (run.last.launches, run.last.copied_bytes) == before


def test_copies_with_planners_of_their_own_keep_their_layouts() -> None:
    model, trees = draw_trees_case(0, 4, 3)
    run = ab.batched(model.loss, planner=Noting())
    twin = copy.copy(run)
    twin.planner = Noting(simplifies=False)
    graphs = run.record_all(trees)
    wanted = results(run, graphs)
    for _ in range(3):
        assert_alike(results(twin, graphs), wanted, 1e-10)
        assert_alike(results(run, graphs), wanted, 1e-10)
    planned = 2 * len(graphs[0].types)  # for inference, and for training
    assert [len(one.planner.noted) for one in (run, twin) if isinstance(one.planner, Noting)] == [planned] * 2


# Plans and memory.


def test_a_plan_depends_on_the_number_of_threads_where_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """max_bytes includes each thread's scratch memory, whatever number the previous plan was made for."""
    monkeypatch.setattr("autobatch.blas.threads.usable_cores", lambda: 8)
    monkeypatch.setattr("autobatch.blas.threads._all_pools", list)  # torch's pool may be limited to one thread
    model = Net(24)
    run = ab.batched(model.loss, backend=sized(), max_bytes=10**9)
    graphs = run.record_all([4] * 16)
    run(graphs)
    assert run.last is not None
    needed = run.last.planned_bytes
    run.max_bytes = needed
    for threads, parts in ((1, 1), (2, 2), (1, 1)):
        run.threads = threads
        for _ in range(2):
            run(graphs)
            assert (run.last.parts > 1) == (parts > 1)
            assert run.last.planned_bytes <= needed
        assert run.last.plan_hit


def sized() -> NotingBackend:
    """Return the reference backend with fake scratch memory for each thread."""
    return NotingBackend(Reference(), extra_bytes=lambda plan, options: 100 * options.threads * options.dtype.itemsize)


def test_a_backend_keeps_the_steps_of_so_many_sets_of_types() -> None:
    """Each mini-batch uses a few of many types. The number of bound sets is limited, and results stay right."""
    model, backend = Net(3), Cpu()
    run = ab.batched(model.kinds, backend=backend)
    rng = np.random.default_rng(0)
    before = count_live(BoundCells)
    drawn = [tuple(rng.choice(9, size=3, replace=False).tolist()) for _ in range(2 * MOST_BOUND)]
    for kinds in drawn:
        run.value_and_grad([kinds])
    assert count_live(BoundCells) - before == MOST_BOUND
    np.testing.assert_allclose(run(drawn[:5]), [model.kinds(kinds) for kinds in drawn[:5]], rtol=1e-5)


@pytest.mark.slow
def test_a_backend_forgets_the_cells_of_planners_before() -> None:
    model, backend = Net(3), Cpu()
    run = ab.batched(model.loss, backend=backend)
    counts = set[int]()
    for _ in range(6):
        run.planner = Noting()
        run([2])
        run.value_and_grad([2, 3])
        counts.add(count_live(CompiledCell))
    assert len(counts) <= 2
    del run
    assert count_live(CompiledCell) < max(counts), "they are not in use any more"
