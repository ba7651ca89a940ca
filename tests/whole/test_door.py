"""Functions that `ab.batched` accepts, and how it finds the module with their parameters."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import GraphError
from helpers.runs.ways import each


class Head(ab.Module):
    """A model of one cell; calling it is the same as calling `loss`."""

    def __init__(self, value: float = 2.0) -> None:
        self.weight = ab.Parameter(np.full(2, value))

    @ab.cell
    def score(self, x: Any, scale: float) -> Any:
        return scale * ab.sum(self.weight * x)

    def loss(self, x: Any, scale: float = 1.0) -> Any:
        return self.score(x, scale)

    __call__ = loss


class CellHead(Head):
    @ab.cell
    def __call__(self, x: Any) -> Any:  # type: ignore[override]  # a cell in place of a method
        return ab.sum(self.weight * x)


class Trainer:
    """An object that is not a module but holds one, and a part of it."""

    def __init__(self, model: Head) -> None:
        self.outer = Outer(model)
        self.part, self.name = model, "trainer"

    def __call__(self, x: Any) -> Any:
        return self.outer.head.loss(x)

    compute = __call__


class Outer(ab.Module):
    def __init__(self, head: Head) -> None:
        self.head = head


def loss_of(model: Head, x: Any, scale: float = 1.0) -> Any:
    return model.loss(x, scale)


MAKERS: dict[str, tuple[Callable[[], Any], str, float]] = {
    "a method": (lambda: Head().loss, "weight", 1.0),
    "a module": (Head, "weight", 1.0),
    "a module whose call is a cell": (CellHead, "weight", 1.0),
    "a cell": (lambda: CellHead().__call__, "weight", 1.0),
    "an object": (lambda: Trainer(Head()), "head.weight", 1.0),
    "a method of an object": (lambda: Trainer(Head()).compute, "head.weight", 1.0),
    "a partial of a method": (lambda: partial(Head().loss, scale=3.0), "weight", 3.0),
    "a partial of a module": (lambda: partial(Head(), scale=3.0), "weight", 3.0),
    "a partial with a module": (lambda: partial(loss_of, Head(), scale=3.0), "weight", 3.0),
    "a partial of a partial": (lambda: partial(partial(loss_of, scale=3.0), Head()), "weight", 3.0),
    "a partial with a module by name": (lambda: partial(lambda x, model: model.loss(x), model=Head()), "weight", 1.0),
}


@each("name", MAKERS)
def test_the_module_of_a_function_is_found(name: str) -> None:
    """Also of a copy of the batched function, and for recorded graphs."""
    make, parameter, scale = MAKERS[name]
    function, batch = make(), [np.array([1.0, 2.0]), np.array([0.5, -1.0])]
    run = ab.batched(function, backend="reference")
    for one in (run, copy.deepcopy(run)):
        np.testing.assert_allclose(one(batch), [np.asarray(function(x)) for x in batch])
        value, grads = one.value_and_grad(one.record_all(batch), "sum")
        assert list(grads) == [parameter]
        np.testing.assert_allclose(grads[parameter], scale * (batch[0] + batch[1]))
        np.testing.assert_allclose(value, scale * 2.0 * 2.5)


def test_functions_at_hand_of_no_module_or_of_several() -> None:
    """With several modules, none of which holds the others, the error appears once a cell reads a parameter."""
    first, second = Head(1.0), Head(2.0)
    both = partial(lambda a, b, x: a.loss(x) + b.loss(x), first, second)
    with pytest.raises(GraphError, match=r"cell 'score' reads Parameter.*was given none; pass module="):
        ab.batched(both, backend="reference")([np.ones(2)])
    model = ab.Module()
    model.parts = [first, second]  # type: ignore[attr-defined]
    run = ab.batched(both, module=model, backend="reference")
    assert list(run.value_and_grad([np.ones(2)])[1]) == ["parts.0.weight", "parts.1.weight"]
    for function in (ab.sum, operator.neg, partial(ab.sum, axis=0), lambda x: x * 2.0):
        assert ab.batched(function, backend="reference")([np.ones(2)]).shape[0] == 1


@each("function", [3, "loss", None, ab.Module(), Outer(Head())])
def test_what_cannot_be_called_is_refused(function: Any) -> None:
    with pytest.raises(GraphError, match=r"must be a function of one instance .* or a model with __call__"):
        ab.batched(function)
