"""Test every op and its slope against extended precision over the whole input range, on both backends.

Limits are in units of the last place (of the result, or of a scale where terms of that size cancel). They are measured
errors, rounded up: the tables say what each op is allowed, in float32 and float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.ops.error_function import ndtr
from helpers.checkers.extended import GELU_SCALE, Array, Wide, distance, edges, erfc, sigmoid, softplus, spread
from helpers.runs.ways import each

BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": Reference,
    "cpu": Cpu,
}
N_DRAWN, N_LONG = 60, 4096
ROOT_HALF = np.sqrt(Wide(0.5))


def lower(x: Array) -> Array:
    """Return the normal distribution function at x."""
    half = erfc(np.minimum(np.abs(x), 200) * ROOT_HALF) / 2
    return np.where(x < 0, half, 1 - half)


def density(x: Array) -> Array:
    return np.asarray(np.exp(-x * x / 2) * GELU_SCALE / 2)


def finite(x: Array) -> Array:
    """Clip infinities, because some limits are products with zero."""
    return np.clip(x, -1e4, 1e4)


def tanh_share(x: Array) -> Array:
    return sigmoid(2 * GELU_SCALE * (x + Wide(0.044715) * x**3))


def gelu_tanh_slope(x: Array) -> Array:
    x = finite(x)
    share = tanh_share(x)
    return np.asarray(share + x * share * (1 - share) * 2 * GELU_SCALE * (1 + 3 * Wide(0.044715) * x * x))


class Unary(NamedTuple):
    """An op of one argument.

    Attributes:
        exact, slope: in extended precision.
        ulp: allowed error in float32 and in float64.
        slope_ulp: allowed error of the slope; `scale` is the size of terms that cancel in it.
        power: additional ulp per unit of an exponent that is rounded.
    """

    name: str
    compute: Callable[[Any], Any]
    exact: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    ulp: tuple[float, float]
    slope_ulp: tuple[float, float] = (1, 1)
    scale: Callable[[Array], Array] | float = 0.0
    power: Callable[[Array], Array] | float = 0.0


def square(x: Array) -> Array:
    """Square x, limited so that it can be an exponent."""
    return np.asarray(np.minimum(x * x, 2000))


UNARY = (
    Unary("neg", lambda x: -x, lambda x: -x, lambda x: -np.ones_like(x), (0.5, 0.5)),
    Unary("exp", ab.exp, np.exp, np.exp, (2, 1), (2, 1)),
    Unary("log", ab.log, np.log, lambda x: 1 / x, (3, 1)),
    Unary("sqrt", ab.sqrt, np.sqrt, lambda x: 0.5 / np.sqrt(x), (0.51, 0.51), (2, 2)),
    Unary("tanh", ab.tanh, np.tanh, lambda x: 1 / np.cosh(x) ** 2, (3, 3), (3, 2), scale=1.0),
    Unary("sigmoid", ab.sigmoid, sigmoid, lambda x: sigmoid(x) * sigmoid(-x), (3, 3), (3, 3), scale=0.25),
    Unary("softplus", ab.softplus, softplus, sigmoid, (4, 3), (3, 3)),
    Unary("relu", ab.relu, lambda x: np.maximum(x, 0) + 0.0, lambda x: np.where(np.isnan(x), 0, x > 0), (0.5, 0.5)),
    Unary("erf", ab.erf, lambda x: np.where(np.abs(x) < 1e-4, x * (1 - x * x / 3) * 2 / np.sqrt(Wide(np.pi)),
          np.sign(x) * (1 - erfc(np.minimum(np.abs(x), 100)))),
          lambda x: 2 / np.sqrt(Wide(np.pi)) * np.exp(-x * x), (3, 2), (4, 3), power=lambda x: square(x)),
    Unary("ndtr", ndtr, lower, density, (6, 12), (4, 3), power=lambda x: square(x) / 2),
    Unary("gelu", ab.gelu, lambda x: np.maximum(x, -200) * lower(x), lambda x: lower(x) + finite(x) * density(x),
          (6, 12), (12, 16), scale=lambda x: np.abs(finite(x)) * density(x) + lower(x), power=lambda x: square(x) / 2),
    Unary("gelu tanh", lambda x: ab.gelu(x, "tanh"), lambda x: np.maximum(x, -200) * tanh_share(x), gelu_tanh_slope,
          (4, 200), (12, 12), scale=lambda x: np.abs(finite(x)) ** 3 * tanh_share(x) + tanh_share(x),
          power=lambda x: np.minimum(np.abs(x) ** 3, 800)),
    Unary("1 / x", lambda x: 1.0 / x, lambda x: 1 / x, lambda x: -1 / x / x, (0.51, 0.51), (2, 2)),
    Unary("x ** 2", lambda x: x**2, lambda x: x * x, lambda x: 2 * x, (0.51, 0.51), (1, 1)),
    Unary("x ** 0.5", lambda x: x**0.5, np.sqrt, lambda x: 0.5 / np.sqrt(x), (1, 1), (3, 2)),
    Unary("x ** -1", lambda x: x**-1, lambda x: 1 / x, lambda x: -1 / x / x, (1, 1), (3, 3)),
    Unary("x ** -0.5", lambda x: x**-0.5, lambda x: 1 / np.sqrt(x + 0.0), lambda x: -0.5 / np.sqrt(x) / x, (2, 2),
          (4, 3)),
    Unary("x ** 3", lambda x: x**3, lambda x: x * x * x, lambda x: 3 * x * x, (1, 1), (2, 2)),
)  # fmt: skip


class Shifted(ab.Module):
    """Ops at x, and at x + p for a parameter p = 0, whose gradient is the slope."""

    def __init__(self, dtype: str, size: int) -> None:
        self.shifts = [ab.Parameter(np.zeros(size)) for _ in UNARY]
        self.astype(dtype)

    @ab.cell
    def values(self, x: Any) -> tuple[Any, ...]:
        return tuple(one.compute(x) for one in UNARY)

    @ab.cell
    def total(self, x: Any) -> Any:
        return ab.sum_n([ab.sum(one.compute(x + p)) for one, p in zip(UNARY, self.shifts, strict=True)])


@cache
def computed(backend: str, dtype: str) -> tuple[Array, list[Array]]:
    x = spread(np.dtype(dtype).type, N_DRAWN)
    model = Shifted(dtype, x.size)
    values = ab.batched(model.values, module=model, backend=BACKENDS[backend]())([x, x[::-1]])
    return x, [np.asarray(one[0]) for one in values]


@cache
def slopes(backend: str, dtype: str) -> tuple[Array, list[Array]]:
    x = spread(np.dtype(dtype).type, N_DRAWN)
    model = Shifted(dtype, x.size)
    loss = ab.batched(model.total, module=model, backend=BACKENDS[backend]())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("autobatch.engine.results"), "check_finite", lambda losses, first: None)
        _, grads = loss.value_and_grad([x])
    return x, [np.array(gradient) for gradient in grads.values()]


ON = [(backend, dtype) for backend in ("reference", "cpu") for dtype in ("float32", "float64")]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("backend", "dtype"), ON)
@each("number", range(len(UNARY)))
def test_values(number: int, backend: str, dtype: str) -> None:
    x, values = computed(backend, dtype)
    one = UNARY[number]
    with np.errstate(all="ignore"):
        errors = distance(values[number], one.exact(x.astype(Wide)), signed=one.name != "relu")
    if one.name == "x ** -0.5":
        errors[x == -np.inf] = 0.0  # a power is 0 there, a square root NaN
    check(x, values[number], errors, np.full(x.shape, one.ulp[dtype == "float64"]))


@pytest.mark.cases(2)
@pytest.mark.parametrize(("backend", "dtype"), ON)
@each("number", range(len(UNARY)))
def test_slopes(number: int, backend: str, dtype: str) -> None:
    x, found = slopes(backend, dtype)
    one, wide = UNARY[number], x.astype(Wide) + 0.0  # as x + p has no -0
    with np.errstate(all="ignore"):
        scale = one.scale(wide) if callable(one.scale) else one.scale
        errors = distance(found[number], one.slope(wide), scale, signed=False)
        grows = one.power(wide) if callable(one.power) else one.power
    if one.name in ("x ** 0.5", "x ** -0.5"):
        errors[x == -np.inf] = 0.0
    limit = one.slope_ulp[dtype == "float64"] + np.nan_to_num(np.asarray(grows, np.float64)) + np.zeros(x.shape)
    check(x, found[number], errors, limit)


def check(x: Array, found: Array, errors: Array, limit: Array) -> None:
    """Check errors against limits; report the worst excess."""
    with np.errstate(all="ignore"):
        worst = int(np.argmax(errors / limit))
    assert (errors <= limit).all(), f"{errors[worst]:.3g} ulp at {x[worst]!r}, which gives {found[worst]!r}"


BINARY: tuple[tuple[str, Callable[[Any, Any], Any], Callable[[Array, Array], Array], float], ...] = (
    ("add", lambda x, y: x + y, lambda x, y: x + y, 0.5),
    ("sub", lambda x, y: x - y, lambda x, y: x - y, 0.5),
    ("mul", lambda x, y: x * y, lambda x, y: x * y, 0.51),
    ("div", lambda x, y: x / y, lambda x, y: x / y, 0.51),
    ("pow", lambda x, y: x**y, lambda x, y: x**y, 1.0),
    ("squared_error", ab.squared_error, lambda x, y: (x - y) * (x - y), 2.0),
    ("where", ab.where, lambda x, y: np.where(x != 0, y, x), 0.0),
    ("less", lambda x, y: x < y, lambda x, y: (x < y).astype(Wide), 0.0),
    ("equal", lambda x, y: ab.equal(x, y), lambda x, y: (x == y).astype(Wide), 0.0),
)


@ab.cell
def of_two(x: Any, y: Any) -> tuple[Any, ...]:
    return tuple(ab.where(x, y, x) if compute is ab.where else compute(x, y) for _, compute, _, _ in BINARY)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("backend", "dtype"), ON)
def test_two_arguments(backend: str, dtype: str) -> None:
    some = np.concatenate([edges(dtype)[::2], edges(dtype)[1::5], np.array([2.0, 3.0, -1.0, -0.7], dtype)])
    x, y = (np.ravel(grid) for grid in np.meshgrid(some, some))
    found = ab.batched(lambda pair: of_two(*pair), module=Shifted(dtype, 1), backend=BACKENDS[backend]())([(x, y)])
    for (name, _, exact, ulp), values in zip(BINARY, found, strict=True):
        with np.errstate(all="ignore"):
            expected = exact(x.astype(Wide), y.astype(Wide))
            errors = distance(np.asarray(values[0]), expected, signed=name not in ("add", "sub"))
        assert (errors <= ulp).all(), (
            name,
            [(x[i], y[i], values[0][i], expected[i]) for i in np.flatnonzero(errors > ulp)][:4],
        )


LOGITS = {
    "near": [0.3, -1.2, 0.7, 2.0, 0.0],
    "near 1e4": [1e4, 1e4 - 1, 1e4 - 2, 1e4 - 0.5, 1e4 - 5],
    "equal at 1e8": [1e8] * 5,
    "two at 1e8": [1e8, 1e8, -1e8, 0.0, -np.inf],
    "below -1e8": [-1e8, -1e8 - 64, -1e8 + 32, -2e8, -3e8],
    "huge": [1e38, -1e38, 0.0, 1e38, 1.0],
    "one is -inf": [0.0, -np.inf, 1.0, 2.0, 3.0],
    "all but one are -inf": [-np.inf, -np.inf, 5.0, -np.inf, -np.inf],
    "one dominates": [0.0, 100.0, -100.0, 50.0, -50.0],
    "tiny": [1e-40, -1e-40, 0.0, -0.0, 1e-30],
    "with NaN": [0.0, np.nan, 1.0, 2.0, 3.0],
}
LABEL = 0


@ab.cell
def of_logits(x: Any, label: int) -> tuple[Any, ...]:
    """Apply functions of logits, by one op and by their formula."""
    peak = ab.max(x)
    total = ab.sum(ab.exp(x - peak))
    return ab.log_softmax(x), ab.cross_entropy(x, label), ab.softmax(x), x - peak - ab.log(total), peak + ab.log(total)


def exact_of_logits(x: Array) -> tuple[Array, ...]:
    below = x - x.max()
    log_total = np.log(np.exp(below).sum())
    log_softmax = below - log_total
    return log_softmax, np.asarray(-log_softmax[LABEL]), np.exp(log_softmax), log_softmax, x.max() + log_total


def errors_of_logits(x: Array, found: Sequence[Any]) -> list[float]:
    """Return the worst errors, in units of the last place; for logarithms, of numbers of at least 1."""
    errors = []
    with np.errstate(all="ignore"):
        for kind, (values, exact) in enumerate(zip(found, exact_of_logits(x.astype(Wide)), strict=True)):
            is_share = kind == 2
            error = distance(np.atleast_1d(values), np.atleast_1d(exact), 0.0 if is_share else 1.0, signed=False)
            rounded = np.nan_to_num(np.abs(np.log(exact)), posinf=0) if is_share else 0.0  # the exponents are rounded
            errors.append(float(np.max(error - rounded)))
    return errors


@pytest.mark.cases(2)
@pytest.mark.parametrize(("backend", "dtype"), ON)
def test_logits_of_any_size(backend: str, dtype: str) -> None:
    """x - peak must be computed first and is exact: 1e8 - (1e8 + log 2) would be 0, but -0.69 is right."""
    run = ab.batched(lambda x: of_logits(x, LABEL), module=Shifted(dtype, 1), backend=BACKENDS[backend]())
    instances = [np.array(x, dtype) for x in LOGITS.values()]
    for together in (64 * instances, *([x] for x in instances)):
        found = run(together)
        for at, (name, x) in enumerate(zip(LOGITS, together, strict=False)):
            errors = errors_of_logits(x, [np.asarray(values)[at] for values in found])
            assert max(errors) <= 4, (name, errors)


@ab.cell
def of_row(x: Any) -> tuple[Any, ...]:
    """Apply sums and functions of sums."""
    return ab.layer_norm(x, np.ones(N_LONG), np.zeros(N_LONG)), ab.sum(x), ab.mean(x), ab.sum(x * x)


def exact_of_row(x: Array) -> tuple[Any, ...]:
    centred = x - x.mean()
    return centred / np.sqrt((centred**2).mean() + 1e-5), x.sum(), x.mean(), (x * x).sum()


@pytest.mark.cases(1)
@pytest.mark.parametrize(("backend", "dtype"), ON)
def test_long_rows(backend: str, dtype: str) -> None:
    """Sums of n terms are within n / 2 units of the sum of magnitudes, and layer_norm ignores a large mean."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal(N_LONG)
    rows = {
        "normal": draws, "at 0.1": np.full(N_LONG, 0.1), "at 1e8": np.full(N_LONG, 1e8 + 8), "far": 1e6 + 1e3 * draws,
        "tiny": 1e-30 * draws,
    }  # fmt: skip
    run = ab.batched(of_row, module=Shifted(dtype, 1), backend=BACKENDS[backend]())
    instances = [row.astype(dtype) for row in rows.values()]
    for at, (name, values) in enumerate(zip(rows, zip(*run(instances), strict=True), strict=True)):
        x = instances[at].astype(Wide)
        exact = exact_of_row(x)
        sizes = 1.0 + np.abs(x).max() / np.sqrt(x.var() + 1e-5), np.abs(x).sum(), np.abs(x).mean(), exact[3]
        for kind, limit in enumerate((20, N_LONG / 2, N_LONG / 2, N_LONG / 2)):
            errors = distance(np.atleast_1d(values[kind]), np.atleast_1d(exact[kind]), sizes[kind], signed=False)
            assert errors.max() <= limit, (name, kind, errors.max())
