"""Addresses of arrays, and arrays made from addresses in compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.jit.loops import built

Array = NDArray[Any]
FAR = 1 << 40  # elements that an array made from an address seems to have: the address does not tell its end
LINE = 64  # bytes of a cache line, and of the longest vectors


def address_of(array: Array) -> int:
    """The address of the first element of an array."""
    address: int = array.__array_interface__["data"][0]
    return address


def aligned(shape: int | tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Make an array whose rows begin at cache lines, so that a vector instruction reads from one line only."""
    n_rows, size = (1, shape) if isinstance(shape, int) else shape
    width = -(-size * dtype.itemsize // LINE) * LINE // dtype.itemsize
    data = np.empty(n_rows * width * dtype.itemsize + LINE, np.uint8)
    rows = data[-address_of(data) % LINE :][: n_rows * width * dtype.itemsize].view(dtype).reshape(n_rows, width)
    return rows[0, :size] if isinstance(shape, int) else rows[:, :size]


@built
def array_at() -> Callable[[int, Any], Array]:
    """Build (address, dtype) -> a flat array for compiled code; dtype is a NumPy type, such as np.int64."""
    import numba

    types: Any = numba.types
    intrinsic: Any = numba.extending.intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def make(typing: Any, address: Any, dtype: Any) -> Any:
        flat = types.Array(dtype.dtype, 1, "C")

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found = context.make_array(flat)(context, builder)
            element = context.get_data_type(flat.dtype)
            size = context.get_abi_sizeof(element)

            def number(value: int) -> Any:
                return context.get_constant(types.intp, value)

            context.populate_array(
                found,
                data=builder.inttoptr(args[0], element.as_pointer()),
                shape=context.make_tuple(builder, types.UniTuple(types.intp, 1), [number(FAR)]),
                strides=context.make_tuple(builder, types.UniTuple(types.intp, 1), [number(size)]),
                itemsize=number(size),
                meminfo=None,
            )
            return found._getvalue()

        return flat(types.int64, dtype), emit

    @numba.njit(forceinline=True)
    def at(address: int, dtype: Any) -> Any:
        return make(address, dtype)

    return at


@built
def call_at() -> Callable[[int, int, int, int], None]:
    """Build (function, a, b, c) for compiled code: call a function of three ints by its address."""
    import numba
    from llvmlite import ir

    types: Any = numba.types
    intrinsic: Any = numba.extending.intrinsic
    word = ir.IntType(64)

    @intrinsic  # type: ignore[untyped-decorator]
    def make(typing: Any, function: Any, a: Any, b: Any, c: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [word, word, word]).as_pointer()
            builder.call(builder.inttoptr(args[0], kind), args[1:])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64), emit

    @numba.njit(forceinline=True)
    def call(function: int, a: int, b: int, c: int) -> None:
        make(function, a, b, c)

    return call
