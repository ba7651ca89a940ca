"""Regression tests: DyNet's bugs with batching, and results that were silently wrong here."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.graph.rewrite import PASSES
from autobatch.ops.define import Op, run_kernel
from autobatch.ops.elementwise import greater, less
from autobatch.ops.operators import OPS
from helpers.runs.ways import each

POLICIES = ("unbatched", "depth", "agenda")
DIM = 3


class Trees(ab.Module):
    """Leaves by word, inner nodes of two, in float64; a program is a number (a leaf) or a pair of programs."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.table = ab.Parameter(rng.standard_normal((5, DIM)))
        self.weight = ab.Parameter(rng.standard_normal((DIM, DIM)))
        self.kept: Any = None
        self.astype("float64")

    @ab.cell
    def leaf(self, word: int) -> Any:
        return ab.lookup(self.table, word)

    @ab.cell
    def inner(self, left: Any, right: Any) -> Any:
        return ab.tanh(self.weight @ left + right)

    @ab.cell
    def product(self, left: Any, right: Any) -> Any:
        return ab.sum(left * right)

    @ab.cell
    def logarithm(self, x: Any) -> Any:
        return ab.log(ab.sum(x))

    @ab.cell
    def nested(self, x: Any) -> Any:
        return x, (2.0 * x, -x)

    def root(self, tree: Any) -> Any:
        def visit(tree: Any) -> Any:
            return self.leaf(tree) if isinstance(tree, int) else self.inner(visit(tree[0]), visit(tree[1]))

        return visit(tree)

    def loss(self, tree: Any) -> Any:
        return self.product(self.root(tree), self.table[0])


def draw_tree(rng: np.random.Generator, n_leaves: int) -> Any:
    if n_leaves == 1:
        return int(rng.integers(5))
    left = int(rng.integers(1, n_leaves))
    return draw_tree(rng, left), draw_tree(rng, n_leaves - left)


def draw_batch(rng: np.random.Generator, size: int, n_leaves: int = 6) -> list[Any]:
    return [draw_tree(rng, int(rng.integers(1, n_leaves + 1))) for _ in range(size)]


def batch(model: ab.Module, function: Callable[[Any], Any], **options: Any) -> ab.Batched:
    """Return the batched function, on a buffer that is NaN wherever nothing has been written."""
    return ab.batched(function, module=model, backend=Reference(poison=True), **options)


@pytest.mark.usefixtures("_checked")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_shared_value_that_is_not_the_first_of_its_batch(policy: str) -> None:
    r"""
    leaf 1  leaf 2  leaf 3      one batch; 3 is read twice, 2 once more from below
        \    /   \  /  \
        product  product product(3, 3)
    """
    model = Trees()

    def loss_of(_: None) -> Any:
        one, two, three = (model.leaf(word) for word in (1, 2, 3))
        return model.product(one, two) + model.product(two, three) + model.product(three, three)

    loss = batch(model, loss_of, policy=policy)
    value, grads = loss.value_and_grad([None, None], reduce="sum")
    one, two, three = model.table.data[1:4]
    np.testing.assert_allclose(value, 2 * (one @ two + two @ three + three @ three), rtol=1e-14)
    expected = np.zeros((5, DIM))
    expected[1:4] = 2 * two, 2 * (one + three), 2 * (two + 2 * three)
    np.testing.assert_allclose(grads["table"], expected, rtol=1e-14)
    assert not grads["weight"].any()
    assert loss.last is not None
    assert loss.last.batches == {"unbatched": 14, "depth": 3, "agenda": 3}[policy]


@pytest.mark.usefixtures("_checked")
def test_values_right_after_the_buffer_grew() -> None:
    """Small, large, larger and small batches equal eager results; earlier results stay unchanged."""
    model, rng = Trees(), np.random.default_rng(1)
    loss = batch(model, model.loss)
    handed_out, copies, grown = [], [], []
    for size in (1, 40, 2, 90, 1, 90):
        trees = draw_batch(rng, size)
        losses = loss(trees)
        np.testing.assert_allclose(losses, [model.loss(tree) for tree in trees], rtol=1e-12)
        assert loss.last is not None
        grown.append(loss.last.allocations)
        value, _ = loss.value_and_grad(trees)
        np.testing.assert_allclose(value, losses.mean(), rtol=1e-12)
        grown.append(loss.last.allocations)
        handed_out.append(losses)
        copies.append(losses.copy())
    for returned, copy in zip(handed_out, copies, strict=True):
        np.testing.assert_array_equal(returned, copy)
    assert grown[:4] == [1, 1, 1, 1]
    assert grown[8:10] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("n_batches", [100, 500, 5000])
def test_thousands_of_mini_batches_without_growth(n_batches: int) -> None:
    """Recorded each time by a function with a recursive closure, which only the garbage collector frees."""
    model, rng = Trees(), np.random.default_rng(2)
    loss = ab.batched(model.loss)
    batches = [draw_batch(rng, 32) for _ in range(10)]
    for trees in batches * 20:
        loss.value_and_grad(trees)
    calls, n_bytes, n_grown = loss.recorder.calls, list[int](), 0
    sizes = len(calls.forms), len(calls.types)
    tracemalloc.start()
    try:
        start, _ = tracemalloc.get_traced_memory()
        for k in range(n_batches):
            loss.value_and_grad(batches[k % 10])
            assert loss.last is not None
            n_grown += loss.last.allocations
            n_bytes.append(calls.log.n_bytes)
        end, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_grown == 0
    assert n_bytes[-1] <= max(n_bytes[:10])
    assert (len(calls.forms), len(calls.types)) == sizes
    assert end - start < 2**20


@pytest.mark.usefixtures("_checked")
@each("policy", POLICIES)
@each("rewrites", [(), PASSES])
def test_no_nan_that_the_loss_does_not_depend_on(policy: str, rewrites: tuple[str, ...]) -> None:
    """Some nodes of a type have finite results that the loss reads, others NaN or infinity that it does not read."""
    model = Trees()
    model.table.data = np.array([[1.0] * DIM, [-1.0] * DIM, [0.0] * DIM, [2.0] * DIM, [3.0] * DIM])

    def loss_and_logarithms(word: int) -> Any:
        logs = [model.logarithm(model.leaf(w)) for w in (word, 1, 2)]
        return logs[0] + model.product(model.leaf(1), model.leaf(2)), logs

    loss = batch(model, loss_and_logarithms, policy=policy, rewrites=rewrites)
    (value, aux), grads = loss.value_and_grad([0, 3, 4], reduce="sum", has_aux=True)
    np.testing.assert_allclose(value, np.log([3.0, 6.0, 9.0]).sum(), rtol=1e-14)
    assert np.isnan(aux[0][1])
    assert aux[0][2] == -np.inf
    expected = np.zeros((5, DIM))
    expected[[0, 3, 4]] = np.array([[1 / 3], [1 / 6], [1 / 9]])
    expected[2] = -3.0  # from the product with word 1
    np.testing.assert_allclose(grads["table"], expected, rtol=1e-14)
    _, alone = loss.value_and_grad([3], has_aux=True)
    assert np.isfinite(alone["table"]).all()


# Results that were silently wrong in random programs here, and variants of them.


@ab.cell
def weighed(first: Any, values: Any, pair: Any) -> Any:
    """Return sums of two lists, either of which may be empty, and of a pair after them."""
    return ab.sum_n(first, shape=(2,)) + ab.mean_n(values, shape=(2,)) * pair[0] - pair[1]


@pytest.mark.usefixtures("_checked")
@pytest.mark.parametrize("lengths", [(0, 2), (2, 0), (0, 0), (1, 20)])
def test_an_empty_list_does_not_shift_the_arguments_after_it(lengths: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    instances = [[rng.standard_normal((n, 2)) for n in (*lengths, 1, 1)] for _ in range(3)]

    def run(arrays: Any) -> Any:
        first, values, left, right = arrays
        return weighed(list(first), list(values), (left[0], right[0]))

    np.testing.assert_allclose(ab.batched(run)(instances), [run(i) for i in instances], rtol=1e-5)


@pytest.mark.usefixtures("_checked")
def test_a_sum_with_a_number_is_no_sum_of_one_value() -> None:
    """The forward rewrite removes a sum of one value, but not a sum of a value and a number."""
    model = Trees()

    def run(word: int) -> Any:
        x = model.product(model.leaf(word), model.leaf(0))
        return ab.sum_n([x, np.float64(0.5)]) * ab.sum_n([2, x, 0.25])

    loss = batch(model, run)
    ab.testing.check_batched(run, loss, [1, 2])
    assert len(loss.merged([]).types) == 5


@each("dtype", ["float32", "float64"])
@each("op", [op for op in OPS.values() if op.scalar is not None])
def test_kernels_on_columns_of_wide_rows(op: Op, dtype: str) -> None:
    """np.negative of NumPy 2.4.6 skips elements at some strides; saved values may have any stride."""
    for width in range(1, 20):
        columns = [np.full((5, width), np.nan, dtype)[:, width // 2] for _ in op.names]
        for k, column in enumerate(columns):
            column[:] = np.linspace(0.2 + k, 0.9, 5)
        out, expected = np.full((5, 3), np.nan, dtype)[:, 1], np.empty(5, dtype)
        run_kernel(op, np, [column.copy() for column in columns], expected, {})
        run_kernel(op, np, columns, out, {})
        np.testing.assert_allclose(out, expected, rtol=1e-6 if dtype == "float32" else 1e-14)


@pytest.mark.usefixtures("_checked")
def test_an_array_that_is_changed_between_calls() -> None:
    model = Trees()

    def run(word: int) -> Any:
        buffer, total = np.zeros(DIM), np.zeros(())
        for k in range(DIM):
            buffer[:] = 0
            buffer[k] = word
            total = total + model.product(buffer, model.table[k])
        return total

    np.testing.assert_allclose(batch(model, run)([1, 2]), [run(1), run(2)], rtol=1e-14)


@pytest.mark.usefixtures("_checked")
def test_ids_written_into_a_cell() -> None:
    model = Trees()

    @ab.cell
    def constant_ids(table: Any, words: Any) -> Any:
        fixed = ab.lookup(model.table, np.array([1, 1])) * ab.lookup(table, 0)
        return ab.sum(fixed) + ab.cross_entropy(ab.lookup(model.table, words[1]), 2)

    def run(word: int) -> Any:
        return constant_ids(ab.outer(model.leaf(word), model.leaf(3)), np.array([0, word]))

    loss = batch(model, run)
    ab.testing.check_batched(run, loss, [0, 1, 4])
    ab.testing.check_grads(loss, [0, 1, 4], model, np.random.default_rng(0))


@pytest.mark.usefixtures("_checked")
def test_values_without_elements() -> None:
    model = Trees()

    @ab.cell
    def join(x: Any, y: Any, words: Any) -> Any:
        return ab.concat((x, y)), ab.lookup(model.table, words)

    def run(n: int) -> Any:
        joined, rows = join(model.leaf(1)[:0] * 2.0, model.leaf(2)[:n], np.arange(0))
        return ab.sum(joined) + ab.sum(rows), [joined, rows]

    loss = batch(model, run)
    ab.testing.check_batched(run, loss, [0, 0, 2])
    _, grads = loss.value_and_grad([0, 2], reduce="sum", has_aux=True)
    np.testing.assert_array_equal(grads["table"], np.eye(5)[2][:, None] * [1.0, 1.0, 0.0])


@pytest.mark.usefixtures("_checked")
def test_sums_of_nothing_are_not_rounded_to_single_precision() -> None:
    model = Trees()

    @ab.cell
    def mean(values: Any) -> Any:
        return ab.sum(ab.softplus(ab.mean_n(values, shape=(DIM,))))

    def run(n: int) -> Any:
        return mean([model.leaf(word) for word in range(n)])

    np.testing.assert_allclose(run(0), DIM * np.log(2.0), rtol=1e-15)
    ab.testing.check_batched(run, batch(model, run), [0, 1, 2], 1e-15)


@pytest.mark.usefixtures("_checked")
def test_training_more_or_fewer_parameters_than_before() -> None:
    model, tree = Trees(), ((1, 2), 3)
    loss = batch(model, model.loss)
    _, grads = loss.value_and_grad([tree])
    both = {name: gradient.copy() for name, gradient in grads.items()}
    model.table.trainable = False
    _, grads = loss.value_and_grad([tree])
    assert grads.keys() >= {"weight"}
    np.testing.assert_array_equal(grads["weight"], both["weight"])
    model.table.trainable, model.weight.trainable = True, False
    np.testing.assert_array_equal(loss.value_and_grad([tree])[1]["table"], both["table"])


@pytest.mark.parametrize("part", ["handle", "inner tuple", "value", "copy"])
def test_a_part_of_a_value_that_is_kept_is_never_taken_for_another(part: str) -> None:
    """A value of an earlier recording is refused, although the calls of each recording have the same numbers."""
    model = Trees()

    def run(n: int) -> Any:
        if n == 0:
            kept = model.nested(model.leaf(0))
            model.kept = {"handle": kept, "inner tuple": kept[1], "value": kept[1][1], "copy": deepcopy(kept[1][1])}[
                part
            ]
            return model.product(kept[0], kept[0])
        for _ in range(n):
            last = model.nested(model.leaf(1))
        if part in ("value", "copy"):
            return model.product(last[0], model.kept)
        inner = model.kept[1] if part == "handle" else model.kept
        return model.product(last[0], inner[1])

    loss = batch(model, run)
    loss([0])
    for _ in range(4):
        with pytest.raises(ab.GraphError, match="recorded values must be used within their own instance"):
            loss([1000])


def test_an_instance_keeps_its_result_when_many_follow() -> None:
    """One recording has more nodes than the core has spare handles."""
    model = Trees()
    comb = 0
    for _ in range(400):
        comb = (comb, 1)  # type: ignore[assignment]
    trees = [comb, *[(k % 5, 1) for k in range(60)]] * 2
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        loss = batch(model, model.loss)
        for _ in range(8):
            np.testing.assert_allclose(loss(trees)[1:10], [model.loss(tree) for tree in trees[1:10]], rtol=1e-12)
    finally:
        sys.setrecursionlimit(before)


def test_ops_are_arguments_of_cells() -> None:
    """Ops whose expressions differ only in the numbers of their arguments are two types, not data."""

    @ab.cell
    def choose(op: Any, x: Any, y: Any) -> Any:
        return ab.sum(ab.where(op(x, y), x, 2.0 * y))

    instances = [((less, greater)[k % 2], np.arange(3.0) - k, np.ones(3)) for k in range(4)]
    run = ab.batched(lambda instance: choose(*instance))
    np.testing.assert_allclose(run(instances), [choose(*instance) for instance in instances])


class Noisy(ab.Module):
    """A cell whose product has a matrix per node, and weights that all nodes share."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.left, self.right = ab.Parameter(rng.standard_normal((4, 2))), ab.Parameter(rng.standard_normal((2, 3)))
        self.astype("float64")

    @ab.cell
    def product(self, x: Any) -> Any:
        return ab.sum(ab.tanh((self.left + x) @ self.right))


@pytest.mark.slow
@each("backend", ["reference", "cpu"])
def test_a_gradient_that_sums_products_of_matrices_per_node_with_a_shared_one(backend: str) -> None:
    model = Noisy()
    loss = ab.batched(model.product, backend=backend)
    ab.testing.check_grads(loss, [0.1, 0.2, -0.3, 0.4], model, np.random.default_rng(1))
