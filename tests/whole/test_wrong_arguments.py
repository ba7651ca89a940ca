"""Wrong arguments of every public name raise an error of one sentence, never an internal error of Python or NumPy.

The calls are generated: each parameter of each public function, constructor and documented method receives values of
many kinds, with valid values for all other arguments. Values that an annotation does not admit must be refused; the
others may be used, or refused in a sentence.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import autobatch as ab
from autobatch.arguments import kind_of
from describing import find, members_of
from helpers.runs.ways import each
from reference import PAGES, names_in

ROOT = Path(__file__).parents[2]


class Net(ab.Module):
    """A model for all calls."""

    def __init__(self) -> None:
        self.linear = ab.Linear(3, 3, rng=np.random.default_rng(0))
        self.eval()

    @ab.cell
    def loss(self, x: Any) -> Any:
        return ab.sum(self.linear(x))


def square(x: Any) -> Any:
    return ab.sum(x * x)


class Object:
    """An object of an unknown class."""

    def __repr__(self) -> str:
        return "<Object>"


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None, "a text": lambda: "nonsense", "1.5": lambda: 1.5, "True": lambda: True,
    "-1": lambda: -1, "a huge int": lambda: 10**30, "nan": lambda: math.nan, "an empty list": list,
    "a list of texts": lambda: ["a", "b"], "a dict": lambda: {"a": 1}, "an object": Object, "a class": lambda: Object,
    "an array": lambda: np.zeros((2, 2)), "a huge float": lambda: 10**400,
}  # fmt: skip
ADMITTED = {
    "int": {"-1", "a huge int", "a huge float"}, "float": {"1.5", "-1", "a huge int"}, "bool": {"True"},
    "str": {"a text"}, "None": {"None"}, "PathLike": {"a text"}, "DTypeLike": {*WRONG}, "ArrayLike": {*WRONG},
    "Any": {*WRONG}, "object": {*WRONG}, "Callable": {"a class"}, "type": {"a class"},
    "Sequence": {"an empty list", "a list of texts", "an array"}, "Collection": {"an empty list", "a list of texts"},
    "Iterable": {"an empty list", "a list of texts", "an array"}, "tuple": {"an empty list", "a list of texts"},
    "list": {"an empty list", "a list of texts"}, "Mapping": {"a dict"}, "dict": {"a dict"}, "NDArray": {"an array"},
    "Axis": {"-1", "None", "an empty list"}, "Wrt": {"None", "a class"},
    "BucketBy": {"an empty list", "an array", "a class"},
    "Shape": {"an empty list"}, "IntArray": {"an array"}, "FloatArray": {"an array"}, "LongArray": {"an array"},
    "Array": {"an array"}, "Hashable": {"a text", "a dict"}, "Sized": {"an empty list"}, "T": {*WRONG}, "M": set(),
    "Direction": set(), "Function": {"a text", "a class"}, "Value": {*WRONG}, "Values": {*WRONG}, "Shapes": {*WRONG},
}  # fmt: skip
"""Wrong values that a function may accept although the annotation excludes them, by a word of the annotation."""
NO_CALLS = {
    "autobatch.policies.Weights", "autobatch.policies.Frontier", "autobatch.policies.Schedule",
    "autobatch.schedule.Schedule", "autobatch.serving.Counts", "autobatch.graph.Graph", "autobatch.Graph",
    "autobatch.memplan.CellLayout", "autobatch.distributed.Joined", "autobatch.models.ModelSpec",
    "autobatch.policies.Policy", "autobatch.policies.env.Agent", "autobatch.policies.Fsm", "autobatch.Batched",
    "autobatch.optim.OptimizerState", "autobatch.optim.RateState", "autobatch.policies.AUTO",
    "autobatch.policies.Deep", "autobatch.optim.Optimizer", "autobatch.optim.LearningRate",
    "autobatch.graph.NamedTypes",
}  # fmt: skip
"""Records and results that the library creates, and abstract classes."""


FACTORS = {"alpha", "slope", "scale", "eps"}
"""Factors in arithmetic: a bool, NaN or an array counts as a number there, as elsewhere."""
OF_THE_USER = {
    *((f"autobatch.{name}", "function", "a class") for name in ("hvp", "jvp", "vjp", "testing.check_batched")),
    *((f"autobatch.{name}", "wrt", "a class") for name in ("hvp", "jvp", "vjp")), ("autobatch.vjp", "wrt", "None"),
    *((f"autobatch.{name}", "primals", "an empty list") for name in ("hvp", "jvp")),
    ("autobatch.minibatches", "bucket_by", "a class"),
    ("autobatch.distributed.shares", "bucket_by", "a class"), ("autobatch.distributed.shares", "cost", "a class"),
    ("autobatch.policies.env.episodes", "loss", "a class"), ("autobatch.eager", "function", "a class"),
}  # fmt: skip
"""Errors of the caller's own function or class, and Python's error of a missing argument, pass through."""


class Call(NamedTuple):
    name: str
    parameter: str


@cache
def callables() -> dict[str, Any]:
    """Return the public functions and classes, and the documented methods, by name."""
    lines = (ROOT / "docs" / "public_names.txt").read_text(encoding="utf-8").split("\n")
    found: dict[str, Any] = {}
    for name in (line for line in lines if re.fullmatch(r"autobatch\.[\w.]+", line)):
        it = find(name)
        seen = any(it is other for other in found.values())
        is_error = inspect.isclass(it) and issubclass(it, Exception)
        if callable(it) and not inspect.ismodule(it) and not seen and not is_error and name not in NO_CALLS:
            found[name] = it
    for page in PAGES:
        for shown in names_in(page.read_text(encoding="utf-8")):
            methods = [m for m in shown.members if m != "__init__" and not m.startswith("_")]
            found |= {n: m for n, m in members_of(shown.path, methods).items() if n.rpartition(".")[0] in OWNERS}
    return found


def made_batched() -> Any:
    return ab.batched(Net().loss, backend="reference")


OWNERS: dict[str, Callable[[], Any]] = {
    "autobatch.api.Batched": made_batched,
    "autobatch.params.module.Module": lambda: ab.Linear(3, 3, rng=np.random.default_rng(0)),
    "autobatch.optim.base.Optimizer": lambda: ab.optim.Adam(Net(), lr=0.1),
    "autobatch.optim.schedules.PlateauRate": lambda: ab.optim.PlateauRate(ab.optim.Adam(Net(), lr=0.1)),
}


def gradients() -> Any:
    return made_batched().value_and_grad([np.ones(3)])[1]


def right(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return valid arguments by the name of a parameter, or of a callable and its parameter."""
    return {
        "x": lambda: np.ones((2, 2)), "y": lambda: np.ones((2, 2)), "n_in": lambda: 3, "n_out": lambda: 3,
        "n_hidden": lambda: 3, "rng": lambda: np.random.default_rng(0), "bias": lambda: np.ones(2), "dim": lambda: 3,
        "rate": lambda: 0.5, "n_rows": lambda: 4, "data": lambda: np.ones(3), "query": lambda: np.ones(2),
        "keys": lambda: [np.ones(2)], "values": lambda: [np.ones(2)], "function": lambda: square,
        "logits": lambda: np.ones(3), "parts": lambda: [np.ones(2)], "weights": lambda: [1.0],
        "subscripts": lambda: "ij,jk->ik", "path": lambda: str(folder / "file"), "examples": lambda: [np.ones(3)],
        "gain": lambda: np.ones(2), "instances": lambda: [np.ones(3), np.ones(3)], "primals": lambda: (np.ones(3),),
        "tangents": lambda: (np.ones(3),), "size": lambda: 2, "shape": lambda: (2, 2), "scores": lambda: [0.0, 1.0],
        "n": lambda: 2, "k": lambda: 1, "condition": lambda: np.ones((2, 2)), "model": Net, "lr": lambda: 0.1,
        "names": lambda: "linear.*", "optimizer": lambda: ab.optim.Adam(Net(), lr=0.1), "n_steps": lambda: 3,
        "grads": gradients, "max_norm": lambda: 1.0, "limit": lambda: 1.0, "name": lambda: "agenda",
        "loss": made_batched, "module": Net, "costs": lambda: [1.0, 2.0], "label": lambda: 1,
        "table": lambda: np.ones((3, 2)), "minibatches": lambda: [[np.ones(3)]],
        "ids": lambda: 1, "weight": lambda: np.ones((2, 2)), "server": lambda: None,
        "measure": lambda: 0.5, "dtype": lambda: "float64", "device": lambda: "cpu",
        "state": lambda: {}, "mode": lambda: True,
        "autobatch.affine.x": lambda: np.ones(2), "autobatch.dot.x": lambda: np.ones(2),
        "autobatch.dot.y": lambda: np.ones(2), "autobatch.outer.x": lambda: np.ones(2),
        "autobatch.outer.y": lambda: np.ones(2), "autobatch.batched.function": lambda: Net().loss,
        "autobatch.export.function": lambda: Net().loss, "autobatch.export.module": lambda: None,
        "autobatch.serve.function": lambda: Net().loss, "autobatch.batched.module": lambda: None,
        "autobatch.testing.check_batched.function": lambda: Net().loss, "autobatch.torch.as_torch.model": Net,
        "autobatch.optim.PlateauRate.mode": lambda: "min", "autobatch.optim.Group.names": lambda: "linear.*",
        "autobatch.testing.dump.function": lambda: Net().loss,
        "autobatch.testing.check_grads.module": lambda: Net(),
        "autobatch.torch.check_batched.module": lambda: torch.nn.Linear(3, 3),
        "autobatch.models.find_model.name": lambda: "tree-lstm",
        "autobatch.params.module.Module.load_state_dict.state": lambda: Net().linear.state_dict(),
        "autobatch.optim.base.Optimizer.load_state_dict.state": lambda: ab.optim.Adam(Net(), lr=0.1).state_dict(),
    }  # fmt: skip


def needed(function: Any) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    return {n: p for n, p in found.items() if n != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


def calls() -> Iterator[Call]:
    for name, function in callables().items():
        yield from (Call(name, parameter) for parameter in needed(function))


def words_of(function: Any, parameter: str) -> set[str]:
    annotation = inspect.signature(function).parameters[parameter].annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "Any")
    if annotation is inspect.Parameter.empty:
        text = "Any"
    return {*re.findall(r"\w+", text)}


def run(function: Any, name: str, arguments: dict[str, Any]) -> None:
    """Call a function; run or enter its result if the work happens only then."""
    owner = name.rpartition(".")[0]
    args = [OWNERS[owner]()] if owner in OWNERS else []
    kinds = inspect.signature(function).parameters
    args += [arguments.pop(n) for n in list(arguments) if kinds[n].kind is kinds[n].POSITIONAL_ONLY]
    found = function(*args, **arguments)
    if isinstance(found, GeneratorType):
        list(found)
    elif isinstance(found, AbstractContextManager) and not isinstance(found, ab.serving.Server) and "group" not in name:
        with found:
            pass
    elif isinstance(found, ab.serving.Server):
        found.close()
    elif inspect.iscoroutine(found):
        asyncio.run(found)


class Rest(ab.Module):
    """A model for calls outside the table of names: methods of parts, `*args`, `**options`."""

    def __init__(self) -> None:
        self.linear = ab.Linear(3, 3, rng=np.random.default_rng(0))
        self.eval()


def rows() -> ab.Rows:
    return ab.Rows([0], np.ones((1, 2)), (3, 2))


UNEVEN = [[1], [1, 2]]
FURTHER: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "each(function)": (lambda v: ab.each(v, [1.0]), (None, 3, "a", [])),
    "each(lists)": (lambda v: ab.each(square, [1.0], v), (None, 3, 1.5, Object())),
    "Rows.zeros(shape)": (lambda v: ab.Rows.zeros(v), (None, 3, "a", [None], {"a": 1})),
    "Rows.zeros(dtype)": (lambda v: ab.Rows.zeros((3, 2), dtype=v), ("nonsense", Object(), 3, [1])),
    "Rows.summed(ids)": (lambda v: ab.Rows.summed(v, np.ones((2, 2)), (3, 2)), (None, UNEVEN, "a", {}, Object())),
    "Rows.summed(values)": (lambda v: ab.Rows.summed([0, 1], v, (3, 2)), (None, UNEVEN, "a", {}, Object())),
    "Rows.summed(shape)": (lambda v: ab.Rows.summed([0], np.ones((1, 2)), v), (None, 3, "a", (None, 2), Object())),
    "rows.add_to(dense)": (lambda v: rows().add_to(v), (None, 3, [1.0], "a", np.ones(2))),
    "Linear(...)(x)": (lambda v: Rest().linear(v), (UNEVEN, "a", None, [None], Object())),
    "minibatches(bucket_by)": (lambda v: list(ab.minibatches([1, 2], 1, bucket_by=v)), (UNEVEN, 3, [None, 1])),
    "parameter.to(store)": (lambda v: ab.Parameter(np.ones(3)).to(v), ("cpu", None, 3, Object())),
    "learn_policy(episodes)": (
        lambda v: made_batched().learn_policy([[np.ones(3)]], episodes=v), ("a", None, 0, 1.5, Object())
    ),
    "learn_policy(epsilon)": (lambda v: made_batched().learn_policy([[np.ones(3)]], epsilon=v), ("a", None, math.nan)),
    "Adam(groups)": (
        lambda v: ab.optim.Adam(Net(), lr=0.1, groups=v), (range(3), ab.Parameter(np.ones(3)), [None], np.ones(2))
    ),
    "cell(function)": (lambda v: ab.cell(v), (int, Object, dict, 3)),
    "check_grads(step)": (lambda v: check_grads(step=v), (0, -1.0, math.inf, math.nan, None)),
    "check_grads(directions)": (lambda v: check_grads(directions=v), (0, -1, 2**70, None, 1.5)),
    "define_op": (lambda v: ab.ops.define_op("nameless", **v), ({}, {"shape": lambda x: x}, {"kernel": square})),
    "reduce": (lambda v: made_batched().value_and_grad([np.ones(3)], reduce=v), (None, UNEVEN, 1.0, Object())),
}  # fmt: skip


def check_grads(**options: Any) -> None:
    net = Net().astype("float64")
    loss = ab.batched(net.loss, backend="reference")
    ab.testing.check_grads(loss, [np.ones(3)], net, rng=np.random.default_rng(0), **options)


@each("name", FURTHER)
def test_what_is_reached_by_no_name_does(name: str) -> None:
    call, values = FURTHER[name]
    for value in values:
        with pytest.raises(ab.AutobatchError) as error:
            call(value)
        assert "\n" not in str(error.value)
        assert "inhomogeneous" not in str(error.value)


IN_CELLS = (
    "argmax", "clip", "concat", "dropout", "each", "elu", "gelu", "layer_norm", "leaky_relu", "log_softmax",
    "logsumexp", "max", "mean", "min", "reshape", "softmax", "split", "stack", "sum", "sum_n", "top_k", "transpose",
)  # fmt: skip


@each("name", IN_CELLS)
def test_inside_cells_they_do(name: str, tmp_path: Path) -> None:
    """Passes wrong options to ops on a traced value."""
    function, own = getattr(ab, name), right(tmp_path)
    parameters = needed(function)
    first = next(iter(parameters))
    for wrong in parameters:
        for shown, make in {**WRONG, "an uneven list": lambda: UNEVEN}.items():
            if wrong == first:
                continue
            arguments = {n: own.get(n, lambda: 1.0)() for n, p in parameters.items() if p.default is p.empty}

            def body(x: Any, arguments: dict[str, Any] = arguments, make: Any = make, wrong: str = wrong) -> Any:
                values = [x, x] if first in ("parts", "values") else x
                found = function(**{**arguments, first: values, wrong: make()})
                return found if isinstance(found, tuple) else ab.sum(found)

            try:
                with np.errstate(all="ignore"):
                    ab.batched(ab.cell(body), backend="reference")([np.ones(3)])
            except ab.AutobatchError:
                continue
            except Exception as error:
                pytest.fail(f"{name}({wrong}={shown}) in a cell: {type(error).__name__}: {error}")


def test_indices_of_rows_are_refused_in_a_sentence() -> None:
    @ab.cell(ragged=("x",))
    def tanh(x: Any) -> Any:
        return ab.tanh(x)

    def taken(index: Any) -> Any:
        return ab.batched(lambda x: ab.sum(tanh(x)[index]), backend="reference")([np.ones((2, 3))])

    for index in ([0, 0], [[0]], 1.5, "a", (slice(None), [0])):
        with pytest.raises(ab.AutobatchError, match="an index must consist of ints, slices, None and"):
            taken(index)


QUICK = ("Linear", "Dropout", "Parameter", "Adam", "concat", "sum", "reshape", "cell", "load", "randomness", "spread")


@each("call", [call for call in calls() if call.name.rpartition(".")[2] in QUICK])
def test_wrong_arguments_end_in_one_sentence(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(call, tmp_path)


@pytest.mark.slow
@each("call", list(calls()))
def test_wrong_arguments_of_every_name_do(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(call, tmp_path)


def check(call: Call, tmp_path: Path) -> None:
    """Call a function with each wrong value for one argument."""
    function, own = callables()[call.name], right(tmp_path)
    parameters = needed(function)

    def given(parameter: str) -> Any:
        return own.get(f"{call.name}.{parameter}", own.get(parameter, lambda: 1.0))()

    words = words_of(function, call.parameter)
    admitted = {"True", "nan", "an array"} if call.parameter in FACTORS else set()
    admitted = admitted.union(*(ADMITTED.get(word, set()) for word in words))
    if call.name == "autobatch.randomness" and call.parameter in ("seed", "key", "step"):
        admitted = {*admitted, "True", "an array"}  # ints of any type; keys may be an array of one per row
    if call.name == "autobatch.optim.schedules.PlateauRate.step":
        admitted = {*admitted, "nan"}  # a metric that is worse than any other
    told = list[str]()
    for shown, make in WRONG.items():
        arguments = {n: given(n) for n, p in parameters.items() if p.default is p.empty or n == call.parameter}
        arguments[call.parameter] = make()
        try:
            with np.errstate(all="ignore"):  # for numbers such as 1 / 0
                run(function, call.name, arguments)
        except ab.AutobatchError as error:
            told.append(str(error))
        except Exception as error:
            if (call.name, call.parameter, shown) not in OF_THE_USER:
                pytest.fail(f"{call.name}({call.parameter}={shown}): {type(error).__name__}: {error}")
        else:
            assert shown in admitted, f"{call.name}({call.parameter}={shown}) is accepted"
    assert not [text for text in told if "\n" in text or text[-1] not in ".?)`"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has no type aliases")
def test_aliases_of_types_are_looked_through() -> None:
    """NumPy's arrays are type aliases from version 2.5 on."""
    made: dict[str, Any] = {}
    exec("type Row[T] = list[T]; type Rows = list[Row[int]]; type Size = int | None; type Any_ = object", made)
    for annotation, right, wrong, words in (
        (made["Row"][float], [1.0], "1.0", "a list of numbers"),
        (made["Rows"], [[1]], [["a"]], "a list of elements that are each a list of ints"),
        (made["Size"] | str, None, 0.5, "an int or None or a str"),
        (made["Row"][made["Size"]], [1, None], [0.5], "a list of elements that are each an int or None"),
    ):
        kind = kind_of(annotation)
        assert kind is not None
        assert kind.words == words
        assert kind.holds(right)
        assert not kind.holds(wrong)
    assert kind_of(made["Any_"]) is None


def test_an_alias_of_arrays_admits_arrays_alone() -> None:
    kind = kind_of(NDArray[np.float64])
    assert kind is not None
    assert kind.words == "an array"
    assert kind.holds(np.ones(3))
    assert not kind.holds("nonsense")
