"""LLVM instructions that compiled kernels use in place of plain Python; see `autobatch.compiler.numba.support`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from autobatch.compiler.numba.scoped import address_in

FAR = 1 << 40  # elements that an array made from an address seems to have: the address does not tell its end
FIRST_WITH_MAXIMUM = 17  # the first version of LLVM that has llvm.maximum for all processors


def make_part() -> Callable[..., Any]:
    """Make (array, first, size) -> the address of element `first`, for compiled code."""
    import numba

    types: Any = numba.types
    intrinsic: Any = numba.extending.intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def address(typing: Any, array: Any, first: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return address_in(context, builder, signature.args[0], args)

        return types.CPointer(array.dtype)(array, types.int64), emit

    @numba.njit(forceinline=True)
    def part(array: Any, first: int, size: int) -> Any:
        return address(array, first)

    return part


def make_larger() -> Callable[..., Any]:
    """Make (x, y) -> the larger one, NaN if one is: an instruction that LLVM vectorises in reductions too."""
    import numba
    from llvmlite import binding, ir

    types: Any = numba.types
    intrinsic: Any = numba.extending.intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def maximum(typing: Any, x: Any, y: Any) -> Any:
        joined = typing.unify_types(x, y)

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x, y = (
                context.cast(builder, arg, given, joined) for arg, given in zip(args, signature.args, strict=True)
            )  # fmt: skip
            kind = ir.FunctionType(x.type, [x.type, x.type])
            return builder.call(builder.module.declare_intrinsic("llvm.maximum", [x.type], kind), [x, y])

        return joined(x, y) if isinstance(joined, types.Float) else None, emit

    @numba.njit(forceinline=True, error_model="numpy", fastmath={"nsz"})
    def larger(x: Any, y: Any) -> Any:
        return maximum(x, y)

    @numba.njit(forceinline=True, error_model="numpy")
    def larger_by_comparison(x: Any, y: Any) -> Any:
        return x if x > y or x != x else y

    return larger if binding.llvm_version_info[0] >= FIRST_WITH_MAXIMUM else larger_by_comparison


@cache
def make_array_at() -> Callable[..., Any]:
    """Make (address, dtype) -> a flat array, for compiled code; dtype is a NumPy type, such as np.int64."""
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
