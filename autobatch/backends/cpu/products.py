"""Build steps that multiply the rows of a tile by a shared matrix, by the fastest library or a native product.

With precision "bf16" (`autobatch.ir.precision`), operands are rounded. If the processor has bf16 vector products, a
matrix is rounded and packed once per change, and the rows of a batch are rounded just before they are multiplied, some
dozens at a time, into memory that stays in the cache. Rounding takes about 2% of the time of multiplying. If bf16
products are slower than float32 (`Chooser.prefers_bf16`), operands are rounded to bf16 but stored as float32.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from autobatch.arrays import Array, rounded
from autobatch.backends.cpu.operands import StageValues
from autobatch.backends.cpu.step import FUNCTIONS, OPERAND, Sizes, Step, StepTemplate
from autobatch.blas.packed import NAME as PACKED
from autobatch.blas.packed import ROUNDED_AT_ONCE, padded_pairs
from autobatch.blas.provider import Provider
from autobatch.compiler.statement import Product, Term
from autobatch.compiler.view import View
from autobatch.ir.program import NODE

FIELDS = "routine", "beta", "n_fields", "rows", "n", "inner", "itemsize"
OPERANDS = ("a", *OPERAND), ("out", *OPERAND), ("matrix", np.int64, 3), ("scratch", np.int64)
PRODUCT = np.dtype([*((name, np.int64) for name in FIELDS), *OPERANDS])
"""The descriptor, `Product` of `native/run/products.cpp`; `SharedMatrix.update` describes the matrix."""


def make_product(stage: StageValues, product: Product, number: int, is_hoisted: bool) -> StepTemplate:
    """Build the step of a term of a product, which is written to the target or added to it.

    Args:
        number: the number of the term.
        is_hoisted: whether the product runs for all rows of a type at once.
    """
    term, dtype, is_bf16 = product.terms[number], stage.dtype.name, stage.precision == "bf16"
    out = View(product.target, 0, (stage.lowered.sizes[product.target],), (1,))
    shape = stage.lowered.vars[term.weight].shape
    inner, n = shape[::-1] if term.transposed else shape
    descriptor = stage.describe(PRODUCT, product.domain)
    descriptor["beta"], descriptor["n"], descriptor["inner"] = product.adds or number > 0, n, inner
    descriptor["a"], descriptor["out"] = stage.operand(term.rows), stage.operand(out)
    if is_bf16:
        descriptor["scratch"] = stage.dtype.itemsize * stage.scratch_width
        stage.scratch_width += ROUNDED_AT_ONCE * max(inner, padded_pairs(inner))

    def choose(sizes: Sizes) -> tuple[Provider, bool]:
        of_tile, of_whole = sizes.mean_rows[product.domain - NODE].tolist()
        n_rows = max((is_hoisted and of_whole) or of_tile, 1)
        provider = sizes.chooser.choose(n_rows, n, inner, dtype)
        return provider, is_bf16 and sizes.chooser.prefers_bf16(n_rows, n, inner)

    return StepTemplate(product, partial(_multiply, stage, term, out, descriptor), choose)


def _multiply(stage: StageValues, term: Term, out: View, described: Array, provider: Provider, by_bf16: bool) -> Step:
    """Build the step for a choice of the provider, and of bf16 products."""
    descriptor, is_rounded = described.copy(), stage.precision == "bf16"
    is_empty = not (descriptor["n"] and descriptor["inner"])
    is_packed = (by_bf16 or provider.name == PACKED) and not is_empty
    by_bf16 = by_bf16 and not is_empty
    matrix = stage.matrix(term, is_packed, by_bf16)
    if not (is_packed or is_empty):
        descriptor["routine"] = provider.addresses.get(stage.dtype.name, 0)
    if by_bf16:
        name = "multiply_by_bf16_panels"
    elif is_rounded:
        name = "multiply_rounded"
    else:
        name = "multiply_by_panels" if is_packed else "multiply_by_library"
    known: tuple[bool, int, int] | None = None

    def load() -> None:
        nonlocal known
        place = matrix.update()
        if place is not known:
            descriptor["matrix"] = known = place

    def run(k: int) -> None:
        left, target = stage.run.view(term.rows, k), stage.run.view(out, k)
        left = rounded(left) if is_rounded else left
        if left.size:
            provider.multiply(left, matrix.array, target, accumulate=bool(descriptor["beta"]))
        elif not descriptor["beta"]:
            target[...] = 0

    function = FUNCTIONS[name] if is_packed or descriptor["routine"] else 0
    return Step(function, descriptor, run, load, calls_library=not is_packed)
