"""Functions of a float32.

The exponential is 2**n * e**r with n a whole number, |r| <= log(2) / 2, and log(2) in two parts (Cody and Waite 1980).
The logarithm is n * log(2) + log(1 + f) with 1 + f between sqrt(1/2) and sqrt(2). tanh(x) combines tanh(n * log(2) / 2)
with tanh of the rest by the addition theorem. The polynomials are minimax fits of relative error:
`tools/fit_minimax.py`.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from autobatch.compiler.numba.inlined import contracted
from autobatch.ops.error_function import GELU_CUBE, GELU_SCALE

Float: TypeAlias = Any  # np.float32

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
INFINITY, NAN = np.float32(np.inf), np.float32(np.nan)

LOG2_E = np.float32(math.log2(math.e))
LOG_2 = np.float32(math.log(2))
LOG_2_HIGH = np.float32(0.693145751953125)  # 15 bits, so that its product with n is exact
LOG_2_LOW = np.float32(math.log(2) - 0.693145751953125)
ROUND = 1.5 * 2**23  # added to a smaller number, it puts the nearest whole number into the last bits
BIAS, MANTISSA_BITS = 127, np.int32(23)
ROUND_TO_POWER = np.float32(ROUND + BIAS)  # gives n + BIAS, which is 2**n when shifted to the exponent
ROUND_TO_TWO_POWERS = np.float32(ROUND + 2 * BIAS)
SIGN_BIT, ALL_BUT_SIGN = np.int32(-(2**31)), np.int32(2**31 - 1)
ALL_BUT_EXPONENT = np.int32(2**23 - 1)
ROOT_HALF_BITS = np.int32(0x3F3504F3)  # the bits of sqrt(1/2)

LARGEST, SMALLEST = np.float32(89), np.float32(-104)  # beyond, exp is infinity and 0
SATURATED = np.float32(10)  # beyond, tanh is 1
SMALL = np.float32(2.0**-64)  # 2**-64 * exp(104) is finite
ROUND_TO_SMALL_POWER = np.float32(ROUND + BIAS - 64)
SIGMOID_LEAST, SIGMOID_LARGEST = np.float32(-104), np.float32(40)  # beyond, it is 0 and 1
TWICE_LOG2_E, HALF_LOG_2 = np.float32(2 * math.log2(math.e)), np.float32(math.log(2) / 2)
NORMAL, TO_NORMAL = np.float32(2.0**-126), np.float32(2.0**23)
ROOT_2_LESS_1 = np.float32(math.sqrt(2) - 1)

TWICE_SCALE = 2.0 * GELU_SCALE
GELU_LEAST = np.float32(-20)  # gelu is 0 long before
GREATEST = 110.0  # exp(-110) is 0, even when multiplied by a number below 30
LOG_2_WHOLE = math.log(2)

# by tools/fit_minimax.py
E2, E3, E4, E5, E6 = map(np.float32, (0.49999994, 0.16666521, 0.041668292, 0.0083687194, 0.0013818727))
L3, L4, L5, L6 = map(np.float32, (0.33333331, -0.25000837, 0.20001285, -0.16622774))
L7, L8, L9, L10 = map(np.float32, (0.14199832, -0.1316423, 0.12778357, -0.076451428))
T3, T5 = map(np.float32, (-0.33331224, 0.13108076))


@contracted
def _to_power(bits: Any) -> Float:
    """2**n, given bits that end in n + BIAS; n from -126 to 127."""
    return np.int32(bits << MANTISSA_BITS).view(np.float32)


@contracted
def _expm1_near_zero(r: Float) -> Float:
    """exp(r) - 1 for |r| <= log(2) / 2."""
    return r + r * r * (E2 + r * (E3 + r * (E4 + r * (E5 + r * E6))))


@contracted
def _log1p_near_zero(f: Float) -> Float:
    """log(1 + f) - f, for 1 + f from sqrt(1/2) to sqrt(2)."""
    tail = L3 + f * (L4 + f * (L5 + f * (L6 + f * (L7 + f * (L8 + f * (L9 + f * L10))))))
    return f * f * (f * tail - HALF)


@contracted
def _reduce(x: Float) -> tuple[Any, Float]:
    """Split x into n * log(2) + r; n as bits for `scale`."""
    shifted = x * LOG2_E + ROUND_TO_TWO_POWERS
    n = shifted - ROUND_TO_TWO_POWERS
    r = (x - n * LOG_2_HIGH) - n * LOG_2_LOW
    return np.float32(shifted).view(np.int32), r


@contracted
def scale(x: Float, bits: Any) -> Float:
    """x * 2**n, given bits that end in n + 2 * BIAS, n from -252 to 254; in two steps, as 2**n may not be normal."""
    half = np.int32(bits >> np.int32(1))
    return x * _to_power(half) * _to_power(np.int32(bits - half))


@contracted
def exp32(x: Float) -> Float:
    """exp(x)."""
    x = LARGEST if x > LARGEST else x
    x = SMALLEST if x < SMALLEST else x
    bits, r = _reduce(x)
    return scale(ONE + _expm1_near_zero(r), bits)


@contracted
def _split_power(x: Float) -> tuple[Any, Float]:
    """Split a positive normal x into 2**n * (1 + f)."""
    above = np.int32(np.float32(x).view(np.int32) - ROOT_HALF_BITS)
    f = np.int32(np.int32(above & ALL_BUT_EXPONENT) + ROOT_HALF_BITS).view(np.float32) - ONE
    return np.int32(above >> MANTISSA_BITS), f


@contracted
def log32(x: Float) -> Float:
    """log(x); -infinity at 0, NaN below."""
    is_tiny = x < NORMAL
    n, f = _split_power(x * TO_NORMAL if is_tiny else x)
    n = np.float32(np.int32(n - MANTISSA_BITS) if is_tiny else n)
    result = (f + (_log1p_near_zero(f) + n * LOG_2_LOW)) + n * LOG_2_HIGH
    result = result if x < INFINITY else x
    return result if x > ZERO else (-INFINITY if x == ZERO else NAN)


@contracted
def tanh32(x: Float) -> Float:
    """tanh(x), from tanh(n * log(2) / 2) and tanh of the rest, with the sign of x: exact near 0, never beyond 1."""
    bits = np.float32(x).view(np.int32)
    magnitude = np.int32(bits & ALL_BUT_SIGN).view(np.float32)
    magnitude = SATURATED if magnitude > SATURATED else magnitude
    shifted = ROUND_TO_POWER - magnitude * TWICE_LOG2_E
    power = _to_power(np.float32(shifted).view(np.int32))
    r = magnitude + (shifted - ROUND_TO_POWER) * HALF_LOG_2
    t = r + r * (r * r) * (T3 + r * r * T5)
    less, more = ONE - power, ONE + power  # their ratio is the first tanh
    result = np.float32((less + more * t) / (more + less * t)).view(np.int32)
    return np.int32(result | np.int32(bits & SIGN_BIT)).view(np.float32)


@contracted
def sigmoid32(x: Float) -> Float:
    """1 / (1 + exp(-x)), as 2**-64 / (2**-64 + 2**-64 * exp(-x)): then the exponential is finite for every tail."""
    x = SIGMOID_LEAST if x < SIGMOID_LEAST else x
    x = SIGMOID_LARGEST if x > SIGMOID_LARGEST else x
    shifted = ROUND_TO_SMALL_POWER - x * LOG2_E
    n = shifted - ROUND_TO_SMALL_POWER
    minus_r = (x + n * LOG_2_HIGH) + n * LOG_2_LOW
    power = ONE + _expm1_near_zero(-minus_r)
    return SMALL / (SMALL + power * _to_power(np.float32(shifted).view(np.int32)))


@contracted
def _exp_of_minus_magnitude(x: Float) -> Float:
    """exp(-|x|)."""
    x = -np.float32(abs(x))
    x = SMALLEST if x < SMALLEST else x
    bits, r = _reduce(x)
    return scale(ONE + _expm1_near_zero(r), bits)


@contracted
def softplus32(x: Float) -> Float:
    """log(1 + exp(x)), as log1p(exp(-|x|)) + max(x, 0)."""
    e = _exp_of_minus_magnitude(x)
    is_large = e > ROOT_2_LESS_1
    f = (e - ONE) * HALF if is_large else e
    return (f + (_log1p_near_zero(f) + (LOG_2 if is_large else ZERO))) + (x if x > ZERO else ZERO)


@contracted
def split_exp(magnitude: Any) -> tuple[Float, Any]:
    """exp(-magnitude) of a float64 that is not negative, as p and bits for `scale`; 0 beyond 110, for any p.

    The argument is a float64 because its rounding error grows in the exponential.
    """
    magnitude = GREATEST if magnitude > GREATEST else magnitude
    shifted = ROUND_TO_TWO_POWERS - np.float32(magnitude) * LOG2_E
    r = np.float32(-magnitude - np.float64(shifted - ROUND_TO_TWO_POWERS) * LOG_2_WHOLE)
    return ONE + _expm1_near_zero(r), np.float32(shifted).view(np.int32)


@contracted
def gelu_tanh32(x: Float) -> Float:
    """x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x**3): equal to 0.5 x (1 + tanh(u)), without its cancellation.

    The limit at -infinity is 0.
    """
    wide = np.float64(x)
    power, bits = split_exp(abs(TWICE_SCALE * (wide + GELU_CUBE * wide * wide * wide)))
    bounded = GELU_LEAST if x < GELU_LEAST else x
    return (scale(bounded * power, bits) if x < ZERO else x) / (ONE + scale(power, bits))


@contracted
def sin32(x: Float) -> Float:
    """sin(x), from that of a float64; the system's own."""
    return np.float32(math.sin(np.float64(x)))


@contracted
def cos32(x: Float) -> Float:
    """cos(x), from that of a float64; the system's own."""
    return np.float32(math.cos(np.float64(x)))
