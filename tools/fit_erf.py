"""Find the coefficients of `autobatch/compiler/llvm/vectormath/normal.py` and `autobatch/ops/error_function.py`.

    python tools/fit_erf.py

It fits polynomials, and ratios of them, to the function at Chebyshev points, in 60 digits. Their maximum error is a few
times that of the best polynomials; one more term compensates for this. All coefficients of the ratios are positive, so
that their sums do not cancel. Needs mpmath.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpmath import mp, mpf  # type: ignore[import-untyped]

mp.dps = 60
CENTRE = {4: 3, 10: 4}  # for a ratio of this degree: half of the points are below
N_TESTED = 500
Real = Any


def main() -> None:
    """Print the coefficients and their errors."""
    for name, degree, top, terms, exp_terms in (("float32", 4, 15, 7, 0), ("float64", 10, 39.5, 12, 10)):
        print(name)
        m = [centre_at(t, top, CENTRE[degree]) for t in chebyshev(2 * degree + 2)]
        p, q = fit_ratio(scaled_tail, m, degree)
        top_points = [mpf(top) * (mpf(i) / N_TESTED) ** 2 for i in range(N_TESTED + 1)]
        show("  exp(m**2 / 2) * erfc(m / sqrt(2)), above", p)
        show("  the same, below", q)
        tell(max(abs(value(p, x) / value(q, x) / scaled_tail(x) - 1) for x in top_points))
        near = lambda u: mp.erf(mp.sqrt(u)) / mp.sqrt(u)  # noqa: E731
        fit_polynomial("  erf(x) / x in x**2", near, mpf(10) ** -9, mpf(1), terms)
        if not exp_terms:
            continue  # `autobatch.compiler.llvm.vectormath.float32` has its own
        half = mp.log(2) / 2 * mpf("1.001")
        rest = lambda r: (mp.expm1(r) - r) / r**2  # noqa: E731
        fit_polynomial("  (exp(r) - 1 - r) / r**2", rest, -half, half, exp_terms)


def scaled_tail(m: Real) -> Real:
    """Return exp(m**2 / 2) * erfc(m / sqrt(2)): twice the probability of normal numbers below -m, without its decay."""
    return mp.exp(m * m / 2) * mp.erfc(m / mp.sqrt(2))


def chebyshev(n: int) -> list[Real]:
    """Return the n Chebyshev points between -1 and 1."""
    return [mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]


def centre_at(t: Real, top: float, centre: int) -> Real:
    """Map a point between -1 and 1 to one between 0 and top, such that low points are dense."""
    last = (mpf(top) - centre) / (mpf(top) + centre)
    moved = (last - 1) / 2 + (last + 1) / 2 * t
    return centre * (1 + moved) / (1 - moved)


def fit_ratio(function: Callable[[Real], Real], points: Sequence[Real], degree: int) -> tuple[list[Real], list[Real]]:
    """Return the coefficients of numerator (this degree) and denominator (one more), lowest first; the denominator
    starts with 1.
    """
    rows = [[z**j for j in range(degree + 1)] + [-function(z) * z**j for j in range(1, degree + 2)] for z in points]
    found = mp.lu_solve(mp.matrix(rows), mp.matrix([function(z) for z in points]))
    return list(found[: degree + 1]), [mpf(1), *found[degree + 1 :]]


def fit_polynomial(what: str, function: Callable[[Real], Real], low: Real, high: Real, n_terms: int) -> None:
    """Fit a polynomial and print it."""
    points = [(low + high) / 2 + (high - low) / 2 * t for t in chebyshev(n_terms)]
    rows = mp.matrix([[x**j for j in range(n_terms)] for x in points])
    found = list(mp.lu_solve(rows, mp.matrix([function(x) for x in points])))
    show(what, found)
    tested = [low + (high - low) * (mpf(i) + mpf("0.5")) / N_TESTED for i in range(N_TESTED)]
    tell(max(abs(value(found, x) / function(x) - 1) for x in tested))


def value(coefficients: Sequence[Real], x: Real) -> Real:
    """Evaluate a polynomial; the lowest coefficient comes first."""
    total = mpf(0)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def show(what: str, coefficients: Sequence[Real]) -> None:
    """Print coefficients."""
    print(f"{what}: {', '.join(repr(float(c)) for c in coefficients)}")


def tell(error: Real) -> None:
    """Print the error of a fit."""
    print(f"    leaves {mp.nstr(error, 3)}")


if __name__ == "__main__":
    main()
