"""Test that internal errors say how to report them, unlike errors of users and errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.memplan.planner import MemoryPlanner
from helpers.programs.waiting_programs import Model as Waiting
from helpers.programs.waiting_programs import items


class Broken(Reference):
    """A backend that raises an error when it prepares a plan."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def prepare(self, *args: Any) -> Any:
        raise self._error


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def loss(error: Exception) -> ab.Batched:
    return ab.batched(lambda x: ab.sum(ab.tanh(x)), backend=Broken(error))


def loss_and_aux(error: Exception) -> ab.Batched:
    return ab.batched(lambda x: (ab.sum(x), ab.tanh(x)), backend=Broken(error))


@pytest.mark.parametrize(
    ("call", "options"),
    [
        (lambda error: loss(error)([np.ones(2)]), ""),
        (lambda error: loss(error).explain([np.ones(2)]), ""),
        (lambda error: loss(error).value_and_grad([np.ones(2)]), ", training=True"),
        (
            lambda error: loss_and_aux(error).value_and_grad([np.ones(2)], has_aux=True),
            ", training=True, has_aux=True",
        ),
        (lambda error: ab.batched(Waiting().loop, backend=Broken(error))(items(1, 2)), ""),
    ],
)
def test_errors_inside_say_how_to_report_them(call: Callable[[Exception], Any], options: str) -> None:
    error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug") as raised:
        call(error)
    assert raised.value is error
    (note,) = notes(error)
    assert f'ab.testing.dump(function, instances, "case.zip"{options}) writes' in note


@pytest.mark.parametrize("error", [ab.PlanError("too large"), ab.NumericError("not finite"), MemoryError()])
def test_errors_that_say_what_to_do_are_left_alone(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        loss(error)([np.ones(2)])
    assert not notes(raised.value)


def test_errors_of_programs_are_left_alone() -> None:
    async def program(x: Any) -> Any:
        await ab.value(ab.sum(x))
        raise KeyError("mine")

    for run in (ab.batched(lambda x: x["mine"], backend="reference"), ab.batched(program, backend="reference")):
        with pytest.raises((KeyError, IndexError)) as raised:
            run([np.ones(2)])
        assert all(note.startswith("while instance") for note in notes(raised.value))


@pytest.mark.usefixtures("_checked")
def test_what_checkers_find_is_an_error_of_autobatch_unless_the_planner_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mine(MemoryPlanner):
        """A planner that the package did not provide."""

    def wrong(*args: Any) -> Any:
        plan = place(*args)
        return replace(plan, dest=np.zeros_like(plan.dest))

    place = MemoryPlanner.place
    monkeypatch.setattr(MemoryPlanner, "place", wrong)
    for planner, n_notes in ((MemoryPlanner(), 1), (Mine(), 0)):
        run = ab.batched(lambda x: ab.tanh(x) + ab.sigmoid(x), backend="reference", planner=planner)
        with pytest.raises(ab.PlanError) as raised:
            run([np.ones(2), np.ones(2)])
        assert len(notes(raised.value)) == n_notes
