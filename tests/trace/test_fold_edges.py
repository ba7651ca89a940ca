"""Test that rounds of messages equal the plain loop: in eager mode, recorded, batched and differentiated."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.trace.record import Recorder
from helpers.counters.counting import count_python_calls

N_KINDS, N_BONDS, DIM, N_ROUNDS = 6, 3, 3, 3


class Base(ab.Module):
    """Rounds of messages over graphs with fields of nodes, of edges and of the graph, and the equivalent loop."""

    total = ab.fold_edges("edges", "node", "start", message="message", rounds=N_ROUNDS, readout="read")
    losses = ab.fold_edges("edges", "node", "start", message="message", rounds=N_ROUNDS, each="loss_of", where="known")

    def __init__(self, rng: np.random.Generator) -> None:
        self.kinds = ab.Parameter(rng.standard_normal((N_KINDS, DIM)))
        self.inner, self.update = ab.Linear(DIM, DIM, rng=rng), ab.GRUCell(DIM, DIM, rng=rng)
        self.bonds = [ab.Linear(DIM, DIM, rng=rng) for _ in range(N_BONDS)]
        self.output = ab.Linear(DIM, 3, rng=rng)

    def vector(self, state: Any) -> Any:
        return state

    @ab.cell
    def read(self, states: Any, scale: float) -> Any:
        return scale * ab.sum(ab.tanh(ab.sum_n([self.output(self.vector(h)) for h in states], shape=(3,))))

    @ab.cell
    def loss_of(self, state: Any, label: int) -> Any:
        return ab.cross_entropy(self.output(self.vector(state)), label)

    def states(self, graph: dict[str, Any]) -> list[Any]:
        """Compute the last states by a plain loop."""
        takes_round = isinstance(self, ByRound)
        states = [self.start(x=x) for x in items(graph["x"])]  # type: ignore[attr-defined]
        for k in range(N_ROUNDS):
            number = {"round": k} if takes_round else {}
            received: list[list[Any]] = [[] for _ in states]
            for e, (source, target) in enumerate(np.reshape(graph["edges"], (-1, 2)).astype(int).tolist()):
                fields = {"bond": items(graph["bond"])[e], "weight": items(graph["weight"])[e]} | number
                received[target].append(self.message(states[source], **fields))  # type: ignore[attr-defined]
            states = [
                self.node(state, messages, **number)  # type: ignore[attr-defined]
                for state, messages in zip(states, received, strict=True)
            ]
        return states

    def looped(self, graph: dict[str, Any]) -> Any:
        return self.read(self.states(graph), scale=graph["scale"])

    def looped_losses(self, graph: dict[str, Any]) -> Any:
        known = [i for i, flag in enumerate(graph["known"]) if flag]
        states = self.states(graph)
        return ab.sum_n([self.loss_of(states[i], items(graph["label"])[i]) for i in known], shape=())

    def folded_losses(self, graph: dict[str, Any]) -> Any:
        return ab.sum_n(self.losses(graph), shape=())


def items(values: Any) -> Any:
    """Return the items of a field as Python numbers."""
    return values.tolist() if isinstance(values, np.ndarray) else values


class Gated(Base):
    """A GRU over the sum of messages, which depend on the kind of edge."""

    @ab.cell
    def start(self, x: int) -> Any:
        return ab.lookup(self.kinds, x)

    @ab.cell(static=("bond",))
    def message(self, state: Any, bond: int, weight: float) -> Any:
        return weight * self.bonds[bond](state)

    @ab.cell
    def node(self, state: Any, messages: list[Any]) -> Any:
        return self.update(ab.sum_n(messages, shape=(DIM,)), state)


class Attending(Base):
    """States that are tuples, dropout, and attention over messages, in which nodes without any keep their state."""

    def vector(self, state: Any) -> Any:
        return state[0] + state[1][0]

    @ab.cell
    def start(self, x: int) -> Any:
        h = ab.lookup(self.kinds, x)
        return h, (ab.tanh(h),)

    @ab.cell
    def message(self, state: Any, bond: int, weight: float = 1.0) -> Any:
        return ab.dropout(self.inner(self.vector(state)), 0.3), weight * state[0] + ab.lookup(self.kinds, bond)

    @ab.cell
    def node(self, state: Any, messages: list[Any]) -> Any:
        h, (c,) = state
        if not messages:
            return c, (h,)
        found = ab.attend(h, [key for key, _ in messages], [value for _, value in messages])
        return ab.tanh(found + h), (c + found,)


class ByRound(Base):
    """A layer for each round, and functions that are not cells."""

    def start(self, x: int) -> Any:
        return self.double(ab.lookup(self.kinds, x))

    @ab.cell
    def double(self, state: Any) -> Any:
        return 2.0 * state

    @ab.cell
    def message(self, state: Any, round: int, bond: int, weight: float) -> Any:
        return weight * state + ab.lookup(self.kinds, bond) * ab.lookup(self.kinds, round)

    @ab.cell(static=("round",))
    def node(self, state: Any, messages: list[Any], round: int) -> Any:
        return ab.tanh(self.bonds[round](state) + ab.max_n(messages, shape=(DIM,)))


MODELS = [Gated, Attending, ByRound]


def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Draw a graph of n nodes, with cycles, self-loops, multiple edges and isolated nodes, of arrays or lists."""
    n_edges = int(rng.integers(0, 3 * n + 1)) if n else 0
    integer = (np.int64, np.int32, np.uint8)[int(rng.integers(3))]
    found: dict[str, Any] = {
        "x": rng.integers(0, N_KINDS, n).astype(integer), "label": rng.integers(0, 3, n),
        "known": rng.random(n) < 0.5, "bond": rng.integers(0, N_BONDS, n_edges), "weight": rng.random(n_edges),
        "edges": rng.integers(0, max(n, 1), (n_edges, 2)).astype(integer),
    }  # fmt: skip
    found = {name: x if rng.random() < 0.6 else x.tolist() for name, x in found.items()}
    return found | {"scale": float(rng.standard_normal())}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", MODELS)
def test_rounds_of_messages_equal_the_loop(kind: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = kind(rng).astype("float64")
    graphs = [draw(rng, n) for n in (0, 1, 2, 5, 9)]
    recorders = [Recorder(function, model) for function in (model.total, model.looped)]
    for _ in range(2):  # all forms are known the second time
        folded, looped = (recorder.record(graphs) for recorder in recorders)
        assert np.array_equal(folded.words, looped.words)
        assert np.array_equal(folded.floats, looped.floats)
    model.eval()
    for function, plain in ((model.total, model.looped), (model.folded_losses, model.looped_losses)):
        expected = [float(plain(graph)) for graph in graphs]
        assert np.allclose([float(function(graph)) for graph in graphs], expected, rtol=1e-12, atol=1e-12)
        batched, wanted = (ab.batched(one, module=model, backend="reference") for one in (function, plain))
        assert np.allclose(batched(graphs), expected, rtol=1e-12, atol=1e-12)
        value, grads = batched.value_and_grad(graphs)
        assert np.isclose(value, np.mean(expected), rtol=1e-12)
        for name, grad in wanted.value_and_grad(graphs)[1].items():
            assert np.allclose(grads[name], grad, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_equal_central_differences(kind: Any) -> None:
    rng = np.random.default_rng(7)
    model = kind(rng).astype("float64").eval()
    graphs = [draw(rng, n) for n in (0, 1, 4, 6)]
    ab.testing.check_grads(ab.batched(model.total), graphs, model, rng)
    ab.testing.check_batched(model.total, ab.batched(model.total), graphs)


class Sum(ab.Module):
    """Sums of messages of numbers."""

    plain = ab.fold_edges("edges", "add", "start", rounds=2)
    once = ab.fold_edges("edges", "add", "start", rounds=1, readout="pool")
    scaled = ab.fold_edges("edges", "add", "start", rounds=1, readout="pool", message="send")

    def __init__(self) -> None:
        self.half = ab.Parameter(0.5).astype("float64")

    @ab.cell
    def start(self, x: float = 1.0) -> Any:
        return 2.0 * self.half * x

    @ab.cell
    def send(self, state: Any, length: float) -> Any:
        return length * state

    @ab.cell
    def add(self, state: Any, messages: list[Any]) -> Any:
        return state + self.half * ab.sum_n(messages, shape=())

    @ab.cell
    def pool(self, states: list[Any], offset: float = 0.0) -> Any:
        return offset + ab.sum_n(states, shape=())


@pytest.mark.parametrize("n", range(6))
def test_sums_of_messages_are_products_with_the_adjacency_matrix(n: int) -> None:
    rng = np.random.default_rng(n)
    counts = rng.integers(0, 3, (n, n))  # number of edges from one node to another
    edges = np.repeat(np.argwhere(counts), counts[counts > 0], axis=0)
    x, step = rng.standard_normal(n), np.eye(n) + 0.5 * counts.T
    graph = {"x": x, "edges": edges[rng.permutation(len(edges))]}
    model = Sum()
    assert np.allclose(model.plain(graph), step @ step @ x, rtol=1e-12)
    (found,) = ab.batched(model.plain)([graph])
    assert np.allclose(found, step @ step @ x, rtol=1e-12)


def test_results_are_of_all_nodes_some_or_the_graph() -> None:
    model = Sum()
    graph = {"x": [1.0, 2.0, 4.0], "edges": [[0, 1], [2, 1]], "flag": [1, 0, True], "offset": 10.0, "length": [3.0, 1]}

    def batched(function: Any) -> Any:
        def call(graph: Any, **given: Any) -> Any:
            return ab.batched(lambda x: function(x, **given), module=model)([graph])[0]

        return call

    for once, plain, scaled in (
        (model.once, model.plain, model.scaled),
        (batched(model.once), batched(model.plain), batched(model.scaled)),
    ):
        assert once(graph) == 10 + 1 + 2 + 0.5 * (1 + 4) + 4
        assert scaled(graph) == 10 + 1 + 2 + 0.5 * (3 * 1 + 4) + 4
        assert [float(x) for x in plain(graph)] == [1, 2 + 5, 4]
        assert [float(x) for x in plain(graph, where="flag")] == [1, 4]
        assert once(graph, where="flag") == 10 + 1 + 4
        assert [float(x) for x in once(graph, each=lambda state, x: state * x, where="flag")] == [1, 16]
        assert once({"x": [], "edges": []}) == 0
        assert once({"x": [3.0], "edges": []}) == 3
    assert float(model.once(SimpleNamespace(edges=np.array([[0, 0], [0, 2]]), x=None))) == 1.5 + 1 + 1.5
    assert model.plain({"edges": np.zeros((0, 2))}) == []


def test_functions_need_not_be_methods_or_return_values() -> None:
    spread = ab.fold_edges("edges", lambda own, got: own + sum(got), lambda x: x, rounds=2, message=lambda s: -s)
    assert spread({"x": [1, 2, 3], "edges": [(0, 1), (1, 2), (2, 0)]}) == [-3, 3, 0]
    graph = {"x": [1, -2], "edges": [[1, 0], [0, 0]]}
    assert ab.fold_edges("edges", pow_by_position, lambda x: x, rounds=1, message=abs)(graph) == [1**2 + 1, 0]
    reach = ab.fold_edges("edges", lambda own, got: own.union(*got), lambda name: {name}, rounds=2)
    assert reach({"name": ["a", "b", "c"], "edges": [[0, 1], [1, 2]]}) == [{"a"}, {"a", "b"}, {"a", "b", "c"}]


def pow_by_position(own: int, got: list[int], /, x: int) -> int:
    return sum(x**one for one in got)


def test_calls_of_known_forms_call_no_python() -> None:
    """Recording 10 graphs makes as many Python calls as recording 10 larger ones."""
    model = Gated(np.random.default_rng(0))
    recorder = Recorder(model.total, model)

    def count(n: int) -> int:
        """Count the Python calls made while recording 10 graphs of n nodes."""
        graphs = [draw(np.random.default_rng(k), n) for k in range(10)]
        recorder.record(graphs)
        return count_python_calls(recorder.record, graphs)

    assert count(5) == count(30)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ({"x": [1.0, 2.0]}, r"must have a field 'edges'"),
        ({"x": [1.0, 2.0], "edges": [[0, 2]], "length": [1.0]}, r"the 2 nodes, numbered from 0, got node 2 in edge 0"),
        ({"x": [1.0, 2.0], "edges": [[-1, 0]], "length": [1.0]}, r"the 2 nodes, numbered from 0, got node -1"),
        ({"x": [], "edges": [[0, 0]], "length": [1.0]}, r"the 0 nodes, numbered from 0, got node 0"),
        (
            {"x": [1.0], "edges": np.full((1, 2), 2**64 - 1, np.uint64), "length": [1.0]},
            r"numbered from 0, got node -1",
        ),
        ({"x": [1.0], "edges": [[0, 0, 0]], "length": [1.0]}, r"'edges' must be of the shape \(edges, 2\)"),
        *[
            ({"x": [1.0, 2.0], "edges": edges, "length": [1.0]}, "'edges' must be an array of ints with 2 dimensions")
            for edges in ([[0, 1.0]], [[True, False]], [["a", "b"]], [0, 1], "ab", 0.5, [[0, 1], [1]])
        ],
        ({"x": 3, "edges": []}, r"field 'x' must be an array or a list"),
        ({"x": [1.0, 2.0], "y": [1], "edges": []}, r"field 'y' must have an item for each of the 2 nodes, got 1"),
        ({"x": [1.0], "edges": [[0, 0]]}, r"must have a field 'length', which send\(\) takes"),
        (
            {"x": [1.0], "edges": [[0, 0]], "length": [1.0, 2.0]},
            r"'length' must have an item for each of the 1 edges, got 2",
        ),
        (
            {"x": [1.0], "edges": [[0, 0]], "length": 1.0},
            r"field 'length' must be an array or a list of items, got a single",
        ),
    ],
)
def test_malformed_graphs_are_refused(graph: Any, message: str) -> None:
    class Strict(Sum):
        found = ab.fold_edges("edges", "add", "start", rounds=1, message="send", each="last")

        @ab.cell
        def last(self, state: Any, y: int = 0) -> Any:
            return state + y

    model = Strict()
    with pytest.raises(ab.DataError, match=message):
        model.found(graph)
    with pytest.raises(ab.DataError, match=message):
        ab.batched(model.found)([graph])


def test_malformed_definitions_and_calls_are_refused() -> None:
    for wrong in (0, -1, True, 1.0, "2", None):
        with pytest.raises(ab.DataError, match="rounds of fold_edges must be an int"):
            ab.fold_edges("edges", "node", "start", rounds=wrong)  # type: ignore[arg-type]
    with pytest.raises(ab.DataError, match="edges of fold_edges must be a str"):
        ab.fold_edges(["edges"], "node", "start", rounds=1)  # type: ignore[arg-type]
    with pytest.raises(ab.DataError, match="start of fold_edges must be"):
        ab.fold_edges("edges", "node", 3, rounds=1)  # type: ignore[arg-type]
    with pytest.raises(ab.GraphError, match="must be an attribute of a class"):
        ab.fold_edges("edges", "node", "start", rounds=1)({"edges": []})
    with pytest.raises(ab.GraphError, match="must not be given initial="):
        Sum().plain({"edges": []}, initial=2.0)
    with pytest.raises(ab.DataError, match=r"must have a field 'size', which <lambda>\(\) takes"):
        ab.fold_edges("edges", lambda a, b: a, lambda: 0, rounds=1, readout=lambda states, size: 0)({"edges": []})
    with pytest.raises(ab.DataError, match=r"node 0 must have a field 'x', which <lambda>\(\) takes"):
        ab.fold_edges("edges", lambda a, b: a, lambda x: 0, rounds=1)({"edges": [[0, 0]]})

    class Wrong(ab.Module):
        missing = ab.fold_edges("edges", "nothing", lambda: 0, rounds=1)
        narrow = ab.fold_edges("edges", lambda state: 0, lambda: 0, rounds=1)
        starred = ab.fold_edges("edges", lambda state, *got: 0, lambda: 0, rounds=1)

    for name, message in (("missing", "must be a method of Wrong"), ("narrow", "2 states"), ("starred", "2 states")):
        with pytest.raises(ab.GraphError, match=message):
            getattr(Wrong(), name)({"edges": [[0, 0]]})


def test_they_are_pickled_and_shown() -> None:
    graph = {"x": [3.0], "edges": [[0, 0]]}
    assert float(pickle.loads(pickle.dumps(Sum())).once(graph)) == 4.5
    assert all(text in repr(Sum.once) for text in ("fold_edges once", "'edges'"))
    assert "once of Sum" in repr(Sum().once)


class Awaiting(Sum):
    """Rounds of messages inside a program that awaits values, and inside a differentiated function."""

    async def waiting(self, graph: Any) -> Any:
        total: Any = 0.0
        for _ in range(3):
            found = self.once(graph)
            if float(await ab.value(found)) > 1:
                graph = graph | {"x": [0.5 * x for x in graph["x"]]}
            total = total + found
        return total

    def differentiated(self, graph: Any) -> Any:
        def inner(x: Any) -> Any:
            return self.once(graph | {"x": [x for _ in graph["x"]]})

        return ab.value_and_grad(inner)(ab.tanh(self.half))[1]


def test_they_work_in_rounds_and_under_derivatives() -> None:
    model, rng = Awaiting(), np.random.default_rng(0)
    graphs = [{"x": rng.random(n).tolist(), "edges": rng.integers(0, n, (2 * n, 2)).tolist()} for n in range(1, 6)]
    found = ab.batched(model.waiting, module=model)(graphs)
    assert np.allclose(found, [ab.eager(model.waiting, graph) for graph in graphs], rtol=1e-12)
    found = ab.batched(model.differentiated, module=model)(graphs)
    assert np.allclose(found, [model.differentiated(graph) for graph in graphs], rtol=1e-12)
