"""The error function, the normal distribution function, and gelu, which is computed from it.

The kernels compute in float64 for every dtype. A tail of the distribution is exp(-m**2 / 2) times a ratio of
polynomials, and near 0 the error function is x times a polynomial (`tools/fit_erf.py`). Compiled kernels do the same in
`autobatch.compiler.llvm.vectormath.normal`. Tails have no cancellation, and infinity is never multiplied by zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autobatch.errors import DataError
from autobatch.ops.define import Array, Op, Value, define_elementwise, of_values
from autobatch.ops.elementwise import exp, sigmoid, where
from autobatch.ops.expression import call

GELU_SCALE, GELU_CUBE = math.sqrt(2.0 / math.pi), 0.044715  # Hendrycks and Gimpel 2016, the tanh form
FORMS = ("none", "tanh")
ROOT_2 = math.sqrt(2.0)
ERF_IS_ONE, NDTR_IS_ZERO, TANH_IS_ONE = 6.0, 39.0, 22.0  # bounds of |x|: beyond, the functions are constant
FLAT = 40.0**2  # a bound of x * x: beyond, the slope of gelu is 0 or 1

# coefficients from tools/fit_erf.py, lowest power first
# ABOVE / BELOW is the ratio of a tail to its exponential, and NEAR the factor of x near 0.
ABOVE = (
    1.0, 1.6536296874939465, 1.3556374178214006, 0.7118439920103898, 0.26265563828172467, 0.07083195869611272,
    0.014118976775316613, 0.002056490569144688, 0.00021025321944015066, 1.3719047647141322e-05, 4.3905229473548386e-07,
)  # fmt: skip
BELOW = (
    1.0, 2.451514248296812, 2.8116627871256656, 1.9954307161611842, 0.975956061729985, 0.34636400665453543,
    0.09131773565137485, 0.017957925979396126, 0.002594622980132897, 0.00026406360278536945, 1.7194276366695857e-05,
    5.50270448012672e-07,
)  # fmt: skip
NEAR = (
    1.1283791670955126, -0.37612638903183543, 0.11283791670945006, -0.02686617064323777, 0.0052239776071164225,
    -0.0008548325975389677, 0.00012055294904839317, -1.4924736907412967e-05, 1.6447424703242633e-06,
    -1.6208483801347776e-07, 1.372006454468374e-08, -7.795898823363304e-10,
)  # fmt: skip


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    total = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        total = total * x + coefficient
    return total


def _bounded(xp: Any, x: Array, bound: float) -> Array:
    """Return the magnitudes of numbers as float64, at most `bound`; NaN stays."""
    magnitude = xp.abs(x).astype("float64")
    return xp.where(magnitude > bound, bound, magnitude)


def _tail(xp: Any, m: Array, factor: float, times: Any) -> Array:
    """Compute `times` * erfc(sqrt(factor) * m) for m >= 0, where factor is 1 or 1/2."""
    x = m * ROOT_2 if factor == 1.0 else m
    # m**2 = high**2 + (m - high) * (m + high): rounding m**2 itself would lose digits of exp(-m**2) in the tail
    high = m.astype("float32").astype("float64")  # its square is exact
    power = xp.exp(high * high * -factor) * xp.exp((m - high) * (m + high) * -factor)
    return _polynomial(x, ABOVE) / _polynomial(x, BELOW) * times * power


def erf_of(xp: Any, x: Array) -> Array:
    """Compute the error function, in float64."""
    z = _bounded(xp, x, ERF_IS_ONE)
    result = xp.where(z < 1.0, z * _polynomial(z * z, NEAR), 1.0 - _tail(xp, z, 1.0, 1.0))
    return xp.where(x < 0.0, -result, xp.where(z == 0.0, x, result))  # x itself keeps the sign of -0.0


def ndtr_of(xp: Any, x: Array) -> Array:
    """Compute the normal distribution function of x, in float64."""
    lower = _tail(xp, _bounded(xp, x, NDTR_IS_ZERO), 0.5, 0.5)
    return xp.where(x < 0.0, lower, 1.0 - lower)


def gelu_of(xp: Any, x: Array) -> Array:
    """Compute x times the normal distribution function of x, in float64; the result at -infinity is the limit, 0."""
    m, is_lower = _bounded(xp, x, NDTR_IS_ZERO), x < 0.0
    # Below 0 the tail is multiplied by the bounded m instead of x, so that x = -infinity gives 0 and not NaN.
    lower = _tail(xp, m, 0.5, xp.where(is_lower, 0.5 * m, 0.5))
    return xp.where(is_lower, -lower, x * (1.0 - lower))


def gelu_tanh_of(xp: Any, x: Array) -> Array:
    """Compute 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x**3), as x * sigmoid(2 u), in float64."""
    m, is_lower = _bounded(xp, x, TANH_IS_ONE), x < 0.0
    # The exponent is at most 0, so nothing overflows.
    power = xp.exp((m + GELU_CUBE * m * m * m) * (-2.0 * GELU_SCALE))
    return xp.where(is_lower, m * power, x) / xp.where(is_lower, -1.0 - power, 1.0 + power)


def _erf(xp: Any, x: Array, out: Array) -> None:
    out[...] = erf_of(xp, x)


def _ndtr(xp: Any, x: Array, out: Array) -> None:
    out[...] = ndtr_of(xp, x)


def _gelu(xp: Any, x: Array, out: Array) -> None:
    out[...] = gelu_of(xp, x)


def _gelu_tanh(xp: Any, x: Array, out: Array) -> None:
    out[...] = gelu_tanh_of(xp, x)


def _gelu_pullback(g: Any, out: Any, x: Any) -> tuple[Any]:
    # Far from 0, x times its density is 0, but infinity times 0 would be NaN.
    inside = where(x * x > FLAT, 0.0, x)
    density = exp(-0.5 * (inside * inside)) * (0.5 * GELU_SCALE)
    return (g * (ndtr(x) + inside * density),)


def _gelu_tanh_pullback(g: Any, out: Any, x: Any) -> tuple[Any]:
    inside = where(x * x > FLAT, 0.0, x)
    square = inside * inside
    share = sigmoid(2.0 * GELU_SCALE * (x + GELU_CUBE * x * x * x))
    slope = 2.0 * GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * square)
    return (g * (share + inside * share * (1.0 - share) * slope),)


erf: Op = define_elementwise(
    "erf",
    lambda x: call("erf", x),
    kernel=_erf,
    pullback=lambda g, out, x: (g * (2.0 / math.sqrt(math.pi)) * exp(-(x * x)),),
    doc="""Compute the error function of each element.

    Shapes: any x; the result has the same shape.
    Gradient: 2 / sqrt(pi) * exp(-x ** 2).

    >>> ab.erf(np.array([0.0, 1.0])).round(4)
    array([0.    , 0.8427])
    """,
)
ndtr: Op = define_elementwise(
    "ndtr",
    lambda x: call("ndtr", x),
    kernel=_ndtr,
    pullback=lambda g, out, x: (g * (0.5 * GELU_SCALE) * exp(-0.5 * (x * x)),),
)
_gelu_op = define_elementwise("gelu", lambda x: call("gelu", x), kernel=_gelu, pullback=_gelu_pullback)
_gelu_tanh_op = define_elementwise(
    "gelu_tanh", lambda x: call("gelu_tanh", x), kernel=_gelu_tanh, pullback=_gelu_tanh_pullback
)


@of_values
def gelu(x: Value, approximate: str = "none") -> Value:
    """Compute x times the normal distribution function of x (Hendrycks and Gimpel 2016), as torch's gelu does.

    Args:
        x: a value.
        approximate: "none", or "tanh" for 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))), which differs by at most
            0.0005.

    Shapes: any x; the result has the same shape.
    Gradient: the derivative of the chosen form.

    Raises:
        DataError: `approximate` is neither "none" nor "tanh".

    >>> ab.gelu(np.array([-1.0, 0.0, 1.0])).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    if approximate not in FORMS:
        raise DataError(f"approximate of gelu must be one of {', '.join(map(repr, FORMS))}, got {approximate!r}.")
    return _gelu_op(x) if approximate == "none" else _gelu_tanh_op(x)
