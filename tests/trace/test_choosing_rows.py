"""Test the selection of rows from a ragged value: by data, by computed positions, argmax and top k."""

from __future__ import annotations

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
from helpers.runs.recorded import count_types
from helpers.runs.ways import each
from host_device import HostDevice

BACKENDS: list[Callable[[], Any]] = [lambda: Reference(poison=True), lambda: Cpu(poison=True)]
COMPILED: list[Callable[[], Any]] = [lambda: Cpu(poison=True)]
if shutil.which("g++") is not None:
    COMPILED.append(lambda: Cuda(poison=True, device=HostDevice()))
DIM = 3


class Pointer(ab.Module):
    """A pointer network that scores rows."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self.query, self.table = ab.Parameter(rng.standard_normal(DIM)), ab.Parameter(rng.standard_normal((9, DIM)))
        self.W = ab.Parameter(rng.standard_normal((DIM, DIM)))
        self.astype("float64")

    @ab.cell(ragged=("words",))
    def embed(self, words: Any) -> Any:
        return ab.lookup(self.table, words)

    @ab.cell(ragged=("x",))
    def scores(self, x: Any) -> Any:
        return ab.tanh(x @ self.W) @ self.query

    @ab.cell(ragged=("x", "heads"))
    def every(self, x: Any, k: Any, heads: Any) -> Any:
        return sum(ab.sum(body(self, x, k, heads)) for _, body in BODIES)


Body = Callable[[Pointer, Any, Any, Any], Any]
BODIES: tuple[tuple[str, Body], ...] = (
    ("a row by data", lambda m, x, k, heads: ab.sum(ab.tanh(x[k]) * m.query)),
    ("a row by lookup", lambda m, x, k, heads: ab.sum(ab.lookup(ab.tanh(x), k))),
    ("a number by data", lambda m, x, k, heads: ab.tanh(x @ m.query)[k]),
    ("a row by each row", lambda m, x, k, heads: ab.sum(ab.tanh(x[heads]) * x)),
    ("pairs of rows", lambda m, x, k, heads: ab.sum(ab.max(ab.tanh(x[heads] * x[k]), axis=0))),
    ("cross_entropy", lambda m, x, k, heads: ab.cross_entropy(x @ m.query, k)),
    ("a constant label", lambda m, x, k, heads: ab.cross_entropy(x @ m.query, 1) * ab.lookup(x @ m.query, 0)),
    ("cross_entropy of a part", lambda m, x, k, heads: ab.cross_entropy(ab.concat([x @ m.query, x[:, 0]]), k)),
    ("argmax", lambda m, x, k, heads: ab.argmax(x @ m.query) * ab.sum(x)),
    ("argmax of all", lambda m, x, k, heads: ab.argmax(x) * ab.sum(x)),
    ("argmax of columns", lambda m, x, k, heads: ab.sum(ab.argmax(x, axis=0) * m.query)),
    ("the best row", lambda m, x, k, heads: ab.sum(ab.tanh(x[ab.argmax(x @ m.query)]))),
    ("the label of the best", lambda m, x, k, heads: ab.cross_entropy(x @ m.query, ab.argmax(x[:, 0]))),
    ("the best row of each column", lambda m, x, k, heads: ab.sum(ab.lookup(x, ab.argmax(x, axis=0)) * m.W)),
    ("top_k", lambda m, x, k, heads: ab.sum(ab.top_k(ab.tanh(x @ m.query), 2)[0] ** 2.0)),
    ("rows of the top_k", lambda m, x, k, heads: ab.sum(ab.tanh(x[ab.top_k(x @ m.query, 2)[1]]) * m.query)),
    ("constant rows", lambda m, x, k, heads: ab.sum(ab.tanh(ab.lookup(x, np.array([1, 0, 1]))) * m.W)),
    ("of a stack", lambda m, x, k, heads: ab.sum(ab.tanh(ab.concat([x, m.W], axis=0)[k]))),
)  # fmt: skip


def draw(lengths: Any = (2, 5, 3, 2, 9), seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((n, DIM)), int(rng.integers(n)), rng.integers(0, n, n)) for n in lengths]


def in_a_cell(model: Pointer, *bodies: Body) -> Callable[[Any], Any]:
    def make(body: Body) -> Any:
        return ab.cell(ragged=("x", "heads"))(lambda m, x, k, heads: ab.sum(body(m, x, k, heads)))

    cells = [make(body) for body in bodies]
    return lambda item: ab.sum_n([call(model, *item) for call in cells])


def check(loss: Any, model: Any, items: Any, backend: Any) -> Any:
    found = ab.batched(loss, module=model, backend=backend)
    ab.testing.check_batched(loss, found, items, 1e-10)
    ab.testing.check_grads(found, items, model, np.random.default_rng(1))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("_checked")
@each("name, body", BODIES)
def test_a_cell_chooses_among_its_rows_with_one_type(name: str, body: Body) -> None:
    model = Pointer()
    for make in BACKENDS:
        found = check(in_a_cell(model, body), model, draw(), make())
        assert count_types(found, "<lambda>") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("_checked")
def test_compiled_backends_choose_too() -> None:
    model = Pointer()
    for make in COMPILED:
        check(in_a_cell(model, *(body for _, body in BODIES)), model, draw(), make())


BETWEEN: tuple[tuple[str, Body], ...] = (
    ("cross_entropy", lambda m, x, k, heads: ab.cross_entropy(m.scores(x), k)),
    ("cross_entropy by hand", lambda m, x, k, heads: ab.logsumexp(m.scores(x)) - m.scores(x)[k]),
    ("argmax", lambda m, x, k, heads: ab.argmax(m.scores(x)) * m.scores(x)[0]),
    ("the best row", lambda m, x, k, heads: ab.sum(ab.tanh(x[ab.argmax(m.scores(x))]))),
    ("rows of the best", lambda m, x, k, heads: ab.sum(ab.tanh(x[ab.top_k(m.scores(x), 2)[1]]) * m.query)),
    ("the label of the best", lambda m, x, k, heads: ab.cross_entropy(m.scores(x), ab.argmax(m.scores(x * 2.0)))),
    ("top_k", lambda m, x, k, heads: ab.sum(ab.top_k(m.scores(x), 2)[0])),
    ("sliced", lambda m, x, k, heads: ab.cross_entropy(m.scores(ab.concat([x, x[::-1]], axis=0)), k)),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("_checked")
@each("name, body", BETWEEN)
def test_rows_are_chosen_between_cells(name: str, body: Body) -> None:
    model = Pointer()

    def loss(item: Any) -> Any:
        words, k, heads = item
        return body(model, model.embed(words), k, heads)

    items = [(heads % 9, k, heads) for _, k, heads in draw()]
    for make in BACKENDS:
        check(loss, model, items, make())


@pytest.mark.usefixtures("_checked")
def test_lists_are_stacked_and_chosen_from_with_one_type() -> None:
    model = Pointer()
    pick = ab.cell(lambda m, rows, k: ab.cross_entropy(ab.stack(rows) @ m.query, k) + ab.sum(ab.stack(rows)[k]))
    read = ab.cell(lambda m, row: ab.tanh(m.W @ row))
    found = check(lambda item: pick(model, [read(model, r) for r in item[0]], item[1]), model, draw(), Reference())
    assert count_types(found, "<lambda>") == 2


@pytest.mark.usefixtures("_checked")
@each("n", [1, 2, 7])
def test_equal_rows_and_nan_are_chosen_as_in_eager_mode(n: int) -> None:
    rng = np.random.default_rng(n)
    choose = ab.cell(ragged=("x",))(
        lambda x: (ab.argmax(x[:, 0]), ab.argmax(x, axis=0), ab.argmax(x), ab.top_k(x[:, 1], 1)[1])
    )
    items = [rng.choice([0.0, 1.0, -np.inf, np.inf, np.nan], (n + k, DIM)) for k in range(20)]
    for make in BACKENDS:
        for got, x in zip(
            zip(*ab.batched(choose, module=Pointer(), backend=make())(items), strict=True), items, strict=True
        ):
            for mine, eager in zip(got, choose(x), strict=True):
                assert mine.dtype == np.int64
                np.testing.assert_array_equal(mine, eager)


def test_classes_are_drawn_among_rows_as_in_eager_mode() -> None:
    model, items = Pointer(), draw((3, 1, 6, 2) * 5)
    inside = ab.cell(ragged=("x",))(lambda m, x: ab.categorical(x @ m.query))
    bodies: list[Any] = [lambda item: inside(model, item[0]), lambda item: ab.categorical(model.scores(item[0]))]
    for body in bodies:
        found = ab.batched(body, module=model, backend=Reference(poison=True), seed=4)(items)
        for key, item in enumerate(items):
            with ab.randomness(seed=4, key=key):
                assert found[key] == body(item)


def test_second_derivatives_go_through_chosen_rows() -> None:
    model = Pointer()
    x = np.random.default_rng(0).standard_normal((4, DIM))
    for _, body in BODIES:
        loss = in_a_cell(model, body)

        def norm(item: Any, loss: Any = loss) -> Any:
            grads = ab.grad(lambda x: loss((x, *item[1:])))(item[0])
            return ab.sum(grads * grads)

        found = ab.batched(norm, module=model, backend=Reference(poison=True))
        items = [(x[:n], n - 1, np.arange(n)[::-1].copy()) for n in (2, 4, 3)]
        ab.testing.check_grads(found, items, model, np.random.default_rng(1))
        np.testing.assert_allclose(found(items), [norm(item) for item in items], atol=1e-10)


@each("k", [-1, 3, 2**31 - 1])
def test_positions_out_of_range_are_refused_before_anything_runs(k: int) -> None:
    model = Pointer()
    (good, wrong), (_, many) = draw((5, 3)), draw((4, 3))
    for _, body in BODIES[:2] + BODIES[5:6]:
        loss = ab.batched(in_a_cell(model, body), module=model)
        loss([good])
        with pytest.raises(DataError, match=rf"instance 1, .* gives {k} as .* 'k', which chooses one of 3 rows"):
            loss([good, (wrong[0], k, wrong[2])])
    loss = ab.batched(in_a_cell(model, BODIES[3][1]), module=model)
    with pytest.raises(DataError, match=rf"gives {k} as .* 'heads', which chooses one of 3 rows"):
        loss([good, (many[0], 0, np.array([0, k, 1]))])


def test_computed_positions_out_of_range_are_refused() -> None:
    model = Pointer()
    pick = ab.cell(lambda x, k: ab.sum(x[k]))

    def loss(item: Any) -> Any:
        x = model.embed(item)
        return pick(x[:2], ab.argmax(model.scores(x)))

    best = np.argsort([float(model.scores(model.embed(np.array([word])))[0]) for word in range(9)])
    for make in [*BACKENDS, *COMPILED]:
        found = ab.batched(loss, module=model, backend=make())
        found([best[::-1].copy()])
        with pytest.raises(DataError, match=r"lookup must be in 0\.\.1 .*, got 8; .*computed"):
            found([best[::-1].copy(), best])


def test_no_rows_are_refused() -> None:
    model = Pointer()
    none = (np.zeros((0, DIM)), 0, np.zeros(0, np.int64))
    for name, body in BODIES:
        if name in ("argmax", "the best row", "top_k"):
            with pytest.raises(ShapeError, match=r"to the rows of 'x', which must have at least [12], got 0; call"):
                ab.batched(in_a_cell(model, body), module=model)([none])
        if name in ("a row by data", "cross_entropy"):
            with pytest.raises(DataError, match=r"gives 0 as .* 'k', which has no row to choose\."):
                ab.batched(in_a_cell(model, body), module=model)([none])
    one = draw((1,))[0]
    with pytest.raises(ShapeError, match=r"applies top_k to the rows of 'x', which must have at least 2, got 1; call"):
        ab.batched(in_a_cell(model, dict(BODIES)["top_k"]), module=model)([*draw(), one])
    chosen = ab.batched(in_a_cell(model, BODIES[3][1]), module=model, backend=Reference(poison=True))
    np.testing.assert_allclose(chosen([none, *draw()])[0], 0.0)


@each(
    "body, message",
    [
        (lambda m, x, k, heads: ab.lookup(m.table, ab.argmax(x @ m.query)), "positions among n rows"),
        (lambda m, x, k, heads: x[x @ m.query], "must be int arguments of the cell"),
        (lambda m, x, k, heads: ab.cross_entropy(x @ m.query, heads), "must be one position for n logits"),
        (lambda m, x, k, heads: ab.top_k(x, 2)[0], "must be given a vector"),
    ],
)  # fmt: skip
def test_what_chooses_nothing_is_refused(body: Body, message: str) -> None:
    model = Pointer()
    with pytest.raises((ShapeError, GraphError), match=message):
        ab.batched(in_a_cell(model, body), module=model)(draw())


def test_exported_models_choose_among_rows(tmp_path: Any) -> None:
    model, items = Pointer(), draw()
    ab.export(lambda item: model.every(*item), tmp_path / "pointer.ab", module=model.eval(), examples=items[:2])
    loaded = ab.load(tmp_path / "pointer.ab")
    wanted = [model.every(*item) for item in items]
    np.testing.assert_allclose([loaded.every(*item) for item in items], wanted, atol=1e-10)
    found = ab.batched(lambda item: loaded.every(*item), module=loaded, backend=Reference(poison=True))
    np.testing.assert_allclose(found(items), wanted, atol=1e-10)
