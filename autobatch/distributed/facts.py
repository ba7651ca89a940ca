"""Digests of the code and the parameters, on which all processes of a group must agree."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from hashlib import sha256
from types import CodeType
from typing import Any

import numpy as np

from autobatch.params.module import Module, modules_in
from autobatch.params.parameter import Parameter
from autobatch.trace.scanning import functions_in, methods_of


def facts_of(function: Any, module: Module | None, parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """Return versions, and digests of code and parameters, by their names in error messages."""
    shapes = [(name, p.shape, p.dtype.name, p.trainable) for name, p in parameters.items()]
    return {
        "Python and NumPy": f"{platform.python_version()}, {np.__version__}",
        "the code of the model": _digest(_codes(function, module)),
        "the parameters' names and shapes": _digest([repr(shapes).encode()]),
        "the parameters": _digest(p.store.get(p.array).tobytes() for p in parameters.values()),
    }


def _codes(function: Any, module: Module | None) -> list[bytes]:
    """Return the code of a function, and of the methods and cells of all modules in `module`."""
    kinds = dict.fromkeys(type(part) for part in ([] if module is None else modules_in(module)))
    functions = [*functions_in(function), *(method for kind in kinds for method in methods_of(kind))]
    return [_spell(f.__code__).encode() for f in functions]


def _spell(x: Any) -> str:
    """Format code, or one of its constants, independently of the process and of the file's path."""
    if isinstance(x, CodeType):
        constants = ",".join(map(_spell, x.co_consts))
        return f"{x.co_qualname}{x.co_code.hex()}{x.co_names}{x.co_varnames}{x.co_freevars}({constants})"
    if isinstance(x, frozenset):  # its order depends on the process's hash seed
        return f"{{{','.join(sorted(map(_spell, x)))}}}"
    return f"({','.join(map(_spell, x))})" if isinstance(x, tuple) else repr(x)


def _digest(parts: Iterable[bytes]) -> str:
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()
