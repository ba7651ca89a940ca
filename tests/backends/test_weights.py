"""Test the compiled weight stage: it equals the interpreted one, writes to given arrays, and allocates none."""

from __future__ import annotations

import tracemalloc
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.ops.randomness import Randomness
from helpers.runs.ways import each
from host_device import HostDevice

V, DIM = 11, 5
RNG = np.random.default_rng(0)
SENTENCES = [RNG.integers(0, V, RNG.integers(1, 9)).tolist() for _ in range(7)]
TOLERANCE = 1e-12


class Chain(ab.Module):
    """A recurrent network with adjacent weights and two biases, and a layer on top."""

    def __init__(self, dim: int = DIM, n_words: int = V) -> None:
        rng = np.random.default_rng(1)
        self.table = ab.Parameter(rng.standard_normal((n_words, dim)))
        self.read, self.carry = ab.Linear(dim, dim, rng=rng), ab.Linear(dim, dim, rng=rng)
        self.head = ab.Linear(dim, 1, rng=rng)
        self.start = ab.Parameter(rng.standard_normal(dim))
        self.astype("float64")

    @ab.cell
    def step(self, h: Any, word: int) -> Any:
        return ab.tanh(self.read(ab.lookup(self.table, word)) + self.carry(h))

    @ab.cell
    def score(self, h: Any) -> Any:
        return ab.sum(self.head(h) * 0.5)

    @ab.cell
    def curved(self, h: Any) -> Any:
        return ab.sum(ab.tanh(h * self.start) * self.start)

    def loss(self, words: list[int]) -> Any:
        h = self.start
        for word in words:
            h = self.step(h, word)
        return self.score(h)

    def partly(self, words: list[int]) -> Any:
        """Compute a loss that does not depend on some nodes of a batch."""
        self.score(self.step(self.start, words[-1]))
        return self.loss(words), self.step(self.start, words[0])

    def mixed(self, words: list[int]) -> Any:
        """Compute a loss with a gradient that is neither a product nor a sum of saved values."""
        return self.loss(words) + self.curved(self.step(self.start, words[0]))


def steps_of_cells(loss: Any, has_aux: bool) -> dict[str, list[str]]:
    """Return the class names of the steps in each cell's weight stage."""
    (part,) = loss.prepare(SENTENCES, training=True, has_aux=has_aux).parts
    return {
        cell.cell.program.name: [type(step).__name__ for step in cell.stage("weights").source.stage.steps]
        for cell in part.executable.types.cells.values()
    }


@pytest.mark.cases(1)
@pytest.mark.parametrize("has_aux", [False, True])
@pytest.mark.parametrize("function", ["loss", "mixed", "partly"])
def test_gradients_are_those_of_the_interpreter(function: str, has_aux: bool) -> None:
    if (function == "partly") != has_aux:
        pytest.skip("only one of them returns something beside the loss")
    model = Chain()
    ours, theirs = (
        ab.batched(getattr(model, function), module=model, backend=backend)
        for backend in (Cpu(poison=True), Reference(poison=True))
    )
    found, expected = (loss.value_and_grad(SENTENCES, has_aux=has_aux) for loss in (ours, theirs))
    for name, gradient in expected[1].items():
        np.testing.assert_allclose(found[1][name], gradient, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
    steps = steps_of_cells(ours, has_aux)
    assert set(steps["step"]) == {"Outer", "RowSum", "Scatter"}
    assert set(steps["score"]) == {"Outer", "RowSum"}
    assert steps.get("curved", ["Remainder"]) == ["Remainder"]


@pytest.mark.parametrize("order", ["as returned", "apart", "transposed", "parts of wider arrays"])
def test_gradients_are_added_wherever_they_are(order: str) -> None:
    """The same mini-batch three times, with other arrays each time."""
    model = Chain()
    loss = ab.batched(model.loss, backend=Cpu())
    expected = {name: 3.0 * np.asarray(gradient) for name, gradient in loss.value_and_grad(SENTENCES)[1].items()}
    _, out = loss.value_and_grad(SENTENCES)
    for _ in range(2):
        if order != "as returned":
            out = {name: np.array(gradient) for name, gradient in out.items()}
        if order == "transposed":
            out = {name: gradient.T.copy().T for name, gradient in out.items()}
        if order == "parts of wider arrays":
            for name, gradient in out.items():
                wide = np.zeros((*gradient.shape[:-1], 2 * gradient.shape[-1]))
                wide[..., : gradient.shape[-1]] = gradient
                out[name] = wide[..., : gradient.shape[-1]]
        loss.value_and_grad(SENTENCES, out=out)
    for name, gradient in expected.items():
        np.testing.assert_allclose(out[name], gradient, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


def test_a_warm_weight_stage_allocates_no_array() -> None:
    """The gradients take 96 kB, of which 48 kB are rows of a table. Two mini-batches alternate."""
    model = Chain(dim=64, n_words=2000)
    model.astype("float32")
    cpu = Cpu()
    loss = ab.batched(model.loss, backend=cpu)
    batches = [[RNG.integers(0, 2000, 8).tolist() for _ in range(n)] for n in (24, 20)]
    for words in (*batches, *batches):
        _, grads = loss.value_and_grad(words)
    (part,) = loss.prepare(batches[1], training=True).parts
    run = part.executable.begin(Randomness(key=np.arange(20)))
    owners = {id(p): grads[name] for name, p in model.parameters().items()}
    with run:
        run.forward()
        run.backward({0: np.ones(20, np.float32)}, owners)
    for gradient in grads.values():
        if isinstance(gradient, ab.Rows):
            gradient.clear()
    run.targets = run.memory.targets(owners, part.executable.cells.stacks).arrays
    tracemalloc.start()
    try:
        with run:
            run._take_targets()
            run._call("weights", 0, len(part.plan.type_ptr) - 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000
    assert sum(np.asarray(gradient).nbytes for name, gradient in grads.items() if name != "table") > 30_000


def test_gradients_of_warm_steps_are_the_same_arrays() -> None:
    """Also after a step with other arrays, but not after a cast of the model."""
    model = Chain()
    loss = ab.batched(model.loss, backend=Cpu())
    _, first = loss.value_and_grad(SENTENCES)
    loss.value_and_grad(SENTENCES, out={name: np.array(gradient) for name, gradient in first.items()})
    del first["head.bias"]
    _, second = loss.value_and_grad(SENTENCES[:2])
    assert [name for name in second if second[name] is not first.get(name)] == ["head.bias"]
    assert len(second) == len(first) + 1 > 1
    model.astype("float32")
    _, third = loss.value_and_grad(SENTENCES[:2])
    for name, gradient in third.items():
        assert gradient.dtype == np.float32
        np.testing.assert_allclose(gradient, second[name], rtol=1e-4, atol=1e-5)


def test_a_refused_gradient_is_refused_again() -> None:
    """A gradient strided in both axes cannot be addressed, and must not leave results of the run before."""
    model = Chain()
    loss = ab.batched(model.loss, backend=Cpu())
    (part,) = loss.prepare(SENTENCES, training=True).parts
    wide = {id(p): np.zeros([2 * size for size in p.shape]) for p in model.parameters().values()}
    apart = {key: array[tuple(slice(None, None, 2) for _ in array.shape)] for key, array in wide.items()}
    right = {id(p): np.zeros(p.shape) for p in model.parameters().values()}
    for into in (right, apart, apart):
        with closing(part.executable.begin(Randomness(key=np.arange(len(SENTENCES))))) as run, run:
            run.forward()
            seeds = {0: np.ones(len(SENTENCES))}
            if into is right:
                run.backward(seeds, into)
            else:
                before = {key: array.copy() for key, array in right.items()}
                with pytest.raises(ab.ShapeError, match="the gradient of a matrix"):
                    run.backward(seeds, into)
                for key, array in before.items():
                    np.testing.assert_array_equal(right[key], array)


class OfInts(ab.Module):
    """A matrix times ints of the data."""

    def __init__(self) -> None:
        self.linear = ab.Linear(2, 3, rng=np.random.default_rng(0))

    @ab.cell
    def loss(self, flags: Any) -> Any:
        return ab.sum(self.linear(flags))


@each("backend", ("reference", "cpu"))
def test_ints_of_the_data_are_multiplied_as_floats(backend: str) -> None:
    model, flags = OfInts(), [np.array([1, 0]), np.array([2, 3])]
    _, gradients = ab.batched(model.loss, backend=backend).value_and_grad(flags)
    np.testing.assert_allclose(gradients["linear.weight"], np.tile(np.mean(flags, axis=0), (3, 1)))
    np.testing.assert_allclose(gradients["linear.bias"], np.ones(3))


class Tied(ab.Module):
    """A matrix and a bias that a cell reads alone and side by side, and a table that a cell reads twice."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self.table = ab.Parameter(rng.standard_normal((V, 8)))
        self.one, self.other = (ab.Parameter(rng.standard_normal((160, 8)) / 8) for _ in range(2))
        self.bias = ab.Parameter(rng.standard_normal(160))

    @ab.cell
    def twice(self, word: int, next_word: int) -> Any:
        x, y = ab.lookup(self.table, word), ab.lookup(self.table, next_word)
        beside = ab.tanh(self.one @ x + self.bias) * ab.tanh(self.other @ x + self.bias)
        return ab.sum(beside) + ab.sum(ab.sigmoid(self.one @ y + self.bias))

    def loss(self, words: list[int]) -> Any:
        return ab.sum_n([self.twice(word, (3 * word) % V) for word in words])


def gradients_of(loss: Any, words: Any) -> dict[str, Any]:
    return {name: np.array(gradient) for name, gradient in loss.value_and_grad(words)[1].items()}


@pytest.mark.cases(1)
@pytest.mark.parametrize("make", [Tied, lambda: Chain(dim=120)], ids=["tied", "chain"])
def test_gradients_do_not_depend_on_threads_that_change(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of threads has its own steps. One thread computes gradients that overlap."""
    monkeypatch.setattr("autobatch.blas.threads.usable_cores", lambda: 8)
    monkeypatch.setattr("autobatch.blas.threads._all_pools", list)  # the environment may allow one thread only
    model = make().astype("float64")
    expected = gradients_of(ab.batched(model.loss, backend=Reference()), SENTENCES)
    loss = ab.batched(model.loss, backend=Cpu())
    graphs = loss.record_all(SENTENCES)
    for loss.threads in (1, 4, 1, 2, 1):
        for name, gradient in gradients_of(loss, graphs).items():
            np.testing.assert_allclose(gradient, expected[name], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


@each("precision", ["float32", "bf16"])
def test_a_device_adds_the_rows_of_a_table_once(precision: str) -> None:
    """A cell looks up two rows of one table."""
    model = Tied().astype("float32")
    expected = gradients_of(ab.batched(model.loss, backend=Reference(), precision=precision), SENTENCES)
    found = gradients_of(ab.batched(model.loss, backend=Cuda(device=HostDevice()), precision=precision), SENTENCES)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=2e-3, atol=2e-3, err_msg=name)


@each("n_threads", [0, -1, "many", 1.5])
def test_no_number_of_threads_is_refused_when_it_is_assigned(n_threads: Any) -> None:
    loss = ab.batched(Chain().loss)
    with pytest.raises(ab.BackendError, match="threads must be an int of at least 1"):
        loss.threads = n_threads
