"""Ops in extended precision, and errors relative to them, in units in the last place or of a given scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Wide = np.longdouble
N_TERMS = 400
GELU_SCALE = np.sqrt(2 / Wide(np.pi))


def edges(dtype: Any) -> Array:
    """Return special values of a float type: zeros, denormals, extremes, infinities, NaN, points where ops saturate."""
    info = np.finfo(dtype)
    ends = [0, info.smallest_subnormal, info.tiny / 4, info.tiny, info.eps, 1 - info.epsneg, 1, 1 + info.eps, info.max]
    bounds = [0.5, 1.5, 10, 20, 30, 88, 89, 103, 110, 700, 709, 745, 750, 1e4, 1e8, 1e19, 1e30]
    found = np.array([*ends, *bounds, np.inf], dtype)
    return np.concatenate([found, -found, np.array([np.nan], dtype)])


def spread(dtype: Any, n: int, seed: int = 0) -> Array:
    """Return `edges(dtype)`, n values of all magnitudes, and 4 n values in the ranges where functions bend."""
    rng = np.random.default_rng(seed)
    info = np.finfo(dtype)
    powers = 2 ** rng.uniform(info.minexp - 10, info.maxexp - 1, n) * rng.choice([-1, 1], n)
    bends = [rng.uniform(-reach, reach, n) for reach in (1.5, 12, 110, 750)]
    return np.concatenate([edges(dtype), powers.astype(dtype), *(bend.astype(dtype) for bend in bends)])


def distance(found: Array, exact: Array, scale: Array | float = 0.0, signed: bool = True) -> Array:
    """Return the errors in units in the last place of the exact result, or of `scale` where that is larger.

    An error is infinite if only one of the two is NaN, if they differ and one is infinite, and, if `signed`, if both
    are zero with different signs.
    """
    dtype = found.dtype.type
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        size = np.maximum(np.abs(exact), scale)
        unit = np.spacing(np.minimum(size, Wide(np.finfo(dtype).max)).astype(dtype)).astype(Wide)
        errors = np.asarray(np.abs(found.astype(Wide) - exact) / unit)
    errors[(np.isnan(found) & np.isnan(exact)) | (found == rounded)] = 0
    errors[np.isnan(errors)] = np.inf
    zeros = (rounded == 0) & (found == 0) & signed
    errors[zeros & (np.signbit(found) != np.signbit(rounded))] = np.inf
    return errors.astype(np.float64)


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def erfc(z: Array) -> Array:
    """Compute erfc of nonnegative numbers: by the series of erf below 2, else by the continued fraction of erfc."""
    small = np.minimum(z, 3)
    term = total = small
    for k in range(1, N_TERMS):
        term = term * (-small * small) / k
        total = total + term / (2 * k + 1)
    large = np.maximum(z, 2)
    fraction = large
    for k in range(N_TERMS, 0, -1):
        fraction = large + Wide(k) / 2 / fraction
    root = np.sqrt(Wide(math.pi) + Wide("1.2246467991473531772e-16"))
    return np.asarray(np.where(z < 2, 1 - 2 / root * total, np.exp(-z * z) / root / fraction))
