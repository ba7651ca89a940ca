"""Fit the polynomials of `autobatch.compiler.llvm.vectormath.float32`, minimizing the maximum error in ulp.

    python tools/fit_minimax.py

Weighted least squares converge to the minimax fit if weights are raised where the error is large (Lawson 1961). The
coefficients are rounded to float32 one after another, from the lowest, and the remaining ones are fitted again.
"""

from __future__ import annotations

from math import factorial, log, sqrt

import numpy as np
from numpy.typing import NDArray

N_POINTS, N_ROUNDS, N_TERMS = 1200, 300, 120
MARGIN = 1e-3  # of the intervals: rounding moves the reduced argument
HALF_ULP = 2.0**-24
TANH = [-1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075, -929569 / 638512875]

Numbers = NDArray[np.float64]


def main() -> None:
    """Print the coefficients and their errors."""
    r = spread(-log(2) / 2, log(2) / 2)
    show("exp(r) = 1 + r + r**2 * (E2 + E3 r + ...)", r, [1 / factorial(k + 2) for k in range(25)], r**2 / np.exp(r), 4)
    f = spread(sqrt(0.5) - 1, sqrt(2) - 1)
    series = [(-1) ** k / (k + 3) for k in range(N_TERMS)]
    show("log(1 + f) = f - f**2 / 2 + f**3 * (L3 + L4 f + ...)", f, series, f**3 / np.log1p(f), 7)
    r = spread(-log(2) / 4, log(2) / 4)
    show("tanh(r) = r + r**3 * (T3 + T5 r**2)", r**2, TANH, r**3 / np.tanh(r), 1)


def spread(low: float, high: float) -> Numbers:
    """Return points of an interval, denser at its ends; their number is even, so that 0 is not one of them."""
    middle, reach = (low + high) / 2, (high - low) / 2 + MARGIN
    return middle + reach * np.cos(np.linspace(0, np.pi, N_POINTS))


def show(what: str, x: Numbers, series: list[float], weight: Numbers, degree: int) -> None:
    """Fit the function of a power series, and print it."""
    target = sum(coefficient * x**k for k, coefficient in enumerate(series)) + np.zeros_like(x)
    coefficients: list[float] = []
    for k in range(degree + 1):
        powers = np.stack([x**j for j in range(k, degree + 1)], axis=1)
        coefficients.append(float(np.float32(fit(powers, target, weight)[0])))
        target = target - coefficients[-1] * x**k
    error = np.abs(target * weight).max() / HALF_ULP / 2
    print(f"{what}: {', '.join(f'{c:.8g}' for c in coefficients)}\n  leaves {error:.3f} ulp")


def fit(powers: Numbers, target: Numbers, weight: Numbers) -> Numbers:
    """Return the coefficients that minimize the maximum weighted error."""
    best: Numbers = np.zeros(powers.shape[1])
    density, least = np.ones_like(target), np.inf
    for _ in range(N_ROUNDS):
        rows = np.sqrt(density) * weight
        found, *_ = np.linalg.lstsq(powers * rows[:, None], target * rows)
        error = np.abs((powers @ found - target) * weight)
        if error.max() < least:
            least, best = float(error.max()), np.asarray(found, np.float64)
        density = density * (error + 1e-3 * error.max())
        density /= density.sum()
    return best


if __name__ == "__main__":
    main()
