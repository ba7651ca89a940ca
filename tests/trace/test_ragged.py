"""Test ragged values: cells over (n, d), where n differs between nodes, have one type and are right on all backends."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
import ragged
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.errors import DataError, GraphError, ShapeError
from helpers.runs.recorded import count_types, traced, types_of
from helpers.runs.ways import each
from host_device import HostDevice

INTERPRETED: list[Callable[[], Any]] = [lambda: Reference(poison=True), lambda: Cpu(poison=True)]
COMPILED: list[Callable[[], Any]] = [lambda: Cpu(poison=True)]
if shutil.which("g++") is not None:
    COMPILED.append(lambda: Cuda(poison=True, device=HostDevice()))
COMPILED_BODIES = ("attend", "layer_norm", "log_softmax", "max", "transformer", "rows", "padded", "convolution")
DIM, TOLERANCE = 3, 1e-10
LENGTHS = ([1, 2], [20, 3], [5, 5, 1, 2], [7])  # per instance, per node: the number of rows


class Weights(ab.Module):
    """The parameters of the cells."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.scale, self.shift = ab.Parameter(rng.standard_normal(DIM)), ab.Parameter(rng.standard_normal(DIM))
        self.W, self.U = ab.Parameter(rng.standard_normal((DIM, 4))), ab.Parameter(rng.standard_normal((4, 5)))
        self.out, self.table = ab.Parameter(rng.standard_normal(DIM)), ab.Parameter(rng.standard_normal((6, DIM)))
        self.layer, self.norm = ab.Linear(DIM, 4, rng=rng), ab.LayerNorm(DIM)
        self.astype("float64")

    @ab.cell
    def feed(self, x: Any) -> Any:
        return self.scale * x + self.shift

    @ab.cell(ragged=("x",))
    def feed_all(self, x: Any) -> Any:
        return self.scale * x + self.shift


def pad(x: Any, by: int) -> Any:
    """Shift the rows by one and fill the free row with zeros."""
    zeros = np.zeros((1, DIM))
    return ab.concat([zeros, x[:-1]] if by > 0 else [x[1:], zeros], axis=0)


Body = Callable[[Weights, Any, Any], Any]
BODIES: tuple[tuple[str, Body], ...] = (
    ("elements", lambda w, x, q: ab.sum(ab.tanh(x) * 2.0 + ab.where(x > 0.1, x, -x), axis=0)),
    ("broadcast a row", lambda w, x, q: ab.sum(x * q - w.shift, axis=0)),
    ("broadcast a number", lambda w, x, q: ab.sum(x * q[0] + q[1:2], axis=0)),
    ("broadcast a column", lambda w, x, q: ab.sum(x * (x @ q)[:, None] + x[:, :1], axis=0)),
    ("broadcast one row", lambda w, x, q: ab.sum(x * ab.reshape(q, (1, DIM)), axis=0)),
    ("x @ W", lambda w, x, q: ab.sum(ab.tanh(x @ w.W) @ w.U, axis=0)),
    ("x @ a vector", lambda w, x, q: ab.sum(ab.tanh(x @ q)) * q),
    ("Linear", lambda w, x, q: ab.max(w.layer(x), axis=0)),
    ("layer_norm", lambda w, x, q: ab.sum(w.norm(x) * q, axis=0)),
    ("sum of all", lambda w, x, q: ab.sum(x * x)),
    ("sum with keepdims", lambda w, x, q: ab.sum(x / ab.sum(x * x, axis=(0, 1), keepdims=True), axis=0)),
    ("sum of rows", lambda w, x, q: ab.max(ab.sum(x, axis=1) + ab.sum(x * x, axis=-1), axis=0)),
    ("max", lambda w, x, q: ab.max(x, axis=0) * ab.max(x) + ab.sum(ab.max(x, axis=1))),
    ("min", lambda w, x, q: ab.min(x, axis=0)),
    ("mean", lambda w, x, q: ab.mean(x, axis=0) + ab.mean(x) + ab.sum(ab.mean(x, axis=1))),
    ("the number of rows", lambda w, x, q: ab.sum(x, axis=0) / x.shape[0]),
    ("softmax", lambda w, x, q: ab.sum(ab.softmax(x @ q, axis=0)[:, None] * x, axis=0)),
    ("softmax of rows", lambda w, x, q: ab.sum(ab.softmax(x) * x + ab.softmax(x, axis=0), axis=0)),
    ("log_softmax", lambda w, x, q: ab.sum(ab.log_softmax(x, axis=0) * x + ab.log_softmax(x), axis=0)),
    ("logsumexp", lambda w, x, q: ab.logsumexp(x, axis=0) + ab.logsumexp(x) + ab.sum(ab.logsumexp(x, axis=1))),
    ("weights @ x", lambda w, x, q: ab.softmax(x @ q) @ x),
    ("dot", lambda w, x, q: ab.dot(x[:, 0], x[:, 1]) + x[:, 0] @ x[:, 2]),
    ("attend", lambda w, x, q: ab.attend(q, x, ab.tanh(x))),
    ("variadic forms", lambda w, x, q: ab.sum_n(x) + ab.mean_n(x * q) + ab.max_n(x)),
    ("concat of columns", lambda w, x, q: ab.sum(ab.concat([x, ab.tanh(x)], axis=1)[:, 2:5], axis=0)),
    ("split", lambda w, x, q: ab.sum(ab.concat(ab.split(x, 3)[::-1]), axis=0)),
    ("slices", lambda w, x, q: ab.sum(x[..., 1:] * x[:, :2], axis=0)),
    ("rows", lambda w, x, q: x[0] * x[-1] + x[0, 1:2] * x[-1, 0]),
    ("slices of rows", lambda w, x, q: ab.sum(ab.tanh(x)[1:] * x[:-1], axis=0) + ab.sum(x[::-1] * x, axis=0)),
    ("steps", lambda w, x, q: ab.sum(x[1::2], axis=0) - ab.sum(x[-2::-3][:2] * q, axis=0) + ab.sum(x[5:2:-1, :1])),
    ("rotated", lambda w, x, q: ab.sum(ab.concat([x[1:], x[:1]], axis=0) * x, axis=0)),
    ("padded", lambda w, x, q: ab.sum(ab.concat([w.W.T[:1, :3], x, ab.reshape(q, (1, DIM))], axis=0)[1:-2] * x[:-1])),
    ("a node value", lambda w, x, q: ab.max(ab.concat([x, ab.reshape(ab.concat((q, -q)), (2, DIM))], axis=0), axis=0)),
    ("twice", lambda w, x, q: ab.max(ab.concat([x, ab.tanh(x), x[1:] @ w.W @ w.W.T], axis=0), axis=0)),
    ("convolution", lambda w, x, q: ab.max(ab.tanh(ab.concat([pad(x, 1), x, pad(x, -1)], axis=1)[:, 1:5]), axis=0)),
    ("argmax", lambda w, x, q: ab.sum(ab.lookup(w.table, ab.argmax(x, axis=1)) * x, axis=0)),
    ("stop_gradient", lambda w, x, q: ab.sum(ab.stop_gradient(x > 0.1) * x, axis=0)),
    ("transformer", lambda w, x, q: ab.mean(w.norm(x + ab.relu(w.layer(x)) @ ab.transpose(w.W)), axis=0)),
)  # fmt: skip


def draw(lengths: Any = LENGTHS, seed: int = 0) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    return [[rng.standard_normal((n, DIM)) for n in nodes] for nodes in lengths]


def check(loss: Any, module: Any, instances: Any, backends: Any = INTERPRETED) -> Any:
    """Check a loss against one instance at a time and central differences; return the last batched function."""
    for make in backends:
        found = ab.batched(loss, module=module, backend=make())
        ab.testing.check_batched(loss, found, instances, TOLERANCE)
        ab.testing.check_grads(found, instances, module, np.random.default_rng(1))
    return found


def stacking(body: Body) -> Any:
    """Return a cell that stacks a list into a ragged value."""
    return ab.cell(lambda weights, rows, query: ab.sum(body(weights, ab.stack(rows), query)))


def taking(body: Body) -> Any:
    """Return a cell whose argument is a ragged value of another cell."""
    return ab.cell(lambda weights, rows, query: ab.sum(body(weights, rows, query)))


def loss_of(weights: Weights, cells: Any, listed: bool) -> Any:
    def loss(nodes: Any) -> Any:
        fed = [[weights.feed(row) for row in rows] if listed else weights.feed_all(rows) for rows in nodes]
        return ab.sum_n([call(weights, rows, ab.tanh(weights.out)) for rows in fed for call in cells], shape=())

    return loss


@pytest.mark.slow
@each("name, body", BODIES)
def test_all_lengths_are_one_type(name: str, body: Body) -> None:
    weights = Weights()
    for make in (stacking, taking):
        found = check(loss_of(weights, [make(body)], listed=make is stacking), weights, draw())
        assert count_types(found, "<lambda>") == 1


@pytest.mark.slow
def test_compiled_backends_run_them_too() -> None:
    weights = Weights()
    chosen = [body for name, body in BODIES if name in COMPILED_BODIES]
    loss = loss_of(weights, [taking(body) for body in chosen], listed=False)
    assert count_types(check(loss, weights, draw(), COMPILED), "<lambda>") == len(chosen)


@pytest.mark.slow
@each("listed", [True, False])
def test_a_thousand_lengths_are_traced_and_compiled_once(listed: bool) -> None:
    weights = Weights()
    call = (stacking if listed else taking)(BODIES[5][1])
    loss = ab.batched(loss_of(weights, [call], listed), module=weights, backend="reference")
    few, many = draw([[1, 2]]), draw([[n] for n in range(1, 1001)])
    loss(few)
    before = traced(loss), len(types_of(loss))
    loss(many)
    assert (traced(loss), len(types_of(loss))) == before


@each(
    "body, message",
    [
        (lambda w, x, q: x + w.W, "add must have shapes that broadcast, got (n, 3) with n rows of 'rows' and (3, 4)"),
        (lambda w, x, q: x + x[:, 0], "shapes that broadcast, got (n, 3) with n rows of 'rows' and (n,) with"),
        (lambda w, x, q: w.W.T @ x, "its only axis, got (4, 3) and (n, 3) with n rows of 'rows'; n differs"),
        (lambda w, x, q: x.T @ x, "matmul is not supported for shapes (3, n) and (n, 3), because the numbers"),
        (lambda w, x, q: ab.concat([x, q]), "concat along axis -1 must agree in all other axes, got shapes (n, 3)"),
    ],
)  # fmt: skip
def test_what_needs_the_length_is_refused(body: Body, message: str) -> None:
    weights = Weights()
    with pytest.raises(ShapeError) as error:
        ab.batched(loss_of(weights, [taking(body)], listed=False), module=weights)(draw([[2, 3]]))
    assert message in str(error.value)


@each(
    "refused, instead",
    [
        (lambda w, x, q: ab.einsum("ij,jk->ik", x, w.W), lambda w, x, q: ab.each(lambda row: row @ w.W, x)),
        (lambda w, x, q: ab.layer_norm(x[:, 0], x[:, 1], x[:, 2]), lambda w, x, q: x[:, 0] - ab.mean(x[:, 0])),
        (lambda w, x, q: ab.reshape(x, (DIM, -1)), lambda w, x, q: ab.each(lambda row: ab.reshape(row, (1, DIM)), x)),
    ],
)  # fmt: skip
def test_what_is_refused_can_be_applied_to_each_row(refused: Body, instead: Body) -> None:
    weights = Weights()
    with pytest.raises(ShapeError, match=r"apply it to each row, by ab\.each\(lambda row: \.\.\., x\), or "):
        ab.batched(loss_of(weights, [taking(refused)], listed=False), module=weights)(draw([[2, 3]]))

    def stacked(w: Weights, x: Any, q: Any) -> Any:
        made = instead(w, x, q)
        return made if hasattr(made, "shape") else ab.stack(made)

    loss = loss_of(weights, [taking(stacked)], listed=False)
    ab.testing.check_batched(loss, ab.batched(loss, module=weights, backend=Reference()), draw(), TOLERANCE)


@pytest.mark.slow
@each(
    "body",
    [
        lambda w, x, q: x.T @ ab.ops.reshape(x, (-1, DIM)),
        lambda w, x, q: ab.outer(x[:, 0], q),
    ],
)
def test_a_list_has_a_type_per_length_if_its_body_needs_that(body: Body) -> None:
    weights = Weights()
    found = check(loss_of(weights, [stacking(body)], listed=True), weights, draw())
    assert count_types(found, "<lambda>") == len({n for nodes in LENGTHS for n in nodes})


def test_a_row_that_does_not_exist_is_refused() -> None:
    weights = Weights()
    for make in (stacking, taking):
        loss = loss_of(weights, [make(lambda w, x, q: x[2])], listed=make is stacking)
        found = ab.batched(loss, module=weights)
        found(draw([[3, 4]]))
        with pytest.raises(ShapeError, match=r"reads row 2 of 'rows', which must exist, got 2 rows\."):
            found(draw([[3, 2]]))


WALKS: dict[str, Body] = {
    "slice": lambda w, x, q: ab.sum_n([ab.tanh(row * q) for row in x[1:]]),
    "joined": lambda w, x, q: sum(ab.tanh(row) * q for row in ab.concat([x, x[::-1], x[1:]], axis=0)),
    "beside the whole": lambda w, x, q: ab.sum_n([row * q for row in x[1:]]) + ab.max_n([ab.tanh(row) for row in x]),
    "neighbours": lambda w, x, q: ab.mean_n([one * ab.tanh(last) for one, last in zip(x[1:], x[:-1], strict=True)]),
    "slice of a slice": lambda w, x, q: ab.max_n([row * q for row in x[::-1][:-1]]),
    "padded": lambda w, x, q: sum(ab.tanh(row) for row in ab.concat([ab.reshape(q, (1, DIM)), x], axis=0)),
}


@each("name", WALKS)
def test_walks_through_parts_are_one_type(name: str) -> None:
    """The rows are sliced or joined in the cell, and the parts still have rows."""
    weights, instances = Weights(), draw([[2, 4], [3], [7, 2]])
    for make in (stacking, taking):
        found = check(loss_of(weights, [make(WALKS[name])], listed=make is stacking), weights, instances)
        assert count_types(found, "<lambda>") == 1


def test_walks_through_parts_without_rows_have_a_type_of_their_own() -> None:
    """Supported for lists. Refused for ragged values, whose number of rows differs between nodes of one type."""
    weights, walk = Weights(), lambda w, x, q: ab.sum_n([ab.tanh(row * q) for row in x[1:]], shape=(DIM,))
    found = check(loss_of(weights, [stacking(walk)], listed=True), weights, draw([[1, 4], [3, 1]]))
    assert count_types(found, "<lambda>") == 2
    with pytest.raises(GraphError, match=r"walks through a part of it, which has no elements, but .* 'rows' differs"):
        ab.batched(loss_of(weights, [taking(walk)], listed=False), module=weights)(draw([[1, 4]]))


def test_a_walk_through_rows_of_a_node_is_refused() -> None:
    weights = Weights()
    walk = ab.cell(lambda weights, rows, query: ab.sum(sum(rows[k] for k in range(len(rows)))))
    with pytest.raises(GraphError, match=r"number of rows of 'rows' differs between nodes; apply ops to all rows"):
        ab.batched(loss_of(weights, [walk], listed=False), module=weights)(draw([[2, 3]]))


class Tagger(ab.Module):
    """A model that reads words and predicts a tag for each."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.table, self.W = ab.Parameter(rng.standard_normal((10, DIM))), ab.Parameter(rng.standard_normal((DIM, 4)))
        self.astype("float64")

    @ab.cell(ragged=("words", "tags"))
    def read(self, words: Any, tags: Any, factor: Any, weight: Any) -> Any:
        scores = ab.tanh(ab.lookup(self.table, words)) @ self.W
        return factor * weight * ab.sum(ab.cross_entropy(scores, tags)) + ab.sum(ab.max(scores, axis=0))

    @ab.cell(ragged=("pairs",))
    def read_pairs(self, pairs: Any) -> Any:
        return ab.sum(ab.lookup(self.table, pairs[:, 1]) * ab.lookup(self.table, pairs)[:, 0])

    def loss(self, item: Any) -> Any:
        words, tags = item
        again = self.read(words[:1], tags[:1], 2, 0.5) + self.read(words[:1], tags[:1], 2, 0.5)
        return self.read(words, tags, len(words), 1.5) + again + self.read_pairs(np.stack([words, tags], axis=1))


def draw_words(lengths: Any = (1, 5, 0, 2, 9)) -> list[Any]:
    rng = np.random.default_rng(0)
    return [(rng.integers(0, 10, max(n, 1)), rng.integers(0, 4, max(n, 1))) for n in lengths]


@pytest.mark.slow
@pytest.mark.usefixtures("_checked")
def test_words_of_any_length_are_one_type_on_all_backends() -> None:
    model, items = Tagger(), draw_words()
    found = check(model.loss, model, items, [*INTERPRETED, *COMPILED])
    assert (count_types(found, "read"), count_types(found, "read_pairs")) == (1, 1)
    assert types_of(found)[0].signature == "read(words: int[n], tags: int[n], factor: int, weight: float)"
    graphs = found.record_all(items)
    np.testing.assert_allclose(found(graphs[::-1]), [model.loss(item) for item in items[::-1]], atol=1e-12)


@pytest.mark.usefixtures("_checked")
def test_equal_nodes_are_shared_only_if_their_data_are_equal() -> None:
    model, items = Tagger(), draw_words()
    found, apart = (ab.batched(model.loss, rewrites=names) for names in (("share",), ()))
    for loss in (found, apart):
        np.testing.assert_allclose(loss(items), [model.loss(item) for item in items], atol=1e-12)
    assert found.last is not None
    assert apart.last is not None
    assert (found.last.nodes, apart.last.nodes) == (28, 35)  # a node per pair; per pair and sum of two instances


def test_data_of_any_length_is_checked_before_anything_runs() -> None:
    model = Tagger()
    loss = ab.batched(model.loss)
    words, tags = draw_words([4])[0]
    with pytest.raises(GraphError, match=r"cell 'read' .* must have equal lengths, got 4 of 'words' and 3 of 'tags'"):
        loss([(words, tags[:3])])
    loss([(words, tags)])
    with pytest.raises(GraphError, match=r"4 of 'words' and 3 of 'tags'"):
        loss([(words, tags[:3])])
    wrong = words.copy()
    wrong[3] = 10
    with pytest.raises(DataError, match=r"instance 1, node 3 \('read'\) gives 10 as read argument 'words', .* 0\.\.9"):
        loss([(words, tags), (wrong, tags)])


def test_explain_tells_of_arrays_that_have_a_type_per_length() -> None:
    model = Tagger()
    plain = ab.cell(lambda model, words, factor: factor * ab.sum(ab.lookup(model.table, words)))
    loss = ab.batched(lambda words: plain(model, words, 2.0), module=model)
    told = str(loss.explain([np.arange(n) for n in (1, 2, 5)]))
    assert "<lambda> has a type for each length of words; with @ab.cell(ragged=('words',)) all lengths are one" in told
    found = ab.batched(model.loss)
    assert "a type for each length" not in str(found.explain(draw_words()))


class Dropped(Tagger):
    """A model that applies dropout to rows and draws one of four classes for each."""

    @ab.cell(ragged=("words",))
    def drop(self, words: Any) -> Any:
        x = ab.dropout(ab.lookup(self.table, words), 0.5)
        chosen = ab.categorical(x @ self.W)
        return ab.sum(ab.dropout(ab.tanh(x), 0.3)[1:]) + ab.sum(ab.lookup(self.table, chosen) * x), ab.sum(chosen)

    def drops(self, item: Any) -> Any:
        first, again = self.drop(item[0]), self.drop(item[1])
        return first[0] + again[0], first[1]


def test_rows_are_dropped_and_drawn_as_in_eager_mode() -> None:
    model, items = Dropped(), draw_words((3, 1, 6))
    for make in INTERPRETED:
        found = ab.batched(model.drops, backend=make(), seed=4)
        losses, chosen = found(items)
        for key, item in enumerate(items):
            with ab.randomness(seed=4, key=key):
                own, drawn = model.drops(item)
            np.testing.assert_allclose(losses[key], own, atol=1e-12)
            assert chosen[key] == drawn
    ab.testing.check_grads(
        ab.batched(lambda item: model.drops(item)[0], module=model), items, model, np.random.default_rng(1)
    )


def test_losses_and_gradients_are_those_of_torch_padded_and_nested() -> None:
    config = ragged.Config(batch_size=9, longest=12, words=20)
    rng = np.random.default_rng(0)
    model = ragged.Reader(config.words, 8, rng)
    twin = ragged.TorchReader(model, config.words, 8)
    for make_ways in (ragged.inference, ragged.training):  # they compare all ways themselves
        make_ways(model, twin, ragged.draw(config, rng), "reference")
