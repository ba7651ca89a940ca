"""Test exported models: a file computes the same without the model's classes, and what is refused."""

from __future__ import annotations

import copy
import enum
import pickle
import subprocess
import sys
import types
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.workload import load_workload
from autobatch.models import MODELS
from autobatch.ops.operators import OPS


def graft(loaded: Any, model: ab.Module) -> None:
    """Give the parts of a loaded model the functions and numbers of the original that no file holds."""
    parts = dict(loaded._named_parts())
    for name, part in model._named_parts():
        if not isinstance(part, ab.Module):
            continue
        for base in type(part).__mro__:
            for key, x in vars(base).items():
                if isinstance(x, types.FunctionType) and not hasattr(parts[name], key):
                    setattr(type(parts[name]), key, x)
        for key, x in vars(part).items():
            if not hasattr(parts[name], key):
                setattr(parts[name], key, x)


def test_numbers_load_to_the_bit(tmp_path: Path) -> None:
    workload = load_workload("tree-lstm", None, 4, 0)
    model = workload.model.eval().astype("float64")
    for parameter in model.parameters().values():
        parameter.data = np.random.default_rng(0).standard_normal(parameter.shape)
    ab.export(model.loss, tmp_path / "model.ab", examples=workload.first(2))
    loaded = ab.load(tmp_path / "model.ab").parameters()
    assert all(np.array_equal(loaded[name].data, p.data) for name, p in model.parameters().items())


@pytest.mark.parametrize("name", MODELS)
def test_models_of_files_compute_what_the_models_do(name: str, tmp_path: Path) -> None:
    workload = load_workload(name, None, 8, 0)
    model, instances = workload.model.eval().astype("float64"), workload.first(5)
    loss = workload.batched("loss", "agenda", "reference")
    value, grads = loss.value_and_grad(instances)
    ab.export(loss, tmp_path / "model.ab", examples=instances)
    loaded = ab.load(tmp_path / "model.ab")
    graft(loaded, model)
    again = ab.batched(types.MethodType(type(model).loss, loaded), module=loaded, backend="reference", **loaded.options)
    found, found_grads = again.value_and_grad(instances)
    assert np.isclose(found, value, rtol=1e-12)
    assert found_grads.keys() == grads.keys()
    for key, g in grads.items():
        assert np.allclose(np.asarray(found_grads[key]), np.asarray(g), rtol=1e-9, atol=1e-12), key


class Kind(enum.Enum):
    """The kind of a node."""

    PLAIN, BENT = 1, 2


@dataclass
class State:
    """The state of a node."""

    h: Any
    c: Any


class Pair(NamedTuple):
    """A pair of values."""

    first: Any
    second: Any


@ab.cell
def double(x: Any) -> Any:
    return 2.0 * x


class Part(ab.Module):
    """One of several modules of a class, which cells take as arguments."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.weight = ab.Parameter(rng.standard_normal((3, 3)))


class Net(ab.Module):
    """Cells with all kinds of arguments and results."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.parts = [Part(rng), Part(rng)]
        self.named = {"bias": ab.Parameter(rng.standard_normal(3), trainable=False)}
        self.table = ab.Embedding(5, 3, rng=rng)
        self.drop = ab.Dropout(0.5)
        self.scale = 1.5
        self.astype("float64").eval()

    @ab.cell
    def leaf(self, word: int, weight: float = 0.5) -> Any:
        return State(self.table(word) * weight, self.named["bias"])

    @ab.cell
    def bend(self, part: Part, state: State, kind: Kind) -> Any:
        h = ab.tanh(part.weight @ self.drop(state.h))
        return Pair(h if kind is Kind.PLAIN else ab.sin(h), {"c": state.c * self.scale, "name": "bent"})

    @ab.cell
    def total(self, xs: list[Any]) -> Any:
        return ab.sum_n([ab.tanh(x) for x in xs], shape=(3,))

    @ab.cell(static=("times",))
    def repeat(self, x: Any, *, times: int) -> Any:
        return ab.concat([x] * times)

    @ab.cell(ragged=("points",))
    def rows(self, points: Any) -> Any:
        return ab.max(ab.tanh(points @ self.parts[0].weight), axis=0) + points[1:][0]

    @ab.cell
    def noisy(self, x: Any) -> Any:
        return x + ab.normal(3) * ab.normal(3)

    def predict(self, words: list[int]) -> Any:
        states = [self.leaf(word, 0.25) for word in words] + [self.leaf(word=1)]
        bent = [self.bend(self.parts[k % 2], state, kind) for k, state in enumerate(states) for kind in Kind]
        total = self.total([pair.first for pair in bent] + [pair.second["c"] for pair in bent])
        points = np.arange(3.0 * (2 + len(words))).reshape(-1, 3) / 10
        total = total + self.noisy(double(total)) + self.rows(points) + self.total([])
        return self.repeat(total, times=2)


WORDS = [[0, 1], [2], [3, 4, 0]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.ab"


@pytest.fixture
def loaded(path: Path) -> Any:
    net = Net()
    ab.export(net.predict, path, examples=WORDS)
    return ab.load(path)


def predict(net: Any, words: list[int], function: Callable[[Any], Any]) -> Any:
    """Run the recursion of `Net.predict`, written for a loaded model."""
    state = State
    states = [net.leaf(word, 0.25) for word in words] + [net.leaf(word=1)]
    assert all(type(x).__name__ == state.__name__ for x in states)
    bent = [net.bend(net.parts[k % 2], x, kind) for k, x in enumerate(states) for kind in Kind]
    total = net.total([pair.first for pair in bent] + [pair.second["c"] for pair in bent])
    points = np.arange(3.0 * (2 + len(words))).reshape(-1, 3) / 10
    total = total + net.noisy(function(total)) + net.rows(points) + net.total([])
    return net.repeat(total, times=2)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_all_kinds_of_arguments_and_results(backend: str, loaded: Any) -> None:
    expected = ab.batched(Net().predict, backend="reference", seed=3)(WORDS)
    batched = ab.batched(lambda words: predict(loaded, words, loaded.double), module=loaded, backend=backend, seed=3)
    assert np.allclose(batched(WORDS), expected, rtol=1e-12)
    mixed = ab.batched(lambda words: predict(loaded, words, double), module=loaded, backend=backend, seed=3)
    assert np.allclose(mixed(WORDS), expected, rtol=1e-12)


def test_parameters_keep_names_and_kinds(loaded: Any) -> None:
    net = Net()
    assert loaded.parameters().keys() == net.parameters().keys()
    assert {k for k, p in loaded.parameters().items() if not p.trainable} == {"named.bias"}
    assert all(np.array_equal(loaded.state_dict()[k], x) for k, x in net.state_dict().items())
    assert loaded.dtype == net.dtype
    assert not loaded.training
    assert type(loaded).__name__ == "Net"


def test_cells_of_files_run_eagerly(loaded: Any) -> None:
    net = Net()
    ours, theirs = loaded.leaf(3), net.leaf(3)
    assert np.allclose(ours.h, theirs.h)
    pair, expected = (x.bend(x.parts[1], state, Kind.BENT) for x, state in ((loaded, ours), (net, theirs)))
    assert np.allclose(pair.first, expected.first)
    assert np.allclose(pair.second["c"], expected.second["c"])
    assert pair.second["name"] == "bent"
    assert np.allclose(loaded.total([ours.h, ours.c, ours.h]), net.total([theirs.h, theirs.c, theirs.h]))
    assert loaded.repeat(ours.h, times=2).shape == (6,)


class Noisy(ab.Module):
    """A cell that draws random numbers at two places, or none."""

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.ones(2))

    @ab.cell
    def noise(self, x: Any) -> Any:
        return self.weight * x + ab.normal((2,)) - ab.normal((2,)) * ab.normal((2,))

    @ab.cell
    def plain(self, x: Any) -> Any:
        return self.weight * x

    def run(self, x: Any) -> Any:
        return self.noise(self.plain(self.noise(x))), self.noise(x)


def test_cells_of_files_draw_the_numbers_of_the_model(path: Path) -> None:
    model, x = Noisy().eval(), np.ones(2)
    ab.export(model.run, path, examples=[x])
    loaded = ab.load(path)

    def run(found: Any) -> Any:
        return found.noise(found.plain(found.noise(x))), found.noise(x), ab.normal((2,))

    for seed, step, key in ((0, 0, 0), (3, 0, 1), (7, 12, 2**40), (-5, 2**70, -1), (2**64 + 3, -9, -(2**63))):
        with ab.randomness(seed=seed, step=step, key=key):
            expected = run(model)
        with ab.randomness(seed=seed, step=step, key=key):
            found = run(loaded)
        assert np.allclose(found, expected, atol=1e-5)
        assert not np.allclose(found[1], found[0])
    batched = ab.batched(lambda x: Noisy.run(loaded, x), module=loaded, backend="reference", seed=4)
    ab.testing.check_batched(lambda x: Noisy.run(loaded, x), batched, [x, x], 1e-5)


def test_cells_of_files_are_called_inside_other_cells(loaded: Any) -> None:
    net = Net()

    def of(model: Any) -> Any:
        @ab.cell(ragged=("points",))
        def both(xs: list[Any], points: Any) -> Any:
            return model.total(xs) + model.rows(points) + model.leaf(2).h

        points = [np.arange(3.0 * n).reshape(n, 3) for n in (2, 4)]
        return ab.batched(lambda p: both([double(row) for row in p], p), module=model, backend="reference")(points)

    assert np.allclose(of(loaded), of(net), rtol=1e-12)


def test_calls_that_no_example_had_are_refused(loaded: Any) -> None:
    with pytest.raises(ab.GraphError, match=r"cell 'repeat' must be called .* got x: value.3., times: 3;"):
        ab.batched(lambda w: loaded.repeat(loaded.leaf(w).h, times=3), module=loaded, backend="reference")([1])


def test_lists_are_as_long_as_the_file_was_written_for(path: Path) -> None:
    net = Net()
    ab.export(net.predict, path, examples=WORDS, longest=4)
    loaded = ab.load(path)
    function = ab.batched(lambda n: loaded.total([loaded.leaf(1).h] * n), module=loaded, backend="reference")
    assert function([1, 4]).shape == (2, 3)
    with pytest.raises(ab.GraphError, match=r"'total': lists must have lengths .* got 30 .*longest=30"):
        function([30])


class Walking(ab.Module):
    """Walks through rows: alone, with a list, with another walk, or with ops on all rows."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.bias, self.turning = ab.Parameter(rng.standard_normal(3)), ab.Parameter(rng.standard_normal((3, 3)))
        self.astype("float64").eval()

    @ab.cell
    def turn(self, x: Any) -> Any:
        return ab.tanh(self.turning @ x)

    @ab.cell(ragged=("x",))
    def bend(self, x: Any) -> Any:
        return ab.tanh(x @ self.turning)

    @ab.cell(ragged=("x",))
    def alone(self, x: Any) -> Any:
        return ab.sum_n([ab.tanh(row * self.bias) for row in x], shape=(3,))

    @ab.cell(ragged=("x",))
    def indexed(self, x: Any) -> Any:
        largest = ab.max_n([row @ self.turning for row in x])
        return largest + sum(row * x.shape[0] for row in x) + x[0] * x[-1] + ab.sum(x[1:], axis=0)

    @ab.cell(ragged=("x",))
    def zipped(self, x: Any) -> Any:
        return ab.sum(ab.stack([a * ab.tanh(b) for a, b in zip(x, x * self.bias, strict=True)]), axis=0)

    @ab.cell(ragged=("x",))
    def beside_list(self, h: Any, x: Any) -> Any:
        return self.alone(x) * ab.sum_n(h, shape=(3,))

    @ab.cell(ragged=("x", "y"))
    def beside_rows(self, y: Any, x: Any) -> Any:
        return ab.sum(y, axis=0) + ab.mean_n([ab.tanh(row * self.bias) for row in x])

    @ab.cell(ragged=("x",))
    def both(self, h: Any, x: Any) -> Any:
        return ab.sum_n([row * self.bias for row in x], shape=(3,)) + ab.max_n([ab.tanh(one) for one in h])


WALKS: dict[str, Callable[[Any, Any], Any]] = {
    "alone": lambda model, x: model.alone(x),
    "rows that a cell made": lambda model, x: model.alone(model.bend(x)[::-1]),
    "indexed": lambda model, x: model.indexed(x),
    "zipped": lambda model, x: model.zipped(x),
    "beside a list": lambda model, x: model.beside_list([model.turn(row) for row in x[1:]], x),
    "beside rows": lambda model, x: model.beside_rows(x[1:], model.bend(x)),
    "beside a walk": lambda model, x: model.both([model.turn(row) for row in x], x),
}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", WALKS)
def test_walks_through_rows_load_for_other_numbers_of_rows(name: str, backend: str, tmp_path: Path) -> None:
    model, rng, walk = Walking(), np.random.default_rng(1), WALKS[name]
    given = [rng.standard_normal((n, 3)) for n in (1, 6, 2, 4, 9)]
    ab.export(lambda x: walk(model, x), tmp_path / "model.ab", module=model, examples=given[2:4], longest=9)
    file = ab.load(tmp_path / "model.ab")
    expected = [ab.eager(lambda x: walk(model, x), x) for x in given]
    assert np.allclose([walk(file, x) for x in given], expected, rtol=1e-9)
    run = ab.batched(lambda x: ab.sum(walk(file, x)), module=file, backend=backend)
    known = ab.batched(lambda x: ab.sum(walk(model, x)), module=model, backend=backend)
    assert np.allclose(run(given), np.sum(expected, axis=1), rtol=1e-9)
    _, grads, inputs = run.value_and_grad(given, inputs=True)
    _, known_grads, known_inputs = known.value_and_grad(given, inputs=True)
    assert all(np.allclose(grads[key], g, rtol=1e-9) for key, g in known_grads.items())
    assert all(np.allclose(g, known_g, rtol=1e-9) for g, known_g in zip(inputs, known_inputs, strict=True))
    with pytest.raises(ab.GraphError, match=r"got 10 elements; .*longest=10"):
        run([np.ones((10, 3))])


def test_a_batched_function_keeps_its_policy_and_precision(path: Path) -> None:
    workload = load_workload("tree-lstm", None, 8, 0)
    workload.model.eval()
    loss = ab.batched(workload.model.loss, policy="sufficient", precision="bf16", backend="reference")
    ab.export(loss, path, examples=workload.first(3))
    assert ab.load(path).options == {"policy": "sufficient", "precision": "bf16"}
    policy = loss.learn_policy([workload.first(4)], encoding="sort", seed=0)
    ab.export(loss, path, examples=workload.first(3))
    loaded = ab.load(path)
    assert loaded.options["policy"].describe() == policy.describe()
    graft(loaded, workload.model)
    function = types.MethodType(type(workload.model).loss, loaded)
    again = ab.batched(function, module=loaded, backend="reference", **loaded.options)
    assert np.allclose(again(workload.first(4)), loss(workload.first(4)), rtol=1e-5)


def test_async_functions_are_exported(path: Path) -> None:
    workload = load_workload("seq2seq", None, 8, 0)
    model, instances = workload.model.eval(), [x.source for x in workload.first(4)]
    ab.export(model.translate, path, examples=instances)
    loaded = ab.load(path)
    graft(loaded, model)
    function = types.MethodType(type(model).translate, loaded)
    found = ab.batched(function, module=loaded, backend="reference")(instances)
    assert found == ab.batched(model.translate, backend="reference")(instances)


SCRIPT = """
import sys
import autobatch as ab

model = ab.load(sys.argv[1])

def visit(tree):
    return model.leaf(tree) if isinstance(tree, int) else model.merge(visit(tree[0]), visit(tree[1]))

print(ab.batched(lambda tree: visit(tree)[0], module=model, backend="reference")([(1, (2, 3)), 4]).tolist())
"""


def test_another_process_needs_nothing_but_the_file(path: Path) -> None:
    workload = load_workload("tree-lstm", None, 4, 0)
    model = workload.model.eval()

    def visit(tree: Any) -> Any:
        return model.leaf(tree) if isinstance(tree, int) else model.merge(visit(tree[0]), visit(tree[1]))

    trees: list[Any] = [(1, (2, 3)), 4]
    batched = ab.batched(lambda tree: visit(tree)[0], module=model, backend="reference")
    ab.export(batched, path, examples=trees)
    ran = subprocess.run([sys.executable, "-c", SCRIPT, path], capture_output=True, text=True, check=True)
    assert np.allclose(eval(ran.stdout), batched(trees), rtol=1e-6)


@dataclass(frozen=True)
class Scale:
    """A default that a file cannot hold."""

    by: float


@ab.cell
def scaled(x: Any, scale: Scale = Scale(2.0)) -> Any:
    return x * scale.by


def test_what_no_file_can_hold_is_refused(path: Path) -> None:
    net = Net()
    with pytest.raises(ab.GraphError, match=r"Net must be in evaluation mode .*eval\(\)"):
        ab.export(net.train().predict, path, examples=WORDS)
    with pytest.raises(ab.GraphError, match="must have a module, got none"):
        ab.export(lambda x: double(double(x)), path, examples=[np.ones(2)])
    net.eval()

    @ab.cell
    def odd(x: Any, what: Any) -> Any:
        return x * float(what is not None)

    with pytest.raises(ab.GraphError, match=r"cannot export cell 'odd': argument 'what' must be .* got <ufunc 'sin'>"):
        ab.export(lambda x: odd(x, np.sin), path, examples=[np.ones(2)], module=net)
    with pytest.raises(ab.GraphError, match=r"default of argument 'scale' must be .* got Scale\(by=2\.0\)"):
        ab.export(lambda x: scaled(x), path, examples=[np.ones(2)], module=net)
    about: Any = []
    for _ in range(10_000):
        about = [about]
    with pytest.raises(ab.CheckpointError, match="about must be JSON values"):
        ab.export(net.predict, path, examples=WORDS, about={"deep": about})
    assert not path.exists()
    with pytest.raises(ab.CheckpointError, match=r"cannot export Net to .*No such file"):
        ab.export(net.predict, path.parent / "none" / "model.ab", examples=WORDS)


@pytest.mark.parametrize("name", ["options", "about", "save", "astype"])
def test_names_of_loaded_models_are_refused(name: str, path: Path) -> None:
    def multiply(self: Any, x: Any) -> Any:
        return self.weight * x

    multiply.__name__ = name
    scaled: Any = ab.cell(multiply)
    methods = {name: scaled, "__init__": lambda self: setattr(self, "weight", ab.Parameter(np.ones(2)))}
    model = type("Model", (ab.Module,), methods)().eval()
    with pytest.raises(ab.GraphError, match=f"names of cells .* got '{name}'; rename it"):
        ab.export(lambda x: scaled.__get__(model)(x), path, examples=[np.ones(2)], module=model)
    assert not path.exists()


class Holder(ab.Module):
    """A model that holds layers under the names and keys given."""

    def __init__(self, name: str, keys: tuple[Any, ...] = ()) -> None:
        rng = np.random.default_rng(0)
        self.scale = ab.Parameter(np.ones(2))
        setattr(self, name, {key: ab.Linear(2, 2, rng=rng) for key in keys} if keys else ab.Linear(2, 2, rng=rng))

    @ab.cell
    def run(self, x: Any) -> Any:
        for parameter in self.parameters().values():
            x = x + ab.sum(parameter) * self.scale
        return x


@pytest.mark.parametrize("name", ["options", "about"])
def test_parts_with_names_of_loaded_models_are_refused(name: str, path: Path) -> None:
    for keys in ((), ("x",)):
        with pytest.raises(ab.GraphError, match=f"names of cells and parts .* got '{name}'; rename it"):
            ab.export(Holder(name, keys).eval().run, path, examples=[np.ones(2)])
    assert not path.exists()


@pytest.mark.parametrize("keys", [("1", "01"), ("01", "x"), ("²", "1"), ("00", "0"), ("-1", "x"), (3, "y"), ("٣", "z")])
def test_keys_that_look_like_numbers_load(keys: tuple[Any, ...], path: Path) -> None:
    model = Holder("layers", keys).eval()
    ab.export(model.run, path, examples=[np.ones(2)])
    loaded = ab.load(path)
    assert [*loaded.parameters()] == [*model.parameters()]
    assert np.allclose(loaded.run(np.ones(2)), model.run(np.ones(2)))


def named(name: str, fields: str) -> Any:
    return namedtuple(name, fields)


def kind_of(value: float) -> Any:
    return enum.Enum("Kind", [("PLAIN", value)])


class Named(ab.Module):
    """Cells whose arguments and results have classes that the caller chooses."""

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.full(2, 3.0))

    @ab.cell
    def scale(self, x: Any, kind: Any) -> Any:
        return x * self.weight * kind.value

    @ab.cell
    def first(self, pair: Any) -> Any:
        return pair.a * self.weight

    @ab.cell
    def one(self, x: Any) -> Any:
        return named("Both", "a b")(a=x * self.weight, b=-x)

    @ab.cell
    def other(self, x: Any) -> Any:
        return named("Both", "b a")(a=x * self.weight, b=-x)


def test_results_of_classes_with_one_name_keep_their_fields(path: Path) -> None:
    model, x = Named().eval(), np.ones(2)
    ab.export(lambda x: (model.one(x), model.other(x)), path, examples=[x], module=model)
    loaded = ab.load(path)
    for of in (loaded.one(x), loaded.other(x)):
        assert (of.a.tolist(), of.b.tolist()) == ([3.0, 3.0], [-1.0, -1.0])


def test_arguments_of_classes_with_one_name_are_refused(path: Path) -> None:
    """Unless a cell computes the same with them."""
    model, x = Named().eval(), np.ones(2)

    def export(function: Any) -> None:
        ab.export(function, path, examples=[x], module=model)

    pairs = [named("Both", fields) for fields in ("a b", "b a")]
    one, other = kind_of(1.0).PLAIN, kind_of(2.0).PLAIN
    with pytest.raises(ab.GraphError, match="cell 'scale': argument 'kind' must not be of different classes"):
        export(lambda x: (model.scale(x, one), model.scale(x, other)))
    with pytest.raises(ab.GraphError, match="cell 'first': argument 'pair' must not be of different classes"):
        export(lambda x: [model.first(pair(a=x, b=-x)) for pair in pairs])
    assert not path.exists()
    alike, pair = kind_of(1.0).PLAIN, named("Both", "a b")
    export(lambda x: (model.scale(x, one), model.scale(x, alike), [model.first(p(x, -x)) for p in (pair, pairs[0])]))
    loaded = ab.load(path)
    assert loaded.scale(x, one).tolist() == loaded.scale(x, alike).tolist() == [3.0, 3.0]
    assert loaded.first(pair(a=x, b=-x)).tolist() == [3.0, 3.0]


def test_eager_derivatives_of_cells_of_files_are_refused(loaded: Any) -> None:
    with pytest.raises(ab.GraphError, match="'total' cannot be differentiated in eager mode"):
        ab.grad(lambda x: ab.sum(loaded.total([x])))(np.ones(3))


class Doubling(ab.Module):
    """Two parts that read one weight."""

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.full(2, 3.0))
        self.parts = [Scaled(self.weight), Scaled(self.weight)]

    def run(self, x: Any) -> Any:
        for part in self.parts:
            x = part.scale(x)
        return x


class Scaled(ab.Module):
    """A module that shares its weight."""

    def __init__(self, weight: ab.Parameter) -> None:
        self.shared = weight

    @ab.cell
    def scale(self, x: Any) -> Any:
        return x * self.shared


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_read_their_own_parameters(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    ab.export(Doubling().eval().run, tmp_path / "model.ab", examples=[np.ones(2)])
    loaded = ab.load(tmp_path / "model.ab")
    loaded.note, loaded.training, loaded.parts[1].note = "kept", True, "of a part"
    twin = copied([loaded, loaded.weight]) if copied is not copy.copy else [copied(loaded), loaded.weight]
    other = twin[0]
    assert other.weight is twin[1] is other.parts[1].shared
    assert (other.note, other.training, other.parts[0].training) == ("kept", True, False)
    assert other.parts[1].note == "of a part"
    assert other.options == loaded.options
    other.weight.data[:] = 5.0
    runs = [ab.batched(types.MethodType(Doubling.run, m), module=m, backend="reference") for m in (loaded, other)]
    expected = (25.0 if copied is copy.copy else 9.0, 25.0)
    assert [float(run([np.ones(2)])[0, 0]) for run in runs] == [*expected]
    assert float(other.parts[0].scale(np.ones(2))[0]) == 5.0


def test_a_part_is_copied_with_the_whole_alone(tmp_path: Path) -> None:
    ab.export(Doubling().eval().run, tmp_path / "model.ab", examples=[np.ones(2)])
    with pytest.raises(ab.GraphError, match="Scaled is a submodule of a loaded model"):
        copy.deepcopy(ab.load(tmp_path / "model.ab").parts[0])


@pytest.mark.parametrize("name", ["weight", "parts.1", "parts.0.shared"])
def test_models_with_replaced_parts_are_not_copied(name: str, tmp_path: Path) -> None:
    """Their cells would compute with the parts of the file."""
    ab.export(Doubling().eval().run, tmp_path / "model.ab", examples=[np.ones(2)])
    loaded, new = ab.load(tmp_path / "model.ab"), ab.Parameter(np.full(2, 7.0))
    if name == "weight":
        loaded.weight = new
    elif name == "parts.1":
        loaded.parts[1] = Scaled(new)
    else:
        loaded.parts[0].shared = new
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ab.GraphError, match=f"'{name}'"):
            copied(loaded)


def test_an_unknown_op_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ab.export(Doubling().eval().run, tmp_path / "model.ab", examples=[np.ones(2)])
    monkeypatch.delitem(OPS, "mul")
    with pytest.raises(ab.CheckpointError, match=r"model\.ab': op 'mul' .*ab\.ops\.define_op"):
        ab.load(tmp_path / "model.ab")


@pytest.mark.parametrize("word", ["fixed", "list"])
def test_texts_are_no_kinds_of_arguments(word: str, tmp_path: Path) -> None:
    """A static text that equals the name of a kind must not ask for numbers or lengths."""

    class Named(ab.Module):
        def __init__(self) -> None:
            self.weight = ab.Parameter(np.ones(2))

        @ab.cell
        def of(self, xs: list[Any], n: int, how: Any) -> Any:
            return ab.sum_n(xs) * self.weight * n

        def run(self, x: Any) -> Any:
            return self.of([x, x], 2, (word, word))

    ab.export(Named().eval().run, tmp_path / "model.ab", examples=[np.ones(2)])
    loaded = ab.load(tmp_path / "model.ab")
    run = ab.batched(lambda x: loaded.of([x] * 3, 2, ("other", word)), module=loaded, backend="reference")
    with pytest.raises(ab.GraphError, match="'of' must be called with arguments for which it was exported, got xs"):
        run([np.ones(2)])


def test_examples_that_call_no_cell_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ab.GraphError, match="must call at least one cell"):
        ab.export(Doubling().eval().run, tmp_path / "model.ab", examples=[])
    assert not (tmp_path / "model.ab").exists()
