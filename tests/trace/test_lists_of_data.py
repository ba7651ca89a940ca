"""Test lists of ints, floats and int arrays, alone or paired with values: one type for all lengths."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.errors import DataError
from helpers.runs.recorded import count_types, module_of
from helpers.runs.ways import each

DIM, N_LABELS, TOLERANCE = 3, 5, 1e-10
LENGTHS = (3, 1, 2, 5)


class Edge(NamedTuple):
    label: int
    state: Any


@dataclass
class Link:
    label: int
    state: Any
    weight: float


class Graphs(ab.Module):
    """Cells over edges that have labels, weights and states."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.label, self.layer = ab.Embedding(N_LABELS, DIM, rng=rng), ab.Linear(DIM, DIM, rng=rng)
        self.astype("float64")

    @ab.cell
    def state(self, x: Any) -> Any:
        return ab.tanh(x)

    @ab.cell
    def zipped(self, labels: Any, states: Any) -> Any:
        return ab.sum_n([ab.tanh(self.layer(h) + self.label(r)) for r, h in zip(labels, states, strict=True)])

    @ab.cell
    def mapped(self, labels: Any, states: Any) -> Any:
        return ab.sum_n(ab.each(lambda r, h: self.layer(h) * self.label(r), labels, states))

    @ab.cell
    def three(self, labels: Any, weights: Any, states: Any) -> Any:
        edges = zip(labels, weights, states, strict=True)
        return ab.sum_n([ab.tanh(w * self.layer(h) + self.label(r)) for r, w, h in edges])

    @ab.cell
    def pairs(self, edges: Any) -> Any:
        return ab.sum_n([ab.tanh(self.layer(h) + self.label(r)) for r, h in edges])

    @ab.cell
    def wide(self, edges: Any) -> Any:
        return ab.sum_n([ab.tanh(self.layer(g) * w + self.label(r) * k * h) for g, r, w, k, h in edges])

    @ab.cell
    def second(self, edges: Any) -> Any:
        return ab.sum_n([self.label(b) * w for _, b, w, _ in edges])

    @ab.cell
    def weights(self, weights: Any) -> Any:
        return ab.sum_n([w * w * self.label(1) for w in weights])

    @ab.cell
    def labels(self, labels: Any) -> Any:
        return ab.mean_n([self.label(r) for r in labels])

    @ab.cell
    def numbers(self, labels: Any) -> Any:
        return ab.sum_n(labels) * self.label(1)

    @ab.cell
    def numbered(self, labels: Any, states: Any) -> Any:
        return ab.sum_n([h * self.label(labels[i]) for i, h in enumerate(states)])

    @ab.cell
    def named(self, edges: Any) -> Any:
        return ab.sum_n([ab.tanh(e.state + self.label(e.label)) for e in edges])

    @ab.cell
    def linked(self, edges: Any) -> Any:
        return ab.sum_n([ab.tanh(e.state * e.weight + self.label(e.label)) for e in edges])

    @ab.cell
    def keyed(self, edges: Any) -> Any:
        return ab.sum_n([ab.tanh(e["state"] + self.label(e["label"])) for e in edges])

    @ab.cell
    def arrays(self, edges: Any) -> Any:
        return ab.sum_n([ab.sum(self.label(ids), axis=0) * h for ids, h in edges])

    @ab.cell
    def weighed(self, labels: Any, states: Any) -> Any:
        scores = [ab.sum(self.layer(h) * self.label(r)) for r, h in zip(labels, states, strict=True)]
        return ab.dot_n(ab.softmax_n(scores), states)

    @ab.cell
    def tagged(self, labels: Any, states: Any) -> Any:
        tags = [ab.cross_entropy(self.layer(h), r) for r, h in zip(labels, states, strict=True)]
        return ab.sum_n(tags) * self.label(0)

    @ab.cell
    def compared(self, labels: Any, states: Any) -> Any:
        return ab.sum_n([ab.where(r < 2, h, 2.0 * h) for r, h in zip(labels, states, strict=True)])

    @ab.cell
    def by_name(self, *, labels: Any, states: Any, scale: float = 2.0) -> Any:
        return scale * ab.sum_n([self.label(r) * h for r, h in zip(labels, states, strict=True)])

    def call(self, name: str, n: int) -> Any:
        rng = np.random.default_rng(n)
        states = [self.state(rng.standard_normal(DIM)) for _ in range(n)]
        labels, weights = rng.integers(0, DIM, n).tolist(), rng.standard_normal(n).tolist()
        edges: dict[str, Callable[[], Any]] = {
            "three": lambda: (labels, weights, states),
            "pairs": lambda: (list(zip(labels, states, strict=True)),),
            "wide": lambda: (list(zip(states, labels, weights, labels[::-1], states[::-1], strict=True)),),
            "second": lambda: (list(zip(labels, labels[::-1], weights, weights, strict=True)),),
            "weights": lambda: (weights,),
            "labels": lambda: (labels,),
            "numbers": lambda: (labels,),
            "named": lambda: (list(map(Edge, labels, states)),),
            "linked": lambda: (list(map(Link, labels, states, weights)),),
            "keyed": lambda: ([{"label": r, "state": h} for r, h in zip(labels, states, strict=True)],),
            "arrays": lambda: ([(np.array([r, 1]), h) for r, h in zip(labels, states, strict=True)],),
        }
        if name == "by_name":
            return self.by_name(labels=labels, states=states)
        cell: Any = getattr(self, name)
        return cell(*edges[name]() if name in edges else (labels, states))


CELLS = [
    "zipped", "mapped", "three", "pairs", "wide", "second", "weights", "labels", "numbers", "numbered", "named",
    "linked", "keyed", "arrays", "weighed", "tagged", "compared", "by_name",
]  # fmt: skip


def program(name: str, **options: Any) -> tuple[Callable[[int], Any], ab.Batched]:
    """Return a loss that calls a cell with n edges, and its batched function."""
    graphs = Graphs()

    def loss(n: int) -> Any:
        return ab.sum(graphs.call(name, n))

    return loss, ab.batched(loss, module=graphs, **options)


@each("name", CELLS)
def test_all_lengths_are_one_type(name: str) -> None:
    loss, run = program(name, backend=Reference(poison=True))
    ab.testing.check_batched(loss, run, [*LENGTHS], TOLERANCE)
    ab.testing.check_grads(run, [*LENGTHS], module_of(run), np.random.default_rng(1), directions=1)
    ab.testing.check_batched(loss, run, [9, 2], TOLERANCE)
    assert count_types(run, name) == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CELLS)
def test_compiled_cells_compute_the_same(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")
    loss, run = program(name, backend=backend)
    ab.testing.check_batched(loss, run, [*LENGTHS], TOLERANCE)
    ab.testing.check_grads(run, [*LENGTHS], module_of(run), np.random.default_rng(1), directions=1)
    assert count_types(run, name) == 1


@each("name", ["zipped", "wide", "second", "linked", "arrays", "weights"])
def test_their_derivatives_have_one_type_for_all_lengths(name: str) -> None:
    """Checks first and second derivatives. The derived cells read only some of the data."""
    graphs = Graphs()

    def slope(n: int) -> Any:
        (gradients,) = ab.grad(lambda: ab.sum(graphs.call(name, n)), wrt=lambda: graphs.label.weight)()
        return ab.sum(gradients * gradients)

    run = ab.batched(slope, module=graphs, backend=Reference(poison=True))
    ab.testing.check_batched(slope, run, [*LENGTHS], TOLERANCE)
    ab.testing.check_grads(run, [*LENGTHS], graphs, np.random.default_rng(1))
    assert count_types(run, name) == 1


def draw_element(rng: np.random.Generator, depth: int = 2) -> Callable[[np.random.Generator, Any], Any]:
    """Draw the structure of an element; return a function that draws elements with that structure."""
    kinds = ["int", "float", "state", "ids", "pair", "named", "keyed", "linked"]
    kind = kinds[rng.integers(len(kinds) if depth else 4)]
    if kind in ("pair", "named", "keyed", "linked"):
        first, second = draw_element(rng, depth - 1), draw_element(rng, depth - 1)
        join: dict[str, Callable[[Any, Any], Any]] = {
            "pair": lambda x, y: (x, y),
            "named": Edge,
            "keyed": lambda x, y: {"x": x, "y": y},
            "linked": lambda x, y: Link(x, y, 0.5),
        }
        return lambda rng, state: join[kind](first(rng, state), second(rng, state))
    make: dict[str, Callable[[np.random.Generator, Any], Any]] = {
        "int": lambda rng, state: int(rng.integers(N_LABELS)),
        "float": lambda rng, state: float(rng.standard_normal()),
        "state": lambda rng, state: state(),
        "ids": lambda rng, state: rng.integers(0, N_LABELS, (2,)),
    }
    return make[kind]


def read(graphs: Graphs, x: Any, like: Any) -> Any:
    """Reduce all parts of an element that is structured like `like`."""
    if isinstance(like, dict):
        return read(graphs, x["x"], like["x"]) * 0.5 + read(graphs, x["y"], like["y"])
    if isinstance(like, Edge | Link):
        return read(graphs, x.label, like.label) + read(graphs, x.state, like.state)
    if isinstance(like, tuple):
        return read(graphs, x[0], like[0]) - read(graphs, x[1], like[1])
    if isinstance(like, int):
        return graphs.label(x)
    if isinstance(like, float):
        return x * graphs.label(0)
    return ab.sum(graphs.label(x), axis=0) if isinstance(like, np.ndarray) else graphs.layer(x)


@each("seed", range(25))
def test_elements_of_any_form_have_one_type(seed: int) -> None:
    rng, graphs = np.random.default_rng(seed), Graphs()
    make = draw_element(rng)
    like = make(rng, lambda: None)
    cell = ab.cell(lambda xs: ab.sum(ab.sum_n([ab.tanh(read(graphs, x, like)) for x in xs])))

    def loss(n: int) -> Any:
        drawn = np.random.default_rng(n)
        return cell([make(drawn, lambda: graphs.state(drawn.standard_normal(DIM))) for _ in range(n)])

    run = ab.batched(loss, module=graphs, backend=Reference(poison=True))
    ab.testing.check_batched(loss, run, [*LENGTHS], TOLERANCE)
    ab.testing.check_batched(loss, run, [7], TOLERANCE)
    assert count_types(run, "<lambda>") == 1


def test_an_empty_list_of_data() -> None:
    """The body maps over the list, so the empty one needs a type of its own."""
    graphs = Graphs()
    cell = ab.cell(
        lambda xs, hs: ab.sum(ab.sum_n([graphs.label(r) * h for r, h in zip(xs, hs, strict=True)], shape=DIM))
    )

    def loss(n: int) -> Any:
        return cell([1] * n, [graphs.state(np.ones(DIM)) for _ in range(n)]) + ab.sum(graphs.label.weight[0])

    run = ab.batched(loss, module=graphs, backend="reference")
    ab.testing.check_batched(loss, run, [0, 2, 0, 3], TOLERANCE)
    assert count_types(run, "<lambda>") == 2


def test_async_programs_and_pickled_graphs_have_them_too() -> None:
    graphs = Graphs()

    async def waits(n: int) -> Any:
        first = graphs.call("wide", n)
        more = int(await ab.value(ab.argmax(first)))
        return ab.sum(first + graphs.call("linked", more + 1))

    run = ab.batched(waits, module=graphs, backend="reference")
    expected = [ab.eager(waits, n) for n in LENGTHS]
    assert run([*LENGTHS]) == pytest.approx(np.array(expected), rel=1e-10)
    assert count_types(run, "wide") == count_types(run, "linked") == 1

    loss, run = program("wide", backend="reference")
    recorded = pickle.loads(pickle.dumps(run.record_all([*LENGTHS])))
    assert run(recorded) == pytest.approx(np.array([loss(n) for n in LENGTHS]), rel=1e-10)


@each("name", ["zipped", "pairs", "second", "arrays", "mapped"])
def test_files_take_lengths_that_no_example_had(name: str, tmp_path: Path) -> None:
    graphs = Graphs().eval()
    ab.export(lambda n: graphs.call(name, n), tmp_path / "m.ab", examples=[1, 2], module=graphs)
    loaded: Any = ab.load(tmp_path / "m.ab")
    run = ab.batched(lambda n: Graphs.call(loaded, name, n), module=loaded, backend="reference")
    assert np.allclose(run([5, 9]), [graphs.call(name, n) for n in (5, 9)])
    assert count_types(run, name) == 1


@each(
    "elements, reason",
    [
        (lambda n, h: [(i % 2 == 0, h) for i in range(n)], "its elements hold True, which is part of the type"),
        (lambda n, h: [("a", h) for _ in range(n)], "its elements hold 'a', which is part of the type"),
        (lambda n, h: [([h] * n, h) for _ in range(n)], "its elements hold lists, whose lengths may differ"),
        (lambda n, h: [(i if i else 0.5, h) for i in range(n)], r"its elements differ: tuple\(float, value\[3\]\) and"),
        (lambda n, h: tuple([(1, h)] * n), "it is a tuple; a list may have any length in one type"),
    ],
)
def test_reports_name_the_reason_why_lengths_are_types(elements: Callable[[int, Any], Any], reason: str) -> None:
    graphs = Graphs()
    cell = ab.cell(lambda edges: ab.sum(ab.sum_n([h for _, h in edges])))
    run = ab.batched(lambda n: cell(elements(n, graphs.state(np.ones(DIM)))), module=graphs, backend="reference")
    run([2, 3, 4])
    with pytest.raises(AssertionError, match=f"a type for each length of edges, because {reason}"):
        raise AssertionError(str(run.explain([2, 3, 4])))


def test_reports_name_lists_beside_the_one_that_is_walked() -> None:
    graphs = Graphs()
    cell = ab.cell(lambda flags, hs: ab.sum(ab.sum_n([h if k else -h for k, h in zip(flags, hs, strict=True)])))
    run = ab.batched(lambda n: cell([True] * n, [graphs.state(np.ones(DIM))] * n), module=graphs, backend="reference")
    run([2, 3])
    assert "and the elements of flags hold True, which is part of the type" in str(run.explain([2, 3]))


def test_a_zip_of_lists_of_different_lengths_ends_with_the_shorter_one() -> None:
    """As in eager mode. Such calls have types of their own."""
    graphs = Graphs()
    cell = ab.cell(lambda xs, hs: ab.sum(ab.sum_n([graphs.label(r) * h for r, h in zip(xs, hs, strict=False)])))

    def loss(sizes: tuple[int, int]) -> Any:
        return cell([*range(sizes[0])], [graphs.state(np.full(DIM, i + 1.0)) for i in range(sizes[1])])

    run = ab.batched(loss, module=graphs, backend="reference")
    ab.testing.check_batched(loss, run, [(2, 2), (3, 3), (2, 3), (3, 2), (1, 4), (4, 4)], TOLERANCE)


def test_wrong_data_in_lists_is_refused() -> None:
    graphs = Graphs()
    run = ab.batched(lambda r: ab.sum(graphs.labels([1, r])), module=graphs, backend="reference")
    with pytest.raises(DataError, match=r"'labels'\) gives 5 as labels argument 'labels', which takes 0\.\.4"):
        run([5])
    with pytest.raises(DataError, match="ints among data must fit 32 bits"):
        run([2**40])


def test_the_ends_of_32_bits() -> None:
    @ab.cell
    def total(k: Any, ks: Any) -> Any:
        return k + ab.sum(ks)

    run = ab.batched(lambda k: total(k, np.array([k, 0])), backend="reference")
    for k in (-(2**31), 2**31 - 1):
        assert run([k])[0] == np.float32(2.0 * k)
