"""`ab.batched`: results, reductions, gradients, graphs kept over epochs, dtypes, counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.backends.reference import Reference
from autobatch.schedule.schedule import Frontier, FrontierPolicy
from helpers.runs.ways import each

pytestmark = pytest.mark.usefixtures("_checked")
DIM = 3
WORDS = [[1], [2, 3, 0], [4, 4], [0, 1, 2, 3, 4]]


@dataclass
class Both:
    total: Any
    parts: Any


class Ends(NamedTuple):
    first: Any
    last: Any


class Bag(ab.Module):
    """A bag of words: tanh of the sum of looked-up vectors."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.table = ab.Parameter(rng.standard_normal((5, DIM)))
        self.layer = ab.Linear(DIM, DIM, rng=rng)
        self.same_table = self.table
        self.fixed = ab.Parameter(np.ones(DIM), trainable=False)
        self.unused = ab.Parameter(np.ones(2))

    @ab.cell
    def word(self, word: int) -> Any:
        return ab.tanh(self.layer(ab.lookup(self.same_table, word)) + self.fixed)

    @ab.cell
    def norm(self, x: Any) -> Any:
        return ab.dot(x, x)

    def vectors(self, words: list[int]) -> list[Any]:
        return [self.word(word) for word in words]

    def loss(self, words: list[int]) -> Any:
        return self.norm(ab.sum_n(self.vectors(words)))

    def loss_and_aux(self, words: list[int]) -> Any:
        vectors = self.vectors(words)
        return self.norm(ab.sum_n(vectors)), {
            "vectors": vectors,
            "last": vectors[-1],
            "n": len(words),
            "text": str(words),
        }


STRUCTURES: dict[str, Callable[[Bag, list[int]], Any]] = {
    "value": lambda m, words: m.word(words[0]),
    "tuple": lambda m, words: (m.word(words[0]), m.loss(words)),
    "tuple of one": lambda m, words: (m.loss(words),),
    "named tuple": lambda m, words: Ends(m.word(words[0]), m.word(words[-1])),
    "dict": lambda m, words: {"loss": m.loss(words), 2: (m.word(0), m.word(1))},
    "dataclass": lambda m, words: Both(m.loss(words), Ends(m.word(0), words[0])),
    "list": lambda m, words: m.vectors(words),
    "list of different things": lambda m, words: [m.loss(words), *m.vectors(words), (m.loss(words), len(words))],
    "list in a dataclass": lambda m, words: Both(m.loss(words), [(x, m.norm(x)) for x in m.vectors(words)]),
    "one value twice": lambda m, words: (lambda x: (x, x))(m.word(words[0])),
    "parameter": lambda m, words: m.fixed + 0 * m.word(words[0]),
    "arrays": lambda m, words: (np.full(2, float(len(words))), np.arange(3) + len(words)),
    "numbers": lambda m, words: (len(words), 0.5 * len(words), np.float64(len(words)), len(words) > 1),
    "number": lambda m, words: 0.25 * len(words),
    "int": lambda m, words: len(words),
    "number or value": lambda m, words: m.loss(words) if len(words) > 1 else 0.0,
    "NumPy's number or value": lambda m, words: (m.loss(words) if len(words) > 1 else np.float64(1.5), 3),
}


def model_and(function: Callable[[Bag, Any], Any], **options: Any) -> tuple[Bag, Callable[[Any], Any], ab.Batched]:
    """Return a float64 model, a function bound to it, and the batched function on a buffer of NaN."""
    model = Bag().astype("float64")
    run = lambda instance: function(model, instance)  # noqa: E731
    return model, run, ab.batched(run, module=model, backend=Reference(poison=True), **options)


@each("name", STRUCTURES)
def test_what_comes_back_is_what_the_function_returns(name: str) -> None:
    _, run, loss = model_and(STRUCTURES[name])
    graphs = loss.record_all(WORDS)
    for batch in (WORDS, graphs, graphs[::-1], graphs[1:2]):
        expected = [run(words) for words in (WORDS if batch is graphs or batch is WORDS else WORDS[::-1])]
        expected = [run(WORDS[1])] if len(batch) == 1 else expected
        assert_stacked(loss(batch), expected)


def assert_stacked(found: Any, expected: list[Any]) -> None:
    """Check that structures are stacked part by part, and that lists and their contents come back per instance."""
    match expected[0]:
        case Both():
            assert type(found) is Both
            assert_stacked((found.total, found.parts), [(e.total, e.parts) for e in expected])
        case tuple():
            assert type(found) is type(expected[0])
            for k, part in enumerate(found):
                assert_stacked(part, [e[k] for e in expected])
        case dict():
            assert found.keys() == expected[0].keys()
            for key, part in found.items():
                assert_stacked(part, [e[key] for e in expected])
        case list():
            assert [len(parts) for parts in found] == [len(parts) for parts in expected]
            for parts, others in zip(found, expected, strict=True):
                for part, other in zip(parts, others, strict=True):
                    pairs = zip(part, other, strict=True) if isinstance(other, tuple) else [(part, other)]
                    for one, two in pairs:
                        np.testing.assert_allclose(one, two, rtol=1e-12)
        case str():
            assert found == expected
        case _:
            rows = np.asarray(expected)
            np.testing.assert_allclose(found, rows, rtol=1e-12)
            if rows.dtype.kind not in "iu":
                assert found.dtype.kind == rows.dtype.kind


def test_no_instances() -> None:
    model = Bag()
    loss = ab.batched(model.loss)
    assert loss([]).shape == (0,)
    assert loss([]).dtype == np.float32
    loss(WORDS)
    assert loss(iter([])).shape == (0,)
    assert loss.record_all([]) == []


def test_any_iterable_is_a_mini_batch() -> None:
    model = Bag()
    loss = ab.batched(model.loss)
    expected = loss(WORDS)
    for batch in (tuple(WORDS), iter(WORDS), (words for words in WORDS)):
        np.testing.assert_array_equal(loss(batch), expected)


REDUCTIONS: dict[str, tuple[Any, Any]] = {
    "mean": ("mean", np.full(4, 0.25)),
    "sum": ("sum", np.ones(4)),
    "weights": (np.array([1.0, 0.0, -2.0, 0.5]), np.array([1.0, 0.0, -2.0, 0.5])),
    "list": ([1, 2, 3, 4], np.arange(1.0, 5.0)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_weigh_losses_and_gradients(name: str) -> None:
    reduce, weights = REDUCTIONS[name]
    model, run, loss = model_and(Bag.loss)
    value, grads = loss.value_and_grad(WORDS, reduce=reduce)
    np.testing.assert_allclose(value, weights @ [run(words) for words in WORDS], rtol=1e-12)
    expected = {name: np.zeros(gradient.shape) for name, gradient in grads.items()}
    alone = ab.batched(model.loss)
    for weight, words in zip(weights, WORDS, strict=True):
        for key, gradient in alone.value_and_grad([words])[1].items():
            expected[key] += weight * gradient
    for key, gradient in grads.items():
        np.testing.assert_allclose(gradient, expected[key], rtol=1e-10, atol=1e-12)


def test_gradients_are_for_the_trainable_parameters_each_once() -> None:
    model, _, loss = model_and(Bag.loss)
    _, grads = loss.value_and_grad(WORDS)
    assert {name: gradient.shape for name, gradient in grads.items()} == {
        name: p.shape for name, p in model.parameters().items() if name != "fixed"
    }
    assert "same_table" not in grads
    assert not grads["unused"].any()


def test_gradients_are_buffers_until_the_next_call_unless_they_are_given() -> None:
    _, _, loss = model_and(Bag.loss)
    value, grads = loss.value_and_grad(WORDS)
    copies = {name: gradient.copy() for name, gradient in grads.items()}
    _, again = loss.value_and_grad(WORDS[:1])
    assert again is not grads
    assert list(map(id, again.values())) == list(map(id, grads.values()))
    total = {name: gradient.copy() for name, gradient in copies.items()}
    value_again, added = loss.value_and_grad(WORDS, out=total)
    assert value_again == value
    assert added is total
    for name, gradient in total.items():
        np.testing.assert_allclose(gradient, 2 * np.asarray(copies[name]), rtol=1e-12)
    _, fresh = loss.value_and_grad(WORDS)
    for name, gradient in fresh.items():
        np.testing.assert_array_equal(gradient, copies[name])
    loss.value_and_grad(WORDS, out=fresh)
    for name, gradient in fresh.items():
        np.testing.assert_allclose(gradient, 2 * np.asarray(copies[name]), rtol=1e-12)


def test_aux_comes_back_stacked_and_gets_no_gradient() -> None:
    model, run, loss = model_and(Bag.loss_and_aux)
    (value, aux), grads = loss.value_and_grad(WORDS, has_aux=True)
    expected = [run(words) for words in WORDS]
    np.testing.assert_allclose(value, np.mean([e[0] for e in expected]), rtol=1e-12)
    assert_stacked(aux, [e[1] for e in expected])
    _, only = ab.batched(model.loss).value_and_grad(WORDS)
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient, only[name], rtol=1e-10, atol=1e-12)


def test_graphs_are_kept_over_epochs_while_parameters_change() -> None:
    model, run, loss = model_and(Bag.loss)
    graphs = loss.record_all(WORDS)
    optimizer = ab.optim.SGD(model, lr=0.05)
    values = []
    for epoch in range(5):
        for batch in ab.minibatches(graphs, 3, rng=np.random.default_rng(epoch)):
            _, grads = loss.value_and_grad(batch)
            optimizer.step(grads)
        np.testing.assert_allclose(loss(graphs), [run(words) for words in WORDS], rtol=1e-10)
        values.append(loss(graphs).mean())
    assert values == sorted(values, reverse=True)


def test_recording_shows_how_far_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    loss = ab.batched(Bag().loss)
    assert len(loss.record_all(WORDS, progress=True)) == len(WORDS)
    out, err = capfd.readouterr()
    assert not out
    assert "recording" in err


def test_computation_follows_the_dtype_of_the_parameters() -> None:
    model = Bag()
    loss = ab.batched(model.loss)
    single = loss(WORDS)
    assert single.dtype == np.float32
    _, grads = loss.value_and_grad(WORDS)
    assert {gradient.dtype for gradient in grads.values()} == {np.dtype(np.float32)}
    graphs = loss.record_all(WORDS)
    model.astype("float64")
    for batch in (WORDS, graphs):
        double = loss(batch)
        assert double.dtype == np.float64
        np.testing.assert_allclose(double, [model.loss(words) for words in WORDS], rtol=1e-12)
        value, grads = loss.value_and_grad(batch)
        assert value.dtype == np.float64
        assert {gradient.dtype for gradient in grads.values()} == {np.dtype(np.float64)}
    model.astype("float32")
    np.testing.assert_array_equal(loss(graphs), single)


def test_instances_that_compute_nothing() -> None:
    model = Bag()

    def loss_of(words: list[int]) -> Any:
        return model.loss(words) if words else 0.0

    loss = ab.batched(loss_of, module=model)
    np.testing.assert_allclose(loss([[], [1], []]), [0.0, model.loss([1]), 0.0], rtol=1e-6)
    value, grads = loss.value_and_grad([[], []])
    assert value == 0.0
    assert not any(np.asarray(gradient).any() for gradient in grads.values())


class LastType(FrontierPolicy):
    """Runs the ready type with the highest id."""

    name = "last type"

    def choose(self, frontier: Frontier) -> int:
        return frontier.types[-1]


def test_policies_and_backends_may_be_objects() -> None:
    model = Bag()
    backend = Reference()
    loss = ab.batched(model.loss, policy=LastType(), backend=backend)
    np.testing.assert_allclose(loss(WORDS), ab.batched(model.loss)(WORDS), rtol=1e-6)
    assert loss.backend is backend
    assert loss.explain(WORDS).policy == "last type"
    assert ab.batched(model.loss).policy.name == "score"
    assert ab.batched(model.loss).backend.name == "reference"


def test_one_backend_may_serve_several_functions() -> None:
    model, backend = Bag(), Reference(poison=True)
    losses = [ab.batched(f, backend=backend) for f in (model.loss, model.loss_and_aux)]
    for _ in range(2):
        plain, (with_aux, _) = (loss(WORDS) for loss in losses)
        np.testing.assert_array_equal(plain, with_aux)


def test_the_counts_of_the_last_call() -> None:
    model = Bag()
    loss = ab.batched(model.loss, policy=policies.get("depth"))
    assert loss.last is None
    loss(WORDS)
    inference = loss.last
    assert inference is not None
    assert (inference.nodes, inference.batches, inference.lower_bound) == (11 + 4, 2, 2)  # the sums are folded
    assert inference.graph.n_instances == 4
    loss.value_and_grad(WORDS)
    training = loss.last
    assert training is not None
    assert (training.nodes, training.batches) == (inference.nodes, inference.batches)
    assert training.launches > inference.launches
    assert training.copied_bytes > inference.copied_bytes
    loss([])
    assert loss.last.graph.n_instances == loss.last.launches == 0
