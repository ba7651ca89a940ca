"""Test that folds equal plain recursion: in eager mode, recorded, batched and differentiated."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.trace.record import Recorder
from helpers.counters.counting import count_python_calls

N_WORDS, DIM = 30, 4


class State(NamedTuple):
    h: Any
    c: Any


class Base(ab.Module):
    """Folds of the cell `node` over nested data, parents and edges, and the equivalent plain recursion."""

    nested = ab.fold("children", "node")
    by_parents = ab.fold(parents="parent", node="node")
    by_edges = ab.fold(edges="edges", node="node")

    def __init__(self, rng: np.random.Generator) -> None:
        self.words = ab.Parameter(rng.standard_normal((N_WORDS, DIM)))
        self.left, self.right = (ab.Linear(DIM, DIM, rng=rng) for _ in range(2))
        self.output = ab.Linear(DIM, 3, rng=rng)

    @ab.cell
    def node_loss(self, state: Any, label: int, weight: float = 0.5) -> Any:
        return weight * ab.cross_entropy(self.output(self.vector(state)), label)

    def vector(self, state: Any) -> Any:
        return state

    def plain(self, tree: dict[str, Any]) -> Any:
        """Sum the losses of all nodes by plain recursion, visiting shared nodes once."""
        known, losses = dict[int, Any](), list[Any]()

        def visit(t: dict[str, Any]) -> Any:
            if id(t) not in known:
                states = [visit(child) for child in t.get("children") or ()]
                known[id(t)] = state = self.node(states, **chosen(t, "word", "scale", "kind"))  # type: ignore[attr-defined]
                losses.append(self.node_loss(state, **chosen(t, "label", "weight")))
            return known[id(t)]

        visit(tree)
        return ab.sum_n(losses)

    def folded(self, tree: Any) -> Any:
        """Sum the losses by a fold over nested data."""
        return ab.sum_n(self.nested(tree, each=self.node_loss))

    def of_parents(self, arrays: Any) -> Any:
        """Sum the losses by a fold over arrays of parents."""
        return ab.sum_n(self.by_parents(arrays, each=self.node_loss))

    def of_edges(self, arrays: Any) -> Any:
        """Sum the losses by a fold over arrays of edges."""
        return ab.sum_n(self.by_edges(arrays, each=self.node_loss))


def chosen(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return those of the named fields that a node has."""
    return {name: fields[name] for name in names if name in fields}


class ByArity(Base):
    """Nodes that have a type for each number of children; leaves read words."""

    @ab.cell
    def node(self, children: list[Any], word: int = 0, scale: float = 1.0, kind: Any = None) -> Any:
        if not children:
            return scale * ab.lookup(self.words, word)
        total = self.left(children[0])
        for child in children[1:]:
            total = ab.tanh(total + self.right(child))
        return total


class ChildSum(Base):
    """Nodes that map over any number of children and whose states are tuples."""

    def vector(self, state: Any) -> Any:
        return state[1][0]

    @ab.cell
    def node(self, children: list[Any], word: int = 1, scale: float = 2.0, kind: Any = None) -> Any:
        x = scale * ab.lookup(self.words, word)
        total = ab.sum_n([ab.tanh(self.left(h)) for _, (h, _) in children], shape=(DIM,))
        first = ab.sum_n([c for c, _ in children], shape=(DIM,)) + x
        return first, (ab.tanh(total + x), first * 0.5)


class Dropping(Base):
    """Nodes that apply dropout, and leaves that draw nothing."""

    @ab.cell
    def node(self, children: list[Any], word: int = 0, scale: float = 1.0, kind: Any = None) -> Any:
        x = ab.lookup(self.words, word)
        if not children:
            return x
        return ab.dropout(ab.tanh(self.left(ab.sum_n(children)) + x), 0.5)


class Kinds(Base):
    """Nodes with a static field, whose value is part of the type."""

    @ab.cell(static=("kind",))
    def node(self, children: list[Any], word: int = 0, scale: float = 1.0, kind: Any = None) -> Any:
        x = scale * ab.lookup(self.words, word)
        if children:
            x = x + ab.sum_n([self.left(child) for child in children])
        return x if kind in (None, 0) else -x if kind == 1 else ab.tanh(x)


class Named(Base):
    """Nodes whose states are named tuples, which only Python can build."""

    def vector(self, state: Any) -> Any:
        return state.h

    @ab.cell
    def node(self, children: list[Any], word: int = 0, scale: float = 1.0, kind: Any = None) -> Any:
        h = ab.sum_n([self.left(child.h) + child.c for child in children], shape=(DIM,)) + ab.lookup(self.words, word)
        return State(ab.tanh(h), scale * h)


class InDict(Base):
    """Nodes whose states are dicts."""

    def vector(self, state: Any) -> Any:
        return state["h"]

    @ab.cell
    def node(self, children: list[Any], word: int = 0, scale: float = 1.0, kind: Any = None) -> Any:
        if not children:
            return {"h": ab.lookup(self.words, word), "c": scale * ab.lookup(self.words, 1)}
        h = self.left(children[0]["h"]) + children[-1]["c"]
        return {"h": ab.tanh(h), "c": h}


class PlainNode(Base):
    """A plain method as node, which calls one of several cells."""

    @ab.cell
    def leaf(self, word: int, scale: float) -> Any:
        return scale * ab.lookup(self.words, word)

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        return ab.tanh(self.left(left) + self.right(right))

    def node(self, children: list[Any], word: int = 0, scale: float = 1.0, kind: Any = None) -> Any:
        state = self.leaf(word, scale)
        for child in children:
            state = self.merge(state, child)
        return state


MODELS = [ByArity, ChildSum, Dropping, Kinds, Named, InDict, PlainNode]


def draw_tree(rng: np.random.Generator, n: int, is_uniform: bool, shares: float) -> dict[str, Any]:
    """Draw a DAG of up to n nodes with one root. A uniform one has all fields at each node, others only some."""
    nodes = list[dict[str, Any]]()
    for i in range(n):
        found: dict[str, Any] = {"label": int(rng.integers(3))}
        draws = {
            "word": int(rng.integers(N_WORDS)), "scale": float(rng.standard_normal()), "kind": int(rng.integers(3)),
            "weight": float(rng.random()),
        }  # fmt: skip
        for name, x in draws.items():
            if is_uniform or rng.random() < 0.5:
                found[name] = x
        free = [node for node in nodes if not node.pop("used", False)] if i else []
        n_children = len(free) if i == n - 1 else int(rng.integers(0, min(len(free), 4) + 1))
        picked = [free[k] for k in rng.permutation(len(free))[:n_children]]
        if nodes and rng.random() < shares:
            picked.append(nodes[int(rng.integers(len(nodes)))])
        for node in nodes:
            if any(node is x for x in picked) or not any(node is x for x in free):
                node["used"] = True
        if picked:
            found["children"] = picked
        elif rng.random() < 0.3:
            found["children"] = ([], None)[int(rng.integers(2))]
        nodes.append(found)
    for node in nodes:
        node.pop("used", None)
    return nodes[-1]


def in_order(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a DAG, each once, children first."""
    found = dict[int, dict[str, Any]]()

    def visit(t: dict[str, Any]) -> None:
        if id(t) not in found:
            for child in t.get("children") or ():
                visit(child)
            found[id(t)] = t

    visit(tree)
    return [*found.values()]


def as_edges(rng: np.random.Generator, tree: dict[str, Any]) -> dict[str, Any]:
    """Convert a uniform DAG to arrays or lists of edges, with its nodes in another order."""
    nodes = in_order(tree)
    place = {id(node): int(i) for node, i in zip(nodes, rng.permutation(len(nodes)), strict=True)}
    nodes.sort(key=lambda node: place[id(node)])
    edges = [(place[id(child)], place[id(node)]) for node in nodes for child in node.get("children") or ()]
    found: dict[str, Any] = {"edges": np.array(edges, np.int32).reshape(-1, 2) if rng.random() < 0.5 else edges}
    for name in ("label", "word", "scale", "kind", "weight"):
        values = [node[name] for node in nodes]
        integer = (np.int64, np.int32, np.uint8)[int(rng.integers(3))]
        array = np.array(values, np.float64 if isinstance(values[0], float) else integer)
        found[name] = array if rng.random() < 0.7 else values
    return found


def as_parents(tree: dict[str, Any]) -> dict[str, Any]:
    """Convert a uniform tree to arrays of parents, children first."""
    nodes = in_order(tree)
    place = {id(node): i for i, node in enumerate(nodes)}
    parent = np.full(len(nodes), -1)
    for i, node in enumerate(nodes):
        for child in node.get("children") or ():
            parent[place[id(child)]] = i
    return {"parent": parent} | {
        name: np.array([node[name] for node in nodes]) for name in ("label", "word", "scale", "kind", "weight")
    }


def children_in_order(tree: dict[str, Any]) -> dict[str, Any]:
    """Sort the children of each node by number, in place: arrays of parents keep no other order."""
    place = {id(node): i for i, node in enumerate(in_order(tree))}
    for node in in_order(tree):
        node["children"] = sorted(node.get("children") or (), key=lambda child: place[id(child)])
    return tree


def words_of(function: Callable[[Any], Any], model: ab.Module, instances: list[Any]) -> np.ndarray:
    """Record a graph twice and return its ints."""
    recorder = Recorder(function, model)
    first = recorder.record(instances).words
    again = recorder.record(instances).words  # now all forms and templates are known
    assert np.array_equal(first, again)
    return again


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", MODELS)
def test_nested_data_are_recorded_as_by_recursion(kind: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = kind(rng)
    trees = [
        draw_tree(rng, int(rng.integers(1, 20)), bool(rng.random() < 0.5), 0.3 * (rng.random() < 0.5))
        for _ in range(12)
    ]
    assert np.array_equal(words_of(model.folded, model, trees), words_of(model.plain, model, trees))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind is not Dropping])
def test_a_fold_equals_the_recursion(kind: Any, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    model = kind(rng).astype("float64")
    trees = [draw_tree(rng, int(rng.integers(1, 20)), True, 0.3 * (seed % 2)) for _ in range(8)]
    expected = [float(model.plain(tree)) for tree in trees]
    assert np.allclose([float(model.folded(tree)) for tree in trees], expected, rtol=1e-12)
    arrays = [as_edges(rng, tree) for tree in trees]
    assert np.allclose([float(model.of_edges(x)) for x in arrays], expected, rtol=1e-12)
    wanted, wanted_grads = ab.batched(model.plain, backend="reference").value_and_grad(trees)
    for function, instances in ((model.folded, trees), (model.of_edges, arrays)):
        batched = ab.batched(function, backend="reference")
        assert np.allclose(batched(instances), expected, rtol=1e-12)
        value, grads = batched.value_and_grad(instances)
        assert np.isclose(value, wanted, rtol=1e-12)
        for name, grad in wanted_grads.items():
            assert np.allclose(grads[name], grad, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("kind", MODELS)
def test_parents_give_the_children_in_order(kind: Any) -> None:
    rng = np.random.default_rng(5)
    model = kind(rng).astype("float64")
    trees = [children_in_order(draw_tree(rng, int(rng.integers(1, 20)), True, 0.0)) for _ in range(8)]
    arrays = [as_parents(tree) for tree in trees]
    assert np.array_equal(words_of(model.of_parents, model, arrays), words_of(model.plain, model, trees))
    model.eval()  # masks would depend on earlier draws
    assert np.allclose([model.of_parents(x) for x in arrays], [model.plain(t) for t in trees], rtol=1e-12)


class Binary(Base):
    """Nodes that take the states of children as separate arguments, and a cell for leaves."""

    nested = ab.fold(("left", "right"), "merge", "leaf")

    @ab.cell
    def merge(self, left: Any, right: Any, scale: float = 2.0) -> Any:
        total = (0.0 if left is None else self.left(left)) + (0.0 if right is None else self.right(right))
        return scale * ab.tanh(total)

    @ab.cell
    def leaf(self, word: int = 3, scale: float = 1.0) -> Any:
        return scale * ab.lookup(self.words, word)

    def plain(self, tree: dict[str, Any]) -> Any:
        losses = list[Any]()

        def visit(t: dict[str, Any]) -> Any:
            below = [None if t.get(side) is None else visit(t[side]) for side in ("left", "right")]
            if any(child is not None for child in below):
                state = self.merge(below[0], below[1], **chosen(t, "scale"))
            else:
                state = self.leaf(**chosen(t, "word", "scale"))
            losses.append(self.node_loss(state, **chosen(t, "label", "weight")))
            return state

        visit(tree)
        return ab.sum_n(losses)


def draw_binary(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    """Draw a tree whose nodes have up to two children and some of the fields."""
    fields = {"word": int(rng.integers(N_WORDS)), "scale": float(rng.standard_normal()), "weight": float(rng.random())}
    found: dict[str, Any] = {name: x for name, x in fields.items() if rng.random() < 0.6}
    found["label"] = int(rng.integers(3))
    for side in ("left", "right"):
        if depth and rng.random() < 0.7:
            found[side] = draw_binary(rng, depth - 1)
        elif rng.random() < 0.3:
            found[side] = None
    return found


@pytest.mark.parametrize("seed", range(4))
def test_children_in_fields_are_arguments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = Binary(rng).astype("float64")
    trees = [draw_binary(rng, 5) for _ in range(12)]
    assert np.array_equal(words_of(model.folded, model, trees), words_of(model.plain, model, trees))
    expected = [float(model.plain(tree)) for tree in trees]
    assert np.allclose([float(model.folded(tree)) for tree in trees], expected, rtol=1e-12)
    assert np.allclose(ab.batched(model.folded)(trees), expected, rtol=1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
def test_deep_trees_are_read_from_both_sides(side: str) -> None:
    """The other child of each node on the long path is either waiting or done."""
    model, other = Binary(np.random.default_rng(0)), {"left": "right", "right": "left"}[side]
    tree: dict[str, Any] = {"word": 0, "label": 0}
    for k in range(300):
        tree = {side: tree, other: {"word": k % N_WORDS, "label": k % 3}, "label": 1, "scale": 0.5}
    assert np.array_equal(words_of(model.folded, model, [tree]), words_of(model.plain, model, [tree]))


def test_dropout_draws_the_same_numbers_eagerly_and_batched() -> None:
    rng = np.random.default_rng(0)
    model = Dropping(rng).astype("float64")
    trees = [draw_tree(rng, 9, True, 0.2) for _ in range(5)]
    batched = ab.batched(model.folded, seed=3, backend="reference")(trees)
    for key, tree in enumerate(trees):
        with ab.randomness(3, 0, key):
            assert np.isclose(model.folded(tree), batched[key], rtol=1e-12)


class Sum(ab.Module):
    """Sums over nodes, for each way to find children."""

    values = ab.fold("children", "node")
    pairs = ab.fold(("left", "right"), "pair")
    leaves = ab.fold(["left", "right"], "pair", "leaf")
    called = ab.fold(lambda t: t.below, "node")
    of_edges = ab.fold(edges="edges", node="node")
    of_parents = ab.fold(parents="parent", node="node")
    rooted = ab.fold("children", "node", root="twice")
    all_of = ab.fold("children", "node", each="twice", where="is_wanted")

    def __init__(self) -> None:
        self.one = ab.Parameter(1.0).astype("float64")

    @ab.cell
    def node(self, children: list[Any], value: int = 1) -> Any:
        return self.one * value + ab.sum_n(children, shape=())

    @ab.cell
    def pair(self, left: Any, right: Any, value: int = 1) -> Any:
        return self.one * value + (0.0 if left is None else left) + (0.0 if right is None else 10.0 * right)

    @ab.cell
    def leaf(self, value: int = 1) -> Any:
        return self.one * 1000.0 * value

    @ab.cell
    def twice(self, state: Any, value: int) -> Any:
        return 2.0 * state + 100.0 * value


def test_children_are_fields_or_functions_of_dicts_and_objects() -> None:
    model = Sum()
    leaf = SimpleNamespace(value=5, below=(), left=None, right=None)
    tree = SimpleNamespace(value=2, below=[leaf, leaf], left=leaf, right=None)
    for function, instance, expected in (
        (model.values, {"value": 1, "children": ({"value": 2}, {"value": 3, "children": None})}, 6),
        (model.pairs, {"value": 1, "left": {"value": 2}, "right": {"value": 4, "left": None}}, 43),
        (model.pairs, tree, 7),
        (model.leaves, {"value": 1, "left": {"value": 2}, "right": {"value": 4, "left": None}}, 42001),
        (model.leaves, tree, 5002),
        (model.leaves, leaf, 5000),
        (model.called, tree, 12),
        (model.values, {}, 1),
        (model.of_edges, {"edges": [[0, 1], [0, 1], [2, 0]], "value": [1.0, 2.0, 3.0]}, 10),
        (model.of_edges, SimpleNamespace(edges=np.zeros((0, 2)), value=np.array([7])), 7),
        (model.of_edges, {"edges": [[0, 1], [0, 2], [1, 2]]}, 4),
        (model.of_parents, {"parent": [2, 0, -1]}, 3),
    ):
        assert float(function(instance)) == expected
        assert ab.batched(function)([instance]) == [expected]


def test_results_are_of_the_root_or_of_some_nodes() -> None:
    model = Sum()
    tree: dict[str, Any] = {
        "value": 1, "is_wanted": True,
        "children": [{"value": 2, "is_wanted": 0}, {"value": 3, "is_wanted": 2.5}, {"value": 4}],
    }  # fmt: skip
    for rooted, all_of in (
        (model.rooted(tree), model.all_of(tree)),
        (ab.batched(model.rooted)([tree])[0], ab.batched(model.all_of)([tree])[0]),
    ):
        assert rooted == 2 * 10 + 100
        assert [float(x) for x in all_of] == [306, 120]
    arrays = {"parent": [3, 3, -1, 2], "value": [1, 2, 3, 4], "flag": np.array([True, False, True, True])}
    found = model.of_parents(arrays, each="twice", where="flag")
    assert [float(x) for x in found] == [2 + 100, 20 + 300, 14 + 400]
    assert [float(x) for x in model.values(tree, each=lambda state: state)] == [2, 3, 4, 10]


def test_several_roots_have_results_of_nodes_alone() -> None:
    model = Sum()
    arrays = {"parent": [-1, 0, -1]}
    assert [float(x) for x in model.of_parents(arrays, each=lambda state: state)] == [2, 1, 1]
    with pytest.raises(ab.DataError, match=r"one root, got 2"):
        model.of_parents(arrays)
    with pytest.raises(ab.DataError, match=r"one root, got 0"):
        model.of_parents({"parent": []})
    assert model.of_parents({"parent": []}, each=lambda state: state) == []


@pytest.mark.parametrize(("n", "is_recorded"), [(5_000, False), (100_000, True)])
def test_depth_does_not_matter(n: int, is_recorded: bool) -> None:
    tree: dict[str, Any] = {"value": 1}
    for _ in range(n - 1):
        tree = {"value": 1, "children": [tree]}
    model, chain = Sum(), {"parent": np.arange(-1, n - 1), "value": np.ones(n, int)}
    for function, instance in ((model.values, tree), (model.of_parents, chain)):
        found = ab.batched(function, backend="cpu")([instance])[0] if is_recorded else function(instance)
        assert float(found) == n
    while "children" in tree:  # freed step by step, because Python frees nested dicts recursively
        (tree,) = tree.pop("children")


class Cyclic(dict[str, Any]):
    """A dict that may be its own child."""


@pytest.mark.parametrize(
    ("function", "instance", "message"),
    [
        ("values", [{"value": 1}], r"must be a dict or an object, got \[{'value': 1}\]"),
        ("values", "a", r"must be a dict or an object, got 'a'"),
        ("called", SimpleNamespace(below=3), r"^the children of a node must be a list or a tuple, got int"),
        ("values", {"children": 3}, r"^field 'children' must be a list or a tuple, got int"),
        ("of_parents", {"parent": [1, 0]}, r"a cycle, but node 0"),
        ("of_parents", {"parent": [-1, 7]}, r"item 1 of field 'parent' must be .* 0 to 1, or -1 .*, got 7"),
        ("of_parents", {"parent": np.array([-2, 7])}, r"item 0 of field 'parent' must be .* 0 to 1, or -1 .*, got -2"),
        ("of_parents", {"parent": [1], "value": [1, 2]}, r"'parent' must have an item for each of the 2 nodes, got 1"),
        ("of_parents", {"parent": [-1.0, 0.0]}, r"array of ints with 1 dimension, got one of dtype float64"),
        ("of_parents", {"parent": [[-1]]}, r"array of ints with 1 dimension, got one .* with 2"),
        ("of_parents", {"parent": [-1, 0], "value": [1]}, r"'value' must have an item for each of the 2 nodes, got 1"),
        ("of_parents", {"parent": [-1, 0], "value": 3}, r"'value' must be an array or a list of items, got a single"),
        ("of_parents", {"value": [1]}, r"must have a field 'parent'"),
        ("of_edges", {"edges": [[0, 2]], "value": [1, 2]}, r"nodes 0\.\.1"),
        ("of_edges", {"edges": [[0, 1, 2]], "value": [1, 2]}, r"shape \(edges, 2\)"),
        ("of_edges", {"edges": [[0, 0]], "value": [1]}, r"a cycle, but node 0"),
        ("of_edges", {"edges": [[2, 1], [3, 2], [2, 3], [0, 4]], "value": [1] * 5}, r"a cycle, but node [23]"),
        (
            "of_edges",
            {"edges": [[0, 1]], "value": 5},
            r"field 'value' must be an array or a list of items, got a single",
        ),
        ("of_edges", {"edges": [[0, 1], [2]]}, r"'edges' must be .* got lists that differ in length"),
        ("of_edges", {"edges": [[0, "x"]]}, r"array of ints with 2 dimensions"),
        ("of_edges", {"edges": [0, 1]}, r"array of ints with 2 dimensions"),
        ("of_edges", {"edges": 3}, r"array of ints with 2 dimensions"),
        ("of_edges", {"edges": [[0, 1 << 40]]}, r"nodes below 2\^31"),
        ("of_parents", {"parent": [[-1], 0]}, r"'parent' must be .* got lists that differ in length"),
        ("of_parents", {"parent": 3}, r"'parent' must be an array or a list of items"),
        ("of_parents", {"parent": [-1, None]}, r"array of ints with 1 dimension"),
        ("rooted", {"children": []}, r"node 0 must have a field 'value', which twice\(\) takes"),
        ("all_of", {"children": [], "is_wanted": 1}, r"node 0 must have a field 'value', which twice\(\) takes"),
    ],
)
def test_malformed_instances_are_refused(function: str, instance: Any, message: str) -> None:
    model = Sum()
    with pytest.raises(ab.DataError, match=message):
        getattr(model, function)(instance)
    with pytest.raises(ab.DataError, match=message):
        ab.batched(getattr(model, function))([instance])


def test_a_misspelled_field_of_children_is_told_once() -> None:
    class Wrong(Sum):
        misspelled = ab.fold("nodes", "node")
        sides = ab.fold(("a", "b"), "pair")

    tree = {"value": 1, "children": [{"value": 2}, {"value": 3}]}
    with pytest.warns(UserWarning, match="no field 'nodes', but nodes in 'children'") as told:
        assert [float(x) for x in map(Wrong().misspelled, (tree, tree))] == [1, 1]
    assert len(told) == 1
    with pytest.warns(UserWarning, match="no field 'a' or 'b', but nodes in 'left'"):
        Wrong().sides({"value": 1, "left": {"value": 2}})


@pytest.mark.parametrize(
    "leaf",
    [
        {"value": 1},
        {"value": 1, "children": []},
        {"value": 1, "children": None, "others": [{"value": 2}]},
        {"value": 1, "spans": [{"from": 0, "to": 3}]},
        {"value": 1, "rows": [[{"value": 2}]], "empty": []},
    ],
)
def test_leaves_alone_are_no_reason_for_a_warning(leaf: Any) -> None:
    class Fresh(Sum):
        values = ab.fold("children", "node")

    assert float(Fresh().values(leaf)) == 1  # warnings are errors


def test_a_node_among_its_descendants_is_refused() -> None:
    tree = Cyclic(value=1)
    tree["children"] = [{"children": [tree]}]
    with pytest.raises(ab.DataError, match="own descendants"):
        Sum().values(tree)
    tree.clear()


def test_malformed_folds_are_refused() -> None:
    with pytest.raises(ab.GraphError, match="exactly one of children, parents= and edges="):
        ab.fold("children", "node", parents="parent")
    with pytest.raises(ab.GraphError, match="exactly one"):
        ab.fold(node="node")
    with pytest.raises(ab.GraphError, match="node of fold must be a function"):
        ab.fold("children")
    with pytest.raises(ab.GraphError, match="children of fold"):
        ab.fold((), "node")
    with pytest.raises(ab.GraphError, match="must be an attribute of a class"):
        ab.fold("children", "node")({})
    with pytest.raises(ab.GraphError, match="must not be given initial="):
        ab.fold("children", lambda children: 1.0)({}, initial=2.0)

    class Wrong(ab.Module):
        missing = ab.fold("children", "nothing")
        starred = ab.fold("children", lambda children, *rest: 1.0)
        empty = ab.fold("children", lambda: 1.0)

    for name, message in (("missing", "must be a method of Wrong"), ("starred", "1 states"), ("empty", "1 states")):
        with pytest.raises(ab.GraphError, match=message):
            getattr(Wrong(), name)({})


def test_errors_of_functions_are_left_as_they_are() -> None:
    def fails(children: list[Any], value: int) -> Any:
        raise ZeroDivisionError(f"at {value}")

    with pytest.raises(ZeroDivisionError, match="at 4"):
        ab.fold("children", fails)({"value": 1, "children": [{"value": 4}]})

    class Broken:
        children = ()

        @property
        def value(self) -> int:
            raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        ab.fold("children", fails)(Broken())


def test_folds_are_pickled_and_shown() -> None:
    model = pickle.loads(pickle.dumps(Sum()))
    assert float(model.values({"value": 3})) == 3
    assert all(text in repr(Sum.values) for text in ("values", "'children'"))
    assert "of Sum" in repr(model.values)
    assert pickle.loads(pickle.dumps(ab.fold("children", max)))


def test_arrays_of_rows_are_given_row_by_row() -> None:
    class Vectors(ab.Module):
        visit = ab.fold(parents="parent", node="node")

        def __init__(self) -> None:
            self.weight = ab.Parameter(np.full(3, 2.0)).astype("float64")

        @ab.cell
        def node(self, children: list[Any], x: Any, name: str = "") -> Any:
            return self.weight * x + ab.sum_n(children, shape=(3,)) + (10.0 if name == "b" else 0.0)

    x = np.arange(12.0).reshape(4, 3)
    instance = {"parent": [-1, 0, 0, 1], "x": x, "name": ["a", "b", "a", "b"]}
    assert np.allclose(Vectors().visit(instance), 2 * x.sum(0) + 20)
    assert np.allclose(ab.batched(Vectors().visit)([instance, instance]), 2 * x.sum(0) + 20)


def test_templates_follow_what_cells_read() -> None:
    model = ByArity(np.random.default_rng(0)).astype("float64")
    factors = {"value": 1.0}

    class Scaled(ab.Module):
        visit = ab.fold("children", "node")

        def __init__(self) -> None:
            self.model = model

        @ab.cell
        def node(self, children: list[Any], word: int = 0) -> Any:
            if not children:
                return factors["value"] * ab.lookup(self.model.words, word)
            return ab.tanh(ab.sum_n(children))

        def loss(self, tree: Any) -> Any:
            return ab.sum(self.visit(tree))

    scaled = Scaled()
    trees = [draw_tree(np.random.default_rng(k), 8, True, 0.0) for k in range(4)]
    loss = ab.batched(scaled.loss)
    for value in (1.0, 2.0, 1.0):
        factors["value"] = value
        for _ in range(2):
            assert np.allclose(loss(trees), [float(scaled.loss(tree)) for tree in trees], rtol=1e-6)


def test_calls_of_known_forms_call_no_python() -> None:
    """Recording 10 trees makes as many Python calls as recording 10 larger ones."""
    rng = np.random.default_rng(0)
    model = ChildSum(rng)
    recorder = Recorder(model.of_parents, model)

    def count(n: int) -> int:
        """Count the Python calls made while recording 10 trees of up to n nodes."""
        trees = [as_parents(draw_tree(np.random.default_rng(k), n, True, 0.0)) for k in range(10)]
        recorder.record(trees)
        return count_python_calls(recorder.record, trees)

    assert count(5) == count(30)


def test_functions_are_freed() -> None:
    """A fold caches the fields of functions but does not keep the functions alive."""

    def node(children: list[Any], value: int) -> Any:
        return value + sum(children)

    visit = ab.fold("children", node)
    assert visit({"value": 1, "children": [{"value": 2}]}) == 3
    gone = weakref.ref(node)
    del node, visit
    gc.collect()
    assert gone() is None
