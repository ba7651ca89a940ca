"""Test that a table read only by `lookup` has a gradient of the rows that were read, each once and summed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.graph.rewrite import PASSES
from autobatch.optim import SGD, Adam, AdamW, clip_by_norm
from helpers.runs.ways import each

pytestmark = pytest.mark.usefixtures("_checked")

V, DIM = 7, 3
BATCH = [[1, 4], [4, 4, 0], [6], [0, 1, 4]]
TOLERANCE = 1e-14


class Tables(ab.Module):
    """Cells that read rows of a table and sum their tanh."""

    def __init__(self, n_rows: int = V, dim: int = DIM) -> None:
        rng = np.random.default_rng(0)
        self.table = ab.Parameter(rng.standard_normal((n_rows, dim)))
        self.numbers = ab.Parameter(rng.standard_normal(n_rows))
        self.bias = ab.Parameter(rng.standard_normal(dim))
        self.unused = ab.Parameter(np.ones((n_rows, dim)))
        self.other = ab.Parameter(np.ones((1, dim)))
        self.astype("float64")

    @ab.cell
    def one(self, word: int) -> Any:
        return ab.sum(ab.tanh(ab.lookup(self.table, word)))

    @ab.cell
    def number(self, word: int) -> Any:
        return ab.tanh(ab.lookup(self.numbers, word))

    @ab.cell
    def several(self, words: Any) -> Any:
        return ab.sum(ab.tanh(ab.lookup(self.table, words)))

    @ab.cell
    def several_numbers(self, words: Any) -> Any:
        return ab.sum(ab.tanh(ab.lookup(self.numbers, words)))

    @ab.cell
    def both(self, first: int, second: int) -> Any:
        return ab.sum(ab.tanh(ab.lookup(self.table, first))) + ab.sum(ab.tanh(ab.lookup(self.table, second)))

    @ab.cell
    def last(self, words: Any) -> Any:
        return ab.sum(ab.tanh(ab.lookup(self.table, words[-1])))

    @ab.cell
    def fixed(self, x: Any) -> Any:
        return ab.sum(ab.tanh(ab.lookup(self.table, np.array([2, 5, 2])))) * x

    @ab.cell
    def fixed_by_node(self, x: Any) -> Any:
        return ab.sum(ab.tanh(ab.lookup(self.table, np.array([2, 5, 2])) + 0.0 * x))

    @ab.cell
    def shifted(self, x: Any) -> Any:
        return ab.sum((ab.lookup(self.table, 1) + self.bias) * x)

    @ab.cell
    def per_edge(self, xs: list[Any], word: int) -> Any:
        row = ab.sum(ab.tanh(ab.lookup(self.table, word)))
        return ab.sum_n([x * 0.0 + row for x in xs])

    @ab.cell
    def combined(self, word: int) -> Any:
        return ab.sum(ab.tanh(ab.lookup(self.table + self.unused + 2.0 * self.other, word)))

    @ab.cell
    def bent(self, word: int) -> Any:
        return ab.sum(ab.lookup(ab.tanh(self.table), word))


def total(parts: list[Any]) -> Any:
    return ab.sum_n(parts)


# An instance's function, the name of its table, and the ids that it reads, with repetitions.
Case = tuple[Callable[[Tables, list[int]], Any], str, Callable[[list[int]], list[int]]]
CASES: dict[str, Case] = {
    "a row per node": (lambda m, words: total([m.one(w) for w in words]), "table", lambda words: words),
    "a number per node": (lambda m, words: total([m.number(w) for w in words]), "numbers", lambda words: words),
    "several per node": (lambda m, words: m.several(np.array(words * 2)[:2]), "table", lambda words: (words * 2)[:2]),
    "several of any number": (lambda m, words: m.several(np.array(words)), "table", lambda words: words),
    "several numbers": (lambda m, words: m.several_numbers(np.array(words)), "numbers", lambda words: words),
    "a matrix of ids": (lambda m, words: m.several(np.full((2, 2), words[0])), "table", lambda words: words[:1] * 4),
    "twice in a cell": (lambda m, words: m.both(words[0], words[-1]), "table", lambda words: [words[0], words[-1]]),
    "one of several": (lambda m, words: m.last(np.array([0, words[-1]])), "table", lambda words: words[-1:]),
    "written in the cell": (lambda m, words: m.fixed(float(len(words))), "table", lambda w: [2, 5, 2] * len(w)),
    "written, per node": (lambda m, words: m.fixed_by_node(float(len(words))), "table", lambda _: [2, 5, 2]),
    "by two types": (
        lambda m, words: total([m.one(words[0]), m.both(words[-1], 3), m.one(5)]),
        "table",
        lambda words: [words[0], words[-1], 3, 5],
    ),
    "outside of cells": (
        lambda m, words: ab.sum(ab.tanh(ab.lookup(m.table, words[0]))),
        "table",
        lambda words: words[:1],
    ),
    "no rows for some": (
        lambda m, words: m.one(words[0]) if len(words) > 1 else m.number(0),
        "table",
        lambda words: words[:1] if len(words) > 1 else [],
    ),
}


def batch(model: Tables, function: Callable[[Tables, Any], Any], **options: Any) -> ab.Batched:
    """Batch a function on a buffer that is filled with NaN."""
    return ab.batched(lambda x: function(model, x), module=model, backend=Reference(poison=True), **options)


def expected_gradient(model: Tables, name: str, reads: Callable[[list[int]], list[int]], weights: Any) -> Any:
    """Compute the gradient by definition: the derivative of tanh, added at each id that is read."""
    data = model.parameters()[name].data
    gradient = np.zeros_like(data)
    for weight, words in zip(weights, BATCH, strict=True):
        for i in reads(words):
            gradient[i] += weight * (1.0 - np.tanh(data[i]) ** 2)
    return gradient


@each("rewrites", [PASSES, ()])
@each("policy", ["unbatched", "depth", "agenda"])
@each("name", CASES)
def test_rows_are_what_was_read(name: str, policy: str, rewrites: tuple[str, ...]) -> None:
    function, table, reads = CASES[name]
    model = Tables()
    weights = np.array([1.0, -0.5, 2.0, 0.25])
    grads = batch(model, function, policy=policy, rewrites=rewrites).value_and_grad(BATCH, reduce=weights)[1]
    rows = grads[table]
    assert isinstance(rows, ab.Rows)
    assert rows.ids.tolist() == sorted({i for words in BATCH for i in reads(words)})
    np.testing.assert_allclose(rows, expected_gradient(model, table, reads, weights), rtol=TOLERANCE, atol=TOLERANCE)
    assert isinstance(grads["unused"], np.ndarray)
    assert not grads["unused"].any()


@each("name", CASES)
def test_the_same_mini_batch_gives_the_same_bits(name: str) -> None:
    """As rows, in another run, and added to an array."""
    function, table, _ = CASES[name]
    model = Tables()
    first, second = (batch(model, function).value_and_grad(BATCH)[1][table] for _ in range(2))
    np.testing.assert_array_equal(second.ids, first.ids)
    np.testing.assert_array_equal(second.values, first.values)
    zeros = {name: np.zeros(p.shape) for name, p in model.parameters().items()}
    arrays = batch(model, function).value_and_grad(BATCH, out=dict(zeros))[1]
    assert arrays[table] is zeros[table]
    np.testing.assert_array_equal(arrays[table], np.asarray(first))


@each("name", CASES)
def test_rows_pass_central_differences(name: str) -> None:
    function, _, _ = CASES[name]
    model = Tables()
    ab.testing.check_grads(batch(model, function), BATCH, model, np.random.default_rng(0))


def test_gradients_are_added_to_rows_and_to_arrays() -> None:
    model = Tables()
    loss = batch(model, CASES["a row per node"][0])
    first = loss.value_and_grad(BATCH[:2])[1]["table"].copy()
    second = loss.value_and_grad(BATCH[2:])[1]["table"].copy()
    _, out = loss.value_and_grad(BATCH[:2])
    kept = out["table"]
    loss.value_and_grad(BATCH[2:], out=out)
    assert out["table"] is kept
    assert kept.ids.tolist() == [0, 1, 4, 6]
    np.testing.assert_array_equal(np.asarray(kept), np.asarray(first) + np.asarray(second))
    given = {**out, "table": np.ones((V, DIM))}
    loss.value_and_grad(BATCH[:2], out=given)
    np.testing.assert_allclose(given["table"], 1.0 + np.asarray(first), rtol=TOLERANCE)


def test_rows_are_used_again_in_the_next_call() -> None:
    """As for arrays. A copy stays unchanged."""
    loss = batch(Tables(), CASES["a row per node"][0])
    _, grads = loss.value_and_grad(BATCH)
    rows = grads["table"]
    before, expected = rows.copy(), np.array(rows)
    again = loss.value_and_grad(BATCH[:1])[1]["table"]
    assert again is rows
    assert rows.ids.tolist() == [1, 4]
    np.testing.assert_array_equal(np.asarray(before), expected)


def test_a_table_that_is_read_in_another_way_has_an_array_from_then_on() -> None:
    """Rows from before that are passed to be added to also become an array."""
    model = Tables()

    def function(m: Tables, words: list[int]) -> Any:
        return m.one(words[0]) if len(words) < 3 else total([m.bent(words[0]), m.one(words[1])])

    loss = batch(model, function)
    _, out = loss.value_and_grad(BATCH[2:3])
    assert isinstance(out["table"], ab.Rows)
    _, added = loss.value_and_grad(BATCH, out=out)
    assert added is out
    assert isinstance(out["table"], np.ndarray)
    found = out["table"].copy()
    for words in (BATCH, BATCH[2:3]):
        assert isinstance(loss.value_and_grad(words)[1]["table"], np.ndarray)

    def reads(words: list[int]) -> list[int]:
        return words[:1] if len(words) < 3 else words[:2]

    expected = expected_gradient(model, "table", reads, [0.25, 0.25, 1.25, 0.25])
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE)


def test_a_sum_that_rows_share_with_another_gradient_is_not_added_up_in_place() -> None:
    """The gradient of the bias is also that of the table's row, which must not include the numbers in `out`."""
    model = Tables()
    loss = batch(model, lambda m, words: m.shifted(np.full(DIM, float(len(words)))))
    out: dict[str, Any] = {name: np.full(p.shape, 100.0) for name, p in model.parameters().items()}
    loss.value_and_grad(BATCH, reduce="sum", out=out)
    np.testing.assert_array_equal(out["bias"], np.full(DIM, 109.0))
    assert out["table"].tolist() == [[109.0 if i == 1 else 100.0] * DIM for i in range(V)]


def test_of_tables_that_are_added_and_looked_up_those_that_are_not_scaled_have_rows() -> None:
    model = Tables()
    loss = batch(model, lambda m, words: total([m.combined(w) for w in words]))
    _, grads = loss.value_and_grad(BATCH)
    for name in ("table", "unused"):
        assert grads[name].ids.tolist() == [0, 1, 4, 6]
        np.testing.assert_allclose(grads["other"][0], 2.0 * np.asarray(grads[name]).sum(axis=0), rtol=TOLERANCE)
    assert not np.shares_memory(grads["table"].values, grads["unused"].values)
    ab.testing.check_grads(loss, BATCH, model, np.random.default_rng(0))


def test_rows_of_nodes_that_the_loss_does_not_need_are_left_out() -> None:
    model = Tables()

    def function(m: Tables, words: list[int]) -> Any:
        m.one(5)
        return m.one(words[0]), [m.one(2), m.several(np.array([3, 3]))]

    for rewrites in (PASSES, ()):
        _, grads = batch(model, function, rewrites=rewrites).value_and_grad(BATCH, has_aux=True)
        assert grads["table"].ids.tolist() == [0, 1, 4, 6]


def test_a_mini_batch_that_reads_nothing_gives_no_rows() -> None:
    model = Tables()
    loss = batch(model, CASES["no rows for some"][0])
    loss(BATCH)
    _, grads = loss.value_and_grad(BATCH[2:3])
    assert isinstance(grads["table"], ab.Rows)
    assert grads["table"].ids.size == 0
    assert grads["numbers"].ids.tolist() == [0]
    model.table.trainable = False
    assert list(loss.value_and_grad(BATCH)[1]) == ["numbers", "bias", "unused", "other"]


def test_rows_have_the_dtype_of_the_table() -> None:
    model = Tables().astype("float32")
    loss = batch(model, CASES["by two types"][0])
    assert loss.value_and_grad(BATCH)[1]["table"].dtype == np.float32
    model.astype("float64")
    assert loss.value_and_grad(BATCH)[1]["table"].dtype == np.float64


def test_a_step_costs_no_memory_in_proportion_to_the_table() -> None:
    """Gradients of a table of 12 MB are clipped and accumulated, followed by a lazy step of Adam."""
    model = Tables(n_rows=100_000, dim=30)
    model.astype("float32")
    optimizer = Adam(model, lazy=True)
    loss = batch(model, CASES["a row per node"][0])
    graphs = loss.record_all(BATCH)
    _, out = loss.value_and_grad(graphs)
    optimizer.step(out)
    tracemalloc.start()
    try:
        loss.value_and_grad(graphs, out=out)
        _, grads = loss.value_and_grad(graphs)
        clip_by_norm({"table": grads["table"]}, 1e-3)
        optimizer.step({**out, "table": grads["table"]})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < model.table.data.nbytes / 10


@pytest.mark.parametrize(("kind", "options"), [(SGD, {"momentum": 0.9}), (SGD, {}), (Adam, {}), (AdamW, {})])
def test_training_with_rows_is_training_with_arrays_bit_by_bit(kind: type[Any], options: dict[str, Any]) -> None:
    """Mini-batches of different words, with two types that read the table."""
    models = Tables(), Tables()
    for model in models:
        loss, optimizer = batch(model, CASES["by two types"][0]), kind(model, lr=0.1, **options)
        for step in range(10):
            _, grads = loss.value_and_grad(BATCH[step % 3 :])
            arrays = {name: np.asarray(grad) for name, grad in grads.items()}
            optimizer.step(grads if model is models[0] else arrays)
    for name, parameter in models[0].parameters().items():
        np.testing.assert_array_equal(parameter.data, models[1].parameters()[name].data)


def test_clipping_shortens_rows_as_arrays() -> None:
    _, grads = batch(Tables(), CASES["by two types"][0]).value_and_grad(BATCH)
    arrays = {name: np.array(gradient) for name, gradient in grads.items()}
    assert clip_by_norm(grads, 0.1) == pytest.approx(clip_by_norm(arrays, 0.1), rel=TOLERANCE)
    assert isinstance(grads["table"], ab.Rows)
    np.testing.assert_allclose(grads["table"], arrays["table"], rtol=TOLERANCE)


def test_lazy_training_leaves_the_rows_that_were_not_read() -> None:
    model = Tables()
    before = model.table.data.copy()
    optimizer = AdamW(model, lr=0.1, weight_decay=0.5, lazy=True)
    loss = batch(model, CASES["a row per node"][0])
    for _ in range(3):
        optimizer.step(loss.value_and_grad(BATCH)[1])
    changed = np.flatnonzero((model.table.data != before).any(axis=1))
    assert changed.tolist() == [0, 1, 4, 6]
