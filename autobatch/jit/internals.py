"""Check that the installed Numba has the internals that our compilers, caches and messages extend.

They may change with every version of Numba, so `pyproject.toml` allows versions up to the newest that the tests ran
with. If the installed version lacks any of them, plain Numba compiles and caches all loops: results are the same, and
compiling takes longer.
"""

from __future__ import annotations

import warnings
from functools import cache
from pkgutil import resolve_name
from typing import Any

EXTENDED = (
    "numba.core.compiler:Compiler.compile_extra",
    "numba.core.compiler:Compiler.define_pipelines",
    "numba.core.codegen:JITCodeLibrary._optimize_final_module",
    "numba.core.codegen:JITCodeLibrary._finalize_final_module",
    "numba.core.codegen:JITCodeLibrary._finalize_dynamic_globals",
    "numba.core.codegen:JITCodeLibrary.codegen",
    "numba.core.types:Dispatcher.get_call_type",
    "numba.core.types:unliteral",
    "numba.core.caching:FunctionCache.load_overload",
    "numba.core.ccallback:CFunc.enable_caching",
    "numba.core.serialize:dumps",
    "numba.core.event:register",
)
EXTENDED_CACHE = ("_impl", "_cache_path", "_cache_file")  # attributes of a `FunctionCache`


@cache
def has_internals() -> bool:
    """Tell whether Numba has all internals that we extend; a warning names those that are missing. Loads Numba."""
    import numba

    missing = [name.replace(":", ".") for name in EXTENDED if not _exists(name)] or _missing_in_caches()
    if missing:
        warnings.warn(
            f"Numba {numba.__version__} has no {', '.join(missing)}: loops are compiled without what autobatch adds, "
            f"with the same results, and that takes longer. Versions that pip installs with autobatch have it.",
            stacklevel=2,
        )
    return not missing


def _exists(name: str) -> bool:
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def _missing_in_caches() -> list[str]:
    from numba.core import caching

    FunctionCache: Any = caching.FunctionCache
    made = FunctionCache(_exists)
    return [f"numba.core.caching.FunctionCache.{name}" for name in EXTENDED_CACHE if not hasattr(made, name)]
