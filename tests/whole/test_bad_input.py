"""Invalid mini-batches, results and options raise the right error, with a message that says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.graph.build import make_graph
from autobatch.graph.dag import reverse
from autobatch.graph.graph import NamedTypes
from autobatch.policies import Agenda, Frontier, FrontierPolicy, to_dag
from autobatch.policies.search.exact import beam_search
from helpers.checkers.refusals import DIM, N_CLASSES, N_WORDS, Model, refused
from helpers.runs.ways import each


@pytest.mark.parametrize("word", [-1, N_WORDS, 10**6])
def test_an_id_out_of_range(model: Model, word: int) -> None:
    loss = ab.batched(model.loss)
    with refused(ab.DataError, "instance 1", "argument 'word'", str(word), f"0..{N_WORDS - 1}"):
        loss([0, word])
    with refused(ab.DataError, "argument 'word'", str(word)):
        loss.record_all([word])
    with refused(ab.DataError, f"lookup must be in 0..{N_WORDS - 1}, got {word}."):
        model.loss(word)


def test_ids_and_labels_out_of_range(model: Model) -> None:
    with refused(ab.DataError, "instance 1", "gives 9 as leaves argument 'words', which takes 0..4"):
        ab.batched(lambda words: model.leaves(np.array(words)), module=model)([[9, 1, 2], [0, 9, 2]])
    with refused(ab.DataError, "gives -2 as leaves argument 'words', which takes 0..4", "give 3"):
        ab.batched(lambda words: model.leaves(np.array(words)), module=model)([[0, -2, 2]])
    with refused(ab.DataError, "instance 1", "gives 2 as choose argument 'label', which takes 0..1"):
        ab.batched(lambda label: model.choose(model.leaf(0), label), module=model)([0, 2])
    words = ab.batched(lambda words: model.leaves(np.array(words)), module=model)
    assert words([[9, 1, 2]]).shape == (1, DIM)  # the first word is not looked up


def test_results_that_do_not_stack(model: Model) -> None:
    ragged = ab.batched(lambda n: model.total(np.ones(2)) + np.ones(n), module=model)
    with refused(ab.ShapeError, "got shape (2,) for one instance and (3,) for another", "return it in a list"):
        ragged([2, 3])
    sometimes = ab.batched(lambda n: model.loss(n) if n else None, module=model)
    with refused(
        ab.ShapeError, "a constant for instance 0 and a computed value for instance 1", "parts that vary in lists"
    ):
        sometimes([0, 1])
    with refused(ab.ShapeError, "a computed value for instance 0 and a constant for instance 1"):
        sometimes([1, 0])
    with refused(ab.GraphError, "for instance 1 the function returned several values or none", "return np.zeros(())"):
        sometimes.value_and_grad([1, 0])
    either = ab.batched(lambda n: (model.loss(n),) * n, module=model)
    with refused(ab.ShapeError, "a tuple of 1 for instance 0 and a tuple of 2 for instance 1"):
        either([1, 2])
    with refused(ab.ShapeError, "an array in one shape, got (1,) for one instance and (2,) for another", "in a list"):
        ab.batched(np.arange)([1, 2])


def test_losses_that_are_none(model: Model) -> None:
    with refused(ab.DataError, "value_and_grad must be given at least one instance, got none"):
        ab.batched(model.loss).value_and_grad([])
    with refused(ab.GraphError, "needs a scalar loss", "instance 0", "a value of shape (3,)", "Sum the terms"):
        ab.batched(model.leaf).value_and_grad([1])
    for structure in (list, tuple, lambda xs: {"loss": xs[0]}, lambda xs: None):
        with refused(ab.GraphError, "needs a scalar loss", "for instance 0 the function returned"):
            ab.batched(lambda w: structure([model.loss(w)]), module=model).value_and_grad([1])  # noqa: B023
    with refused(ab.GraphError, "with has_aux=True, the function must return (loss, aux)", "instance 0"):
        ab.batched(model.loss).value_and_grad([1], has_aux=True)


@pytest.mark.parametrize(("number", "text"), [(np.nan, "instance 1: nan"), (np.inf, "instance 1: inf")])
def test_a_loss_that_is_not_finite(model: Model, number: float, text: str) -> None:
    loss = ab.batched(lambda x: model.total(np.array([x, 1.0])), module=model)
    with refused(
        ab.NumericError, "the loss of 2 of 4 instances is not finite", text, "gradients are not used",
        "Lower the learning rate, clip gradients, or call the function directly on that instance",
    ):  # fmt: skip
        loss.value_and_grad([1.0, number, 2.0, number])
    np.testing.assert_array_equal(loss([1.0, number]), [2.0, number + 1.0])


@each("reduce", ["average", ["a", "b"], None, [1.0], [[1.0], [2.0]], {}, [1.0, np.nan], [np.inf, 1]])
def test_wrong_weights(model: Model, reduce: Any) -> None:
    with refused(ab.AutobatchError, "reduce="):
        ab.batched(model.loss).value_and_grad([1, 2], reduce=reduce)


def test_wrong_gradients_to_add_to(model: Model) -> None:
    loss = ab.batched(model.loss)
    _, grads = loss.value_and_grad([1])
    given = {name: gradient.copy() for name, gradient in grads.items()}
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "out= has nothing for parameter 'table'"),
        ({**given, "weight": np.zeros(3, np.float32)}, "float32 of shape (3,) for parameter 'weight'"),
        ({**given, "weight": np.zeros((N_CLASSES, DIM))}, "float64 of shape (2, 3) for parameter 'weight'"),
        ({**given, "more": np.zeros(3)}, "parameter 'more', whose gradient is nothing"),
    )
    for out, text in wrong:
        with refused(ab.ShapeError, text, "gradients that an earlier call returned"):
            loss.value_and_grad([1], out=out)


class Nameless(FrontierPolicy):
    def choose(self, frontier: Frontier) -> int:
        return frontier.types[0]


OPTIONS: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = {
    "policy": ({"policy": "best"}, ab.PolicyError, ("got 'best'", "unbatched, depth", "agenda")),
    "policy object": ({"policy": 3}, ab.PolicyError, ("policy must be", "got 3")),
    "policy class": ({"policy": Agenda}, ab.PolicyError, ("policy must be", "Agenda'>")),
    "policy without a name": (
        {"policy": Nameless()},
        ab.PolicyError,
        (
            "class Nameless",
            "name = 'nameless'",
        ),
    ),
    "backend": (
        {"backend": "tpu"},
        ab.BackendError,
        ("unknown backend 'tpu'", "reference, cpu, cuda and auto"),
    ),
    "backend object": ({"backend": 3}, ab.BackendError, ("backend= must be a name or a Backend, got 3",)),
    "rewrite": ({"rewrites": ("sum",)}, ab.GraphError, ("unknown passes ['sum']", "'sums'")),
    "no rewrites": (
        {"rewrites": None},
        ab.GraphError,
        ("passes must be 'auto', 'all', or a list of ['forward'", "got None"),
    ),
    "seed": ({"seed": "a"}, ab.DataError, ("seed must be an int of at least 0, got 'a'",)),
    "negative seed": ({"seed": -1}, ab.DataError, ("seed must be an int of at least 0, got -1",)),
    "module": ({"module": 3}, ab.GraphError, ("must be a function of one instance and a Module", "and 3")),
}


@each("name", OPTIONS)
def test_unknown_options(model: Model, name: str) -> None:
    options, error, texts = OPTIONS[name]
    with refused(error, *texts):
        ab.batched(model.loss, **options)


def test_no_function_no_instances(model: Model) -> None:
    with refused(ab.GraphError, "ab.batched must be a function of one instance", "such as model.loss"):
        ab.batched(model)  # type: ignore[arg-type]
    with refused(ab.GraphError, "ab.batched must be a function of one instance", "such as model.loss"):
        ab.batched(Model)  # type: ignore[arg-type]
    loss = ab.batched(model.loss)
    for run in (loss, loss.value_and_grad, loss.record_all, loss.explain):
        with refused(ab.DataError, "a mini-batch must be a list of instances, got 3; for one instance pass [instance]"):
            run(3)  # type: ignore[arg-type, call-overload]


def test_graphs_that_do_not_belong(model: Model) -> None:
    loss, other = ab.batched(model.loss), ab.batched(model.loss)
    graphs = loss.record_all([0, 1])
    with refused(ab.GraphError, "record all instances with the same batched function"):
        other(graphs)
    with refused(ab.GraphError, "record all instances with the same batched function"):
        loss([*graphs, *other.record_all([2])])
    with refused(ab.GraphError, "must consist of recorded graphs or of instances, got both"):
        loss([*graphs, 2])
    with refused(ab.GraphError, "record all instances with the same batched function"):
        loss([make_graph(NamedTypes(("leaf",)), [0], [], [0])])
    with refused(ab.DataError, "a mini-batch must be a list of instances"):
        loss(graphs[0])  # type: ignore[arg-type]


def test_a_graph_by_hand_with_a_cycle() -> None:
    with refused(
        ab.GraphError, "edge 2 ('b') -> 1 ('b') points backwards", "there is a cycle", "remove one of its edges"
    ):
        make_graph(NamedTypes(("a", "b")), [0, 1, 1], [(0, 1), (1, 2), (2, 1)])
    with refused(ab.GraphError, "points backwards", "topological order"):
        make_graph(NamedTypes(("a", "b")), [0, 1], [(1, 0)])


def test_a_graph_where_a_dag_is_wanted(model: Model) -> None:
    (graph,) = ab.batched(model.loss).record_all([0])
    for use in (reverse, Agenda().plan, beam_search):
        with refused(ab.GraphError, "got a Graph", "to_dag(graph)"):
            use(graph)  # type: ignore[arg-type]
        use(to_dag(graph))


def test_a_parameter_that_was_replaced(model: Model) -> None:
    loss = ab.batched(model.loss)
    loss([1])
    table, model.table = model.table, ab.Parameter(np.ones((N_WORDS, DIM)))
    assert loss([1]) == DIM
    assert loss.value_and_grad([1])[1]["table"].ids.tolist() == [1]
    model.table = table
    loss([1])


def test_a_function_without_its_module(model: Model) -> None:
    with refused(ab.GraphError, "cell 'leaf' reads Parameter", "ab.batched was given none; pass module="):
        ab.batched(lambda word: model.loss(word))([1])


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "cpu"), ("", "cpu"), ("auto", "cpu"), ("cpu", "cpu"), ("reference", "reference")]
)
def test_the_environment_names_the_backend_of_programs_that_name_none(
    value: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOBATCH_BACKEND")
    if value is not None:
        monkeypatch.setenv("AUTOBATCH_BACKEND", value)
    assert ab.batched(lambda x: x).backend.name == expected
    assert ab.batched(lambda x: x, backend="reference").backend.name == "reference"
    monkeypatch.setenv("AUTOBATCH_BACKEND", "tpu")
    with pytest.raises(ab.BackendError, match=r"unknown backend 'tpu' \(of AUTOBATCH_BACKEND\)"):
        ab.batched(lambda x: x)
