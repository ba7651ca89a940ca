"""Random programs with derivatives run correctly in every way, and programs that once failed stay correct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.base import Backend
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from fuzzing.campaign import run_one
from fuzzing.cells import draw_program
from fuzzing.checks import draw_way, find_failure
from helpers.runs.ways import each

PER_TEST, N_PROGRAMS, N_ON_CUDA = 10, 3000, 20
BACKENDS: dict[str, Callable[[], Backend]] = {
    "reference": lambda: Reference(poison=True),
    "cpu": lambda: Cpu(poison=True),
}
DIM = 2


@pytest.mark.cases(3, 30)
@pytest.mark.parametrize("start", range(0, N_PROGRAMS, PER_TEST))
def test_programs_with_derivatives_are_right(start: int) -> None:
    for seed in range(start, start + PER_TEST):
        found = run_one(seed, ("reference", "cpu"), shrink_seconds=0.0, derivatives=True)
        assert found is None or found.is_set_apart


@pytest.mark.cases(0, 3)
@pytest.mark.parametrize("seed", range(N_ON_CUDA))
def test_programs_with_derivatives_are_right_on_cuda(seed: int) -> None:
    assert find_failure(draw_program(seed, derivatives=True), draw_way(seed), ["reference", "cuda"]) is None


class Model(ab.Module):
    """Float64 parameters and cells of the programs below."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.w, self.table = ab.Parameter(rng.standard_normal(DIM)), ab.Parameter(rng.standard_normal((5, DIM)))
        self.astype("float64")

    @ab.cell
    def own(self) -> Any:
        """Return a parameter unchanged."""
        return self.w

    @ab.cell
    def twice(self, x: Any) -> Any:
        """Return a value twice, and the argument."""
        y = ab.tanh(x)
        return y, y, x

    @ab.cell
    def reads(self, x: Any) -> Any:
        """Return the gradient with respect to y, which is zero: the function reads x directly."""
        return ab.grad(lambda y: ab.sum(ab.tanh(x)) + 0.0 * ab.sum(y))(x)

    @ab.cell
    def of_list(self, xs: Any) -> Any:
        """Use the gradient with respect to a list of any length, which may be empty."""
        gradients = ab.grad(lambda xs: ab.sum(ab.sum_n([ab.sin(x) * self.w for x in xs], shape=(DIM,))))(xs)
        return ab.sum_n([ab.sin(g) for g in gradients], shape=(DIM,))

    @ab.cell
    def of_elements(self, v: Any, xs: Any) -> Any:
        """Use a gradient per element of a list: with respect to a value shared by all, and to the element."""
        by_value = [ab.grad(lambda v, x=x: ab.sum(ab.sin(v * x)))(v) for x in xs]
        by_element = ab.each(lambda x: ab.grad(lambda t: ab.sum(t * t * v))(x), xs)
        return ab.sum_n([*by_value], shape=(DIM,)) * ab.sum_n(by_element, shape=(DIM,))

    @ab.cell
    def of_one_of_two(self, x: Any, y: Any, xs: Any) -> Any:
        """Use gradients with respect to one of two arguments, and to each element of a list, which may be one value."""
        gradients = ab.grad(lambda xs: ab.sum(xs[0] * xs[0] * xs[1]))(xs)
        return ab.grad(lambda x, y: ab.sum(x * x * y))(x, y) * gradients[0] + gradients[1]

    @ab.cell(static=("power",))
    def of_part(self, pair: Any, power: int) -> Any:
        """Differentiate with respect to part of an argument, maybe a parameter, in a cell with a static argument."""
        return ab.grad(lambda x: ab.sum(x**power * pair[1] * self.w))(pair[1])

    @ab.cell
    def beside_ints(self, x: Any, numbers: Any) -> Any:
        """Differentiate with respect to all values in an argument; ints have no derivative."""
        tangents = {"x": x, "numbers": (None, None)}
        _, found = ab.hvp(lambda given: ab.sum(given["x"] ** 3), ({"x": x, "numbers": numbers},), (tangents,))
        return found[0]["x"] * numbers[0]

    @ab.cell
    def drops_constants(self, x: Any) -> Any:
        """Apply dropout to a number that is already known."""
        value, _ = ab.value_and_grad(lambda y: ab.sum(ab.tanh(y)))(np.full(DIM, 0.5))
        return ab.dropout(value, 0.0) * x

    @ab.cell(ragged=("x",))
    def moves(self, x: Any) -> Any:
        """Put a row before the others; the gradient reads no row of the result."""
        return ab.concat([x[-1][None] * self.w, x], axis=0)

    @ab.cell
    def attends(self, keys: Any, values: Any) -> Any:
        """Attend over lists of one length whose values have other shapes."""
        weights = ab.softmax_n(ab.each(lambda k: ab.sum(k * self.w), keys))
        return ab.dot_n(weights, values, shape=(DIM,))

    @ab.cell
    def walks(self, xs: Any) -> Any:
        """Iterate over a list, with a condition on its length only."""
        return (ab.logsumexp_n([ab.softplus(x) for x in xs]) if len(xs) else np.zeros(DIM)) * self.w

    @ab.cell
    def looks_up(self, x: Any) -> Any:
        """Look up rows of a table by constant ids."""
        rows = ab.lookup(self.table, np.array([0, 2, 0]))
        return ab.sum(rows * rows) * ab.sum(x)


def pull_in_another(model: Model, x: Any) -> Any:
    """Call a pullback inside another derivative."""
    _, pull = ab.vjp(lambda y: ab.sin(y) * model.w, x)
    return ab.sum(ab.grad(lambda g: ab.sum(pull(g)[0] * g))(x * 0.5))


def identical(model: Model, x: Any) -> Any:
    """Differentiate by one of several equal results, by a parameter that a cell returned, and by two zero gradients."""
    one, other, same = model.twice(x)
    first = ab.grad(lambda a: ab.sum(a * a * other * same))(one)
    own = ab.grad(lambda y: ab.sum(y * model.own() * model.w))(model.own())
    zeros = ab.grad(lambda a, b: ab.sum(x), wrt=lambda a, b: (a, b))(one, other)
    both = ab.grad(lambda a, b: ab.sum(ab.sin(a + 1.0) * b + a), wrt=lambda a, b: (a, b))(*zeros)
    return ab.sum(first * own) + ab.sum(both[0]) + ab.sum(both[1]) + ab.sum(model.of_one_of_two(one, one, [x, x]))


def constants(model: Model, x: Any) -> Any:
    """Differentiate functions that return arrays, parameters and their own arguments."""
    value, tangents = ab.jvp(lambda y: (y, model.w, x, np.ones(DIM)), (x,), (x * 2.0,))
    _, pull = ab.vjp(lambda y: model.w, x, wrt=lambda y: (model.w, y))
    of_w, of_y = pull(x)
    return sum(ab.sum(t * v) for t, v in zip(tangents, value, strict=True)) + ab.sum(of_w * x + of_y)


def scalars(model: Model, x: Any) -> Any:
    """Differentiate scalars in structures and along tangents."""
    total = ab.sum(x)
    pair = ab.grad(lambda p: p[0] * p[0] * p[1])((total, ab.mean(x)))
    found = ab.hvp(lambda t: t**3, (np.asarray(0.5),), (np.float64(2.0),))
    return pair[0] * pair[1] + found[0][0] * found[1][0] * total


def conditions(model: Model, x: Any) -> Any:
    """Differentiate conditions that are combined."""
    return ab.sum(ab.grad(lambda y: ab.sum(ab.where(~(1 * y > 0.1) | (y * 2.0 > 0.9), y * y, 0.5 * y)))(x))


def of_arguments(model: Model, x: Any) -> Any:
    """Differentiate in cells by arguments: parameters, with static arguments and ints; and constants."""
    parts = model.of_part((x, model.w), 2), model.beside_ints(x, (2, 3)), model.drops_constants(x)
    return ab.sum(parts[0] * parts[1]) + ab.sum(parts[2])


def of_rows(model: Model, x: Any) -> Any:
    """Differentiate by an array that is read by rows, as another function's result; and by rows that a cell moves."""
    rows = np.arange(4.0).reshape(2, DIM) / 4

    def inner(rows: Any) -> Any:
        return ab.grad(lambda rows: ab.sum(ab.sin(rows[0]) * rows[1] * x))(rows)

    _, pull = ab.vjp(inner, rows)
    (found,) = pull(rows + 1.0)
    gradient = ab.grad(lambda rows: ab.sum(ab.tanh(model.moves(rows)) * x))(rows)
    return sum(ab.sum(ab.sin(row)) for row in (*found, *gradient))


def in_lists(model: Model, x: Any) -> Any:
    """Differentiate in cells by lists and by elements of lists."""
    lists = [[x, x * 2.0][:n] for n in range(3)]
    return sum(ab.sum(model.of_list(xs)) + ab.sum(model.of_elements(x, xs)) for xs in lists) + ab.sum(model.reads(x))


def along_lists(model: Model, x: Any) -> Any:
    """Take tangents of cells over two lists of one length, of a parameter at each edge, and with an empty list."""
    _, first = ab.jvp(lambda k: model.attends([k, x, x], [x, x, x]), (x,), (x * 0.5,))
    _, second = ab.jvp(
        lambda y: model.attends([x, x * y, x], [x, y, x]), (x,), (x, x * 2.0), wrt=lambda y: (y, model.w)
    )
    _, third = ab.hvp(lambda y: ab.sum(model.walks([y, x, y]) * model.walks([])), (x,), (x,))
    return ab.sum(first * second) + ab.sum(third[0])


def as_tangents(model: Model, x: Any) -> Any:
    """Use a parameter as a tangent and as a gradient."""
    _, products = ab.hvp(lambda y: ab.sum(ab.sin(y) * x), (x,), (model.w,))
    _, pull = ab.vjp(ab.tanh, x)
    return ab.sum(products[0] * pull(model.w)[0])


def tables(model: Model, x: Any) -> Any:
    """Differentiate by a table, whose gradient is read at the same rows again."""
    of_table = ab.grad(model.looks_up, wrt=lambda x: (model.table, x))(x)
    return ab.sum(ab.sin(of_table[0])) + ab.sum(of_table[1])


PROGRAMS = [
    pull_in_another, identical, constants, scalars, conditions, of_arguments, of_rows, in_lists, along_lists,
    as_tangents, tables,
]  # fmt: skip


@pytest.mark.usefixtures("_checked")
@each("program", PROGRAMS)
def test_small_programs(program: Callable[[Model, Any], Any]) -> None:
    """Batched results equal eager ones; gradients of parameters and arrays agree with slopes of the eager function."""
    model, rng = Model(), np.random.default_rng(1)
    xs = [rng.standard_normal(DIM) for _ in range(3)]

    def loss(x: Any) -> Any:
        return program(model, x)

    for make in BACKENDS.values():
        run = ab.batched(loss, module=model, backend=make())
        ab.testing.check_batched(loss, run, xs, 1e-10)
        ab.testing.check_grads(run, xs, model, rng)
        _, _, inputs = run.value_and_grad(xs, reduce="sum", inputs=True)
        for x, gradient in zip(xs, inputs, strict=True):
            along = rng.standard_normal(DIM)
            slope = (float(loss(x + 1e-5 * along)) - float(loss(x - 1e-5 * along))) / 2e-5
            np.testing.assert_allclose(np.sum(gradient * along), slope, rtol=1e-6, atol=1e-6)
