"""Test that recorded graphs run again once a change that made them invalid is undone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from helpers.runs.ways import each

ROWS = [np.linspace(-1.0, 1.0, 4), np.full(4, 0.3)]


class Layer(ab.Module):
    """A product followed by a function."""

    def __init__(self, n: int = 4, m: int = 4) -> None:
        self.weight, self.function = ab.Parameter(np.full((m, n), 0.1)), ab.tanh

    def __call__(self, x: Any) -> Any:
        return self.function(self.weight @ x)


class Net(ab.Module):
    """Cells that read parameters, modules, numbers, arrays and containers."""

    def __init__(self) -> None:
        self.layer, self.bias = Layer(), ab.Parameter(np.linspace(0.0, 1.0, 4))
        self.scale, self.mask, self.terms, self.table = 2.0, np.ones(4), [1.0, 2.0], {"power": 1.0}

    @ab.cell
    def whole(self, x: Any) -> Any:
        y = self.scale * (self.layer(x) + self.bias)
        for term in self.terms:
            y = y + term
        return ab.sum(y ** self.table["power"] * self.mask)

    @ab.cell
    def part(self, x: Any) -> Any:
        return ab.sum(self.scale * x)

    def loss(self, x: Any) -> Any:
        return self.whole(x) + self.part(x)


MISSING = object()


def change(net: Net, place: tuple[Any, ...], value: Any) -> Callable[[], None]:
    """Set or remove an attribute or item; return a function that undoes it."""
    *path, name = place
    holder: Any = net
    for step in path:
        holder = getattr(holder, step)
    by_item = isinstance(holder, (dict, list))

    def put(x: Any) -> None:
        if by_item and x is MISSING:
            del holder[name]
        elif by_item and isinstance(holder, list) and len(holder) < 2:
            holder.insert(name, x)
        elif by_item:
            holder[name] = x
        elif x is MISSING:
            delattr(holder, name)
        else:
            setattr(holder, name, x)

    before = holder[name] if by_item else getattr(holder, name)
    put(value() if callable(value) and not isinstance(value, ab.ops.Op) else value)
    return lambda: put(before)


CHANGES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "smaller bias": (("bias",), lambda: ab.Parameter(np.ones(3))),
    "larger bias": (("bias",), lambda: ab.Parameter(np.ones((2, 4)))),
    "another bias": (("bias",), lambda: ab.Parameter(np.ones(4))),
    "a bias of no axes": (("bias",), lambda: ab.Parameter(np.ones(()))),
    "no bias": (("bias",), MISSING),
    "None as bias": (("bias",), None),
    "a fixed bias": (("bias", "trainable"), False),
    "a smaller layer": (("layer",), lambda: Layer(4, 3)),
    "a layer of other input": (("layer",), lambda: Layer(5, 4)),
    "another layer": (("layer",), Layer),
    "no layer": (("layer",), MISSING),
    "None as function": (("layer", "function"), None),
    "another function": (("layer", "function"), ab.relu),
    "no weight": (("layer", "weight"), MISSING),
    "a text as scale": (("scale",), "two"),
    "an array as scale": (("scale",), lambda: np.ones(3)),
    "no scale": (("scale",), MISSING),
    "another scale": (("scale",), 3.0),
    "a smaller mask": (("mask",), lambda: np.ones(3)),
    "an object as mask": (("mask",), lambda: object()),
    "a text as term": (("terms", 0), "one"),
    "fewer terms": (("terms", 0), MISSING),
    "no power": (("table", "power"), MISSING),
    "None as power": (("table", "power"), None),
}
REFUSED = [name for name, (_, value) in CHANGES.items() if not name.startswith(("another", "a fixed", "fewer"))]
REFUSED = [name for name in REFUSED if name not in ("a bias of no axes", "larger bias")]


class Recorded:
    """A model with its recorded graphs, and the results before any change."""

    def __init__(self) -> None:
        self.net = Net()
        self.batched = ab.batched(self.net.loss, backend="reference")
        self.graphs = self.batched.record_all(ROWS)
        self.value, self.gradients = self.run()

    def run(self) -> tuple[Any, dict[str, Any]]:
        value, (_, gradients) = self.batched(self.graphs), self.batched.value_and_grad(self.graphs)
        return value, {name: np.array(gradient) for name, gradient in gradients.items()}

    def check(self) -> None:
        """Compare with the results before any change."""
        value, gradients = self.run()
        np.testing.assert_array_equal(value, self.value)
        assert gradients.keys() == self.gradients.keys()
        for name, gradient in gradients.items():
            np.testing.assert_array_equal(gradient, self.gradients[name])

    def refusal(self) -> str:
        """Return the error message for the graphs, or "" if they run."""
        try:
            self.batched(self.graphs)
        except ab.GraphError as error:
            return str(error)
        return ""


@each("name", CHANGES)
def test_graphs_run_again_once_a_change_is_undone(name: str) -> None:
    recorded = Recorded()
    for _ in range(2):
        undo = change(recorded.net, *CHANGES[name])
        for _ in range(2):
            assert bool(recorded.refusal()) == (name in REFUSED)
        undo()
        recorded.check()


@pytest.mark.slow
@each("first, second", itertools.permutations(CHANGES, 2))
def test_graphs_run_again_once_two_changes_are_undone(first: str, second: str) -> None:
    (one, _), (other, _) = CHANGES[first], CHANGES[second]
    if one[0] == other[0]:
        return
    for turned in (False, True):
        recorded = Recorded()
        undo = [change(recorded.net, *CHANGES[first])]
        recorded.refusal()
        undo.append(change(recorded.net, *CHANGES[second]))
        recorded.refusal()
        undo[turned]()
        recorded.refusal()
        undo[not turned]()
        recorded.check()


def test_graphs_run_after_a_change_of_what_could_not_be_traced() -> None:
    recorded = Recorded()
    undo = change(recorded.net, *CHANGES["smaller bias"])
    assert "(3,)" in recorded.refusal()
    recorded.net.bias = ab.Parameter(np.ones(5))
    assert "(5,)" in recorded.refusal()
    recorded.net.bias = ab.Parameter(np.ones(4))
    np.testing.assert_allclose(recorded.batched(recorded.graphs), [recorded.net.loss(x) for x in ROWS], rtol=1e-5)
    undo()
    recorded.check()


class Sized(ab.Module):
    """A cell whose result has the shape of what it reads."""

    def __init__(self) -> None:
        self.bias = ab.Parameter(np.ones((1, 4)))

    @ab.cell
    def shift(self, x: Any) -> Any:
        return x + self.bias

    def loss(self, x: Any) -> Any:
        return ab.sum(self.shift(x))


def test_graphs_run_again_after_any_number_of_other_shapes() -> None:
    net = Sized()
    batched = ab.batched(net.loss, backend="reference")
    graphs, before = batched.record_all(ROWS), net.bias
    expected = batched(graphs)
    for n in range(2, 15):
        net.bias = ab.Parameter(np.ones((n, 4)))
        for _ in range(2):
            changed = r"\(1, 4\).* is Parameter\(shape=\(2, 4\)" if n == 2 else "'shift' reads has changed since"
            with pytest.raises(ab.GraphError, match=changed):
                batched(graphs)
        assert batched(ROWS).shape == expected.shape
    net.bias = before
    np.testing.assert_array_equal(batched(graphs), expected)


class Part(ab.Module):
    """A module with its own cell."""

    def __init__(self, factor: float) -> None:
        self.w = ab.Parameter(np.full(2, factor))

    @ab.cell
    def scale(self, x: Any) -> Any:
        return self.w * x


class Whole(ab.Module):
    """A module with parts as attributes and in a list."""

    def __init__(self) -> None:
        self.first, self.second, self.others = Part(2.0), Part(3.0), [Part(5.0)]

    def __call__(self, x: Any) -> Any:
        for part in self.others:
            x = part.scale(x)
        return ab.sum(self.first.scale(x))


@pytest.mark.parametrize("seed", range(6))
def test_parts_whose_cells_were_called_may_be_replaced(seed: int) -> None:
    rng, whole = np.random.default_rng(seed), Whole()
    run, kept = ab.batched(whole, backend="reference"), whole.first
    changes: dict[str, Callable[[], Any]] = {
        "another": lambda: setattr(whole, "first", Part(rng.uniform(1.0, 2.0))),
        "shared": lambda: setattr(whole, "first", whole.second),
        "back": lambda: setattr(whole, "first", kept),
        "one less": lambda: whole.others and whole.others.pop(),
        "one more": lambda: whole.others.append(Part(rng.uniform(1.0, 2.0))),
        "a parameter": lambda: setattr(whole.first, "w", ab.Parameter(rng.standard_normal(2))),
    }
    x = np.ones(2)
    for _ in range(10):
        graphs, before = run.record_all([x]), whole.first
        change = list(changes)[rng.integers(len(changes))]
        changes[change]()
        np.testing.assert_allclose(run([x]), [whole(x)], rtol=1e-6, err_msg=change)
        assert run.value_and_grad([x, x])[1].keys() == whole.parameters().keys()
        if change == "a parameter":
            np.testing.assert_allclose(run(graphs), [whole(x)], rtol=1e-6)
        elif change == "another" and before is not whole.second:
            with pytest.raises(ab.GraphError, match="has been replaced; record the instances again"):
                run(graphs)
