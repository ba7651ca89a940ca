"""Define functions of a float32.

The exponential is 2**n * e**r with an integer n, |r| <= log(2) / 2, and log(2) in two parts (Cody and Waite 1980). The
logarithm is n * log(2) + log(1 + f) with 1 + f between sqrt(1/2) and sqrt(2). tanh(x) combines tanh(n * log(2) / 2)
with tanh of the remainder by the addition theorem. The polynomials are minimax fits of the relative error:
`tools/fit_minimax.py`.
"""

from __future__ import annotations

import math

from autobatch.compiler.llvm.scalars import Scalar, select
from autobatch.ops.error_function import GELU_CUBE, GELU_SCALE

LOG2_E = math.log2(math.e)
LOG_2 = math.log(2)
LOG_2_HIGH = 0.693145751953125  # 15 bits, so that its product with n is exact
LOG_2_LOW = math.log(2) - 0.693145751953125
ROUND = 1.5 * 2**23  # the sum with a smaller number has the nearest integer in its last bits
BIAS, MANTISSA_BITS = 127, 23
ROUND_TO_POWER = ROUND + BIAS  # gives n + BIAS, which becomes 2**n when shifted to the exponent
ROUND_TO_TWO_POWERS = ROUND + 2 * BIAS
SIGN_BIT, ALL_BUT_SIGN = -(2**31), 2**31 - 1
ALL_BUT_EXPONENT = 2**23 - 1
ROOT_HALF_BITS = 0x3F3504F3  # the bits of sqrt(1/2)

LARGEST, SMALLEST = 89.0, -104.0  # beyond, exp is infinity and 0
SATURATED = 10.0  # beyond, tanh is 1
SMALL = 2.0**-64  # 2**-64 * exp(104) is finite
ROUND_TO_SMALL_POWER = ROUND + BIAS - 64
SIGMOID_LEAST, SIGMOID_LARGEST = -104.0, 40.0  # beyond, sigmoid is 0 and 1
TWICE_LOG2_E, HALF_LOG_2 = 2 * math.log2(math.e), math.log(2) / 2
NORMAL, TO_NORMAL = 2.0**-126, 2.0**23
ROOT_2_LESS_1 = math.sqrt(2) - 1

TWICE_SCALE = 2.0 * GELU_SCALE
GELU_LEAST = -20.0  # gelu is 0 already well above this
GREATEST = 110.0  # exp(-110) is 0, even when multiplied by a number below 30

# by tools/fit_minimax.py
E2, E3, E4, E5, E6 = 0.49999994, 0.16666521, 0.041668292, 0.0083687194, 0.0013818727
L3, L4, L5, L6 = 0.33333331, -0.25000837, 0.20001285, -0.16622774
L7, L8, L9, L10 = 0.14199832, -0.1316423, 0.12778357, -0.076451428
T3, T5 = -0.33331224, 0.13108076


def at_most(x: Scalar, bound: float) -> Scalar:
    """Return the number, or the bound if the number is larger; NaN stays NaN."""
    return select(x > bound, x.like(bound), x)


def at_least(x: Scalar, bound: float) -> Scalar:
    """Return the number, or the bound if the number is smaller; NaN stays NaN."""
    return select(x < bound, x.like(bound), x)


def _to_power(bits: Scalar) -> Scalar:
    """Return 2**n, given bits that end in n + BIAS; n from -126 to 127."""
    return (bits << MANTISSA_BITS).view("float")


def _expm1_near_zero(r: Scalar) -> Scalar:
    """Return exp(r) - 1, for |r| <= log(2) / 2."""
    return r + r * r * (E2 + r * (E3 + r * (E4 + r * (E5 + r * E6))))


def _log1p_near_zero(f: Scalar) -> Scalar:
    """Return log(1 + f) - f, for 1 + f from sqrt(1/2) to sqrt(2)."""
    tail = L3 + f * (L4 + f * (L5 + f * (L6 + f * (L7 + f * (L8 + f * (L9 + f * L10))))))
    return f * f * (f * tail - 0.5)


def _reduce(x: Scalar) -> tuple[Scalar, Scalar]:
    """Split x into n * log(2) + r; return n as bits for `scale`, and r."""
    # If x is NaN, the bits are meaningless, but r is NaN, which propagates to the result.
    shifted = x * LOG2_E + ROUND_TO_TWO_POWERS
    n = shifted - ROUND_TO_TWO_POWERS
    r = (x - n * LOG_2_HIGH) - n * LOG_2_LOW
    return shifted.view("i32"), r


def scale(x: Scalar, bits: Scalar) -> Scalar:
    """Return x * 2**n, given bits that end in n + 2 * BIAS; n from -252 to 254.

    Multiplies in two steps, because 2**n may not be a normal number.
    """
    half = bits >> 1
    return x * _to_power(half) * _to_power(bits - half)


def exp(x: Scalar) -> Scalar:
    """Compute exp(x)."""
    bits, r = _reduce(at_least(at_most(x, LARGEST), SMALLEST))
    return scale(1.0 + _expm1_near_zero(r), bits)


def _split_power(x: Scalar) -> tuple[Scalar, Scalar]:
    """Split a positive normal x into 2**n * (1 + f)."""
    # Counted from the bits of sqrt(1/2), the exponent is n. The other bits, added to those of sqrt(1/2), are 1 + f,
    # between sqrt(1/2) and sqrt(2).
    above = x.view("i32") - ROOT_HALF_BITS
    f = ((above & ALL_BUT_EXPONENT) + ROOT_HALF_BITS).view("float") - 1.0
    return above >> MANTISSA_BITS, f


def log(x: Scalar) -> Scalar:
    """Compute log(x); -infinity at 0, NaN below."""
    is_tiny = x < NORMAL
    power, f = _split_power(select(is_tiny, x * TO_NORMAL, x))
    n = select(is_tiny, power - MANTISSA_BITS, power).to("float")
    # The smallest terms first.
    result = (f + (_log1p_near_zero(f) + n * LOG_2_LOW)) + n * LOG_2_HIGH
    result = select(x < math.inf, result, x)  # infinity is its own logarithm
    return select(x > 0.0, result, select(x.equals(0.0), x.like(-math.inf), math.nan))


def tanh(x: Scalar) -> Scalar:
    """Compute tanh(x) from tanh(n * log(2) / 2) and tanh of the remainder, with the sign of x.

    The result is accurate near 0, and never beyond 1.
    """
    bits = x.view("i32")
    magnitude = at_most((bits & ALL_BUT_SIGN).view("float"), SATURATED)
    shifted = ROUND_TO_POWER - magnitude * TWICE_LOG2_E
    power = _to_power(shifted.view("i32"))
    r = magnitude + (shifted - ROUND_TO_POWER) * HALF_LOG_2
    t = r + r * (r * r) * (T3 + r * r * T5)
    less, more = 1.0 - power, 1.0 + power  # their ratio is the first tanh
    result = ((less + more * t) / (more + less * t)).view("i32")
    return (result | (bits & SIGN_BIT)).view("float")


def sigmoid(x: Scalar) -> Scalar:
    """Compute 1 / (1 + exp(-x)) as 2**-64 / (2**-64 + 2**-64 * exp(-x)), in which no term overflows."""
    x = at_most(at_least(x, SIGMOID_LEAST), SIGMOID_LARGEST)
    shifted = ROUND_TO_SMALL_POWER - x * LOG2_E
    n = shifted - ROUND_TO_SMALL_POWER
    minus_r = (x + n * LOG_2_HIGH) + n * LOG_2_LOW
    power = 1.0 + _expm1_near_zero(-minus_r)
    return SMALL / (SMALL + power * _to_power(shifted.view("i32")))


def softplus(x: Scalar) -> Scalar:
    """Compute log(1 + exp(x)) as log1p(exp(-|x|)) + max(x, 0)."""
    bits, r = _reduce(at_least(-abs(x), SMALLEST))
    e = scale(1.0 + _expm1_near_zero(r), bits)
    is_large = e > ROOT_2_LESS_1
    # 1 + e is 1 + f or 2 * (1 + f), with 1 + f between sqrt(1/2) and sqrt(2).
    f = select(is_large, (e - 1.0) * 0.5, e)
    return (f + (_log1p_near_zero(f) + select(is_large, e.like(LOG_2), 0.0))) + select(x > 0.0, x, 0.0)


def split_exp(magnitude: Scalar) -> tuple[Scalar, Scalar]:
    """Compute exp(-magnitude), for magnitude >= 0, as p and bits for `scale`; 0 beyond 110, for any p.

    The argument is a float64, because the exponential amplifies its rounding error.
    """
    magnitude = at_most(magnitude, GREATEST)
    shifted = ROUND_TO_TWO_POWERS - magnitude.to("float") * LOG2_E
    r = (-magnitude - (shifted - ROUND_TO_TWO_POWERS).to("double") * LOG_2).to("float")
    return 1.0 + _expm1_near_zero(r), shifted.view("i32")


def gelu_tanh(x: Scalar) -> Scalar:
    """Compute x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x**3).

    It equals 0.5 x (1 + tanh(u)), but without cancellation. The limit at -infinity is 0.
    """
    wide = x.to("double")
    power, bits = split_exp(abs(TWICE_SCALE * (wide + GELU_CUBE * wide * wide * wide)))
    bounded = at_least(x, GELU_LEAST)
    # sigmoid(-a) is exp(-a) / (1 + exp(-a)). The exponential is multiplied by x before it is scaled, because scaling
    # may make it denormal, with fewer bits.
    return select(x < 0.0, scale(bounded * power, bits), x) / (1.0 + scale(power, bits))


def sin(x: Scalar) -> Scalar:
    """Compute sin(x) by the float64 function of the system."""
    return x.code.call("llvm.sin", x.to("double")).to("float")


def cos(x: Scalar) -> Scalar:
    """Compute cos(x) by the float64 function of the system."""
    return x.code.call("llvm.cos", x.to("double")).to("float")
