"""Test ragged values between cells: cells take the results of others, also sliced, joined and reversed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.errors import GraphError, ShapeError
from autobatch.graph.words import MOST_ROWS
from helpers.runs.recorded import count_types, types_of
from helpers.runs.ways import each
from host_device import HostDevice

BACKENDS: list[Callable[[], Any]] = [
    lambda: Reference(poison=True),
    lambda: Cpu(poison=True),
    lambda: Cpu(poison=True),
]
if shutil.which("g++") is not None:
    BACKENDS.append(lambda: Cuda(poison=True, device=HostDevice()))
DIM = 3


class Reader(ab.Module):
    """Layers over words and features that keep the number of rows."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.table, self.W = ab.Parameter(rng.standard_normal((9, DIM))), ab.Parameter(rng.standard_normal((DIM, DIM)))
        self.b, self.q = ab.Parameter(rng.standard_normal(DIM)), ab.Parameter(rng.standard_normal(DIM))
        self.start = ab.Parameter(rng.standard_normal((1, DIM)))
        self.astype("float64")

    @ab.cell(ragged=("words",))
    def embed(self, words: Any) -> Any:
        return ab.tanh(ab.lookup(self.table, words))

    @ab.cell(ragged=("x",))
    def layer(self, x: Any) -> Any:
        return ab.tanh(x @ self.W + self.b) + x, ab.sum(x * x)

    @ab.cell(ragged=("x",))
    def both(self, x: Any) -> Any:
        made = ab.tanh(x @ self.W)
        return {"left": made, "right": made * x, "best": ab.max(made, axis=0)}

    @ab.cell(ragged=("x", "y"))
    def meet(self, x: Any, y: Any) -> Any:
        return ab.sum(ab.attend(self.q, x, y)) + ab.sum(ab.max(x * y, axis=0))

    @ab.cell
    def pick(self, state: Any, row: Any) -> Any:
        return ab.tanh(state + self.W @ row)


Body = Callable[[Reader, Any, Any], Any]
BODIES: tuple[tuple[str, Body], ...] = (
    ("layers", lambda m, x, f: m.meet(m.layer(m.layer(x)[0])[0], x) + m.layer(f)[1]),
    ("features", lambda m, x, f: m.meet(m.layer(f)[0], f)),
    ("a dict", lambda m, x, f: m.meet(m.both(x)["left"], m.both(x)["right"]) + ab.sum(m.both(f)["best"])),
    ("reversed", lambda m, x, f: m.meet(x[::-1], m.layer(x)[0])),
    ("shifted", lambda m, x, f: m.meet(x[1:], m.layer(x)[0][:-1])),
    ("rows", lambda m, x, f: ab.sum(x[0] * x[-1] + m.layer(x)[0][1] * x[0, :1])),
    ("columns", lambda m, x, f: m.meet(ab.concat([x[:, 1:], x[:, :1]], axis=1), x)),
    ("concat", lambda m, x, f: m.meet(ab.concat([x, m.layer(x)[0][1:]], axis=0), ab.concat((x[1:], x), axis=0))),
    ("padded", lambda m, x, f: m.meet(ab.concat([m.start, x[:-1]], axis=0), ab.concat([x[1:], x[0][None]], axis=0))),
    ("mixed", lambda m, x, f: m.meet(x[2::-1], x[-3:])),
    ("ops", lambda m, x, f: m.meet(ab.tanh(x) * 2.0 + x[::-1], x) + ab.sum(ab.mean(x, axis=0) * ab.sum(x, axis=0))),
    ("products", lambda m, x, f: ab.sum(ab.softmax(x @ x[0], axis=0) @ x)),
    ("attend", lambda m, x, f: ab.sum(ab.attend(x[0], x, m.layer(x)[0]))),
    ("a loop", lambda m, x, f: loop(m, x)),
    ("a list of rows", lambda m, x, f: ab.sum(ab.sum_n(list(x)) * ab.max_n([m.pick(row, x[0]) for row in x]))),
    ("a sum with a row", lambda m, x, f: ab.sum(m.pick(x[0] + x[1] + m.layer(x)[0][2], x[0]))),
    ("len", lambda m, x, f: ab.sum(x[0]) * len(x) + m.meet(x, x) / x.shape[0]),
)  # fmt: skip


def loop(m: Reader, x: Any) -> Any:
    state = x[0]
    for row in x:
        state = m.pick(state, row)
    return ab.sum(state)


def loss_of(model: Reader, *bodies: Body) -> Any:
    def loss(item: Any) -> Any:
        words, features = item
        x = model.embed(words)
        return ab.sum_n([body(model, x, features) for body in bodies])

    return loss


def draw(lengths: Any = (3, 5, 4, 9)) -> list[Any]:
    rng = np.random.default_rng(0)
    return [(rng.integers(0, 9, n), rng.standard_normal((n + 2, DIM))) for n in lengths]


def check(loss: Any, module: Any, items: Any, backend: Any, **options: Any) -> Any:
    found = ab.batched(loss, module=module, backend=backend, **options)
    ab.testing.check_batched(loss, found, items, 1e-10)
    ab.testing.check_grads(found, items, module, np.random.default_rng(1))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("_checked")
@each("name, body", BODIES)
def test_rows_go_from_cell_to_cell(name: str, body: Body) -> None:
    model = Reader()
    for make in BACKENDS[:2]:
        found = check(loss_of(model, body), model, draw(), make())
        assert max(count_types(found, kind.name) for kind in types_of(found)) < 4


@pytest.mark.slow
@pytest.mark.usefixtures("_checked")
def test_compiled_backends_run_them_too() -> None:
    model = Reader()
    for make in BACKENDS[2:]:
        check(loss_of(model, *(body for _, body in BODIES)), model, draw(), make())


@each("policy", ["unbatched", "depth", "agenda", "critical", "score", "search"])
def test_policies_schedule_nodes_with_many_edges(policy: str) -> None:
    model = Reader()
    loss = loss_of(model, *(body for _, body in BODIES))
    ab.testing.check_batched(loss, ab.batched(loss, module=model, policy=policies.get(policy)), draw(), 1e-10)


@each("options", [{"rewrites": ()}, {"rewrites": ("forward", "dead", "sums", "fold", "share")}, {"max_bytes": 60_000}])
def test_rewrites_and_budgets_leave_the_results_alone(options: Any) -> None:
    model = Reader()
    loss = loss_of(model, *(body for _, body in BODIES))
    check(loss, model, draw(), Reference(poison=True), **options)


def test_rows_come_back_per_instance() -> None:
    model, items = Reader(), draw()

    def both(item: Any) -> Any:
        x = model.embed(item[0])
        return model.layer(x)[0][1:], (x[0], {"reversed": x[::-1]}), ab.argmax(x, axis=1)

    for make in BACKENDS[:2]:
        rows, (first, rest), best = ab.batched(both, module=model, backend=make())(items)
        wanted = [both(item) for item in items]
        assert first.shape == (len(items), DIM)
        for k, (own, (row, others), chosen) in enumerate(wanted):
            np.testing.assert_allclose(rows[k], own, atol=1e-12)
            np.testing.assert_allclose(first[k], row, atol=1e-12)
            np.testing.assert_allclose(rest["reversed"][k], others["reversed"], atol=1e-12)
            assert best[k].dtype == chosen.dtype == np.int64
            np.testing.assert_array_equal(best[k], chosen)


def test_features_have_gradients_and_recorded_graphs_serve_again() -> None:
    model, items = Reader(), [(words, features) for words, features in draw()]
    loss = ab.batched(loss_of(model, BODIES[0][1], BODIES[1][1]), module=model)
    value, grads, inputs = loss.value_and_grad(items, inputs=True, reduce="sum")
    for k, (words, features) in enumerate(items):
        along = np.random.default_rng(k).standard_normal(features.shape)
        moved = [[(words, features + sign * 1e-6 * along)] for sign in (1, -1)]
        slope = (loss(moved[0])[0] - loss(moved[1])[0]) / 2e-6
        np.testing.assert_allclose(np.sum(inputs[k][1] * along), slope, rtol=1e-6)
    graphs = loss.record_all(items)
    for order in ([0, 1, 2, 3], [2, 0], [0, 1, 2, 3]):
        again, other = loss.value_and_grad([graphs[k] for k in order], reduce="sum")
        apart = [loss.value_and_grad([items[k]], reduce="sum") for k in order]
        np.testing.assert_allclose(again, sum(float(v) for v, _ in apart))
        assert {name: g.shape for name, g in other.items()} == {name: g.shape for name, g in grads.items()}
    assert value.shape == ()


def test_rows_that_a_cell_slices_and_joins_are_kept_between_rounds() -> None:
    model, items = Reader(), draw((3, 2, 9))
    longer = ab.cell(lambda x: (ab.concat([x, x[1:], x], axis=0), x[1:]))

    async def program(item: Any) -> Any:
        x = model.embed(item[0])
        joined, rest = longer(x)
        total = float(await ab.value(ab.sum(rest)))
        return model.meet(joined, joined[::-1]) + total * ab.sum(model.layer(rest)[0], axis=0)[0]

    for make in BACKENDS[:2]:
        found = ab.batched(program, module=model, backend=make())
        np.testing.assert_allclose(found(items), [ab.eager(program, item) for item in items], atol=1e-12)


def test_unequal_rows_are_refused_before_anything_runs() -> None:
    model = Reader()
    loss = ab.batched(lambda item: model.meet(model.embed(item[0]), model.layer(item[1])[0]), module=model)
    with pytest.raises(GraphError, match=r"cell 'meet' .* must have equal lengths, got 3 of 'x' and 5 of 'y'"):
        loss(draw())


def test_wrong_rows_are_refused() -> None:
    model, kept = Reader(), []
    with pytest.raises(ShapeError, match="an index into 3 rows must be in range, got 7"):
        ab.batched(lambda item: ab.sum(model.embed(item[0])[7]), module=model)(draw([3]))

    def keep(item: Any) -> Any:
        x = model.embed(item[0])
        kept.append(x[1:])
        return model.meet(kept[0], kept[0])

    with pytest.raises(GraphError, match=r"instance 1, call .*: recorded values must be used within"):
        ab.batched(keep, module=model)(draw())
    with pytest.raises(ab.DataError, match=f"a value of {MOST_ROWS + 1} rows goes from a cell to others"):
        ab.batched(lambda words: model.layer(model.embed(words))[1], module=model)([np.zeros(MOST_ROWS + 1, np.int8)])
