"""Call a BLAS matrix product by its address, from compiled code.

The address is an argument, so the calling code can be cached on disk and serves every library. All libraries have the
Fortran interface, which passes every argument by address. Integers are written as 64 bits; a library that reads 32 bits
finds the same number in the first half, because the supported machines are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from autobatch.jit.loops import built, compiled_at_once

Call = Callable[..., None]
"""(size, address, product, beta): `size` is the size of the routine's factors alpha and beta, 4 or 8 bytes; beta 0
overwrites out, 1 adds to it."""
TRANSPOSED, AS_IT_LIES = ord("T"), ord("N")
Numbers: TypeAlias = tuple[int, ...]  # a `Gemm` as a plain tuple
Copies: TypeAlias = tuple[int, int, int]
"""The number of pairs of operands that are used in turn, and the bytes from one a, and from one b, to the next."""
ONE_PAIR = (1, 0, 0)


@compiled_at_once
def repeat_product(times: int, size: int, address: int, product: Numbers, beta: float, copies: Copies) -> None:
    """Call a product several times, to measure it, or once from Python."""
    a_flipped, b_flipped, m, n, k, a, a_step, b, b_step, out, out_step = product
    for time in range(times):
        turn = time % copies[0]
        a_now, b_now = a + turn * copies[1], b + turn * copies[2]
        moved = (a_flipped, b_flipped, m, n, k, a_now, a_step, b_now, b_step, out, out_step)
        call_product(size, address, moved, beta)


@built
def call_product() -> Call:
    """Build the call of a product for compiled code."""
    import numba
    from llvmlite import ir
    from numba.core import cgutils

    toolbox: Any = cgutils
    types: Any = numba.types
    intrinsic: Any = numba.extending.intrinsic
    byte, word, single = ir.IntType(8), ir.IntType(64), ir.FloatType()

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size, address, product, beta = args
        a_flipped, b_flipped, m, n, k, a, a_step, b, b_step, out, out_step = toolbox.unpack_tuple(builder, product)

        def keep(value: Any) -> Any:
            slot = toolbox.alloca_once(builder, value.type)
            builder.store(value, slot)
            return builder.ptrtoint(slot, word)

        def flag(flipped: Any) -> Any:
            is_flipped = builder.icmp_signed("!=", flipped, word(0))
            return keep(builder.select(is_flipped, byte(TRANSPOSED), byte(AS_IT_LIES)))

        def factor(value: Any) -> Any:
            is_single = builder.icmp_signed("==", size, word(4))
            return builder.select(is_single, keep(builder.fptrunc(value, single)), keep(value))

        routine = builder.inttoptr(address, ir.FunctionType(ir.VoidType(), 13 * [word]).as_pointer())
        one = context.get_constant(types.float64, 1.0)
        builder.call(routine, [
            flag(b_flipped), flag(a_flipped), keep(n), keep(m), keep(k), factor(one), b, keep(b_step), a, keep(a_step),
            factor(beta), out, keep(out_step),
        ])  # fmt: skip
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def call_routine(typing: Any, size: Any, address: Any, product: Any, beta: Any) -> Any:
        return types.void(types.int64, types.int64, types.UniTuple(types.int64, 11), types.float64), emit

    @numba.njit(forceinline=True)
    def call(size: int, address: int, product: Numbers, beta: float) -> None:
        call_routine(size, address, product, beta)

    return call
