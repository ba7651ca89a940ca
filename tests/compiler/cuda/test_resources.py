"""Test that the resources reported by NVIDIA's compiler are parsed correctly."""

from __future__ import annotations

import subprocess

import pytest

from autobatch.compiler.cuda.resources import (
    COMPILER,
    GPUS,
    Resources,
    has_compiler,
    measure_resources,
    parse_resources,
)
from autobatch.compiler.cuda.source import PARAMETERS
from autobatch.errors import BackendError

SAID = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'entry_kernel_b' for 'sm_80'
ptxas info    : Function properties for entry_kernel_b
    24 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 125 registers, used 16 barriers, 24 bytes cumulative stack size, 512 bytes smem, 380 bytes cmem[0]
ptxas info    : Compile time = 43.232 ms
ptxas info    : Function properties for _Z8kernel_bRK6Workerxxxi
    0 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Compiling entry function 'entry_kernel_a' for 'sm_80'
ptxas info    : Function properties for entry_kernel_a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers, 380 bytes cmem[0]
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'entry_kernel_a' for 'sm_90'
ptxas info    : Function properties for entry_kernel_a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 556 bytes cmem[0]
"""

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="needs nvcc")


def kernel(name: str, *body: str) -> dict[str, str]:
    return {name: "\n".join([f"__device__ __noinline__ void {name}({PARAMETERS}) {{", *body, "}", ""])}


def test_what_the_compiler_says_is_read() -> None:
    assert parse_resources(SAID) == {
        "sm_80": {"kernel_b": Resources(125, 512, 16, 24), "kernel_a": Resources(40, 0, 0, 0)},
        "sm_90": {"kernel_a": Resources(32, 0, 0, 0)},
    }
    assert parse_resources("ptxas info    : 0 bytes gmem\n") == {}


@needs_compiler
def test_each_kernel_has_figures_of_its_own() -> None:
    """One needs only a few registers, and the other keeps more numbers than there are registers."""
    many = [f"v{k}" for k in range(300)]
    narrow = kernel("narrow", "((int64 *)memory_)[k] = descriptor_;")
    wide = kernel(
        "wide",
        f"volatile real *x = (real *)memory_; real {', '.join(many)};",
        *(f"{v} = x[{k}];" for k, v in enumerate(many)),
        *(f"x[{k}] = {v};" for k, v in enumerate(reversed(many))),
    )
    found = measure_resources(narrow | wide, "float32", "int32", "cell 'test'")
    assert list(found) == list(GPUS)
    for kernels in found.values():
        assert kernels["narrow"].registers < 40
        assert kernels["narrow"][1:] == (0, 0, 0)
        assert kernels["wide"].registers > 200
        assert min(kernels["wide"].spilled_bytes, kernels["wide"].reloaded_bytes) > 0


@needs_compiler
def test_what_does_not_compile_is_told() -> None:
    with pytest.raises(BackendError, match=r"^cell .test.: nvcc cannot compile its kernels: .*missing.* is undefined"):
        measure_resources(kernel("wrong", "missing(k);"), "float32", "int32", "cell 'test'")


def test_what_takes_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(BackendError, match=f"^cell 'test': {COMPILER} takes longer than 300 s to compile"):
        measure_resources({}, "float32", "int32", "cell 'test'")
