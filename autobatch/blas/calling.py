"""Call a BLAS matrix product by its address, from compiled code.

An address is an argument, so code that calls one can be cached on disk and serves every library. All libraries have
the routines of the Fortran interface: every argument is passed by address. Integers are written as 64 bits; a library
that reads 32 finds the same number in the first half, as machines store the low bytes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autobatch._jit import built, compiled

Call = Callable[..., None]  # (address, *Product, beta); beta 0 overwrites out, 1 adds to it
TRANSPOSED, AS_IT_LIES = ord("T"), ord("N")


@built
def call_float32() -> Call:
    """Call a product with float32 factors alpha and beta: of float32 arrays, or of bf16 ones into float32."""
    import numba

    return _build_call(numba.types.float32)


@built
def call_float64() -> Call:
    """Call a product of float64 arrays."""
    import numba

    return _build_call(numba.types.float64)


@compiled
def repeat_float32(times: int, address: int, product: tuple[int, ...], beta: float) -> None:
    """Call a product some times over: for a clock, or once, from Python."""
    for _ in range(times):
        call_float32(address, *product, beta)


@compiled
def repeat_float64(times: int, address: int, product: tuple[int, ...], beta: float) -> None:
    """Call a product some times over: for a clock, or once, from Python."""
    for _ in range(times):
        call_float64(address, *product, beta)


def _build_call(scalar: Any) -> Call:
    """Build (address, *Product, beta) -> None for compiled code; `scalar` is Numba's type of alpha and beta."""
    import numba
    from llvmlite import ir
    from numba.core import cgutils

    toolbox: Any = cgutils
    types: Any = numba.types
    intrinsic: Any = numba.extending.intrinsic
    byte, word = ir.IntType(8), ir.IntType(64)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words, beta = args
        address, a_flipped, b_flipped, m, n, k, a, a_step, b, b_step, out, out_step = toolbox.unpack_tuple(
            builder, words, 12
        )

        def keep(value: Any) -> Any:
            slot = toolbox.alloca_once(builder, value.type)
            builder.store(value, slot)
            return builder.ptrtoint(slot, word)

        def flag(flipped: Any) -> Any:
            is_flipped = builder.icmp_signed("!=", flipped, word(0))
            return keep(builder.select(is_flipped, byte(TRANSPOSED), byte(AS_IT_LIES)))

        routine = builder.inttoptr(address, ir.FunctionType(ir.VoidType(), 13 * [word]).as_pointer())
        one = context.get_constant(scalar, 1.0)
        builder.call(routine, [
            flag(b_flipped), flag(a_flipped), keep(n), keep(m), keep(k), keep(one), b, keep(b_step), a, keep(a_step),
            keep(beta), out, keep(out_step),
        ])  # fmt: skip
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def call_routine(typing: Any, words: Any, beta: Any) -> Any:
        return types.void(types.UniTuple(types.int64, 12), scalar), emit

    @numba.njit(forceinline=True)
    def call(
        address: int, a_flipped: int, b_flipped: int, m: int, n: int, k: int,
        a: int, a_step: int, b: int, b_step: int, out: int, out_step: int, beta: float,
    ) -> None:  # fmt: skip
        call_routine((address, a_flipped, b_flipped, m, n, k, a, a_step, b, b_step, out, out_step), beta)

    return call
