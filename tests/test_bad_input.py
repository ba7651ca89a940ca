"""Every kind of bad input gets one sentence: what was being done, what disagrees, what to do."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.graph import NamedTypes, make_graph


class Model(ab.Module):
    """A few cells, and functions over one instance that misuse them."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.table = ab.Parameter(rng.standard_normal((5, 3)))
        self.layer = ab.Linear(3, 3, rng=rng)
        self.kept: Any = None

    @ab.cell
    def read(self, word: int) -> Any:
        return ab.lookup(self.table, word)

    @ab.cell
    def step(self, x: Any) -> Any:
        return ab.tanh(self.layer(x))

    @ab.cell
    def score(self, x: Any, label: int) -> Any:
        return ab.cross_entropy(x, label)

    @ab.cell
    def attend(self, query: Any, keys: list[Any], values: list[Any]) -> Any:
        return ab.attend(query, keys, values)

    @ab.cell
    def nothing(self, x: Any) -> Any:
        return None

    @ab.cell
    def sine(self, x: Any) -> Any:
        return np.sin(x)

    @ab.cell
    def choose(self, x: Any) -> Any:
        return x if x[0] > 0 else -x

    @ab.cell
    def tagged(self, x: Any, tag: Any) -> Any:
        return x

    def shapes_disagree(self, word: int) -> Any:
        return self.step(ab.concat((self.read(word), self.read(word))))

    def keep(self, word: int) -> Any:
        if self.kept is None:
            self.kept = self.read(word)
        return ab.sum(self.step(self.kept))

    def branch(self, word: int) -> Any:
        return self.step(self.read(word)) if self.read(word)[0] > 0 else self.read(word)

    def as_float(self, word: int) -> Any:
        return float(ab.sum(self.read(word)))

    def as_array(self, word: int) -> Any:
        return np.asarray(self.read(word))

    def as_index(self, word: int) -> Any:
        return [1, 2, 3][self.read(word)]

    def unequal(self, word: int) -> Any:
        return self.attend(self.read(word), [self.read(1)] * 2, [self.read(2)] * 3)

    def deep(self, word: int) -> Any:
        return self.deep(word)

    def nested(self, word: int) -> Any:
        return ab.batched(self.loss)([word])

    def loss(self, word: int) -> Any:
        return self.score(self.step(self.read(word)), 1)


def run(method: str, *instances: Any) -> Callable[[], Any]:
    """Run a method of a new model, batched."""
    return lambda: ab.batched(getattr(Model(), method))(list(instances or [1]))


def with_model(use: Callable[[Model], Any]) -> Callable[[], Any]:
    return lambda: use(Model())


class NeverMind(enum.Enum):
    A = 1


CASES: dict[str, tuple[Callable[[], Any], type[ab.AutobatchError], str]] = {
    "shapes disagree": (run("shapes_disagree"), ab.ShapeError, r"cell 'step'.*\(3, 3\).*\(6,\)"),
    "a kept value": (run("keep", 1, 2), ab.GraphError, "instance 1, call . .*another recording"),
    "a condition": (run("branch"), ab.GraphError, "control flow on computed values is not batched.*eager"),
    "a number": (run("as_float"), ab.GraphError, r"float\(\.\.\.\) needs the number.*directly on one instance"),
    "an array": (run("as_array"), ab.GraphError, "NumPy array needs the number"),
    "an index": (run("as_index"), ab.GraphError, "index needs the number"),
    "a condition in a cell": (
        with_model(lambda m: ab.batched(lambda w: m.choose(m.read(w)), module=m)([1])),
        ab.GraphError, "cell 'choose'.*control flow",
    ),
    "an id out of range": (run("read", 1, 5), ab.DataError, r"instance 1.* 5 as read argument 'word'.*0\.\.4; map"),
    "a negative id": (run("read", -1), ab.DataError, "-1.*0..4"),
    "an id out of range, eager": (
        with_model(lambda m: m.read(5)), ab.DataError, r"lookup of 5, which is not in 0\.\.4",
    ),
    "a label out of range": (
        with_model(lambda m: ab.batched(lambda w: m.score(m.read(w), 7), module=m)([0])),
        ab.DataError, r"7 as score argument 'label'.*0\.\.2",
    ),
    "an int beyond 32 bits": (run("read", 2**40), ab.DataError, "32 bits"),
    "an int beyond 64 bits": (run("read", 2**70), ab.DataError, "32 bits"),
    "np.sin in a cell": (
        with_model(lambda m: ab.batched(lambda w: m.sine(m.read(w)), module=m)([1])), ab.GraphError, "np.sin.*ab.ops",
    ),
    "a cell without a result": (
        with_model(lambda m: ab.batched(lambda w: m.nothing(m.read(w)), module=m)([1])),
        ab.GraphError, "'nothing' returns None.*at least one value",
    ),
    "lists of different lengths": (run("unequal"), ab.GraphError, "'attend'.*different lengths.*keys, values"),
    "an unhashable static argument": (
        with_model(lambda m: ab.batched(lambda w: m.tagged(m.read(w), {1, 2}), module=m)([1])),
        ab.GraphError, "'tag'.*hashable",
    ),
    "recursion too deep": (run("deep"), ab.GraphError, "sys.setrecursionlimit"),
    "batched inside recorded": (run("nested"), ab.GraphError, "inside a function that is recorded"),
    "a loss that is no scalar": (
        with_model(lambda m: ab.batched(m.read).value_and_grad([1])), ab.GraphError, r"scalar loss.*shape \(3,\)",
    ),
    "no instances": (
        with_model(lambda m: ab.batched(m.loss).value_and_grad([])), ab.DataError, "at least one instance",
    ),
    "an unknown reduction": (
        with_model(lambda m: ab.batched(m.loss).value_and_grad([1], reduce="max")), ab.DataError, "'mean', 'sum'",
    ),
    "weights of another length": (
        with_model(lambda m: ab.batched(m.loss).value_and_grad([1], reduce=[1.0, 2.0])), ab.ShapeError, "one for each",
    ),
    "an unknown policy": (with_model(lambda m: ab.batched(m.loss, policy="best")), ab.PolicyError, "'best'.*agenda"),
    "an unknown backend": (
        with_model(lambda m: ab.batched(m.loss, backend="tpu")), ab.BackendError, "'tpu'.*reference",
    ),
    "an unknown rewrite": (
        with_model(lambda m: ab.batched(m.loss, rewrites=["fuse"])), ab.AutobatchError, "'fuse'.*forward",
    ),
    "a cycle": (
        lambda: make_graph(NamedTypes(("a", "b")), [0, 1], [(0, 1), (1, 0)]), ab.GraphError, "cycle",
    ),
    "nodes in the wrong order": (
        lambda: make_graph(NamedTypes(("a", "b")), [0, 1], [(1, 0)]), ab.GraphError, "order",
    ),
    "a static argument that the cell has not": (
        lambda: ab.cell(static=("size",))(lambda x: x), ab.GraphError, "no argument 'size'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_one_sentence_that_says_what_to_do(case: str) -> None:
    act, error, text = CASES[case]
    with pytest.raises(error, match=f"(?s){text}") as caught:
        act()
    assert "\n" not in str(caught.value)
    assert str(caught.value).rstrip().endswith((".", ")"))


def test_a_value_of_another_function_is_refused() -> None:
    model = Model()
    kept: list[Any] = []

    def keep(word: int) -> Any:
        kept.append(model.read(word))
        return kept[0]

    ab.batched(keep, module=model)([1])
    with pytest.raises(ab.GraphError, match="another recording"):
        ab.batched(lambda word: model.step(kept[0]), module=model)([1])
    with pytest.raises(ab.GraphError, match="outside the recording that made it"):
        kept[0] + 1.0


def test_graphs_belong_to_the_function_that_recorded_them() -> None:
    model = Model()
    graphs = ab.batched(model.loss).record_all([1, 2])
    other = ab.batched(model.loss)
    with pytest.raises(ab.GraphError, match="types"):
        other(graphs)
    with pytest.raises(ab.GraphError, match="one kind"):
        other([graphs[0], 1])


def test_a_loss_that_is_not_finite_stops_before_the_gradient() -> None:
    model = Model()
    loss = ab.batched(model.loss)
    loss.value_and_grad([1])
    model.table.data[2] = math.nan
    with pytest.raises(ab.NumericError, match=r"1 of 3 instances is not finite.*instance 1.*learning rate"):
        loss.value_and_grad([1, 2, 3])
    assert np.isnan(loss([1, 2])[1])


def test_a_parameter_replaced_after_tracing_is_noticed() -> None:
    model = Model()
    loss = ab.batched(model.loss)
    loss([1])
    model.table = ab.Parameter(np.zeros((5, 3)))
    with pytest.raises(ab.GraphError, match=r"no longer, a parameter of Model.*new ab.batched"):
        loss([1])


def test_a_parameter_of_no_module_is_noticed() -> None:
    model = Model()
    with pytest.raises(ab.GraphError, match="pass module="):
        ab.batched(lambda word: model.read(word))([1])


def test_errors_of_the_users_own_pass_through_and_leave_the_model_usable() -> None:
    model = Model()

    def fail(word: int) -> Any:
        state = model.read(word)
        if word == 3:
            raise KeyError("mine")
        return ab.sum(model.step(state))

    batched = ab.batched(fail, module=model)
    with pytest.raises(KeyError, match="mine"):
        batched([1, 3])
    assert not {"read", "step"} & vars(model).keys()
    np.testing.assert_allclose(batched([1, 2]), [fail(1), fail(2)], rtol=1e-5)
