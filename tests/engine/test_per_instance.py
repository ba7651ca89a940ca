"""Test that per-instance gradients, and sums of clipped ones, equal those of a loop over instances."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
import autobatch.torch as abt
import per_instance
import ragged
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.backends.segments import AT_ONCE
from autobatch.devices.device import Device
from autobatch.engine.each_instance import refuse_shared
from autobatch.graph.rewrite import rewrite
from helpers.checkers.refusals import refused
from helpers.fakes.counting_backend import Counting
from helpers.models.every_model import MODELS
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.processes import run_processes
from helpers.runs.ways import each

BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": lambda: Reference(poison=True),
    "cpu": lambda: Cpu(poison=True),
    "counting": Counting,
}
DIM, N_WORDS = 3, 7
TOLERANCE = 1e-10


class Net(ab.Module):
    """A tree network whose parameters are read in every way that affects gradients."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        draw = rng.standard_normal
        self.words = ab.Parameter(draw((N_WORDS, DIM)))
        self.tied = ab.Parameter(draw((N_WORDS, DIM)))
        self.operators = ab.Parameter(draw((N_WORDS, DIM, DIM)))
        self.left, self.right, self.twice = (ab.Parameter(draw((DIM, DIM))) for _ in range(3))
        self.bias, self.scale = ab.Parameter(draw(DIM)), ab.Parameter(0.7)
        self.outside = ab.Parameter(draw((2, DIM)))
        self.frozen = ab.Parameter(draw((DIM, DIM)), trainable=False)
        self.unused = ab.Parameter(draw((2, 2)))
        self.dropout = ab.Dropout(0.3)
        self.astype("float64")

    @ab.cell
    def leaf(self, word: int) -> Any:
        """Multiply a row of a table by a matrix from another table."""
        return ab.tanh(ab.lookup(self.operators, word) @ ab.lookup(self.words, word) + self.bias)

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        """Use matrices that planning makes adjacent, and one that is also read transposed."""
        gate = ab.sigmoid(self.left @ left + self.right @ right + self.bias)
        return self.dropout(gate * ab.tanh(self.twice @ left) + (1.0 - gate) * (right @ self.twice))

    @ab.cell
    def several(self, children: Any) -> Any:
        """Multiply any number of children by a matrix that another cell also reads."""
        return ab.sum_n([self.left @ child for child in children], shape=(DIM,)) * self.scale

    @ab.cell
    def choose(self, state: Any, word: int) -> Any:
        """Use a table in a product and a lookup, and a function of all rows of another table."""
        logits = self.tied @ (self.frozen @ state) + ab.softmax(self.words, axis=0) @ state
        return ab.cross_entropy(logits + ab.lookup(self.tied, word)[0], word)

    @ab.cell
    def constant(self, word: int) -> Any:
        """Multiply constants shared by all nodes, and a table by one of its own rows."""
        products = ab.sum(ab.tanh(self.left @ np.arange(1.0, DIM + 1))) + ab.sum((self.twice @ np.eye(DIM, 2)) ** 2.0)
        return (products + ab.sum(self.tied @ ab.lookup(self.tied, 3)) + ab.sum(self.scale * self.bias)) * word

    def by_constants(self, words: Any) -> Any:
        return ab.sum_n([self.constant(word) for word in words])

    def state(self, tree: Any) -> Any:
        if isinstance(tree, int):
            return self.leaf(tree)
        if isinstance(tree, list):
            return self.several([self.state(child) for child in tree])
        return self.merge(self.state(tree[0]), self.state(tree[1]))

    def loss(self, tree: Any) -> Any:
        state = self.state(tree)
        return self.choose(state, 1) + ab.sum(self.outside @ state) * self.scale

    def with_state(self, tree: Any) -> Any:
        state = self.state(tree)
        return self.choose(state, 1), state

    async def waiting(self, tree: Any) -> Any:
        state = self.state(tree)
        while await ab.value(ab.sum(state)) > 0.0:
            state = self.merge(state, self.leaf(0)) - 0.4
        return self.choose(state, 2)


TREES: list[Any] = [
    1, (2, 2), [(1, 3), 4, 4], ((1, 2), (3, (4, 5))), [], (6, [1]), (1, 2), [[1, 2], [2]], ((1, 2), (3, (4, 6))),
]  # fmt: skip


def arrays(grads: Any) -> dict[str, Any]:
    return {name: np.array(np.asarray(gradient)) for name, gradient in grads.items()}


def by_loop(run: Any, batch: Sequence[Any], step: int = 0) -> tuple[Any, dict[str, Any]]:
    """Return losses and gradients (B, *shape), one instance at a time; each is the first instance of its call."""
    found = []
    for instance in batch:
        run.step = step
        value, grads = run.value_and_grad([instance], reduce="sum")
        found.append((value, arrays(grads)))
    return np.array([v for v, _ in found]), {name: np.stack([g[name] for _, g in found]) for name in found[0][1]}


def norms_of(grads: dict[str, Any]) -> Any:
    return np.sqrt(sum((g.reshape(len(g), -1) ** 2).sum(1) for g in grads.values()))


def clipped(grads: dict[str, Any], weights: Any, max_norm: float) -> dict[str, Any]:
    factors = weights * max_norm / np.maximum(norms_of(grads), max_norm)
    return {name: np.tensordot(factors, g, 1) for name, g in grads.items()}


def check_equal(found: Any, wanted: dict[str, Any], tolerance: float = TOLERANCE) -> None:
    assert list(found) == list(wanted)
    for name, gradient in wanted.items():
        assert found[name].shape == gradient.shape, name
        error = np.abs(np.asarray(found[name]) - gradient).max(initial=0.0)
        assert error <= tolerance * max(1.0, np.abs(gradient).max(initial=0.0)), (name, error)


def check_both(function: Any, batch: Sequence[Any], wanted: Any = None, **options: Any) -> Any:
    """Compare per-instance gradients, and weighted clipped sums, with the loop."""
    losses, grads = by_loop(ab.batched(function, backend="reference"), batch) if wanted is None else wanted
    run = ab.batched(function, **options)
    value, found = run.value_and_grad(batch, reduce="none")
    np.testing.assert_allclose(value, losses, rtol=1e-10, atol=1e-12)
    check_equal(found, grads)
    weights, max_norm = np.linspace(-1.0, 2.0, len(batch)), float(np.median(norms_of(grads))) or 1.0
    weighted, sums = run.value_and_grad(batch, weights, clip="per-instance", max_norm=max_norm)
    np.testing.assert_allclose(weighted, weights @ losses, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(sums.norms, norms_of(grads), rtol=1e-8, atol=1e-12)
    check_equal(sums, clipped(grads, weights, max_norm))
    return run


def without_dropout() -> Net:
    model = Net()
    model.eval()
    return model


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@each("options", [{}, {"max_bytes": 26_000}, {"rewrites": "all"}, {"policy": "unbatched"}, {"plan_cache": 0}])
def test_they_equal_a_loop(backend: str, options: dict[str, Any]) -> None:
    run = check_both(without_dropout().loss, TREES, backend=BACKENDS[backend](), **options)
    assert (run.last.parts > 1) == ("max_bytes" in options)


def test_on_a_device_that_is_none() -> None:
    """The counting device accepts only functions that CuPy has."""
    check_both(without_dropout().loss, TREES, backend=Counting())


def test_on_a_device(device: Device) -> None:
    """With parameters on the host, and on the device, where the gradients are then."""
    model, wanted = without_dropout(), by_loop(ab.batched(without_dropout().loss, backend="reference"), TREES)
    check_both(model.loss, TREES, wanted, backend="cuda")
    model.to("cuda")
    run = ab.batched(model.loss, backend="cuda")
    _, found = run.value_and_grad(TREES, reduce="none", only=["left", "words"])
    assert all(model.left.store.adopt(gradient) is gradient for gradient in found.values())
    check_equal({k: model.left.store.get(g) for k, g in found.items()}, {k: wanted[1][k] for k in ("left", "words")})
    value, sums = run.value_and_grad(TREES, "sum", clip="per-instance", max_norm=2.0)
    assert abs(float(value) - wanted[0].sum()) < 1e-9
    given = {k: np.asarray(g) if isinstance(g, ab.Rows) else model.left.store.get(g) for k, g in sums.items()}
    check_equal(given, clipped(wanted[1], np.ones(len(TREES)), 2.0))


def test_recorded_graphs_give_the_same_and_find_their_plans() -> None:
    run = ab.batched(without_dropout().loss, backend="reference")
    wanted = by_loop(run, TREES)
    graphs = run.record_all(TREES)
    for is_known in (False, True):
        check_equal(run.value_and_grad(graphs, reduce="none")[1], wanted[1])
        assert run.last is not None
        assert run.last.plan_hit is is_known
    _, sums = run.value_and_grad(graphs, reduce="sum", clip="per-instance", max_norm=3.0)
    check_equal(sums, clipped(wanted[1], np.ones(len(TREES)), 3.0))
    value, grads = run.value_and_grad(graphs, reduce="sum")
    check_equal(grads, {name: g.sum(0) for name, g in wanted[1].items()})
    assert abs(value - wanted[0].sum()) < 1e-9


@pytest.mark.parametrize("way", [{"reduce": "none"}, {"reduce": "sum", "clip": "per-instance", "max_norm": 1e9}])
def test_dropout_draws_what_it_draws_in_a_sum(way: dict[str, Any]) -> None:
    model = Net()
    whole, parts = ab.batched(model.loss), ab.batched(model.loss)
    value, grads = whole.value_and_grad(TREES, reduce="sum")
    found, each_one = parts.value_and_grad(TREES, **way)
    assert whole.step == parts.step == 1
    np.testing.assert_allclose(np.sum(found), value, rtol=1e-12)
    summed = {k: g.sum(0) if way["reduce"] == "none" else np.asarray(g) for k, g in each_one.items()}
    check_equal(summed, arrays(grads))
    assert not np.allclose(found, ab.batched(model.eval().loss).value_and_grad(TREES, **way)[0])


def test_numbers_that_programs_await_are_constants() -> None:
    check_both(without_dropout().waiting, TREES)


def test_values_beside_the_loss_come_too_and_have_no_gradient() -> None:
    model = without_dropout()
    losses, grads = by_loop(ab.batched(lambda tree: model.with_state(tree)[0], module=model), TREES)
    run = ab.batched(model.with_state)
    states = np.stack([ab.batched(model.state)([tree])[0] for tree in TREES])
    (value, aux), found = run.value_and_grad(TREES, reduce="none", has_aux=True)
    np.testing.assert_allclose(value, losses, rtol=1e-10)
    np.testing.assert_allclose(aux, states, rtol=1e-10)
    check_equal(found, grads)
    (value, aux), sums = run.value_and_grad(TREES, has_aux=True, clip="per-instance", max_norm=2.0)
    np.testing.assert_allclose(value, losses.mean(), rtol=1e-10)
    np.testing.assert_allclose(aux, states, rtol=1e-10)
    check_equal(sums, clipped(grads, np.full(len(TREES), 1 / len(TREES)), 2.0))


def test_nodes_that_no_loss_depends_on_add_nothing() -> None:
    """Their rows hold undefined gradients, possibly NaN."""
    model = without_dropout()

    def pair(tree: Any) -> Any:
        return model.choose(model.state(tree), 1), ab.log(ab.sum(model.left @ np.zeros(DIM)))

    wanted = by_loop(ab.batched(lambda tree: pair(tree)[0], module=model), TREES)
    for backend in ("reference", "cpu"):
        run = ab.batched(pair, module=model, backend=BACKENDS[backend]())
        check_equal(run.value_and_grad(TREES, reduce="none", has_aux=True)[1], wanted[1])
        _, sums = run.value_and_grad(TREES, "sum", has_aux=True, clip="per-instance", max_norm=2.0)
        check_equal(sums, clipped(wanted[1], np.ones(len(TREES)), 2.0))


def test_gradients_of_inputs_are_those_of_the_own_loss() -> None:
    model = without_dropout()
    rng = np.random.default_rng(0)
    batch = [[rng.standard_normal(DIM) for _ in range(n)] for n in (1, 3, 2)]

    def loss(states: Any) -> Any:
        return model.choose(model.several(states), 1)

    run = ab.batched(loss, module=model)
    value: Any
    value, grads, inputs = run.value_and_grad(batch, reduce="none", inputs=True)
    _, summed, wanted = run.value_and_grad(batch, reduce="sum", inputs=True)
    assert value.shape == (3,)
    check_equal({name: g.sum(0) for name, g in grads.items()}, arrays(summed))
    for one, other in zip(inputs, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_parameters_by_name() -> None:
    run = ab.batched(without_dropout().loss)
    _, grads = by_loop(run, TREES)
    only = ["words", "left", "unused"]
    _, found = run.value_and_grad(TREES, reduce="none", only=only)
    check_equal(found, {name: grads[name] for name in only})
    _, sums = run.value_and_grad(TREES, reduce="sum", clip="per-instance", max_norm=1.0, only=only)
    check_equal(sums, clipped({name: grads[name] for name in only}, np.ones(len(TREES)), 1.0))
    assert run.value_and_grad(TREES, reduce="none", only=[])[1] == {}


def test_clipped_sums_are_added_to_gradients() -> None:
    run = ab.batched(without_dropout().loss, max_bytes=26_000)
    _, grads = by_loop(run, TREES)
    out: Any = {name: np.full(g.shape[1:], 2.0) for name, g in grads.items()}
    _, found = run.value_and_grad(TREES, "mean", out=out, clip="per-instance", max_norm=2.0)
    assert found is out
    wanted = clipped(grads, np.full(len(TREES), 1 / len(TREES)), 2.0)
    check_equal(out, {name: 2.0 + g for name, g in wanted.items()})


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_products_of_shorter_numbers_are_rounded_alike(backend: str) -> None:
    model = without_dropout().astype("float32")
    run = ab.batched(model.loss, backend=BACKENDS[backend](), precision="bf16")
    losses, grads = by_loop(run, TREES)
    value, found = run.value_and_grad(TREES, reduce="none")
    np.testing.assert_allclose(value, losses, rtol=1e-4)
    check_equal(found, grads, 1e-4)
    _, sums = run.value_and_grad(TREES, "sum", clip="per-instance", max_norm=2.0)
    np.testing.assert_allclose(sums.norms, norms_of(grads), rtol=1e-3)
    check_equal(sums, clipped(grads, np.ones(len(TREES)), 2.0), 2e-2)  # scaled values are rounded again


class Empty(ab.Module):
    """A matrix without rows and one without columns, next to an ordinary one."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.rows, self.columns = ab.Parameter(np.zeros((0, 3))), ab.Parameter(np.zeros((2, 0)))
        self.matrix = ab.Parameter(rng.standard_normal((2, 3)))

    @ab.cell
    def multiply(self, x: Any, nothing: Any) -> Any:
        products = ab.matmul(self.rows, x), ab.matmul(self.columns, nothing), ab.matmul(self.matrix, x)
        return ab.sum_n([ab.sum(product) for product in products])

    def loss(self, x: Any) -> Any:
        return self.multiply(x, np.zeros(0))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_matrices_without_numbers(backend: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((3, 3))
    check_both(Empty().astype("float64").loss, list(vectors), backend=backend)


def test_operands_that_all_nodes_share() -> None:
    check_both(without_dropout().by_constants, [[1], [2, 3]])


class ByConstantIds(ab.Module):
    """A table whose rows are chosen by constant ids, whose gradients are sums over the rows of an instance."""

    def __init__(self) -> None:
        self.table = ab.Parameter(np.random.default_rng(0).standard_normal((N_WORDS, DIM)))
        self.astype("float64")

    @ab.cell
    def one(self, x: float) -> Any:
        return ab.sum(ab.lookup(self.table, 2) ** 2.0) * x

    @ab.cell
    def several(self, x: float, word: int) -> Any:
        rows = ab.lookup(self.table, np.array([1, 4, 1])) ** 2.0
        return ab.sum(rows) * x + ab.sum(ab.lookup(self.table, word) ** 3.0)

    def loss(self, instance: Any) -> Any:
        ones, several = instance
        return ab.sum_n([*map(self.one, ones), *(self.several(*pair) for pair in several)])


def test_constant_ids() -> None:
    batch = [([0.5], []), ([], [(2.0, 1), (-1.0, 6)]), ([1.0, 3.0, -2.0], [(0.3, 2)]), ([], [(0.7, 4)] * 5)]
    for backend in ("reference", "cpu"):
        check_both(ByConstantIds().loss, batch, backend=BACKENDS[backend]())
    check_both(ByConstantIds().loss, batch, backend=Counting())


def test_rows_of_any_length() -> None:
    rng = np.random.default_rng(0)
    model = ragged.Reader(20, 4, rng).astype("float64")
    batch = [ragged.Sentence(rng.integers(0, 20, n), n % 3) for n in (1, 5, 5, 2, 9)]
    check_both(model.loss, batch)


class Chain(ab.Module):
    """An LSTM over frames, followed by a classifier."""

    def __init__(self, dim: int) -> None:
        rng = np.random.default_rng(0)
        self.lstm, self.output = ab.LSTMCell(dim, dim, rng=rng), ab.Linear(dim, 2, rng=rng)
        self.dim = dim
        self.astype("float64")

    @ab.cell
    def step(self, frame: Any, state: Any) -> Any:
        return self.lstm(frame, state)

    @ab.cell
    def score(self, h: Any, label: int) -> Any:
        return ab.cross_entropy(self.output(h), label)

    def loss(self, chain: Any) -> Any:
        state = (np.zeros(self.dim), np.zeros(self.dim))
        for frame in chain[0]:
            state = self.step(frame, state)
        return self.score(state[0], chain[1])


@pytest.mark.parametrize("length", [2, 20])
def test_they_equal_those_of_torch(length: int) -> None:
    """Compared with `torch.func`, for a length that uses products and one that uses products of rows."""
    model, rng = Chain(5), np.random.default_rng(1)
    frames, labels = rng.standard_normal((6, length, 5)), rng.integers(0, 2, 6)
    weights = {name: torch.tensor(array) for name, array in model.state_dict().items()}

    def loss(w: Any, xs: Any, label: Any) -> Any:
        h = c = torch.zeros(5, dtype=torch.float64)
        for x in xs:
            gates = w["lstm.weight_ih"] @ x + w["lstm.bias_ih"] + w["lstm.weight_hh"] @ h + w["lstm.bias_hh"]
            i, f, g, o = gates.reshape(4, 5)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return torch.nn.functional.cross_entropy(w["output.weight"] @ h + w["output.bias"], label)

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    wanted = {k: g.numpy() for k, g in gradients(weights, torch.tensor(frames), torch.tensor(labels)).items()}
    run = ab.batched(model.loss)
    batch = [*zip(frames, labels.tolist(), strict=True)]
    _, found = run.value_and_grad(batch, reduce="none")
    check_equal(found, wanted)
    _, sums = run.value_and_grad(batch, clip="per-instance", max_norm=0.5)
    check_equal(sums, clipped(wanted, np.full(6, 1 / 6), 0.5))


@pytest.mark.cases(6, 60)
@pytest.mark.parametrize("name", MODELS)
def test_every_model(name: str) -> None:
    model, instances = MODELS[name]()
    model = model.astype("float64")
    model.eval()
    check_both(model.loss, instances)


@pytest.mark.cases(3, 40)
@pytest.mark.parametrize("seed", range(200))
def test_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    batch = draw_instances(rng, model, 5)
    model.eval()
    run = check_both(model.loss, batch)
    run.max_bytes = max(run.last.planned_bytes * 3 // 4, 1)
    try:
        _, sums = run.value_and_grad(batch, "sum", clip="per-instance")
    except ab.PlanError:
        pytest.skip("the largest instance takes most of the memory of the mini-batch")
    wanted = {name: np.asarray(gradient) for name, gradient in sums.items()}
    run.max_bytes = None
    check_equal(run.value_and_grad(batch, "sum", clip="per-instance")[1], arrays(wanted))


class Cancelling(ab.Module):
    """A matrix whose gradient is a sum of products, which may cancel: (a + b - c) x'."""

    def __init__(self) -> None:
        self.w = ab.Parameter(np.random.default_rng(0).standard_normal((48, 48)))

    @ab.cell
    def product(self, a: Any, x: Any) -> Any:
        return ab.dot(a, self.w @ x)

    def loss(self, instance: Any) -> Any:
        x, a, b, c = instance
        return self.product(a, x) + self.product(b, x) - self.product(c, x)


@each("dtype, apart", [("float32", 0.0), ("float32", 1e-3), ("float64", 0.0), ("float64", 1e-8)])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_norms_of_gradients_whose_terms_cancel(backend: str, dtype: str, apart: float) -> None:
    rng, batch = np.random.default_rng(1), []
    for _ in range(20):
        x, a, b, e = rng.standard_normal((4, 48)).astype(dtype)
        batch.append((x, a, b, a + b + np.asarray(apart, dtype) * e))
    run = ab.batched(Cancelling().astype(dtype).loss, backend=backend)
    wanted = norms_of(arrays(run.value_and_grad(batch, reduce="none")[1]))
    for instance, norm in zip(batch, wanted, strict=True):
        _, sums = run.value_and_grad([instance], "sum", clip="per-instance", max_norm=1e-3)
        assert np.linalg.norm(sums["w"]) <= 1e-3 * (1.0 + 1e-3)
        assert abs(sums.norms[0] - norm) <= 1e-3 * norm + 1e4 * np.finfo(dtype).eps * (apart == 0.0)


def test_gradients_whose_squares_overflow_are_clipped() -> None:
    model: Any = ab.Module()
    model.w, model.bias, model.table = (ab.Parameter(np.ones(shape)) for shape in ((48, 48), (48,), (3, 48)))

    @ab.cell
    def loss(x: Any, k: int) -> Any:
        return ab.sum((model.w @ x + model.bias + ab.lookup(model.table, k)) * x)

    run = ab.batched(lambda pair: loss(*pair), module=model)
    batch = [(np.full(48, 1e11), 0), (np.full(48, 1.0), 1), (np.full(48, 1e17), 2)]
    wanted = [np.sqrt(48.0**2 * x[0] ** 4 + 2 * 48 * x[0] ** 2) for x, _ in batch]
    _, sums = run.value_and_grad(batch, "sum", clip="per-instance", max_norm=1.0)
    np.testing.assert_allclose(sums.norms, wanted, rtol=1e-5)

    @ab.cell
    def large(k: int) -> Any:
        return 1e25 * (ab.sum(model.bias) + ab.sum(ab.lookup(model.table, k)))

    run = ab.batched(large, module=model)
    norms = run.value_and_grad([0, 1], "sum", clip="per-instance", max_norm=1.0)[1].norms
    np.testing.assert_allclose(norms, 1e25 * np.sqrt(96), rtol=1e-6)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_float64_gradients_whose_squares_overflow_are_clipped(backend: str) -> None:
    model: Any = ab.Module()
    model.w, model.bias, model.table = (ab.Parameter(np.ones(shape)) for shape in ((48, 48), (48,), (3, 48)))
    model.astype("float64")

    @ab.cell
    def loss(x: Any, k: int) -> Any:
        return ab.sum(model.w @ x * 1e-70) + 1e170 * (ab.sum(model.bias) * 1e-5 + ab.sum(ab.lookup(model.table, k)))

    run = ab.batched(lambda pair: loss(*pair), module=model, backend=backend)
    batch = [(np.full(48, 1.0), 0), (np.full(48, 1e250), 1), (np.full(48, 1e241), 2)]
    wanted = [np.hypot(48e-70 * x[0], 1e170 * np.sqrt(48)) for x, _ in batch]
    _, sums = run.value_and_grad(batch, "sum", clip="per-instance", max_norm=1.0)
    np.testing.assert_allclose(sums.norms, wanted, rtol=1e-9)
    assert np.hypot.reduce([np.linalg.norm(np.asarray(x)) for x in sums.values()]) <= 3.0


def test_clipping_holds_no_gradient_of_all_instances() -> None:
    """The peak does not grow with the number of instances, because rows of values are planned and not traced here."""
    model, rng = Chain(48), np.random.default_rng(1)
    model = model.astype("float32")
    batch = [(rng.standard_normal((5, 48)), 1) for _ in range(64)]
    run = ab.batched(model.loss, backend="reference")
    size = 4 * sum(p.data.size for p in model.parameters().values())
    peaks, ways = {}, dict[str, Any](sum={}, clipped={"clip": "per-instance"}, each={"reduce": "none"})
    for name, way in ways.items():
        run.value_and_grad(batch, **way)
        tracemalloc.start()
        run.value_and_grad(batch, **way)
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks["each"] > len(batch) * size
    assert peaks["clipped"] - peaks["sum"] < 3 * 4 * AT_ONCE < len(batch) * size / 1.3


def test_memory_counts() -> None:
    model, batch = without_dropout(), TREES * 4
    plain, apart = ab.batched(model.loss), ab.batched(model.loss)
    plain.value_and_grad(batch)
    _, grads = apart.value_and_grad(batch, reduce="none")
    assert plain.last is not None
    assert apart.last is not None
    results = sum(g.nbytes for g in grads.values())
    assert apart.last.planned_bytes >= plain.last.planned_bytes + results
    run = ab.batched(model.loss, max_bytes=results + apart.last.planned_bytes // 4)
    check_equal(run.value_and_grad(batch, reduce="none")[1], arrays(grads))
    assert run.last is not None
    assert run.last.parts > 1
    run.max_bytes = results - 1
    says = f"cannot give gradients of {len(batch)} instances: the results alone take {results} bytes"
    with refused(ab.PlanError, says, f"max_bytes is {results - 1}"):
        run.value_and_grad(batch, reduce="none")
    run.max_bytes = results + 1
    with refused(ab.PlanError, "cannot train on instance"):
        run.value_and_grad(batch, reduce="none")


@each(
    "way, says",
    [
        ({"only": ["left"]}, "only= requires reduce='none' or clip="),
        ({"reduce": "none", "only": "left"}, "only of value_and_grad must be a list of strs or None, got 'left'"),
        ({"reduce": "none", "only": ["lef"]}, "got 'lef'"),
        ({"reduce": "none", "only": ["frozen"]}, "got 'frozen'"),
        ({"reduce": "none", "out": {}}, "out= requires a sum"),
        ({"reduce": "none", "clip": "per-instance"}, "clip= requires a sum"),
        ({"clip": "all"}, "clip= must be 'per-instance' or None, got 'all'"),
        ({"max_norm": 2.0}, "max_norm=2.0 requires clip='per-instance'"),
        ({"clip": "per-instance", "max_norm": 0.0}, "max_norm= must be a finite number above 0, got 0.0"),
        ({"clip": "per-instance", "max_norm": np.nan}, "max_norm of value_and_grad must be a number, got nan"),
        ({"clip": "per-instance", "inputs": True}, "inputs=True requires reduce='none' or no clip="),
        ({"clip": "per-instance", "only": ["left"], "out": {}}, "out= requires all trainable parameters"),
    ],
)
def test_what_makes_no_sense_is_refused(way: dict[str, Any], says: str) -> None:
    run = ab.batched(without_dropout().loss)
    with refused(ab.DataError, says):
        run.value_and_grad(TREES, **way)
    assert run.step == 0


def test_gradients_that_are_not_finite_are_not_clipped() -> None:
    model = without_dropout()
    run = ab.batched(lambda x: ab.sqrt(ab.sum(model.left @ x)), module=model)
    with refused(ab.NumericError, "gradient of instance 1", "norm must be finite, got "):
        run.value_and_grad([np.linalg.inv(model.left.data) @ np.ones(DIM), np.zeros(DIM)], clip="per-instance")


def in_a_group(rank: int, way: dict[str, Any]) -> Any:
    model = Net()
    run = ab.batched(model.loss)
    share = ([TREES[:5], TREES[5:]] if way.pop("all", True) else [TREES, []])[rank]
    with ab.distributed.group():
        value, grads = run.value_and_grad(share, **way)
    return value, arrays(grads), getattr(grads, "norms", None)


@pytest.mark.slow
def test_processes_clip_their_own_instances(tmp_path: Path) -> None:
    """Each process has gradients of its own instances only, with the draws of a single process."""
    run = ab.batched(Net().loss)
    for shares in (True, False):
        run.step = 0
        losses, grads = run.value_and_grad(TREES, reduce="none")
        first, second = run_processes(2, tmp_path, in_a_group, {"reduce": "none", "all": shares})
        np.testing.assert_allclose(np.concatenate([first[0], second[0]]), losses, rtol=1e-12)
        check_equal({k: np.concatenate([first[1][k], second[1][k]]) for k in grads}, arrays(grads))
        way: dict[str, Any] = {"clip": "per-instance", "max_norm": 2.0}
        run.step = 0
        value, sums = run.value_and_grad(TREES, **way)
        for found in run_processes(2, tmp_path, in_a_group, {**way, "all": shares}):
            np.testing.assert_allclose(found[0], value, rtol=1e-12)
            check_equal(found[1], arrays(sums))
    both = run_processes(2, tmp_path, in_a_group, {"reduce": "none", "only": ["left", "no"]})
    assert all("got 'no'" in one for one in both)


class Torch(torch.nn.Module):
    """A sum over rows after a cell."""

    def __init__(self, runs: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)
        self.take = abt.cell(self._take, runs=runs)
        self.double()

    def _take(self, x: Any) -> Any:
        return torch.tanh(self.linear(x)).sum()

    def loss(self, rows: Any) -> Any:
        return sum(self.take(row) for row in rows)


def draw_rows() -> list[Any]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(n, 4, generator=draw, dtype=torch.float64) for n in (1, 3, 2)]


@each("way", [{"reduce": "none"}, {"clip": "per-instance"}])
def test_a_cell_that_torch_runs_has_only_sums_over_instances(way: dict[str, Any]) -> None:
    model = Torch("torch")
    run = abt.batched(model.loss, module=model, backend="reference")
    with refused(ab.GraphError, "torch runs a cell of this function itself"):
        run.value_and_grad(draw_rows(), **way)


def test_modules_of_torch() -> None:
    model, batch = Torch("autobatch"), draw_rows()
    run = abt.batched(model.loss, module=model, backend="reference")
    wanted = [torch.autograd.grad(model.loss(x), [*model.parameters()]) for x in batch]
    _, found = run.value_and_grad(batch, reduce="none")
    for gradient, parts in zip(found.values(), zip(*wanted, strict=True), strict=True):
        np.testing.assert_allclose(gradient, np.stack(parts), rtol=1e-9)
    _, sums = run.value_and_grad(batch, "sum", clip="per-instance", max_norm=1.0)
    check_equal(sums, clipped(found, np.ones(3), 1.0))


def test_nodes_of_several_instances_are_refused() -> None:
    graph = ab.batched(without_dropout().loss).merged([1, 1])
    refuse_shared(graph)
    shared, rewrites = rewrite(graph, ["share"])
    assert rewrites.shared
    with refused(ab.GraphError, "is used by an instance other than its own"):
        refuse_shared(shared)


def test_a_profile_and_measured_threads_change_nothing() -> None:
    model = without_dropout()
    wanted = by_loop(ab.batched(model.loss), TREES)
    run = ab.batched(model.loss, backend=Cpu(), threads="auto")
    with run.profile() as profile:
        _, found = run.value_and_grad(TREES, reduce="none")
        check_equal(found, wanted[1])
        _, sums = run.value_and_grad(TREES, "sum", clip="per-instance", max_norm=2.0)
        check_equal(sums, clipped(wanted[1], np.ones(len(TREES)), 2.0))
    assert len(profile.calls) == 2


@pytest.mark.parametrize("make", [per_instance.of_chains, per_instance.of_trees])
def test_the_experiment_compares_equal_gradients(make: Callable[..., Any]) -> None:
    config = per_instance.Config(batch_size=5, length=4)
    ways = make(config, 4, np.random.default_rng(0), "reference")  # compares them
    assert [*ways][:3] == ["sum", "each", "clipped"]
