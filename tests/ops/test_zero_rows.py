"""Test every op in a mini-batch without any list elements: inside `ab.each`, with a sum over the same list."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from helpers.programs.gradient_cases import INTERNAL, ROWS, WIDTH, RowsCase
from helpers.programs.op_cases import CASES, OPERATORS, Case
from helpers.runs.recorded import types_of
from helpers.runs.ways import each
from host_device import HostDevice

ALL = (*CASES, *OPERATORS, *INTERNAL)
FIRST = tuple({case.name: case for case in ALL}.values())  # one of each name
COMPILED: list[Callable[[], Any]] = [lambda: Cpu(poison=True)]
if shutil.which("g++") is not None:
    COMPILED.append(lambda: Cuda(poison=True, device=HostDevice()))
TOLERANCE = 1e-10
WALKED = (
    "cross_entropy",
    "lookup",
    "pick",
    "top_k",
    "stack",
    "softmax_n",
    "max_n",
    "matmul stacks",
    "einsum b",
    "einsum h",
)
"""Prefixes of cases that may need a type for each length of the lists."""


class Lists(ab.Module):
    """Applies a case to each element of lists that may be empty.

    Args:
        roles: for each float argument, whether it is a "value" (an element of a list) or a "parameter".
    """

    def __init__(self, case: Case, roles: tuple[str, ...]) -> None:
        rng = np.random.default_rng(0)
        self.case, self.roles = case, roles
        self.factors = [ab.Parameter(np.asarray(case.floats(rng, shape))) for shape in case.shapes]
        self.astype("float64")

    @ab.cell
    def scaled(self, factor: Any, x: Any) -> Any:
        return factor * x

    @ab.cell
    def node(self, x: Any, lists: Any, ids: Any) -> Any:
        total = ab.tanh(x)
        for values, shape in zip(lists, self.case.shapes, strict=True):
            total = total + 0.1 * ab.sum(ab.sum_n(values, shape=shape))

        def of_element(*values: Any) -> Any:
            parts = zip(values, self.factors, self.roles, strict=True)
            out = ab.tanh(1.0 * self.case.compute(*(p if role == "parameter" else v for v, p, role in parts), *ids))
            return ab.sum(out * out) + 0.1 * ab.sum(values[0])

        return total + ab.sum_n(ab.each(of_element, *lists), shape=())

    def loss(self, instance: Any) -> Any:
        x, lists, ids = instance
        parts = zip(self.factors, lists, strict=True)
        return self.node(x, [[self.scaled(factor, value) for value in values] for factor, values in parts], ids)


def draw_instance(case: Case, rng: np.random.Generator, length: int) -> Any:
    """Draw a scalar, a list for each float argument, and ids."""
    drawn = [case.arguments(rng)[0] for _ in range(length)]
    lists = [[floats[k] for floats in drawn] for k in range(len(case.shapes))]
    return np.asarray(rng.standard_normal()), lists, case.arguments(rng)[1]


def check(case: Case, roles: tuple[str, ...], backend: Any) -> None:
    """Compare values with eager ones, and gradients with single instances, also in batches without rows."""
    rng, model = np.random.default_rng(0), Lists(case, roles)
    batched = ab.batched(model.loss, backend=backend, policy="depth")
    instances = [draw_instance(case, rng, length) for length in (0, 0, 2, 0, 1)]
    for chosen in (instances[:2], instances, instances[:1]):
        np.testing.assert_allclose(batched(chosen), [model.loss(one) for one in chosen], rtol=TOLERANCE, atol=TOLERANCE)
        found = {name: np.array(g) for name, g in batched.value_and_grad(chosen, reduce="sum")[1].items()}
        alone = [{n: np.array(g) for n, g in batched.value_and_grad([one])[1].items()} for one in chosen]
        for name, gradient in found.items():
            expected = sum(gradients[name] for gradients in alone)
            np.testing.assert_allclose(gradient, expected, rtol=TOLERANCE, atol=TOLERANCE)
        if chosen is not instances:
            assert not any(np.any(gradient) for gradient in found.values())
    nodes = [node_type for node_type in types_of(batched) if node_type.name == "node"]
    assert len(nodes) == 1 or case.name.startswith(WALKED)


@each("case", FIRST[::3])
def test_ops_of_no_rows(case: Case) -> None:
    check(case, ("value",) * len(case.shapes), Reference(poison=True))


@pytest.mark.slow
@each("case", ALL)
def test_ops_of_no_rows_with_any_arguments_shared(case: Case) -> None:
    for roles in itertools.product(("value", "parameter"), repeat=len(case.shapes)):
        check(case, roles, Reference(poison=True))


@pytest.mark.slow
@each("case", FIRST)
def test_ops_of_no_rows_in_lowered_cells(case: Case) -> None:
    check(case, ("value",) * len(case.shapes), Cpu(poison=True))


@pytest.mark.slow
@pytest.mark.parametrize("make", COMPILED, ids=["cpu", "cuda"][: len(COMPILED)])
def test_ops_of_no_rows_in_compiled_cells(make: Any) -> None:
    for case in FIRST[::6]:
        check(case, ("value",) * len(case.shapes), make())
    for roles in itertools.product(("value", "parameter"), repeat=3):
        check(next(case for case in CASES if case.name == "affine"), roles, make())


# Layers, reductions of mapped values, and arrays without rows.


class Layers(ab.Module):
    """Layers based on products, each applied to the elements of a list."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.linear, self.lstm = ab.Linear(3, 3, rng=rng), ab.LSTMCell(3, 3, rng=rng)
        self.gru, self.norm = ab.GRUCell(3, 3, rng=rng), ab.LayerNorm(3)
        self.astype("float64")

    @ab.cell
    def node(self, x: Any, children: Any) -> Any:
        total = ab.sum_n(children, shape=(3,)) + x
        mapped = [
            ab.each(lambda h: ab.sigmoid(self.linear(h)) * h, children),
            ab.each(lambda h: self.lstm(h, (x, h))[0], children),
            ab.each(lambda h: self.gru(h, x), children),
            ab.each(lambda h: self.norm(h * h), children),
        ]
        for values in mapped:
            total = total + ab.sum_n(values, shape=(3,)) + ab.mean_n(values, shape=(3,))
            total = total + ab.max_n(values, shape=(3,)) + ab.dot_n(ab.softmax_n(values), children, shape=(3,))
            total = total + ab.attend(x, values, children, shape=(3,))
        return total

    def loss(self, tree: Any) -> Any:
        return ab.sum(ab.tanh(self.visit(tree)))

    def visit(self, tree: Any) -> Any:
        x, children = tree
        return self.node(x, [self.visit(child) for child in children])


@each("make", [lambda: Reference(poison=True), lambda: Cpu(poison=True)])
def test_layers_over_lists_without_elements(make: Any) -> None:
    rng, model = np.random.default_rng(1), Layers()

    def tree(*children: Any) -> Any:
        return rng.standard_normal(3), list(children)

    trees = [tree(), tree(tree(), tree(tree())), tree(tree())]
    batched = ab.batched(model.loss, backend=make())
    ab.testing.check_batched(model.loss, batched, trees, TOLERANCE)
    ab.testing.check_grads(batched, trees, model, np.random.default_rng(2))
    assert len([node_type for node_type in types_of(batched) if node_type.name == "node"]) == 1


NEEDING_ROWS = ("max", "max ties", "logsumexp", "one row", "mean", "attend")
CHOOSING = ("chosen", "top_k", "label")


@each("case", [case for case in ROWS if case.name not in NEEDING_ROWS + CHOOSING])
@each("make", [lambda: Reference(poison=True), lambda: Cpu(poison=True)])
def test_arrays_without_rows(case: RowsCase, make: Any) -> None:
    @ab.cell(ragged=("x",))
    def compute(x: Any, q: Any) -> Any:
        return ab.sum(case.compute(x, q))

    rng = np.random.default_rng(0)
    instances = [(rng.standard_normal((n, WIDTH)), rng.standard_normal(WIDTH)) for n in (0, 3, 0)]
    batched = ab.batched(lambda item: compute(*item), module=Layers(), backend=make())
    for chosen in (instances[::2], instances):
        np.testing.assert_allclose(batched(chosen), [compute(*one) for one in chosen], rtol=1e-9, atol=1e-9)
        gradients = batched.value_and_grad(chosen, inputs=True)[2]
        assert [g[0].shape for g in gradients] == [x.shape for x, _ in chosen]


LARGEST: dict[str, Callable[[Any, Any], Any]] = {
    "max": lambda x, q: ab.max(x * q, axis=0),
    "min": lambda x, q: ab.min(x * q, axis=0, keepdims=True),
    "max of all": lambda x, q: ab.max(ab.tanh(x * q)),
    "max of each row": lambda x, q: ab.sum(ab.max(x * q, axis=1)),
    "max_n": lambda x, q: ab.max_n(ab.each(lambda row: row * q, x), shape=(WIDTH,)),
    "min_n": lambda x, q: -ab.max_n(ab.each(lambda row: -row * q, x), shape=(WIDTH,)),
    "max of tuples": lambda x, q: ab.max_n(ab.each(lambda row: (row * q, row @ q), x), shape=((WIDTH,), ()))[0],
    "max of pairs, axis 0": lambda x, q: ab.sum(ab.max((x[1:, None] * q - x) @ q, axis=0)),
    "max of pairs, axis 1": lambda x, q: ab.sum(ab.max((x[:, None] * q - x[1:]) @ q, axis=1)),
    "softmax": lambda x, q: ab.sum(ab.softmax(x * q, axis=0) * x, axis=0),
    "log_softmax": lambda x, q: ab.sum(ab.log_softmax(x * q, axis=0) * x, axis=0),
}


def of_gradients(reduce: Callable[[Any, Any], Any], x: Any, q: Any) -> Any:
    """Reduce the gradients of a reduction, by its rows and by a vector, to a scalar."""
    rows, vector = ab.grad(lambda x, q: ab.sum(reduce(x, q) * q * q), wrt=lambda x, q: (x, q))(x, q)
    return ab.sum(ab.sum(ab.sin(rows) * x + rows * q, axis=0)) + ab.sum(vector * vector)


@each("name", LARGEST)
@each("dtype", ["float64", "float32"])
@each("make", [lambda: Reference(poison=True), lambda: Cpu(poison=True)])
def test_second_derivatives_of_maxima_of_no_rows_are_zero(make: Any, dtype: str, name: str) -> None:
    """A program may differentiate the result of `ab.grad`. Only instances with rows contribute."""
    call = ab.cell(ragged=("x",))(lambda x, q: of_gradients(LARGEST[name], x, q))
    model, rng = Layers().astype(dtype), np.random.default_rng(0)
    batched = ab.batched(lambda item: call(*item), module=model, backend=make())
    items = [(rng.standard_normal((n, WIDTH)), rng.standard_normal(WIDTH)) for n in (0, 3, 1, 0, 2)]
    exact = 1e-9 if dtype == "float64" else 2e-4
    for chosen in (items[::3], items):
        _, _, found = batched.value_and_grad(chosen, inputs=True, reduce="sum")
        for (x, q), (of_x, of_q) in zip(chosen, found, strict=True):
            ((_, alone),) = batched.value_and_grad([(x, q)], inputs=True)[2]
            np.testing.assert_allclose(of_q, alone, rtol=exact, atol=exact)
            assert of_x.shape == x.shape
            if not len(x):
                assert not np.any(of_q)
    if "_n" in name:  # eagerly, there is no maximum of an array without rows
        np.testing.assert_allclose(batched(items), [call(*item) for item in items], rtol=exact, atol=exact)
    if dtype == "float64":
        along = [(rng.standard_normal(x.shape), rng.standard_normal(q.shape)) for x, q in items]

        def total_at(step: float) -> float:
            moved = [(x + step * v, q + step * w) for (x, q), (v, w) in zip(items, along, strict=True)]
            return float(np.sum(batched(moved)))

        slope = sum(np.sum(g * v) for gs, vs in zip(found, along, strict=True) for g, v in zip(gs, vs, strict=True))
        np.testing.assert_allclose(slope, (total_at(1e-6) - total_at(-1e-6)) / 2e-6, rtol=1e-6, atol=1e-6)


@each("case", [case for case in ROWS if case.name in CHOOSING])
@each("is_batched", [False, True])
def test_choosing_among_no_rows_is_refused(case: RowsCase, is_batched: bool) -> None:
    @ab.cell(ragged=("x",))
    def compute(x: Any, q: Any) -> Any:
        return ab.sum(case.compute(x, q))

    def run(instance: Any) -> Any:
        return (
            ab.batched(lambda item: compute(*item), module=Layers())([instance]) if is_batched else compute(*instance)
        )

    applied = {"chosen": "argmax" if is_batched else "max", "label": "lookup" if is_batched else "cross_entropy"}
    message = rf"{applied.get(case.name, case.name)} .*(must be 1 or more, got 0|no elements|at least 1|in 0\.\.-1)"
    with pytest.raises((ab.ShapeError, ab.DataError), match=message):
        run((np.zeros((0, WIDTH)), np.ones(WIDTH)))
