"""Define mathematical functions of one number for generated kernels (exp, tanh, ...), which LLVM can vectorise.

The functions are templates of instructions (`autobatch.compiler.llvm.scalars`). The float32 functions have no calls,
branches or tables, so that a loop over a row computes 8 or 16 elements at a time. Each is within 4 ulp of the exact
result for every float32 (the normal distribution and gelu within 6), including denormal results; NaN stays NaN, and
infinities give the limits. Only products and sums may be fused: other fast-math flags would drop NaN, or cancel the
sums that round on purpose. The float64 functions are those of the system, except for the error function and those
derived from it.
"""

from collections.abc import Callable, Mapping

from autobatch.compiler.llvm.scalars import Scalar
from autobatch.compiler.llvm.vectormath import float32, float64, normal

FUNCTIONS: Mapping[str, Mapping[str, Callable[[Scalar], Scalar]]] = {
    "float": {
        "exp": float32.exp,
        "log": float32.log,
        "sin": float32.sin,
        "cos": float32.cos,
        "tanh": float32.tanh,
        "sigmoid": float32.sigmoid,
        "softplus": float32.softplus,
        "erf": normal.erf32,
        "ndtr": normal.ndtr32,
        "gelu": normal.gelu32,
        "gelu_tanh": float32.gelu_tanh,
    },
    "double": {
        "exp": float64.exp,
        "log": float64.log,
        "sin": float64.sin,
        "cos": float64.cos,
        "tanh": float64.tanh,
        "sigmoid": float64.sigmoid,
        "softplus": float64.softplus,
        "erf": normal.erf64,
        "ndtr": normal.ndtr64,
        "gelu": normal.gelu64,
        "gelu_tanh": float64.gelu_tanh,
    },
}
"""The functions of expressions that are not single instructions, except the power; by LLVM type, then by name."""

__all__ = ["FUNCTIONS"]
