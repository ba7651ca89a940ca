"""Test what batched functions and their reports print."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import autobatch as ab
from helpers.checkers.refusals import Model


def own_loss(model: Model, x: int) -> Any:
    return model.total(model.leaf(x))


class Callable:
    """A callable object."""

    def __call__(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (Model().leaf, "Model.leaf"),
        (own_loss, "own_loss"),
        (partial(partial(own_loss), Model()), "own_loss"),
        (Callable(), "Callable"),
    ],
)
def test_a_batched_function_says_what_it_runs(function: Any, name: str) -> None:
    run = ab.batched(function, policy="depth", backend="reference")
    assert repr(run) == f"Batched({name}, policy='depth', backend='reference')"
    run.policy = ab.policies.get("agenda")
    assert "policy='agenda'" in repr(run)
