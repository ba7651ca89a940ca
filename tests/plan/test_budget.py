"""Test that mini-batches above the memory limit run in parts with equal results, and that buffers rarely grow."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.options import Options
from autobatch.backends.reference import Reference
from autobatch.backends.values import Memory
from autobatch.devices.store import HOST
from autobatch.graph.build import make_graph
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.graph.rewrite import PASSES
from autobatch.plan.budget import cut
from autobatch.plan.plan import Plan
from helpers.checkers.refusals import refused
from helpers.fakes.noting_backend import NotingBackend
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.recorded import module_of
from helpers.twins.cases import draw_lattices_case

pytestmark = pytest.mark.usefixtures("_checked")
DIM, V = 4, 9


class Chains(ab.Module):
    """Reads a chain of words with a table, a matrix and dropout."""

    def __init__(self, dim: int = DIM) -> None:
        rng = np.random.default_rng(0)
        self.dim, self.calls = dim, 0
        self.table = ab.Parameter(rng.standard_normal((V, dim)))
        self.layer = ab.Linear(2 * dim, dim, rng=rng)
        self.unused = ab.Parameter(np.ones(2))

    @ab.cell
    def read(self, word: int) -> Any:
        return ab.lookup(self.table, word)

    @ab.cell
    def step(self, state: Any, read: Any) -> Any:
        return ab.tanh(self.layer(ab.concat((ab.dropout(state, 0.25), read))))

    @ab.cell
    def norm(self, state: Any) -> Any:
        return ab.dot(state, state)

    def scaled(self, x: float) -> Any:
        return self.norm(self.table[0] * x)

    def states(self, words: list[int]) -> list[Any]:
        self.calls += 1
        states: list[Any] = [np.zeros(self.dim)]
        for word in words:
            states.append(self.step(states[-1], self.read(word)))
        return states

    def loss(self, words: list[int]) -> Any:
        return self.norm(self.states(words)[-1])

    def loss_and_aux(self, words: list[int]) -> Any:
        states = self.states(words)
        return self.norm(states[-1]), {"last": states[-1], "norms": [self.norm(x) for x in states], "n": len(words)}


def watched(extra_bytes: Callable[[Plan, Options], int] = lambda plan, options: 0) -> NotingBackend:
    """Return the reference backend on a buffer of NaN, noting what it runs."""
    return NotingBackend(Reference(poison=True), extra_bytes=extra_bytes)


def ran_bytes(loss: ab.Batched) -> list[int]:
    """Return the bytes of the values in each plan that a watched backend has run."""
    return [ran.inner.n_bytes for ran in loss.backend.ran]  # type: ignore[attr-defined]


def draw_chains(n: int, seed: int, longest: int = 12) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(V, size=rng.integers(1, longest + 1)).tolist() for _ in range(n)]


def pair(function: Callable[[Chains], Any], **options: Any) -> tuple[ab.Batched, ab.Batched]:
    """Return a function batched twice, each time with a backend of its own; tests set a limit for the second."""
    model = Chains().astype("float64")
    return tuple(ab.batched(function(model), backend=watched(), **options) for _ in range(2))  # type: ignore[return-value]


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def planned(loss: ab.Batched) -> int:
    assert loss.last is not None
    return loss.last.planned_bytes


def assert_within(loss: ab.Batched, whole: ab.Batched) -> None:
    """Check that the last call ran in parts within the budget, with the same nodes."""
    assert loss.last is not None
    assert whole.last is not None
    assert loss.max_bytes is not None
    ran = ran_bytes(loss)[-loss.last.parts :]
    assert max(ran) == loss.last.planned_bytes <= loss.last.buffer_bytes <= loss.max_bytes
    assert (loss.last.nodes, loss.last.graph.n_nodes) == (whole.last.nodes, whole.last.nodes)
    assert loss.last.graph.n_instances == whole.last.graph.n_instances
    assert loss.last.lower_bound >= whole.last.lower_bound
    assert loss.last.batches >= loss.last.lower_bound


@pytest.mark.cases(2)
@pytest.mark.parametrize("share", [0.9, 0.5, 0.3, 0.15])
def test_results_are_those_of_the_whole(share: float) -> None:
    for fresh in (True, False):
        check_results(share, fresh)


def check_results(share: float, fresh: bool) -> None:
    whole, parts = pair(lambda m: m.loss_and_aux)
    chains = draw_chains(24, seed=1)
    batches = [chains if fresh else loss.record_all(chains) for loss in (whole, parts)]
    losses, aux = whole(batches[0])
    parts.max_bytes = int(share * planned(whole))
    found_losses, found_aux = parts(batches[1])
    assert_close(found_losses, losses)
    assert_close(found_aux["last"], aux["last"])
    np.testing.assert_array_equal(found_aux["n"], aux["n"])
    for own, others in zip(found_aux["norms"], aux["norms"], strict=True):
        assert_close(own, others)
    assert_within(parts, whole)
    assert parts.last is not None
    assert math.ceil(1 / share) <= parts.last.parts <= 3 / share


REDUCTIONS: dict[str, Any] = {"mean": "mean", "sum": "sum", "weights": np.linspace(-1.0, 2.0, 24)}


@pytest.mark.cases(1)
@pytest.mark.parametrize("share", [0.6, 0.2])
def test_losses_and_gradients_are_those_of_the_whole(share: float) -> None:
    for reduce in REDUCTIONS:
        check_gradients(reduce, share)


def check_gradients(reduce: str, share: float) -> None:
    """Compare gradients for two steps, so that the second step's masks count; the table's gradients are rows."""
    whole, parts = pair(lambda m: m.loss_and_aux)
    chains = draw_chains(24, seed=2)
    for step in range(2):
        (value, aux), grads = whole.value_and_grad(chains, reduce=REDUCTIONS[reduce], has_aux=True)
        parts.max_bytes = int(share * planned(whole))
        (found, found_aux), found_grads = parts.value_and_grad(chains, reduce=REDUCTIONS[reduce], has_aux=True)
        assert_close(found, value)
        assert_close(found_aux["last"], aux["last"])
        assert_gradients(found_grads, grads)
        assert isinstance(found_grads["table"], ab.Rows)
        assert parts.step == whole.step == step + 1
        assert_within(parts, whole)


def assert_gradients(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(gradient), rtol=1e-12, atol=1e-13)


def test_gradients_are_added_to_those_given() -> None:
    whole, parts = pair(lambda m: m.loss)
    chains = draw_chains(16, seed=3)
    outs: list[dict[str, Any]] = []
    for loss in (whole, parts):
        _, grads = loss.value_and_grad(chains[:4])
        assert loss.last is not None
        assert loss.last.parts == 1
        outs.append(grads)  # buffers of the function itself
    places = {name: gradient for name, gradient in outs[1].items() if isinstance(gradient, np.ndarray)}
    whole.value_and_grad(chains, out=outs[0])
    parts.max_bytes = planned(whole) // 3
    _, returned = parts.value_and_grad(chains, out=outs[1])
    assert_within(parts, whole)
    assert returned is outs[1]
    assert places
    assert all(returned[name] is place for name, place in places.items())
    assert_gradients(returned, outs[0])
    dense: dict[str, Any] = {name: np.zeros(gradient.shape) for name, gradient in returned.items()}
    _, again = parts.value_and_grad(chains, out=dense)
    assert again is dense
    assert {type(gradient) for gradient in again.values()} == {np.ndarray}
    wrong = {name: gradient for name, gradient in dense.items() if name != "table"}
    with refused(ab.ShapeError, "out= has nothing for parameter 'table'"):
        parts.value_and_grad(chains, out=wrong)


def test_a_loss_that_is_not_finite_leaves_given_gradients_as_they_were() -> None:
    whole, parts = pair(lambda m: m.scaled)
    numbers = [1.0] * 9 + [np.inf, 1.0, np.nan]
    out = whole.value_and_grad(numbers[:3])[1]
    before = {name: np.array(gradient) for name, gradient in out.items()}
    parts.max_bytes = planned(whole)
    for loss in (whole, parts):
        with refused(ab.NumericError, "(instance 9: inf)", "gradients are not used"):
            loss.value_and_grad(numbers, out=out)
        assert loss.step == (loss is whole)
        assert_gradients(out, before)
    assert parts.value_and_grad(numbers[:9])[0] == whole.value_and_grad(numbers[:9])[0]


def test_masks_are_those_of_the_whole_and_of_eager_mode() -> None:
    whole, parts = pair(lambda m: m.loss, seed=5)
    chains = draw_chains(12, seed=4)
    whole.step = parts.step = 3
    losses = whole(chains)
    parts.max_bytes = planned(whole) // 4
    assert_close(parts(chains), losses)
    model = module_of(parts)
    for key, chain in enumerate(chains):
        with ab.randomness(seed=5, step=3, key=key):
            np.testing.assert_allclose(model.loss(chain), losses[key], rtol=1e-12)
    assert not np.allclose([model.eval().loss(chain) for chain in chains], losses)


def test_instances_are_recorded_once() -> None:
    whole, parts = pair(lambda m: m.loss)
    chains = draw_chains(16, seed=6)
    model = module_of(parts)
    whole.value_and_grad(chains)
    parts.max_bytes = planned(whole) // 5
    parts.value_and_grad(iter(chains))
    assert_within(parts, whole)
    assert model.calls == 2 * len(chains)


def test_as_many_parts_as_needed() -> None:
    """Eight equal chains, with room for 8, 7, 5, 3 or 1."""
    whole, parts = pair(lambda m: m.loss)
    chains = [[1, 2, 3, 4]] * 8
    expected = {8: 1, 7: 2, 5: 2, 3: 3, 1: 8}
    for room, n_parts in expected.items():
        whole.value_and_grad(chains[:room])
        parts.max_bytes = planned(whole)
        parts.value_and_grad(chains)
        assert parts.last is not None
        assert parts.last.parts == n_parts


@pytest.mark.parametrize("start", range(3))
def test_runs_are_cut_by_nodes_and_none_is_empty(start: int) -> None:
    for seed in range(start, 12, 3):
        rng = np.random.default_rng(seed)
        types = NamedTypes(("a",))
        sizes = (rng.pareto(1.0, size=rng.integers(2, 30)) * rng.integers(0, 2, 1)).astype(int) % 500
        graphs = [make_graph(types, [0] * size, []) for size in sizes]
        for n_runs in range(2, 12):
            runs = cut(graphs, n_runs)
            assert 2 <= len(runs) <= n_runs
            assert [] not in runs
            assert [graph for run in runs for graph in run] == graphs
            weights = [sum(graph.n_nodes + 1 for graph in run) for run in runs]
            assert max(weights) <= sum(weights) / n_runs + max(sizes) + 1


@pytest.mark.slow
@pytest.mark.parametrize("start", range(4))
def test_random_programs_in_parts(start: int) -> None:
    for seed in range(start, 8, 4):
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=True).astype("float64")
        instances = draw_instances(rng, model, n=12)
        rewrites = PASSES if seed % 2 else ("forward", "dead")
        whole, parts = (ab.batched(model.loss, backend=watched(), rewrites=rewrites) for _ in range(2))
        value, grads = whole.value_and_grad(instances)
        grads = {name: np.array(gradient) for name, gradient in grads.items()}
        sizes = []
        for instance in instances:
            whole.value_and_grad([instance])
            sizes.append(planned(whole))
        whole.value_and_grad(instances)
        parts.max_bytes = max(sizes)
        found, found_grads = parts.value_and_grad(instances)
        np.testing.assert_allclose(found, value, rtol=1e-12)
        for name, gradient in grads.items():
            scale = max(1.0, float(np.abs(gradient).max(initial=0)))
            np.testing.assert_allclose(np.asarray(found_grads[name]), gradient, rtol=1e-12, atol=1e-12 * scale)
        assert parts.last is not None
        assert max(ran_bytes(parts)) <= parts.max_bytes
        assert 2 <= parts.last.parts <= 12


def test_explain_says_what_was_planned_and_held_and_into_how_many_parts_it_was_cut() -> None:
    whole, parts = pair(lambda m: m.loss)
    chains = draw_chains(24, seed=7)
    report = whole.explain(chains, training=True)
    assert (report.parts, report.whole_bytes, report.max_bytes) == (1, report.planned_bytes, None)
    assert report.planned_bytes == report.buffer_bytes == ran_bytes(whole)[-1]
    assert f"memory of values: {report.planned_bytes} bytes planned, {report.planned_bytes} held\n" in str(report)
    assert "parts" not in str(report)
    inference = whole.explain(chains)
    assert inference.planned_bytes < inference.buffer_bytes == report.planned_bytes  # the buffer is kept
    parts.max_bytes = report.planned_bytes // 3
    split = parts.explain(chains, training=True)
    assert (split.instances, split.nodes, split.rewrites) == (report.instances, report.nodes, report.rewrites)
    assert {t.name: t.nodes for t in split.types} == {t.name: t.nodes for t in report.types}
    assert sum(t.batches for t in split.types) == split.batches > report.batches
    assert report.lower_bound < split.lower_bound <= split.compacted <= split.batches
    assert split.planned_bytes <= split.buffer_bytes <= parts.max_bytes
    assert (
        f"run in {split.parts} parts, one after the other: the whole mini-batch needs {report.planned_bytes} bytes, "
        f"and max_bytes is {parts.max_bytes}\n"
    ) in str(split)
    assert split.picture.schedule.n_nodes == report.nodes
    assert "step ran one node at a time: its nodes wait for each other, or run in different parts" in str(
        ab.batched(Chains().loss, max_bytes=200).explain([[1, 2]] * 4)
    )
    parts.value_and_grad(chains)
    assert parts.last is not None
    assert (parts.last.parts, parts.last.batches, parts.last.launches) == (split.parts, split.batches, split.launches)
    assert (parts.last.copied_bytes, parts.last.planned_bytes) == (split.copied_bytes, split.planned_bytes)


@pytest.mark.parametrize("training", [True, False])
def test_an_instance_that_does_not_fit_alone_is_refused(training: bool) -> None:
    whole, parts = pair(lambda m: m.loss)
    chains = [[1], [2, 3], [1] * 10, [4]]
    run = [loss.value_and_grad if training else loss for loss in (whole, parts)]
    run[0](chains[2:3])
    needed, purpose = planned(whole), "train on" if training else "run"
    parts.max_bytes = needed - 1
    text = f"cannot {purpose} instance 2: its 22 nodes need {needed} bytes, but max_bytes is {needed - 1}"
    for batch in (chains, parts.record_all(chains)):
        with refused(ab.PlanError, text):
            run[1](batch)
    with refused(ab.PlanError, text.replace("instance 2", "instance 0")):
        run[1](chains[2:3])
    assert ran_bytes(parts) == []
    parts.max_bytes = needed
    run[1](chains)
    assert (parts.step, planned(parts)) == (int(training), needed)


@pytest.mark.parametrize("training", [True, False])
def test_of_several_that_do_not_fit_the_largest_is_named(training: bool) -> None:
    """Instances 1, 2, 3 and 5 do not fit; 3 is the largest, with a read and a step for each of its 12 words."""
    whole, parts = pair(lambda m: m.loss)
    chains = [[1], [2] * 8, [3] * 10, [4] * 12, [5, 6], [7] * 10]
    run = [loss.value_and_grad if training else loss for loss in (whole, parts)]
    run[0](chains[4:5])
    parts.max_bytes = planned(whole)
    run[0](chains[3:4])
    purpose = "train on" if training else "run"
    text = f"cannot {purpose} instance 3, the largest of 4 that need too much: its 26 nodes need {planned(whole)} bytes"
    with refused(ab.PlanError, text):
        run[1](chains)
    assert ran_bytes(parts) == []


def row_scratch(plan: Plan, options: Options) -> int:
    """Return the bytes of a hundred elements for each row of the largest batch."""
    return 100 * int(np.diff(plan.schedule.batch_ptr).max()) * options.dtype.itemsize


def test_scratch_memory_counts() -> None:
    """The reads of all words are one batch. It has fewer rows in a part, which therefore needs less."""
    model = Chains().astype("float64")
    whole, parts = (ab.batched(model.loss, backend=backend) for backend in (watched(), watched(row_scratch)))
    chains = [[1, 2, 3]] * 24
    losses = whole(chains)
    assert_close(parts(chains), losses)
    assert planned(parts) == planned(whole) + 8 * 100 * 72
    parts.max_bytes = planned(parts) * 2 // 3
    assert_close(parts(chains), losses)
    assert parts.last is not None
    assert parts.last.parts == 2
    values = max(ran_bytes(parts)[-2:])
    assert planned(parts) == values + 8 * 100 * 36 <= parts.max_bytes


@pytest.mark.parametrize("training", [True, False])
def test_the_cpu_backend_holds_no_more_than_it_may(training: bool) -> None:
    """Values and scratch memory, including rows of hoisted steps, under limits that fall and rise again."""
    model, instances = draw_lattices_case(0, 16, 4)
    whole, parts = (ab.batched(model.loss, backend=Cpu(poison=True)) for _ in range(2))
    losses = (whole.value_and_grad if training else whole)(instances)
    (part,) = whole.prepare(instances, training).parts
    assert part.executable.tables.kept_size > 0
    for share in (1.0, 0.4, 0.7, 0.2, 1.0):
        parts.max_bytes = int(share * planned(whole))
        found = (parts.value_and_grad if training else parts)(instances)
        assert_close(found[0] if training else found, losses[0] if training else losses)
        assert parts.last is not None
        assert planned(parts) <= parts.last.buffer_bytes <= parts.max_bytes
        memory = parts.backend.pool.take()  # type: ignore[attr-defined]
        held = sum(array.nbytes for array in (memory.buffer, memory.scratch, memory.kept))
        parts.backend.pool.give_back(memory, held)  # type: ignore[attr-defined]
        assert held <= parts.last.buffer_bytes
        assert 1 / share <= parts.last.parts <= 4 / share


def test_what_is_no_number_of_bytes_is_refused() -> None:
    wrong: list[Any] = [0, -1, 1e9, "2GB", True]
    for max_bytes in wrong:
        with refused(ab.PlanError, "max_bytes must be a positive int", f"got {max_bytes!r}."):
            ab.batched(Chains().loss, max_bytes=max_bytes)


def test_no_instances_fit_any_budget() -> None:
    loss = ab.batched(Chains().loss, max_bytes=1)
    assert loss([]).shape == (0,)
    with refused(ab.DataError, "value_and_grad must be given at least one instance"):
        loss.value_and_grad([])


def test_graphs_of_several_instances_are_cut_between_these() -> None:
    whole, parts = pair(lambda m: m.loss)
    chains = draw_chains(12, seed=8)
    losses = whole(chains)
    graph = parts.merged(chains)
    assert isinstance(graph, Graph)
    parts.max_bytes = planned(whole) // 3
    assert_close(parts([graph]), losses)
    assert_within(parts, whole)


@pytest.mark.slow
def test_the_buffer_grows_seldom_and_holds_what_is_said() -> None:
    """From 1 to 100 chains, one more each time, it grows at most once per 25%; then, in any order, never."""
    loss = ab.batched(Chains().loss, backend=Reference())
    graphs = loss.record_all([[1]] * 100)
    sizes, grown = [], 0
    for n in range(1, 101):
        loss.value_and_grad(graphs[:n])
        assert loss.last is not None
        grown += loss.last.allocations
        sizes.append(loss.last.planned_bytes)
        assert sizes[-1] <= loss.last.buffer_bytes <= 1.25 * sizes[-1]
    assert grown <= 1 + math.ceil(math.log(sizes[-1] / sizes[0], 1.25))
    assert grown >= math.log(sizes[-1] / sizes[0], 1.25) / 2
    assert loss.last is not None
    held = loss.last.buffer_bytes
    for n in np.random.default_rng(0).integers(1, 101, size=20):
        loss.value_and_grad(graphs[:n])
        assert loss.last is not None
        assert (loss.last.allocations, loss.last.buffer_bytes) == (0, held)


def test_the_old_buffer_is_gone_before_there_is_a_new_one() -> None:
    memory, floats = Memory(HOST), np.dtype(np.float32)
    tracemalloc.start()
    try:
        for size in (10**6, 11 * 10**5):
            memory.reserve(size, floats, None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory.n_bytes == 4 * 10**6 * 5 // 4
    assert peak < 1.01 * memory.n_bytes


def test_the_buffer_does_not_grow_beyond_the_budget_and_shrinks_to_it() -> None:
    loss = ab.batched(Chains().loss, backend=Reference())
    graphs = loss.record_all([[1, 2, 3]] * 40)

    def run(n: int, max_bytes: int | None) -> tuple[int, int, int]:
        loss.max_bytes = max_bytes
        loss(graphs[:n])
        assert loss.last is not None
        return loss.last.parts, loss.last.allocations, loss.last.buffer_bytes

    sizes = {n: run(n, None) and planned(loss) for n in (40, 30, 10, 20)}
    limit = sizes[40] - 4
    assert run(20, limit) == (1, 1, limit)  # more is held: replaced, as large as allowed
    assert run(30, limit) == (1, 0, limit)
    assert run(40, limit) == (2, 0, limit)
    assert run(40, None) == (1, 1, max(sizes[40], limit // 4 * 5 // 4 * 4))
    assert run(10, sizes[10]) == (1, 1, sizes[10])
    assert run(40, sizes[10])[0] >= 4


def test_a_buffer_of_another_dtype_is_as_large_as_needed() -> None:
    model = Chains()
    loss = ab.batched(model.loss, backend=Reference())
    loss([[1] * 20] * 20)
    model.astype("float64")
    loss([[1, 2]])
    assert loss.last is not None
    assert (loss.last.allocations, loss.last.buffer_bytes) == (1, loss.last.planned_bytes)
