"""Check that the native core is built; if not, say how to build it. `autobatch` imports this module first."""

import sys
from importlib import import_module
from pathlib import Path

CORE = "autobatch._native"

try:
    import_module(CORE)
except ModuleNotFoundError as error:
    if error.name != CORE:
        raise
    _root = Path(__file__).resolve().parents[1]
    raise ImportError(
        f"{CORE} is not built for {sys.implementation.cache_tag} in {_root}: run pip install --editable . there, "
        "or make native.",
        name=CORE,
    ) from None
