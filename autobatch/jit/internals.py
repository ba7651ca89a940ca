"""What autobatch uses of Numba beyond its public interface: everything that a new version of Numba may break.

`pyproject.toml` therefore allows versions up to the newest that the tests ran with. Two things have no public way.

Fewer wrappers are compiled. `no_cpython_wrapper` and `no_cfunc_wrapper`, options of `njit`, leave out wrappers for
calls, those of Numba's own functions too, which have the options of their callers; `state.flags` asks for the one that
a file of machine code needs.

Files of machine code are checked. Numba does not check its files: one that a crash cut short raises `EOFError` at every
later start, and zeros in one are executed. And two processes that compile one loop for two types at once may write an
index that takes the code of one for that of the other. So each signature has a file, written whole, with a digest.

- `FunctionCache` is Numba's cache of a function; `_cache_file` reads and writes its files, by the key of a signature,
  `_index_key`.
- `Dispatcher._cache` and `CFunc._cache` hold the cache of a function that is inlined, or that is called by address.
- `CFunc` is what the public `cfunc` makes and compiles at once, before its cache can be replaced; `_sig` and
  `_targetdescr` are what its file is found by.
- `serialize.dumps` pickles compiled code, which plain pickle cannot.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from autobatch.system.files import write_whole
from autobatch.system.owners import PUBLIC, read_own

SUFFIX = ".kept"
DIGEST_BYTES = sha256().digest_size


@cache
def make_options() -> Mapping[str, Any]:
    """Make the options of `njit` for functions that kernels inline. Loads Numba."""
    from numba.core import compiler

    Compiler: Any = compiler.Compiler

    class Called(Compiler):  # type: ignore[misc]
        """Compiles a function that Python can call, although its options forbid the wrapper for that."""

        def define_pipelines(self) -> Any:
            self.state.flags.no_cpython_wrapper = False  # callees have their own copy of the flags
            return super().define_pipelines()

    return {"pipeline_class": Called, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def keep(dispatcher: Any) -> Any:
    """Let a function of `njit` keep its machine code on disk, if there is a folder for it; return the function."""
    try:
        dispatcher._cache = _make_cache()(dispatcher.py_func)
    except RuntimeError as error:  # Numba found no folder that can be written
        warnings.warn(f"cannot keep compiled code ({error}); going on without.", stacklevel=2)
    return dispatcher


def make_callback(function: Callable[..., Any], is_kept: bool, **options: Any) -> Any:
    """Make a function of 64-bit ints, to be called by its `address` once its method `compile` was called."""
    from numba import types
    from numba.core.ccallback import CFunc

    Callback: Any = CFunc
    arguments = (types.int64,) * function.__code__.co_argcount
    callback = Callback(function, (arguments, types.void), locals={}, options=options)
    if is_kept:
        callback._cache = _make_cache()(function)
    return callback


def is_on_disk(callback: Any) -> bool:
    """Whether the machine code of a callback that is kept need not be compiled."""
    found: bool = callback._cache.has(callback._sig, callback._targetdescr.target_context)
    return found


@cache
def _make_cache() -> type:
    """Make the class that keeps the machine code of a function. Loads Numba."""
    from numba.core import caching

    FunctionCache: Any = caching.FunctionCache

    class Cache(FunctionCache):  # type: ignore[misc]
        """Keeps machine code in files of ours; where that fails, it is lost to other processes, and no more."""

        def __init__(self, function: Callable[..., Any]) -> None:
            super().__init__(function)
            self._cache_file = _Files(Path(self.cache_path), f"{function.__module__}.{function.__qualname__}")

        def has(self, signature: Any, context: Any) -> bool:
            """Whether there is a file for the code of a signature."""
            found: bool = self._cache_file.has(self._index_key(signature, context.codegen()))
            return found

        def save_overload(self, signature: Any, code: Any) -> None:
            try:
                super().save_overload(signature, code)
            except OSError as error:
                why = error.strerror or error
                warnings.warn(
                    f"cannot keep compiled code in {self.cache_path!r} ({why}); going on without.", stacklevel=2
                )

    return Cache


class _Files:
    """The files of one function, one for each key; replaces Numba's `IndexDataCacheFile`.

    Args:
        folder: the folder of the files.
        name: of the function and the version of its code; their prefix.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name.replace("<", "").replace(">", "")  # Windows has no such files

    def save(self, key: Any, data: Any) -> None:
        """Write the compiled code for a key; OSError if that fails."""
        from numba.core import serialize

        dumps: Any = serialize.dumps
        content = dumps((_made_for(key), data))
        write_whole(self._path(key), sha256(content).digest() + content, PUBLIC[1])

    def load(self, key: Any) -> Any:
        """Read the compiled code for a key; None if it is missing, does not match or is not trusted."""
        try:
            content = read_own(self._path(key))
        except OSError:
            return None
        digest, content = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if digest != sha256(content).digest():
            return None
        try:
            made_for, data = pickle.loads(content)
        except (ImportError, AttributeError):  # an earlier version wrote it: a class has another name now
            return None
        return data if made_for == _made_for(key) else None

    def has(self, key: Any) -> bool:
        """Whether there is a file for a key."""
        return self._path(key).exists()

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._name}.{sha256(repr(key).encode()).hexdigest()[:16]}{SUFFIX}"


def _made_for(key: Any) -> tuple[Any, ...]:
    import numba

    return numba.__version__, sys.version, key
