"""Test folds in exported files: a loaded model runs them without its classes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.deploy import writing

DIM = 3


class Encoder(ab.Module):
    """A child-sum network with its own fold."""

    encode = ab.fold("children", "node", root="pool")

    def __init__(self, rng: np.random.Generator) -> None:
        self.words = ab.Parameter(rng.standard_normal((9, DIM)))
        self.inner = ab.Linear(DIM, DIM, rng=rng)

    @ab.cell
    def node(self, children: list[Any], word: int = 0) -> Any:
        return ab.tanh(ab.lookup(self.words, word) + ab.sum_n([self.inner(x) for x in children], shape=(DIM,)))

    @ab.cell
    def pool(self, state: Any) -> Any:
        return ab.sum(state)


class Net(ab.Module):
    """Folds over cells, and two that a file cannot hold."""

    pairs = ab.fold(("left", "right"), "join", "leaf", each="score", where="wanted")
    arrays = ab.fold(parents="parent", node="merge", root="score")
    words = ab.scan("step", "begin", reverse=True, last="score")
    from_vector = ab.scan("step", "vector")
    from_zeros = ab.scan("step", np.zeros(DIM))
    called = ab.fold(lambda t: t.get("children"), "merge")
    plain = ab.fold("children", "method")

    def __init__(self, rng: np.random.Generator) -> None:
        self.encoder = Encoder(rng)
        self.vector = ab.Parameter(rng.standard_normal(DIM))

    @ab.cell
    def merge(self, children: list[Any], word: int, weight: float = 0.5) -> Any:
        total = weight * ab.lookup(self.encoder.words, word)
        for child in children:
            total = ab.tanh(total + self.encoder.inner(child))
        return total

    @ab.cell
    def leaf(self, word: int, weight: float = 0.5) -> Any:
        return weight * ab.lookup(self.encoder.words, word)

    @ab.cell
    def join(self, left: Any, right: Any, word: int) -> Any:
        return ab.tanh(self.encoder.inner(left) + right + ab.lookup(self.encoder.words, word))

    @ab.cell
    def score(self, state: Any, word: int) -> Any:
        return ab.sum(state) + word

    def method(self, children: list[Any]) -> Any:
        return children[0] if children else 0.0

    @ab.cell
    def begin(self) -> Any:
        return self.encoder.words[0]

    @ab.cell
    def step(self, state: Any, word: int) -> Any:
        return ab.tanh(self.encoder.inner(state) + ab.lookup(self.encoder.words, word))

    def everything(self, tree: Any) -> Any:
        self.words({"word": [1, 2]}), self.from_vector([1, 2]), self.arrays(to_arrays(tree))
        return self.pairs(tree), self.encoder.encode(tree)


def draw(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    """Draw a tree with children in both forms."""
    found: dict[str, Any] = {"word": int(rng.integers(9)), "wanted": int(rng.integers(2))}
    if rng.random() < 0.7:
        found["weight"] = float(rng.random())
    if depth and rng.random() < 0.8:
        found["left"], found["right"] = draw(rng, depth - 1), draw(rng, depth - 1)
        found["children"] = [found["left"], found["right"]]
    return found


def to_arrays(tree: dict[str, Any]) -> dict[str, Any]:
    """Convert a tree to lists, with its root first."""
    found: dict[str, Any] = {"parent": [], "word": [], "weight": []}

    def visit(t: dict[str, Any], parent: int) -> None:
        place = len(found["parent"])
        for name, x in (("parent", parent), ("word", t["word"]), ("weight", t.get("weight", 0.5))):
            found[name].append(x)
        for child in t.get("children", ()):
            visit(child, place)

    visit(tree, -1)
    return found


@pytest.fixture
def made(tmp_path: Path) -> tuple[Net, list[dict[str, Any]], Path]:
    """Return a model in float64, trees, and the path of the exported model."""
    rng = np.random.default_rng(0)
    model = Net(rng).astype("float64").eval()
    trees = [draw(rng, 4) for _ in range(20)]
    path = tmp_path / "net.ab"
    ab.export(model.everything, path, examples=trees)
    return model, trees, path


def test_loaded_folds_give_the_same_results(made: tuple[Net, list[dict[str, Any]], Path]) -> None:
    model, trees, path = made
    for loaded in (ab.load(path), pickle.loads(pickle.dumps(ab.load(path)))):
        for name, owner, source in (("pairs", loaded, model), ("encode", loaded.encoder, model.encoder)):
            found = ab.batched(getattr(owner, name), module=loaded, backend="cpu")(trees)
            for x, tree in zip(found, trees, strict=True):
                assert np.allclose(x, getattr(source, name)(tree), rtol=1e-12, atol=1e-12)
        arrays = [to_arrays(tree) for tree in trees]
        expected = [model.arrays(x) for x in arrays]
        assert np.allclose(ab.batched(loaded.arrays, backend="cpu")(arrays), expected, rtol=1e-12)
        assert np.allclose(loaded.arrays(arrays[0]), expected[0], rtol=1e-12)
        expected = [model.words(x) for x in arrays]
        assert np.allclose(ab.batched(loaded.words, backend="cpu")(arrays), expected, rtol=1e-12)
        found = ab.batched(loaded.from_vector, backend="cpu")([[1, 2, 3], [4]])
        for states, words in zip(found, ([1, 2, 3], [4]), strict=True):
            assert np.allclose(states, model.from_vector(words), rtol=1e-12)


def test_folds_that_are_no_data_are_left_out(made: tuple[Net, list[dict[str, Any]], Path]) -> None:
    loaded = ab.load(made[2])
    assert not hasattr(loaded, "called")
    assert not hasattr(loaded, "plain")
    assert not hasattr(loaded, "from_zeros")


class Graphs(ab.Module):
    """Rounds of messages whose cells take fields of nodes, edges and the graph, and the number of the round."""

    total = ab.fold_edges("edges", "node", "start", message="message", rounds=3, readout="read", where="known")
    states = ab.fold_edges("edges", "node", "start", rounds=3, each="score")

    def __init__(self, rng: np.random.Generator) -> None:
        self.words = ab.Parameter(rng.standard_normal((9, DIM)))
        self.layers = [ab.Linear(DIM, DIM, rng=rng) for _ in range(3)]

    @ab.cell
    def start(self, word: int) -> Any:
        return ab.lookup(self.words, word)

    @ab.cell
    def message(self, state: Any, weight: float, kind: str = "") -> Any:
        return weight * (ab.tanh(state) if kind == "tanh" else state)

    @ab.cell(static=("round",))
    def node(self, state: Any, messages: list[Any], round: int) -> Any:
        return ab.tanh(self.layers[round](state) + ab.sum_n(messages, shape=(DIM,)))

    @ab.cell
    def read(self, states: list[Any], offset: float = 0.5) -> Any:
        return offset + ab.sum(ab.sum_n(states, shape=(DIM,)))

    @ab.cell
    def score(self, state: Any, word: int) -> Any:
        return ab.sum(state) + word

    def both(self, graph: Any) -> Any:
        return self.total(graph), self.states(graph)


def draw_graph(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Draw a graph with cycles, as JSON."""
    n_edges = 2 * n
    found = {
        "word": rng.integers(0, 9, n), "known": rng.integers(0, 2, n), "edges": rng.integers(0, n, (n_edges, 2)),
        "weight": rng.random(n_edges), "kind": rng.choice(["tanh", "none"], n_edges), "offset": rng.random(),
    }  # fmt: skip
    return {name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in found.items()}


def test_rounds_of_messages_travel_with_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    model, path = Graphs(rng).astype("float64").eval(), tmp_path / "graphs.ab"
    examples, graphs = ([draw_graph(rng, n) for n in (1, 2, 5, 9)] for _ in range(2))
    graphs += [{"word": [3, 4], "known": [1, 1], "edges": []}, {"word": [], "edges": []}]
    ab.export(model.total, path, examples=[*examples, {"word": [2], "known": [1], "edges": []}])
    loaded = ab.load(path)
    assert not hasattr(loaded, "states")  # the examples do not call score
    assert np.allclose(ab.batched(loaded.total, backend="reference")(graphs), [*map(model.total, graphs)], rtol=1e-12)
    assert np.allclose(loaded._function(graphs[2]), model.total(graphs[2]), rtol=1e-12)
    ab.export(model.both, path, examples=examples)
    found = ab.batched(ab.load(path).states, backend="reference")(graphs)
    for scores, graph in zip(found, graphs, strict=True):
        assert np.allclose(scores, model.states(graph), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"message": "nothing"}, "message of 'total' must be a cell, got 'nothing'"),
        ({"rounds": 0}, "rounds of fold_edges must be an int of at least 1, got 0"),
        ({"rounds": "3"}, "rounds of fold_edges must be an int"),
        ({"edges": ["edges"]}, "must be names"),
    ],
)
def test_malformed_rounds_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    found = writing._recursions
    monkeypatch.setattr(writing, "_recursions", lambda *args: [one | change for one in found(*args)])
    ab.export(Graphs(rng).eval().total, tmp_path / "graphs.ab", examples=[draw_graph(rng, 5)])
    with pytest.raises(ab.AutobatchError, match=message):
        ab.load(tmp_path / "graphs.ab")


def test_the_file_needs_no_code(made: tuple[Net, list[dict[str, Any]], Path], tmp_path: Path) -> None:
    """A process without the model's code answers JSON requests."""
    model, trees, path = made
    data, out = tmp_path / "trees.json", tmp_path / "out.json"
    data.write_text(json.dumps(trees))
    code = (
        "import json, sys, autobatch as ab; model = ab.load(sys.argv[1]);"
        "found = ab.batched(model.pairs, backend='cpu')(json.load(open(sys.argv[2])));"
        "json.dump([[float(x) for x in one] for one in found], open(sys.argv[3], 'w'))"
    )
    subprocess.run([sys.executable, "-c", code, path, data, out], check=True, cwd=tmp_path)
    for found, tree in zip(json.loads(out.read_text()), trees, strict=True):
        assert np.allclose(found, model.pairs(tree), rtol=1e-12, atol=1e-12)


def test_an_exported_fold_must_be_data(tmp_path: Path) -> None:
    model = Net(np.random.default_rng(0)).eval()
    tree = {"word": 1, "children": [{"word": 2}]}
    path = tmp_path / "net.ab"
    ab.export(model.arrays, path, examples=[to_arrays(tree)])
    assert np.allclose(ab.load(path)._function(to_arrays(tree)), model.arrays(to_arrays(tree)), rtol=1e-6)
    with pytest.raises(ab.GraphError, match="functions must be cells"):
        ab.export(model.called, path, examples=[tree])
    with pytest.raises(ab.GraphError, match="must be an attribute of a module"):
        ab.export(ab.fold("children", model.merge), path, examples=[tree], module=model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node": "nothing"}, "node of 'arrays' must be a cell, got 'nothing'"),
        ({"node": 3}, "must be names"),
        ({"children": "x"}, "exactly one of children"),
        ({"unknown": "x"}, "malformed content"),
        ({"name": "__del__"}, "must not be reserved"),
        ({"name": "parameters"}, "must not be reserved"),
        ({"module": "elsewhere"}, "malformed content"),
    ],
)
def test_malformed_folds_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net(np.random.default_rng(0)).eval()
    path = tmp_path / "net.ab"
    found = writing._recursions
    monkeypatch.setattr(writing, "_check_names", lambda content: None)
    monkeypatch.setattr(
        writing, "_recursions", lambda *args: [one | change for one in found(*args) if one["name"] == "arrays"]
    )
    ab.export(model.arrays, path, examples=[{"parent": [-1], "word": [1]}])
    with pytest.raises(ab.AutobatchError, match=message):
        ab.load(path)


def test_messages_say_how_to_use_the_file(made: tuple[Net, list[dict[str, Any]], Path], tmp_path: Path) -> None:
    model, _, path = made
    before = model.vector.data.copy()
    with pytest.raises(ab.CheckpointError, match="got an exported model; "):
        model.load(path)
    model.load_state_dict(ab.load(path).state_dict())
    assert np.array_equal(model.vector.data, before)
    loaded = ab.load(path)
    for word in ("film", ["film"]):
        with pytest.raises(ab.GraphError, match=r"'word' .* must be int.*ab\.readers\.encode\(instance, "):
            ab.batched(loaded.encoder.encode, backend="reference")([{"word": word}])
    with pytest.raises(ab.GraphError, match="must be int") as found:
        ab.batched(loaded.encoder.encode, backend="reference")([{"word": 0.5}])
    assert "encode(" not in str(found.value)


class Sized(ab.Module):
    """A fold and rounds of messages over nodes with floats, a list of floats, and a number of either type."""

    total = ab.fold("children", "node")
    rounds = ab.fold_edges("edges", "update", "start", message="send", rounds=2, readout="add")

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.linspace(0.5, 1.0, DIM))

    @ab.cell
    def node(self, children: list[Any], size: float = 0.0, box: Any = (0.0, 0.0), either: Any = 0) -> Any:
        return ab.tanh(size * self.weight + box[0] * box[1] + either + ab.sum_n(children, shape=(DIM,)))

    @ab.cell
    def start(self, size: float) -> Any:
        return size * self.weight

    @ab.cell
    def send(self, state: Any, length: float) -> Any:
        return length * state

    @ab.cell
    def update(self, state: Any, messages: list[Any]) -> Any:
        return ab.tanh(state + ab.sum_n(messages, shape=(DIM,)))

    @ab.cell
    def add(self, states: list[Any]) -> Any:
        return ab.sum(ab.sum_n(states, shape=(DIM,)))


def test_ints_in_fields_of_floats_become_floats(tmp_path: Path) -> None:
    """JavaScript writes 3.0 as 3."""
    model, path = Sized().astype("float64").eval(), tmp_path / "sized.ab"
    examples: list[Any] = [{"size": 1.5, "box": [0.5, 2.0], "children": [{}, {"either": 0.5}]}]
    ab.export(model.total, path, examples=examples)
    ints: dict[str, Any] = {"size": 3, "box": [2, 0.5], "children": [{"size": 2**52}, {"size": -1, "either": 2}]}
    floats = {"size": 3.0, "box": [2.0, 0.5], "children": [{"size": 2.0**52}, {"size": -1.0, "either": 2}]}
    loaded = ab.load(path)
    total = ab.batched(loaded.total, backend="reference")
    expected = model.total(floats)
    assert np.allclose(total([ints])[0], expected, rtol=1e-12)
    assert np.allclose(loaded.total(ints), expected, rtol=1e-12)
    assert len(total.explain([ints, floats]).types) == len(total.explain([floats, floats]).types)
    for wrong in (True, 2**53 + 1, 10**400, "3"):
        with pytest.raises(ab.GraphError, match="'size' of the loaded cell 'node' must be float") as found:
            total([{"size": wrong}])
        assert "encode" not in str(found.value)
    ab.export(model.rounds, path, examples=[{"edges": [[0, 1]], "size": [0.5, 1.5], "length": [0.5]}])
    graph = {"edges": [[0, 1], [1, 0]], "size": [1, 0.5], "length": [2, 0.5]}
    found = ab.batched(ab.load(path)._function, backend="reference")([graph])
    assert np.allclose(found, model.rounds({**graph, "size": [1.0, 0.5], "length": [2.0, 0.5]}), rtol=1e-12)


class Rowed(ab.Module):
    """A scan over the rows of an array, some of which are ints."""

    total = ab.scan("add", "start")

    def __init__(self) -> None:
        self.weight, self.start = ab.Parameter(np.ones(2)), ab.Parameter(np.zeros(2))

    @ab.cell
    def add(self, state: Any, row: Any, word: Any) -> Any:
        return state + self.weight * row * ab.sum(word)


def test_arrays_of_ints_in_fields_of_floats_become_floats(tmp_path: Path) -> None:
    model, path = Rowed().eval(), tmp_path / "rowed.ab"
    ab.export(model.total, path, examples=[{"row": np.ones((2, 2)), "word": np.ones((2, 1), int)}])
    ints = {"row": np.array([[1, 2], [3, 4]]), "word": np.array([[5], [6]])}
    loaded = ab.load(path)
    wanted = model.total(ints)
    assert np.allclose(ab.batched(loaded.total, backend="reference")([ints])[0], wanted)
    assert np.allclose(loaded.total(ints), wanted)
    with pytest.raises(ab.GraphError, match=r"'word' of the loaded cell 'add' must be int"):
        loaded.total({**ints, "word": np.ones((2, 1))})
