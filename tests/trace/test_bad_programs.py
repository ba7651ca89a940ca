"""Test programs that cannot be recorded: the error class, helpful messages, and a model that still works."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from helpers.checkers.refusals import DIM, Model, refused

Function = Callable[[Model, Any], Any]
EAGER = "call the function directly on one instance (eager mode)"
READING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "float": (float, "float(...) needs the number of a recorded value"),
    "int": (int, "int(...) needs the number"),
    "math": (math.exp, "float(...) needs the number"),
    "if": (lambda v: 1 if v > 0 else 2, "a condition (if, while, and, or, not, in, ==) needs the number"),
    "in": (lambda v: v in [1.0, 2.0], "a condition (if, while, and, or, not, in, ==) needs the number"),
    "max": (lambda v: max(v, 0.0), "a condition (if, while, and, or, not, in, ==) needs the number"),
    "array": (np.asarray, "a NumPy array needs the number"),
    "array of": (lambda v: np.array([v, v]), "a NumPy array needs the number"),
    "index": (lambda v: [1, 2][v], "an index needs the number"),
    "range": (lambda v: list(range(v)), "an index needs the number"),
    "format": (lambda v: f"{v:.2f}", "a string in the format '.2f' needs the number"),
}


@pytest.mark.parametrize("name", READING)
def test_reading_a_value_while_recording(model: Model, name: str) -> None:
    read, text = READING[name]
    with refused(ab.GraphError, text, EAGER, "To choose between values, use ab.where"):
        ab.batched(lambda word: read(model.total(model.leaf(word))), module=model)([1])


@pytest.mark.parametrize("name", READING)
def test_reading_a_value_in_the_body_of_a_cell(model: Model, name: str) -> None:
    read, text = READING[name]
    with refused(ab.GraphError, "in cell 'body': ", text.replace("recorded", "traced"), EAGER):
        ab.batched(lambda word: model.body(model.total(model.leaf(word)), lambda x: read(x)), module=model)([1])


def test_reading_a_number_that_differs_between_nodes(model: Model) -> None:
    @ab.cell
    def repeated(x: Any, times: int) -> Any:
        return [x for _ in range(times)]

    with refused(ab.GraphError, "an index needs the number 'times'", "mark the cell with @ab.cell(static=('times',))"):
        ab.batched(lambda word: repeated(model.leaf(word), 3)[0], module=model)([1])


MISUSED: dict[str, tuple[Function, type[Exception], tuple[str, ...]]] = {
    "matmul": (
        lambda m, w: m.weight @ m.choose(m.leaf(w), 0),
        ab.ShapeError,
        ("matmul must be vectors or matrices, got shapes (2, 3) and ()",),
    ),
    "inner sizes": (
        lambda m, w: m.leaf(w) @ m.weight,
        ab.ShapeError,
        ("inner sizes of matmul", "got 3 and 2 for operands of shapes (3,) and (2, 3)"),
    ),
    "broadcast": (
        lambda m, w: m.leaf(w) + np.ones(2),
        ab.ShapeError,
        ("the values of add must have shapes that broadcast, got (3,) and (2,)", "per node, without a batch axis"),
    ),
    "in a cell": (
        lambda m, w: m.choose(np.ones(4), 0),
        ab.ShapeError,
        ("in cell 'choose': the inner sizes of matmul", "got 3 and 4 for operands of shapes (2, 3) and (4,)"),
    ),
    "sum_n": (
        lambda m, w: ab.sum_n([m.leaf(w), m.total(m.leaf(w))]),
        ab.ShapeError,
        ("the elements of a list must have one shape, got () and (3,)",),
    ),
    "empty": (
        lambda m, w: ab.sum_n([]),
        ab.ShapeError,
        ("the list is empty, so the shape", "as in ab.sum_n(values, shape=(8,))"),
    ),
    "attend": (
        lambda m, w: m.attend(m.leaf(w), [m.leaf(0)], [m.leaf(1), m.leaf(2)]),
        ab.GraphError,
        ("lists that cell 'attend' combines", "must have equal lengths, got 1 of 'keys' and 2 of 'values'"),
    ),
    "attend outside": (
        lambda m, w: ab.attend(m.leaf(w), [m.leaf(0)], [m.leaf(1), m.leaf(2)]),
        ab.GraphError,
        ("lists that cell 'attend' combines", "must have equal lengths, got 1 of 'keys' and 2 of 'values'"),
    ),
    "nothing": (
        lambda m, w: m.nothing(m.leaf(w)),
        ab.GraphError,
        ("cell 'nothing' must return at least one value, got None",),
    ),
    "np.sinh": (
        lambda m, w: np.sinh(m.leaf(w)),
        ab.GraphError,
        ("np.sinh was applied to a Value, which it does not support", "build it from the ops of autobatch"),
    ),
    "np.sum": (
        lambda m, w: np.sum(m.leaf(w)),
        ab.GraphError,
        ("np.sum was applied to a Value, which it does not support; use ab.sum instead",),
    ),
    "np.add.reduce": (
        lambda m, w: np.add.reduce(m.leaf(w)),
        ab.GraphError,
        ("np.add.reduce was applied to a Value, which it does not support; use ab.sum instead",),
    ),
    "np.mean": (
        lambda m, w: np.mean(m.leaf(w)),
        ab.GraphError,
        ("np.mean was applied to a Value, which it does not support; use ab.mean instead",),
    ),
    "np.concatenate": (
        lambda m, w: np.concatenate([m.leaf(w), np.zeros(DIM)]),
        ab.GraphError,
        ("np.concatenate was applied to a Value, which it does not support; use ab.concat instead",),
    ),
    "np.zeros_like in a cell": (
        lambda m, w: m.body(m.leaf(w), np.zeros_like),
        ab.GraphError,
        ("in cell 'body': np.zeros_like was applied to a Traced", "build it from the ops of autobatch"),
    ),
    "round": (
        lambda m, w: round(m.leaf(w)),
        ab.GraphError,
        ("round() was applied to a Value, which it does not support; compute with plain numbers",),
    ),
    "//": (
        lambda m, w: m.body(m.leaf(w), lambda x: 3 // x),
        ab.GraphError,
        ("in cell 'body': // was applied to a Traced", "compute with plain numbers"),
    ),
    "& of numbers": (
        lambda m, w: m.body(m.leaf(w), lambda x: x & (x + 1.0)),
        ab.GraphError,
        ("in cell 'body': & was applied to a Traced", "it takes two conditions, such as x > 0.0"),
    ),
    "& of a condition and numbers": (
        lambda m, w: m.body(m.leaf(w), lambda x: (x > 0) & x),
        ab.GraphError,
        ("in cell 'body': operands of & must be conditions, such as x > 0.0, got <traced",),
    ),
    "an array of numbers": (
        lambda m, w: m.weigh(m.leaf(w), [1.0, 2.0, 3.0]),
        ab.GraphError,
        ("must not make an array of the numbers in 'weights', which differ", "np.array, and pass it as 'weights'"),
    ),
    "a list of floats as features": (
        lambda m, w: m.total([1.0, 2.0, 3.0]),
        ab.GraphError,
        ("in cell 'total': a cell must not make an array of the numbers in 'x'", "np.array, and pass it as 'x'."),
    ),
    "a tensor as data": (
        lambda m, w: m.total(torch.ones(DIM)),
        ab.DataError,
        ("argument 'x' of a cell must be NumPy arrays, got a Tensor of torch; pass np.asarray(x), or int(x)",),
    ),
    "np.sinh in a cell": (
        lambda m, w: m.body(m.leaf(w), np.sinh),
        ab.GraphError,
        ("in cell 'body': np.sinh was applied to a Traced",),
    ),
    "np.add(out=)": (
        lambda m, w: np.add(m.leaf(w), 1.0, out=np.zeros(DIM)),
        ab.GraphError,
        ("np.add was applied to a Value", "use ab.add instead"),
    ),
    "method": (
        lambda m, w: m.leaf(w).relu(),
        AttributeError,
        ("a recorded value has no attribute 'relu'", "use ops, such as ab.relu(x)"),
    ),
    "method in a cell": (
        lambda m, w: m.body(m.leaf(w), lambda x: x.amax()),
        AttributeError,
        ("a traced value has no attribute 'amax'", "use ops, such as ab.max(x)"),
    ),
    "in place": (
        lambda m, w: m.leaf(w).__setitem__(0, 1.0),
        ab.GraphError,
        ("a recorded value cannot be changed in place", "make a new one"),
    ),
    "in place in a cell": (
        lambda m, w: m.body(m.leaf(w), lambda x: x.__setitem__(0, 1.0)),
        ab.GraphError,
        ("in cell 'body': a traced value cannot be changed in place",),
    ),
    "a set": (
        lambda m, w: m.label(m.leaf(w), {"a"}),
        ab.GraphError,
        (
            "argument 'name' of a cell must be a value, data or static argument, got {'a'} (set)",
            "pass the parts that the body reads",
        ),
    ),
    "None": (
        lambda m, w: m.leaf(w) == None,  # noqa: E711
        ab.GraphError,
        ("in cell 'equal': equal must compute with numbers, got None (NoneType)",),
    ),
    "a text": (
        lambda m, w: m.body(m.leaf(w), lambda x: x + "a"),
        ab.GraphError,
        ("in cell 'body': body must compute with numbers, got 'a' (str)",),
    ),
    "a value as index": (
        lambda m, w: m.leaf(w)[m.total(m.leaf(w))],
        ab.GraphError,
        ("the ids of lookup must be int arguments of the cell",),
    ),
    "a list of values": (
        lambda m, w: ab.softmax([m.leaf(w), m.leaf(w)]),
        ab.GraphError,
        ("a NumPy array needs the number", "A list of values becomes one value by ab.stack; ab.sum_n, mean_n"),
    ),
    "a list of values in a cell": (
        lambda m, w: m.body(m.leaf(w), lambda x: ab.tanh((x, x))),
        ab.GraphError,
        ("in cell 'body': a NumPy array needs the number", "becomes one value by ab.stack"),
    ),
    "another shape": (
        lambda m, w: ab.sum_n([m.leaf(w)], shape=7),
        ab.ShapeError,
        ("shape must be the shape of one element, (3,), got 7",),
    ),
    "no shape": (
        lambda m, w: ab.sum_n([], shape="4"),
        ab.ShapeError,
        ("shape must be the sizes of one element, got '4'",),
    ),
    "parts of sizes": (
        lambda m, w: ab.split(m.leaf(w), [1, 2]),  # type: ignore[arg-type]
        ab.ShapeError,
        ("n of split must be the number of equal parts, got [1, 2]",),
    ),
    "an object": (
        lambda m, w: m.label(m.leaf(w), Fraction(1, 2)),
        ab.GraphError,
        (
            "argument 'name' of a cell must be a value, data or static argument, got Fraction(1, 2) (Fraction)",
            "by naming the argument in @ab.cell(static=...)",
        ),
    ),
    "a static list": (
        lambda m, w: m.tagged(m.leaf(w), ["a"]),
        ab.GraphError,
        ("argument 'tag' of a cell must be hashable to be static, got ['a'] (list)", "pass a tuple or a frozenset"),
    ),
    "a static array": (
        lambda m, w: m.tagged(m.leaf(w), np.zeros(2)),
        ab.GraphError,
        ("argument 'tag' of a cell must be hashable to be static",),
    ),
    "array of texts": (
        lambda m, w: m.label(m.leaf(w), np.array(["a"])),
        ab.DataError,
        ("argument 'name' of a cell must be an array of floats, ints or bools, got dtype <U1",),
    ),
    "33 bits": (
        lambda m, w: m.leaf(2**33),
        ab.DataError,
        (
            "instance 0, call 0 (cell 'leaf'): ints among data must fit 32 bits",
            "pass large numbers as floats",
        ),
    ),
    "33 bits in an array": (
        lambda m, w: m.leaves(np.array([0, -(2**33)])),
        ab.DataError,
        ("instance 0, call 0 (cell 'leaves'): ints among data must fit 32 bits",),
    ),
    "65 bits": (lambda m, w: m.leaf(2**65), ab.DataError, ("ints among data must fit 32 bits",)),
    "300 values": (
        lambda m, w: m.body(m.leaf(w), lambda x: (x,) * 300),
        ab.GraphError,
        ("cell 'body' must return at most 256 values, got 300",),
    ),
    "computed id": (
        lambda m, w: m.body(w, lambda word: ab.lookup(m.table, word + 1)),
        ab.GraphError,
        ("in cell 'body': the ids of lookup must be int arguments of the cell",),
    ),
    "value as id": (
        lambda m, w: ab.lookup(m.table, m.total(m.leaf(w))),
        ab.GraphError,
        ("the ids of lookup must be int arguments of the cell", "pass them to the cell"),
    ),
    "float as id": (
        lambda m, w: m.leaf(1.0),  # type: ignore[arg-type]
        ab.GraphError,
        ("the ids of lookup must be int arguments of the cell",),
    ),
    "constant id": (
        lambda m, w: m.body(m.leaf(w), lambda x: x + ab.lookup(m.table, 9)),
        ab.DataError,
        ("in cell 'body': the indices of lookup must be in 0..4, got 9",),
    ),
    "another model": (
        lambda m, w: m.total(Model().leaf(w)),
        ab.GraphError,
        ("cell 'leaf' reads Parameter(shape=(5, 3)", "must be, and remain, a parameter of Model", "pass module="),
    ),
    "too deep": (
        lambda m, w: _deep(m.leaf(w)),
        ab.GraphError,
        ("exceeded Python's recursion limit", "calls of the function by itself end", "sys.setrecursionlimit"),
    ),
    "batched in batched": (
        lambda m, w: ab.batched(m.loss)([w]),
        ab.GraphError,
        ("a batched function must not be called inside a recorded or traced function; call its cells instead",),
    ),
    "batched in a cell": (
        lambda m, w: m.body(m.leaf(w), lambda x: ab.batched(m.loss)([w])),
        ab.GraphError,
        ("a batched function must not be called inside a recorded or traced function; call its cells instead",),
    ),
    "closure": (
        lambda m, w: (lambda v: m.body(m.leaf(w), lambda x: x + v))(m.leaf(w)),
        ab.GraphError,
        ("uses a value that another node computed; pass it as an argument",),
    ),
}


def _deep(x: Any) -> Any:
    return _deep(x)


@pytest.mark.parametrize("name", MISUSED)
def test_misuse_while_recording(model: Model, name: str) -> None:
    function, error, texts = MISUSED[name]
    loss = ab.batched(lambda word: function(model, word), module=model)
    for _ in range(2):
        with refused(error, *texts):
            loss([1])


def test_a_value_from_another_instance(model: Model) -> None:
    def keeping(word: int) -> Any:
        model.kept.append(model.leaf(word))
        return model.total(model.kept[0])

    with refused(
        ab.GraphError,
        "instance 1, call 1 (cell 'total'): recorded values must be used within their own instance",
        "compute it again there, or pass it as an array or Parameter",
    ):
        ab.batched(keeping, module=model)([0, 1])


def test_a_value_from_an_earlier_call(model: Model) -> None:
    def keeping(word: int) -> Any:
        model.kept.append(model.leaf(word))
        return model.kept[0] if word == 1 else model.kept[0] + model.leaf(word)

    loss = ab.batched(keeping, module=model)
    loss([0])
    with refused(ab.GraphError, "the values that instance 0 returned: recorded values must be used within"):
        loss([1])
    with refused(ab.GraphError, "instance 0, call 2 (cell 'add'): recorded values must be used within"):
        loss([2])


def test_a_value_from_another_function(model: Model) -> None:
    def keeping(word: int) -> Any:
        model.kept.append(model.leaf(word))
        return model.leaf(word)

    ab.batched(keeping, module=model)([0])
    (kept,) = model.kept
    uses: tuple[Callable[[Any], Any], ...] = (
        model.total, lambda v: v, lambda v: (v, v), lambda v: ab.sum_n([model.leaf(0), v]),
    )  # fmt: skip
    for use in uses:
        with refused(ab.GraphError, "must be used in its own recording, got one from another"):
            ab.batched(lambda _: use(kept), module=model)([1])  # noqa: B023
    with refused(ab.GraphError, "got <recorded value of shape (3,)> outside its recording"):
        ab.batched(lambda word: kept + 1.0, module=model)([1])
    with refused(ab.GraphError, "outside its recording", "return it from the function"):
        kept * 2.0


def test_a_static_argument_that_there_is_not() -> None:
    with refused(ab.GraphError, "static of cell 'square' must name arguments, got 'n'"):

        @ab.cell(static=("n",))
        def square(x: Any) -> Any:
            return x * x


class Mine(Exception):
    """A user's own error class."""


@pytest.mark.parametrize("place", ["function", "cell", "cell in a cell"])
def test_the_users_own_errors_pass_unchanged(model: Model, place: str) -> None:
    mine = Mine("my text", 3)

    def fail(x: Any) -> Any:
        raise mine

    places: dict[str, Callable[[Any], Any]] = {
        "function": fail,
        "cell": lambda x: model.body(x, fail),
        "cell in a cell": lambda x: model.body(x, lambda y: model.body(y, fail)),
    }

    def run(word: int) -> Any:
        x = model.leaf(word)
        return places[place](x) if word == 2 else model.total(x)

    loss = ab.batched(run, module=model)
    for _ in range(2):
        with pytest.raises(Mine) as caught:
            loss([1, 2, 3])
        assert caught.value is mine
        np.testing.assert_allclose(loss([1, 3]), [model.loss(1), model.loss(3)], rtol=1e-6)


def test_wrong_arguments_are_pythons_own_errors(model: Model) -> None:
    with refused(TypeError, "leaf() got an unexpected keyword argument 'text'"):
        ab.batched(lambda word: model.leaf(text=word), module=model)([1])  # type: ignore[call-arg]
    with refused(TypeError, "choose() missing 1 required positional argument: 'label'"):
        ab.batched(lambda word: model.choose(model.leaf(word)), module=model)([1])  # type: ignore[call-arg]
