"""Allocate arrays in compiled code by a few instructions, generated where the call stands.

NumPy's functions for it are several compiled functions for every type of element and of size: 0.1 s to compile.
"""

from __future__ import annotations

from typing import Any


def make_empty() -> Any:
    """Make (shape, dtype) -> an array that is not set; the shape is an int or a tuple. Loads Numba."""
    return _make_allocation(is_cleared=False)


def make_zeros() -> Any:
    """Make (shape, dtype) -> an array of zeros; the shape is an int or a tuple. Loads Numba."""
    return _make_allocation(is_cleared=True)


def _make_allocation(is_cleared: bool) -> Any:
    import numba
    from numba.core import cgutils

    types: Any = numba.types
    intrinsic: Any = numba.extending.intrinsic
    memset: Any = cgutils.memset
    unpack: Any = cgutils.unpack_tuple

    @intrinsic  # type: ignore[untyped-decorator]
    def allocate(typing: Any, shape: Any, dtype: Any) -> Any:
        n_axes = shape.count if isinstance(shape, types.BaseTuple) else 1
        made = types.Array(dtype.dtype, n_axes, "C")

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(made)(context, builder)
            element = context.get_data_type(made.dtype)
            lengths = [args[0]] if n_axes == 1 else unpack(builder, args[0])
            kinds = [shape] if n_axes == 1 else list(shape)
            lengths = [context.cast(builder, n, kind, types.intp) for n, kind in zip(lengths, kinds, strict=True)]
            itemsize = context.get_constant(types.intp, context.get_abi_sizeof(element))
            strides = [itemsize]
            for length in reversed(lengths):
                strides.insert(0, builder.mul(strides[0], length))
            align = context.get_preferred_array_alignment(made.dtype)
            held = context.nrt.meminfo_alloc_aligned(builder, strides[0], align)
            data = context.nrt.meminfo_data(builder, held)
            if is_cleared:
                memset(builder, data, strides[0], 0)
            axes = types.UniTuple(types.intp, n_axes)
            context.populate_array(
                array,
                data=builder.bitcast(data, element.as_pointer()),
                shape=context.make_tuple(builder, axes, lengths),
                strides=context.make_tuple(builder, axes, strides[1:]),
                itemsize=itemsize,
                meminfo=held,
            )
            return array._getvalue()

        return made(shape, dtype), emit

    return allocate
