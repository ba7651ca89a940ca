"""What autobatch uses of Numba beyond its public interface: everything that a new version of Numba may break.

`pyproject.toml` therefore allows versions up to the newest that the tests ran with. Two things have no public way.

Inlined loops are not optimised separately. Numba optimises every function, makes machine code of it, and links it into
its callers, where it is optimised again; this takes 1.4 times as long. See docs/decisions/compiled-once.md.

- `JITCodeLibrary` is Numba's class for the code of a function, `_optimize_final_module` and `_finalize_final_module`
  are its steps that are left out; `_finalize_dynamic_globals` and `_finalized` are what others need of the second.
- `JITCodeLibrary.codegen`: Numba writes Python objects that code reads to its address, and here there is none.
- `state.library`, of the documented `Compiler.define_pipelines`: the place of that class.
- `no_cpython_wrapper` and `no_cfunc_wrapper`, options of `njit`: without them, wrappers for calls are compiled, and of
  Numba's own functions too, which have the options of their callers; `state.flags` asks for the one that Python calls.

Files of machine code are checked. Numba does not check its files: one that a crash cut short raises `EOFError` at every
later start, and zeros in one are executed. And two processes that compile one loop for two types at once may write an
index that takes the code of one for that of the other. So each signature has a file, written whole, with a digest.

- `FunctionCache` is Numba's cache of a function; `_cache_file` reads and writes its files, by the key of a signature,
  `_index_key`.
- `Dispatcher._cache` and `CFunc._cache` hold the cache of a function that Python calls, or that is called by address.
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
from typing import Any, NamedTuple

from autobatch.system.files import write_whole
from autobatch.system.owners import PUBLIC, read_own

SUFFIX = ".kept"
DIGEST_BYTES = sha256().digest_size


class Options(NamedTuple):
    """Options of `njit`.

    Attributes:
        called: for a function that Python calls.
        inlined: for a function that is only inlined: lowered, and optimised where it is inlined.
    """

    called: Mapping[str, Any]
    inlined: Mapping[str, Any]


@cache
def make_options() -> Options:
    """Make the options of our functions. Loads Numba."""
    from numba.core import codegen, compiler

    Compiler: Any = compiler.Compiler
    Library: Any = codegen.JITCodeLibrary

    class Lowered(Library):  # type: ignore[misc]
        """Code that is only linked into other code: not optimised, and without an address."""

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalize_dynamic_globals()
            self._finalized = True

        @property
        def codegen(self) -> _NoEnvironments:
            return _NoEnvironments()

    class Inlined(Compiler):  # type: ignore[misc]
        """Compiles without optimising."""

        def define_pipelines(self) -> Any:
            self.state.library = Lowered(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
            return super().define_pipelines()

    class Called(Compiler):  # type: ignore[misc]
        """Compiles a function that Python can call, although its options forbid the wrapper for that."""

        def define_pipelines(self) -> Any:
            self.state.flags.no_cpython_wrapper = False  # callees have their own copy of the flags
            return super().define_pipelines()

    without_wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return Options({"pipeline_class": Called, **without_wrappers}, {"pipeline_class": Inlined, **without_wrappers})


class _NoEnvironments:
    """Receives the Python objects that code without an address reads: there must be none."""

    def set_env(self, name: str, environment: Any) -> None:
        assert not environment.consts, f"{name} reads Python objects, which it cannot where it is inlined"


def keep(dispatcher: Any, meanwhile: Callable[[Any], Callable[..., Any] | None]) -> Any:
    """Let a function of `njit` keep its machine code on disk, if there is a folder for it; return the function.

    Args:
        meanwhile: gives what is called for a signature whose code is not on disk; None to compile it.
    """
    try:
        dispatcher._cache = _make_cache()(dispatcher.py_func)
    except RuntimeError as error:  # Numba found no folder that can be written
        warnings.warn(f"cannot keep compiled code ({error}); going on without.", stacklevel=2)
        return dispatcher
    compile_now = dispatcher.compile

    def compile_or_wait(signature: Any) -> Any:
        has_code = dispatcher._cache.has(signature, dispatcher.targetctx)
        instead = None if has_code else meanwhile(signature)
        return compile_now(signature) if instead is None else instead

    dispatcher.compile = compile_or_wait
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
