"""Compile what steps call whatever their cells are: products, sums of rows, and the loops that make calls.

A file in the cache says that they are compiled; its name depends on their code.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from hashlib import sha256

import numpy as np

from autobatch.backends.cpu.rounding import multiply_in_float32, multiply_rounded
from autobatch.backends.cpu.steps import ADDRESSES, call_steps, multiply, multiply_packed
from autobatch.backends.cpu.team import Sweeps
from autobatch.backends.cpu.weights import add_bf16_outer, add_outer, add_rounded_outer, add_row_sum
from autobatch.backends.tiles import CALL, CallList
from autobatch.blas.choosing import measure, measure_bf16
from autobatch.blas.finding import list_providers
from autobatch.blas.own.packed import pack_bf16, pack_float32
from autobatch.blas.own.tiles import can_tile, can_tile_bf16
from autobatch.jit.later import Task, waits_for
from autobatch.system.cache import find_entry, keep_entry
from autobatch.system.processor import cpu_name

KIND = "compiled"
SIZES = ((64, 64, 64, False), (64, 64, 64, True))
"""Products that are timed, which compiles the loops that do it: (m, n, k), and whether it is that of a gradient."""


def is_fixed_compiled(dtype: str, precision: str, n_threads: int) -> bool:
    """Whether that is compiled; if not, a helper is asked for it.

    Args:
        dtype, precision: of the model.
        n_threads: that share tiles.
    """
    arguments = dtype, precision, n_threads > 1
    if find_entry(KIND, _sign(*arguments), bool) is not None:
        return True
    return not waits_for(Task(__name__, "compile_fixed", arguments))


def compile_fixed(dtype: str, precision: str, with_threads: bool) -> None:
    """Compile what steps call for any cells."""
    steps = [multiply, add_outer, add_row_sum]
    if can_tile():
        steps += [multiply_packed]
        pack_float32(0, 1, 1, 0, 0, 0)
    if precision == "bf16":
        steps += [multiply_in_float32, add_rounded_outer]
        if can_tile_bf16():
            steps += [multiply_rounded, add_bf16_outer]
            pack_bf16(0, 1, 1, 0, 0, 0)
    for step in steps:
        assert step.address
    for m, n, k, is_gradient in SIZES:
        measure(list_providers(), m, n, k, dtype, a_flipped=is_gradient)
        if precision == "bf16" and can_tile_bf16():
            measure_bf16(m, n, k, a_flipped=is_gradient)
    none = np.zeros(0, CALL)
    call_steps(np.zeros(0, ADDRESSES), none, 0, 0)
    if with_threads:
        nothing = np.zeros(2, np.int64)
        Sweeps().run(np.zeros((2, 0), ADDRESSES), CallList(none, nothing[:1], nothing, np.zeros(0, np.bool_)), 0, 0)
    keep_entry(KIND, _sign(dtype, precision, with_threads), {})


@cache
def _sign(*arguments: object) -> str:
    """Identify the code, and what it is compiled for."""
    loops = call_steps, multiply, multiply_packed, multiply_rounded, add_outer, add_bf16_outer, add_row_sum
    content = [*arguments, *(loop.digest() for loop in loops), sys.version, cpu_name()]
    return sha256(json.dumps(content).encode()).hexdigest()[:32]
