"""Test inputs: which float arrays of an instance are found, what replaces them, and what a program may do with them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import networkx
import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError, GraphError
from autobatch.trace.inputs import Held
from helpers.runs.ways import each


@dataclass(frozen=True, slots=True)
class Tree:
    """A binary tree with features, and words at the leaves."""

    features: Any
    word: int = 0
    children: tuple[Any, ...] = ()


class Pair(NamedTuple):
    left: Any
    right: Any


class Slotted:
    __slots__ = ("__hidden", "shown")

    def __init__(self) -> None:
        self.__hidden, self.shown = np.ones(1), np.ones(2)

    @property
    def hidden(self) -> Any:
        return self.__hidden


class Half:
    """A descriptor that stores half of the assigned value under its own name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, owner: Any, x: Any) -> None:
        owner.__dict__[self.name] = x * 0.5

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return owner.__dict__[self.name]


class Point:
    """A descriptor and a property with the names of entries of `__dict__`."""

    x = Half()

    def __init__(self, x: Any) -> None:
        self.x, self.__dict__["y"] = x, x

    @property
    def y(self) -> Any:
        return self.__dict__["y"]


def letters(instance: Any) -> Any:
    """Return the instance with a letter for each float array and None for other leaves."""
    return Held(instance).rebuild(list("abcdefgh"[: len(Held(instance).arrays)]), lambda part: None)


def test_structures_keep_their_form() -> None:
    x, y = np.ones(2), np.ones((1, 1), np.float32)
    assert letters((x, [y, 3, "s"], {"k": x, "w": np.arange(3)})) == ("a", ["b", None, None], {"k": "a", "w": None})
    assert letters(Pair(x, 3)) == Pair("a", None)
    counter: Any = Counter("kn")
    counter["k"] = x
    assert letters(counter) == {"k": "a", "n": None}
    tree = letters(Tree(x, 3, (Tree(y), Tree(None, 4))))
    assert {tree.features, tree.children[0].features} == {"a", "b"}
    assert tree.word is None
    assert tree.children[0].children is None
    assert tree.children[1] is None
    assert vars(letters(SimpleNamespace(x=x, n=1))) == {"x": "a", "n": None}
    slotted = letters(Slotted())
    assert {slotted.hidden, slotted.shown} == {"a", "b"}
    assert letters([3, "s", None, 0.5, np.float64(1.0), np.arange(2), {1, 2}]) is None
    assert letters(np.float64(1.0)) is None
    assert letters(np.array(1.0)) == "a"


def test_what_holds_no_float_array_is_not_copied() -> None:
    vocabulary, model = {"a": 1}, ab.Linear(2, 2, rng=np.random.default_rng(0))
    twin = Held((np.ones(2), vocabulary, model)).rebuild(["x"], lambda part: part)
    assert twin[0] == "x"
    assert twin[1] is vocabulary
    assert twin[2] is model


def test_descriptors_do_not_run_when_an_instance_is_copied() -> None:
    points = [Point(np.full(1, 4.0))]
    loss = ab.batched(lambda point: ab.sum(point.x * point.x + point.y), backend="reference")
    for inputs in (False, True):
        np.testing.assert_allclose(loss.value_and_grad(points, inputs=inputs)[0], 8.0)
    assert vars(loss.value_and_grad(points, inputs=True)[-1][0]) == {"x": [4.0], "y": [1.0]}


def test_circles_and_depth() -> None:
    """A child refers to its parent, a list holds a tuple that contains it, and a chain exceeds the recursion limit."""
    parent, child = SimpleNamespace(x=np.ones(1)), SimpleNamespace(x=np.ones(2))
    parent.child, child.parent = child, parent
    twin = letters(parent)
    assert twin.child.parent is twin
    assert twin is not parent
    assert {twin.x, twin.child.x} == {"a", "b"}
    ring: list[Any] = [np.ones(1)]
    ring.append((ring,))
    twin = letters(ring)
    assert twin[0] == "a"
    assert twin[1][0] is twin
    chain: Any = ()
    for _ in range(5000):
        chain = (chain, np.ones(1))
    assert len(Held(chain).arrays) == 5000


FIELDS = np.zeros(3, [("position", np.float32, 2), ("word", np.int32)])


@each("container", [deque([np.ones(1)]), np.array([np.ones(1), None], object), FIELDS])
def test_containers_that_cannot_be_rebuilt_are_refused(container: Any) -> None:
    with pytest.raises(DataError, match=r"must be in tuples, .* got one in a (deque|ndarray)"):
        Held([container])


VIEWS: dict[str, Callable[[Any], Any]] = {
    "a row": lambda x: x[1],
    "a number": lambda x: x[1, 2],
    "by step, backwards": lambda x: x[::-2, 1:],
    "rows by number": lambda x: x[[2, 0, 2]],
    "by mask": lambda x: x[x > 0.0],
    "a new axis": lambda x: x[..., None],
    "transposed": lambda x: x.T,
    "reshaped": lambda x: x.reshape(2, 6),
    "flat": lambda x: x.ravel() if isinstance(x, np.ndarray) else x.flatten(),
    "a copy of another type": lambda x: x.astype(np.float16).copy(),
    "the whole": lambda x: x,
}


@each("name", VIEWS)
def test_views_are_of_the_positions_that_they_show(name: str) -> None:
    """The gradient of the sum of squares of a view is twice the view, at the positions that were read."""
    view, x = VIEWS[name], np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    wanted = np.zeros(x.size)
    positions = VIEWS[name](np.arange(x.size).reshape(x.shape)) if name != "by mask" else np.flatnonzero(x > 0.0)
    np.add.at(wanted, np.asarray(positions, int).ravel(), 2 * np.asarray(view(x)).ravel())
    for loss in (lambda x: ab.sum(view(x) * view(x)), lambda x: ab.sum(square(view(x)))):
        value, _, (gradient,) = ab.batched(loss, backend="reference").value_and_grad([x], inputs=True)
        np.testing.assert_allclose(gradient, wanted.reshape(x.shape), rtol=2e-3)
        np.testing.assert_allclose(value, (np.asarray(view(x)) ** 2).sum(), rtol=1e-3)


@ab.cell
def square(x: Any) -> Any:
    return x * x


def test_control_flow_on_inputs() -> None:
    """Programs may compare, count and iterate over input values; gradients follow the branch taken."""

    def loss(x: Any) -> Any:
        assert (len(x), x.shape, x.ndim, x.size, x.dtype) == (3, (3,), 1, 3, np.float64)
        total = ab.sum(ab.where(x > 0.0, x, 0.0))
        for number in x:
            total = total + (3.0 * number if number > 1.0 and int(number) > 0 and number else number * number)
        return total

    x = np.array([-0.5, 2.0, 0.25])
    _, _, (gradient,) = ab.batched(loss).value_and_grad([x], inputs=True)
    np.testing.assert_allclose(gradient, [-1.0, 4.0, 1.5], rtol=1e-6)


LOST: dict[str, tuple[Callable[[Any], Any], str]] = {
    "float": (lambda x: ab.sum(x) * float(x[0]), r"float\(...\) of an array of an instance would lose its gradient"),
    "NumPy": (lambda x: ab.sum(np.arctan(x)), "np.arctan was applied"),
    "an array": (lambda x: ab.sum(np.asarray(x)), "a NumPy array of an array of an instance would lose its gradient"),
    "a method": (lambda x: x.cumsum(), "has no attribute 'cumsum'"),
    "in place": (lambda x: x.__setitem__(0, 1.0), "cannot be changed in place"),
}


@each("name", LOST)
def test_what_would_lose_a_gradient_is_refused(name: str) -> None:
    loss, message = LOST[name]
    with pytest.raises((GraphError, AttributeError), match=message):
        ab.batched(loss).value_and_grad([np.ones(2)], inputs=True)


def test_inputs_belong_to_their_recording() -> None:
    kept: list[Any] = []

    def loss(x: Any) -> Any:
        kept.append(x)
        return ab.sum(kept[0] * x)

    run = ab.batched(loss, backend="reference")
    run.value_and_grad([np.ones(2)], inputs=True)
    with pytest.raises(GraphError, match="must be used in the recording of its instance"):
        run.value_and_grad([np.ones(2)], inputs=True)
    with pytest.raises(GraphError, match="must be used in the recording of its instance"):
        ab.sum(kept[0])
    assert f"{kept[0][0]:.1f} {kept[0]!r}" == "1.0 <input array([1., 1.])>"


def test_inputs_of_an_async_function_that_failed_belong_to_no_other_recording() -> None:
    kept: list[Any] = []

    async def loss(x: Any) -> Any:
        kept.append(x)
        if len(kept) == 1:
            raise ValueError("the first")
        return ab.sum(kept[0] * x)

    run = ab.batched(loss, backend="reference")
    with pytest.raises(ValueError, match="the first"):
        run.value_and_grad([np.ones(2)], inputs=True)
    with pytest.raises(GraphError, match="must be used in the recording of its instance"):
        run.value_and_grad([np.ones(2)], inputs=True)


class Weighted(ab.Module):
    """A loss of one vector."""

    def __init__(self) -> None:
        self.w = ab.Parameter(np.array([1.0, -2.0, 0.5])).astype("float64")

    @ab.cell
    def of(self, x: Any) -> Any:
        return ab.sum(ab.tanh(x) * self.w)


AWAITED: dict[str, Callable[[Any, Any], Any]] = {
    "data": lambda x, y: x, "a part": lambda x, y: x[:2],
    "a number": lambda x, y: x[0], "data and a value": lambda x, y: [x, y],
    "a dict": lambda x, y: {"y": y, "x": (x[1], x)}, "data alone in a list": lambda x, y: [x, x],
    "a pair": lambda x, y: Pair(x, y), "a dataclass": lambda x, y: Tree(x, 2, (y, x[0])),
}  # fmt: skip


@each("name", AWAITED)
def test_awaited_data_are_numbers_and_constants(name: str) -> None:
    model = Weighted()

    def factor(found: Any) -> float:
        if isinstance(found, Tree):
            found = found.features
        if isinstance(found, dict):
            found = found["x"][1]
        while isinstance(found, (list, tuple)):
            found = found[0]
        assert isinstance(found, (np.ndarray, np.floating))
        return float(np.ravel(found)[0])

    async def loss(x: Any) -> Any:
        y = model.of(x)
        return y * factor(await ab.value(AWAITED[name](x, y)))

    run, instances = ab.batched(loss, module=model, backend="reference"), [np.array([k, 1.0, -k]) for k in (0.5, 2.0)]
    value, grads, found = run.value_and_grad(instances, inputs=True, reduce="sum")
    np.testing.assert_allclose(value, sum(ab.eager(loss, x) for x in instances))
    np.testing.assert_allclose(grads["w"], sum(x[0] * np.tanh(x) for x in instances))
    for x, gradient in zip(instances, found, strict=True):
        np.testing.assert_allclose(gradient, x[0] * (1.0 - np.tanh(x) ** 2) * model.w.data)


def test_recorded_graphs_are_refused() -> None:
    run = ab.batched(ab.sum, backend="reference")
    with pytest.raises(GraphError, match=r"must not be recorded graphs, .* pass the instances themselves"):
        run.value_and_grad(run.record_all([np.ones(2)]), inputs=True)


def test_graphs_of_other_packages_are_instances() -> None:
    """Each node of a networkx graph has features in its dict; each edge multiplies the features of its ends."""
    graph = networkx.path_graph(3)
    for node in graph:
        graph.nodes[node]["x"] = np.full(2, node + 1.0)

    def loss(graph: Any) -> Any:
        return ab.sum_n([ab.sum(graph.nodes[a]["x"] * graph.nodes[b]["x"]) for a, b in graph.edges])

    _, _, (gradient,) = ab.batched(loss, backend="reference").value_and_grad([graph], inputs=True)
    assert type(gradient) is networkx.Graph
    assert [gradient.nodes[node]["x"].tolist() for node in gradient] == [[2.0, 2.0], [4.0, 4.0], [2.0, 2.0]]
    assert graph.nodes[2]["x"].tolist() == [3.0, 3.0]
