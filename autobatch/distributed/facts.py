"""What all processes of a group must agree on before they add anything up."""

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
    """What a process begins with: a digest of each, by what a message calls it."""
    shapes = [(name, p.shape, p.dtype.name, p.trainable) for name, p in parameters.items()]
    return {
        "Python and NumPy": f"{platform.python_version()}, {np.__version__}",
        "the code of the model": _digest(_codes(function, module)),
        "the parameters' names and shapes": _digest([repr(shapes).encode()]),
        "the parameters": _digest(p.store.get(p.array).tobytes() for p in parameters.values()),
    }


def _codes(function: Any, module: Module | None) -> list[bytes]:
    """The code of a function, and of the methods and cells of all modules under one."""
    kinds = dict.fromkeys(type(part) for part in ([] if module is None else modules_in(module)))
    functions = [*functions_in(function), *(method for kind in kinds for method in methods_of(kind))]
    return [_spell(f.__code__).encode() for f in functions]


def _spell(x: Any) -> str:
    """Code, or a constant of it, as a text that is the same in every process, wherever its file is."""
    if isinstance(x, CodeType):
        constants = ",".join(map(_spell, x.co_consts))
        return f"{x.co_qualname}{x.co_code.hex()}{x.co_names}{x.co_varnames}{x.co_freevars}({constants})"
    if isinstance(x, frozenset):  # whose order differs from process to process
        return f"{{{','.join(sorted(map(_spell, x)))}}}"
    return f"({','.join(map(_spell, x))})" if isinstance(x, tuple) else repr(x)


def _digest(parts: Iterable[bytes]) -> str:
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()
