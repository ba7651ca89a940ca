"""Test values with an element for each pair of rows, such as self-attention scores: one type, and no padding."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.errors import DataError, GraphError, ShapeError
from helpers.runs.recorded import count_types, traced
from helpers.runs.ways import each
from host_device import HostDevice

BACKENDS: list[Callable[[], Any]] = [lambda: Reference(poison=True), lambda: Cpu(poison=True)]
COMPILED: list[Callable[[], Any]] = [lambda: Cpu(poison=True)]
if shutil.which("g++") is not None:
    COMPILED.append(lambda: Cuda(poison=True, device=HostDevice()))
DIM = 4


class Attention(ab.Module):
    """Attention between two ragged values."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self.Q, self.K, self.V = (ab.Parameter(rng.standard_normal((DIM, DIM))) for _ in range(3))
        self.bias, self.scale = ab.Parameter(rng.standard_normal(DIM)), ab.Parameter(rng.standard_normal(()))
        self.astype("float64")

    @ab.cell(ragged=("x", "y", "heads", "places"))
    def every(self, x: Any, y: Any, heads: Any, places: Any) -> Any:
        return sum(ab.sum(body(self, x, y, heads, places)) for _, body in BODIES)


def heads_of(m: Attention, x: Any, y: Any, n: int = 2) -> Any:
    q, k, v = (ab.split(z @ w, n) for z, w in ((x, m.Q), (y, m.K), (y, m.V)))
    return ab.concat([ab.softmax(a @ b.T / math.sqrt(DIM // n)) @ c for a, b, c in zip(q, k, v, strict=True)], axis=1)


def causal(m: Attention, x: Any, places: Any) -> Any:
    """Apply self-attention that masks later positions."""
    scores = ab.where(places[:, None] >= places, (x @ m.Q) @ x.T, -1e9)
    return ab.softmax(scores) @ (x @ m.V)


Body = Callable[[Attention, Any, Any, Any, Any], Any]
BODIES: tuple[tuple[str, Body], ...] = (
    ("self-attention", lambda m, x, y, h, p: ab.softmax((x @ m.Q) @ (x @ m.K).T / 2.0) @ (x @ m.V)),
    ("plain", lambda m, x, y, h, p: ab.softmax(x @ x.T) @ x),
    ("cross-attention", lambda m, x, y, h, p: ab.softmax(x @ m.Q @ y.T, axis=1) @ ab.tanh(y)),
    ("heads", lambda m, x, y, h, p: heads_of(m, x, x) + heads_of(m, x, y)),
    ("causal", lambda m, x, y, h, p: causal(m, x, p)),
    ("transposed", lambda m, x, y, h, p: ab.softmax((x @ y.T).T * m.scale, axis=-1) @ x),
    ("both ways", lambda m, x, y, h, p: ab.sum(ab.softmax(x @ y.T, axis=0) * (y @ x.T).T)),
    ("log_softmax", lambda m, x, y, h, p: ab.log_softmax(x @ y.T, axis=0) * ab.log_softmax(x @ y.T)),
    ("relative places", lambda m, x, y, h, p: ab.softmax(x @ x.T - 0.1 * ab.abs(p[:, None] - p[None, :])) @ x),
    ("a bias of each", lambda m, x, y, h, p: ab.softmax(x @ y.T + x[:, :1] + (y @ m.bias)) @ y),
    ("a bias of all", lambda m, x, y, h, p: ab.tanh(x @ y.T * m.scale + ab.sum(x)) @ y),
    ("a vector of y", lambda m, x, y, h, p: ab.tanh(x @ y.T) @ y[:, 0] + ab.sum(x @ m.V, axis=1)),
    ("a vector of x", lambda m, x, y, h, p: x[:, 0] @ ab.tanh(x @ y.T)),
    ("sums", lambda m, x, y, h, p: ab.sum(ab.sum(x @ y.T, axis=1) ** 2.0) + ab.sum(ab.sum(x @ y.T, axis=0) ** 3.0)),
    ("normed", lambda m, x, y, h, p: ab.exp(x @ y.T) / ab.sum(ab.exp(x @ y.T), axis=0, keepdims=True) @ y),
    ("maxima", lambda m, x, y, h, p: ab.sum(ab.max(x @ y.T, axis=1)) * ab.sum(ab.max(x @ y.T, axis=0))),
    ("maximum", lambda m, x, y, h, p: ab.max(x @ y.T) - ab.min(x @ y.T, axis=(1, 0))),
    ("means", lambda m, x, y, h, p: ab.mean(ab.tanh(x @ y.T)) + ab.mean(ab.mean(x @ y.T, axis=1) ** 2.0)),
    ("logsumexp", lambda m, x, y, h, p: ab.logsumexp(x @ y.T, axis=1) - ab.logsumexp(x @ y.T)),
    ("heads of words", lambda m, x, y, h, p: ab.cross_entropy(x @ m.Q @ x.T, h)),
    ("best heads", lambda m, x, y, h, p: ab.tanh(x[ab.argmax(x @ m.Q @ x.T, axis=1)]) * x),
    ("labels of best", lambda m, x, y, h, p: ab.cross_entropy(x @ m.Q @ y.T, ab.argmax(x @ y.T, axis=1))),
    ("best of columns", lambda m, x, y, h, p: ab.tanh(x[ab.argmax(x @ y.T, axis=0)]) * y),
    ("additive", lambda m, x, y, h, p: ab.softmax(ab.tanh((x @ m.Q)[:, None] + y @ m.K) @ m.bias) @ y),
    ("distances", lambda m, x, y, h, p: ab.exp(-ab.sum((x[:, None] - y[None]) ** 2.0, axis=2)) @ y),
    ("of slices", lambda m, x, y, h, p: ab.softmax(x[1:] @ x.T) @ x[::-1]),
    ("keys by queries", lambda m, x, y, h, p: m.Q @ x.T @ x[:, 0] + ab.sum(ab.tanh(m.bias @ x.T)) + x.T.T[0]),
    ("sums of columns", lambda m, x, y, h, p: ab.sum(x.T, axis=0) @ x * ab.sum(x.T) + ab.max(x.T, axis=1)),
    ("turned conditions", lambda m, x, y, h, p: ab.where((x.T > 0.0).T, x, 0.0) * (x > 0.1).T.T),
    ("conditions of pairs", lambda m, x, y, h, p: ab.where(((x @ y.T).T > 0.0).T, x @ y.T, 0.0) @ y),
    ("stopped", lambda m, x, y, h, p: ab.stop_gradient(ab.softmax(x @ y.T)) @ y),
    ("two products", lambda m, x, y, h, p: ab.softmax(x @ x.T + (x @ m.Q) @ ab.tanh(x).T) @ ab.tanh(x)),
)  # fmt: skip


def draw(lengths: Any = ((2, 3), (5, 1), (1, 2), (3, 3)), seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal((n, DIM)), rng.standard_normal((m, DIM)), rng.integers(0, n, n), np.arange(float(n)))
        for n, m in lengths
    ]


def in_a_cell(model: Attention, *bodies: Body) -> Callable[[Any], Any]:
    def named(body: Body) -> Any:
        return ab.cell(ragged=("x", "y", "h", "p"))(lambda m, x, y, h, p: ab.sum(body(m, x, y, h, p)))

    cells = [named(body) for body in bodies]
    return lambda item: ab.sum_n([call(model, *item) for call in cells])


def check(loss: Any, model: Any, items: Any, backend: Any) -> Any:
    found = ab.batched(loss, module=model, backend=backend)
    ab.testing.check_batched(loss, found, items, 1e-10)
    ab.testing.check_grads(found, items, model, np.random.default_rng(1))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("_checked")
@each("name, body", BODIES)
def test_rows_are_paired_with_one_type(name: str, body: Body) -> None:
    model = Attention()
    for make in BACKENDS:
        found = check(in_a_cell(model, body), model, draw(), make())
        assert count_types(found, "<lambda>") == 1


def test_conditions_are_turned_as_values_are() -> None:
    @ab.cell(ragged=("x",))
    def both(x: Any) -> Any:
        first = (x > 0.0)[0]
        return ab.where((x.T > 0.0).T & (x < 1.0).T.T, x, 2.0) + ab.where(first, 1.0, 0.0)

    xs = [item[0] for item in draw()]
    found = ab.batched(lambda x: [both(x)], backend="reference")(xs)
    for (rows,), x in zip(found, xs, strict=True):
        np.testing.assert_allclose(rows, ab.eager(both, x), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("_checked")
def test_compiled_backends_pair_rows_too() -> None:
    model = Attention()
    for make in COMPILED:
        check(in_a_cell(model, *(body for _, body in BODIES)), model, draw(), make())


@pytest.mark.usefixtures("_checked")
def test_self_attention_of_a_thousand_lengths_is_traced_once() -> None:
    model = Attention()
    attend = ab.cell(ragged=("x",))(lambda m, x: ab.max(ab.softmax(x @ m.Q @ x.T) @ x, axis=0))
    loss = ab.batched(lambda x: attend(model, x), module=model, backend=Reference())
    items = [np.full((n % 60, DIM), 0.1) for n in range(1, 1001) if n % 60]
    loss(items[:2])
    before = traced(loss), count_types(loss, "<lambda>")
    np.testing.assert_allclose(loss(items)[::97], [attend(model, x) for x in items[::97]], atol=1e-10)
    assert (traced(loss), count_types(loss, "<lambda>")) == before
    assert before[1] == 1


@pytest.mark.usefixtures("_checked")
def test_rows_of_other_cells_and_lists_are_paired() -> None:
    model = Attention()
    attend = ab.cell(lambda m, x: ab.softmax((x @ m.Q) @ x.T) @ x)
    stacked = ab.cell(lambda m, rows: ab.sum(ab.softmax(ab.stack(rows) @ ab.stack(rows).T) @ ab.stack(rows)))
    feed = ab.cell(ragged=("x",))(lambda m, x: ab.tanh(x @ m.K))

    def loss(item: Any) -> Any:
        x = feed(model, item[0])
        return ab.sum(attend(model, attend(model, x))[-1]) + stacked(model, [row * 2.0 for row in x])

    for make in BACKENDS:
        found = check(loss, model, draw(), make())
        assert count_types(found, "<lambda>") == 3


@pytest.mark.usefixtures("_checked")
def test_no_rows_have_no_pairs() -> None:
    model = Attention()
    items = draw(((0, 3), (2, 2), (3, 0), (0, 0)))
    for name, body in BODIES:
        if name in ("self-attention", "heads", "cross-attention", "sums", "additive", "heads of words"):
            for make in BACKENDS:
                check(in_a_cell(model, body), model, items, make())


@pytest.mark.slow
def test_second_derivatives_go_through_pairs() -> None:
    model = Attention()
    for _, body in BODIES:
        loss = in_a_cell(model, body)

        def norm(item: Any, loss: Any = loss) -> Any:
            grads = ab.grad(lambda x: loss((x, *item[1:])))(item[0])
            return ab.sum(grads * grads)

        found = ab.batched(norm, module=model, backend=Reference(poison=True))
        ab.testing.check_grads(found, draw()[:3], model, np.random.default_rng(1))
        np.testing.assert_allclose(found(draw()[:3]), [norm(item) for item in draw()[:3]], atol=1e-8)


def test_pairs_are_dropped_and_drawn_as_in_eager_mode() -> None:
    model, items = Attention(), draw()

    @ab.cell(ragged=("x", "y"))
    def draws(m: Attention, x: Any, y: Any) -> Any:
        weights = ab.dropout(ab.softmax(x @ y.T), 0.5)
        return ab.sum(weights @ y) + ab.sum(ab.categorical(x @ y.T) * x[:, 0])

    for make in BACKENDS:
        found = ab.batched(lambda item: draws(model, *item[:2]), module=model, backend=make(), seed=4)(items)
        for key, item in enumerate(items):
            with ab.randomness(seed=4, key=key):
                np.testing.assert_allclose(found[key], draws(model, *item[:2]), atol=1e-10)


def test_labels_out_of_range_are_refused() -> None:
    model = Attention()
    loss = ab.batched(in_a_cell(model, dict(BODIES)["heads of words"]), module=model)
    good, wrong = draw()[:2]
    wrong[2][3] = 5
    with pytest.raises(DataError, match=r"instance 1, .* gives 5 as .* 'h', which chooses one of 5 rows"):
        loss([good, wrong])
    loss = ab.batched(in_a_cell(model, lambda m, x, y, h, p: ab.cross_entropy(x @ y.T, ab.argmax(x @ x.T, axis=1))))
    with pytest.raises(DataError, match=r"lookup must be in 0\.\.0 .*, got \d; .*computed"):
        loss(draw(((9, 1),)))


@each(
    "body, message, instead",
    [
        (lambda x, y: x @ y.T, r"first axis only, got shape \(n, m\)", lambda x, y: ab.softmax(x @ y.T) @ y),
        (lambda x, y: x.T, r"first axis only, got shape \(4, n\)", lambda x, y: x),
        (lambda x, y: (x @ y.T) @ x.T, r"matmul .* shapes \(n, m\) and \(4, n\)", lambda x, y: x @ (x.T @ x[:, 0])),
        (lambda x, y: x.T @ x, r"matmul .* shapes \(4, n\)", lambda x, y: ab.sum(x[:, :, None] * x[:, None], axis=0)),
        (lambda x, y: (x @ y.T)[0], r"a slice .* shapes \(n, m\)", lambda x, y: y @ x[0]),
        (lambda x, y: (x @ y.T) + np.ones((3, 3)), r"add .* and \(3, 3\)", lambda x, y: (x @ y.T + 1.0) @ y),
        (lambda x, y: ab.argmax(x @ y.T), "give the axis", lambda x, y: x * ab.argmax(x @ y.T, axis=1)[:, None]),
        (lambda x, y: list(x @ x.T), r"a loop .* \(n, n\)", lambda x, y: ab.sum(x @ x.T, axis=1)),
    ],
)  # fmt: skip
def test_what_is_refused_names_what_works(body: Any, message: str, instead: Any) -> None:
    refused = ab.cell(ragged=("x", "y"))(body)
    with pytest.raises((ShapeError, GraphError), match=message):
        ab.batched(lambda item: refused(*item[:2]), module=Attention())(draw())
    works = ab.cell(ragged=("x", "y"))(lambda x, y: ab.sum(instead(x, y)))
    found = ab.batched(lambda item: works(*item[:2]), module=Attention())
    np.testing.assert_allclose(found(draw()), [works(*item[:2]) for item in draw()], rtol=1e-5)


def test_scores_between_cells_are_refused_with_advice() -> None:
    feed = ab.cell(ragged=("x",))(lambda x: ab.tanh(x))

    def loss(item: Any) -> Any:
        x = feed(item[0])
        return ab.sum(ab.softmax(x @ x.T) @ x)

    with pytest.raises(ShapeError, match=r"use the value inside the cell, .* such as ab\.softmax\(x @ y\.T\) @ z"):
        ab.batched(loss, module=Attention())(draw())


def test_exported_models_pair_rows(tmp_path: Any) -> None:
    model, items = Attention(), draw()
    ab.export(lambda item: model.every(*item), tmp_path / "pairs.ab", module=model.eval(), examples=items[:2])
    loaded = ab.load(tmp_path / "pairs.ab")
    wanted = [model.every(*item) for item in items]
    np.testing.assert_allclose([loaded.every(*item) for item in items], wanted, atol=1e-10)
    found = ab.batched(lambda item: loaded.every(*item), module=loaded, backend=Reference(poison=True))
    np.testing.assert_allclose(found(items), wanted, atol=1e-10)
    calling = ab.cell(ragged=("x", "y", "h", "p"))(lambda m, x, y, h, p: m.every(x, y, h, p) * 2.0)
    twice = ab.batched(lambda item: calling(loaded, *item), module=loaded, backend=Reference(poison=True))
    np.testing.assert_allclose(twice(items), np.multiply(wanted, 2.0), atol=1e-10)
