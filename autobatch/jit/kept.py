"""Cache machine code on disk, with digests: damaged files are detected, and their functions compiled again.

Numba does not check the files of its cache: a file that a crash or a full disk cut short raises `EOFError` at every
later start, and one whose pages never reached the disk runs machine code of zeros. So our functions have their own
files. Each is written whole, and holds a digest of its contents, the versions and the key that it was compiled for, and
the code of one signature. The format of the code and the folder are Numba's.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from autobatch.jit.internals import has_internals
from autobatch.jit.patience import Tally
from autobatch.system.files import write_whole

SUFFIX = ".kept"
DIGEST_BYTES = sha256().digest_size


class Keepers(NamedTuple):
    """Classes that keep functions on disk.

    Attributes:
        cache: replaces Numba's `FunctionCache`.
        callback: replaces Numba's `CFunc`.
    """

    cache: type
    callback: type


def keep(dispatcher: Any) -> Any:
    """Let a Numba function, called by Python or by other functions, cache its code on disk; return the function."""
    if hasattr(dispatcher, "py_func"):  # with NUMBA_DISABLE_JIT it is the plain function
        keepers = _make_keepers()
        if keepers is None:
            dispatcher.enable_caching()
        else:
            dispatcher._cache = keepers.cache(dispatcher.py_func)
    return dispatcher


def make_tally(dispatcher: Any) -> Tally:
    """Make the tally of a Numba function that `keep` was given: a full one, if its compiled code is on disk."""
    files = getattr(dispatcher._cache, "_cache_file", None)
    return files.make_tally() if isinstance(files, _Files) else Tally(None)


def compile_callback(function: Callable[..., Any], is_kept: bool, **options: Any) -> Any:
    """Compile a function of 64-bit ints, to be called by its `address`.

    Raises:
        OSError: `is_kept`, and the file cannot be written.
    """
    from numba import cfunc, types

    arguments, keepers = (types.int64,) * function.__code__.co_argcount, _make_keepers()
    if keepers is None:
        return cfunc(types.void(*arguments), cache=is_kept, **options)(function)
    callback = keepers.callback(function, (arguments, types.void), locals={}, options=options)
    if is_kept:
        callback.enable_caching()
    callback.compile()
    return callback


@cache
def _make_keepers() -> Keepers | None:
    """Make the two classes; None if this version of Numba lacks the classes that they extend. Loads Numba."""
    if not has_internals():
        return None
    from numba.core import caching, ccallback

    FunctionCache: Any = caching.FunctionCache
    CFunc: Any = ccallback.CFunc

    class Cache(FunctionCache):  # type: ignore[misc]
        """Keeps the machine code of a function, by signature."""

        def __init__(self, function: Callable[..., Any]) -> None:
            super().__init__(function)
            stamp = self._impl.locator.get_source_stamp()
            self._cache_file = _Files(Path(self._cache_path), self._impl.filename_base, stamp)

    class Callback(CFunc):  # type: ignore[misc]
        """A function that compiled code calls by its address."""

        def enable_caching(self) -> None:
            self._cache = Cache(self._pyfunc)

    return Keepers(Cache, Callback)


class _Files:
    """The cache files of one function, one for each key; replaces Numba's `IndexDataCacheFile`.

    Args:
        folder: the folder of the files.
        name: the prefix of their names.
        stamp: identifies the version of the function's source file.
    """

    def __init__(self, folder: Path, name: str, stamp: Any) -> None:
        self._folder, self._name, self._stamp = folder, name, stamp

    def save(self, key: Any, data: Any) -> None:
        """Write the compiled code for a key; OSError if that fails."""
        from numba.core import serialize

        dumps: Any = serialize.dumps
        content = dumps((self._made_for(key), data))
        write_whole(self._path(key), sha256(content).digest() + content)

    def load(self, key: Any) -> Any:
        """Read the compiled code for a key; None if there is no file, or if its contents do not match."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        digest, content = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if digest != sha256(content).digest():
            return None
        try:
            made_for, data = pickle.loads(content)
        except (ImportError, AttributeError):  # an earlier version wrote it: a class has another name now
            return None
        return data if made_for == self._made_for(key) else None

    def make_tally(self) -> Tally:
        """Make the tally of the work that was done without compiled code, whose file lies beside those of the code."""
        if any(path.name.startswith(f"{self._name}.") for path in self._folder.glob(f"*{SUFFIX}")):
            return Tally(None)
        return Tally(self._folder / f"{self._name}.work")

    def _made_for(self, key: Any) -> tuple[Any, ...]:
        import numba

        return numba.__version__, self._stamp, key

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._name}.{sha256(repr(key).encode()).hexdigest()[:16]}{SUFFIX}"
