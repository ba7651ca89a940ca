"""Test vectorised transcendental functions: error in ulp, special values, and the compiled code."""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int64
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from autobatch.arrays import address_of
from autobatch.compiler.llvm.machine import Loaded, compile_module, find_processor, optimise
from autobatch.compiler.llvm.scalars import REORDERED, Code, Module, Pointer, Scalar
from autobatch.compiler.llvm.vectormath import FUNCTIONS
from autobatch.ops.expression import MATHEMATICS
from helpers.checkers.vector_code import inner_loops

TYPES = {"float32": "float", "float64": "double"}
OF_THE_SYSTEM = ("cos", "sin")
NAMES = sorted({*FUNCTIONS["float"]} - {*OF_THE_SYSTEM})
MAX_ULP = {name: 6.0 if name in ("gelu", "ndtr") else 4.0 for name in NAMES}
INSTRUCTIONS = {"max", "sqrt"}
STRIDE, SLOW_STRIDE = 1409, 31  # out of all float32 bit patterns: 3 and 139 million
CHUNK = 2**22

FloatArray = NDArray[Any]


def loop_over(name: str, dtype: str, flags: str = "contract") -> str:
    """Return a loop over an array, as in generated kernels; `flags` apply to a sum of the results."""
    module, type = Module(), TYPES[dtype]
    code = Code(module)
    x, out, n = (Scalar(code, "i64", f"%{name}") for name in ("x", "out", "n"))
    given, found = (
        Pointer(code, type, code.emit(f"inttoptr i64 {address.text} to ptr", "ptr").text) for address in (x, out)
    )
    with code.loop(n) as i:
        result = FUNCTIONS[type][name](given.load(i))
        with code.flagged(flags):
            found.store(i, result + found.load(i))
    lines = ["define void @loop(i64 %x, i64 %out, i64 %n) {", "entry:", *code.lines, "  ret void", "}"]
    module.functions["loop"] = "\n".join(lines)
    return str(module)


@cache
def compiled(name: str, dtype: str, flags: str) -> tuple[Loaded, Callable[..., None]]:
    """Compile a loop to a function of addresses; return it with its code, which must be kept alive."""
    processor = find_processor()
    code = Loaded(compile_module(loop_over(name, dtype, flags), processor), processor)
    return code, CFUNCTYPE(None, c_int64, c_int64, c_int64)(code.address("loop"))


def apply(name: str, x: FloatArray, flags: str = "contract") -> FloatArray:
    out = np.full_like(x, -0.0)  # adding this to a number returns the number
    compiled(name, x.dtype.name, flags)[1](address_of(x), address_of(out), x.size)
    return out


def exact(name: str, x: FloatArray) -> FloatArray:
    """Compute the definition in float64, with another form where one overflows."""
    with np.errstate(all="ignore"):
        x = x.astype(np.float64)
        match name:
            case "sigmoid":
                return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))
            case "softplus":
                return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)
            case "erf":
                return np.asarray(torch.erf(torch.from_numpy(x)))
            case "ndtr" | "gelu":
                bounded = np.maximum(x, -50)
                share = np.asarray(torch.special.erfc(torch.from_numpy(-bounded * np.sqrt(0.5)))) / 2
                return share if name == "ndtr" else bounded * share
            case "gelu_tanh":
                bounded = np.maximum(x, -50)
                inner = np.sqrt(2 / np.pi) * (bounded + 0.044715 * bounded**3)
                gate: FloatArray = np.where(inner < 0, np.exp(2 * inner), 1) / (1 + np.exp(-2 * np.abs(inner)))
                return np.asarray(bounded * gate)
        return np.asarray(getattr(np, name)(x))


def ulps(found: FloatArray, expected: FloatArray) -> FloatArray:
    """Return errors in float32 units of the last place of the expected value; infinite for missing or wrong NaN."""
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32)
        unit = np.spacing(np.minimum(np.abs(expected), np.finfo(np.float32).max).astype(np.float32))
        distance = np.abs(found.astype(np.float64) - expected) / unit
    distance[(found == rounded) | (np.isnan(found) & np.isnan(expected))] = 0.0
    return np.where(np.isnan(distance), np.inf, distance)


def worst(name: str, stride: int) -> tuple[float, float]:
    """Return the largest error in ulp over every `stride`-th float32, and its position."""
    greatest, place = 0.0, 0.0
    for start in range(0, 2**32, CHUNK * stride):
        x = np.arange(start, min(2**32, start + CHUNK * stride), stride).astype(np.uint32).view(np.float32)
        errors = ulps(apply(name, x), exact(name, x))
        if errors.max() > greatest:
            greatest, place = float(errors.max()), float(x[errors.argmax()])
    return greatest, place


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", NAMES)
def test_every_float32_is_within_a_few_ulp(name: str) -> None:
    error, place = worst(name, STRIDE)
    assert 0.5 < error < MAX_ULP[name], f"{error} ulp at {place!r}"


@pytest.mark.parametrize("name", OF_THE_SYSTEM)
def test_functions_of_the_system_are_rounded_once(name: str) -> None:
    error, place = worst(name, STRIDE)
    assert error < 0.51, f"{error} ulp at {place!r}"


@pytest.mark.parametrize("name", NAMES)
def test_what_a_kernel_allows_itself_does_not_reach_a_function_inlined_in_it(name: str) -> None:
    """Sums that round on purpose, and NaN, survive in a loop that may reorder its own sums."""
    x = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32)
    assert ulps(apply(name, x, REORDERED), exact(name, x)).max() < MAX_ULP[name]


@pytest.mark.cases(0, 2)
@pytest.mark.parametrize("name", NAMES)
def test_every_float32_is_within_a_few_ulp_looked_at_closely(name: str) -> None:
    error, place = worst(name, SLOW_STRIDE)
    assert 0.5 < error < MAX_ULP[name], f"{error} ulp at {place!r}"


SPECIAL = {
    "exp": ([0.0, -0.0, np.inf, -np.inf, 88.73, -104.0, 1e-45], [1.0, 1.0, np.inf, 0.0, np.inf, 0.0, 1.0]),
    "log": ([0.0, -0.0, np.inf, 1.0, -1e-45, -np.inf, -1.0], [-np.inf, -np.inf, np.inf, 0.0, np.nan, np.nan, np.nan]),
    "tanh": ([0.0, -0.0, np.inf, -np.inf, 10.0, -10.0, 1e-45], [0.0, -0.0, 1.0, -1.0, 1.0, -1.0, 1e-45]),
    "sigmoid": ([0.0, -0.0, np.inf, -np.inf, 20.0, -104.0, 1e-45], [0.5, 0.5, 1.0, 0.0, 1.0, 0.0, 0.5]),
    "softplus": ([np.inf, -np.inf, 100.0, -104.0, 3e38, -3e38], [np.inf, 0.0, 100.0, 0.0, 3e38, 0.0]),
    "erf": ([0.0, -0.0, np.inf, -np.inf, 4.0, -4.0, 1.4e-44], [0.0, -0.0, 1.0, -1.0, 1.0, -1.0, 1.5e-44]),
    "ndtr": ([0.0, -0.0, np.inf, -np.inf, 6.0, -15.0, 1e-45], [0.5, 0.5, 1.0, 0.0, 1.0, 0.0, 0.5]),
    "gelu": ([0.0, -0.0, np.inf, -np.inf, 3e38, -3e38], [0.0, -0.0, np.inf, -0.0, 3e38, -0.0]),
    "gelu_tanh": ([0.0, -0.0, np.inf, -np.inf, 3e38, -3e38], [0.0, -0.0, np.inf, -0.0, 3e38, -0.0]),
}


@pytest.mark.parametrize("copies", [1, 64])
@pytest.mark.parametrize("name", NAMES)
def test_limits_signs_and_nan_are_exact(name: str, copies: int) -> None:
    """In rows long enough for vector instructions, and in rows that only the remainder loop handles."""
    given, expected = (np.array(values, np.float32) for values in SPECIAL[name])
    for value, wanted in zip([*given, np.float32(np.nan)], [*expected, np.float32(np.nan)], strict=True):
        found = apply(name, np.full(copies, value))
        np.testing.assert_array_equal(found, np.full(copies, wanted))
        if not np.isnan(wanted):
            np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


def test_tanh_is_odd_and_no_function_with_bounds_leaves_them() -> None:
    x = np.linspace(-30, 30, 400_001).astype(np.float32)
    np.testing.assert_array_equal(apply("tanh", -x), -apply("tanh", x))
    assert np.abs(apply("tanh", x)).max() == 1.0
    assert apply("sigmoid", x).max() == 1.0
    assert apply("sigmoid", x).min() > 0.0
    assert apply("softplus", x).min() > 0.0


@pytest.mark.parametrize("name", NAMES)
def test_loops_are_vector_instructions_without_calls(name: str) -> None:
    llvm = str(optimise(loop_over(name, "float32"), find_processor()))
    packed = re.findall(r"= f(mul|add|sub|div)\b.*<\d+ x float>", llvm)
    divisions = [operation for operation in packed if operation == "div"]
    assert len(packed) >= 12, f"{len(packed)} vector instructions of arithmetic"
    assert bool(divisions) == (name not in ("exp", "log", "softplus"))
    assert not re.findall(r"call [^@]*@(?:llvm\.)?(?:exp|log|tanh|pow)[12p]{0,2}f?[.(]", llvm)


@pytest.mark.parametrize("name", ["erf", "ndtr", "gelu"])
def test_the_error_function_is_vector_instructions_in_float64_too(name: str) -> None:
    """Functions based on it are too. The system's function handles one element only."""
    loops = list(inner_loops(str(optimise(loop_over(name, "float64"), find_processor()))))
    assert any(loop.is_packed for loop in loops)
    assert all(loop.is_vectorised for loop in loops)


@pytest.mark.parametrize("name", [*NAMES, *OF_THE_SYSTEM])
def test_float64_is_as_exact_as_the_system(name: str) -> None:
    x = np.concatenate([np.linspace(1e-3, 40, 10_001), [np.inf, np.nan]])
    x = x if name == "log" else np.concatenate([-x, x])
    rtol = {"gelu_tanh": 1e-11, "ndtr": 2e-13, "gelu": 2e-13}.get(name, 1e-15)  # the exact one rounds x / sqrt(2)
    np.testing.assert_allclose(apply(name, x), exact(name, x), rtol=rtol, atol=1e-300)


def test_every_function_of_expressions_is_known() -> None:
    """By type, except operators and functions that are processor instructions."""
    for known in FUNCTIONS.values():
        assert set(known) == set(MATHEMATICS) - INSTRUCTIONS - {"power"}
