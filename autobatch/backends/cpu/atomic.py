"""Atomic operations on int64 for compiled code, sequentially consistent: all threads see one order of changes."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from autobatch.jit.loops import built

ORDER = "seq_cst"


@built
def load() -> Callable[[int], int]:
    """Build (address) -> the int64 there."""
    import numba

    word, operation = _operation(1, lambda builder, place: builder.load_atomic(place, ORDER, 8))

    @numba.njit(forceinline=True)
    def load(address: int) -> Any:
        return operation(word(address))

    return load


@built
def store() -> Callable[[int, int], int]:
    """Build (address, value): write an int64; returns the value before."""
    change: Callable[[int, int], int] = _changing("xchg")
    return change


@built
def fetch_add() -> Callable[[int, int], int]:
    """Build (address, amount): add to the int64 there; returns the value before."""
    change: Callable[[int, int], int] = _changing("add")
    return change


@built
def exchange_if() -> Callable[[int, int, int], int]:
    """Build (address, expected, new): write `new` if the int64 there is `expected`; returns the value before."""
    import numba

    def emit(builder: Any, place: Any, expected: Any, new: Any) -> Any:
        return builder.extract_value(builder.cmpxchg(place, expected, new, ORDER, ORDER), 0)

    word, operation = _operation(3, emit)

    @numba.njit(forceinline=True)
    def exchange_if(address: int, expected: int, new: int) -> Any:
        return operation(word(address), word(expected), word(new))

    return exchange_if


def _changing(how: str) -> Any:
    """Make a read-modify-write operation of one argument."""
    import numba

    word, operation = _operation(2, lambda builder, place, value: builder.atomic_rmw(how, place, value, ORDER))

    @numba.njit(forceinline=True)
    def change(address: int, value: int) -> Any:
        return operation(word(address), word(value))

    return change


def _operation(n_arguments: int, emit: Callable[..., Any]) -> tuple[Any, Any]:
    """Make an operation on an address and up to two int64; return Numba's type of int64, and the operation."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    word: Any = types.int64

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(builder, builder.inttoptr(args[0], ir.IntType(64).as_pointer()), *args[1:])

    if n_arguments == 1:
        return word, intrinsic(lambda typing, a: (word(word), generate))
    if n_arguments == 2:
        return word, intrinsic(lambda typing, a, b: (word(word, word), generate))
    return word, intrinsic(lambda typing, a, b, c: (word(word, word, word), generate))


@cache
def yield_address() -> int:
    """The address of the system's function that yields this core to other threads."""
    if sys.platform == "win32":
        function = ctypes.windll.kernel32.SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0
