"""Test that derivatives are taken by value: which results are the same value, and which are two, in every stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab


def through(value: Any) -> Any:
    """Return the gradients by all arrays of a structure, for a function that treats its parts differently."""
    return ab.grad(lambda parts: parts[0] * parts[0] * parts[1])(value)


CONSTANT = np.asarray(3.0)
RETURNED: dict[str, Callable[[Any], Any]] = {
    "an argument twice": lambda x: (x, x),
    "two reads of an argument": lambda x: (x[()], x[()]),
    "a constant twice": lambda x: (CONSTANT, CONSTANT, x),
    "two equal constants": lambda x: (np.asarray(3.0), np.asarray(3.0), x),
    "equal numbers": lambda x: (3.0, 3.0, x),
    "a computed value twice": lambda x: (x * 1.0,) * 2,
    "two computed values": lambda x: (x * 1.0, x * 1.0),
}
TAKEN: dict[str, Callable[[Any, Any], Any]] = {
    "vjp": lambda f, x: ab.vjp(f, x)[0],
    "jvp": lambda f, x: ab.jvp(f, (x,), (x,))[0],
    "tangents": lambda f, x: ab.jvp(f, (x,), (x,))[1],
    "aux": lambda f, x: ab.value_and_grad(lambda x: (x * x, f(x)), has_aux=True)(x)[0][1],
    "value and aux": lambda f, x: ab.value_and_grad(lambda x: (lambda y: (y, y))(f(x)[0] * 1.0), has_aux=True)(x)[0],
}


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("returned", RETURNED)
def test_what_is_returned_several_times_is_one_value_in_every_stage(returned: str, taken: str) -> None:
    """Gradients by the outputs of a derivative agree between cells and inside one, batched and eager."""

    def program(x: Any) -> Any:
        return through(TAKEN[taken](RETURNED[returned], x))

    cell, x = ab.cell(program), np.asarray(2.0)
    eager = program(x)
    for other in (ab.batched(program, backend="reference")([x]), cell(x), ab.batched(cell, backend="reference")([x])):
        assert np.allclose(np.ravel(other), np.ravel(eager))


@pytest.mark.parametrize(("returned", "gradient"), [("an argument twice", 12.0), ("two reads of an argument", 8.0)])
def test_a_value_has_one_gradient_wherever_it_is_held(returned: str, gradient: float) -> None:
    assert np.array_equal(through(ab.vjp(RETURNED[returned], np.asarray(2.0))[0])[0], gradient)


def by_both(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Differentiate by a value and by the function's result for it, which are two values."""

    def program(x: Any) -> Any:
        return ab.grad(lambda x, y: ab.sum(3.0 * x) + ab.sum(y * y), wrt=lambda x, y: (x, y))(x, function(x))

    return program


SAME = {
    "sum_n of one": lambda x: ab.sum_n([x]),
    "sum_n of one pair": lambda x: ab.sum_n([(x, x)])[0],
    "0 + x": lambda x: 0 + x,
    "x + 0.0": lambda x: x + 0.0,
    "sum of one": lambda x: sum([x]),
    "concat of one": lambda x: ab.concat([x]),
    "x * 1": lambda x: x * 1,
}


@pytest.mark.parametrize("name", SAME)
def test_what_an_op_gives_is_another_value_than_its_argument(name: str) -> None:
    program, x = by_both(SAME[name]), np.array([[1.0, 2.0], [0.5, -1.0]])
    cell, computed = ab.cell(program), ab.batched(lambda x: program(x * 2.0), backend="reference")
    assert np.allclose(program(x)[0], 3.0)
    assert np.allclose(ab.jvp(lambda x: program(x)[1], (x,), (x,))[1], 2.0 * x)
    for other in (ab.batched(program, backend="reference")([x]), cell(x), ab.batched(cell, backend="reference")([x])):
        assert np.allclose(np.ravel(other), np.ravel(program(x)))
    assert np.allclose(np.ravel(computed([x])), np.ravel(program(x * 2.0)))


def test_the_sum_of_a_list_of_one_is_another_value_than_its_element() -> None:
    @ab.cell
    def both(xs: list[Any]) -> Any:
        return ab.grad(lambda total, xs: ab.sum(total) + ab.sum(3.0 * ab.sum_n(xs)))(ab.sum_n(xs), xs)

    x = np.ones(2)
    assert np.allclose(both([x]), 1.0)
    assert np.allclose(ab.batched(lambda x: both([x]), backend="reference")([x]), 1.0)


def test_a_parameter_that_a_cell_gives_to_another_one_is_a_value() -> None:
    """The inner cell differentiates by its argument alone, although the parameter is read elsewhere too."""

    class Held(ab.Module):
        def __init__(self) -> None:
            self.weight = ab.Parameter(np.array([1.0, 2.0]))

        @ab.cell
        def inner(self, x: Any) -> Any:
            return ab.jvp(lambda t: t * t * x, (x,), (0.5 * x,))[1]

        @ab.cell
        def same(self, x: Any) -> Any:
            return x

        @ab.cell
        def outer(self) -> Any:
            return self.inner(self.weight)

        @ab.cell
        def twice(self, x: Any) -> Any:
            return ab.grad(lambda x, y: ab.sum(x * y))(x, self.same(x))

        def run(self, x: Any) -> Any:
            return self.outer(), self.twice(x)

    held, x = Held().astype("float64"), np.array([3.0, 4.0])
    cubes, once = held.run(x)
    assert np.allclose(cubes, [1.0, 8.0])
    assert np.allclose(once, x)
    for found, expected in zip(ab.batched(held.run, backend="reference")([x]), (cubes, once), strict=True):
        assert np.allclose(found[0], expected)


def test_eager_results_stay_when_parameters_change() -> None:
    weight = ab.Parameter(np.ones((2, 3)))
    views = ab.transpose(weight), ab.reshape(weight, (6,)), weight[0], weight[...]
    weight.data[:] = 5.0
    assert all(np.array_equal(view, np.ones(view.shape)) for view in views)


def by_a_number(x: Any, number: Any) -> Any:
    """Add up the gradients by an array and by a number; the number has one if it is a value."""
    by_x, by_number = ab.grad(lambda x, y: ab.sum(x * y), wrt=lambda x, y: (x, y))(x, number)
    return by_x if by_number is None else by_x + by_number


@ab.cell
def of_data(x: Any, number: float = 2.5) -> Any:
    return by_a_number(x, number)


@ab.cell(static=("number",))
def of_a_static_number(x: Any, number: float = 2.5) -> Any:
    return by_a_number(x, number)


@ab.cell
def of_computed(x: Any, number: float) -> Any:
    return by_a_number(x, number * 2.0)


@ab.cell
def of_a_constant(x: Any) -> Any:
    return by_a_number(x, 2.0)


@ab.cell
def of_a_structure(parts: dict[str, Any]) -> Any:
    return by_a_number(parts["x"], parts["numbers"][1])


@ab.cell
def of_calls_inside(x: Any, number: float) -> Any:
    return of_data(x, number) + of_data(x, 2.0) + of_data(x) + of_computed(x, number)


NUMBERS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "data": (lambda x: of_data(x, 3.0), 3.0 + 3.0),
    "data by name": (lambda x: of_data(number=3.0, x=x), 3.0 + 3.0),
    "a default": (of_data, 2.5 + 3.0),
    "an int": (lambda x: of_data(x, 3), 3.0),
    "static": (lambda x: of_a_static_number(x, 3.0), 3.0),
    "a static default": (of_a_static_number, 2.5),
    "computed from data": (lambda x: of_computed(x, 1.5), 3.0 + 3.0),
    "a constant": (of_a_constant, 2.0),
    "in a structure": (lambda x: of_a_structure({"x": x, "numbers": (1, 3.0)}), 3.0 + 3.0),
    "through a call inside": (lambda x: of_calls_inside(x, 3.0), 6.0 + 2.0 + 2.5 + 9.0),
    "outside of cells": (lambda x: by_a_number(x, 3.0), 3.0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_a_value_where_it_is_data_of_a_cell(name: str, dtype: str) -> None:
    """A number passed to a cell has a gradient in every stage. A number that the program holds has none."""
    function, expected = NUMBERS[name]
    x = np.array([1.0, 2.0], dtype)
    assert np.array_equal(function(x), np.full(2, expected))
    assert function(x).dtype == dtype
    assert np.array_equal(ab.batched(function, backend="reference")([x])[0], np.full(2, expected))
