"""The text of a module of CUDA kernels: types, the functions that kernels call, the kernels, and the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

REALS = {"float32": "float", "float64": "double"}
PLACES = {"int32": "int", "int64": "long long"}
MULTIPLY, ADD_UP, FIRST_KERNEL = 0, 1, 2
"""The numbers of the functions that steps of a sweep call: those of `sweep.cuh`, then kernels in the order of names."""


def module_text(kernels: Mapping[str, str], dtype: str, place: str) -> str:
    """The text of a module that runs these kernels; its function is `sweep`.

    Args:
        kernels: their definitions, by name.
        dtype: the model's float type.
        place: the type of destinations.
    """
    types = f"typedef {REALS[dtype]} real;\ntypedef {PLACES[place]} place;\n"
    names = sorted(kernels)
    cases = [
        f"    case {number}: {name}(worker, step.memory, step.own, step.k, (int)step.team); break;"
        for number, name in enumerate(names, FIRST_KERNEL)
    ]
    call = [
        "__device__ void call(const Worker &worker, const Step &step) {",
        "    switch (step.function) {",
        f"    case {MULTIPLY}: multiply(worker, step.memory, step.own, step.k); break;",
        f"    case {ADD_UP}: add_up(worker, step.memory, step.k); break;",
        *cases,
        "    }",
        "}",
    ]
    return "\n".join([types, _text("support.cuh"), *(kernels[name] for name in names), _text("sweep.cuh"), *call, ""])


@cache
def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text()
