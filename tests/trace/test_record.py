"""Test recording: which calls share a type, how cells may be called, and that known and new calls are logged alike."""

from __future__ import annotations

import enum
import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction as F
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.graph.graph import Graph
from autobatch.trace.calls import Calls
from autobatch.trace.entries import Entry
from autobatch.trace.record import Recorder
from helpers.runs.recorded import types_of_nodes
from helpers.runs.ways import each

pytestmark = pytest.mark.usefixtures("_checked")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class State:
    h: Any
    c: Any


@dataclass(frozen=True)
class Setting:
    n: float


class Pair(NamedTuple):
    h: Any
    c: Any


class Scale(ab.Module):
    """A module with its own cell."""

    def __init__(self, factor: float) -> None:
        self.factor = ab.Parameter(factor)

    @ab.cell
    def scale(self, x: Any) -> Any:
        return self.factor * x


@dataclass
class Sizes(ab.Module):
    """A module that is also a dataclass."""

    n: int


class Model(ab.Module):
    """Cells that accept any structure."""

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.eye(3))
        self.start = ab.Parameter(np.ones(3))
        self.scales = [Scale(2.0), Scale(3.0)]
        self.by_name = {"half": Scale(0.5)}
        self.sizes = Sizes(2)

    def helper(self) -> None:
        """Do nothing; passed as an argument."""

    @ab.cell
    def pair(self, x: Any) -> Any:
        return x, 2.0 * x

    @ab.cell
    def behind(self, x: Any) -> Any:
        """Return values behind empty structures."""
        return (), ((), x), 2.0 * x

    @ab.cell
    def read(self, x: Any) -> Any:
        """Sum all values of the argument, whatever its structure."""
        return ab.sum_n(values_in(x), shape=())

    @ab.cell
    def total(self, xs: Any) -> Any:
        return ab.sum_n(xs, shape=(3,))

    @ab.cell
    def totals(self, xs: Any) -> Any:
        return ab.sum_n(xs, shape=((3,), (3,)))

    @ab.cell(static=("n", "weight"))
    def power(self, x: Any, n: int = 2, weight: Any = None) -> Any:
        x = x * float(weight) if isinstance(weight, F) else x if weight is None else weight @ x
        return ab.concat([x] * n)

    @ab.cell(static=("mark",))
    def marked(self, x: Any, mark: Any) -> Any:
        """Scale by the length of the mark's repr, so that marks matter by their repr alone."""
        return x * float(len(repr(mark)))

    @ab.cell
    def flexible(self, x: Any, /, y: Any, scale: float = 2.0, *rest: Any, shift: float = 0.0, **more: Any) -> Any:
        return x + scale * y + sum(rest) + shift + more.get("extra", 0.0)

    @ab.cell
    def shadowing(self, type: Any, len: float, out: Any, log: Any, list: Any, x: Any = None) -> Any:
        return type * len + out + ab.sum_n(log, shape=(3,)) + (list[0] if x is None else x)

    @ab.cell
    def outer_cell(self, x: Any) -> Any:
        return self.scales[0].scale(free(x)) + self.power(x, 1)


@ab.cell
def free(x: Any) -> Any:
    return ab.tanh(x)


@ab.cell
def pairs(xs: Any) -> Any:
    (a, b), (c, d) = ab.sum_n(xs, shape=(((3,), (3,)), ((3,), (3,))))
    return a + 2 * b - c * d


def values_in(x: Any) -> list[Any]:
    """Return the sum of each value in a structure."""
    if isinstance(x, (tuple, list)):
        return [v for part in x for v in values_in(part)]
    if isinstance(x, dict):
        return values_in(list(x.values()))
    if isinstance(x, State):
        return values_in((x.h, x.c))
    if isinstance(x, (str, bool, frozenset, enum.Enum, ab.Module, type(None))) or callable(x):
        return []
    return [ab.sum(x * 1.0)]


def record(run: Callable[[Any], Any], *instances: Any, model: ab.Module | None = None) -> Graph:
    return Recorder(run, model).record(instances or [None])


def types_of(cell: str, *calls: Callable[[Model], Any]) -> list[int]:
    """Return the type ids of a cell's nodes when one program makes all `calls`."""
    model = Model()
    graph = record(lambda _: [call(model) for call in calls], model=model)
    types: Any = graph.types
    return [kind for kind in graph.type_id.tolist() if types[kind].name == cell]


V: Callable[[Model], Any] = lambda m: free(m.start)  # noqa: E731

SAME: dict[str, tuple[str, Callable[[Model], Any], Callable[[Model], Any]]] = {
    "lists that isinstance finds": ("read", lambda m: m.read([V(m)]), lambda m: m.read([V(m), V(m)])),
    "an int and NumPy's": ("read", lambda m: m.read(3), lambda m: m.read(np.int64(4))),
    "a float and NumPy's": ("read", lambda m: m.read(3.0), lambda m: m.read(np.float32(4))),
    "numbers": ("read", lambda m: m.read((1, 2.0)), lambda m: m.read((3, 4.0))),
    "int arrays": ("read", lambda m: m.read(np.arange(3)), lambda m: m.read(np.zeros(3, np.int8))),
    "a mask": ("read", lambda m: m.read(np.arange(3)), lambda m: m.read(np.zeros(3, bool))),
    "an array and a value": ("read", lambda m: m.read(np.zeros(3)), lambda m: m.read(V(m))),
    "a parameter and a value": ("read", lambda m: m.read(m.start), lambda m: m.read(V(m))),
    "single and double": ("read", lambda m: m.read(np.zeros(3)), lambda m: m.read(np.zeros(3, np.float32))),
    "an output and a tuple": ("read", lambda m: m.read(m.pair(V(m))), lambda m: m.read((V(m), np.zeros(3)))),
    "list lengths": ("total", lambda m: m.total([V(m)]), lambda m: m.total([V(m), np.zeros(3), m.start])),
    "no list elements": ("total", lambda m: m.total([]), lambda m: m.total([V(m)] * 20)),
    "no pairs": ("totals", lambda m: m.totals([]), lambda m: m.totals([m.pair(V(m)), (V(m), V(m))])),
    "sum_n of few and many": ("sum_n", lambda m: ab.sum_n([V(m)] * 2), lambda m: ab.sum_n([V(m)] * 9)),
    "sum_n of list and tuple": ("sum_n", lambda m: ab.sum_n([V(m)]), lambda m: ab.sum_n((V(m), V(m)))),
    "sum_n with a number": ("sum_n", lambda m: ab.sum_n([ab.sum(V(m)), 1]), lambda m: ab.sum_n([ab.sum(V(m)), 0.5])),
    "by position and name": ("power", lambda m: m.power(V(m), 2), lambda m: m.power(n=2, x=V(m))),
    "default and given": ("power", lambda m: m.power(V(m)), lambda m: m.power(V(m), 2, weight=None)),
    "an equal static tuple": ("power", lambda m: m.power(V(m), n=1), lambda m: m.power(V(m), n=1)),
    "equal static tuples": (
        "marked",
        lambda m: m.marked(V(m), (2, (-0.0, "a"))),
        lambda m: m.marked(V(m), (int("2"), (-float("0"), "a"))),
    ),
    "static NaN": ("marked", lambda m: m.marked(V(m), np.nan), lambda m: m.marked(V(m), float("nan"))),
    "an equal text": ("read", lambda m: m.read((V(m), "ab")), lambda m: m.read((V(m), "".join(["a", "b"])))),
    "an enum": ("read", lambda m: m.read((V(m), Colour.RED)), lambda m: m.read((V(m), Colour(1)))),
    "equal static things": ("power", lambda m: m.power(V(m), 1, F(1, 2)), lambda m: m.power(V(m), 1, F(2, 4))),
    "a frozenset": ("read", lambda m: m.read((V(m), frozenset("ab"))), lambda m: m.read((V(m), frozenset("ba")))),
    "a method": ("read", lambda m: m.read((V(m), m.helper)), lambda m: m.read((V(m), m.helper))),
    "a module that is a dataclass": ("read", lambda m: m.read((V(m), m.sizes)), lambda m: m.read((V(m), m.sizes))),
    "an op's numbers": ("mul", lambda m: V(m) * 2.0, lambda m: V(m) * 3.5),
    "an op's slice": ("slice", lambda m: V(m)[1:2], lambda m: V(m)[1:2]),
    "equal arrays": ("constant", lambda m: free(np.zeros(3)), lambda m: free(np.ones(3))),
}

DIFFERENT: dict[str, tuple[str, Callable[[Model], Any], Callable[[Model], Any]]] = {
    "shapes": ("read", lambda m: m.read(np.zeros(2)), lambda m: m.read(np.zeros(3))),
    "lengths of int arrays": ("read", lambda m: m.read(np.arange(2)), lambda m: m.read(np.arange(3))),
    "an int and a float": ("read", lambda m: m.read(1), lambda m: m.read(1.0)),
    "a bool and an int": ("read", lambda m: m.read((V(m), True)), lambda m: m.read((V(m), 1))),
    "bools": ("read", lambda m: m.read((V(m), True)), lambda m: m.read((V(m), False))),
    "None and a value": ("read", lambda m: m.read((V(m), None)), lambda m: m.read((V(m), V(m)))),
    "texts": ("read", lambda m: m.read((V(m), "a")), lambda m: m.read((V(m), "b"))),
    "enums": ("read", lambda m: m.read((V(m), Colour.RED)), lambda m: m.read((V(m), Colour.BLUE))),
    "modules as arguments": (
        "read", lambda m: m.read((V(m), m.scales[0])), lambda m: m.read((V(m), m.scales[1])),
    ),
    "static ints": ("power", lambda m: m.power(V(m), 2), lambda m: m.power(V(m), 3)),
    "a static parameter": ("power", lambda m: m.power(V(m)), lambda m: m.power(V(m), weight=m.weight)),
    "an empty list": ("read", lambda m: m.read([]), lambda m: m.read([V(m)])),
    "tuple and list": ("read", lambda m: m.read((V(m), 1)), lambda m: m.read([V(m), 1])),
    "tuple and named tuple": ("read", lambda m: m.read((V(m), V(m))), lambda m: m.read(Pair(V(m), V(m)))),
    "named tuple and dataclass": ("read", lambda m: m.read(Pair(V(m), V(m))), lambda m: m.read(State(V(m), V(m)))),
    "keys": ("read", lambda m: m.read({"a": V(m)}), lambda m: m.read({"b": V(m)})),
    "an op's slices": ("slice", lambda m: V(m)[1:2], lambda m: V(m)[1:3]),
    "an op's parameters": ("mul", lambda m: V(m) * m.start, lambda m: V(m) * m.scales[0].factor),
    "zero and minus zero": ("marked", lambda m: m.marked(V(m), 0.0), lambda m: m.marked(V(m), -0.0)),
    "a static int and a bool": ("marked", lambda m: m.marked(V(m), 1), lambda m: m.marked(V(m), True)),
    "static ints in tuples": ("marked", lambda m: m.marked(V(m), (1,)), lambda m: m.marked(V(m), (True,))),
    "static zeros in tuples": (
        "marked", lambda m: m.marked(V(m), ("a", (0.0,))), lambda m: m.marked(V(m), ("a", (-0.0,))),
    ),
    "frozensets": ("marked", lambda m: m.marked(V(m), frozenset([1])), lambda m: m.marked(V(m), frozenset([1.0]))),
    "static dataclasses": ("marked", lambda m: m.marked(V(m), Setting(1)), lambda m: m.marked(V(m), Setting(1.0))),
    "ints and bools as keys": ("read", lambda m: m.read({1: V(m)}), lambda m: m.read({True: V(m)})),
    "zeros as keys": ("read", lambda m: m.read({0.0: V(m)}), lambda m: m.read({-0.0: V(m)})),
    "modules": ("scale", lambda m: m.scales[0].scale(V(m)), lambda m: m.scales[1].scale(V(m))),
}  # fmt: skip


@each("name", SAME)
def test_calls_of_one_type(name: str) -> None:
    cell, *calls = SAME[name]
    first, second = types_of(cell, *calls)
    assert first == second


@each("name", DIFFERENT)
def test_calls_of_two_types(name: str) -> None:
    cell, *calls = DIFFERENT[name]
    first, second = types_of(cell, *calls)
    assert first != second


MOST_TRIED = 4
CALLS: dict[str, Callable[[Model, Any], Any]] = {
    name: (lambda m, _, calls=calls: [call(m) for call in calls]) for name, (_, *calls) in {**SAME, **DIFFERENT}.items()
} | {
    "every kind of argument": lambda m, x: m.flexible(x, x, 3.0, x, x, shift=1.0, extra=x),
    "few arguments": lambda m, x: m.flexible(x, y=x),
    "two names": lambda m, x: (m.flexible(x, x, shift=2.0), m.flexible(x, x, 1.5, x)),
    "pairs of every make": lambda m, x: m.totals([m.pair(x), (x, m.start), m.pair(m.start)]),
    "pairs of pairs": lambda m, x: pairs([(m.pair(x), m.pair(x)), ((x, x), m.pair(x)), (m.pair(x), (x, m.start))]),
    "a list of different things": lambda m, x: m.read([m.pair(x), "a", (x, 1), [x, 2.0]]),
    "outputs behind empty tuples": lambda m, x: m.read((m.behind(x), [m.behind(x)], m.behind(x)[1])),
    "numbers in pairs": lambda m, x: ab.sum_n([(x, ab.sum(x)), (x, 2.0), (x, 1)]),
    "more forms than are tried": lambda m, x: [m.power(m.start, n) for n in range(1, MOST_TRIED + 3)],
    "names of builtins": lambda m, x: m.shadowing(x, 2.0, x, [x, m.start], (x,)),
    "a default that is given": lambda m, x: m.shadowing(x, 2.0, out=x, log=[], list=(x,), x=x),
    "a cell in a cell": lambda m, x: m.outer_cell(x),
    "a function": lambda m, x: free(x),
    "a module in a dict": lambda m, x: m.by_name["half"].scale(x),
    "a structure of structures": lambda m, x: m.read({"a": (x, [1, 2.0]), 2: State(Pair(x, x), np.arange(2))}),
    "enums as keys": lambda m, x: m.read({Colour.RED: x, Colour.BLUE: 2.0 * x}),
    "ops": lambda m, x: -x + 2 - (1 / (x + 3.0)) ** 2 @ m.weight + ab.where(x > 0, x, np.zeros(3)),
    "functions of ops": lambda m, x: (ab.split(ab.concat((x, x)), 2)[1] + ab.mean(x), ab.attend(x, [x], [x, ][:1])),
    "a transposed array": lambda m, x: m.read((np.arange(6.0).reshape(2, 3).T, np.arange(6).reshape(3, 2).T[1])),
    "arrays on the left": lambda m, x: np.ones(3) * x + np.float32(2) * x + np.arange(3) * x,
    "only parameters": lambda m, x: ab.sum(m.weight @ m.start) + m.start[0] + ab.sum_n([m.start, m.start]),
}  # fmt: skip


def watch(monkeypatch: pytest.MonkeyPatch, method: str) -> list[str]:
    """Return a growing list of the cells for which `Calls.<method>` is called."""
    names, known = list[str](), getattr(Calls, method)

    def noting(self: Calls, entry: Entry, *rest: Any) -> Any:
        names.append(entry.name)
        return known(self, entry, *rest)

    monkeypatch.setattr(Calls, method, noting)
    return names


@pytest.mark.slow
@each("name", CALLS)
def test_a_known_call_is_recorded_as_an_unknown_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autobatch.trace.calls.MAX_FORMS", MOST_TRIED)
    model, x = Model().astype("float64"), np.array([0.5, -1.0, 2.0])
    run = lambda _: CALLS[name](model, free(x))  # noqa: E731
    recorder = Recorder(run, model)
    first = recorder.record([None, None])
    n_types, n_forms = len(recorder.types), len(recorder.calls.forms)
    with pytest.MonkeyPatch.context() as patch:
        new = watch(patch, "_add_form")
        second = recorder.record([None, None])
    assert not new
    assert (len(recorder.types), len(recorder.calls.forms)) == (n_types, n_forms)
    assert first.words.tobytes() == second.words.tobytes()
    assert first.floats.tobytes() == second.floats.tobytes()
    assert first.structures == second.structures
    ab.testing.check_batched(run, ab.batched(run, module=model), [None, None])


def test_known_calls_of_values_do_not_take_the_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()

    def run(n: int) -> Any:
        state = model.pair(free(model.start))
        for k in range(n):
            state = model.pair(model.totals([state, model.pair(state[0])])[1] * 0.5)
            model.total([state[k % 2]] * k)
            model.read({"n": k, "state": State(*state)})
            model.flexible(state[0], state[1], shift=0.1 * k)
        return model.read((state, "end"))

    recorder = Recorder(run, model)
    expected = recorder.record([3, 5])
    slow = watch(monkeypatch, "_slow")
    assert recorder.record([3, 5]).words.tobytes() == expected.words.tobytes()
    assert slow == []
    assert expected.n_nodes == 2 * 4 + 8 * 7


def test_calls_of_a_hundred_forms_do_not_take_the_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model, xs = Model(), [np.ones(n) for n in range(1, 101)]
    recorder = Recorder(lambda n: [ab.tanh(free(x)) for x in xs][n], model)
    recorder.record([1, 5])
    slow = watch(monkeypatch, "_slow")
    recorder.record([1, 5])
    assert slow == []


def test_a_cell_called_from_a_cell_is_part_of_it() -> None:
    model = Model()
    graph = record(lambda _: model.outer_cell(model.start), model=model)
    assert [graph.type_of(node) for node in range(graph.n_nodes)] == ["parameter", "outer_cell"]


def test_equal_arrays_of_an_instance_are_one_source() -> None:
    graph = record(lambda n: [free(np.zeros(n)) for _ in range(4)] + [free(np.ones(n))], 2, 2)
    names = [graph.type_of(node) for node in range(graph.n_nodes)]
    assert names.count("constant") == 2 * 2
    assert graph.floats.tolist() == [0.0, 0.0, 1.0, 1.0] * 2


def test_cells_of_subclasses_and_of_modules_elsewhere() -> None:
    elsewhere = Scale(5.0)

    class Twice(Scale):
        @ab.cell
        def scale(self, x: Any) -> Any:
            return 2.0 * super().scale(x)

    class Holder(ab.Module):
        def __init__(self) -> None:
            self.inner = Twice(3.0)
            self.parameter_of_elsewhere = elsewhere.factor

        def run(self, x: float) -> Any:
            return self.inner.scale(elsewhere.scale(np.array([x])))

    model = Holder()
    np.testing.assert_allclose(ab.batched(model.run)([1.0, 2.0]), [[30.0], [60.0]])
    assert "scale" not in vars(model.inner)


def test_an_attribute_in_the_place_of_a_cell_is_left_alone() -> None:
    model = Scale(2.0)
    model.scale = lambda x: free(x)  # type: ignore[method-assign]
    mine = model.scale
    np.testing.assert_allclose(ab.batched(lambda x: model.scale(np.array(x)), module=model)([0.5]), [np.tanh(0.5)])
    assert model.scale is mine


def test_recording_in_threads() -> None:
    """Each thread records its own function, and one waits for the other."""

    def batched(model: Scale) -> ab.Batched:
        return ab.batched(lambda n: ab.sum_n([model.scale(np.array(float(k))) for k in range(n)]), module=model)

    losses = [batched(Scale(2.0)), batched(Scale(3.0))]
    found: dict[int, list[Any]] = {0: [], 1: []}

    def work(i: int) -> None:
        for n in range(1, 30):
            found[i].append(losses[i]([n, n + 1]))

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, factor in ((0, 2.0), (1, 3.0)):
        expected = [[factor * n * (n - 1) / 2, factor * n * (n + 1) / 2] for n in range(1, 30)]
        np.testing.assert_allclose(found[i], expected)


def test_a_loop_of_sums_becomes_one_node() -> None:
    def loop(n: int) -> Any:
        total: Any = 0
        for k in range(n):
            total = total + free(np.array([float(k)]))
        return total

    sums: dict[str, Callable[[int], Any]] = {
        "loop": loop,
        "sum": lambda n: sum(free(np.array([float(k)])) for k in range(n)),
        "sum_n": lambda n: ab.sum_n([free(np.array([float(k)])) for k in range(n)]),
    }
    found = {}
    for name, run in sums.items():
        loss = ab.batched(run)
        np.testing.assert_allclose(loss([1, 2, 7]), [run(1), run(2), run(7)], rtol=1e-6)
        assert loss.last is not None
        kinds = types_of_nodes(loss)
        found[name] = (kinds.count("sum_n"), kinds.count("add"), kinds.count("free"), loss.last.batches)
    assert found == dict.fromkeys(sums, (2, 0, 10, 3))


class Part(ab.Module):
    def __init__(self, number: float) -> None:
        self.w = ab.Parameter(np.full(3, number))

    @ab.cell
    def scale(self, x: Any) -> Any:
        return self.w * x

    @ab.cell
    def both(self, x: Any) -> tuple[Any, Any]:
        return ab.sqrt(ab.sum(self.w * x)), ab.sum(x)


class Scaled(ab.Module):
    """A model whose parameter and part are replaced, and the ways in which it reads them."""

    def __init__(self) -> None:
        self.w, self.part = ab.Parameter(np.ones(3)), Part(1.0)

    @ab.cell
    def product(self, w: Any, x: Any) -> Any:
        return w * x

    def operand(self, x: Any) -> Any:
        return ab.sum(self.w * x)

    def row(self, x: Any) -> Any:
        return ab.sum(self.w[0] * x)

    def argument(self, x: Any) -> Any:
        return ab.sum(self.product(self.w, x))

    def in_list(self, x: Any) -> Any:
        return ab.sum(ab.sum_n([self.w, ab.stop_gradient(self.w), x]))

    def derivative(self, x: Any) -> Any:
        return ab.sum(ab.grad(lambda w: ab.sum(ab.sin(self.product(w, x) * self.w)))(self.w))

    def of_part(self, x: Any) -> Any:
        return ab.sum(self.part.scale(x) * self.part.w)

    def unused(self, x: Any) -> Any:
        return self.part.both(ab.tanh(x) * self.part.w)[1]  # gradients stop at the other result


READ = "operand", "row", "argument", "in_list", "derivative", "of_part", "unused"


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", READ)
def test_replaced_parameters_and_modules_are_freed(name: str, trains: bool, backend: str) -> None:
    """Types keep their numbers and descriptions, but hold no objects."""
    model, xs = Scaled(), [np.arange(3.0), np.ones(3)]
    loss, refs, outlines = ab.batched(getattr(model, name), backend=backend), list[weakref.ref[Any]](), list[str]()
    for number in range(5):
        model.w, model.part = ab.Parameter(np.full(3, number + 1.0)), Part(number + 1.0)
        mean = loss.value_and_grad(xs)[0] if trains else np.mean(loss(xs))
        np.testing.assert_allclose(mean, np.mean([getattr(model, name)(x) for x in xs]), rtol=1e-5)
        refs += [weakref.ref(x) for x in (model.w, model.w.array, model.part, model.part.w, model.part.w.array)]
        assert loss.recorder.types.outlines[: len(outlines)] == outlines
        outlines = loss.recorder.types.outlines
    gc.collect()
    alive = [index for index, ref in enumerate(refs) if ref() is not None]
    assert alive == list(range(len(refs) - 5, len(refs)))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("way", ["call", "graphs", "gradients", "async", "kept value"])
def test_a_model_is_freed_with_its_batched_function(way: str, backend: str) -> None:
    kept = list[Any]()

    class Model(ab.Module):
        def __init__(self) -> None:
            self.w = ab.Parameter(np.ones((2, 3)))

        @ab.cell
        def project(self, x: Any) -> Any:
            return ab.sum(self.w @ x)

        def loss(self, x: Any) -> Any:
            h = self.project(x) + 1.0
            if way == "kept value":
                kept.append(h)
            return h * self.project(x)

        async def wait(self, x: Any) -> Any:
            return self.project(x) * float(await ab.value(self.project(x)))

    model = Model()
    run = ab.batched(model.wait if way == "async" else model.loss, module=model, backend=backend)
    if way == "graphs":
        run(run.record_all([np.ones(3)]))
    elif way == "gradients":
        run.value_and_grad([np.ones(3), np.zeros(3)])
    else:
        run([np.ones(3)])
    gone = weakref.ref(model)
    del model, run
    gc.collect()
    assert gone() is None
