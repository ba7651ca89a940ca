"""Test that errors raised while instances are recorded name their instance once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.blas.threads import threads_in_force
from autobatch.ops.operators import STAGE
from helpers.checkers.refusals import DIM, Model
from helpers.runs.interrupts import interrupts_at_starts
from helpers.runs.ways import each

GIVEN: list[Any] = [{"word": 1}, {"word": 2}, {}, {"word": 3}]
NOTE = "while instance 2 was recorded"


def deeper(model: Model, x: Any) -> Any:
    return deeper(model, x)


WRONG: dict[str, tuple[Callable[[Model, Any], Any], type[Exception]]] = {
    "key": (lambda m, x: m.total(m.leaf(x["word"])), KeyError),
    "cell": (lambda m, x: m.choose(m.leaf(1) if x else np.ones(4), 0), ab.ShapeError),
    "result": (lambda m, x: m.total(m.leaf(1)) if x else key(m, x), ab.GraphError),
    "attribute": (lambda m, x: m.total(m.leaf(1) if x else m.leaf(1).lenght), AttributeError),
    "depth": (lambda m, x: m.total(m.leaf(1)) if x else deeper(m, x), ab.GraphError),
}
CALLS: dict[str, Callable[[ab.Batched], Any]] = {
    "call": lambda run: run(GIVEN),
    "value_and_grad": lambda run: run.value_and_grad(GIVEN),
    "inputs": lambda run: run.value_and_grad(GIVEN, inputs=True),
    "record_all": lambda run: run.record_all(iter(GIVEN)),
    "explain": lambda run: run.explain(GIVEN),
}


@each("call", CALLS)
@each("wrong", WRONG)
def test_an_error_names_its_instance_once(wrong: str, call: str) -> None:
    function, kind = WRONG[wrong]
    model = Model()
    with pytest.raises(kind) as found:
        CALLS[call](ab.batched(lambda x: function(model, x), module=model))
    assert found.value.__notes__ == [NOTE]


def test_the_cause_of_an_error_is_kept() -> None:
    model, cause = Model(), ValueError("the cause")

    def function(x: Any) -> Any:
        raise AttributeError("the effect") from cause

    with pytest.raises(AttributeError, match="the effect") as found:
        ab.batched(function, module=model)([1])
    assert found.value.__cause__ is cause


@pytest.mark.parametrize("trains", [False, True])
def test_an_interrupt_at_the_start_of_any_function_leaves_nothing_behind(trains: bool) -> None:
    model = Model()
    loss = ab.batched(lambda x: model.total(model.leaf(x["word"])), module=model, backend="cpu")
    run, given = loss.value_and_grad if trains else loss, [{"word": 1}, {"word": 2}]
    expected, n_interrupts = run(given), 0
    before = np.geterr(), threads_in_force()
    for error in interrupts_at_starts(str(Path(ab.__file__).parent), lambda: run(given)):
        assert isinstance(error, KeyboardInterrupt)
        assert STAGE.current is None
        assert (np.geterr(), threads_in_force()) == before
        n_interrupts += 1
    assert n_interrupts > 50
    np.testing.assert_array_equal(run(given)[0], expected[0])


@each("is_async", (False, True))
def test_an_error_that_is_raised_twice_names_the_last_instance(is_async: bool) -> None:
    error = ValueError("no more")

    def fail(x: Any) -> Any:
        if x == 2:
            raise error
        return np.ones(1)

    async def wait(x: Any) -> Any:
        return fail(x)

    batched = ab.batched(wait if is_async else fail)
    for number, instances in enumerate([[1, 2], [2]]):
        with pytest.raises(ValueError, match="no more"):
            batched(instances)
        assert [note.split(",")[0] for note in error.__notes__] == [f"while instance {1 - number} was recorded"]


def test_what_gives_the_instances_is_not_blamed_on_one() -> None:
    model = Model()
    with pytest.raises(KeyError) as found:
        ab.batched(model.leaf, module=model)({0: 1}[n] for n in range(3))
    assert not hasattr(found.value, "__notes__")


async def key(model: Model, x: Any) -> Any:
    return model.total(model.leaf(x["word"]))


async def waits(model: Model, x: Any) -> Any:
    return await ab.value(model.total(model.leaf(x["word"])))


@each("call", CALLS)
@each("program", [key, waits])
def test_an_error_of_an_async_program_names_its_instance_once(program: Any, call: str) -> None:
    model = Model()
    with pytest.raises(KeyError) as found:
        CALLS[call](ab.batched(lambda_of(program, model), module=model))
    assert found.value.__notes__ == ["while instance 2 was recorded, after 0 rounds"]


def test_what_cannot_be_awaited_names_its_instance() -> None:
    model, other = Model(), Model()
    taken: list[Any] = []
    ab.batched(lambda x: taken.append(other.leaf(1)) or other.leaf(1), module=other)([1])  # type: ignore[func-returns-value]

    async def program(x: Any) -> Any:
        return await ab.value([] if x else taken)

    with pytest.raises(ab.GraphError) as found:
        ab.batched(program, module=model)(GIVEN)
    assert len(found.value.__notes__) == 1
    assert "instance 2" in found.value.__notes__[0]


def lambda_of(program: Any, model: Model) -> Any:
    async def run(x: Any) -> Any:
        return await program(model, x)

    return run


@each("aux", [lambda x: x, lambda x: [x, 1], lambda x: {"x": x}])
def test_a_loss_with_aux_says_what_to_pass(aux: Any) -> None:
    model = Model()
    loss = ab.batched(lambda w: (model.total(model.leaf(w)), aux(model.leaf(w))), module=model)
    with pytest.raises(ab.GraphError, match=r"instance 0 the function returned a tuple of 2.*pass has_aux=True"):
        loss.value_and_grad([1, 2])
    assert loss.value_and_grad([1, 2], has_aux=True)[0][0].shape == ()


def test_a_loss_that_is_no_tuple_says_what_it_is() -> None:
    model = Model()
    with pytest.raises(ab.GraphError, match=rf"returned a value of shape \({DIM},\). Sum the terms"):
        ab.batched(model.leaf, module=model).value_and_grad([1])
