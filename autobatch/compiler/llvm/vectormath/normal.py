"""Define the error function, the normal distribution and gelu, of float32 and float64, in vector instructions.

The tail of the distribution is exp(-m**2 / 2) times a ratio of polynomials with positive coefficients
(`tools/fit_erf.py`), so it is as accurate as the rest: within 6 ulp, 8 in float64. The exponent m**2 / 2 is computed
without rounding: a float32 is squared in float64, and a float64 is split into two parts. Near 0, the error function is
x times a polynomial.
"""

from __future__ import annotations

import math

from autobatch.compiler.llvm.scalars import Scalar, select
from autobatch.compiler.llvm.vectormath.float32 import ALL_BUT_SIGN, SIGN_BIT, at_most, scale, split_exp
from autobatch.ops import error_function as wide

ROOT_2 = math.sqrt(2)
ERF_IS_ONE, NDTR_IS_ZERO = 4.0, 15.0  # beyond 4, and below -15

# by tools/fit_erf.py
A0, A1, A2 = 1.0000000043512958, 0.8773485147641241, 0.3669437228603373
A3, A4 = 0.08140012295475715, 0.00824505640613843
B1, B2, B3 = 1.6752334168384364, 1.2035824337408796, 0.4700843052336978
B4, B5 = 0.10202606508008999, 0.01033353410301861
N0, N1, N2, N3 = 1.1283791658483509, -0.37612626666720017, 0.11283594715157716, -0.02685421201054097
N4, N5, N6 = 0.005189087423292007, -0.0008016864286032994, 7.875875059207024e-05
E2, E3 = 0.5000000000000001, 0.16666666666666669
E4, E5, E6 = 0.041666666666623824, 0.008333333333330039, 0.0013888888917367081
E7, E8, E9 = 0.00019841269863171557, 2.4801521057868204e-05, 2.7557268276905696e-06
E10, E11 = 2.7620201591031547e-07, 2.5100472505694996e-08
P0, P1, P2, P3, P4, P5, P6, P7, P8, P9, P10 = wide.ABOVE
Q0, Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8, Q9, Q10, Q11 = wide.BELOW
M0, M1, M2, M3, M4, M5, M6, M7, M8, M9, M10, M11 = wide.NEAR

LOG2_E = math.log2(math.e)
LOG_2_HIGH = float.fromhex("0x1.62e42fefa0000p-1")  # 40 bits, so that its product with n is exact
LOG_2_LOW = float.fromhex("0x1.cf79abc9e3b3ap-40")
BIAS, MANTISSA_BITS = 1023, 52
ROUND_TO_TWO_POWERS = 1.5 * 2**52 + 2 * BIAS
WIDE_SIGN_BIT, ALL_BUT_WIDE_SIGN = -(2**63), 2**63 - 1


def _tail32(m: Scalar) -> Scalar:
    """Compute exp(m**2 / 2) * erfc(m / sqrt(2)); m from 0 to 15."""
    above = A0 + m * (A1 + m * (A2 + m * (A3 + m * A4)))
    return above / (1.0 + m * (B1 + m * (B2 + m * (B3 + m * (B4 + m * B5)))))


def erf32(x: Scalar) -> Scalar:
    """Compute the error function."""
    bits = x.view("i32")
    z = at_most((bits & ALL_BUT_SIGN).view("float"), ERF_IS_ONE)
    u = z * z
    near = z * (N0 + u * (N1 + u * (N2 + u * (N3 + u * (N4 + u * (N5 + u * N6))))))
    power, scaled = split_exp(z.to("double") * z.to("double"))
    far = 1.0 - scale(power * _tail32(z * ROOT_2), scaled)
    return (select(z < 1.0, near, far).view("i32") | (bits & SIGN_BIT)).view("float")


def _lower_half32(m: Scalar, factor: Scalar) -> Scalar:
    """Compute the normal distribution function at -m, times `factor`; m from 0 to 15."""
    exact = m.to("double")
    power, bits = split_exp(0.5 * exact * exact)
    # Multiplied before it is scaled, because a denormal result would have lost bits.
    share = 0.5 * factor.to("double") * power.to("double") * _tail32(m).to("double")
    return scale(share.to("float"), bits)


def ndtr32(x: Scalar) -> Scalar:
    """Compute the normal distribution function."""
    lower = _lower_half32(at_most(abs(x), NDTR_IS_ZERO), x.like(1.0))
    return select(x < 0.0, lower, 1.0 - lower)


def gelu32(x: Scalar) -> Scalar:
    """Compute x times the normal distribution function of x; the limit at -infinity is 0."""
    m = at_most(abs(x), NDTR_IS_ZERO)
    is_lower = x < 0.0
    lower = _lower_half32(m, select(is_lower, m, 1.0))
    return select(is_lower, -lower, x * (1.0 - lower))


def _tail64(m: Scalar) -> Scalar:
    """Compute exp(m**2 / 2) * erfc(m / sqrt(2)); m from 0 to 39."""
    high = P5 + m * (P6 + m * (P7 + m * (P8 + m * (P9 + m * P10))))
    above = P0 + m * (P1 + m * (P2 + m * (P3 + m * (P4 + m * high))))
    high = Q6 + m * (Q7 + m * (Q8 + m * (Q9 + m * (Q10 + m * Q11))))
    return above / (Q0 + m * (Q1 + m * (Q2 + m * (Q3 + m * (Q4 + m * (Q5 + m * high))))))


def _split_exp64(m: Scalar, factor: float) -> tuple[Scalar, Scalar]:
    """Compute exp(-factor * m**2) as p and bits for `_scale64`; factor is 1 or 1/2, m at most 40."""
    high = m.to("float").to("double")  # its square is exact
    square, rest = factor * high * high, factor * (m - high) * (m + high)
    shifted = ROUND_TO_TWO_POWERS - square * LOG2_E
    n = shifted - ROUND_TO_TWO_POWERS
    r = ((-square - n * LOG_2_HIGH) - n * LOG_2_LOW) - rest
    tail = E6 + r * (E7 + r * (E8 + r * (E9 + r * (E10 + r * E11))))
    power = 1.0 + (r + r * r * (E2 + r * (E3 + r * (E4 + r * (E5 + r * tail)))))
    return power, shifted.view("i64")


def _scale64(x: Scalar, bits: Scalar) -> Scalar:
    """Return x * 2**n, given bits that end in n + 2 * BIAS; in two steps, because 2**n may not be normal."""
    half = bits >> 1
    return x * (half << MANTISSA_BITS).view("double") * ((bits - half) << MANTISSA_BITS).view("double")


def erf64(x: Scalar) -> Scalar:
    """Compute the error function."""
    bits = x.view("i64")
    z = at_most((bits & ALL_BUT_WIDE_SIGN).view("double"), wide.ERF_IS_ONE)
    u = z * z
    high = M6 + u * (M7 + u * (M8 + u * (M9 + u * (M10 + u * M11))))
    near = z * (M0 + u * (M1 + u * (M2 + u * (M3 + u * (M4 + u * (M5 + u * high))))))
    power, scaled = _split_exp64(z, 1.0)
    far = 1.0 - _scale64(power * _tail64(z * wide.ROOT_2), scaled)
    return (select(z < 1.0, near, far).view("i64") | (bits & WIDE_SIGN_BIT)).view("double")


def _lower_half64(m: Scalar, factor: Scalar) -> Scalar:
    """Compute the normal distribution function at -m, times `factor`; m from 0 to 39."""
    power, bits = _split_exp64(m, 0.5)
    # See `_lower_half32`.
    return _scale64(factor * 0.5 * power * _tail64(m), bits)


def ndtr64(x: Scalar) -> Scalar:
    """Compute the normal distribution function."""
    lower = _lower_half64(at_most(abs(x), wide.NDTR_IS_ZERO), x.like(1.0))
    return select(x < 0.0, lower, 1.0 - lower)


def gelu64(x: Scalar) -> Scalar:
    """Compute x times the normal distribution function of x; the limit at -infinity is 0."""
    m = at_most(abs(x), wide.NDTR_IS_ZERO)
    is_lower = x < 0.0
    lower = _lower_half64(m, select(is_lower, m, 1.0))
    return select(is_lower, -lower, x * (1.0 - lower))
