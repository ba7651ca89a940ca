"""Mathematical functions of one element for generated kernels (exp, tanh, ...), which LLVM can vectorise.

The float32 functions have no call, no branch and no table: once inlined, a loop over a row works on 8 or 16 elements at
a time. Each is within 4 ulp of the exact result for every float32 (the normal distribution and gelu within 6), denormal
results included; NaN stays NaN and infinities give the limits. Only products and sums may be fused: other fast-math
flags would drop NaN, or cancel the sums that round on purpose. The float64 functions are the system's own, except for
the error function and those made from it.
"""

from collections.abc import Mapping
from typing import Any

from autobatch.compiler.numba.inlined import Inlined
from autobatch.compiler.numba.vectormath.float32 import (
    cos32,
    exp32,
    gelu_tanh32,
    log32,
    sigmoid32,
    sin32,
    softplus32,
    tanh32,
)
from autobatch.compiler.numba.vectormath.float64 import (
    cos64,
    exp64,
    gelu_tanh64,
    log64,
    sigmoid64,
    sin64,
    softplus64,
    tanh64,
)
from autobatch.compiler.numba.vectormath.normal import erf32, erf64, gelu32, gelu64, ndtr32, ndtr64

FUNCTIONS: Mapping[str, Mapping[str, Inlined[[Any], Any]]] = {
    "float32": {
        "exp": exp32,
        "log": log32,
        "sin": sin32,
        "cos": cos32,
        "tanh": tanh32,
        "sigmoid": sigmoid32,
        "softplus": softplus32,
        "erf": erf32,
        "ndtr": ndtr32,
        "gelu": gelu32,
        "gelu_tanh": gelu_tanh32,
    },
    "float64": {
        "exp": exp64,
        "log": log64,
        "sin": sin64,
        "cos": cos64,
        "tanh": tanh64,
        "sigmoid": sigmoid64,
        "softplus": softplus64,
        "erf": erf64,
        "ndtr": ndtr64,
        "gelu": gelu64,
        "gelu_tanh": gelu_tanh64,
    },
}
"""By dtype and name: the functions of expressions that are not single instructions, except the power."""

__all__ = ["FUNCTIONS"]
