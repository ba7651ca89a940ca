"""The text of a module of CUDA kernels: types, the functions that kernels call, and the kernels."""

from __future__ import annotations

from functools import cache
from pathlib import Path

REALS = {"float32": "float", "float64": "double"}
PLACES = {"int32": "int", "int64": "long long"}


def module_text(kernels: str, dtype: str, place: str) -> str:
    """The text of a module.

    Args:
        kernels: their definitions.
        dtype: the model's float type.
        place: the type of destinations.
    """
    return f"typedef {REALS[dtype]} real;\ntypedef {PLACES[place]} place;\n{_support()}\n{kernels}"


@cache
def _support() -> str:
    return (Path(__file__).parent / "support.cuh").read_text()
