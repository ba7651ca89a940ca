"""Test data of every dtype: ops and operators agree eagerly and batched, also at the limits of the dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from helpers.programs.gradient_cases import INTERNAL
from helpers.programs.op_cases import CASES, OPERATORS, Case
from helpers.runs.ways import each

DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16")
APART = ("assemble", "slice", "transpose", "norm")  # internal cases
NAMED: dict[str, Case] = {
    case.name: case for case in (*CASES, *OPERATORS, *INTERNAL) if not case.name.startswith(APART)
}
BACKENDS = (lambda: Reference(poison=True), lambda: Cpu(poison=True))
NARROW = ("bool", "uint8", "int32", "float16")


def changed_in_place(x: Any, y: Any) -> Any:
    before = x
    x *= 2
    x += y
    return x - before


METHODS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, y: x.sum() * y.sum(axis=0),
    "mean": lambda x, y: x.mean() - y.mean(),
    "max": lambda x, y: x.max() * y.max(axis=0),
    "min": lambda x, y: x.min() - y.max(),
    "elements": lambda x, y: x[0] * y[1] * y[-1] - x[2],
    "iteration": lambda x, y: sum(x) * sum(x[1:]),
    "sum of one": lambda x, y: sum(y[1:2]) - x[0] - x[1],
    "transposed": lambda x, y: x.T @ y.T - x.reshape(3) * 2,
    "views": lambda x, y: ab.reshape(x, (3, 1)) * ab.transpose(ab.stop_gradient(y)) - x[::-1],
    "in place": changed_in_place,
    "negative power": lambda x, y: (x + 1.5) ** -y,
    "int power": lambda x, y: x**2 * y**3,
    "numbers": lambda x, y: 300 * x - 70_000 * y,
    "abs": lambda x, y: abs(x),
    "conditions": lambda x, y: ab.where((x > y) & ~(x == y), x, -y),
    "a number": lambda x, y: x * x[1] / 7,
    "numpy": lambda x, y: np.add(x, y) * np.multiply(x, y) - np.subtract(x, y) + np.negative(x) + np.maximum(x, y),
    "smooth": lambda x, y: np.tanh(x) + np.exp(-abs(x)) * np.sin(y) + np.sqrt(abs(y)) * np.cos(x),
}


class Precise(ab.Module):
    """Makes cells compute in float64."""

    def __init__(self) -> None:
        self.scale = ab.Parameter(np.ones(()))
        self.astype("float64")

    @ab.cell
    def of_case(self, name: Any, floats: Any, ints: Any) -> Any:
        return NAMED[name].compute(*floats, *ints) * self.scale

    @ab.cell
    def of_pair(self, method: Any, x: Any, y: Any) -> Any:
        return METHODS[method](x, y) * self.scale


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Draw data, with many numbers at the limits of the dtype."""
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.6)
    if dtype == "float16":
        return np.asarray(rng.choice([-200.0, 300.0, 0.1, 1e-4, 7.0], shape)).astype(dtype)
    limits = np.iinfo(dtype if dtype != "int64" and dtype != "uint32" else np.int32)  # a batch refuses larger ones
    return np.asarray(
        rng.choice(
            [max(limits.min, -limits.max if dtype[0] == "i" else 0), limits.max, 0, 1, 3, limits.max // 2 + 1], shape
        )
    ).astype(dtype)


def check(model: Precise, call: Callable[..., Any], instances: list[Any], backend: Any) -> None:
    """Compare eager results with those of a batch."""
    with np.errstate(all="ignore"):
        expected = [call(*instance) for instance in instances]
        found = ab.batched(lambda instance: call(*instance), module=model, backend=backend)(instances)
    finite = np.abs(np.stack(expected)[np.isfinite(expected)])
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-12, atol=1e-15 * np.max(finite, initial=1e-280))


@pytest.mark.slow
@each("dtype", DTYPES)
@pytest.mark.parametrize("make", BACKENDS, ids=["reference", "cpu"])
def test_ops_of_data_compute_alike(make: Callable[[], Any], dtype: str) -> None:
    rng, model = np.random.default_rng(0), Precise()
    for case in NAMED.values():
        instances = [
            (case.name, tuple(draw(rng, shape, dtype) for shape in case.shapes), tuple(case.arguments(rng)[1]))
            for _ in range(3)
        ]
        try:
            check(model, model.of_case, instances, make())
        except Exception as error:
            error.add_note(f"in case {case}")
            raise


@each("dtype", NARROW)
@each("method", METHODS)
@each("make", BACKENDS)
def test_operators_and_methods_of_data_compute_alike(make: Callable[[], Any], method: str, dtype: str) -> None:
    rng, model = np.random.default_rng(0), Precise()
    instances = [(method, draw(rng, (3,), dtype), draw(rng, (3,), dtype)) for _ in range(4)]
    check(model, model.of_pair, instances, make())


@each("compute", [lambda w, x: w @ x, lambda w, x: ab.outer(x * 1, w[0]), lambda w, x: ab.dot(w[0], x)])
def test_products_of_small_ints_do_not_wrap_in_a_batch(compute: Callable[..., Any]) -> None:
    matrix, row = np.array([[2**30, 2**30], [1, 2]], np.int32), np.array([4, 8], np.int32)
    call = ab.cell(lambda w, x: compute(w, x))
    (found,) = ab.batched(lambda item: call(*item), backend="reference")([(matrix, row)])
    np.testing.assert_allclose(found, call(matrix, row))


@each("dtype", DTYPES)
def test_numbers_of_any_dtype_are_data(dtype: str) -> None:
    call = ab.cell(lambda x, y: (x * y + x) * y)
    kind = np.dtype(dtype).type
    for instance in ((kind(1), np.array(1, dtype)), (np.array(0, dtype), np.full(2, 1, dtype))):
        found = ab.batched(lambda item: call(*item), backend="reference")([instance, instance])
        np.testing.assert_allclose(found, [call(*instance)] * 2)


@each("number", [np.bool_(True), np.uint8(200), np.int8(-128)])
def test_scalars_of_numpy_compute_alike(number: Any) -> None:
    @ab.cell
    def combined(x: Any, y: Any) -> Any:
        return x + y, x * y - 3.0 * x

    def function(pair: Any) -> Any:
        return list(combined(*pair))

    found = ab.batched(function, backend="reference")([(number, number)])[0]
    np.testing.assert_allclose(found, ab.eager(function, (number, number)))
    np.testing.assert_allclose(found[0], 2.0 * float(number))


PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "dot": np.dot,
    "dot of an array": lambda x, y: np.dot(x, np.asarray(y)),
    "dot of floats": lambda x, y: np.dot(x, np.asarray(y, np.float32)),
    "method": lambda x, y: x.dot(y),
    "inner": np.inner,
    "outer": np.outer,
    "tensordot": lambda x, y: np.tensordot(x, y, axes=([0], [0])),
    "einsum": lambda x, y: np.einsum("i,i->", x, y),
    "convolve": lambda x, y: np.convolve(v=y, a=x),
}


@each("name", PRODUCTS)
@each("dtype", ["bool", "uint8", "int8"])
def test_products_of_numpy_compute_with_floats(name: str, dtype: str) -> None:
    x, y = (draw(np.random.default_rng(seed), (3,), dtype) for seed in range(2))

    @ab.cell
    def product(a: Any, b: Any) -> Any:
        return PRODUCTS[name](a, b)

    found = ab.eager(product, x, y)
    assert np.asarray(found).dtype.kind == "f"
    np.testing.assert_allclose(found, PRODUCTS[name](x.astype(float), y.astype(float)))


CONDITIONS: dict[str, Callable[[Any], Any]] = {
    "a function": lambda x: np.exp(x > 0.0) * x,
    "a root": lambda x: np.sqrt((x > 0.0) & (x < 5.0)) * 3.0,
    "a power": lambda x: (x > 0.0) ** 2 * 200 * x,
    "sums of powers": lambda x: sum([(x > 0.0) ** 2 for _ in range(200)]) * x,
    "products": lambda x: ~((x > 0.0) * (x < 2.0)) * x,
}


@each("name", CONDITIONS)
def test_conditions_compute_with_floats(name: str) -> None:
    """NumPy computes functions of bools in float16 and int8."""

    @ab.cell
    def compute(x: Any) -> Any:
        return CONDITIONS[name](x)

    model: Any = ab.Module()
    model.unit = ab.Parameter(np.ones(1))
    x = np.array([1.0, 3.0, -2.0])
    found = ab.batched(compute, module=model.astype("float64"), backend="reference")([x])[0]
    np.testing.assert_allclose(ab.eager(compute, x), found, rtol=1e-15)
