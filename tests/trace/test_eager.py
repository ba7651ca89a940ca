"""Test that eager mode matches batched programs: nothing changes in place, and any array of numbers is accepted."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.ops.eager import EagerArray
from helpers.checkers.refusals import refused
from helpers.runs.ways import each

BACKENDS: dict[str, Callable[[], Any]] = {"reference": Reference, "cpu": Cpu}
SIZES = (1, 64)


@dataclass
class State:
    h: Any
    words: Any = None


class Pair(NamedTuple):
    h: Any
    c: Any


class Model(ab.Module):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.weight = ab.Parameter(rng.standard_normal((3, 3)))
        self.table = ab.Parameter(rng.standard_normal((5, 3)))
        self.kept = np.arange(3.0)

    @ab.cell
    def body(self, x: Any, run: Any) -> Any:
        return run(x)

    @ab.cell
    def square(self, x: Any) -> Any:
        return self.weight @ x

    @ab.cell
    def rows(self, ids: Any) -> Any:
        return ab.lookup(self.table, ids)


def everywhere(function: Callable[[Any], Any], module: ab.Module, x: Any) -> np.ndarray[Any, Any]:
    """Check that results match eagerly, on both backends, alone and in batches, with gradients; return the result."""
    expected = np.asarray(function(x))
    for make in BACKENDS.values():
        for size in SIZES:
            found = ab.batched(function, module=module, backend=make())([x] * size)
            np.testing.assert_allclose(found, np.stack([expected] * size), rtol=1e-10)
        value, _ = ab.batched(lambda x: ab.sum(function(x)), module=module, backend=make()).value_and_grad([x] * 3)
        np.testing.assert_allclose(value, expected.sum(), rtol=1e-10)
    return expected


def refused_everywhere(function: Callable[[Any], Any], module: ab.Module, x: Any, error: Any, *texts: str) -> None:
    with refused(error, *texts):
        function(x)
    for make in BACKENDS.values():
        for size in SIZES:
            with refused(error, *texts):
                ab.batched(function, module=module, backend=make())([x] * size)


@pytest.fixture
def model64() -> Model:
    model = Model()
    model.astype("float64")
    return model


# --- nothing changes in place ---

IN_PLACE: dict[str, tuple[Any, Any]] = {
    "+=": (operator.iadd, operator.add), "-=": (operator.isub, operator.sub), "*=": (operator.imul, operator.mul),
    "/=": (operator.itruediv, operator.truediv), "**=": (operator.ipow, operator.pow),
}  # fmt: skip
X = np.array([0.5, 1.0, 2.0])


@pytest.mark.slow
@each("where", ["in a cell", "outside", "of an input", "of what operators give"])
@each("name", IN_PLACE)
def test_changing_a_name_does_not_change_what_others_hold(model64: Model, name: str, where: str) -> None:
    change, plain = IN_PLACE[name]

    def run(h: Any) -> Any:
        t = h
        t = change(t, 2.0)
        return h * 100.0 + t

    functions: dict[str, Callable[[Any], Any]] = {
        "in a cell": lambda x: model64.body(x, lambda x: run(ab.exp(x))),
        "outside": lambda x: run(model64.body(x, ab.exp)),
        "of an input": lambda x: model64.body(x, run),
        "of what operators give": lambda x: model64.body(x, lambda x: run(2.0 * x + 1.0)),
    }
    found = everywhere(functions[where], model64, X)
    h = {"of an input": X, "of what operators give": 2.0 * X + 1.0}.get(where, np.exp(X))
    np.testing.assert_allclose(found, 100.0 * h + plain(h, 2.0))


def test_a_matrix_may_be_multiplied_into_a_name(model64: Model) -> None:
    def run(x: Any) -> Any:
        h = model64.square(x)
        t = h
        t += model64.square(t)
        t *= model64.kept
        return h + t

    h = model64.weight.data @ X
    np.testing.assert_allclose(everywhere(run, model64, X), h + (h + model64.weight.data @ h) * np.arange(3.0))


def set_first(x: Any) -> Any:
    x[0] = 1.0
    return x


def test_elements_cannot_be_set(model64: Model) -> None:
    texts = ("cannot be changed in place; make a new one, for example with", "ab.concat or ab.where")
    refused_everywhere(lambda x: set_first(model64.square(x)), model64, X, ab.GraphError, *texts)
    refused_everywhere(lambda x: model64.body(x, set_first), model64, X, ab.GraphError, *texts)
    with refused(ab.GraphError, "t = t + 1.0", "or change a copy, np.array(t)"):
        model64.square(X)[0] = 1.0


STRUCTURES: dict[str, Callable[[Any], Any]] = {
    "an array": lambda x: x,
    "a tuple": lambda x: (1, (x, 2)),
    "a list": lambda x: [x, [x]],
    "a dict": lambda x: {"a": x, "b": {"c": x}},
    "a dataclass": lambda x: State(x),
    "a named tuple": lambda x: Pair(x, (x, "text")),
    "everything": lambda x: [{"a": Pair(State((x, x)), None)}],
}


def arrays_in(x: Any) -> list[Any]:
    if isinstance(x, (list, tuple)):
        return [array for part in x for array in arrays_in(part)]
    if isinstance(x, dict):
        return arrays_in(list(x.values()))
    if isinstance(x, State):
        return arrays_in([x.h, x.words])
    return [x] if isinstance(x, np.ndarray) else []


@each("name", STRUCTURES)
@each("x", [np.ones(3), np.ones(3, np.float32), np.arange(3)])
def test_inputs_and_results_of_cells_are_read_only_in_any_structure(model64: Model, name: str, x: Any) -> None:
    given, seen = STRUCTURES[name](x), list[Any]()

    def note(given: Any) -> Any:
        seen.append(given)
        return given

    result = model64.body(given, note)
    assert isinstance(result, type(given))
    for found in (seen[0], result):
        arrays = arrays_in(found)
        assert len(arrays) == len(arrays_in(given))
        for array in arrays:
            assert isinstance(array, EagerArray)
            assert not array.flags.writeable
            np.testing.assert_array_equal(array, x)
    assert x.flags.writeable
    assert type(arrays_in(given)[0]) is np.ndarray


def test_a_list_or_dict_that_a_cell_changes_is_its_own(model64: Model) -> None:
    given: list[Any] = [X, {"a": X}]
    model64.body(given, lambda given: (given.append(1), given[1].clear(), X)[2])
    assert len(given) == 2
    assert list(given[1]) == ["a"]


def test_what_a_module_keeps_is_not_handed_out_to_be_changed(model64: Model) -> None:
    result = model64.body(X, lambda x: model64.kept)
    with refused(ab.GraphError, "cannot be changed in place"):
        result[0] = 7.0
    model64.kept[0] = 7.0
    assert result[0] == 7.0


def test_results_are_arrays_like_any_other() -> None:
    h: Any = ab.tanh(X)
    assert isinstance(h, np.ndarray)
    assert repr(h) == repr(np.tanh(X))
    assert [type(number) for number in (h.sum(), h[0], h @ h)] == [np.float64] * 3
    assert {h.argmax(): 1} == {2: 1}
    assert type(h > 0.5) is type(h.reshape(3, 1)) is type(np.tanh(h)) is EagerArray


@pytest.mark.parametrize(
    "duplicate", [np.array, copy.copy, lambda h: h.copy(), lambda h: pickle.loads(pickle.dumps(h))]
)
def test_copies_are_plain_arrays_that_may_be_changed(duplicate: Callable[[Any], Any]) -> None:
    h = ab.tanh(X)
    own = duplicate(h)
    own[0] = 5.0
    own += 1.0
    assert type(own) is np.ndarray
    np.testing.assert_array_equal(h, np.tanh(X))


# --- array-likes ---


@pytest.fixture
def on_disk(tmp_path: Path) -> Any:
    np.save(tmp_path / "rows.npy", np.arange(12.0).reshape(4, 3))
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "a row on disk": lambda on_disk: on_disk[1],
    "a column on disk": lambda on_disk: on_disk[:3, 1],
    "a record array": lambda _: np.array([3.0, 4.0, 5.0]).view(np.recarray),
    "a user's class": lambda _: np.array([3.0, 4.0, 5.0]).view(type("Own", (np.ndarray,), {})),
    "an eager result": lambda _: ab.relu(np.array([3.0, 4.0, 5.0])),
    "long doubles": lambda _: np.array([3.0, 4.0, 5.0], np.longdouble),
    "half": lambda _: np.array([3.0, 4.0, 5.0], np.float16),
    "other bytes first": lambda _: np.array([3.0, 4.0, 5.0], ">f8"),
}


@pytest.mark.slow
@each("name", ARRAYS)
@each("where", ["cell", "outside", "body"])
def test_arrays_of_any_class_are_taken(model64: Model, on_disk: Any, name: str, where: str) -> None:
    x = ARRAYS[name](on_disk)
    plain = np.asarray(x, np.float64)
    if where == "cell":
        np.testing.assert_allclose(everywhere(model64.square, model64, x), model64.weight.data @ plain)
    elif where == "outside":
        found = everywhere(lambda x: ab.relu(model64.square(X)) + x, model64, x)
        np.testing.assert_allclose(found, np.maximum(model64.weight.data @ X, 0.0) + plain)
    else:
        found = everywhere(lambda z: model64.body(z, lambda z: z * x), model64, X)
        np.testing.assert_allclose(found, X * plain)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_is_the_array_that_it_holds(model64: Model) -> None:
    x = np.asmatrix(np.ones((3, 1)))
    np.testing.assert_allclose(everywhere(model64.square, model64, x), model64.weight.data @ np.ones((3, 1)))


MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])


@pytest.mark.parametrize("x", [MASKED, np.ma.array([1, 2, 3])], ids=["floats", "ints"])
def test_masks_are_refused(model64: Model, x: Any) -> None:
    texts = "got a masked array of shape (3,)", "give x.filled(number), and the mask as an argument of its own"
    refused_everywhere(model64.square, model64, x, ab.DataError, *texts)
    refused_everywhere(lambda x: model64.body(X, lambda z: z * x), model64, x, ab.DataError, *texts)
    refused_everywhere(lambda x: ab.tanh(x), model64, x, ab.DataError, *texts)
    refused_everywhere(lambda z: model64.body(z, lambda z: ab.tanh(x)), model64, X, ab.DataError, *texts)
    np.testing.assert_allclose(model64.square(x.filled(0)), model64.weight.data @ x.filled(0))


@pytest.mark.parametrize(
    "x", [np.ones(3, complex), np.ones(3, object), np.array(["a"] * 3)], ids=lambda x: x.dtype.kind
)
def test_what_is_no_number_is_refused(model64: Model, x: Any) -> None:
    refused_everywhere(model64.square, model64, x, ab.DataError, str(x.dtype), "floats", "convert it first")


@pytest.mark.parametrize("number", [np.longdouble(2.0), np.float16(2.0), np.float64(2.0)])
def test_numbers_of_any_length_are_taken(model64: Model, number: Any) -> None:
    scale = ab.cell(lambda x, by: x * by)
    np.testing.assert_allclose(everywhere(lambda x: scale(x, number), model64, X), 2.0 * X)
    np.testing.assert_allclose(everywhere(lambda x: model64.square(x) * number, model64, X), model64.square(X) * 2.0)
    assert everywhere(lambda x: number, model64, X) == 2.0


# --- ids ---


def test_no_ids_are_no_rows(model64: Model) -> None:
    none = np.zeros(0, np.int64)
    assert everywhere(model64.rows, model64, none).shape == (0, 3)
    assert everywhere(lambda ids: ab.sum(model64.rows(ids)), model64, none) == 0
    assert (
        everywhere(lambda ids: model64.body(ids, lambda ids: ab.sum(ab.lookup(model64.table, ids))), model64, none) == 0
    )
    losses = everywhere(
        lambda ids: model64.body(ids, lambda ids: ab.cross_entropy(ab.lookup(model64.table, ids), ids)), model64, none
    )
    assert losses.shape == (0,)


@pytest.mark.parametrize("ids", [np.array([True, False]), np.array([1, 0], np.uint8), np.array([1, 0], np.uint64)])
def test_ids_may_be_of_any_ints_and_bools_are_zeros_and_ones(model64: Model, ids: Any) -> None:
    expected = model64.table.data[[1, 0]]
    np.testing.assert_array_equal(everywhere(model64.rows, model64, ids), expected)
    np.testing.assert_array_equal(everywhere(lambda ids: ab.lookup(model64.table, ids), model64, ids), expected)
    found = everywhere(lambda x: model64.body(x, lambda x: ab.lookup(model64.table, ids) * x), model64, X)
    np.testing.assert_allclose(found, expected * X)


def test_a_bool_may_be_a_label(model64: Model) -> None:
    for label in (True, False):
        loss = everywhere(lambda x: model64.body(x, lambda x: ab.cross_entropy(x, label)), model64, X)  # noqa: B023
        np.testing.assert_allclose(loss, np.log(np.exp(X).sum()) - X[int(label)])


def test_static_arguments_after_others_are_those_of_any_number() -> None:
    """Keyword arguments that follow `*args` in a signature are not passed by position."""

    @ab.cell(static=("xs",))
    def count(*xs: Any, v: Any, w: float = 0.5, **more: Any) -> Any:
        return v * w + more["u"] + sum(type(x) is float for x in xs)

    @ab.cell
    def around(v: Any) -> Any:
        return count(1.0, 2.0, 3.0, v=v, u=v)

    programs: list[Any] = [lambda v: count(1.0, 2.0, 3.0, v=v, u=v), around]
    for program in programs:
        assert program(np.ones(1)) == ab.batched(program)([np.ones(1)])[0] == 4.5
