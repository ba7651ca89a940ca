"""Write the text of a module of CUDA kernels: types, the functions that kernels call, the kernels, and the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

REALS = {"float32": "float", "float64": "double"}
INDEX_TYPES = {"int32": "int", "int64": "long long"}
ENTRY = "entry_"
MULTIPLY, ADD_UP, ADD_OUTER, ADD_ROW_SUM, FIRST_KERNEL = 0, 1, 2, 3, 4
"""The numbers of the functions that steps of a sweep call: first those of `sweep.cuh`, then kernels sorted by name."""


def module_text(kernels: Mapping[str, str], dtype: str, index_type: str, blocks: int = 1) -> str:
    """Return the text of a module that runs these kernels by its function `sweep`.

    Args:
        kernels: the definitions of the kernels, by name.
        dtype: the model's float type.
        index_type: the type of destinations.
        blocks: the number of blocks that a multiprocessor of the device runs at the same time.
    """
    bound = f"const int BLOCKS = {blocks};  // that a processor runs at the same time"
    names = sorted(kernels)
    cases = [
        f"    case {number}: {name}(worker, step.memory, step.descriptor, step.k, (int)step.team); break;"
        for number, name in enumerate(names, FIRST_KERNEL)
    ]
    call = [
        "__device__ void call(const Worker &worker, const Step &step) {",
        "    switch (step.function) {",
        f"    case {ADD_UP}: add_up(worker, step.memory, step.k); break;",
        f"    case {ADD_ROW_SUM}: add_row_sum(worker, step.memory, step.descriptor, step.k); break;",
        *cases,
        "    }",
        "}",
    ]
    return "\n".join(
        [_kernels_text(kernels, dtype, index_type), bound, _text("products.cuh"), _text("sweep.cuh"), *call, ""]
    )


def entries_text(kernels: Mapping[str, str], dtype: str, index_type: str) -> str:
    """Return the text of a module with a function `entry_NAME` per kernel, which runs it alone; see `module_text`."""
    entries = [
        f'extern "C" __global__ void __launch_bounds__(THREADS, 1)\n{ENTRY}{name}(int64 memory, int64 descriptor, '
        "int64 k, int team) {\n    BLOCK_MEMORY(shared);\n    const Worker worker = {shared, blockIdx.x, gridDim.x};\n"
        f"    {name}(worker, memory, descriptor, k, team);\n}}\n"
        for name in sorted(kernels)
    ]
    return "\n".join([_kernels_text(kernels, dtype, index_type), *entries])


def _kernels_text(kernels: Mapping[str, str], dtype: str, index_type: str) -> str:
    types = f"typedef {REALS[dtype]} real;\ntypedef {INDEX_TYPES[index_type]} index_type;\n"
    return "\n".join([types, _text("support.cuh"), *(kernels[name] for name in sorted(kernels))])


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
